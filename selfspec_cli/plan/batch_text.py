"""Batch sizes of a plan in words, the same in every command."""

from collections import Counter
from collections.abc import Iterable, Sequence

from selfspec_cli.plan import text
from selfspec_cli.plan.document import AtBatch, BestAtBatch, PlanDocument, Rule


def batches_sentence(plan: PlanDocument) -> str:
    """Return what batch size does to a plan: one sentence, small letter first, no full stop."""
    sizes = plan.batch_sizes
    if len(sizes) == 1:
        return measured_only(sizes)
    measured = f"measured at {', '.join(str(size) for size in sizes)}"
    held = Counter(rule.max_batch for rule in plan.rules if rule.max_batch is not None)
    if not held:
        return f"no rule is on at batch {sizes[0]}, where rules are decided; {measured}"
    told = [f"batch {size} in {text.count(held[size], 'bucket')}" for size in sorted(held)]
    return f"speculation pays up to {', up to '.join(told)}; {measured}"


def other_best(rule: Rule, entry: AtBatch) -> BestAtBatch | None:
    """Return what another cell would bring at a batch size; None where the rule's own is best."""
    best, own = entry.best, (rule.drafter.exit_layer, rule.draft.length)
    return None if best is None or (best.exit_layer, best.draft_length) == own else best


def measured_only(sizes: Sequence[int]) -> str:
    """Return the notice of a plan that knows one batch size."""
    return f"measured at batch {sizes[0]} only: at any other size all rules are off"


def explain_batches(rule: Rule) -> Iterable[str]:
    """Yield sentences on a rule at each measured batch size, with every number."""
    if not rule.by_batch:
        return
    parts = "; ".join(_at(rule, entry) for entry in rule.by_batch)
    yield f"By batch size, refilled: {parts}."
    if rule.max_batch is not None:
        yield f"Pays up to batch {rule.max_batch}."


def _at(rule: Rule, entry: AtBatch) -> str:
    told = f"{entry.batch_size}: {text.times(entry.speedup)} ({entry.check.replace('_', ' ')})"
    if entry.static_speedup is not None:
        told += f", static {entry.static_speedup:.2f}x"
    if entry.waiting_share is not None:
        told += f" with {text.percent(entry.waiting_share)} of row time waiting"
    if entry.grouping_gain is not None:
        told += f" and {entry.grouping_gain:.2f}x from grouping like acceptance"
    best = other_best(rule, entry)
    if best is not None:
        cell = text.cell((best.exit_layer, best.draft_length))
        told += f", best there {cell} at {text.times(best.speedup)} in-sample"
    return told
