"""Confirm predictions on one observed path: every cell decoded for real, beside plain decoding.

All runs of a path share one prefill and one cache. Plain decoding is timed again after every few
cells, and a cell is compared with the mean of the plain runs around it, so a machine that drifts
slows both sides alike.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from selfspec_cli.analysis.confirm_choice import CELLS_PER_BASELINE
from selfspec_cli.analysis.repeats import compare_repeats
from selfspec_cli.cost.clock import Clock, Stopwatch
from selfspec_cli.engine.decoder import Decoder, Job
from selfspec_cli.engine.exactness import Difference, compare_outputs, plain_gap
from selfspec_cli.engine.policies import Policy
from selfspec_cli.records import PreparedRequest
from selfspec_cli.replay.decode import Cell, Decoded, decode, round_totals
from selfspec_cli.replay.scripted import Script, ScriptedPolicy, draw_coins, path_laws
from selfspec_cli.replay.setting import Setting, derive_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmPath:
    """An observed path to decode again."""

    path_id: str
    request: PreparedRequest
    temperature: float
    tokens: tuple[int, ...]
    budget: int
    accept_given_path: Mapping[int, Sequence[float]]
    """r_t [n] by exit layer; entry 0 is unused. Not read at temperature 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """One path on the bench: its decoding state and the laws its scripts draw from."""

    setting: Setting
    path: ConfirmPath
    state: Decoder
    target_laws: torch.Tensor | None
    """None at temperature 0."""

    def policy(self, cell: Cell | None, repeat: int, *, free: bool = False) -> Policy:
        """As `path_policy`; or free to write what it draws."""
        path = self.path
        if not free:
            return path_policy(self.setting, path, self.target_laws, cell, repeat)
        key, max_draft = (cell, repeat, "free"), cell.draft_length if cell else 0
        return self.setting.policy(path.request, path.temperature, *key, max_draft=max_draft)


def path_policy(
    setting: Setting,
    path: ConfirmPath,
    target_laws: torch.Tensor | None,
    cell: Cell | None,
    repeat: int,
) -> Policy:
    """Greedy at T = 0; at T > 0 a policy that writes the path, with the repeat's own coins.

    Args:
        setting: model and choices.
        path: what is decoded again.
        target_laws: of `path_target_laws`; None at T = 0.
        cell: what is decoded with, None for plain decoding.
        repeat: each has coins of its own.
    """
    max_draft = cell.draft_length if cell else 0
    key = (cell, repeat, "script")
    if path.temperature == 0:
        return setting.policy(path.request, path.temperature, *key, max_draft=max_draft)
    seed = derive_seed(setting.seed, path.path_id, *key)
    accepted = (
        draw_coins(path.accept_given_path[cell.exit_layer], seed)
        if cell
        else (False,) * len(path.tokens)
    )
    script = Script(tokens=path.tokens, accepted=accepted, target_laws=target_laws)
    laws = setting.laws(path.request, path.temperature)
    return ScriptedPolicy(laws, script, seed + 1, max_draft=max_draft, view=setting.loaded.view)


def path_target_laws(setting: Setting, path: ConfirmPath) -> torch.Tensor | None:
    """Return p along the path, float32 [n, V], to draw rejected drafts; None at T = 0."""
    if path.temperature == 0:
        return None
    processing = setting.laws(path.request, path.temperature)
    return path_laws(setting, path.request.prompt_token_ids, path.tokens, processing)


def path_job(setting: Setting, path: ConfirmPath) -> Job:
    """What to decode: the request; at T > 0 it ends where the path does."""
    job = setting.job(path.request, path.budget)
    if path.temperature == 0:
        return job
    return replace(job, stopped=_stops_at_end(path.tokens, job.stopped))


