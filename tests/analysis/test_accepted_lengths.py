"""Histograms of accepted lengths and the rule for two peaks."""

import numpy as np
import pandas as pd
import pytest

from selfspec_cli.analysis.accepted_lengths import accepted_lengths
from selfspec_cli.analysis.walk import PathCoins, walk


def walked(coins_by_group, k=4):
    """Walk rows at one cell; one path a group."""
    paths = [
        PathCoins(
            path_id=f"p{at}", request_id=f"r{at}", group_id=f"g{at}", temperature=0.7,
            prompt_tokens=10, budget=len(coins), coins=np.array([coins], dtype=float),
        )
        for at, coins in enumerate(coins_by_group)
    ]  # fmt: skip
    for path in paths:
        path.coins[:, 0] = np.nan
    return walk(paths, [2], [k])


def test_shares_by_hand():
    """Certain acceptance of a long path: every full round accepts all k = 2."""
    found = accepted_lengths(walked([np.ones(31)] * 3, k=2))
    assert found.share == pytest.approx([0.0, 0.0, 1.0])
    assert found.constant == pytest.approx([0.0, 0.0, 1.0])
    assert not found.two_peaks


def test_nothing_walked_is_none():
    assert accepted_lengths(walked([np.ones(1)] * 3)) is None
    assert accepted_lengths(pd.DataFrame(columns=walked([np.ones(3)]).columns)) is None


def test_constant_acceptance_is_its_own_expectation():
    """Equal coins everywhere: observed shares are those of constant acceptance up to the ends."""
    found = accepted_lengths(walked([np.full(400, 0.7)] * 10))
    assert np.abs(found.share - found.constant).max() < 0.01, (found.share, found.constant)
    assert found.share[0] > found.share[1], "two local maxima,"
    assert found.share[-1] > found.share[-2], "and yet no warning:"
    assert not found.two_peaks


def test_constant_acceptance_is_rarely_accused():
    """200 simulated buckets of constant acceptance with sampled coins: no false alarm is expected
    (both ends 3 standard errors high at once, below 1e-5 each); one is allowed."""
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(200):
        alpha = rng.uniform(0.5, 0.9)
        coins = [(rng.random(60) < alpha).astype(float) for _ in range(12)]
        alarms += accepted_lengths(walked(coins)).two_peaks
    assert alarms <= 1, f"{alarms} of 200 healthy buckets accused"


def test_a_mixture_has_two_peaks():
    """Half the requests accept nearly everything, half nearly nothing: seen in 50 of 50."""
    rng = np.random.default_rng(6)
    seen = 0
    for _ in range(50):
        coins = [
            (rng.random(60) < (0.95 if group % 2 else 0.1)).astype(float) for group in range(24)
        ]
        seen += accepted_lengths(walked(coins)).two_peaks
    assert seen == 50, f"{seen} of 50 mixtures seen"


def test_few_groups_and_short_drafts_never_warn():
    mixed = [np.full(60, 0.97 if group % 2 else 0.05) for group in range(24)]
    assert accepted_lengths(walked(mixed)).two_peaks
    assert not accepted_lengths(walked(mixed[:6])).two_peaks, "six groups say nothing of a shape"
    assert not accepted_lengths(walked(mixed, k=1)).two_peaks, "k = 1 has no middle"


def test_interval_needs_two_groups():
    assert np.isnan(accepted_lengths(walked([np.full(40, 0.5)])).low).all()
    found = accepted_lengths(walked([np.full(40, 0.4), np.full(40, 0.6), np.full(40, 0.5)]))
    assert (found.low <= found.share).all()
    assert (found.share <= found.high).all()
    assert found.low.min() >= 0
    assert found.high.max() <= 1
