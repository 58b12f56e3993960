"""`selfspec calibrate`: the main job."""

import json
import sys
from typing import Annotated, Any

import typer

from selfspec_cli.errors import EXIT_NO_EVIDENCE

Text = str | None
Number = int | None


def calibrate(
    model: Annotated[
        Text, typer.Option("-m", "--model", help="demo, a folder or a hub id.")
    ] = None,
    traces: Annotated[
        list[str] | None, typer.Option("-t", "--traces", help="Trace files, or sample; repeatable.")
    ] = None,
    out: Annotated[Text, typer.Option("-o", "--out", help="Run directory to write.")] = None,
    config: Annotated[
        Text, typer.Option("-c", "--config", help="Preset (quickstart, default, rigorous) or file.")
    ] = None,
    exit_layers: Annotated[Text, typer.Option(help="30%-80%, 9-24, 9-24+3 or 9,12,15.")] = None,
    draft_lengths: Annotated[Text, typer.Option(help="1-8, 1-8+2 or 1,2,4.")] = None,
    temperatures: Annotated[Text, typer.Option(help="0,0.7, or trace.")] = None,
    task_from: Annotated[
        Text,
        typer.Option(help="Tasks from a FIELD (a.b), regex:PATTERN, file or system-prompt."),
    ] = None,
    limit: Annotated[Number, typer.Option(help="Most requests taken from the traces.")] = None,
    max_tokens: Annotated[Number, typer.Option(help="Cap on output tokens a request.")] = None,
    batch_size: Annotated[
        Text, typer.Option(help="Batch sizes to price, 1 or 1,4,8; rules are decided at the first.")
    ] = None,
    continuations: Annotated[
        Text, typer.Option(help="Text to observe: auto, recorded or regenerate.")
    ] = None,
    sweep: Annotated[
        Text, typer.Option(help="walk prices every cell; decode decodes every cell.")
    ] = None,
    chat_template: Annotated[Text, typer.Option(help="Template file to use instead.")] = None,
    tokenizer: Annotated[Text, typer.Option(help="Folder of another tokenizer.")] = None,
    device: Annotated[Text, typer.Option(help="auto, cpu or cuda.")] = None,
    device_map: Annotated[
        Text, typer.Option(help="Placement over several devices, as transformers takes it.")
    ] = None,
    dtype: Annotated[Text, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
    engine: Annotated[Text, typer.Option(help="auto, compiled or eager.")] = None,
    seed: Annotated[Number, typer.Option(help="Root of every random draw.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the work, time and memory; decode nothing.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again; the default resumes.")
    ] = False,
    include_text: Annotated[
        bool | None, typer.Option("--include-text", help="Keep token ids in the run.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress.")] = False,
) -> None:
    """Replay traces, price every exit layer L and draft length k, write plan and report.

    Example: selfspec calibrate -m demo -t sample -c quickstart -o reports/quickstart

    Reads traces and a model; writes plan.yaml and report.html into RUN, and the files behind them.
    The same command resumes an interrupted run. Exit codes: 0 a plan was written, 1 speculative
    output differed from plain decoding, 2 usage or input error, 3 no bucket had enough evidence
    (the plan is written, everything off), 130 interrupted, 143 terminated.
    """
    overrides = {
        "model": model, "traces": traces or None, "out": out, "exit_layers": exit_layers,
        "draft_lengths": draft_lengths, "temperatures": temperatures, "limit": limit,
        "batch_sizes": batch_size,
        "task_from": task_from, "max_tokens": max_tokens, "continuations": continuations,
        "sweep": sweep, "chat_template": chat_template, "tokenizer": tokenizer,
        "device": device, "device_map": device_map, "dtype": dtype, "engine": engine, "seed": seed,
        "include_text": include_text,
    }  # fmt: skip
    prepared = _prepare(config, overrides, fresh=fresh)
    from selfspec_cli.cli.progress import TerminalProgress

    progress = TerminalProgress(quiet=quiet)
    if dry_run:
        _dry_run(prepared, progress, as_json=as_json)
        return
    from selfspec_cli.calibrate.run import calibrate as run_stages
    from selfspec_cli.cli.summary import outcome_document, print_outcome
    from selfspec_cli.plan.planner import no_evidence

    outcome = run_stages(prepared, progress, sys.argv[1:])
    if as_json:
        typer.echo(json.dumps(outcome_document(outcome), allow_nan=False))
    else:
        print_outcome(outcome)
    if no_evidence(outcome.plan):
        raise typer.Exit(EXIT_NO_EVIDENCE)


def _prepare(config: str | None, overrides: dict[str, Any], *, fresh: bool) -> Any:
    from selfspec_cli.calibrate.place import check_places
    from selfspec_cli.config import load_config

    settings = load_config(config, overrides)
    check_places(settings, fresh=fresh)
    from selfspec_cli.calibrate.run import prepare_run
    from selfspec_cli.engine.load import quiet_library

    quiet_library()
    return prepare_run(settings, fresh=fresh)


def _dry_run(prepared: Any, progress: Any, *, as_json: bool) -> None:
    from selfspec_cli.calibrate.estimate import estimate
    from selfspec_cli.cli.summary import print_estimate

    found = estimate(prepared, progress)
    if as_json:
        typer.echo(json.dumps(found.to_document(), allow_nan=False))
    else:
        print_estimate(found)
