"""The gate's findings as one strict JSON document."""

from typing import Any

from selfspec_cli.gate.verdict import Check, GateReport
from selfspec_cli.storage.documents import plain_data

SCHEMA_VERSION = 1


def gate_document(report: GateReport) -> dict[str, Any]:
    """Return a report as plain values: no NaN, no infinity; undefined is None.

    Returns:
        schema_version, run, outcome, exit_code, counts (passed, failed, warnings, no_verdict,
        optional: outcomes of all checks, each counted once), checks (one a check, in order) and
        notes.
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "run": report.run,
        "outcome": report.outcome,
        "exit_code": report.exit_code,
        "counts": counts(report),
        "checks": [_entry(check) for check in report.checks],
        "notes": list(report.notes),
    }
    plain: Any = plain_data(document)
    return dict(plain)


def counts(report: GateReport) -> dict[str, int]:
    """Return how many checks ended in which way; their sum is the number of checks."""
    checks = report.checks
    undecided = sum(check.undecided for check in checks)
    return {
        "passed": sum(check.outcome == "pass" for check in checks),
        "failed": sum(check.fails for check in checks),
        "warnings": sum(check.warns for check in checks),
        "no_verdict": undecided,
        "optional": sum(check.outcome == "no_verdict" for check in checks) - undecided,
    }


def _entry(check: Check) -> dict[str, object]:
    return {
        "name": check.name,
        "subject": check.subject or None,
        "outcome": check.outcome,
        "fails": check.fails,
        "warns_only": check.warns_only,
        "optional": check.optional,
        "timing": check.timing,
        "value": check.value,
        "low": check.low,
        "high": check.high,
        "limit": check.limit,
        "text": check.text,
        "next_step": check.next_step or None,
    }
