"""Do the predictions agree with what was really decoded, and was anything better beside it?"""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pandas as pd

from selfspec_cli.analysis.confirmation import (
    BUCKET_COLUMNS,
    CONFIRM_KEYS,
    LEVEL,
    median_and_worst_error,
    regrets,
    summarise_confirm,
)
from selfspec_cli.gate.checks_timing import Comparison, bucket_and_cell
from selfspec_cli.gate.evidence import GateEvidence
from selfspec_cli.gate.holm import ratio_p_value
from selfspec_cli.plan.rules import cell_of, key_of_rule
from selfspec_cli.report.format import interval, percent, plural
from selfspec_cli.report.rule_rows import rule_label

_ROUNDING = 1e-9  # equal passes
_DECODE = "Calibrate again with confirm.cells above 0 in the config."
_ALONE = "Measure on an otherwise idle machine; see the cost findings: selfspec doctor RUN."
_OTHER = "Plan again: selfspec plan RUN; decode more cells: confirm.cells in the config."


def prediction_comparisons(
    evidence: GateEvidence, max_median: float, max_worst: float
) -> list[Comparison]:
    """Return |predicted ÷ measured speedup - 1| of the decoded cells, median and worst.

    Few short decodes scatter: an error beyond its limit fails only where that many cells are
    beyond it by more than their own intervals explain.

    Args:
        evidence: of the run.
        max_median: largest median; equal passes.
        max_worst: largest error of any cell; equal passes.
    """
    known = _predicted(evidence.confirm)
    if known is None or known.empty:
        return [_error("median", None, max_median, []), _error("worst", None, max_worst, [])]
    summary = summarise_confirm(known)
    median, worst = median_and_worst_error(summary)
    rows = summary.to_dict("records")
    return [_error("median", median, max_median, rows), _error("worst", worst, max_worst, rows)]


def _predicted(confirm: pd.DataFrame | None) -> pd.DataFrame | None:
    """Decodes of cells of which every decode was predicted: a sum would skip a missing one."""
    if confirm is None:
        return None
    columns = ["predicted_ar_seconds", "predicted_seconds", "predicted_rounds", "priced_seconds"]
    unknown = confirm[columns].isna().any(axis=1)
    keys = [confirm[name] for name in CONFIRM_KEYS]
    return confirm.loc[~unknown.groupby(keys, dropna=False).transform("any")]


def _error(
    which: str, value: float | None, limit: float, rows: Sequence[Mapping[Hashable, Any]]
) -> Comparison:
    known = value if value is not None and math.isfinite(value) else None
    beyond = sorted(_cell_p_value(row, limit) for row in rows)
    needed = len(rows) // 2 + 1 if which == "median" else 1
    return Comparison(
        name="prediction_error",
        subject=which,
        value=known,
        limit=limit,
        p=_so_many(beyond, needed) if known is not None else None,
        holds=known is not None and known <= limit + _ROUNDING,
        told=f"{which} error of the predicted speedup is {percent(known)} over "
        f"{plural(len(rows), 'decoded cell')}, at most {percent(limit)} is asked",
        silence="" if known is not None else "nothing was decoded to compare with",
        if_fails=_ALONE,
        if_unknown=_DECODE,
    )


def _cell_p_value(row: Mapping[Hashable, Any], limit: float) -> float:
    """One-sided p-value of "the error of this cell is within the limit"; 1 where not known."""
    ends = [row[f"measured_speedup{end}"] for end in ("_low", "", "_high")]
    groups, predicted, error = row["effective_groups"], row["predicted_speedup"], row["error"]
    if any(value is None or not math.isfinite(value) for value in (*ends, groups, error)):
        return 1.0
    interval = (ends[0], ends[1], ends[2])
    if error > 0:  # measured is less than the limit allows
        found = ratio_p_value(interval, groups, predicted / (1 + limit))
        return 1.0 if found is None else found
    if limit >= 1:  # nothing is measured at an infinite speedup
        return 1.0
    found = ratio_p_value(interval, groups, predicted / (1 - limit))
    return 1.0 if found is None else 1.0 - found


def _so_many(p_values: Sequence[float], least: int) -> float:
    """p-value of "fewer than `least` of these are false"; `p_values` ascend.

    Source: partial conjunction, Benjamini & Heller 2008 (Biometrics 64, 1215-1222).
    """
    return min((len(p_values) - least + 1) * p_values[least - 1], 1.0)


def regret_comparisons(evidence: GateEvidence, limit: float) -> list[Comparison]:
    """Return the time lost against the best cell decoded on the same requests, bucket by bucket.

    A loss counts only where its paired interval lies above 1 (`analysis.confirmation.regrets`),
    and only where the cell decoded as the choice is still that of an enabled rule.

    Args:
        evidence: of the run.
        limit: largest share of the best cell's seconds; equal passes.

    Returns:
        Empty where the plan enables no rule: nothing was chosen that could have lost time.
    """
    if not evidence.enabled:
        return []
    confirm = evidence.confirm
    chosen = {(key_of_rule(rule), cell_of(rule)): rule_label(rule) for rule in evidence.enabled}
    found = []
    if confirm is not None and not confirm.empty:
        for _, bucket in confirm.groupby(BUCKET_COLUMNS, sort=True, dropna=False):
            for row in regrets(bucket).to_dict("records"):
                label = chosen.get(bucket_and_cell(row))
                if label is not None and not pd.isna(row["regret"]):
                    found.append(_regret(label, row, bucket, limit))
    return found or [_no_regret(limit)]


def _regret(
    label: str, row: Mapping[Hashable, Any], bucket: pd.DataFrame, limit: float
) -> Comparison:
    rivals = len(bucket[["exit_layer", "draft_length"]].drop_duplicates()) - 1
    ends = (row["seconds_ratio_low"], row["seconds_ratio"], row["seconds_ratio_high"])
    groups = float(bucket["group_id"].nunique())
    within = ratio_p_value(ends, groups, 1 + limit, coverage=1 - (1 - LEVEL) / rivals)
    value = float(row["regret"])
    return Comparison(
        name="regret",
        subject=label,
        value=value,
        limit=limit,
        p=None if within is None else min(rivals * (1.0 - within), 1.0),
        holds=value <= limit + _ROUNDING,
        told=_told(row, limit),
        if_fails=_OTHER,
        if_unknown=_DECODE,
    )


def _no_regret(limit: float) -> Comparison:
    return Comparison(
        name="regret",
        subject="",
        value=None,
        limit=limit,
        p=None,
        holds=False,
        told=f"the time lost is not known, at most {percent(limit)} may be",
        silence="no enabled cell was decoded beside another one",
        if_unknown=_DECODE,
    )


def _told(row: Mapping[Hashable, Any], limit: float) -> str:
    best = f"L={row['best_exit_layer']:.0f}, k={row['best_draft_length']:.0f}"
    ends = interval(row["seconds_ratio_low"], row["seconds_ratio_high"])
    return (
        f"{percent(float(row['regret']))} of the time is lost against {best} "
        f"(seconds ratio {ends}), at most {percent(limit)} may be"
    )
