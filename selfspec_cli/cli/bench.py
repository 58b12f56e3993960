"""`selfspec bench`: decode traces for real; with `--only cost`, what a model's parts cost here."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfspec_cli.cli.bench_decode import DecodeWish, decode_and_print
from selfspec_cli.errors import ConfigError, RunDirError

if TYPE_CHECKING:
    from selfspec_cli.cost.alone import CostReport
    from selfspec_cli.cost.plan import CostPlan
    from selfspec_cli.engine.engines import Engine

COST_FILE, FIT_FILE = "cost.csv", "cost_fit.json"
_NO_TEXT = object()  # in place of a tokenizer: costs are measured on token ids


@dataclass(frozen=True, slots=True, kw_only=True)
class CostWish:
    """What the flags ask for, still as text."""

    model: str
    device: str
    dtype: str
    exit_layers: str
    draft_lengths: str
    contexts: str
    batch_sizes: str
    temperatures: str
    engine: str
    seed: int


def bench(
    target: Annotated[
        Path | None, typer.Argument(metavar="[RUN|PLAN]", help="A run or plan to decode for real.")
    ] = None,
    *,
    traces: Annotated[
        list[str] | None, typer.Option("-t", "--traces", help="Trace files, or sample; repeatable.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="demo, a folder or a hub id; else the run's."),
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", help="cost: time this machine alone, no traces.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write; the run's own if left out.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests decoded a bucket.")] = 8,
    budget_s: Annotated[
        float, typer.Option("--budget-s", help="Seconds of decoding, planned for and kept to.")
    ] = 120.0,
    repeats: Annotated[int, typer.Option(min=1, help="Times each arm is decoded.")] = 1,
    price_per_hour: Annotated[
        float | None, typer.Option(help="Price of the machine an hour, for cost per 1,000 tokens.")
    ] = None,
    rivals: Annotated[
        str,
        typer.Option(
            help="Requests for the library's own arms: greedy, all or none. Above T = 0 these "
            "take long and write texts of their own, so time a token compares."
        ),
    ] = "greedy",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Most requests read from the traces.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder of another tokenizer, where the plan had one.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    exit_layers: Annotated[
        str, typer.Option(help="Cost only. L: 30%-80%, 9-24, 9,12,15.")
    ] = "30%-80%",
    draft_lengths: Annotated[str, typer.Option(help="Cost only. k, tokens: 1-8, 1,2,4.")] = "1-8",
    contexts: Annotated[str, typer.Option(help="Cost only. Tokens in the cache.")] = "128,1024",
    batch_size: Annotated[str, typer.Option(help="Rows decoded together: 1 or 1,4,8.")] = "1",
    temperatures: Annotated[str, typer.Option(help="Cost only. 0 is greedy.")] = "0,0.7",
    engine: Annotated[
        str, typer.Option(help="Kernels: auto, compiled or eager; auto is compiled where it pays.")
    ] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of every draw and the order.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout, with all numbers.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> None:
    """Decode requests for real with every arm: plain, the plan, forced on, and the library's own.

    Example: selfspec bench reports/quickstart -t sample -m demo

    Reads plan.yaml of RUN, or PLAN, the traces and the model; decodes some requests of each bucket
    with interleaved arms; writes bench.csv and bench.json, bench.html and bench_summary.csv. With
    --only cost and -m MODEL it times drafts, verification and overhead alone, without traces, in
    about a minute. Exit codes: 0 done, 1 greedy output differed from plain decoding, 2 usage or
    input error, 130 interrupted, 143 terminated: what every arm decoded by then is written, marked
    as partial.
    """
    if only is None:
        decode_and_print(
            DecodeWish(
                target=target,
                traces=tuple(traces or ()),
                model=model,
                tokenizer=tokenizer,
                out=out,
                device=device,
                dtype=dtype,
                engine=engine,
                batch_sizes=batch_size,
                requests=requests,
                budget_s=budget_s,
                repeats=repeats,
                limit=limit,
                seed=seed,
                price_per_hour=price_per_hour,
                rivals=rivals,
            ),
            as_json=as_json,
            quiet=quiet,
        )
        return
    wish = CostWish(
        model=_required_model(target, model, only),
        device=device,
        dtype=dtype,
        exit_layers=exit_layers,
        draft_lengths=draft_lengths,
        contexts=contexts,
        batch_sizes=batch_size,
        temperatures=temperatures,
        engine=engine,
        seed=seed,
    )
    if out is not None:
        _check_out(out)
    report = _measure(wish, quiet=quiet)
    if out is not None:
        _write(report, out)
    _print(report, as_json=as_json)


def _required_model(target: Path | None, model: str | None, only: str) -> str:
    if only != "cost":
        raise ConfigError(
            f"unknown part {only!r}", where="--only", hint="cost is the only part; see --help."
        )
    if target is not None:
        raise ConfigError(
            "--only cost takes a model, no run or plan", where=str(target), hint="Use -m MODEL."
        )
    if model is None:
        raise ConfigError("no model is given", where="-m", hint="-m demo is built in.")
    return model


def _check_out(out: Path) -> None:
    """Refuse a folder that cannot be written, or a run's own, before a minute is spent."""
    from selfspec_cli.storage.place import MANIFEST, check_place, probe

    check_place(out)
    if (out / MANIFEST).exists():
        raise RunDirError(
            "holds a run, whose cost.csv belongs to it", where=str(out), hint="Give another -o."
        )
    probe(out)


