"""bench.md: the answer and its tables, for a pull request or a wiki."""

from collections.abc import Iterable, Sequence

from selfspec_cli.bench import words
from selfspec_cli.bench.summary import AR, BenchSummary, Line
from selfspec_cli.report.format import NOT_KNOWN, number
from selfspec_cli.report.markdown import plain

_HEAD = (
    "arm", "batch", "n", "tokens/s", "speedup (95 %)", "of its own plain", "P50", "P95", "P99",
    "first token", "between tokens", "slower",
)  # fmt: skip


def render_markdown(summary: BenchSummary) -> str:
    """Return bench.md; no label of a trace becomes markup.

    Args:
        summary: of `summary.summarise`.
    """
    lines = [
        "# Bench",
        "",
        f"**{plain(words.answer(summary))}.**",
        "",
        *(f"- {plain(fact)}" for fact in words.facts(summary)),
        "",
        "## All buckets",
        "",
        *_table(_HEAD, (_cells(line) for line in summary.totals)),
    ]
    for bucket in summary.buckets:
        own = (_cells(line) for line in summary.lines if line.bucket == bucket)
        lines += ["", f"## {plain(bucket.label)}", "", *_table(_HEAD, own)]
    return "\n".join(lines) + "\n"


def _cells(line: Line) -> list[str]:
    times = line.latencies
    return [
        plain(words.long_name(line.arm)),
        str(line.batch_size),
        str(line.num_requests or ""),  # whole batches are timed as one
        number(line.tokens_per_second, 1),
        "1" if line.arm == AR else words.speed(line.speedup),
        words.speed(line.own_speedup) if line.own_speedup else "",
        *(words.seconds(one) for one in times.request),
        words.seconds(times.first_token[0]),
        words.seconds(times.token[0]),
        f"{len(line.slower)} of {line.num_compared}" if line.num_compared else NOT_KNOWN,
    ]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
