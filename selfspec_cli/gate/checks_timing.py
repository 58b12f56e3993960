"""Comparisons of decode times: one family, so that a gate seldom fails by chance.

A comparison passes where the lower end of the 95 % interval reaches its limit, fails only where
its one-sided test rejects at the Holm level, and else there is no verdict.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from selfspec_cli.analysis.confirmation import CONFIRM_KEYS
from selfspec_cli.analysis.evidence import Cell
from selfspec_cli.analysis.intervals import MIN_EFFECTIVE_GROUPS, ratio_interval
from selfspec_cli.buckets import BucketKey
from selfspec_cli.gate.evidence import GateEvidence
from selfspec_cli.gate.holm import FAMILY_LEVEL, Held, holm, ratio_p_value, share_p_value
from selfspec_cli.gate.rules import GateRules
from selfspec_cli.gate.verdict import Check, Outcome
from selfspec_cli.plan.document import Interval, Rule
from selfspec_cli.plan.document_origin import OWN_COSTS
from selfspec_cli.plan.rules import cell_of, key_of_rule
from selfspec_cli.plan.text import to_interval
from selfspec_cli.report.format import percent, ratio_with_interval
from selfspec_cli.report.rule_rows import rule_label

_ROUNDING = 1e-9  # "equal passes" must survive the rounding of 1 + margin
_MORE = "Calibrate on more requests of this bucket."
_SLOWER = "Turn this bucket off, or plan again with a margin: selfspec plan RUN --margin."


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One number against one limit, before the family is known."""

    name: str
    subject: str
    value: float | None
    low: float | None = None
    high: float | None = None
    limit: float
    p: float | None
    """Of "the limit holds"; None where no test can be made."""
    holds: bool
    told: str
    """The number with its interval, as a sentence without a full stop."""
    silence: str = ""
    """Why there can be no verdict; empty where there can be one."""
    if_fails: str = _SLOWER
    if_unknown: str = _MORE


def judge(comparisons: Sequence[Comparison], level: float = FAMILY_LEVEL) -> list[Check]:
    """Return the verdicts of a family of comparisons.

    Args:
        comparisons: all timing comparisons of a gate.
        level: family-wise chance of a false failure.
    """
    silent = [bool(one.silence) for one in comparisons]
    tested = [None if mute else one.p for one, mute in zip(comparisons, silent, strict=True)]
    held = holm(tested, level)
    return [_check(one, found) for one, found in zip(comparisons, held, strict=True)]


def _check(one: Comparison, held: Held | None) -> Check:
    outcome = _outcome(one, held)
    return Check(
        name=one.name,
        outcome=outcome,
        subject=one.subject,
        value=one.value,
        low=one.low,
        high=one.high,
        limit=one.limit,
        text=_sentence(one, held, outcome),
        next_step={"pass": "", "fail": one.if_fails, "no_verdict": one.if_unknown}[outcome],
        timing=True,
    )


def _sentence(one: Comparison, held: Held | None, outcome: Outcome) -> str:
    """The numbers, and how sure a failure is or would have to be."""
    if one.silence or held is None:
        return f"{one.told}: {one.silence}" if one.silence else one.told
    tested = f"p {held.p:.2g}, a failure needs {held.level:.2g}"
    unsure = "cannot tell: " if outcome == "no_verdict" else ""
    return f"{unsure}{one.told}; {tested}"


def _outcome(one: Comparison, held: Held | None) -> Outcome:
    if one.silence:
        return "no_verdict"
    if one.holds:
        return "pass"
    return "fail" if held is not None and held.rejected else "no_verdict"


def timing_comparisons(evidence: GateEvidence, rules: GateRules) -> list[Comparison]:
    """Return every comparison of times that the rules ask for, bucket by bucket.

    Args:
        evidence: of the run.
        rules: of the gate.
    """
    found: list[Comparison] = []
    for rule in evidence.enabled:
        if rules.speedup.enabled:
            found.extend(_speedups(rule, rules.speedup.min_speedup))
        if rules.slow_share.enabled:
            found.append(_slow(rule, rules.slow_share.max_share))
    if rules.measured_speedup.enabled:
        found.extend(_measured(evidence, rules.measured_speedup.min_speedup))
    return found


