"""A rule at every measured batch size: does it still hold, and up to which size (METHOD.md §4-5).

Evidence at a batch size is the base's own, priced again: each group of requests keeps the cell that
was chosen without it at the base batch size, so nothing is chosen on what it is scored with.
"""

from dataclasses import dataclass

from selfspec_cli.analysis.batch_costs import BatchCosts
from selfspec_cli.analysis.batch_groups import GroupingGain, grouping_gain
from selfspec_cli.analysis.batch_pools import BatchSampling
from selfspec_cli.analysis.batching import StaticBatches, static_batches
from selfspec_cli.analysis.costs import Costs
from selfspec_cli.analysis.evidence import BucketTimes, Cell, choose_cell, score
from selfspec_cli.analysis.intervals import RatioInterval
from selfspec_cli.plan import text
from selfspec_cli.plan.document import AtBatch, BestAtBatch, Check, Interval, Rule
from selfspec_cli.plan.inputs import PlanInputs
from selfspec_cli.plan.judgement import Judge, passes
from selfspec_cli.plan.pools import Pool, fixed_cell

DECODED_BATCH = 1  # requests that a confirming decode runs together
NUM_BATCHES = 200  # static batches drawn for each rule and size


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Whose rule it is, and on whose evidence."""

    own: Pool
    """The bucket: its costs of static batches, and its veto."""
    pool: Pool
    """Whose evidence the rule rests on; the bucket's own or a parent's."""
    cell: Cell
    """(L, k) of the rule."""
    crossfitted: bool = True
    """Whether the evidence is out of fold; else that of `cell`, as decodes moved the rule there."""


def by_batch(subject: Subject, judge: Judge, inputs: PlanInputs) -> list[AtBatch]:
    """Return a rule at every measured batch size, ascending; the base is the first."""
    return [_at(subject, size, judge, inputs) for size in inputs.costs.batch_sizes]


def max_batch(rule: Rule) -> int | None:
    """Return the largest measured batch size up to which a rule holds at every measured one.

    A size that fails ends it, whatever larger ones say: a batch grows and shrinks through all of
    them. None where the rule is off.
    """
    if not rule.enabled:
        return None
    held = None
    for entry in rule.by_batch:
        if entry.check != "pass":
            break
        held = entry.batch_size
    return held


def _at(subject: Subject, size: int, judge: Judge, inputs: PlanInputs) -> AtBatch:
    priced = subject.pool.at_batch.get(size)
    found = None if priced is None else _evidence(subject, priced.times)
    check, reason = _check(subject, found, size, judge)
    static, grouping = _static(subject, size, inputs)
    return AtBatch(
        batch_size=size,
        check=check,
        speedup=Interval() if found is None else text.to_interval(found),
        static_speedup=None if static is None else static.speedup,
        waiting_share=None if static is None else static.waiting_share,
        grouping_gain=None if grouping is None else grouping.ratio,
        best=None if priced is None else _best(priced.times),
        reason=reason,
    )


def _evidence(subject: Subject, times: BucketTimes) -> RatioInterval:
    if subject.crossfitted:
        return score(times, subject.pool.evidence.group_cells)
    return fixed_cell(times, subject.cell)


def _check(
    subject: Subject, found: RatioInterval | None, size: int, judge: Judge
) -> tuple[Check, str]:
    """Whether the rule would hold at a batch size, asked as at the base; and a clause on it."""
    if found is None or size not in subject.own.at_batch:
        return "no_verdict", "there is no verdict: such contexts or drafts were not timed there"
    silent = judge.silence(found, subject.pool.laws, size)
    if silent is not None:
        return "no_verdict", f"there is no verdict: {silent}"
    told = f"it measures {text.times(text.to_interval(found))}"
    if not passes(found.low, judge.settings.threshold):
        return "fail", told
    against = _against(subject, size, judge)
    return ("pass", told) if against is None else ("fail", f"{told}, but {against}")


def _against(subject: Subject, size: int, judge: Judge) -> str | None:
    """The veto of a thin bucket's own requests, and the tail; None where both hold."""
    if subject.pool is not subject.own:
        mine = fixed_cell(subject.own.at_batch[size].times, subject.cell).estimate
        if mine is None or mine < 1.0:
            return f"this bucket's own requests reach {text.number(mine)} with that cell"
    return judge.slow(judge.tail(subject.pool, subject.cell, size))


def _best(times: BucketTimes) -> BestAtBatch | None:
    used = times.decoding()
    at = choose_cell(used)
    if at is None:
        return None
    layer, k = used.cells[at]
    speedup = text.to_interval(fixed_cell(times, (layer, k)))
    return BestAtBatch(exit_layer=layer, draft_length=k, speedup=speedup)


def _static(
    subject: Subject, size: int, inputs: PlanInputs
) -> tuple[StaticBatches | None, GroupingGain | None]:
    """Static batches of the bucket's own requests, at random and of like acceptance.

    A batch of one row waits for nobody. A larger one shrinks row by row, so it needs costs of every
    size below it too: where the smallest measured batch is not 1, its numbers are missing.
    """
    if size == 1:
        return None, None
    paths = [path for path in inputs.coins if path.path_id in subject.own.path_ids]
    asked = (paths, subject.cell, inputs.observed_layers, _pass_costs(inputs.costs))
    sampling = BatchSampling(batch_size=size, num_batches=NUM_BATCHES, seed=inputs.seed)
    return static_batches(*asked, sampling), grouping_gain(*asked, sampling)


def _pass_costs(costs: Costs) -> dict[str, BatchCosts]:
    """By law class, costs of any number of rows between the measured ones."""
    laws = {law for surfaces in costs.by_batch.values() for law in surfaces}
    return {
        law: BatchCosts(
            surfaces={size: found[law] for size, found in costs.by_batch.items() if law in found}
        )
        for law in laws
    }
