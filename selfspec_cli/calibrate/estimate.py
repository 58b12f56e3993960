"""`--dry-run`: what a calibration would do, how long it would take and how much memory.

Nothing is decoded for keeps. A few steps of the real model are timed (seconds) and multiplied
out over the stages' work; the memory is weights, cache, states and laws.
"""

from dataclasses import asdict, dataclass
from typing import Any

import psutil
import torch

from selfspec_cli.calibrate.cost_stage import cost_plan
from selfspec_cli.calibrate.observe_stage import plan_paths
from selfspec_cli.calibrate.progress import Progress
from selfspec_cli.calibrate.run import Prepared
from selfspec_cli.cost.clock import Clock
from selfspec_cli.cost.plan import CostPlan
from selfspec_cli.engine.load import LoadedModel, load_model
from selfspec_cli.engine.view import LayerView
from selfspec_cli.replay.confirm import CELLS_PER_BASELINE
from selfspec_cli.replay.observe import STATE_BYTES, PathJob
from selfspec_cli.replay.score import MAX_CHUNK, score
from selfspec_cli.replay.setting import Setting

PREFILL_PROBE = 256  # positions
SHOWN_CHARACTERS = 1200  # of the first request


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    """Seconds of the work's units on this machine."""

    prefill: float
    """A prompt token."""
    single: float
    """A plain step of one row."""
    batch: float
    """A plain step of `observe_batch` rows."""
    scored: float
    """A position at all exits."""


def estimate(prepared: Prepared, progress: Progress) -> Estimate:
    """Load the model, time a few steps and multiply out.

    Raises:
        SelfspecError: the model cannot be loaded or fails its self-check.
    """
    progress.note("loading the model and timing a few steps")
    loaded = load_model(prepared.options, prepared.tokenizer, prepared.exit_layers)
    recorded, rest = plan_paths(prepared.config, prepared.inputs.requests)
    plan = cost_plan(prepared.config, loaded.view, prepared.inputs.requests, prepared.exit_layers)
    probe = _probe(prepared, loaded)
    jobs = [*recorded, *rest]
    temperatures = {job.temperature for job in jobs}
    return Estimate(
        num_requests=len(prepared.inputs.requests),
        num_paths=len(jobs),
        num_cells=len(prepared.exit_layers) * len(prepared.draft_lengths) * len(temperatures),
        prompt_tokens=sum(job.request.prompt_tokens for job in jobs),
        output_tokens=sum(job.budget for job in jobs),
        seconds=_seconds(prepared, plan, probe, (recorded, rest)),
        peak_memory_bytes=_memory(prepared, loaded.view),
        first_request=prepared.tokenizer.decode(list(prepared.inputs.requests[0].prompt_token_ids))[
            :SHOWN_CHARACTERS
        ],
    )


def _seconds(
    prepared: Prepared,
    plan: CostPlan,
    probe: _Probe,
    jobs: tuple[list[PathJob], list[PathJob]],
) -> dict[str, float]:
    recorded, rest = jobs
    rows = prepared.config.observe_batch
    both = [*recorded, *rest]
    prompts = sum(job.request.prompt_tokens for job in both)
    outputs = sum(job.budget for job in both)
    forced = sum(job.budget for job in recorded)
    steps = sum(job.budget for job in rest) / rows
    found = {
        "observe": (prompts + forced) * probe.prefill + steps * probe.batch
        + outputs * probe.scored,
        "cost": _cost_seconds(plan, probe),
    }  # fmt: skip
    decodes = _decode_steps(prepared, both)
    name = "sweep" if prepared.config.sweep == "decode" else "confirm"
    return found | {name: decodes * probe.single}


