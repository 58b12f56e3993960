"""Colours and axes of every figure: safe for colour-blind readers, readable on light and dark."""

import re
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap

INK, MUTED, LINE = "#24292f", "#6a737d", "#d5dae0"
"""Text and axes; in the page they become variables that follow the reader's theme."""
SERIES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Okabe and Ito (2008): told apart with any colour vision; markers repeat the message."""
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = (4, 3)  # of every line that is a reference, not a measurement
FASTER, EVEN, SLOWER = "#0073b3", "#f4f4f2", "#d55e00"  # of cells, the same in any theme
CELL_DARK, CELL_LIGHT = "#111418", "#fdfdfd"  # on coloured cells, whatever the theme
PX_PER_PT = 1.62  # on the page: nine points of text are then as large as the captions
_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    SERIES[0]: "var(--first)",
}

RC: "dict[Any, Any]" = {
    "text.parse_math": False,  # a label with dollar signs is no formula
    "svg.fonttype": "none",  # text stays text: small, searchable, in the reader's own font
    "font.family": "DejaVu Sans",  # ships with matplotlib; the page replaces it
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.0,
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": False,
}


def diverging() -> "LinearSegmentedColormap":
    """Return the colour map of speedups: orange below 1, pale at 1, blue above."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("speedup", [SLOWER, EVEN, FASTER])


def quiet_axes(axes: "Axes", *, grid: bool = True) -> None:
    """Draw only what helps reading: no ticks, pale horizontal lines behind the data."""
    axes.tick_params(length=0)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis="y", color=LINE, linewidth=0.6)


def inline_svg(svg: str, name: str, alt: str) -> str:
    """Return a picture for the page: fluid, themed, with ids of its own and a text alternative.

    Args:
        svg: what matplotlib wrote.
        name: of the figure; plain letters, it prefixes every id.
        alt: read out instead of the picture.
    """
    body = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # Only inside tags: a label that looks like an id stays as it is.
    body = re.sub(r"<[^>]+>", lambda tag: _themed(tag.group(), name), body)
    end = body.index(">")
    width = re.search(r'width="([\d.]+)pt"', body[:end])
    style = f' style="max-width:{PX_PER_PT * float(width[1]):.0f}px"' if width else ""
    head = re.sub(r'\s(width|height)="[^"]*"', "", body[:end])
    return f'{head} role="img" aria-label="{escape(alt, quote=True)}"{style}{body[end:]}'


def _themed(tag: str, name: str) -> str:
    for before in (' id="', "url(#", 'xlink:href="#'):
        tag = tag.replace(before, f"{before}{name}-")
    for colour, variable in _VARIABLES.items():
        tag = tag.replace(colour, variable)
    return tag


def standalone_svg(svg: str) -> str:
    """Return a picture for a file of its own: on white paper, whatever shows it."""
    end = svg.index(">", svg.index("<svg")) + 1
    return f'{svg[:end]}<rect width="100%" height="100%" fill="#ffffff"/>{svg[end:]}'