def _speedups(rule: Rule, limit: float) -> Iterator[Comparison]:
    """At the batch size of decision, and at every larger one that the rule claims."""
    label, groups = rule_label(rule), rule.effective_requests
    yield ratio_comparison("speedup", label, rule.speedup, groups, limit)
    for entry in rule.by_batch[1:]:
        if rule.max_batch is not None and entry.batch_size <= rule.max_batch:
            subject = f"{label}, batch {entry.batch_size}"
            yield ratio_comparison("speedup", subject, entry.speedup, groups, limit)


def ratio_comparison(
    name: str, subject: str, found: Interval, effective_groups: float | None, limit: float
) -> Comparison:
    """Return a speedup against its least value.

    Args:
        name: of the check.
        subject: label of the bucket.
        found: speedup with its 95 % interval.
        effective_groups: how many equal groups of requests it rests on.
        limit: least lower bound; equal passes.
    """
    value = ratio_with_interval(found.estimate, found.low, found.high)
    return Comparison(
        name=name,
        subject=subject,
        value=found.estimate,
        low=found.low,
        high=found.high,
        limit=limit,
        p=ratio_p_value((found.low, found.estimate, found.high), effective_groups, limit),
        holds=found.low is not None and found.low >= limit - _ROUNDING,
        told=f"{value}, a lower bound of {limit:g} is asked",
        silence=_thin(found, effective_groups),
    )


def _thin(found: Interval, effective_groups: float | None) -> str:
    if found.estimate is None:
        return "no speedup is known"
    if found.low is None or found.high is None:
        return "it has no interval"
    # Eight requests of nearly one length are worth 7.9998: compared as they are shown.
    if effective_groups is None or round(effective_groups, 1) < MIN_EFFECTIVE_GROUPS:
        worth = "an unknown number of" if effective_groups is None else f"{effective_groups:.1f}"
        return f"its requests are worth {worth} equal ones, {MIN_EFFECTIVE_GROUPS:g} are needed"
    return ""


def _slow(rule: Rule, limit: float) -> Comparison:
    """The share itself passes, as in the plan: its upper end needs 36 requests without any slow."""
    share, groups = rule.slow_share, rule.evidence_requests or 0
    upper = percent(rule.slow_share_high)
    return Comparison(
        name="slow_share",
        subject=rule_label(rule),
        value=share,
        high=rule.slow_share_high,
        limit=limit,
        p=None if share is None else share_p_value(share, groups, limit),
        holds=share is not None and share <= limit + _ROUNDING,
        told=f"{percent(share)} of requests are slow, at most {percent(limit)} may be; the share "
        f"of {groups} requests decides, its upper limit is {upper}",
        silence="" if share is not None and groups else "no share is known",
    )


def _measured(evidence: GateEvidence, limit: float) -> Iterator[Comparison]:
    """Decodes of a rule's own bucket and cell; other machines' costs have none."""
    own = evidence.plan.measured_on.costs.source == OWN_COSTS
    if evidence.confirm is None or evidence.confirm.empty or not own:
        return
    cells = {
        bucket_and_cell(rows.iloc[0]): rows
        for _, rows in evidence.confirm.groupby(CONFIRM_KEYS, sort=True, dropna=False)
    }
    for rule in evidence.enabled:
        cell = cell_of(rule)
        rows = None if cell is None else cells.get((key_of_rule(rule), cell))
        if rows is not None:
            ratio = ratio_interval(rows["ar_seconds"], rows["seconds"], rows["group_id"])
            found, label = to_interval(ratio), rule_label(rule)
            yield ratio_comparison("measured_speedup", label, found, ratio.effective_groups, limit)


def bucket_and_cell(row: Mapping[Any, Any] | pd.Series) -> tuple[BucketKey, Cell]:
    """Return whose decodes a row of a table over confirm.csv speaks of.

    Args:
        row: task, context_min, context_max (missing: open), temperature, exit_layer, draft_length.
    """
    top = None if pd.isna(row["context_max"]) else row["context_max"]
    bucket = BucketKey(
        task=str(row["task"]),
        context_min=int(row["context_min"]),
        context_max=None if top is None else int(top),
        temperature=float(row["temperature"]),
    )
    return bucket, (int(row["exit_layer"]), int(row["draft_length"]))
