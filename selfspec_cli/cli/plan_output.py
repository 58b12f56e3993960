"""What `selfspec plan` prints: a table of rules, paragraphs on a task, one closing sentence."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from selfspec_cli.cli.visible import visible
from selfspec_cli.plan import text
from selfspec_cli.plan.document import PlanDocument, Rule
from selfspec_cli.plan.rules import cell_of


def print_plan(plan: PlanDocument, paragraphs: Sequence[str], written: str | None) -> None:
    """Print a plan on stdout.

    Args:
        plan: the plan.
        paragraphs: explanations of single rules; may be empty.
        written: file it was written to, if any.
    """
    console = Console(highlight=False)
    console.print(rules_table(plan))
    for paragraph in paragraphs:
        console.print(visible(paragraph) + "\n", markup=False)
    for warning in plan.warnings:
        console.print(visible(f"warning: {warning}"), markup=False)
    console.print(visible(f"verdict: {plan.verdict}; {plan.total.sentence}"), markup=False)
    if written is not None:
        console.print(visible(f"written to {written}"), markup=False)


def rules_table(plan: PlanDocument) -> Table:
    """Return one row a rule, narrow enough for 80 characters."""
    table = Table(title="Rules", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("task", overflow="fold")
    for name in ("context", "T", "on"):
        table.add_column(name, no_wrap=True)
    measured = any(rule.measured_speedup.estimate is not None for rule in plan.rules)
    names = ("L,k", "speedup (95 %)", *(["measured"] if measured else []), "n", "evidence")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for rule in plan.rules:
        table.add_row(*_cells(rule, measured=measured))
    return table


def _cells(rule: Rule, *, measured: bool) -> list[str]:
    cell = cell_of(rule)
    return [
        escape(visible(rule.task)),
        text.band(rule),
        text.temperature(rule),
        "yes" if rule.enabled else "no",
        text.MISSING if cell is None else f"{cell[0]},{cell[1]}",
        text.interval(rule.speedup),
        *([text.number(rule.measured_speedup.estimate)] if measured else []),
        str(rule.num_requests),
        rule.evidence,
    ]
