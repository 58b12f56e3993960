"""The walk's rounds against rounds of the real decoder, cell by cell, with broken twins.

The walk sees only paths that the target wrote; the decoder drafts, verifies and rolls back. Their
rounds per committed token must agree within 4 standard errors in every cell, and predictions from
the closed form, from one pooled coin or from beta must not pass the same test.
"""

import functools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from checkpoints import random_model
from replay_helpers import coins_of, requests, setting_of, two_moods, view_of

from selfspec_cli.analysis.closed_form import tokens_per_round
from selfspec_cli.analysis.confirmation import rounds_z
from selfspec_cli.analysis.walk import walk
from selfspec_cli.engine.decoder import decode_speculative
from selfspec_cli.replay.observe import PathJob, observe

LIMIT = 4.0  # standard errors; two-sided 6.3e-5 a cell where they are normal
LENGTHS = (1, 2, 4, 8)
MOODY_LENGTHS = (1, 2, 4)  # where the twins are furthest off
BUDGET = 24  # output tokens
VOCAB = 32
TEMPERATURES = (0.7, 1.0)

# After token 0 the draft is nearly right and mostly leads back to 0; after 1 it is nearly always
# wrong. Token 1 itself is drafted too rarely, so a rejection foretells the next one.
TARGET = [[0.8, 0.2, 0.0], [0.9, 0.1, 0.0], [0.5, 0.5, 0.0]]
DRAFT = [[0.99, 0.01, 0.0], [0.02, 0.02, 0.96], [0.5, 0.5, 0.0]]


@functools.cache
def perturbed():
    model = random_model("gpt2", vocab_size=VOCAB, num_attention_heads=1, gain=16.0)
    return setting_of(view_of(model), seed=4)


@functools.cache
def moods():
    return setting_of(two_moods(TARGET, DRAFT), eos=None, seed=4)


def observed(setting, wanted, temperature):
    """Paths of all requests at every exit, a hundred rows at a time."""
    exits = range(1, setting.loaded.view.num_layers)
    jobs = [PathJob(request=r, temperature=temperature, source="regenerated") for r in wanted]
    batches = [jobs[at : at + 100] for at in range(0, len(jobs), 100)]
    return [path for batch in batches for path in observe(setting, batch, tuple(exits))]


def decoded(setting, wanted, temperature, exit_layer, draft_length):
    """Rounds and committed tokens of a free decode of each request."""
    rows = []
    for one in wanted:
        key = ("free", exit_layer, draft_length)
        policy = setting.policy(one, temperature, *key, max_draft=draft_length)
        state, rounds = decode_speculative(
            setting.loaded.view, setting.job(one), policy, exit_layer, draft_length
        )
        rows.append({"rounds": len(rounds), "committed": len(state.output) - 1})
    return pd.DataFrame(rows)


def score(predicted: pd.DataFrame, real: pd.DataFrame) -> float:
    """Difference in standard errors over requests; request i of both is the same prompt."""
    z = rounds_z(predicted["rounds"], predicted["committed"], real["rounds"], real["committed"])
    assert z is not None
    return z


def of_cell(table, exit_layer, draft_length):
    rows = (table["exit_layer"] == exit_layer) & (table["draft_length"] == draft_length)
    return table.loc[rows].reset_index(drop=True)


