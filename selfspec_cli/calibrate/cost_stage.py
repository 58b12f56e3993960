"""Stage cost: time the parts over the contexts this traffic has, and judge their sum."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from selfspec_cli.analysis.costs import Costs, price
from selfspec_cli.calibrate.progress import Progress
from selfspec_cli.config import CalibrateConfig, resolve_draft_lengths
from selfspec_cli.cost.bandwidth import bandwidth_floor_seconds, read_bandwidth
from selfspec_cli.cost.clock import Clock
from selfspec_cli.cost.measure import iter_blocks
from selfspec_cli.cost.memory import fit_memory, left_out_notices
from selfspec_cli.cost.plan import CostPlan, with_default_rounds
from selfspec_cli.engine.view import LayerView
from selfspec_cli.records import PreparedRequest, Sampling
from selfspec_cli.replay.setting import temperatures_of
from selfspec_cli.storage import RunDir, read_table, write_document, write_table

STAGE = "cost"
KNOTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Contexts timed between the shortest and the longest, tokens; costs bend slowly in between."""
MIN_GAP = 1.5  # knots closer than this factor to their neighbour are left out


def cost_plan(
    config: CalibrateConfig,
    view: LayerView,
    requests: Sequence[PreparedRequest],
    exit_layers: Sequence[int],
) -> CostPlan:
    """What to time for these requests: their contexts, their laws, whole rounds, batch sizes.

    Raises:
        ConfigError: contexts do not fit the model, or the base batch size not the memory.
    """
    lengths = resolve_draft_lengths(config.draft_lengths)
    limit = view.max_positions
    top = None if limit is None else limit - lengths[-1] - 2
    contexts = (
        spread_contexts(requests, top)
        if config.cost.contexts == "auto"
        else tuple(config.cost.contexts)
    )
    plan = CostPlan(
        exit_layers=tuple(exit_layers),
        draft_lengths=tuple(lengths),
        contexts=contexts,
        laws=laws_in_use(config, requests),
        batch_sizes=config.batch_sizes,
        blocks=config.cost.blocks,
        warmup=config.cost.warmup,
    )
    plan.check(view.num_layers, limit)
    return with_default_rounds(fit_memory(view, plan))


def spread_contexts(requests: Sequence[PreparedRequest], limit: int | None) -> tuple[int, ...]:
    """Contexts from the shortest prompt to the longest prompt + output, knots between."""
    low = max(1, min(r.prompt_tokens for r in requests))
    high = max([low + 1, *(r.prompt_tokens + max(r.max_tokens, 1) for r in requests)])
    if limit is not None:
        high = min(high, limit)
    inner: list[int] = []
    for knot in KNOTS:
        if knot > MIN_GAP * (inner[-1] if inner else low) and knot * MIN_GAP < high:
            inner.append(knot)
    return tuple(sorted({low, *inner, high}))


def laws_in_use(
    config: CalibrateConfig, requests: Sequence[PreparedRequest]
) -> tuple[Sampling, ...]:
    """One sampling for each law class the requests use at the swept temperatures."""
    found: dict[str, Sampling] = {}
    for request in requests:
        for temperature in temperatures_of(request, config.temperatures):
            sampling = replace(request.sampling, temperature=temperature)
            found.setdefault(sampling.law_class, sampling)
    return tuple(found[law] for law in sorted(found))


def run_cost(
    run: RunDir, config: CalibrateConfig, view: LayerView, plan: CostPlan, progress: Progress
) -> Costs:
    """Write cost.csv (raw samples) and cost_fit.json; blocks finished earlier are kept.

    A machine that sleeps between blocks is no problem: a block is timed whole or not at all.
    """
    if not run.stage_done(STAGE):
        for notice in left_out_notices(plan):
            progress.note(notice)
        rows = time_blocks(run, STAGE, config, view, plan, progress)
        write_table(rows, run.artefact("cost.csv"))
    rows = read_table(run.artefact("cost.csv"))
    costs = price(rows, view.layer_kinds)
    if not run.stage_done(STAGE):
        write_document(costs.fit_document(), run.artefact("cost_fit.json"))
        facts = {"layer_kinds": list(view.layer_kinds), "bandwidth": bandwidth_facts(view, plan)}
        run.finish_stage(STAGE, ["cost.csv", "cost_fit.json"], **facts)
        run.clear_shards(STAGE)
    return costs


def bandwidth_facts(view: LayerView, plan: CostPlan) -> dict[str, object]:
    """Measured read bandwidth, and the floor of a plain step at each timed context (s)."""
    bandwidth = read_bandwidth(view.device, Clock.for_device(view.device))
    floors = {str(c): bandwidth_floor_seconds(view, c, bandwidth) for c in plan.contexts}
    return {"read_bytes_per_s": bandwidth, "floor_s": floors}


def time_blocks(
    run: RunDir,
    name: str,
    config: CalibrateConfig,
    view: LayerView,
    plan: CostPlan,
    progress: Progress,
) -> pd.DataFrame:
    """Time a plan's blocks, one shard a block; blocks finished earlier are kept."""
    shards = [run.shard_path(name, block) for block in range(plan.blocks)]
    start = next((at for at, shard in enumerate(shards) if not shard.exists()), plan.blocks)
    if start < plan.blocks:
        with progress.stage(name, 1.0) as stage:
            done = 0.0

            def told(samples: int, total: int) -> None:
                nonlocal done
                stage.advance(samples / total - done)
                done = samples / total

            clock = Clock.for_device(view.device)
            blocks = iter_blocks(view, plan, clock, config.seed, start_block=start, progress=told)
            for shard, frame in zip(shards[start:], blocks, strict=True):
                write_table(frame, shard)
    return pd.concat([read_table(shard) for shard in shards], ignore_index=True)
