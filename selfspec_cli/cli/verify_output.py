"""What `selfspec verify` prints: a row a part, what differs, and for which device it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from selfspec_cli.cli.visible import visible

if TYPE_CHECKING:
    from rich.console import Console

    from selfspec_cli.checkup.records import CheckupReport, Part

SHOWN = 5  # faults and near-ties a part; --json has all


def print_report(report: CheckupReport, console: Console) -> None:
    """Print the table, every part's faults and near-ties, the verdict and the GPU line.

    Args:
        report: of `checkup.run`.
        console: where to.
    """

    def say(text: str) -> None:
        console.print(escape(visible(text)))

    console.print(_table(report))
    for part in report.parts:
        if part.text:
            say(f"- {part.title}: {part.text}{_unit(part)}")
    for part in report.parts:
        for line in _lines(part):
            say(line)
    say(f"{report.outcome}: {_verdict(report)}")
    engine = f", {report.engine} engine" if report.engine else ""
    say(
        f"{report.family}, {report.num_layers} layers, {report.dtype} on {report.device}{engine}, "
        f"seed {report.seed}"
    )
    say(report.gpu_line)


def _table(report: CheckupReport) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("part", "verdict", "cases", "number", "tolerance", "seconds"):
        right = name in ("cases", "number", "tolerance", "seconds")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for part in report.parts:
        table.add_row(
            part.title,
            part.outcome,
            str(part.cases) if part.cases else "",
            "" if part.value is None else f"{part.value:.3g}",
            "" if part.tolerance is None else f"{part.tolerance:.3g}",
            "" if part.seconds is None else f"{part.seconds:.1f}",
        )
    return table


def _unit(part: Part) -> str:
    return f" (number: {part.unit})" if part.value is not None else ""


def _lines(part: Part) -> list[str]:
    lines = [f"{part.title}: {part.refusal}"] if part.refusal else []
    faults = [f"differs, {part.title}: {fault}" for fault in part.faults]
    ties = [f"near-tie, {part.title}: {tie}" for tie in part.ties]
    for found in (faults, ties):
        more = len(found) - SHOWN
        lines += found[:SHOWN] + ([f"... and {more} more (--json lists all)"] if more > 0 else [])
    return lines


def _verdict(report: CheckupReport) -> str:
    cases = sum(part.cases for part in report.parts)
    if report.outcome == "differs":
        wrong = [part for part in report.parts if part.faults]
        faults = sum(len(part.faults) for part in wrong)
        return f"{faults} faults in {', '.join(part.name for part in wrong)}; not exact here"
    if report.outcome == "refused":
        refused = [part.name for part in report.parts if part.outcome == "refused"]
        return f"nothing differs, but not everything was tried: {', '.join(refused)}"
    if report.num_ties:
        return (
            f"{report.num_ties} outputs part from plain decoding at a numeric near-tie within the "
            f"tolerance (listed above), no other difference in {cases} cases"
        )
    return f"no difference in {cases} cases"
