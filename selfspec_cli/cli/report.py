"""`selfspec report`: rebuild the report of a run from its files."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfspec_cli.errors import ConfigError

if TYPE_CHECKING:
    from selfspec_cli.report.view import ReportView
    from selfspec_cli.report.write import Format, Written


def report(
    run: Annotated[Path, typer.Argument(help="Run directory that calibrate wrote.")],
    formats: Annotated[
        str, typer.Option("--format", help="html, csv and md, separated by commas.")
    ] = "html,csv",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder to write; the run's own if left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No summary.")] = False,
) -> None:
    """Write the report of a run again, from its files alone: no model, no torch.

    Example: selfspec report reports/quickstart --format html,csv,md

    Reads manifest.json, plan.yaml and the tables of RUN; writes report.html and figures/ (html),
    rules.csv, findings.csv and figures/*.csv (csv), report.md (md). The page is one file that
    needs no network. Exit codes: 0 done, 2 usage or input error.
    """
    wanted = _parse_formats(formats)
    from selfspec_cli.report.view import build_view
    from selfspec_cli.report.write import write_files

    view = build_view(run)
    written = write_files(view, run if out is None else out, wanted)
    if written.notice:
        typer.echo(f"note: {written.notice}", err=True)
    if as_json:
        typer.echo(json.dumps(_document(view, written), allow_nan=False))
    elif not quiet:
        from rich.console import Console

        from selfspec_cli.report.terminal import print_summary

        print_summary(view, Console(highlight=False), written.files[0])


def _parse_formats(text: str) -> "list[Format]":
    known: tuple[Format, ...] = ("html", "csv", "md")
    given = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [part for part in given if part not in known]
    if unknown or not given:
        raise ConfigError(
            f"unknown format {unknown[0]!r}" if unknown else "no format given",
            where="--format",
            hint=f"Known: {', '.join(known)}.",
        )
    return [name for name in known if name in given]


def _document(view: "ReportView", written: "Written") -> dict[str, object]:
    return {
        "run": view.name,
        "verdict": view.plan.verdict,
        "decode_time_saved": view.verdict.saved_estimate,
        "num_buckets": view.plan.total.num_buckets,
        "num_enabled": view.plan.total.num_enabled,
        "findings": [finding.code for finding in view.findings],
        "files": [str(file) for file in written.files],
        "notice": written.notice or None,
        "next": view.next_command,
    }
