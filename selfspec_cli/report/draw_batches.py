"""Speedup by batch size: where speculation stops paying."""

from typing import TYPE_CHECKING

import pandas as pd

from selfspec_cli.report.axes import legend, points, series
from selfspec_cli.report.figure_style import DASHES, MUTED, quiet_axes
from selfspec_cli.report.format import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LINES = 6  # buckets drawn, as many as there are colours; the CSV has all


def draw_batches(figure: "Figure", table: pd.DataFrame) -> None:
    """Draw one line a bucket over batch size: refilled solid, static batches dashed."""
    figure.set_size_inches(8.4, 3.5)
    axes = figure.subplots()
    keys = ["task", "context_min", "temperature"]
    groups = [rows for _, rows in table.groupby(keys, sort=False) if rows["speedup"].notna().any()]
    for at, rows in enumerate(groups[:MAX_LINES]):
        first = rows.iloc[0]
        name = (
            f"{shown(first['task'], 18)}, from {first['context_min']}, T={first['temperature']:g}"
        )
        style = series(at, name)
        known = rows.loc[rows["speedup"].notna()]
        points(axes, known["batch_size"], known, "speedup", style)
        static = rows.loc[rows["static_speedup"].notna()]
        axes.plot(
            static["batch_size"], static["static_speedup"], color=style["color"], dashes=DASHES,
            linewidth=1.2,
        )  # fmt: skip
    if table["static_speedup"].notna().any():
        axes.plot([], [], color=MUTED, dashes=DASHES, linewidth=1.2, label="static batches")
    axes.axhline(1.0, color=MUTED, linewidth=0.9)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(table["batch_size"].unique()))
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(lambda value, _place: f"{value:g}")
    axes.set_xlabel("batch size")
    axes.set_ylabel("speedup over plain decoding")
    quiet_axes(axes)
    legend(axes, beside=True)