def _cost_seconds(plan: CostPlan, probe: _Probe) -> float:
    """Blocks of passes at every m and context, and of rounds; a pass costs about a step or two."""
    passes = sum(1 + 0.15 * (m - 1) for m in plan.positions) * len(plan.contexts)
    rounds = sum(2 + one.draft_length * 0.6 for one in plan.rounds) * len(plan.laws)
    steps = len(plan.contexts) * len(plan.laws)
    blocks = plan.blocks + plan.warmup
    prefill = sum(plan.contexts) * probe.prefill * 2
    return prefill + blocks * (passes * 1.3 + rounds + steps) * probe.single


def _decode_steps(prepared: Prepared, jobs: list[PathJob]) -> float:
    """Plain steps that decoding costs: a cell that never pays takes up to 2-3 steps a token."""
    config = prepared.config
    if config.sweep == "decode":
        cells = len(prepared.exit_layers) * len(prepared.draft_lengths)
        return cells * sum(job.budget for job in jobs) * 3.5
    temperatures = sorted({job.temperature for job in jobs})
    total = 0.0
    for temperature in temperatures:
        lengths = sorted((j.budget for j in jobs if j.temperature == temperature), reverse=True)
        share = config.confirm.cells / len(temperatures)
        tokens = sum(lengths[: config.confirm.requests])
        decodes = share * (2.5 if temperature == 0 else 5.0) + share / CELLS_PER_BASELINE + 1
        total += tokens * decodes
    return total * config.confirm.repeats


def _probe(prepared: Prepared, loaded: LoadedModel) -> _Probe:
    view, clock = loaded.view, Clock.for_device(loaded.view.device)
    rows = prepared.config.observe_batch
    length = min(PREFILL_PROBE, (view.max_positions or PREFILL_PROBE + 8) - 8)
    with torch.inference_mode():
        ids = torch.zeros(1, length, dtype=torch.long, device=view.device)
        prefill = min(clock.span(lambda: _pass(view, ids)) for _ in range(2)) / length
        single, batch = (_step_seconds(view, n, length, clock) for n in (1, rows))
        setting = Setting(loaded=loaded)
        request = prepared.inputs.requests[0]
        laws = setting.laws(request, 0.7)
        n = min(MAX_CHUNK, 32)
        shape = (len(prepared.exit_layers) + 1, n, view.hidden_size)
        states = torch.randn(shape, dtype=view.dtype, device=view.device)
        scored = clock.span(lambda: score(view, states, [0] * n, [], laws)) / n
    return _Probe(prefill=prefill, single=single, batch=batch, scored=scored)


def _pass(view: LayerView, ids: torch.Tensor, cache: Any = None) -> None:
    cache = cache or view.new_cache(rows=ids.shape[0], capacity=ids.shape[1])
    hidden = view.run(view.embed(ids, cache), cache, 0, view.num_layers)
    view.head(hidden[:, -1])


def _step_seconds(view: LayerView, rows: int, context: int, clock: Clock) -> float:
    cache = view.new_cache(rows=rows, capacity=context + 8)
    _pass(view, torch.zeros(rows, context, dtype=torch.long, device=view.device), cache)
    token = torch.zeros(rows, 1, dtype=torch.long, device=view.device)
    return min(clock.span(lambda: _pass(view, token, cache)) for _ in range(4))


def _memory(prepared: Prepared, view: LayerView) -> int:
    """What the process holds now, and the largest of what the stages add to it."""
    requests, config = prepared.inputs.requests, prepared.config
    longest = max(r.prompt_tokens + r.max_tokens for r in requests)
    heads = getattr(view.config, "num_key_value_heads", view.config.num_attention_heads)
    head_dim = getattr(view.config, "head_dim", None) or (
        view.hidden_size // view.config.num_attention_heads
    )
    token = 2 * view.num_layers * heads * head_dim * view.dtype.itemsize
    cache = config.observe_batch * longest * token
    laws = 5 * MAX_CHUNK * view.vocab_size * 4
    states = STATE_BYTES
    confirm = max(r.max_tokens for r in requests) * view.vocab_size * 4
    return int(psutil.Process().memory_info().rss + max(cache + laws + states, confirm + laws))
