"""`selfspec bench RUN|PLAN -t TRACES`: real decoding, from flags to files and the terminal."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

import typer

from selfspec_cli.errors import ConfigError

if TYPE_CHECKING:
    from selfspec_cli.bench.choose import RivalsAt
    from selfspec_cli.bench.results import BenchRun
    from selfspec_cli.bench.run_bench import BenchWish
    from selfspec_cli.bench.subject import Subject
    from selfspec_cli.bench.summary import BenchSummary
    from selfspec_cli.buckets import BucketKey

PIPE_WIDTH = 110  # columns


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeWish:
    """What the flags ask for, ranges still as text."""

    target: Path | None
    traces: tuple[str, ...]
    model: str | None
    tokenizer: str | None
    out: Path | None
    device: str
    dtype: str
    engine: str
    batch_sizes: str
    requests: int
    budget_s: float
    repeats: int
    limit: int | None
    seed: int
    price_per_hour: float | None
    rivals: str


def decode_and_print(wish: DecodeWish, *, as_json: bool, quiet: bool) -> None:
    """Decode, write bench.csv and bench.json, and say what was found.

    Raises:
        SelfspecError: wrong flags or input; greedy output differed (the files are written then).
        BaseException: a signal came; what every arm decoded by then is written and printed.
    """
    target = _check(wish)
    from selfspec_cli.bench.subject import read_subject

    subject = read_subject(target, _config_wishes(wish))
    folder = _place(wish, subject)
    run = _decode(subject, wish, quiet=quiet)
    from selfspec_cli.bench.results import check_bench_exact, write_bench

    write_bench(run, folder)  # what took minutes is safe before anything is made of it
    _tell((run, folder), subject, wish.price_per_hour, as_json=as_json)
    if run.signal is not None:
        run.signal.add_note(f"what was measured by then is in {folder}; a new bench begins again")
        raise run.signal
    check_bench_exact(run)


def _decode(subject: Subject, wish: DecodeWish, *, quiet: bool) -> BenchRun:
    from selfspec_cli.bench.run_bench import run_bench
    from selfspec_cli.cli.progress import TerminalProgress
    from selfspec_cli.engine.load import quiet_library

    quiet_library()
    try:
        return run_bench(subject, _bench_wish(wish), TerminalProgress(quiet=quiet))
    except Exception:
        raise
    except BaseException as signal:
        signal.add_note("no request was measured with every arm yet; nothing was written")
        raise


def _check(wish: DecodeWish) -> Path:
    """Refuse what cannot be meant, before anything is read; returns RUN or PLAN."""
    if wish.target is None:
        raise ConfigError(
            "no run or plan is given",
            hint="selfspec bench RUN -t TRACES, or selfspec bench -m MODEL --only cost.",
        )
    if not wish.traces:
        raise ConfigError(
            "no traces are given", where="-t", hint="Give trace files; -t sample is built in."
        )
    for flag, value in (("--price-per-hour", wish.price_per_hour), ("--budget-s", wish.budget_s)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{value:g} is not a positive number", where=flag)
    return wish.target


def _config_wishes(wish: DecodeWish) -> dict[str, object]:
    """Keys of the calibration's config; `auto` leaves the run's own."""
    asked = {"device": wish.device, "dtype": wish.dtype, "engine": wish.engine}
    return {
        "traces": list(wish.traces),
        "model": wish.model,
        "tokenizer": wish.tokenizer,
        "limit": wish.limit,
        "seed": wish.seed,
        **{key: value for key, value in asked.items() if value != "auto"},
    }


def _place(wish: DecodeWish, subject: Subject) -> Path:
    """Where to write: the run, or -o; checked before any model is loaded."""
    from selfspec_cli.storage.place import check_place, probe

    folder = wish.out or subject.run
    if folder is None:
        raise ConfigError("a plan alone has no run to write to", where="-o", hint="Give -o FOLDER.")
    check_place(folder)
    probe(folder)
    return folder


def _bench_wish(wish: DecodeWish) -> BenchWish:
    from selfspec_cli.bench.choose import Limits
    from selfspec_cli.bench.run_bench import BenchWish
    from selfspec_cli.config.ranges import parse_batch_sizes

    limits = Limits(
        requests=wish.requests,
        budget_s=wish.budget_s,
        repeats=wish.repeats,
        batch_sizes=parse_batch_sizes(wish.batch_sizes, where="--batch-size"),
        seed=wish.seed,
        rivals=_rivals_at(wish.rivals),
    )
    return BenchWish(
        limits=limits,
        model_asked=wish.model is not None,
        price_per_hour=wish.price_per_hour,
        argv=tuple(sys.argv[1:]),
    )


def _rivals_at(name: str) -> RivalsAt:
    from selfspec_cli.bench.choose import RivalsAt

    for known in get_args(RivalsAt):
        if known == name:
            return cast("RivalsAt", known)
    raise ConfigError(
        f"unknown requests {name!r}", where="--rivals", hint=f"Use {', '.join(get_args(RivalsAt))}."
    )


def _tell(
    made: tuple[BenchRun, Path], subject: Subject, price: float | None, *, as_json: bool
) -> None:
    """Write the page and print the summary, buckets weighted by their tokens in the plan's log."""
    from selfspec_cli.bench.document import summary_document
    from selfspec_cli.bench.page import write_bench as write_page
    from selfspec_cli.bench.results import write_bench
    from selfspec_cli.bench.summary import summarise
    from selfspec_cli.storage.documents import plain_data

    run, folder = made
    traffic = _traffic(subject, set(run.table["task"]))
    summary = summarise(run.table, price, traffic=traffic, taken=run.taken)
    told = summary_document(summary)
    write_bench(run, folder, told)
    files = write_page(summary, folder)
    if as_json:
        places = {"answer": told["answer"], "files": [str(file) for file in files]}
        document = plain_data({**run.document, **places, "summary": told})
        typer.echo(json.dumps(document, allow_nan=False))
        return
    _print(summary, files[0])


def _print(summary: BenchSummary, page: Path) -> None:
    from rich.console import Console

    from selfspec_cli.bench.terminal import print_bench

    console = Console(highlight=False)
    if not console.is_terminal:  # where nothing says how wide, the table is shown whole
        console = Console(highlight=False, width=max(console.width, PIPE_WIDTH))
    print_bench(summary, console)
    console.print(f"page: {page}", markup=False, soft_wrap=True)


def _traffic(subject: Subject, tasks: set[str]) -> dict[BucketKey, float] | None:
    """Tokens of each bucket in the log; None where it had no such tasks, so that requests weigh."""
    from selfspec_cli.buckets import BucketKey

    found = {
        BucketKey(
            task=rule.task,
            context_min=rule.context_min,
            context_max=rule.context_max,
            temperature=rule.temperature_min,
        ): float(rule.num_tokens)
        for rule in subject.plan.rules
        if rule.task in tasks
    }
    return found if any(found.values()) else None
