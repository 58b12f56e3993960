"""Findings about batch size: where the gain ends, and what was never measured."""

from collections.abc import Iterator

from selfspec_cli.plan.batch_text import other_best
from selfspec_cli.plan.document import AtBatch, Rule
from selfspec_cli.report.finding_types import Evidence, Finding, scope
from selfspec_cli.report.format import ratio
from selfspec_cli.report.rule_rows import by_traffic, rule_label


def fades_with_batch(evidence: Evidence) -> Iterator[Finding]:
    """Rules that are on and stop paying at a batch size that was measured."""
    found = [
        (rule, entry)
        for rule in by_traffic(evidence.plan.rules)
        if (entry := _first_beyond(rule)) is not None and entry.check == "fail"
    ]
    if found:
        rule, entry = found[0]
        yield Finding(
            code="fades_with_batch",
            symptom="The gain vanishes as the batch grows.",
            evidence=f"{scope([one for one, _ in found])}. {rule_label(rule)}: pays up to batch "
            f"{rule.max_batch}; at {entry.batch_size} {entry.reason}.",
            cause="A larger batch leaves less idle arithmetic, so drafted tokens that are refused "
            "cost time that other requests would have used.",
            remedy=f"Ask the plan with the batch size at hand; speculate at low load only."
            f"{_other(rule, entry)}",
        )


def _first_beyond(rule: Rule) -> AtBatch | None:
    """The smallest measured batch size at which a rule that is on does not hold."""
    if rule.max_batch is None:
        return None
    beyond = [entry for entry in rule.by_batch if entry.batch_size > rule.max_batch]
    return beyond[0] if beyond else None


def _other(rule: Rule, entry: AtBatch) -> str:
    """What another cell would bring at that size, where it would bring anything."""
    best = other_best(rule, entry)
    if best is None or (best.speedup.low or 0.0) <= 1.0:
        return ""
    return (
        f" At batch {entry.batch_size} L={best.exit_layer}, k={best.draft_length} "
        f"would bring {ratio(best.speedup.estimate)} on the requests it was chosen on."
    )


def one_batch(evidence: Evidence) -> Iterator[Finding]:
    """A plan that knows one batch size says nothing of a server that runs others."""
    plan = evidence.plan
    if plan.rules and len(plan.batch_sizes) == 1:
        size = plan.batch_sizes[0]
        yield Finding(
            code="one_batch_size",
            symptom="Only one batch size was measured.",
            evidence=f"Measured at batch {size} only; at any other size every rule is off.",
            cause="The run was given one batch size.",
            remedy="Measure those that your server runs, for example --batch-size 1,4,8.",
        )
