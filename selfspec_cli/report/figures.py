"""Figures drawn with matplotlib's object interface: no window system, no global state.

matplotlib is imported inside functions: it is slow to load, and without it only pictures are lost.
"""

import io
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import pandas as pd

from selfspec_cli.report import figure_view as views
from selfspec_cli.report.draw_batches import draw_batches
from selfspec_cli.report.draw_lines import draw_costs, draw_layers, draw_positions
from selfspec_cli.report.draw_map import draw_map
from selfspec_cli.report.draw_shapes import draw_lengths, draw_measured
from selfspec_cli.report.figure_style import RC

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_PICTURES = "matplotlib cannot be used here, so the pictures are left out; their tables are not."


def draw(view: views.FigureView) -> str | None:
    """Return a figure as SVG text; None where matplotlib cannot be used.

    Args:
        view: a figure with data (`absent` is empty).
    """
    return draw_with(_DRAWERS[view.name], view)


def draw_with(
    drawer: Callable[["Figure", pd.DataFrame], None], view: views.FigureView
) -> str | None:
    """Return a figure that `drawer` puts on an empty page as SVG text; None without matplotlib.

    Args:
        drawer: draws the figure's table.
        view: a figure with data (`absent` is empty).
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except (ImportError, ValueError):  # ValueError: MPLBACKEND names no backend at all
        return None
    with mpl.rc_context({**RC, "svg.hashsalt": view.name}), warnings.catch_warnings():
        # The reader's own font is used; a glyph that ours lacks only makes a label's width a guess.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(layout="constrained")
        drawer(figure, view.table)
        sink = io.StringIO()
        no_stamp = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(sink, format="svg", metadata=no_stamp)
    return sink.getvalue()


_DRAWERS: Mapping[str, Callable[["Figure", pd.DataFrame], None]] = MappingProxyType(
    {
        views.MAP: draw_map,
        views.LAYERS: draw_layers,
        views.POSITIONS: draw_positions,
        views.COSTS: draw_costs,
        views.MEASURED: draw_measured,
        views.LENGTHS: draw_lengths,
        views.BATCHES: draw_batches,
    }
)
