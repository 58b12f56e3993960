"""Observation and walk on every family: at temperature 0 predicted rounds are the decoded ones.

Greedy coins are 0 or 1, so nothing is left to chance: the walk's rounds, drafted, accepted and
committed tokens of one observed pass must equal the decoder's own, cell by cell. Above 0 the coins
are compared with laws of the library's own forward of the checkpoint cut to L layers.
"""

import numpy as np
import pytest
import torch
from tiny import NAMES, N, damped_view, prompts

from selfspec_cli.analysis.walk import PathCoins, walk
from selfspec_cli.engine.decoder import decode_speculative
from selfspec_cli.engine.load import LoadedModel
from selfspec_cli.engine.selfcheck import truncated_model
from selfspec_cli.records import PreparedRequest, Sampling
from selfspec_cli.replay.observe import ObservedPath, PathJob, observe
from selfspec_cli.replay.setting import Setting

EXITS = tuple(range(1, N))
LENGTHS = (1, 3, 8)
BUDGET = 20
PROMPTS = [prompts(range(n, n + 1), seed=n)[0] for n in (5, 9)]  # about the window of 8


def _setting(name: str) -> Setting:
    loaded = LoadedModel(
        view=damped_view(name, 3, 0.3),  # drafts are accepted often, not always
        tokenizer=None,
        eos_ids=frozenset(),
        self_check_error=0.0,
        notices=(),
        folder="",
    )
    return Setting(loaded=loaded)


def _request(number: int, prompt: tuple[int, ...]) -> PreparedRequest:
    return PreparedRequest(
        request_id=f"r{number}",
        group_id=f"g{number}",
        task="t",
        prompt_token_ids=prompt,
        completion_token_ids=None,
        finish="unknown",
        temperature=None,
        sampling=Sampling(),
        max_tokens=BUDGET,
        stop=(),
        content_hash="",
        source="",
    )


def _observed(setting: Setting, temperature: float) -> list[ObservedPath]:
    requests = [_request(i, prompt) for i, prompt in enumerate(PROMPTS)]
    jobs = [PathJob(request=r, temperature=temperature, source="regenerated") for r in requests]
    return observe(setting, jobs, EXITS)


def _coins(path: ObservedPath, late: int = 0) -> PathCoins:
    """The walk's view of a path; `late` shifts the coins along it, for the broken twin."""
    coins = np.roll(path.scores.accept_given_path.astype(np.float64), late, axis=1)
    coins[:, 0] = np.nan
    coins[:, 1:] = np.nan_to_num(coins[:, 1:])
    return PathCoins(
        path_id=path.job.path_id,
        request_id=path.job.request.request_id,
        group_id=path.job.request.group_id,
        temperature=path.job.temperature,
        prompt_tokens=path.job.request.prompt_tokens,
        budget=BUDGET,
        coins=coins,
    )


def _decoded(setting: Setting, path: ObservedPath, exit_layer: int, k: int) -> tuple[int, ...]:
    """Rounds, drafted and accepted tokens of real decoding of the path's request."""
    request = path.job.request
    state, rounds = decode_speculative(
        setting.loaded.view, setting.job(request), setting.policy(request, 0.0), exit_layer, k
    )
    assert tuple(state.output) == path.tokens
    return (len(rounds), *(sum(r[i] for r in map(_counts, rounds)) for i in (0, 1)))


def _counts(made) -> tuple[int, int]:
    return made.num_drafted, made.num_accepted


def _predicted(paths: list[PathCoins]) -> dict[tuple[str, int, int], tuple[float, ...]]:
    table = walk(paths, EXITS, LENGTHS)
    columns = ("rounds", "drafted", "accepted")
    return {
        (row.path_id, row.exit_layer, row.draft_length): tuple(getattr(row, c) for c in columns)
        for row in table.itertuples()
    }


@pytest.mark.parametrize("name", NAMES)
def test_walked_rounds_are_the_decoded_ones(name):
    setting = _setting(name)
    paths = _observed(setting, 0.0)
    predicted = _predicted([_coins(path) for path in paths])
    shifted = _predicted([_coins(path, late=1) for path in paths])
    wrong, told = [], 0
    for i, path in enumerate(paths):
        for exit_layer in EXITS:
            for k in LENGTHS[i::2]:
                cell = (path.job.path_id, exit_layer, k)
                real = _decoded(setting, path, exit_layer, k)
                if not np.allclose(predicted[cell], real, atol=1e-9):
                    wrong.append(f"{cell}: walked {predicted[cell]}, decoded {real}")
                told += not np.allclose(shifted[cell], real, atol=1e-9)
    assert not wrong, f"{len(wrong)} cells: {wrong[:3]}"
    assert told >= 2, f"coins one position late change {told} cells only: the test sees little"


@pytest.mark.parametrize("name", NAMES)
def test_coins_are_those_of_the_librarys_own_logits(name):
    """r of every exit, from float64 laws of separate cache-free forwards; prompt of 9, T = 0.8."""
    setting = _setting(name)
    path = _observed(setting, 0.8)[1]
    ids = torch.tensor([[*path.job.request.prompt_token_ids, *path.tokens]])
    laws = {}
    with torch.inference_mode():
        for depth in (*EXITS, N):
            logits = truncated_model(setting.loaded.view, depth)(input_ids=ids).logits[0]
            laws[depth] = (logits[8:-1].double() / 0.8).softmax(-1)  # [n, V]
    at, tokens = torch.arange(BUDGET), torch.tensor(path.tokens)
    for row, exit_layer in enumerate(EXITS):
        r = (laws[exit_layer][at, tokens] / laws[N][at, tokens]).clamp(max=1)
        gap = np.abs(path.scores.accept_given_path[row] - r.numpy())
        assert gap.max() < 1e-4, f"exit {exit_layer}: {gap.max():.3g} at position {gap.argmax()}"
