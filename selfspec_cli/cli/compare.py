"""`selfspec compare`: two runs on the same traces, pair by pair, in words."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfspec_cli.errors import EXIT_DIFFERS, EXIT_NO_EVIDENCE

if TYPE_CHECKING:
    from rich.table import Table

    from selfspec_cli.gate.compare import Comparison, Row
    from selfspec_cli.gate.verdict import Check

_MAX_ROWS = 8  # buckets shown; those whose rule changed first, then by decode time
_MAX_LABEL = 30  # characters of a bucket's label
_MAX_NOTES = 4
_MAX_CHECKS = 8  # lines of checks


def compare(
    base: Annotated[Path, typer.Argument(help="Run directory that is held to be good.")],
    new: Annotated[Path, typer.Argument(help="Run directory of the candidate.")],
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-on",
            help="METRIC:LIMIT, may be repeated: speedup:-3%, measured:-3%, acceptance:-0.02, "
            "p99:+5%.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="No table: the answer alone.")
    ] = False,
) -> None:
    """Compare two runs on the same traces, request by request: no model, no torch.

    Example: selfspec compare reports/quickstart reports/quickstart

    Reads manifest, plan and tables of both runs and writes nothing. Each number has a 95 %
    interval of its own; --fail-on makes one-sided tests with a false alarm of 0.5 % together.
    Exit codes: 0 compared, 1 a --fail-on limit is broken, 2 not comparable (the message names the
    key that differs) or usage error, 3 a --fail-on limit cannot be judged.
    """
    from selfspec_cli.gate.compare import compare_runs
    from selfspec_cli.gate.compare_text import comparison_document
    from selfspec_cli.gate.document import gate_document
    from selfspec_cli.gate.fail_on import checks_against, parse_fail_on
    from selfspec_cli.gate.verdict import GateReport

    limits = [parse_fail_on(text) for text in fail_on or []]
    found = compare_runs(base, new)
    report = GateReport(run=str(new), checks=checks_against(found, limits))
    if as_json:
        checks = gate_document(report)["checks"]
        outcome = report.outcome if limits else None
        document = {**comparison_document(found), "outcome": outcome, "checks": checks}
        typer.echo(json.dumps(document, allow_nan=False))
    else:
        _show(found, report.checks, quiet=quiet)
    if limits and report.exit_code:
        raise typer.Exit(EXIT_DIFFERS if report.outcome == "fail" else EXIT_NO_EVIDENCE)


def _show(found: "Comparison", checks: "tuple[Check, ...]", *, quiet: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    from selfspec_cli.report.format import shown

    console = Console(highlight=False, soft_wrap=False)
    if not quiet:
        console.print(_table(found))
    notes = [] if quiet else _notes(found)
    lines = [*notes, *_check_lines(checks), _answer(found)]
    for line in lines:
        console.print(Text(shown(line)))


def _table(found: "Comparison") -> "Table":
    from rich.table import Table
    from rich.text import Text

    from selfspec_cli.gate.compare_text import brief, rule_change, timing_words, words

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    labels = [_label(row.label) for row in _rows(found)]
    width = max(map(len, labels), default=0)
    table.add_column("task, prompt tokens, T", no_wrap=True, min_width=width)
    for name in ("rule", "speedup (95 %)", "acceptance (95 %)"):
        table.add_column(name)
    table.add_column("n", justify="right")
    for row, label in zip(_rows(found), labels, strict=True):
        numbers = timing_words(found, row.speedup), words(row.acceptance)
        table.add_row(Text(label), rule_change(row), *map(brief, numbers), str(row.num_groups))
    return table


def _label(label: str) -> str:
    """A bucket's label, its task cut where it is long: band and temperature tell rows apart."""
    from selfspec_cli.report.format import shown

    task, *rest = label.rsplit(", ", 2)
    place = ", ".join(["", *rest]).replace(" tokens", "")
    return shown(task, max(_MAX_LABEL - len(place), 6)) + place


def _rows(found: "Comparison") -> "list[Row]":
    if len(found.rows) <= _MAX_ROWS:
        return list(found.rows)
    return sorted(found.rows, key=lambda row: not row.rule_changed)[:_MAX_ROWS]


def _notes(found: "Comparison") -> list[str]:
    """What the reader should know before the answer."""
    from selfspec_cli.report.format import plural

    lines = []
    if len(found.rows) > _MAX_ROWS:
        lines.append(f"{plural(len(found.rows) - _MAX_ROWS, 'more bucket')}: --json has all")
    if found.num_base_only or found.num_new_only:
        only = f"{found.num_base_only} of the first run, {found.num_new_only} of the second"
        lines.append(f"without a partner and left out: {only}")
    differ = [*found.foreign_timing, *found.other_differences]
    lines += [f"differs: {entry.text}" for entry in differ[:_MAX_NOTES]]
    if len(differ) > _MAX_NOTES:
        lines.append(f"{plural(len(differ) - _MAX_NOTES, 'more difference')}: --json has all")
    return lines


def _check_lines(checks: "tuple[Check, ...]") -> list[str]:
    """Checks over all requests, and those of buckets that fail."""
    from selfspec_cli.report.format import plural

    whole = [check for check in checks if not check.subject]
    failed = [check for check in checks if check.subject and check.outcome == "fail"]
    told = [*whole, *failed][: max(_MAX_CHECKS, len(whole))]
    left = len(whole) + len(failed) - len(told)
    more = [f"{plural(left, 'more failure')} of buckets: --json has all"] if left else []
    return [*map(_check_line, told), *more]


def _check_line(check: "Check") -> str:
    marks = {"pass": "pass", "fail": "FAIL", "no_verdict": "no verdict"}
    subject = f"{check.subject}: " if check.subject else ""
    return f"{marks[check.outcome]}: {subject}{check.text}. {check.next_step}".rstrip()


def _answer(found: "Comparison") -> str:
    from selfspec_cli.gate.compare_text import timing_words, words
    from selfspec_cli.report.format import plural, ratio

    total = found.total
    parts = [f"speedup {timing_words(found, total.speedup)}"]
    if total.measured is not None:
        parts.append(f"measured {timing_words(found, total.measured)}")
    parts.append(f"tested acceptance {words(total.acceptance)}")
    if found.timing_judged and total.seconds_ratio:
        took = ratio(1 / total.seconds_ratio)
        parts.append(f"the second run takes {took} the decode seconds of the first")
    changed = plural(len(found.changed), "rule")
    return f"all {plural(total.num_groups, 'request')}: {'; '.join(parts)}; {changed} changed"
