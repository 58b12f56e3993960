"""A few seconds of the real model, from which `--dry-run` multiplies out what a run would take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch

from selfspec_cli.cost.build import build_tasks
from selfspec_cli.cost.clock import Clock
from selfspec_cli.cost.measure import MIN_SAMPLE_S, repeats_for, sample
from selfspec_cli.cost.parts import Task
from selfspec_cli.cost.plan import ROUND_TURNS, CostPlan, WholeRound
from selfspec_cli.engine.decoder import Decoder, Job
from selfspec_cli.engine.view import LayerView
from selfspec_cli.records import PreparedRequest
from selfspec_cli.replay.decode import Cell, decode
from selfspec_cli.replay.score import score
from selfspec_cli.replay.setting import Setting

CONTEXT = 256  # prompt positions of a probe at most
TOKENS = 12  # decoded after x_0 for each law and cell
STEPS = 6  # batch steps timed
POSITIONS = 32  # scored at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Seconds of the work's units on this machine."""

    prefill: float
    """A prompt token."""
    batch: float
    """A plain step of all rows that are observed together."""
    scored: Mapping[bool, float]
    """An output position at all exits, by whether the law is greedy."""
    plain: Mapping[bool, float]
    """A token of plain decoding, by whether the law is greedy."""
    speculative: Mapping[bool, float]
    """A committed token of a middling cell, by whether the law is greedy."""
    block: float
    """One block of the cost stage, prompts' prefill aside."""
    whole_round: float
    """One timed whole round of the base batch size, restoring included, mean over the plan's."""


def take_probe(
    setting: Setting,
    request: PreparedRequest,
    plan: CostPlan,
    temperatures: Sequence[float],
    rows: int,
) -> Probe:
    """Time every kind of work once or a few times.

    Args:
        setting: the loaded model.
        request: one of the run's, whose prompt and sampling stand for all.
        plan: of the cost stage.
        temperatures: those of the run's paths.
        rows: paths observed together.
    """
    view = setting.loaded.view
    clock = Clock.for_device(view.device)
    limit = view.max_positions or CONTEXT * 2
    longest = max(1, min(CONTEXT, limit - TOKENS - plan.max_draft - 2))
    short = replace(request, prompt_token_ids=request.prompt_token_ids[-longest:])
    plain, speculative = {}, {}
    for greedy, temperature in {t == 0.0: t for t in temperatures}.items():
        plain[greedy], speculative[greedy] = _decode(setting, short, plan, temperature, clock)
    block, whole_round = _cost_block(view, plan, clock)
    scored = {
        greedy: _scored(setting, short, plan, 0.0 if greedy else 0.7, clock) for greedy in plain
    }
    with torch.inference_mode():
        return Probe(
            prefill=_prefill(view, longest, clock),
            batch=_batch_step(view, rows, longest, clock),
            scored=scored,
            plain=plain,
            speculative=speculative,
            block=block,
            whole_round=whole_round,
        )


