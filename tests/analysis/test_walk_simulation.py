"""The path walk against genuine rejection sampling on a three-token Markov law.

The simulator drafts from q, verifies with p/q and draws from the residual: it never sees a path or
a coin. Each comparison allows 4 standard errors of the difference, a false alarm of about 6e-5;
seeds are fixed, so a failure is never noise that comes and goes.
"""

import numpy as np
import pytest
from analysis_helpers import make_path

from selfspec_cli.analysis.closed_form import tokens_per_round
from selfspec_cli.analysis.sample_walks import sample_walks
from selfspec_cli.analysis.walk import walk

# Rows: previous token. Accepting is easy after 1 and hard after 2, and what q proposes in state 2
# leads back to the easy state: rounds start on the hard stretches, and coins are correlated with
# the next state. Both make the usual short cuts visibly wrong.
P = np.array([[0.05, 0.80, 0.15], [0.05, 0.75, 0.20], [0.15, 0.20, 0.65]])
Q = np.array([[0.10, 0.80, 0.10], [0.05, 0.86, 0.09], [0.05, 0.90, 0.05]])
COIN = np.minimum(1.0, Q / P)
BETA = np.minimum(P, Q).sum(axis=1)
COUNT = 6000
DRAFT_COST, VERIFY_COST, OVERHEAD = 0.4, 1.5, 0.1  # AR steps


def pick(laws, rng):
    """Draw one token a row."""
    return (rng.random((len(laws), 1)) > laws.cumsum(axis=1)[:, :-1]).sum(axis=1)


def plain_paths(budget, eos, rng, count=COUNT):
    """Ancestral samples of p that start with token 0, cut after `eos` or at the budget."""
    tokens = np.zeros((count, budget), dtype=int)
    for t in range(1, budget):
        tokens[:, t] = pick(P[tokens[:, t - 1]], rng)
    ends = (tokens == eos).argmax(axis=1) if eos is not None else np.zeros(count, dtype=int)
    return [row[: end + 1] if end else row for row, end in zip(tokens, ends, strict=True)]


def decode(budget, k, eos, rng, count=COUNT):
    """Speculative decodes by rejection sampling; returns rounds and drafted, int [count]."""
    committed = np.ones(count, dtype=int)
    last = np.zeros(count, dtype=int)
    rounds, drafted = np.zeros(count, dtype=int), np.zeros(count, dtype=int)
    alive = np.arange(count)
    while len(alive):
        tries = np.minimum(k, budget - committed[alive] - 1)
        rounds[alive] += 1
        drafted[alive] += tries
        gained, token, ended = one_round(last[alive], tries, k, eos, rng)
        committed[alive] += gained
        last[alive] = token
        alive = alive[~ended & (committed[alive] < budget)]
    return rounds, drafted


def one_round(last, tries, k, eos, rng):
    """Draft, verify, commit for many rows: (tokens gained, last token, ended by eos)."""
    prefix, open_, ended = last.copy(), np.ones(len(last), dtype=bool), np.zeros(len(last), bool)
    gained = np.zeros(len(last), dtype=int)
    state = last.copy()  # of the draft, which runs on past rejections and past eos
    for i in range(k):
        draft = pick(Q[state], rng)
        tested = open_ & (i < tries)
        accepted = tested & (rng.random(len(last)) < P[prefix, draft] / Q[prefix, draft])
        rejected = tested & ~accepted
        residual = np.maximum(0.0, P[prefix] - Q[prefix])
        recovered = pick(residual / residual.sum(axis=1, keepdims=True), rng)
        prefix = np.where(accepted, draft, np.where(rejected, recovered, prefix))
        gained += tested
        ended |= (accepted | rejected) & (prefix == eos)
        open_ &= ~rejected & ~ended
        state = draft
    bonus = pick(P[prefix], rng)
    prefix = np.where(open_, bonus, prefix)
    gained += open_
    ended |= open_ & (prefix == eos)
    return gained, prefix, ended


def walk_table(paths, budget, k, coin):
    """Walk each path with coin(previous, token) along it."""
    coins = [
        make_path(np.r_[np.nan, coin(x[:-1], x[1:])], budget=budget, name=f"p{i}")
        for i, x in enumerate(paths)
    ]
    return walk(coins, [1], [k])


def true_coin(previous, token):
    return COIN[previous, token]


def beta_coin(previous, token):
    return BETA[previous]


def sigmas(sample, expected):
    """Distance of two means in standard errors of their difference."""
    sample, expected = np.asarray(sample, float), np.asarray(expected, float)
    error = np.sqrt(sample.var() / len(sample) + expected.var() / len(expected))
    return abs(sample.mean() - expected.mean()) / error


