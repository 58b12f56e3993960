"""The heat map of speedups: one panel a temperature."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.report.figure_style import CELL_DARK, CELL_LIGHT, diverging, quiet_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PANELS = 4  # temperatures drawn side by side; the CSV has all
_MAX_LABELLED = 26  # rows of a map whose cells still have room for a number


def draw_map(figure: "Figure", table: pd.DataFrame) -> None:
    """Draw predicted speedup over (L, k), a ring around the chosen cell of each temperature."""
    degrees = sorted(table["temperature"].unique())[:MAX_PANELS]
    layers, lengths = (sorted(table[name].unique()) for name in ("exit_layer", "draft_length"))
    columns = min(len(degrees), 2)
    lines = -(-len(degrees) // columns)
    figure.set_size_inches(9.2, min(0.6 + lines * (0.75 + max(1.6, 0.24 * len(layers))), 12.0))
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
    widest = float(np.abs(np.log(table["predicted_speedup"])).max())
    limit = min(max(widest, 0.1), np.log(2.0))
    for axes, temperature in zip(grid, degrees, strict=False):
        cells = table.loc[table["temperature"] == temperature]
        values = cells.set_index(["exit_layer", "draft_length"])["predicted_speedup"]
        _draw_cells(axes, values.unstack().reindex(index=layers, columns=lengths), limit)  # noqa: PD010
        for cell in cells.loc[cells["chosen"]].to_dict("records"):
            _ring(axes, lengths.index(cell["draft_length"]), layers.index(cell["exit_layer"]))
        axes.set_title(f"T = {temperature:g}", loc="left")
        axes.set_xlabel("draft length k")
    for axes in grid[len(degrees) :]:
        axes.set_axis_off()
    grid[0].set_ylabel("exit layer L")


def _draw_cells(axes: "Axes", values: pd.DataFrame, limit: float) -> None:
    speedups = values.to_numpy(dtype=np.float64)
    logs = np.ma.masked_invalid(np.log(speedups))
    axes.pcolormesh(logs, cmap=diverging(), vmin=-limit, vmax=limit, edgecolors="none")
    axes.set_xticks(np.arange(len(values.columns)) + 0.5, [f"{k:g}" for k in values.columns])
    ticks = range(0, len(values.index), -(-len(values.index) // _MAX_LABELLED))
    axes.set_yticks([at + 0.5 for at in ticks], [f"{values.index[at]:g}" for at in ticks])
    for side in axes.spines.values():
        side.set_visible(False)
    quiet_axes(axes, grid=False)
    if len(values.index) <= _MAX_LABELLED:
        _label_cells(axes, speedups, limit)


def _label_cells(axes: "Axes", speedups: npt.NDArray[np.float64], limit: float) -> None:
    for (row, column), value in np.ndenumerate(speedups):
        if not np.isfinite(value):
            continue
        strong = abs(np.log(value)) > 0.62 * limit
        colour = CELL_LIGHT if strong else CELL_DARK
        place = (column + 0.5, row + 0.48)
        axes.text(*place, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)


def _ring(axes: "Axes", column: int, row: int) -> None:
    from matplotlib.patches import Rectangle

    for colour, width in ((CELL_LIGHT, 4.0), (CELL_DARK, 1.8)):
        corner = (column + 0.03, row + 0.03)
        ring = Rectangle(corner, 0.94, 0.94, fill=False, edgecolor=colour, linewidth=width)
        ring.set(clip_on=False, zorder=4)
        axes.add_patch(ring)
