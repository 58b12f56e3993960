"""What `bench` prints: arms over all traffic, the largest buckets, facts, and one sentence."""

from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from selfspec_cli.bench import words
from selfspec_cli.bench.latency_table import Quantiles
from selfspec_cli.bench.summary import AR, GENERATE, PLAN, RIVALS, BenchSummary, Line
from selfspec_cli.buckets import BucketKey, context_label
from selfspec_cli.report.format import NOT_KNOWN, number, ratio, shown

MAX_BUCKETS = 8  # the largest; bench.html and bench_summary.csv have all
_MAX_LABEL = 18  # characters of a task's name
_MIN_LABEL = 8
_TIMES = ("request P50/95/99 s", "TTFT", "token")
_WIDE = 100
_MAX_RIVAL_COLUMNS = 4  # arms beside the plan, of those the table has room for


def print_bench(summary: BenchSummary, console: Console) -> None:
    """Print the summary; its last line is the answer.

    Args:
        summary: of `summary.summarise`.
        console: where to; its width breaks the lines.
    """
    console.print(bench_lines(summary, console.width))


def bench_lines(summary: BenchSummary, width: int = _WIDE) -> Group:
    """Return at most about 30 lines of `width` columns.

    On a narrow screen the arms' times get a table of their own, and buckets lose the columns that
    bench.html has too.
    """
    hidden = len(summary.buckets) - MAX_BUCKETS
    more = [f"... and {hidden} more in bench.html"] if hidden > 0 else []
    starred = (
        ["* over transformers' own plain decoding."] if set(RIVALS) & set(summary.arms) else []
    )
    notes = [*more, *starred, *words.facts(summary)]
    texts = [Text(shown(line)) for line in (*notes, words.answer(summary))]
    return Group(*_arms(summary, width), Text(""), _buckets(summary, width), *texts)


def _arms(summary: BenchSummary, width: int) -> list[Table]:
    price = summary.price_per_hour is not None
    names = [
        "n", "tok/s", "speedup (95 %)", "of own", "request P50/95/99 s", "TTFT", "token",
        *(["per 1k"] if price else []), "slower",
    ]  # fmt: skip
    lines = [line for arm in summary.arms if (line := summary.total(arm))]
    rows = [_arm_cells(line, price=price) for line in lines]
    if _width("all buckets", names, rows) <= width:
        return [_table("all buckets", names, rows)]
    times = [at for at, name in enumerate(names) if name in _TIMES]
    rest = [at for at in range(len(names)) if at not in times]
    return [
        _table(
            first,
            [names[at] for at in some],
            [[row[0], *(row[at + 1] for at in some)] for row in rows],
        )
        for first, some in (("all buckets", rest), ("times", times))
    ]


def _arm_cells(line: Line, *, price: bool) -> list[str]:
    own = line.own_speedup.estimate if line.own_speedup else None
    times = line.latencies
    cost = line.cost_per_1000_tokens
    return [
        words.short_name(line.arm),
        str(line.num_requests),
        number(line.tokens_per_second, 1),
        "1" if line.arm == AR else words.speed(line.speedup),
        "-" if line.own_speedup is None else ratio(own),
        _three(times.request),
        words.seconds(times.first_token[0]),
        words.seconds(times.token[0]),
        *([NOT_KNOWN if cost is None else f"{cost:.3g}"] if price else []),
        _slow(line),
    ]


def _three(found: Quantiles) -> str:
    return "/".join(NOT_KNOWN if q.value is None else f"{q.value:.3g}" for q in found)


def _slow(line: Line | None) -> str:
    if line is None or not line.num_compared:
        return "-"
    return f"{len(line.slower)}/{line.num_compared}"


def _buckets(summary: BenchSummary, width: int) -> Table:
    """The largest buckets at the smallest batch size, a rival over its own plain decoding."""
    others = [arm for arm in summary.arms if arm not in (AR, PLAN, GENERATE)][:_MAX_RIVAL_COLUMNS]
    heads = [words.short_name(arm) + ("*" if arm in RIVALS else "") for arm in others]
    names = ["context", "T", "n", "tok/s", "plan (95 %)", *heads, "slower"]
    size = min(summary.batch_sizes, default=1)
    rows = [
        _bucket_cells(summary, bucket, size, others) for bucket in summary.buckets[:MAX_BUCKETS]
    ]
    for spare in ("tok/s", *reversed(heads)):
        if _width("task", names, rows) > width:
            at = names.index(spare)
            names = [name for name in names if name != spare]
            rows = [[*row[: at + 1], *row[at + 2 :]] for row in rows]
    return _table("task", names, rows)


def _width(first: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Columns that a table takes with nothing cut, one apart."""
    label, *columns = zip((first, *names), *rows, strict=True)
    return max(_MIN_LABEL, *map(len, label)) + sum(1 + max(map(len, column)) for column in columns)


def _bucket_cells(
    summary: BenchSummary, bucket: BucketKey, size: int, others: Sequence[str]
) -> list[str]:
    plain, plan = (summary.line(bucket, arm, size) for arm in (AR, PLAN))
    rest = [summary.line(bucket, arm, size) for arm in others]
    most = max((line.num_requests for line in (plain, plan, *rest) if line), default=0)
    return [
        shown(bucket.task, _MAX_LABEL),
        context_label(bucket.context_min, bucket.context_max).removesuffix(" tokens"),
        f"{bucket.temperature:g}",
        str(most),
        number(plain.tokens_per_second if plain else None, 1),
        words.speed(plan.speedup if plan else None),
        *(ratio(words.judged(line).estimate if line else None) for line in rest),
        _slow(plan),
    ]


def _table(first: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, min_width=_MIN_LABEL)
    for at, name in enumerate(names, start=1):
        # A narrow terminal cuts the first column, never a number.
        width = max(len(name), *(len(row[at]) for row in rows)) if rows else len(name)
        table.add_column(name, justify="right", no_wrap=True, min_width=width)
    for row in rows:
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    return table