def confirm_path(
    setting: Setting,
    path: ConfirmPath,
    cells: Sequence[Cell],
    repeats: int = 1,
    clock: Stopwatch | None = None,
) -> list[dict[str, Any]]:
    """Decode every cell on a path, interleaved with plain decoding.

    Returns:
        One row a (cell, repeat) with the measured columns of confirm.csv: seconds, counts, the
        free decode's counts and its repeated n-grams beside the path's at T > 0, and whether the
        output equals the plain one at T = 0.
    """
    bench = _prepare(setting, path, max(cell.draft_length for cell in cells))
    clock = clock or Clock.for_device(setting.loaded.view.device)
    prefill_seconds = clock.span(bench.state.prefill)
    if path.temperature > 0:
        bench.state.output[:] = path.tokens[:1]
    rows = []
    for repeat in range(repeats):
        order = list(cells)
        random.Random(f"{path.path_id}/{repeat}/{setting.seed}").shuffle(order)
        before = decode(bench.state, bench.policy(None, repeat), None, clock)
        for at in range(0, len(order), CELLS_PER_BASELINE):
            group = order[at : at + CELLS_PER_BASELINE]
            runs = [decode(bench.state, bench.policy(c, repeat), c, clock) for c in group]
            after = decode(bench.state, bench.policy(None, repeat), None, clock)
            for cell, run in zip(group, runs, strict=True):
                row = _row(bench, cell, run, (before, after))
                rows.append(row | _free(bench, cell, repeat, clock) | {"repeat": repeat})
            before = after
    return [row | {"prefill_seconds": prefill_seconds} for row in rows]


def _prepare(setting: Setting, path: ConfirmPath, max_draft: int) -> _Bench:
    policy = setting.policy(path.request, path.temperature)
    job = path_job(setting, path)
    state = Decoder(setting.loaded.view, job, policy, max_draft=max_draft)
    laws = path_target_laws(setting, path)
    return _Bench(setting=setting, path=path, state=state, target_laws=laws)


def _stops_at_end(
    tokens: tuple[int, ...], stopped: Callable[[Sequence[int]], bool] | None
) -> Callable[[Sequence[int]], bool]:
    """Stop where the path ends too: a log leaves the stop string out of its text."""

    def at_end(output: Sequence[int]) -> bool:
        if len(output) == len(tokens) and tuple(output) == tokens:
            return True
        return stopped is not None and stopped(output)

    return at_end


def _row(
    bench: _Bench, cell: Cell, run: Decoded, around: tuple[Decoded, Decoded]
) -> dict[str, Any]:
    path = bench.path
    return {
        "path_id": path.path_id,
        "request_id": path.request.request_id,
        "group_id": path.request.group_id,
        "temperature": path.temperature,
        "exit_layer": cell.exit_layer,
        "draft_length": cell.draft_length,
        "prompt_tokens": path.request.prompt_tokens,
        "committed": run.num_committed,
        "ar_seconds": (around[0].seconds + around[1].seconds) / 2,
        "seconds": run.seconds,
        **round_totals(run.rounds),
        "round_drafted": [r.num_drafted for r in run.rounds],
        "round_contexts": [r.context for r in run.rounds],
        **exactness_columns(bench.setting, path.request, path.temperature, around[0], run),
    }


def exactness_columns(
    setting: Setting, request: PreparedRequest, temperature: float, plain: Decoded, run: Decoded
) -> dict[str, Any]:
    """Equality with plain decoding at T = 0; missing at T > 0, where texts may differ by law."""
    if temperature > 0:
        return {"exact": None, "first_difference": None, "top2_gap": None, "is_tie": None}
    difference = first_difference(setting, request, plain.tokens, run.tokens)
    return {
        "exact": difference is None,
        "first_difference": difference.position if difference else None,
        "top2_gap": difference.top2_gap if difference else None,
        "is_tie": difference.is_tie if difference else None,
    }


def first_difference(
    setting: Setting, request: PreparedRequest, plain: Sequence[int], speculative: Sequence[int]
) -> Difference | None:
    """Where greedy speculative output first departs from the plain one, with the top-2 gap."""
    view, prompt = setting.loaded.view, request.prompt_token_ids
    target = setting.laws(request, 0.0).target
    return compare_outputs(
        plain, speculative, lambda at: plain_gap(view, prompt, plain, at, target), view.dtype
    )


def _free(bench: _Bench, cell: Cell, repeat: int, clock: Stopwatch) -> dict[str, Any]:
    """Counts of a decode that writes its own text, at T > 0; rounds are confirmed by it."""
    if bench.path.temperature == 0:
        names = ("rounds", "drafted", "tested", "accepted", "committed")
        missing = ("ngrams", "free_repeated", "plain_repeated")
        return dict.fromkeys((*(f"free_{name}" for name in names), *missing))
    run = decode(bench.state, bench.policy(cell, repeat, free=True), cell, clock)
    totals = round_totals(run.rounds) | {"committed": run.num_committed}
    counts: dict[str, Any] = {f"free_{name}": value for name, value in totals.items()}
    repeats = compare_repeats(run.tokens, bench.path.tokens)
    return counts | {
        "ngrams": repeats.ngrams,
        "free_repeated": repeats.repeated,
        "plain_repeated": repeats.plain_repeated,
    }
