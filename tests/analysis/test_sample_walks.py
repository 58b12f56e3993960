"""Sampled walks: their seconds and starts against the exact walk and by hand."""

import numpy as np
import pytest
from analysis_helpers import make_path, make_surface

from selfspec_cli.analysis.sample_walks import sample_walks
from selfspec_cli.analysis.walk import walk
from selfspec_cli.errors import ShapeError


def sampled(coins, *, k=2, budget=None, walks=1, seconds=None, seed=0):
    return sample_walks(
        np.asarray(coins, dtype=float),
        budget=budget or len(coins),
        draft_length=k,
        num_walks=walks,
        rng=np.random.default_rng(seed),
        round_seconds=seconds,
    )


def test_certain_coins_by_hand():
    """k = 2: a round at 1 accepts 2 and 3 follows as bonus; at 4 the first draft is rejected, at 5
    one draft is left by the budget and accepted."""
    found = sampled([np.nan, 1, 1, 1, 0, 1, 1], seconds=np.array([0, 1, 10, 100, 1e3, 1e4, 1e5]))
    assert np.flatnonzero(found.starts).tolist() == [1, 4, 5]
    assert found.starts.sum() == found.rounds.sum() == 3
    assert found.drafted.tolist() == [2 + 2 + 1]
    assert found.accepted.tolist() == [2 + 0 + 1]
    assert found.seconds.tolist() == [1 + 1e3 + 1e4]


def test_seconds_are_missing_where_rounds_have_none():
    assert sampled([np.nan, 1, 0]).seconds is None


def test_a_path_of_one_token_takes_no_time():
    found = sampled([np.nan], walks=3, seconds=np.zeros(1))
    assert found.seconds.tolist() == [0.0, 0.0, 0.0]
    assert found.starts.tolist() == [0]


def test_seconds_of_another_length_are_refused():
    with pytest.raises(ShapeError, match="3 tokens"):
        sampled([np.nan, 1, 0], seconds=np.zeros(2))


@pytest.mark.parametrize(("k", "budget"), [(1, 40), (3, 40), (6, 47)])
def test_mean_seconds_and_starts_are_those_of_the_walk(k, budget):
    """20000 walks; 4.5 standard errors, a false alarm of 7e-6 a check; seeds are fixed."""
    rng = np.random.default_rng(k)
    coins = np.append(np.nan, rng.beta(1.0, 0.7, 39))
    path, surface = make_path(coins, budget=budget), make_surface()
    row = walk([path], [3], [k], surface).iloc[0]
    starts = np.arange(1, 40)
    drafted = np.minimum(k, budget - starts - 1)
    seconds = surface.round_seconds([3], drafted, path.prompt_tokens + starts - 1)[0]
    found = sampled(coins, k=k, budget=budget, walks=20_000, seconds=np.append(0.0, seconds))
    for name, values in (("seconds", found.seconds), ("rounds", found.rounds)):
        error = values.std() / np.sqrt(len(values))
        gap = values.mean() - row[name]
        assert abs(gap) < 4.5 * error, f"{name}: {values.mean():.4f}, walk {row[name]:.4f}"
    assert found.starts.sum() == found.rounds.sum()
    assert found.starts[1:] @ seconds == pytest.approx(found.seconds.sum(), rel=1e-9)
