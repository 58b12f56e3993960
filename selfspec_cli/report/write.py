"""Write a report's files into a folder: report.html, figures, CSV and Markdown."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from selfspec_cli.errors import StorageError
from selfspec_cli.plan.files import PLAN_FILE
from selfspec_cli.report.figure_style import standalone_svg
from selfspec_cli.report.figure_view import FigureView
from selfspec_cli.report.figures import NO_PICTURES, draw
from selfspec_cli.report.markdown import render_markdown
from selfspec_cli.report.page import render_page
from selfspec_cli.report.sheets import disarmed, findings_sheet, rules_sheet
from selfspec_cli.report.view import ReportView
from selfspec_cli.storage import RunDir, atomic_write, write_table
from selfspec_cli.storage.files import file_sha256

Format = Literal["html", "csv", "md"]
FORMATS: tuple[Format, ...] = ("html", "csv", "md")
FIGURES = "figures"
REPORT = "report.html"
_SHOWN = "report_of"  # manifest key: hash of the plan that the run's report shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What was written."""

    files: tuple[Path, ...]
    """The first is the one to open."""
    notice: str
    """What a user should know, for example that pictures are missing; empty if nothing."""


def write_files(view: ReportView, folder: Path, formats: Iterable[Format]) -> Written:
    """Write a report in the given formats.

    Args:
        view: the view model.
        folder: where to; made if its parent exists.
        formats: html (with figures), csv (rules, findings and the data of figures), md.

    Raises:
        StorageError: the folder cannot be made, or the disk refuses.
    """
    wanted = [name for name in FORMATS if name in set(formats)]
    make_folder(folder)
    files: list[Path] = []
    notice = ""
    if "html" in wanted:
        pictures = {figure.name: draw(figure) for figure in view.figures if not figure.absent}
        notice = NO_PICTURES if None in pictures.values() else ""
        files.append(write_text(folder / REPORT, render_page(view, pictures)))
        files += _write_pictures(folder, view.figures, pictures)
        if folder.resolve() == view.path.resolve():
            run = RunDir.load(view.path)
            run.update(**{_SHOWN: file_sha256(run.artefact(PLAN_FILE))})
    if "md" in wanted:
        files.append(write_text(folder / "report.md", render_markdown(view)))
    if "csv" in wanted:
        write_table(rules_sheet(view.rules), folder / "rules.csv")
        write_table(findings_sheet(view.findings), folder / "findings.csv")
        files += [folder / "rules.csv", folder / "findings.csv"]
    if {"html", "csv"} & set(wanted):
        files += _write_figure_data(folder, view.figures)
    return Written(files=tuple(files), notice=notice)


def is_current(path: Path) -> bool:
    """Whether a run's folder holds a report of the plan that lies there now.

    Raises:
        RunDirError: `path` holds no run.
    """
    run = RunDir.load(path)
    shown, plan = run.manifest.get(_SHOWN), run.artefact(PLAN_FILE)
    return (path / REPORT).exists() and shown == file_sha256(plan)


def _write_pictures(
    folder: Path, figures: Iterable[FigureView], pictures: Mapping[str, str | None]
) -> list[Path]:
    """One SVG a figure; what an earlier report left and this one lacks is removed."""
    make_folder(folder / FIGURES)
    written = []
    for figure in figures:
        file, svg = folder / FIGURES / f"{figure.name}.svg", pictures.get(figure.name)
        if svg is None:
            file.unlink(missing_ok=True)
        else:
            written.append(write_text(file, standalone_svg(svg)))
    return written


def _write_figure_data(folder: Path, figures: Iterable[FigureView]) -> list[Path]:
    make_folder(folder / FIGURES)
    written = []
    for figure in figures:
        file = folder / FIGURES / f"{figure.name}.csv"
        if figure.absent:
            file.unlink(missing_ok=True)
        else:
            write_table(disarmed(figure.table), file)
            written.append(file)
    return written


def write_text(file: Path, text: str) -> Path:
    """Write text for people as UTF-8 and return the file."""
    # A lone surrogate of a label has no UTF-8 form: it is shown as an escape.
    data = text.encode("utf-8", errors="backslashreplace")
    atomic_write(file, lambda sink: sink.write(data))
    return file


def make_folder(folder: Path) -> None:
    """Make a folder whose parent exists; one that is there stays.

    Raises:
        StorageError: the disk refuses.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"the folder cannot be made: {error.strerror or error}",
            where=str(folder),
            hint="Create its parent first, or give another -o.",
        ) from error
