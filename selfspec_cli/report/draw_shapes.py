"""Predicted against measured, and histograms of accepted lengths."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.report.axes import as_percent, legend, series, spans
from selfspec_cli.report.figure_style import DASHES, INK, LINE, MUTED, SERIES, quiet_axes
from selfspec_cli.report.format import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_HISTOGRAMS = 6  # buckets drawn; the CSV has all


def draw_measured(figure: "Figure", table: pd.DataFrame) -> None:
    """Draw measured over predicted speedup, with the diagonal on which they agree."""
    figure.set_size_inches(4.8, 4.0)
    axes = figure.subplots()
    ends = _range(table)
    axes.plot(ends, ends, color=MUTED, dashes=DASHES, linewidth=1.2, label="agreement")
    for line in (axes.axhline, axes.axvline):
        line(1.0, color=LINE, linewidth=1.0, zorder=0)
    for at, (temperature, rows) in enumerate(table.groupby("temperature", sort=True)):
        style = {**series(at, f"T = {temperature:g}"), "linestyle": "none"}
        axes.errorbar(
            rows["predicted_speedup"], rows["measured_speedup"],
            xerr=_ends(rows, "predicted_speedup"), yerr=_ends(rows, "measured_speedup"), **style,
        )  # fmt: skip
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_xlabel("predicted speedup")
    axes.set_ylabel("measured speedup")
    quiet_axes(axes, grid=False)
    legend(axes)


def _range(table: pd.DataFrame) -> list[float]:
    """Both axes alike, with room for every value and the bars around it, and for 1."""
    names = ("predicted_speedup", "measured_speedup")
    shown = [f"{name}{end}" for name in names for end in ("", "_low", "_high")]
    values = table[[name for name in shown if name in table]].to_numpy(dtype=np.float64)
    return [min(0.97 * np.nanmin(values), 0.95), max(1.03 * np.nanmax(values), 1.05)]


def _ends(rows: pd.DataFrame, name: str) -> npt.NDArray[np.float64] | None:
    """A full sweep has no intervals of single cells."""
    low, high = f"{name}_low", f"{name}_high"
    return spans(rows, name, low, high) if low in rows else None


def draw_lengths(figure: "Figure", table: pd.DataFrame) -> None:
    """Draw one histogram a bucket, beside what constant acceptance would give."""
    keys = ["task", "context_min", "temperature"]
    groups = [rows for _, rows in table.groupby(keys, sort=False)][:MAX_HISTOGRAMS]
    columns = min(len(groups), 3)
    lines = -(-len(groups) // columns)
    figure.set_size_inches(9.2 if columns > 1 else 4.6, 0.4 + 2.1 * lines)
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
    for axes, rows in zip(grid, groups, strict=False):
        _histogram(axes, rows)
    for axes in grid[len(groups) :]:
        axes.set_axis_off()
    figure.supxlabel("accepted tokens", fontsize=9)
    figure.supylabel("share of rounds", fontsize=9)


def _histogram(axes: "Axes", rows: pd.DataFrame) -> None:
    first = rows.iloc[0]
    warned = bool(first["two_peaks"])
    axes.bar(
        rows["accepted"], rows["share"], width=0.72, color=SERIES[1 if warned else 0],
        yerr=spans(rows, "share", "low", "high"), error_kw={"ecolor": INK, "elinewidth": 0.9},
    )  # fmt: skip
    axes.plot(rows["accepted"], rows["constant"], color=MUTED, dashes=DASHES, linewidth=1.2)
    bucket = f"{shown(first['task'], 18)}, from {first['context_min']}, T={first['temperature']:g}"
    cell = f"L={first['exit_layer']}, k={first['draft_length']}, n={first['num_requests']}"
    warning = ", two peaks" if warned else ""
    axes.set_title(f"{bucket}\n{cell}{warning}", loc="left", fontsize=8)
    axes.set_xticks(rows["accepted"])
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(as_percent)
    quiet_axes(axes)
