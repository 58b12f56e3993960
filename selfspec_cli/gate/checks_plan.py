"""Checks on what the plan says of its buckets: acceptance and how much they rest on."""

from selfspec_cli.analysis.intervals import MIN_EFFECTIVE_GROUPS
from selfspec_cli.gate.evidence import GateEvidence
from selfspec_cli.gate.verdict import Check, Outcome
from selfspec_cli.plan.document import Rule
from selfspec_cli.report.format import number, plural
from selfspec_cli.report.rule_rows import rule_label

_ROUNDING = 1e-9  # equal passes
_TRAIN = "Turn this bucket off, use a deeper exit layer, or train the model for early exit."
_MORE = "Calibrate on more requests of this bucket."


def break_even_checks(evidence: GateEvidence) -> list[Check]:
    """Return tested acceptance against the rule's own break-even, one check a bucket.

    Args:
        evidence: of the run.
    """
    return [
        _acceptance("acceptance_break_even", rule, rule.break_even_acceptance, "its break-even")
        for rule in evidence.enabled
    ]


def floor_checks(evidence: GateEvidence, floor: float) -> list[Check]:
    """Return tested acceptance of early-exit rules against a floor, one check a bucket.

    Args:
        evidence: of the run.
        floor: least acceptance, in [0, 1]; equal passes.
    """
    return [
        _acceptance("acceptance_floor", rule, floor, "the floor")
        for rule in evidence.enabled
        if rule.drafter.kind == "early_exit"
    ]


def _acceptance(name: str, rule: Rule, limit: float | None, what: str) -> Check:
    value = rule.acceptance_rate_tested
    outcome: Outcome = "no_verdict"
    if value is not None and limit is not None:
        outcome = "pass" if value >= limit - _ROUNDING else "fail"
    return Check(
        name=name,
        outcome=outcome,
        subject=rule_label(rule),
        value=value,
        limit=limit,
        text=f"tested acceptance {number(value)}, {what} is {number(limit)}",
        next_step={"pass": "", "fail": _TRAIN, "no_verdict": _MORE}[outcome],
    )


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
