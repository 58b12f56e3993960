"""What `calibrate` and `report` print: one screen, the answer in its last sentence."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from selfspec_cli.plan import text
from selfspec_cli.report.format import (
    count,
    milliseconds,
    number,
    percent,
    plural,
    ratio,
    ratio_with_interval,
    shown,
)
from selfspec_cli.report.rule_rows import RuleRow
from selfspec_cli.report.view import ReportView

MAX_ROWS = 10  # rules shown, the largest by decode time
_MAX_LABEL = 28  # characters of a task's name; longer ones end in dots
_MAX_REASONS = 3


def print_summary(view: ReportView, console: Console, report: Path | None = None) -> None:
    """Print the summary.

    Args:
        view: the view model.
        console: where to; its width breaks the lines.
        report: path of the report to name; None names the one in the run's folder.
    """
    console.print(summary_lines(view, report))


def summary_lines(view: ReportView, report: Path | None = None) -> Group:
    """Return at most 24 lines of 100 columns: rules, facts, and the answer."""
    where = view.path / "report.html" if report is None else report
    lines = [*_more(view), *_facts(view), _answer(view, where)]
    return Group(_table(view), *(Text(shown(line)) for line in lines))


def _table(view: ReportView) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    cells = [_cells(row) for row in _rows(view)]
    names = ("context", "T", "rule", "L", "k", "speedup (95 %)", "measured", "acc.", "needed", "n")
    table.add_column("task")
    for at, name in enumerate(names, start=1):
        # A narrow terminal cuts the task's name, never a number.
        width = max(len(name), *(len(row[at]) for row in cells)) if cells else len(name)
        table.add_column(name, justify="right", no_wrap=True, min_width=width)
    for row in cells:
        table.add_row(*row)
    return table


def _rows(view: ReportView) -> Sequence[RuleRow]:
    return view.rules if len(view.rules) <= MAX_ROWS else view.rules[: MAX_ROWS - 1]


def _more(view: ReportView) -> Iterator[str]:
    if hidden := len(view.rules) - len(_rows(view)):
        yield f"... and {hidden} more in report.html"


def _cells(row: RuleRow) -> list[Text]:
    rule = row.rule
    cells = [
        shown(row.task, _MAX_LABEL),
        text.band(rule),
        text.temperature(rule),
        "on" if rule.enabled else "off",
        _whole(rule.drafter.exit_layer),
        _whole(rule.draft.length),
        ratio_with_interval(rule.speedup.estimate, rule.speedup.low, rule.speedup.high),
        ratio(rule.measured_speedup.estimate) if rule.measured_speedup.estimate else "-",
        percent(rule.acceptance_rate_tested),
        percent(rule.break_even_acceptance),
        str(rule.num_requests),
    ]
    return [Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells]


def _whole(value: int | None) -> str:
    return "-" if value is None else str(value)


def _facts(view: ReportView) -> Iterator[str]:
    yield f"{view.inputs.read_sentence}{_reasons(view)}. {view.inputs.source_sentence}."
    if not view.inputs.task_labels:
        yield "One bucket: no task labels found, use --task-from."
    yield _costs(view)
    yield _formula(view)
    if view.confirmation is not None:
        yield _confirmed(view)
    yield view.batches
    if view.findings:
        codes = dict.fromkeys(finding.code for finding in view.findings)
        names = ", ".join(code.replace("_", " ") for code in codes)
        yield f"Findings: {names}."


def _reasons(view: ReportView) -> str:
    """Why rows were left out, the commonest reasons first."""
    entries = sorted(view.inputs.skipped, key=lambda entry: -entry.rows)
    told = [f"{count(entry.rows)} {shown(entry.reason, 40)}" for entry in entries[:_MAX_REASONS]]
    rest = sum(entry.rows for entry in entries[_MAX_REASONS:])
    if rest:
        told.append(f"{count(rest)} for other reasons")
    return f" ({'; '.join(told)})" if told else ""


def _costs(view: ReportView) -> str:
    costs = view.plan.measured_on.costs
    errors = ", ".join(
        f"{law} {percent(costs.cost_model_error.get(law), 1)}" for law in sorted(costs.mode)
    )
    floor = (
        f", {number(costs.floor_ratio, 1)} times the bandwidth floor"
        if costs.floor_ratio is not None
        else ""
    )
    return (
        f"Plain step {milliseconds(costs.ar_step_s)}{floor}; cost model error: {errors or 'n/a'}."
    )


def _formula(view: ReportView) -> str:
    known = [row.rule.textbook for row in view.rules if row.rule.textbook is not None]
    left = next((textbook.discount for textbook in known if textbook.discount is not None), None)
    return (
        f"Of the textbook speedup {number(left)} is left in the largest priced bucket (popular "
        f"rule: 0.80); with each request at its own best setting "
        f"{view.verdict.ceiling} could be saved."
    )


def _confirmed(view: ReportView) -> str:
    found = view.confirmation
    if found is None:
        return ""
    return (
        f"Predicted against measured: median error {percent(found.median_error, 1)}, worst "
        f"{percent(found.worst_error, 1)} over {plural(found.num_cells, 'cell')}, regret "
        f"{percent(found.regret, 1)}; {found.exactness}."
    )


def _answer(view: ReportView, report: Path) -> str:
    """Verdict, share saved, report and next command in one sentence."""
    verdict = view.verdict
    sentence = verdict.sentence.removesuffix(".")
    if verdict.tone in ("off", "unknown"):
        sentence += f"; {verdict.saved} of decode time saved"
    return f"{sentence}; see {shlex.quote(str(report))}, next: {view.next_command}"
