"""Annotations and step summary of a gate that runs in a GitHub workflow.

Source: GitHub Docs, "Workflow commands for GitHub Actions": 10 annotations of a level a step,
1 MiB of summary a step, and the escapes of messages and properties.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from selfspec_cli.errors import StorageError
from selfspec_cli.gate.document import counts
from selfspec_cli.gate.verdict import Check, GateReport
from selfspec_cli.report.format import exact, plural, shown
from selfspec_cli.report.markdown import plain

MAX_ANNOTATIONS = 10
MAX_SUMMARY_BYTES = 1 << 20
_LONGEST = 1000  # characters of one label or sentence: what a person reads of it
_WORDS = {"pass": "pass", "fail": "fail", "no_verdict": "no verdict"}
_WARNS = 2  # weight of a failure that only warns
_HEAD = (
    "| check | subject | outcome | value | interval | limit | why | next |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


def detected(environ: Mapping[str, str]) -> bool:
    """Whether this runs in a GitHub workflow, whose runner reads annotations from the output.

    Other systems set `CI` too, and would show the commands as text; they read `--junit`.
    """
    return environ.get("GITHUB_ACTIONS", "").lower() == "true"


def annotations(report: GateReport) -> list[str]:
    """Return at most 10 workflow commands: failures first, then open verdicts, then warnings.

    Of each of these, every check has its first bucket before any has a second. Where there are
    more, the tenth counts the rest, as an error if a failure is among them. Print each on a line of
    its own, on either stream.
    """
    told = _in_turn([check for check in report.checks if _weight(check) <= _WARNS])
    if len(told) <= MAX_ANNOTATIONS:
        return [_command(check) for check in told]
    first, rest = told[: MAX_ANNOTATIONS - 1], told[MAX_ANNOTATIONS - 1 :]
    return [*map(_command, first), _command_of_rest(rest)]


def step_summary(report: GateReport, limit_bytes: int = MAX_SUMMARY_BYTES) -> str:
    """Return the report as Markdown of at most `limit_bytes` bytes; no data becomes markup.

    Failures come first, so that what is cut is what passed; a last sentence counts what is cut.
    Empty if not even the head fits.
    """
    rows = [_row(check) for check in _by_weight(report.checks)]
    notes = [f"- {_cell(note)}\n" for note in report.notes]
    head = _head(report) + (_HEAD if rows else "")
    parts = [head, *rows, *(["\n"] if notes else []), *notes]
    if _bytes("".join(parts)) <= limit_bytes:
        return "".join(parts)
    room = limit_bytes - _bytes(head + _cut(len(rows), len(rows)))
    if room < 0:
        return ""
    kept = 0
    while kept < len(rows) and room >= _bytes(rows[kept]):
        room -= _bytes(rows[kept])
        kept += 1
    return head + "".join(rows[:kept]) + _cut(len(rows) - kept, len(rows))


def write_summary(report: GateReport, environ: Mapping[str, str]) -> bool:
    """Append the step summary to the file that GITHUB_STEP_SUMMARY names.

    What the step wrote there before counts towards the limit.

    Returns:
        Whether something was written; not where the variable is not set or nothing fits.

    Raises:
        StorageError: the file cannot be written.
    """
    name = environ.get("GITHUB_STEP_SUMMARY", "")
    if not name:
        return False
    path = Path(name)
    try:
        taken = path.stat().st_size if path.exists() else 0
        text = step_summary(report, MAX_SUMMARY_BYTES - taken)
        with path.open("ab") as file:
            file.write(text.encode())
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = getattr(error, "strerror", None) or error
        raise StorageError(
            f"the step summary cannot be written: {reason}", where="GITHUB_STEP_SUMMARY"
        ) from error
    return bool(text)


def _weight(check: Check) -> int:
    """0 fails, 1 leaves the gate open, 2 only warns, 3 open and optional, 4 passed."""
    if check.outcome == "pass":
        return 4
    if check.outcome == "fail":
        return _WARNS if check.warns_only else 0
    return 3 if check.optional else 1


def _by_weight(checks: Sequence[Check]) -> list[Check]:
    return sorted(checks, key=_weight)


def _in_turn(checks: Sequence[Check]) -> list[Check]:
    seen: Counter[tuple[int, str]] = Counter()
    turns = []
    for check in checks:
        kind = (_weight(check), check.name)
        turns.append(seen[kind])
        seen[kind] += 1
    order = sorted(range(len(checks)), key=lambda at: (_weight(checks[at]), turns[at]))
    return [checks[at] for at in order]


def _command(check: Check) -> str:
    level = "error" if check.fails else "warning"
    title = check.name + (f" {check.subject}" if check.subject else "")
    word = "no verdict: " if check.outcome == "no_verdict" else ""
    message = f"{check.text}. {check.next_step}" if check.next_step else check.text
    return _workflow_command(level, f"selfspec gate: {title}", word + message)


def _command_of_rest(rest: Sequence[Check]) -> str:
    failed = sum(check.fails for check in rest)
    undecided = sum(check.undecided for check in rest)
    warned = len(rest) - failed - undecided
    message = (
        f"{plural(len(rest), 'more check')}: {failed} failed, {undecided} without a verdict, "
        f"{plural(warned, 'warning')}. The step summary, --junit and --json list all."
    )
    return _workflow_command("error" if failed else "warning", "selfspec gate: the rest", message)


def _workflow_command(level: str, title: str, message: str) -> str:
    safe = _escape(shown(title, _LONGEST)).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={safe}::{_escape(shown(message, _LONGEST))}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _head(report: GateReport) -> str:
    found = counts(report)
    return (
        f"## selfspec gate: {_WORDS[report.outcome]}\n\n"
        f"{_cell(report.run)}: {plural(len(report.checks), 'check')}, {found['passed']} passed, "
        f"{found['failed']} failed, {plural(found['warnings'], 'warning')}, "
        f"{found['no_verdict'] + found['optional']} without a verdict.\n\n"
    )


def _row(check: Check) -> str:
    outcome = "warning" if check.warns else _WORDS[check.outcome]
    ends = " to ".join(filter(None, (_short(check.low), _short(check.high))))
    cells = (
        check.name, check.subject, outcome, _short(check.value), ends, _short(check.limit),
        check.text, check.next_step,
    )  # fmt: skip
    return f"| {' | '.join(_cell(cell) for cell in cells)} |\n"


def _short(value: float | None) -> str:
    return f"{value:.4g}" if exact(value) and value is not None else ""


def _cell(text: str) -> str:
    return plain(shown(text, _LONGEST))


def _cut(left: int, num_checks: int) -> str:
    return f"\nCut here: {left} of {num_checks} checks do not fit into a step summary.\n"


def _bytes(text: str) -> int:
    return len(text.encode())
