"""Checks on what the plan says of its buckets: acceptance and how much they rest on."""

import math

from selfspec_cli.analysis.intervals import MIN_EFFECTIVE_GROUPS, ratio_interval
from selfspec_cli.gate.evidence import GateEvidence, read_walk
from selfspec_cli.gate.verdict import Check, Outcome
from selfspec_cli.plan.document import Rule
from selfspec_cli.report.figure_data import rows_of
from selfspec_cli.report.format import interval, number, plural
from selfspec_cli.report.rule_rows import rule_label

_ROUNDING = 1e-9  # equal passes
_SAME = 1e-6  # relative; a plan's acceptance that its walk does not give gets no interval of it
_WALK = (
    "request_id", "group_id", "temperature", "prompt_tokens", "exit_layer", "draft_length",
    "tested", "accepted",
)  # fmt: skip
_Ends = tuple[float | None, float | None]
_TRAIN = "Turn this bucket off, use a deeper exit layer, or train the model for early exit."
_MORE = "Calibrate on more requests of this bucket."


def break_even_checks(evidence: GateEvidence) -> list[Check]:
    """Return tested acceptance against the rule's own break-even, one check a bucket.

    Args:
        evidence: of the run.
    """
    ends = acceptance_intervals(evidence)
    return [
        _acceptance(
            "acceptance_break_even", rule, rule.break_even_acceptance, "its break-even", found
        )
        for rule, found in zip(evidence.enabled, ends, strict=True)
    ]


def floor_checks(evidence: GateEvidence, floor: float) -> list[Check]:
    """Return tested acceptance of early-exit rules against a floor, one check a bucket.

    Args:
        evidence: of the run.
        floor: least acceptance, in [0, 1]; equal passes.
    """
    ends = acceptance_intervals(evidence)
    return [
        _acceptance("acceptance_floor", rule, floor, "the floor", found)
        for rule, found in zip(evidence.enabled, ends, strict=True)
        if rule.drafter.kind == "early_exit"
    ]


def acceptance_intervals(evidence: GateEvidence) -> list[_Ends]:
    """Return the 95 % interval of each enabled rule's tested acceptance, over groups of requests.

    It is shown and does not judge: the plan has weighed the uncertainty of the speedup. Both ends
    are None where the run kept no walk, or one of other numbers than the plan's.

    Args:
        evidence: of the run.

    Raises:
        StorageError: walk.parquet is torn, or not what the run wrote.
    """
    walk = read_walk(evidence.path, _WALK) if evidence.enabled else None
    if walk is None or evidence.requests is None:
        return [(None, None)] * len(evidence.enabled)
    rows = walk.merge(evidence.requests[["request_id", "task"]], on="request_id")
    found: list[_Ends] = []
    for rule in evidence.enabled:
        own = rows_of(rule, rows)
        ratio = ratio_interval(own["accepted"], own["tested"], own["group_id"])
        told = rule.acceptance_rate_tested
        same = told is not None and ratio.estimate is not None
        known = same and math.isclose(told or 0.0, ratio.estimate or 0.0, rel_tol=_SAME)
        found.append((ratio.low, ratio.high) if known else (None, None))
    return found


def _acceptance(name: str, rule: Rule, limit: float | None, what: str, ends: _Ends) -> Check:
    value = rule.acceptance_rate_tested
    outcome: Outcome = "no_verdict"
    if value is not None and limit is not None:
        outcome = "pass" if value >= limit - _ROUNDING else "fail"
    return Check(
        name=name,
        outcome=outcome,
        subject=rule_label(rule),
        value=value,
        low=ends[0],
        high=None if ends[1] is None else min(ends[1], 1.0),
        limit=limit,
        text=f"tested acceptance {number(value)}{_shown(ends)}, {what} is {number(limit)}",
        next_step={"pass": "", "fail": _TRAIN, "no_verdict": _MORE}[outcome],
    )


def _shown(ends: _Ends) -> str:
    low, high = ends
    told = interval(low, None if high is None else min(high, 1.0))
    return f" ({told})" if told else ""


def enough_checks(evidence: GateEvidence, least: int) -> list[Check]:
    """Return whether each enabled bucket rests on enough requests; too few are no verdict.

    Args:
        evidence: of the run.
        least: groups of requests.
    """
    return [_enough(rule, least) for rule in evidence.enabled]


def _enough(rule: Rule, least: int) -> Check:
    groups = rule.evidence_requests or 0
    worth = rule.effective_requests
    enough = groups >= least and worth is not None and worth >= MIN_EFFECTIVE_GROUPS
    told = f"{plural(groups, 'request')} worth {number(worth, 1)} equal ones, {least} worth "
    told += f"{MIN_EFFECTIVE_GROUPS:g} are asked"
    if rule.evidence != "own":
        told += f"; {rule.num_requests} of them its own"
    return Check(
        name="enough_requests",
        outcome="pass" if enough else "no_verdict",
        subject=rule_label(rule),
        value=float(groups),
        limit=float(least),
        text=told,
        next_step="" if enough else _MORE,
    )
