"""`selfspec doctor`: what a run shows, why it probably is so, and what to do about it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from selfspec_cli.report.diagnose import Diagnosis
    from selfspec_cli.report.finding_types import Finding
    from selfspec_cli.report.second_trace import TrafficComparison


def doctor(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory of calibrate.")],
    metrics: Annotated[
        Path | None,
        typer.Option(
            "--metrics",
            help="What a server counted: its Prometheus text, or JSON with accepted, drafted and "
            "rounds. The run's acceptance is held against it.",
        ),
    ] = None,
    traffic: Annotated[
        Path | None,
        typer.Option(
            "--traffic",
            metavar="RUN",
            help="Run of the same model on a second trace. Tested acceptance of the plan's cells "
            "is held against it, bucket by bucket.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Symptoms only.")] = False,
) -> None:
    """Explain what a run shows: symptom, evidence, likely cause, remedy.

    Example: selfspec doctor reports/quickstart

    Reads the run's files, the most serious finding comes first; writes nothing. A run that ended
    early is read as far as it came. With --traffic each task and temperature is above the second
    trace, not above it, or without a verdict. Exit codes: 0 read, whatever was found; 2 usage or
    input error, or runs of two models.
    """
    from selfspec_cli.report.diagnose import diagnose
    from selfspec_cli.report.production import read_production

    found = diagnose(run, None if metrics is None else read_production(metrics), traffic)
    if as_json:
        typer.echo(json.dumps(_document(found), allow_nan=False))
        return
    if not found.complete:
        typer.echo(f"note: this run is {found.status}; it may have more to show", err=True)
    from rich.console import Console

    _print(found, Console(highlight=False), quiet=quiet)


def _document(found: "Diagnosis") -> dict[str, object]:
    return {
        "run": found.name,
        "status": found.status,
        "findings": [asdict(finding) for finding in found.findings],
        "traffic": None if found.traffic is None else asdict(found.traffic),
    }


def _print(found: "Diagnosis", console: "Console", *, quiet: bool) -> None:
    from rich.text import Text

    if not found.findings:
        console.print(Text("No findings: the files of this run show no known problem."))
    for number, finding in enumerate(found.findings, start=1):
        console.print(Text(f"{number}. {finding.symptom} [{finding.code}]", style="bold"))
        if not quiet:
            _print_rest(finding, console)
    if found.traffic is not None and not quiet:
        _print_traffic(found.traffic, console)


def _print_rest(finding: "Finding", console: "Console") -> None:
    from rich.padding import Padding
    from rich.text import Text

    parts = {"evidence": finding.evidence, "cause": finding.cause, "remedy": finding.remedy}
    for name, text in parts.items():
        line = Text(f"{name}: ", style="dim").append(text, style="not dim")
        console.print(Padding(line, (0, 0, 0, 3), expand=False))


def _print_traffic(found: "TrafficComparison", console: "Console") -> None:
    from rich.padding import Padding
    from rich.text import Text

    from selfspec_cli.report.finding_traffic import row_text
    from selfspec_cli.report.format import shown

    source = shown(found.source, 60)
    console.print(Text(f"Tested acceptance at the plan's cells, here and in {source}:"))
    for row in found.rows:
        console.print(Padding(Text(row_text(row)), (0, 0, 0, 3), expand=False))
    if not found.rows:
        console.print(Text("   no verdict (the plan names no cell)"))
