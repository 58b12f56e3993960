"""Marks that several figures share: series, intervals, reference lines, axes of fractions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.report.figure_style import DASHES, MARKERS, MUTED, SERIES, quiet_axes
from selfspec_cli.report.format import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def series(at: int, label: str = "") -> dict[str, Any]:
    """Return colour and marker of the series number `at`, with its name in the legend."""
    return {
        "color": SERIES[at % len(SERIES)],
        "marker": MARKERS[at % len(MARKERS)],
        "markersize": 4.5,
        "linewidth": 1.6,
        "elinewidth": 0.9,
        "label": label or None,
    }


def points(
    axes: "Axes", x: npt.ArrayLike, rows: pd.DataFrame, value: str, style: Mapping[str, Any]
) -> None:
    """Draw a line of `rows[value]` with the intervals `low` and `high` of the same rows."""
    places = np.asarray(x, dtype=np.float64)
    middle = rows[value].to_numpy(dtype=np.float64)
    axes.errorbar(places, middle, yerr=spans(rows, value, "low", "high"), **style)


def spans(rows: pd.DataFrame, value: str, low: str, high: str) -> npt.NDArray[np.float64]:
    """Return lengths of the bars below and above each value, [2, rows]; 0 where one is missing."""
    middle, least, most = (rows[name].to_numpy(dtype=np.float64) for name in (value, low, high))
    return np.nan_to_num(np.stack([middle - least, most - middle])).clip(min=0)


def reference(axes: "Axes", x: pd.Series, y: pd.Series, label: str) -> None:
    """Draw what a value is compared with, as a dashed line without marks."""
    pairs = sorted(set(zip(x.astype(float), y.astype(float), strict=True)))
    axes.plot(*zip(*pairs, strict=True), color=MUTED, dashes=DASHES, linewidth=1.2, label=label)


def fraction_axis(axes: "Axes", label: str) -> None:
    """Show the y axis as percent, from 0 to 100."""
    axes.set_ylim(0, 1)
    axes.set_ylabel(label)
    axes.yaxis.set_major_formatter(as_percent)
    quiet_axes(axes)


def as_percent(value: float, _place: float | None) -> str:
    """Return a tick of a fraction as percent."""
    return percent(value)


def legend(axes: "Axes", *, beside: bool = False) -> None:
    """Name the series, where there is anything to name.

    Args:
        axes: with labelled series.
        beside: right of the axes, where many names would cover the data.
    """
    handles, _ = axes.get_legend_handles_labels()
    if not handles:
        return
    if beside:
        place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    else:
        place = {"loc": "best"}
    axes.legend(**place, fontsize=8, handlelength=1.6)


def whole_numbers(axes: "Axes") -> None:
    """Put ticks of the x axis on whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
