"""report.html: one file that needs no network, no script and no other file."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from selfspec_cli.plan.batch_text import other_best
from selfspec_cli.plan.document import GainAt, Interval
from selfspec_cli.quantities import QUANTITIES
from selfspec_cli.report import format as text
from selfspec_cli.report.figure_style import inline_svg
from selfspec_cli.report.figure_view import BATCHES, MAP, FigureView
from selfspec_cli.report.figures import NO_PICTURES
from selfspec_cli.report.view import ReportView

_TEMPLATES = Path(__file__).parent / "templates"
_MAX_ROWS = 240  # of a table inside the page; its CSV has all


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Speedups of one temperature as a table: one row an exit layer, None where not priced."""

    temperature: float
    draft_lengths: tuple[int, ...]
    rows: tuple[tuple[int, tuple[Mapping[Hashable, Any] | None, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTable:
    """A figure's data as text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int
    """Rows beyond the limit of a page."""


def render_page(view: ReportView, pictures: Mapping[str, str | None]) -> str:
    """Return report.html.

    Args:
        view: the view model.
        pictures: SVG text by figure name; None where it could not be drawn.
    """
    drawn = {
        figure.name: inline_picture(figure, pictures.get(figure.name)) for figure in view.figures
    }
    wanted = [figure for figure in view.figures if not figure.absent]
    missing = any(pictures.get(figure.name) is None for figure in wanted)
    return (
        page_environment()
        .get_template("report.html.j2")
        .render(
            view=view,
            style=page_style(),
            pictures=drawn,
            batches=BATCHES,
            other_best=other_best,
            notice=NO_PICTURES if missing else "",
            matrices=_matrices(view.figure(MAP).table),
            tables={figure.name: plain_table(figure.table) for figure in wanted},
            gain_points=(0.6, 0.7, 0.8),
        )
    )


def page_environment(folder: Path = _TEMPLATES) -> Environment:
    """Return what renders a page: everything escaped, nothing undefined, numbers as in all pages.

    Args:
        folder: of the templates.
    """
    environment = Environment(
        loader=FileSystemLoader(folder, encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(_FILTERS)
    return environment


def page_style() -> Markup:
    """Return the style sheet of every page."""
    return Markup((_TEMPLATES / "style.css").read_text(encoding="utf-8"))


def inline_picture(figure: FigureView, svg: str | None) -> Markup:
    """Return a picture as markup of our own; labels inside were escaped when it was drawn.

    Args:
        figure: what it shows.
        svg: as drawn; None gives nothing.
    """
    if svg is None:
        return Markup()
    inline = inline_svg(svg, figure.name, figure.alt).replace("<svg", '<svg class="plot"', 1)
    return Markup(inline)


def _matrices(table: pd.DataFrame) -> tuple[Matrix, ...]:
    if table.empty:
        return ()
    found = []
    for temperature, cells in table.groupby("temperature", sort=True):
        by_cell = {(c["exit_layer"], c["draft_length"]): c for c in cells.to_dict("records")}
        lengths = tuple(int(k) for k in sorted(cells["draft_length"].unique()))
        rows = tuple(
            (int(layer), tuple(by_cell.get((layer, k)) for k in lengths))
            for layer in sorted(cells["exit_layer"].unique(), reverse=True)
        )
        found.append(Matrix(temperature=float(str(temperature)), draft_lengths=lengths, rows=rows))
    return tuple(found)


def plain_table(table: pd.DataFrame) -> PlainTable:
    """Return the head of a figure's data as text."""
    shown = table.head(_MAX_ROWS)
    return PlainTable(
        columns=tuple(str(name) for name in table.columns),
        rows=tuple(tuple(_plain(value) for value in row) for row in shown.itertuples(index=False)),
        left_out=len(table) - len(shown),
    )


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return text.shown(value, 60)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if text.known(value) else text.NOT_KNOWN


def _ends(found: Interval) -> str:
    return text.interval(found.low, found.high)


def _cell_ends(cell: Mapping[Hashable, Any]) -> str:
    return text.ratio_with_interval(
        cell["predicted_speedup"], cell["predicted_speedup_low"], cell["predicted_speedup_high"]
    )


def _gain(gain: GainAt | None) -> Markup:
    if gain is None:
        return Markup(text.NOT_KNOWN)
    cell = f"L={gain.exit_layer}, k={gain.draft_length}"
    return Markup('{}<span class="sub">{}</span>').format(text.ratio(gain.speedup), cell)


def _definition(name: str) -> str:
    return QUANTITIES[name].definition


def _compact(value: float) -> str:
    return f"{value:g}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _integer(value: int | None) -> str:
    return text.NOT_KNOWN if value is None else str(value)


_FILTERS: dict[str, Callable[..., Any]] = {
    "cell_ends": _cell_ends,
    "compact": _compact,
    "count": text.count,
    "definition": _definition,
    "ends": _ends,
    "exact": text.exact,
    "gain": _gain,
    "milliseconds": text.milliseconds,
    "integer": _integer,
    "number": text.number,
    "percent": text.percent,
    "ratio": text.ratio,
    "shown": text.shown,
    "words": _words,
}
