"""Batches of neighbours in acceptance against random ones."""

import numpy as np
import pytest
from analysis_helpers import make_path
from batch_helpers import LinearCosts

from selfspec_cli.analysis.batch_groups import grouping_gain
from selfspec_cli.analysis.batch_pools import BatchSampling
from selfspec_cli.errors import CostRangeError

COSTS = {"sampled": LinearCosts()}


class OneSecond:
    """Every pass takes a second."""

    def round_seconds(self, exit_layer, draft_length, contexts, rows):
        return np.ones(len(rows))

    def ar_seconds(self, contexts, rows):
        return np.ones(len(rows))


def gain(paths, size=4, k=3, costs=COSTS, **sampling):
    return grouping_gain(paths, (3, k), [3], costs, BatchSampling(batch_size=size, **sampling))


def flat(rates, lengths):
    """One request a rate: the same coin at every position, budgets that never bind."""
    return [
        make_path(np.full(n, rate), budget=n + 9, name=f"p{i:03d}")
        for i, (rate, n) in enumerate(zip(rates, lengths, strict=True))
    ]


def test_certain_coins_by_hand():
    """Six requests take 12 rounds, six take 3. Neighbours in pairs: 3 batches of 12 passes and 3
    of 3. At random a batch is spared 9 passes if both its rows are quick: 6/12 · 5/11 of them."""
    found = gain(flat([0.0, 1.0] * 6, [13] * 12), 2, costs={"sampled": OneSecond()},
                 num_batches=12_000)  # fmt: skip
    assert found.num_pools == 2000
    assert found.pool_requests == 12
    assert found.seconds_per_token_grouped == pytest.approx((3 * 12 + 3 * 3) / 144, rel=1e-12)
    expected = (12 - 9 * 6 / 12 * 5 / 11) / 7.5
    assert found.ratio_se < 0.005 * expected
    # A false alarm of 7e-6.
    assert abs(found.ratio - expected) < 4.5 * found.ratio_se, f"{found.ratio:.4f}, {expected:.4f}"
    assert found.waiting_share_grouped == 0.0
    assert found.waiting_share_random > 0.2
    assert found.refill_ratio == 1.0


def test_requests_alike_gain_nothing():
    """Acceptance that differs in the sixth digit: sorting is another shuffle, so the gain is within
    4.5 standard errors of none, a false alarm of 7e-6. Equal acceptance keeps the shuffle."""
    alike = gain(flat(0.6 + 1e-6 * np.arange(24), [40] * 24), num_batches=1200)
    assert alike.ratio_se > 0
    assert abs(alike.ratio - 1) < 4.5 * alike.ratio_se, f"{alike.ratio:.4f} ± {alike.ratio_se:.4f}"
    assert gain(flat([0.6] * 24, [40] * 24)).ratio == 1.0


def test_unlike_acceptance_gains_and_shorter_waits():
    rates = np.linspace(0.05, 0.95, 48)
    found = gain(flat(rates, [60] * 48), 8)
    assert found.ratio > 1 + 10 * found.ratio_se, f"{found.ratio:.3f} ± {found.ratio_se:.4f}"
    assert found.ratio > 1.15, found.ratio
    assert found.waiting_share_grouped < 0.6 * found.waiting_share_random


def test_lengths_still_decide_who_waits():
    """Acceptance that says nothing about length leaves most of the waiting where it was."""
    rng = np.random.default_rng(3)
    found = gain(flat(rng.permutation(np.linspace(0.4, 0.8, 48)), rng.integers(5, 120, 48)), 8)
    assert found.waiting_share_random > 0.3
    assert found.waiting_share_grouped > 0.7 * found.waiting_share_random, found


def test_same_requests_and_coins_both_ways():
    """Whole batches in a pool of two: each row has its own rounds whichever way it is put, so
    row-rounds agree; only who shares a batch differs."""
    found = gain(flat(np.linspace(0.2, 0.9, 8), [30] * 8), 4, costs={"sampled": OneSecond()})
    used_random = (1 - found.waiting_share_random) * found.seconds_per_token_random
    used_grouped = (1 - found.waiting_share_grouped) * found.seconds_per_token_grouped
    assert used_random == pytest.approx(used_grouped, rel=1e-12)
    assert found.ratio == pytest.approx(
        found.seconds_per_token_random / found.seconds_per_token_grouped, rel=1e-9
    )


def test_too_few_requests_to_choose_from_is_missing():
    found = gain(flat([0.2, 0.8] * 3, [9] * 6), 4)
    assert (found.num_pools, found.pool_requests) == (0, 0)
    for name in ("ratio", "ratio_se", "seconds_per_token_random", "waiting_share_grouped"):
        assert getattr(found, name) is None, name


def test_a_law_that_was_not_timed_is_refused():
    with pytest.raises(CostRangeError, match="sampled"):
        gain(flat([0.5] * 8, [9] * 8), 2, costs={})
