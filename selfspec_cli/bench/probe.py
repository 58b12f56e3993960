"""Decode a few tokens with every arm, one request or batch: untimed to warm up, then timed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from selfspec_cli.bench.arms import AR, FORCED, GENERATE, PLAN, RIVALS
from selfspec_cli.bench.choose import Chosen, Item
from selfspec_cli.bench.estimate import Pace, Paces
from selfspec_cli.bench.measure import Bench, measure_request
from selfspec_cli.bench.measure_batch import batch_of, measure_batch
from selfspec_cli.plan.decide import Plan

WARM_TOKENS = 8
PROBE_TOKENS = 16  # of output: some rounds of every arm
_WARM_UP, _PROBE = -1, -2  # repeats of their own, whose coins no measured repeat has


def probe(bench: Bench, items: Sequence[Item], known_step_s: float | None) -> Paces:
    """Warm every arm up, then time it on one request of about the median prompt.

    First passes take longer than others, so they are not timed.

    Args:
        bench: what decodes.
        items: all that may be decoded, at least one; one with the most arms is taken.
        known_step_s: of a plain step in the plan, for a request that ends with its first token.
    """
    item = _typical(bench, items)
    measure_request(bench, _short(item, WARM_TOKENS), _WARM_UP)
    begin = bench.clock.read_ns()
    found = measure_request(bench, _short(item, PROBE_TOKENS), _PROBE)
    end = bench.clock.read_ns()
    rows = {str(row["arm"]): row for row in found.rows}
    library = _step(rows.get(GENERATE))
    return Paces(
        prompt_tokens=item.request.prompt_tokens,
        plain=_pace(rows[AR], known_step_s or 0.0),
        drafted=_drafted(rows, known_step_s or 0.0),
        rivals={arm: _pace(rows[arm], library or 0.0) for arm in RIVALS if arm in rows},
        overhead_s=max(0.0, (end - begin) * 1e-9 - _decodes(rows)),
    )


def probe_steps(
    bench: Bench, decider: Plan, chosen: Chosen, sizes: Sequence[int], alone_s: float
) -> dict[int, float]:
    """Time a short batch of each size; returns its plain step over that of one row.

    Args:
        bench: what decodes.
        decider: the plan.
        chosen: all that may be decoded; a bucket with enough requests is taken.
        sizes: batch sizes above 1; those that no bucket fills are left out.
        alone_s: plain step of one row.
    """
    found = {}
    for size in sizes:
        full = [items for items in chosen.by_bucket().values() if len(items) >= size]
        if not full or not alone_s:
            continue
        batch = batch_of(decider, [_short(item, PROBE_TOKENS) for item in full[0][:size]], size)
        if batch is not None and (step := _step(measure_batch(bench, batch, _PROBE).rows[0])):
            found[size] = step * size / alone_s
    return found


def _typical(bench: Bench, items: Sequence[Item]) -> Item:
    """Of the requests with the most arms one with about the median prompt; ties by place."""
    middle = median(item.request.prompt_tokens for item in items)

    def badness(item: Item) -> tuple[int, int, float]:
        library = bench.library_decodes(item)
        ours = (item.plan is not None) + (item.forced is not None)
        return (-int(library), -int(ours > 0), abs(item.request.prompt_tokens - middle))

    return min(items, key=badness)


def _short(item: Item, tokens: int) -> Item:
    request = item.request
    return replace(item, request=replace(request, max_tokens=min(request.max_tokens, tokens)))


def _pace(row: Mapping[str, Any], otherwise: float) -> Pace:
    step = _step(row)
    return Pace(float(row["prefill_seconds"]), otherwise if step is None else step)


def _step(row: Mapping[str, Any] | None) -> float | None:
    """Seconds a token; None where nothing was decoded after the first."""
    if row is None or row["committed"] < 1:
        return None
    return float(row["seconds"] / row["committed"])


def _drafted(rows: Mapping[str, Mapping[str, Any]], otherwise: float) -> Pace:
    """Of the slowest of our arms that drafted, else as plain decoding."""
    own = [rows[arm] for arm in (PLAN, FORCED) if arm in rows and rows[arm]["draft_length"]]
    paces = [_pace(row, otherwise) for row in own] or [_pace(rows[AR], otherwise)]
    return max(paces, key=lambda one: one.token_s)


def _decodes(rows: Mapping[str, Mapping[str, Any]]) -> float:
    """Seconds of all decodes and prompts of the probe; plain decoding ran twice."""
    ours = [float(row["seconds"]) for arm, row in rows.items() if arm not in RIVALS]
    library = [float(row["request_seconds"]) for arm, row in rows.items() if arm in RIVALS]
    plain = rows[AR]
    return float(plain["prefill_seconds"]) + float(plain["seconds"]) + sum(ours) + sum(library)
