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
from selfspec_cli.storage import atomic_write

_MOST = 12  # rows of failures and silence; more do not fit a screen
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
    counts = f"{len(failed)} failed, {len(silent)} without a verdict, {passed} passed"
    names = {"pass": "PASS", "fail": "FAILED", "no_verdict": "NO VERDICT"}
    first = next(iter([*failed, *silent]), None)
    step = first.next_step if first is not None else ""
    default = "Roll the plan out." if report.outcome == "pass" else "Look at the first row."
    return f"{names[report.outcome]}: {counts}. Next: {step or default}"


def _table(report: GateReport) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    for title in ("", "check", "found"):
        table.add_column(title, no_wrap=title != "found", overflow="fold")
    told = [check for check in report.checks if _state(check) in ("fail", "warn", "no verdict")]
    for check in told[:_MOST]:
        _add(table, _state(check), check.name, _found(check.subject, check.text))
    if len(told) > _MOST:
        _add(table, "note", "...", f"{len(told) - _MOST} more; all of them: --json")
    for state in ("note", "pass"):
        alike = [check for check in report.checks if _state(check) == state]
        for name in dict.fromkeys(check.name for check in alike):
            same = [check for check in alike if check.name == name]
            _add(table, state, name, _alike(same))
    return table


def _add(table: Table, state: str, name: str, found: str) -> None:
    """What passed takes one line, cut where the screen ends: the JSON has all of it."""
    whole = state in ("fail", "warn", "no verdict")
    text = Text(found, no_wrap=not whole, overflow="fold" if whole else "ellipsis")
    table.add_row(Text(state, style=_STYLES[state]), Text(name), text)


def _found(subject: str, text: str) -> str:
    return f"{subject}: {text}" if subject else text


def _state(check: Check) -> str:
    if check.outcome == "pass":
        return "pass"
    if check.outcome == "fail":
        return "warn" if check.warns_only else "fail"
    return "note" if check.optional else "no verdict"


def _alike(alike: list[Check]) -> str:
    """The number closest to its limit, and of how many buckets it is the one."""
    closest = _closest(alike)
    count = f"closest of {len(alike)}: " if len(alike) > 1 else ""
    return f"{count}{closest.text}" + (f"; {closest.subject}" if closest.subject else "")


def _closest(alike: list[Check]) -> Check:
    """The one with the least room to its limit."""

    def room(check: Check) -> float:
        number = check.value if check.low is None else check.low
        if number is None or check.limit is None:
            return float("inf")
        return abs(number - check.limit)

    return min(alike, key=room)


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
