"""CSV exports for people and their spreadsheets: text that looks like a formula is disarmed.

The run's own tables (grid.csv, confirm.csv, ...) are read back by programs and keep labels exactly.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from selfspec_cli.plan.document import Rule
from selfspec_cli.report.finding_types import Finding
from selfspec_cli.report.rule_rows import RuleRow

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet runs a text cell that begins with one of these."""
_COUNTS = ("context_min", "context_max", "exit_layer", "draft_length", "max_batch")


def disarm(value: Any) -> Any:
    """Return a text cell that no spreadsheet runs: with a leading apostrophe where it might.

    Numbers are left alone: -0.5 is no formula, the text "-0.5" may be.
    """
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


def disarmed(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with every text cell disarmed."""
    texts = [name for name in table.columns if not pd.api.types.is_numeric_dtype(table[name])]
    return table.assign(**{name: table[name].map(disarm) for name in texts})


def rules_sheet(rows: Sequence[RuleRow]) -> pd.DataFrame:
    """Return rules.csv: one row a rule, every number of the plan, missing where undefined."""
    table = pd.DataFrame([_rule(row.rule) for row in rows])
    counts = {name: "Int64" for name in _COUNTS if name in table}
    return disarmed(table.astype(counts))


def findings_sheet(findings: Sequence[Finding]) -> pd.DataFrame:
    """Return findings.csv: code, symptom, evidence, cause, remedy."""
    names = ("code", "symptom", "evidence", "cause", "remedy")
    rows = [{name: getattr(finding, name) for name in names} for finding in findings]
    return disarmed(pd.DataFrame(rows, columns=list(names)))


def _rule(rule: Rule) -> dict[str, Any]:
    gains = {f"speedup_at_acceptance_{gain.acceptance:g}": gain.speedup for gain in rule.gain_at}
    return {
        "task": rule.task,
        "context_min": rule.context_min,
        "context_max": rule.context_max,
        "temperature_min": rule.temperature_min,
        "temperature_max": rule.temperature_max,
        "enabled": rule.enabled,
        "evidence": rule.evidence,
        "exit_layer": rule.drafter.exit_layer,
        "draft_length": rule.draft.length,
        "max_batch": rule.max_batch,
        "speedup": rule.speedup.estimate,
        "speedup_low": rule.speedup.low,
        "speedup_high": rule.speedup.high,
        "request_speedup": rule.request_speedup,
        "median_request_speedup": rule.median_request_speedup,
        "measured_speedup": rule.measured_speedup.estimate,
        "measured_speedup_low": rule.measured_speedup.low,
        "measured_speedup_high": rule.measured_speedup.high,
        "confirmed": rule.confirmed,
        "acceptance_rate_tested": rule.acceptance_rate_tested,
        "break_even_acceptance": rule.break_even_acceptance,
        **gains,
        **_batches(rule),
        **_tail(rule),
        "guards": "; ".join(guard.text for guard in rule.guards),
        "reason": rule.reason,
    }


def _batches(rule: Rule) -> dict[str, Any]:
    """Speedups by batch size, where more than one was measured."""
    found: dict[str, Any] = {}
    for entry in rule.by_batch if len(rule.by_batch) > 1 else ():
        name = f"at_batch_{entry.batch_size}"
        found |= {
            f"speedup_{name}": entry.speedup.estimate,
            f"speedup_low_{name}": entry.speedup.low,
            f"speedup_high_{name}": entry.speedup.high,
            f"static_speedup_{name}": entry.static_speedup,
        }
    return found


def _tail(rule: Rule) -> dict[str, Any]:
    textbook = rule.textbook
    return {
        "oracle_speedup": rule.oracle_speedup,
        "formula_speedup": textbook.formula_speedup if textbook else None,
        "speedup_of_formula": textbook.discount if textbook else None,
        "slow_share": rule.slow_share,
        "slow_share_high": rule.slow_share_high,
        "request_p99_ratio": rule.request_p99_ratio,
        "gap_p99_s": rule.gap_p99_s,
        "num_requests": rule.num_requests,
        "requests_missing": rule.requests_missing,
        "effective_requests": rule.effective_requests,
        "num_tokens": rule.num_tokens,
        "token_share": rule.token_share,
        "time_share": rule.time_share,
        "window": rule.window,
    }
