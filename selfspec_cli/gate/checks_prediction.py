"""Do the predictions agree with what was really decoded, and was anything better beside it?"""

import math
from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from selfspec_cli.analysis.confirmation import (
    CONFIRM_KEYS,
    median_and_worst_error,
    regrets,
    summarise_confirm,
)
from selfspec_cli.gate.checks_timing import bucket_and_cell
from selfspec_cli.gate.evidence import GateEvidence
from selfspec_cli.gate.verdict import Check, Outcome
from selfspec_cli.plan.rules import cell_of, key_of_rule
from selfspec_cli.report.format import interval, percent, plural
from selfspec_cli.report.rule_rows import rule_label

_ROUNDING = 1e-9  # equal passes
_DECODE = "Calibrate again with confirm.cells above 0 in the config."
_ALONE = "Measure on an otherwise idle machine; see the cost findings: selfspec doctor RUN."
_OTHER = "Plan again: selfspec plan RUN; decode more cells: confirm.cells in the config."


def prediction_checks(evidence: GateEvidence, max_median: float, max_worst: float) -> list[Check]:
    """Return |predicted ÷ measured speedup - 1| of the decoded cells, median and worst.

    Args:
        evidence: of the run.
        max_median: largest median; equal passes.
        max_worst: largest error of any cell; equal passes.
    """
    known = _predicted(evidence.confirm)
    if known is None or known.empty:
        return [_error("median", None, max_median, 0), _error("worst", None, max_worst, 0)]
    summary = summarise_confirm(known)
    cells = int(summary["error"].notna().sum())
    median, worst = median_and_worst_error(summary)
    return [_error("median", median, max_median, cells), _error("worst", worst, max_worst, cells)]


def _predicted(confirm: pd.DataFrame | None) -> pd.DataFrame | None:
    """Decodes of cells of which every decode was predicted: a sum would skip a missing one."""
    if confirm is None:
        return None
    columns = ["predicted_ar_seconds", "predicted_seconds", "predicted_rounds", "priced_seconds"]
    unknown = confirm[columns].isna().any(axis=1)
    keys = [confirm[name] for name in CONFIRM_KEYS]
    return confirm.loc[~unknown.groupby(keys, dropna=False).transform("any")]


def _error(which: str, value: float | None, limit: float, cells: int) -> Check:
    known = value if value is not None and math.isfinite(value) else None
    outcome: Outcome = "no_verdict"
    if known is not None:
        outcome = "pass" if known <= limit + _ROUNDING else "fail"
    return Check(
        name="prediction_error",
        outcome=outcome,
        subject=which,
        value=known,
        limit=limit,
        text=f"{which} error of the predicted speedup is {percent(known)} over "
        f"{plural(cells, 'decoded cell')}, at most {percent(limit)} is asked",
        next_step={"pass": "", "fail": _ALONE, "no_verdict": _DECODE}[outcome],
        timing=True,
    )


def regret_checks(evidence: GateEvidence, limit: float) -> list[Check]:
    """Return the time lost against the best cell decoded on the same requests, bucket by bucket.

    A loss counts only where its paired interval lies above 1 (`analysis.confirmation.regrets`),
    and only where the cell decoded as the choice is still that of an enabled rule.

    Args:
        evidence: of the run.
        limit: largest share of the best cell's seconds; equal passes.
    """
    confirm = evidence.confirm
    rows = [] if confirm is None or confirm.empty else regrets(confirm).to_dict("records")
    chosen = {(key_of_rule(rule), cell_of(rule)): rule_label(rule) for rule in evidence.enabled}
    known = [
        (chosen[bucket_and_cell(row)], row)
        for row in rows
        if not pd.isna(row["regret"]) and bucket_and_cell(row) in chosen
    ]
    if not known:
        return [_regret("", None, limit, "no enabled cell was decoded beside another one")]
    return [_regret(label, float(row["regret"]), limit, _told(row, limit)) for label, row in known]


def _told(row: Mapping[Hashable, Any], limit: float) -> str:
    best = f"L={row['best_exit_layer']:.0f}, k={row['best_draft_length']:.0f}"
    ends = interval(row["seconds_ratio_low"], row["seconds_ratio_high"])
    return (
        f"{percent(float(row['regret']))} of the time is lost against {best} "
        f"(seconds ratio {ends}), at most {percent(limit)} may be"
    )


def _regret(subject: str, value: float | None, limit: float, told: str) -> Check:
    outcome: Outcome = "no_verdict"
    if value is not None:
        outcome = "pass" if value <= limit + _ROUNDING else "fail"
    return Check(
        name="regret",
        outcome=outcome,
        subject=subject,
        value=value,
        limit=limit,
        text=told,
        next_step={"pass": "", "fail": _OTHER, "no_verdict": _DECODE}[outcome],
        timing=True,
    )
