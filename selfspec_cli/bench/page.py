"""bench.html, bench.md, bench_summary.csv and figures: all that is written of a summary."""

from collections.abc import Mapping
from pathlib import Path

from selfspec_cli.analysis.intervals import MIN_EFFECTIVE_GROUPS
from selfspec_cli.bench import words
from selfspec_cli.bench.figures import bench_figures, draw_bench
from selfspec_cli.bench.markdown import render_markdown
from selfspec_cli.bench.sheet import slow_sheet, summary_sheet
from selfspec_cli.bench.speed import MIN_REPEATS
from selfspec_cli.bench.summary import PLAN, BenchSummary, Line
from selfspec_cli.buckets import BucketKey
from selfspec_cli.report.figure_style import standalone_svg
from selfspec_cli.report.figure_view import FigureView
from selfspec_cli.report.figures import NO_PICTURES
from selfspec_cli.report.format import NOT_KNOWN, shown
from selfspec_cli.report.page import inline_picture, page_environment, page_style, plain_table
from selfspec_cli.report.sheets import disarmed
from selfspec_cli.report.write import make_folder, write_text
from selfspec_cli.storage import write_table

PAGE, TEXT, SHEET, FIGURES = "bench.html", "bench.md", "bench_summary.csv", "figures_bench"
_TEMPLATES = Path(__file__).parent / "templates"
_MAX_BUCKETS = 60  # with tables of their own in the page
_TONES = {words.FASTER: "on", words.SLOWER: "off"}
_OFF = "Speculation off"

Pictures = Mapping[str, str | None]


def write_bench(summary: BenchSummary, folder: Path) -> tuple[Path, ...]:
    """Write bench.html, bench.md, bench_summary.csv and figures_bench/ into a folder.

    Args:
        summary: of `summary.summarise`.
        folder: where to; made if its parent exists.

    Returns:
        The files, the page first.

    Raises:
        StorageError: a folder cannot be made, or the disk refuses.
    """
    make_folder(folder)
    make_folder(folder / FIGURES)
    figures = bench_figures(summary)
    pictures = _draw(figures)
    files = [
        write_text(folder / PAGE, _render(summary, figures, pictures)),
        write_text(folder / TEXT, render_markdown(summary)),
        folder / SHEET,
    ]
    write_table(summary_sheet(summary), folder / SHEET)
    for figure in figures:
        files += _write_figure(folder / FIGURES, figure, pictures.get(figure.name))
    slower = folder / FIGURES / "slower_requests.csv"
    write_table(slow_sheet(summary), slower)
    return (*files, slower)


def render(summary: BenchSummary) -> str:
    """Return bench.html: one file that needs no network, no script and no other file.

    Args:
        summary: of `summary.summarise`.
    """
    figures = bench_figures(summary)
    return _render(summary, figures, _draw(figures))


def _draw(figures: tuple[FigureView, ...]) -> Pictures:
    return {figure.name: draw_bench(figure) for figure in figures if not figure.absent}


def _render(summary: BenchSummary, figures: tuple[FigureView, ...], pictures: Pictures) -> str:
    environment = page_environment(_TEMPLATES)
    environment.filters.update(
        arm=words.long_name,
        cost=_cost,
        megabytes=words.megabytes,
        says=words.says,
        speed=words.speed,
        time=words.seconds,
    )
    word, tone = _verdict(summary)
    return environment.get_template("bench.html.j2").render(
        summary=summary,
        style=page_style(),
        word=word,
        tone=tone,
        answer=shown(words.answer(summary)),
        facts=[shown(fact) for fact in words.facts(summary)],
        figures=figures,
        pictures={f.name: inline_picture(f, pictures.get(f.name)) for f in figures},
        tables={f.name: plain_table(f.table) for f in figures if not f.absent},
        notice=NO_PICTURES if None in pictures.values() else "",
        shown_buckets=summary.buckets[:_MAX_BUCKETS],
        by_bucket=_by_bucket(summary),
        slow=plain_table(slow_sheet(summary)),
        min_groups=int(MIN_EFFECTIVE_GROUPS),
        min_repeats=MIN_REPEATS,
    )


def _verdict(summary: BenchSummary) -> tuple[str, str]:
    """The word on top and its colour: what the plan does here."""
    plan = summary.total(PLAN)
    if plan is not None and plan.num_requests and not plan.num_speculating:
        return _OFF, "off"
    word = words.NO_VERDICT if plan is None else words.says(plan)
    return word[0].upper() + word[1:], _TONES.get(word, "unknown")


def _by_bucket(summary: BenchSummary) -> dict[BucketKey, list[Line]]:
    found: dict[BucketKey, list[Line]] = {bucket: [] for bucket in summary.buckets}
    for line in summary.lines:
        if line.bucket is not None:
            found[line.bucket].append(line)
    return found


def _cost(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{value:.3g}"


def _write_figure(folder: Path, figure: FigureView, svg: str | None) -> list[Path]:
    """The picture and its data; what an earlier bench left and this one lacks is removed."""
    picture, data = (folder / f"{figure.name}.{kind}" for kind in ("svg", "csv"))
    written = []
    if svg is None:
        picture.unlink(missing_ok=True)
    else:
        written.append(write_text(picture, standalone_svg(svg)))
    if figure.absent:
        data.unlink(missing_ok=True)
    else:
        write_table(disarmed(figure.table), data)
        written.append(data)
    return written
