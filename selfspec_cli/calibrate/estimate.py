"""`--dry-run`: what a calibration would do, how long it would take and how much memory.

Nothing is decoded for keeps. A few seconds of the real model are timed (`probe`) and multiplied out
over the stages' work; the memory is weights, cache, states and laws.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import psutil

from selfspec_cli.analysis.confirm_choice import auto_budget
from selfspec_cli.buckets import context_band
from selfspec_cli.calibrate.batch_confirm_cells import BATCHES, BUDGET_SHARE, PLAIN_RUNS
from selfspec_cli.calibrate.batch_confirm_cells import STAGE as BATCH_STAGE
from selfspec_cli.calibrate.batch_confirm_cells import due as batches_due
from selfspec_cli.calibrate.cost_stage import cost_plan
from selfspec_cli.calibrate.finalist_stage import MAX_CELLS
from selfspec_cli.calibrate.observe_stage import plan_paths
from selfspec_cli.calibrate.probe import Probe, take_probe
from selfspec_cli.calibrate.progress import Progress
from selfspec_cli.calibrate.run import Prepared, load
from selfspec_cli.config import CalibrateConfig, ConfirmConfig
from selfspec_cli.cost.bandwidth import position_bytes
from selfspec_cli.cost.plan import CostPlan, ends_and_middle, prefill_blocks
from selfspec_cli.engine.view import LayerView
from selfspec_cli.replay.observe import PathJob
from selfspec_cli.replay.score import MAX_CHUNK
from selfspec_cli.replay.setting import Setting
from selfspec_cli.replay.stretches import STATE_BYTES

SHOWN_CHARACTERS = 1200  # of the first request
FINALIST_CHANCE = 0.25  # that parts do not add up: rare on a quiet machine, usual on a busy one
BASELINES = 2  # plain runs of a path that up to three cells are confirmed on
WALK_SECONDS_A_ROW = 2e-4  # pricing, buckets and intervals of one (path, L, k), pandas and numpy
PLAN_SECONDS_A_ROW = 2.5e-4  # evidence and sampled walks, before and after confirmation
ANALYSIS_SECONDS = 0.4  # of walk, and of plan, however few rows: resampled costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Work, time and memory of a calibration before it is begun."""

    num_requests: int
    num_paths: int
    num_cells: int
    """(L, k, T) cells priced."""
    prompt_tokens: int
    output_tokens: int
    """At most: a path may end earlier."""
    seconds: dict[str, float]
    """By stage."""
    peak_memory_bytes: int
    """Of the process, weights included."""
    first_request: str
    """As the model will see it, template applied."""

    @property
    def minutes(self) -> float:
        """All stages together."""
        return sum(self.seconds.values()) / 60

    def to_document(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return asdict(self) | {"minutes": self.minutes}


def estimate(prepared: Prepared, progress: Progress) -> Estimate:
    """Load the model, time a few steps and multiply out.

    Raises:
        SelfspecError: the model cannot be loaded or fails its self-check.
    """
    progress.note("loading the model and timing a few steps")
    begin = time.monotonic()
    loaded = load(prepared, progress)
    load_seconds = time.monotonic() - begin
    requests, config = prepared.inputs.requests, prepared.config
    recorded, rest = plan_paths(config, requests)
    jobs = [*recorded, *rest]
    temperatures = sorted({job.temperature for job in jobs})
    plan = cost_plan(config, loaded.view, requests, prepared.exit_layers)
    setting = Setting(loaded=loaded, draft_truncation=config.draft_truncation)
    observed = replace(plan, exit_layers=prepared.observed_layers)
    probe = take_probe(setting, requests[0], observed, temperatures, config.observe_batch)
    num_cells = len(prepared.observed_layers) * len(prepared.draft_lengths)
    seconds = {
        "load": load_seconds,
        "observe": _observe_seconds(probe, recorded, rest, config.observe_batch),
        "cost": _cost_seconds(plan, probe),
        "walk": ANALYSIS_SECONDS + len(jobs) * num_cells * WALK_SECONDS_A_ROW,
        "plan": ANALYSIS_SECONDS + len(jobs) * num_cells * PLAN_SECONDS_A_ROW,
    }
    decoding = _sweep_seconds if config.sweep == "decode" else _confirm_seconds
    seconds[_decoding_name(prepared)] = sum(
        decoding(prepared, probe, [job for job in jobs if job.temperature == temperature])
        for temperature in temperatures
    )
    if "confirm" in seconds:
        budget = config.confirm.budget_s
        spent = seconds["observe"] + seconds["cost"]
        limit = auto_budget(spent) if budget == "auto" else float(budget)
        seconds["confirm"] = min(seconds["confirm"], limit)
        if batches_due(config):
            needed = _batch_seconds(config, probe, jobs)
            seconds[BATCH_STAGE] = min(needed, BUDGET_SHARE * limit)
    return Estimate(
        num_requests=len(requests),
        num_paths=len(jobs),
        num_cells=num_cells * len(temperatures),
        prompt_tokens=sum(job.request.prompt_tokens for job in jobs),
        output_tokens=sum(job.budget for job in jobs),
        seconds=seconds,
        peak_memory_bytes=_memory(prepared, loaded.view, plan),
        first_request=prepared.tokenizer.decode(list(requests[0].prompt_token_ids))[
            :SHOWN_CHARACTERS
        ],
    )


def _decoding_name(prepared: Prepared) -> str:
    return "sweep" if prepared.config.sweep == "decode" else "confirm"


def _observe_seconds(
    probe: Probe, recorded: Sequence[PathJob], rest: Sequence[PathJob], rows: int
) -> float:
    both = [*recorded, *rest]
    # A prompt is run once for all temperatures that are regenerated together.
    together = {job.request.request_id: job.request.prompt_tokens for job in rest}
    prompts = sum(job.request.prompt_tokens for job in recorded) + sum(together.values())
    forced = sum(job.budget for job in recorded)
    budgets = sorted((job.budget for job in rest), reverse=True)
    steps = sum(budgets[::rows])  # a batch lasts as long as its longest row
    scored = sum(job.budget * probe.scored[job.temperature == 0.0] for job in both)
    return (prompts + forced) * probe.prefill + steps * probe.batch + scored


def _cost_seconds(plan: CostPlan, probe: Probe) -> float:
    """Blocks, warm-up, prompts and filled caches; the finalists timed whole, by their chance."""
    blocks = plan.blocks + plan.warmup + 1  # the first warm-up runs every task up to three times
    prefill = sum(plan.contexts) * probe.prefill
    cells = min(MAX_CELLS, len(plan.exit_layers) * len(plan.draft_lengths))
    contexts = ends_and_middle(plan.contexts_at(plan.batch_sizes[0]))
    rounds = cells * len(contexts) * len(plan.laws)
    finalists = rounds * probe.whole_round * blocks + prefill
    prompts = sum(context * prefill_blocks(context) for context in plan.contexts) * probe.prefill
    return blocks * probe.block + prefill + prompts + FINALIST_CHANCE * finalists


def _confirm_seconds(prepared: Prepared, probe: Probe, jobs: Sequence[PathJob]) -> float:
    """Cells of the largest buckets on requests of their own; at T > 0 also decoded freely.

    The largest bucket has three cells, the others one; which temperature it has is not known, so
    its two more are shared out.
    """
    confirm = prepared.config.confirm
    own = _by_bucket(prepared, jobs)
    share = confirm.cells / max(1, _num_temperatures(prepared))
    cells = min(share, len(own) + 2 / max(1, _num_temperatures(prepared)))
    if not own or cells == 0:
        return 0.0
    largest = own[: max(1, round(cells))]
    tokens = fmean(_confirm_tokens(confirm, bucket) for bucket in largest) * confirm.repeats
    greedy = {job.temperature for job in jobs} == {0.0}
    decodes = cells * (1 if greedy else 2) * probe.speculative[greedy]
    plain = min(cells, len(own)) * BASELINES * probe.plain[greedy]
    return tokens * (decodes + plain)


def _batch_seconds(config: CalibrateConfig, probe: Probe, jobs: Sequence[PathJob]) -> float:
    """One cell a temperature at every size, both schedules: plain steps and about as long rounds.

    A step of other rows than those observed together is taken to grow with them.
    """
    temperatures = {job.temperature for job in jobs}
    paths = len(jobs) / len(temperatures)
    runs = 2 * (PLAIN_RUNS + 1) * config.confirm.repeats
    steps = runs * fmean(job.budget for job in jobs) * probe.batch / config.observe_batch
    rows = sum(min(BATCHES * size, paths) for size in config.batch_sizes if 1 < size <= paths)
    return len(temperatures) * rows * steps


def _by_bucket(prepared: Prepared, jobs: Sequence[PathJob]) -> list[list[PathJob]]:
    """Jobs with anything to draft by task and context band, largest output first."""
    found: dict[object, list[PathJob]] = {}
    for job in jobs:
        band = context_band(job.request.prompt_tokens, prepared.config.context_edges)
        if job.budget > 1:
            found.setdefault((job.request.task, band), []).append(job)
    return sorted(found.values(), key=lambda own: -sum(job.budget for job in own))


def _confirm_tokens(confirm: ConfirmConfig, jobs: Sequence[PathJob]) -> float:
    """Output tokens that a cell decodes in one bucket."""
    long = [job.budget for job in jobs if job.budget >= confirm.min_tokens]
    groups = len({job.request.group_id for job in jobs})
    return fmean(long or [job.budget for job in jobs]) * min(confirm.requests, groups)


def _num_temperatures(prepared: Prepared) -> int:
    recorded, rest = plan_paths(prepared.config, prepared.inputs.requests)
    return len({job.temperature for job in (*recorded, *rest)})


def _sweep_seconds(prepared: Prepared, probe: Probe, jobs: Sequence[PathJob]) -> float:
    """Every cell on every request, each beside plain decoding and after its own prefill."""
    cells = len(prepared.exit_layers) * len(prepared.draft_lengths)
    tokens = sum(job.budget for job in jobs)
    prompts = sum(job.request.prompt_tokens for job in jobs)
    greedy = {job.temperature for job in jobs} == {0.0}
    each = probe.speculative[greedy] + probe.plain[greedy]
    return cells * (tokens * each + prompts * probe.prefill)


def _memory(prepared: Prepared, view: LayerView, plan: CostPlan) -> int:
    """What the process holds now, and the largest of what the stages add to it."""
    requests, config = prepared.inputs.requests, prepared.config
    longest = max(r.prompt_tokens + r.max_tokens for r in requests)
    token = sum(position_bytes(view))
    cache = config.observe_batch * longest * token
    laws = 5 * MAX_CHUNK * view.vocab_size * 4
    confirm = max(r.max_tokens for r in requests) * view.vocab_size * 4
    added = max(cache + laws + STATE_BYTES, confirm + laws, plan.batch_tokens() * token)
    return int(psutil.Process().memory_info().rss + added)
