"""A gate's report on a terminal and as JSON: what failed first, what passed in one line a check."""

import os
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from selfspec_cli.gate.github import annotations, detected, write_summary
from selfspec_cli.gate.junit import junit_xml
from selfspec_cli.gate.verdict import Check, GateReport
from selfspec_cli.report.format import plural
from selfspec_cli.storage import atomic_write

_MOST = 12  # rows of failures and silence; more do not fit a screen
_MOST_SILENT = 2  # of one check: what lacks evidence in one bucket mostly lacks it in all
_TOLD = ("fail", "warn", "no verdict")
_STYLES = {"fail": "bold red", "warn": "yellow", "no verdict": "yellow", "note": "dim",
           "pass": "green"}  # fmt: skip


def print_gate(report: GateReport, console: Console | None = None) -> None:
    """Print one table that fits a screen, notes, and a last line with the verdict.

    Args:
        report: of a gate.
        console: where to; stdout if left out.
    """
    console = console or Console(highlight=False, soft_wrap=False)
    console.print(_table(report))
    for note in report.notes:
        console.print(Text(f"note: {note}", style="dim"))
    console.print(Text(verdict_line(report), style="bold"))


def verdict_line(report: GateReport) -> str:
    """Return the verdict with counts and the next step of the first check that decides.

    Args:
        report: of a gate.
    """
    failed = [check for check in report.checks if check.fails]
    silent = [check for check in report.checks if check.undecided]
    passed = sum(check.outcome == "pass" for check in report.checks)
    noted = sum(_state(check) == "note" for check in report.checks)
    counts = f"{len(failed)} failed, {len(silent)} without a verdict, {passed} passed"
    counts += f", {plural(noted, 'note')}" if noted else ""
    names = {"pass": "PASS", "fail": "FAILED", "no_verdict": "NO VERDICT"}
    first = next(iter([*failed, *silent]), None)
    step = first.next_step if first is not None else ""
    default = "Look at the first row."
    if report.outcome == "pass":
        default = "Read the notes, then roll out." if noted else "Roll the plan out."
    return f"{names[report.outcome]}: {counts}. Next: {step or default}"


def _table(report: GateReport) -> Table:
    table = Table(box=None, show_edge=False, pad_edge=False)
    for title in ("", "check", "found"):
        table.add_column(title, no_wrap=title != "found", overflow="fold")
    for state in _TOLD:
        _add_told(table, state, [check for check in report.checks if _state(check) == state])
    for state in ("note", "pass"):
        alike = [check for check in report.checks if _state(check) == state]
        for name in dict.fromkeys(check.name for check in alike):
            same = [check for check in alike if check.name == name]
            for text in _in_short(same):
                _add(table, state, name, text)
    return table


def _add_told(table: Table, state: str, told: list[Check]) -> None:
    """Every check that is told has rows, however many buckets another one fails in."""
    names = dict.fromkeys(check.name for check in told)
    most = max(_MOST // max(len(names), 1), 1)
    most = min(most, _MOST_SILENT) if state == "no verdict" else most
    for name in names:
        same = [check for check in told if check.name == name]
        for check in same[:most]:
            _add(table, state, name, f"{_found(check.subject, check.text)}{_next(check)}")
        if len(same) > most:
            _add(table, state, name, f"... and {len(same) - most} more; all of them: --json")


def _add(table: Table, state: str, name: str, found: str) -> None:
    table.add_row(Text(state, style=_STYLES[state]), Text(name), Text(found, overflow="fold"))


def _next(check: Check) -> str:
    return f". Next: {check.next_step}" if check.next_step else ""


def _found(subject: str, text: str) -> str:
    return f"{subject}: {text}" if subject else text


def _state(check: Check) -> str:
    if check.outcome == "pass":
        return "pass"
    if check.outcome == "fail":
        return "warn" if check.warns_only else "fail"
    return "note" if check.optional else "no verdict"


def _in_short(same: list[Check]) -> list[str]:
    """One row for many buckets; what has no limit, such as a fingerprint, in a row each.

    The JSON has whole sentences.
    """
    if all(check.limit is None for check in same):
        return [_row(check) for check in same]
    closest = _closest(same)
    place = "closest" if _room(closest) < float("inf") else "one"
    return [(f"{place} of {len(same)}, " if len(same) > 1 else "") + _row(closest)]


def _row(check: Check) -> str:
    """What passed leaves out how it was tested."""
    told = check.text if check.next_step else check.text.partition("; ")[0]
    return f"{_found(check.subject, told)}{_next(check)}"


def _closest(alike: list[Check]) -> Check:
    """The one with the least room to its limit."""
    return min(alike, key=_room)


def _room(check: Check) -> float:
    number = check.value if check.low is None else check.low
    if number is None or check.limit is None:
        return float("inf")
    return abs(number - check.limit)


def tell_ci(report: GateReport, junit: Path | None) -> None:
    """Write the JUnit file if asked for; annotations and step summary in a GitHub workflow.

    Annotations go to stderr, which the runner reads too: stdout stays one document.

    Args:
        report: of a gate.
        junit: file to write; None for none.

    Raises:
        StorageError: a file cannot be written.
    """
    if junit is not None:
        data = junit_xml(report)
        atomic_write(junit, lambda sink: sink.write(data))
    if detected(os.environ):
        for line in annotations(report):
            typer.echo(line, err=True)
        write_summary(report, os.environ)
