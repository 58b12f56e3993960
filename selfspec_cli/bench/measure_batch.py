"""Decode the requests of a bucket in batches with each of our arms, and note what each took.

Continuous refill, as a server batches: B rows, each taken by the next request when it ends. The
time is that of all requests, thinning rows at the end included, on every arm alike.
"""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from selfspec_cli.bench.arms import AR, FORCED, PLAN, batch_plan_cell
from selfspec_cli.bench.choose import Item
from selfspec_cli.bench.measure import COLUMNS, Bench, Found, bucket_columns, round_columns
from selfspec_cli.engine.exactness import Difference
from selfspec_cli.plan.decide import Plan
from selfspec_cli.replay.batched import BatchedDecode, BatchRun, decode_batched
from selfspec_cli.replay.confirm import first_difference
from selfspec_cli.replay.decode import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Requests of one bucket that are decoded side by side."""

    items: tuple[Item, ...]
    batch_size: int
    plan: Cell | None
    """What the plan gives all of them at this batch size; None is plain decoding."""
    forced: Cell | None


def batch_of(decider: Plan, items: Sequence[Item], batch_size: int) -> Batch | None:
    """Return the batch of a bucket's requests; None where they do not fill its rows.

    Args:
        decider: the plan.
        items: of one bucket.
        batch_size: rows.
    """
    if len(items) < batch_size:
        return None
    requests = [item.request for item in items]
    cell = batch_plan_cell(decider, requests, items[0].bucket.temperature, batch_size)
    return Batch(items=tuple(items), batch_size=batch_size, plan=cell, forced=items[0].forced)


def measure_batch(bench: Bench, batch: Batch, repeat: int) -> Found:
    """Decode a batch plainly, with the plan and forced in seeded order, and plainly again.

    Args:
        bench: what decodes.
        batch: the requests.
        repeat: each has coins and an order of its own.
    """
    before, peak = _decode(bench, batch, None, repeat)
    arms = [(PLAN, batch.plan), *([(FORCED, batch.forced)] if batch.forced else [])]
    key = (batch.items[0].bucket, batch.batch_size, repeat, bench.setting.seed)
    random.Random(repr(key)).shuffle(arms)
    rows, differences = [], []
    for order, (arm, cell) in enumerate(arms, start=1):
        run, weighed = _decode(bench, batch, cell, repeat)
        worst = _worst_difference(bench, batch, before, run)
        row = _row(bench, batch, (arm, cell), [run]) | {"repeat": repeat, "order": order}
        row |= {"peak_memory_bytes": weighed, "exact": _exact(batch, worst)}
        rows.append(row)
        differences += [(row, worst)] if worst is not None else []
    after, _ = _decode(bench, batch, None, repeat)
    plain = _row(bench, batch, (AR, None), [before, after])
    plain |= {"repeat": repeat, "order": 0, "peak_memory_bytes": peak}
    return Found(rows=(plain, *rows), differences=tuple(differences))


def _decode(
    bench: Bench, batch: Batch, cell: Cell | None, repeat: int
) -> tuple[BatchedDecode, int | None]:
    setting, longest = bench.setting, cell.draft_length if cell else 0
    requests = [item.request for item in batch.items]
    temperature = batch.items[0].bucket.temperature
    jobs = [setting.job(request) for request in requests]
    policies = [
        setting.policy(request, temperature, cell, repeat, max_draft=longest)
        for request in requests
    ]
    run = BatchRun(batch_size=batch.batch_size, schedule="refill", cell=cell)
    positions = max(one.prompt_tokens + one.max_tokens for one in requests) + longest
    return bench.memory.watch(
        lambda: decode_batched(setting.loaded.view, jobs, policies, run, bench.clock),
        bench.memory.reckoned(batch.batch_size, positions),
    )


def _row(
    bench: Bench,
    batch: Batch,
    arm: tuple[str, Cell | None],
    made: Sequence[BatchedDecode],
) -> dict[str, Any]:
    """A row of a whole batch: sums over its requests; no request's own time is known."""
    name, cell = arm
    prefill = statistics.fmean(one.prefill_seconds for one in made)
    seconds = statistics.fmean(one.seconds for one in made)
    rounds = [one for own in made[0].rounds for one in own]
    return dict.fromkeys(COLUMNS) | {
        **bucket_columns(batch.items[0]),
        "batch_size": batch.batch_size,
        "arm": name,
        "prompt_tokens": sum(item.request.prompt_tokens for item in batch.items),
        "committed": made[0].num_committed,
        "prefill_seconds": prefill,
        "seconds": seconds,
        "request_seconds": prefill + seconds,
        **round_columns(cell, rounds),
        "engine": bench.engine,
    }


def _exact(batch: Batch, worst: Difference | None) -> bool | None:
    return None if batch.items[0].bucket.temperature > 0 else worst is None


def _worst_difference(
    bench: Bench, batch: Batch, plain: BatchedDecode, run: BatchedDecode
) -> Difference | None:
    """Of all requests at T = 0 the difference that rounding explains least; None without any."""
    if batch.items[0].bucket.temperature > 0:
        return None
    outputs = zip(batch.items, plain.tokens, run.tokens, strict=True)
    found = [
        one
        for item, own, other in outputs
        if (one := first_difference(bench.setting, item.request, own, other)) is not None
    ]
    return max(found, key=lambda one: one.top2_gap - one.tolerance, default=None)