@pytest.mark.parametrize("eos", [None, 2], ids=["length", "eos"])
@pytest.mark.parametrize("k", [1, 4, 7])
def test_walk_rounds_and_drafts_equal_rejection_sampling(k, eos):
    """Rounds and paid drafts, with EOS inside rounds and budget caps. False alarm 6e-5 each."""
    rng = np.random.default_rng(10 * k + (eos is None))
    budget = 31
    rounds, drafted = decode(budget, k, eos, rng)
    table = walk_table(plain_paths(budget, eos, rng), budget, k, true_coin)
    for name, sample in (("rounds", rounds), ("drafted", drafted)):
        off = sigmas(sample, table[name])
        message = f"{name}: decoded {sample.mean():.3f}, walked {table[name].mean():.3f}"
        assert off < 4, f"k={k}: {message}, {off:.1f} s.e. apart"


@pytest.fixture(scope="module")
def truth():
    """Decoded rounds and drafted tokens, and paths, of the setting in which twins are judged."""
    rng = np.random.default_rng(77)
    budget, k = 31, 4
    rounds, drafted = decode(budget, k, None, rng)
    return rounds, drafted, plain_paths(budget, None, rng), budget, k


def seconds_of(table):
    return DRAFT_COST * table["drafted"] + (VERIFY_COST + OVERHEAD) * table["rounds"]


def test_walk_seconds_equal_decoded_seconds(truth):
    """False alarm 6e-5."""
    rounds, drafted, paths, budget, k = truth
    decoded = DRAFT_COST * drafted + (VERIFY_COST + OVERHEAD) * rounds
    table = walk_table(paths, budget, k, true_coin)
    off = sigmas(decoded, seconds_of(table))
    assert off < 4, (
        f"decoded {decoded.mean():.2f}, walked {seconds_of(table).mean():.2f}: {off:.1f}"
    )


def test_twin_closed_form_with_true_mean_alpha_fails(truth):
    """Broken twin: rounds from one pooled α; the same tolerance must reject it."""
    rounds, _, paths, budget, k = truth
    alpha = np.mean([BETA[x[:-1]].mean() for x in paths])
    twin = (budget - 1) / tokens_per_round(alpha, k)
    off = sigmas(rounds, np.full(len(rounds), twin))
    assert off > 8, f"decoded {rounds.mean():.2f}, closed form {twin:.2f}: only {off:.1f} s.e."


def test_twin_beta_as_coin_fails(truth):
    """Broken twin: β has the right mean at each position and still is no coin of the walk."""
    rounds, _, paths, budget, k = truth
    twin = walk_table(paths, budget, k, beta_coin)["rounds"]
    off = sigmas(rounds, twin)
    assert off > 8, f"decoded {rounds.mean():.2f}, β walked {twin.mean():.2f}: only {off:.1f} s.e."


def test_twin_alpha_in_the_cost_of_a_round_fails(truth):
    """Broken twin: pays for α k drafts a round instead of the k that were made."""
    rounds, drafted, paths, budget, k = truth
    decoded = DRAFT_COST * drafted + (VERIFY_COST + OVERHEAD) * rounds
    table = walk_table(paths, budget, k, true_coin)
    alpha = np.mean([BETA[x[:-1]].mean() for x in paths])
    twin = table["rounds"] * (alpha * k * DRAFT_COST + VERIFY_COST + OVERHEAD)
    off = sigmas(decoded, twin)
    assert off > 8, f"decoded {decoded.mean():.2f}, twin {twin.mean():.2f}: only {off:.1f} s.e."


@pytest.mark.parametrize(("n", "budget"), [(30, 30), (30, 33), (2, 2), (1, 5)])
def test_sample_walks_average_equals_walk(n, budget):
    """Coin-sampled walks have the walk's expectations; 4 s.e., false alarm 6e-5 each."""
    rng = np.random.default_rng(n + budget)
    coins = rng.beta(0.8, 0.5, size=n)
    drawn = sample_walks(coins, budget=budget, draft_length=5, num_walks=20_000, rng=rng)
    row = walk([make_path(coins, budget=budget)], [1], [5]).iloc[0]
    for name in ("rounds", "drafted", "accepted"):
        sample = getattr(drawn, name)
        margin = 4 * sample.std() / np.sqrt(len(sample)) + 1e-9
        assert abs(sample.mean() - row[name]) < margin, f"{name}: {sample.mean()} vs {row[name]}"


def test_sample_walks_of_certain_coins_do_not_vary():
    drawn = sample_walks(
        np.ones(40), budget=40, draft_length=4, num_walks=50, rng=np.random.default_rng(0)
    )
    assert set(drawn.rounds) == {8}


def test_sample_walks_missing_coin_is_refused():
    with pytest.raises(ValueError, match="missing"):
        sample_walks(
            np.array([np.nan, 0.5, np.nan]),
            budget=3,
            draft_length=2,
            num_walks=5,
            rng=np.random.default_rng(0),
        )