def coins_in_range(paths, exits):
    """Mean and standard deviation of r_t at each exit, over all paths."""
    r = np.concatenate([path.scores.accept_given_path[:, 1:] for path in paths], axis=1)
    return [(float(r[row].mean()), float(r[row].std())) for row in range(len(exits))]


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_rounds_of_every_cell_agree_with_the_decoder(temperature):
    """A perturbed model with EOS inside rounds: 3 exits, 4 draft lengths, 40 requests a cell.

    False alarm: 12 cells at 4 standard errors of 40 requests, below 12 x 2.8e-4 = 0.4 % by the
    t law with 39 degrees; seeded, so it either always passes or never.
    """
    setting, exits = perturbed(), (1, 2, 3)
    wanted = requests(40, BUDGET, tokens=(3, VOCAB))
    paths = observed(setting, wanted, temperature)
    for mean, spread in coins_in_range(paths, exits):
        assert 0.3 <= mean <= 0.9, f"mean r {mean}"
        assert spread >= 0.2, f"standard deviation of r {spread}"
    assert sum(path.finish == "eos" for path in paths) >= 5, "no EOS, so no cut rounds"
    table = walk(coins_of(paths, 3), exits, LENGTHS)
    scores = {
        (layer, k): score(of_cell(table, layer, k), decoded(setting, wanted, temperature, layer, k))
        for layer in exits
        for k in LENGTHS
    }
    told = {cell: round(z, 2) for cell, z in scores.items()}
    assert max(map(abs, scores.values())) <= LIMIT, told
    spread = float(np.sqrt(np.mean(np.square(list(scores.values())))))
    assert 0.4 < spread < 1.8, f"z-scores are not of size 1: {told}"


@pytest.fixture(scope="module")
def moody_cells():
    """Paths and real decodes of the two-moods model: 180 requests a draft length, T = 1."""
    setting = moods()
    wanted = requests(180, BUDGET, tokens=(0, 2))
    paths = observed(setting, wanted, 1.0)
    return paths, {k: decoded(setting, wanted, 1.0, 1, k) for k in MOODY_LENGTHS}


def z_scores(table, cells):
    return {k: round(score(of_cell(table, 1, k), cells[k]), 2) for k in MOODY_LENGTHS}


def test_rounds_agree_where_one_rejection_foretells_the_next(moody_cells):
    """False alarm: 3 cells at 4 standard errors of 180 requests, below 3 x 1e-4."""
    paths, cells = moody_cells
    ((mean, spread),) = coins_in_range(paths, (1,))
    assert 0.3 <= mean <= 0.9, mean
    assert spread >= 0.2, spread
    scores = z_scores(walk(coins_of(paths, 1), (1,), MOODY_LENGTHS), cells)
    assert max(map(abs, scores.values())) <= LIMIT, scores


def test_beta_as_the_coin_fails(moody_cells):
    """Broken twin: the mean acceptance of a position is not the coin of the path's own token."""
    paths, cells = moody_cells
    twin = walk(coins_of(paths, 1, "accept_prob"), (1,), MOODY_LENGTHS)
    true = walk(coins_of(paths, 1), (1,), MOODY_LENGTHS)
    scores = z_scores(twin, cells)
    sums = {
        k: [of_cell(table, 1, k)["rounds"].sum() for table in (twin, true)] for k in MOODY_LENGTHS
    }
    off = {k: a / b - 1 for k, (a, b) in sums.items()}
    assert max(map(abs, scores.values())) > LIMIT, f"passes at {scores}, off by {off}"
    assert max(off.values()) < 0, f"beta should be optimistic everywhere here: {off}"


def test_the_closed_form_fails(moody_cells):
    """Broken twin: (1 - a^(k+1)) / (1 - a) tokens a round at the mean acceptance."""
    paths, cells = moody_cells
    alpha = np.mean([path.scores.accept_given_path[0, 1:].mean() for path in paths])
    true = walk(coins_of(paths, 1), (1,), MOODY_LENGTHS)
    scores = {}
    for k in MOODY_LENGTHS:
        rows = of_cell(true, 1, k)
        per_round = float(tokens_per_round(alpha, k))
        twin = rows.assign(rounds=rows["committed"] / per_round)
        scores[k] = round(score(twin, cells[k]), 2)
    assert max(map(abs, scores.values())) > LIMIT, f"passes at {scores}"


def test_one_pooled_coin_fails(moody_cells):
    """Broken twin: the walk itself, with every coin set to the mean: budgets right, law wrong."""
    paths, cells = moody_cells
    coins = coins_of(paths, 1)
    alpha = np.nanmean(np.concatenate([path.coins[:, 1:] for path in coins], axis=1))
    pooled = [replace(path, coins=np.where(np.isnan(path.coins), np.nan, alpha)) for path in coins]
    scores = z_scores(walk(pooled, (1,), MOODY_LENGTHS), cells)
    assert max(map(abs, scores.values())) > LIMIT, f"passes at {scores}"
