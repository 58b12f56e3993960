"""Figures of a bench: speedup by arm and bucket, and accepted tokens per round."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pandas as pd

from selfspec_cli.bench import words
from selfspec_cli.bench.summary import AR, FORCED, GENERATE, PLAN, RIVALS, BenchSummary, Line
from selfspec_cli.buckets import BucketKey
from selfspec_cli.report.axes import series, spans
from selfspec_cli.report.draw_shapes import draw_lengths
from selfspec_cli.report.figure_style import LINE, MUTED, quiet_axes
from selfspec_cli.report.figure_view import FigureView
from selfspec_cli.report.figures import draw_with
from selfspec_cli.report.format import percent, ratio_with_interval, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPEEDUP, LENGTHS = "bench_speedup", "bench_accepted_lengths"
MAX_ROWS = 12  # buckets drawn, the largest; the CSV has all
_ALL = "all buckets"


def bench_figures(summary: BenchSummary) -> tuple[FigureView, ...]:
    """Return the figures of a bench, in reading order."""
    return (_speedup(speedup_table(summary)), _lengths(lengths_table(summary), summary))


def draw_bench(view: FigureView) -> str | None:
    """Return a figure as SVG text; None where matplotlib cannot be used.

    Args:
        view: of `bench_figures`, with data.
    """
    return draw_with(_DRAWERS[view.name], view)


def speedup_table(summary: BenchSummary) -> pd.DataFrame:
    """Return speedups by bucket, batch size and arm, totals first (their task is `all buckets`).

    `against` is what a speedup is over: ar, or generate for what another library decoded.
    """
    lines = [*summary.totals, *summary.lines]
    rows = [_speed(line) for line in lines if line.arm not in (AR, GENERATE)]
    return pd.DataFrame([row for row in rows if row["speedup"] is not None])


def bucket_columns(bucket: BucketKey | None) -> dict[str, Any]:
    """Return the columns that name a bucket in a CSV, or all of them."""
    if bucket is None:
        return {"task": _ALL, "context_min": None, "context_max": None, "temperature": None}
    return {
        "task": bucket.task,
        "context_min": bucket.context_min,
        "context_max": bucket.context_max,
        "temperature": bucket.temperature,
    }


def _speed(line: Line) -> dict[str, Any]:
    found = words.judged(line)
    return {
        "label": _ALL if line.bucket is None else line.bucket.label,
        **bucket_columns(line.bucket),
        "batch_size": line.batch_size,
        "arm": line.arm,
        "against": GENERATE if line.arm in RIVALS else AR,
        "speedup": found.estimate,
        "low": found.low,
        "high": found.high,
        "num_groups": found.num_groups,
        "num_requests": line.num_requests,
    }


def lengths_table(summary: BenchSummary) -> pd.DataFrame:
    """Return shares of rounds by accepted length, one row a (bucket, length), at the least batch.

    A bucket shows the plan's rounds, or where the plan decodes plainly those forced on.
    """
    size = min(summary.batch_sizes, default=1)
    found = [_drafting(summary, bucket, size) for bucket in summary.buckets]
    return pd.DataFrame([row for line in found if line is not None for row in _shares(line)])


def _drafting(summary: BenchSummary, bucket: BucketKey, size: int) -> Line | None:
    lines = [summary.line(bucket, arm, size) for arm in (PLAN, FORCED)]
    return next((line for line in lines if line is not None and line.lengths is not None), None)


def _shares(line: Line) -> list[dict[str, Any]]:
    lengths = line.lengths
    if lengths is None:
        return []
    head = {
        **bucket_columns(line.bucket),
        "arm": line.arm,
        "exit_layer": line.exit_layer,
        "draft_length": line.draft_length,
        "num_requests": line.num_requests,
        "two_peaks": lengths.two_peaks,
    }
    shares = zip(lengths.share, lengths.low, lengths.high, lengths.constant, strict=True)
    names = ("share", "low", "high", "constant")
    return [
        {**head, "accepted": at, **dict(zip(names, map(float, values), strict=True))}
        for at, values in enumerate(shares)
    ]


def _speedup(table: pd.DataFrame) -> FigureView:
    title = "Measured speedup by arm and bucket"
    if table.empty:
        return _absent(SPEEDUP, title, "No two arms decoded the same request: nothing to compare.")
    totals = table.loc[
        (table["label"] == _ALL) & (table["batch_size"] == table["batch_size"].min())
    ]
    told = "; ".join(
        f"{words.long_name(row['arm'])} "
        f"{ratio_with_interval(row['speedup'], row['low'], row['high'])}"
        for row in totals.to_dict("records")
    )
    return FigureView(
        name=SPEEDUP,
        title=title,
        caption="Decode time of plain decoding over the arm's, at the smallest batch size; what "
        "transformers decoded is over its own plain decoding. Bars are 95 % intervals over groups "
        "of requests, or repeats of whole batches; a mark without a bar has too few. Left of 1 "
        "is slower.",
        alt=f"Points by bucket and arm. All buckets: {told}.",
        table=table,
    )


def _lengths(table: pd.DataFrame, summary: BenchSummary) -> FigureView:
    title = "Accepted tokens per round, measured"
    if table.empty:
        return _absent(LENGTHS, title, "No round drafted anything: there are no accepted lengths.")
    warning = " ".join(words.peaks(summary)) or (
        "No bucket has two peaks beyond what constant acceptance gives."
    )
    first = table.iloc[0]
    return FigureView(
        name=LENGTHS,
        title=title,
        caption="Share of rounds that accept a tokens, in the largest buckets: the plan's rounds, "
        "or those forced on where the plan is off. Lines: what one constant acceptance would give. "
        f"Bars are 95 % intervals over groups of requests. {warning}",
        alt=f"Histograms. {shown(first['task'], 60)}: {percent(float(first['share']))} of the "
        f"rounds accept nothing. {warning}",
        table=table,
    )


def draw_speedups(figure: "Figure", table: pd.DataFrame) -> None:
    """Draw one row a bucket, one mark an arm, with intervals; all buckets on top."""
    size = table["batch_size"].min()
    alone = table.loc[table["batch_size"] == size]
    labels = list(dict.fromkeys(alone["label"]))[: MAX_ROWS + 1]
    arms = list(dict.fromkeys(alone["arm"]))
    figure.set_size_inches(8.6, 0.9 + (0.12 + 0.09 * len(arms)) * len(labels))
    axes = figure.subplots()
    for at, arm in enumerate(arms):
        rows = alone.loc[(alone["arm"] == arm) & alone["label"].isin(labels)]
        beside = 0.6 * ((at + 0.5) / len(arms) - 0.5)
        places = [labels.index(label) + beside for label in rows["label"]]
        style = {**series(at, words.short_name(arm)), "linestyle": "none"}
        axes.errorbar(rows["speedup"], places, xerr=spans(rows, "speedup", "low", "high"), **style)
    axes.axvline(1.0, color=MUTED, linewidth=0.9)
    axes.set_yticks(range(len(labels)), [_short(alone, label) for label in labels])
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlabel(f"speedup, batch size {size}")
    quiet_axes(axes, grid=False)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=len(arms), fontsize=8)


def _short(table: pd.DataFrame, label: str) -> str:
    """A bucket beside the axis: a long task is cut, never its band."""
    row = table.loc[table["label"] == label].iloc[0]
    if label == _ALL:
        return _ALL
    return f"{shown(row['task'], 24)}, from {row['context_min']:.0f}, T={row['temperature']:g}"


def _absent(name: str, title: str, why: str) -> FigureView:
    return FigureView(name=name, title=title, caption="", alt="", table=pd.DataFrame(), absent=why)


_DRAWERS: dict[str, Callable[["Figure", pd.DataFrame], None]] = {
    SPEEDUP: draw_speedups,
    LENGTHS: draw_lengths,
}
