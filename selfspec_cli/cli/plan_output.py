"""What `selfspec plan` prints: a table of rules, paragraphs on a task, one closing sentence."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from selfspec_cli.cli.visible import visible
from selfspec_cli.plan import text
from selfspec_cli.plan.batch_text import batches_sentence
from selfspec_cli.plan.document import PlanDocument, Rule
from selfspec_cli.plan.rules import cell_of
from selfspec_cli.report.format import shown

_MAX_LABEL = 28  # characters of a task's name; longer ones end in dots


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
    if len(plan.batch_sizes) > 1:  # of one size a warning tells
        told = batches_sentence(plan)
        console.print(f"{told[0].upper()}{told[1:]}.", markup=False)
    console.print(visible(f"verdict: {plan.verdict}; {plan.total.sentence}"), markup=False)
    if written is not None:
        console.print(visible(f"written to {written}"), markup=False)


def rules_table(plan: PlanDocument) -> Table:
    """Return one row a rule, narrow enough for 80 characters; only a task's name is cut."""
    table = Table(
        title="Rules", title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    measured = any(rule.measured_speedup.estimate is not None for rule in plan.rules)
    rows = [_cells(rule, measured=measured) for rule in plan.rules]
    left = ("context", "T", "on")
    right = ("L,k", "speedup (95 %)", *(["measured"] if measured else []), "n", "evidence")
    table.add_column("task")
    for at, name in enumerate((*left, *right), start=1):
        width = max(len(name), *(len(row[at]) for row in rows)) if rows else len(name)
        side: JustifyMethod = "left" if name in left else "right"
        table.add_column(name, justify=side, no_wrap=True, min_width=width)
    for row in rows:
        table.add_row(*row)
    return table


def _cells(rule: Rule, *, measured: bool) -> list[Text]:
    cell = cell_of(rule)
    cells = [
        shown(rule.task, _MAX_LABEL),
        text.band(rule),
        text.temperature(rule),
        "yes" if rule.enabled else "no",
        text.MISSING if cell is None else f"{cell[0]},{cell[1]}",
        text.interval(rule.speedup),
        *([text.number(rule.measured_speedup.estimate)] if measured else []),
        str(rule.num_requests),
        rule.evidence,
    ]
    return [Text(value, no_wrap=True, overflow="ellipsis") for value in cells]