def _decode(
    setting: Setting, request: PreparedRequest, plan: CostPlan, temperature: float, clock: Clock
) -> tuple[float, float]:
    """Seconds a token, decoded plainly and in rounds at the middle exit, shortest and longest k."""
    job = Job(prompt=request.prompt_token_ids, budget=TOKENS + 1)  # no EOS: all are committed
    layer = plan.exit_layers[len(plan.exit_layers) // 2]
    cells = [Cell(layer, k) for k in {plan.draft_lengths[0], plan.max_draft}]
    state = Decoder(
        setting.loaded.view, job, setting.policy(request, temperature), max_draft=plan.max_draft
    )
    state.prefill()

    def seconds(cell: Cell | None) -> float:
        k = cell.draft_length if cell else 0
        policy = setting.policy(request, temperature, "probe", cell, max_draft=k)
        return decode(state, policy, cell, clock).seconds / TOKENS

    seconds(None)  # warm
    return seconds(None), fmean(seconds(cell) for cell in cells)


def _cost_block(view: LayerView, plan: CostPlan, clock: Clock) -> tuple[float, float]:
    """Seconds of one block, timed at the shortest context, and of one whole round of the base."""
    first = plan.contexts[0]
    rounds = _probe_rounds(plan, first)
    tasks = build_tasks(view, replace(plan, contexts=(first,), rounds=rounds), 0)
    times: dict[int, list[tuple[Task, float]]] = {batch: [] for batch in plan.batch_sizes}
    with torch.inference_mode():
        for task in tasks:
            if task.blocks is None:
                times[task.batch].append((task, _sample_seconds(task, clock)))
    base = plan.batch_sizes[0]
    return sum(_block(plan, batch, own) for batch, own in times.items()), _round(times[base])


def _probe_rounds(plan: CostPlan, context: int) -> tuple[WholeRound, ...]:
    """The plan's rounds at one context; of larger batches, whose rounds take long, the first."""
    found = dict.fromkeys(replace(one, context=context) for one in plan.rounds)
    base = plan.batch_sizes[0]
    first = {one.batch: one for one in reversed(found)}
    return tuple(one for one in found if one.batch == base or first[one.batch] is one)


def _block(plan: CostPlan, batch: int, times: Sequence[tuple[Task, float]]) -> float:
    """Seconds that one block spends on a batch size."""
    parts = [(task, seconds) for task, seconds in times if task.part != "round"]
    again = sum(seconds for task, seconds in parts if task.context)
    once = sum(seconds for task, seconds in parts if not task.context)
    rounds = sum(one.batch == batch for one in plan.rounds) * len(plan.laws)
    share = 1.0 if batch == 1 else 1.0 / ROUND_TURNS
    whole = _round(times) * rounds * share
    return once + again * len(plan.contexts_at(batch)) + whole


def _round(times: Sequence[tuple[Task, float]]) -> float:
    whole = [seconds for task, seconds in times if task.part == "round"]
    return fmean(whole) if whole else 0.0


def _sample_seconds(task: Task, clock: Clock) -> float:
    """What a sample of a task takes: short tasks are repeated inside it."""
    sample(task, 1, clock)
    once = sample(task, 1, clock)
    return max(once * repeats_for(once), MIN_SAMPLE_S)


def _prefill(view: LayerView, length: int, clock: Clock) -> float:
    ids = torch.zeros(1, length, dtype=torch.long, device=view.device)
    return clock.span(lambda: _pass(view, ids), 2) / 2 / length


def _batch_step(view: LayerView, rows: int, context: int, clock: Clock) -> float:
    cache = view.new_cache(rows=rows, capacity=context + STEPS + 1)
    _pass(view, torch.zeros(rows, context, dtype=torch.long, device=view.device), cache)
    token = torch.zeros(rows, 1, dtype=torch.long, device=view.device)
    _pass(view, token, cache)
    view.ready(cache, range(view.num_layers), 1, context + STEPS)
    return clock.span(lambda: _pass(view, token, cache), STEPS) / STEPS


def _pass(view: LayerView, ids: torch.Tensor, cache: Any = None) -> None:
    cache = cache or view.new_cache(rows=ids.shape[0], capacity=ids.shape[1])
    hidden = view.run(view.embed(ids, cache), cache, 0, view.num_layers)
    view.head(hidden[:, -1])


@torch.inference_mode()
def _scored(
    setting: Setting, request: PreparedRequest, plan: CostPlan, temperature: float, clock: Clock
) -> float:
    """Half of the exits agree: where one does not, greedy scoring is done with it sooner."""
    view = setting.loaded.view
    laws = setting.laws(request, temperature)
    num_exits = len(plan.exit_layers)
    shape = (num_exits + 1, POSITIONS, view.hidden_size)
    states = torch.randn(shape, dtype=view.dtype, device=view.device)
    states[num_exits // 2 :] = states[-1]
    tokens = [0] * POSITIONS
    score(view, states, tokens, [], laws)
    return clock.span(lambda: score(view, states, tokens, [], laws)) / POSITIONS