def _measure(wish: CostWish, *, quiet: bool) -> CostReport:
    from selfspec_cli.calibrate.progress import compile_notes
    from selfspec_cli.cli.progress import TerminalProgress
    from selfspec_cli.cost.alone import measure_alone
    from selfspec_cli.cost.memory import fit_memory, left_out_notices
    from selfspec_cli.cost.plan import with_default_rounds
    from selfspec_cli.engine.limits import context_limit
    from selfspec_cli.engine.load import LoadOptions, load_model, quiet_library, read_config

    quiet_library()
    _check_place(wish)
    options = LoadOptions(model=wish.model, device=wish.device, dtype=wish.dtype)
    config = read_config(options)  # wrong flags are told before any weight is read
    plan = _plan(wish, int(config.num_hidden_layers))
    plan.check(int(config.num_hidden_layers), context_limit(config))
    progress = TerminalProgress(quiet=quiet)
    progress.note(f"loading {wish.model} and checking its layers")
    options = replace(options, engine=_engine(wish.engine), rows=max(plan.batch_sizes))
    loaded = load_model(
        options,
        tokenizer=_NO_TEXT,
        exit_layers=plan.exit_layers,
        told=compile_notes(progress),
    )
    for notice in loaded.notices:
        progress.notice(notice)
    plan = with_default_rounds(fit_memory(loaded.view, plan))
    for notice in left_out_notices(plan):
        progress.note(notice)
    with progress.stage("timing parts, plain steps and whole rounds", 1.0) as stage:
        done = 0.0

        def told(samples: int, total: int) -> None:
            nonlocal done
            stage.advance(samples / total - done)
            done = samples / total

        return measure_alone(loaded.view, plan, wish.seed, progress=told)


def _check_place(wish: CostWish) -> None:
    from selfspec_cli.engine.load import DTYPES, resolve_device

    known = ("auto", *DTYPES)
    if wish.dtype not in known:
        raise ConfigError(
            f"unknown dtype {wish.dtype!r}", where="--dtype", hint=f"Use {', '.join(known)}."
        )
    resolve_device(wish.device)
    _engine(wish.engine)


def _engine(name: str) -> Engine:
    from selfspec_cli.engine.engines import ENGINES

    for engine in ENGINES:
        if engine == name:
            return engine
    raise ConfigError(
        f"unknown engine {name!r}", where="--engine", hint=f"Use {', '.join(ENGINES)}."
    )


def _plan(wish: CostWish, num_layers: int) -> CostPlan:
    from selfspec_cli.config.ranges import (
        parse_batch_sizes,
        parse_range,
        parse_temperatures,
        resolve_draft_lengths,
        resolve_exit_layers,
    )
    from selfspec_cli.cost.plan import CostPlan
    from selfspec_cli.records import Sampling

    layers = resolve_exit_layers(wish.exit_layers, num_layers, where="--exit-layers")
    lengths = resolve_draft_lengths(wish.draft_lengths, where="--draft-lengths")
    contexts = parse_range(wish.contexts, where="--contexts")
    batch_sizes = parse_batch_sizes(wish.batch_sizes, where="--batch-size")
    given = parse_temperatures(wish.temperatures, where="--temperatures")
    if isinstance(given, str):
        raise ConfigError(
            "there is no trace to take temperatures from",
            where="--temperatures",
            hint="Write 0,0.7.",
        )
    # The value of a temperature above 0 changes no cost, so one stands for all of them.
    samplings = {law.law_class: law for law in (Sampling(temperature=t) for t in given)}
    return CostPlan(
        exit_layers=layers,
        draft_lengths=lengths,
        contexts=contexts,
        laws=tuple(samplings.values()),
        batch_sizes=batch_sizes,
    )


def _write(report: CostReport, out: Path) -> None:
    from selfspec_cli.storage import write_document, write_table
    from selfspec_cli.storage.place import unwritable

    try:
        out.mkdir(exist_ok=True)
    except OSError as error:
        raise unwritable(out, error) from error
    write_table(report.rows, out / COST_FILE)
    write_document(report.fit_document(), out / FIT_FILE)


def _print(report: CostReport, *, as_json: bool) -> None:
    from selfspec_cli.cli.bench_output import print_report
    from selfspec_cli.storage import SCHEMA_VERSION
    from selfspec_cli.storage.documents import plain_data

    if as_json:
        document = {"schema_version": SCHEMA_VERSION, **report.to_document()}
        typer.echo(json.dumps(plain_data(document), allow_nan=False))
    else:
        print_report(report)
