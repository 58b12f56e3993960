"""Figures over exit layers, output positions and contexts: acceptance and costs."""

from typing import TYPE_CHECKING

import pandas as pd

from selfspec_cli.report.axes import (
    fraction_axis,
    legend,
    points,
    reference,
    series,
    whole_numbers,
)
from selfspec_cli.report.figure_style import DASHES, MUTED, quiet_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_layers(figure: "Figure", table: pd.DataFrame) -> None:
    """Draw acceptance by exit layer, one line a temperature, beside what is needed."""
    figure.set_size_inches(5.0, 3.3)
    axes = figure.subplots()
    for at, (temperature, rows) in enumerate(table.groupby("temperature", sort=True)):
        style = series(at, f"T = {temperature:g}")
        points(axes, rows["exit_layer"], rows, "accept_prob_mean", style)
        needed = rows.loc[rows["needed"].notna()]
        height = needed["needed"].to_numpy(dtype=float)
        axes.plot(needed["exit_layer"], height, color=style["color"], dashes=DASHES, linewidth=1.2)
    if table["needed"].notna().any():
        axes.plot([], [], color=MUTED, dashes=DASHES, linewidth=1.2, label="needed")
    fraction_axis(axes, "mean acceptance")
    axes.set_xlabel("exit layer L")
    whole_numbers(axes)
    legend(axes)


def draw_positions(figure: "Figure", table: pd.DataFrame) -> None:
    """Draw acceptance by stretch of the output, temperatures side by side."""
    figure.set_size_inches(4.2, 3.3)
    axes = figure.subplots()
    bands = table[["output_from", "output_to"]].drop_duplicates().sort_values("output_from")
    firsts = list(bands["output_from"])
    groups = list(table.groupby("temperature", sort=True))
    for at, (temperature, rows) in enumerate(groups):
        shift = 0.12 * (at - (len(groups) - 1) / 2)
        places = [firsts.index(first) + shift for first in rows["output_from"]]
        style = series(at, f"T = {temperature:g}, L = {rows['exit_layer'].iloc[0]}")
        points(axes, places, rows, "accept_prob_mean", style)
    names = [
        f"{first} and on" if pd.isna(last) else f"{first}-{last}"
        for first, last in bands.itertuples(index=False)
    ]
    axes.set_xticks(range(len(firsts)), names)
    axes.set_xlim(-0.5, len(firsts) - 0.5)
    axes.set_xlabel("output tokens")
    fraction_axis(axes, "mean acceptance")
    legend(axes)


def draw_costs(figure: "Figure", table: pd.DataFrame) -> None:
    """Draw c(L), v(L, k) and the plain step, each beside what it is usually assumed to be."""
    figure.set_size_inches(9.6, 3.2)
    left, middle, right = figure.subplots(1, 3)
    parts = {str(name): rows for name, rows in table.groupby("quantity")}
    draft, verify = parts["draft_cost_ratio"], parts["verify_cost_ratio"]
    points(left, draft["exit_layer"], draft, "value", series(0, "c"))
    reference(left, draft["exit_layer"], draft["reference"], "L/N")
    for at, (k, rows) in enumerate(verify.groupby("draft_length", sort=True)):
        points(middle, rows["exit_layer"], rows, "value", series(at, f"k = {k}"))
    reference(middle, verify["exit_layer"], verify["reference"], "textbook")
    for axes, title in ((left, "c(L): one drafted token"), (middle, "v(L, k): one verification")):
        axes.set_title(title, loc="left")
        axes.set_xlabel("exit layer L")
        axes.set_ylabel("plain steps")
        whole_numbers(axes)
    _draw_steps(right, parts["ar_step_s"])
    for axes in (left, middle, right):
        axes.set_ylim(bottom=0)
        quiet_axes(axes)
        legend(axes)


def _draw_steps(axes: "Axes", steps: pd.DataFrame) -> None:
    scaled = steps.assign(**{name: 1000 * steps[name] for name in ("value", "low", "high")})
    points(axes, scaled["context"], scaled, "value", series(0, "measured"))
    floor = steps.loc[steps["reference"].notna()]
    if len(floor):
        reference(axes, floor["context"], 1000 * floor["reference"].astype(float), "floor")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _place: f"{value:g}")
    axes.xaxis.minorticks_off()
    axes.set_title("One plain step", loc="left")
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("ms")
