"""Acceptance rates by their denominators, on logs small enough to check by hand."""

import numpy as np
import pytest
from analysis_helpers import make_path, random_paths

from selfspec_cli.analysis.acceptance import (
    AcceptanceCounts,
    accept_at_cond,
    accept_at_joint,
    acceptance_rate_drafted,
    acceptance_rate_tested,
    block_efficiency,
    mean_accepted_tokens,
    tokens_per_round,
)
from selfspec_cli.analysis.walk import walk
from selfspec_cli.records import Round


def log(accepted_counts, k):
    """Rounds far from any end: all k drafted, one token more than accepted is committed."""
    return [
        Round(
            num_drafted=k,
            num_tested=min(a + 1, k),
            num_accepted=a,
            num_committed=a + 1,
            context=10,
        )
        for a in accepted_counts
    ]


def test_four_rounds_by_hand_b03():
    """CASES B03: accepted 3, 1, 0, 2 at k = 3."""
    counts = AcceptanceCounts.from_rounds(log([3, 1, 0, 2], 3), 3)
    assert accept_at_joint(counts) == pytest.approx([3 / 4, 2 / 4, 1 / 4])
    assert accept_at_cond(counts) == pytest.approx([3 / 4, 2 / 3, 1 / 2])
    assert acceptance_rate_drafted(counts) == pytest.approx(6 / 12)
    assert acceptance_rate_tested(counts) == pytest.approx(6 / 9)
    assert tokens_per_round(counts) == pytest.approx(2.5)
    assert block_efficiency(counts) == pytest.approx(2.5)
    assert mean_accepted_tokens(counts) == pytest.approx(1.5)


def geometric_log(alpha, k, rounds, seed):
    rng = np.random.default_rng(seed)
    flags = rng.random((rounds, k)) < alpha
    return log(np.cumprod(flags, axis=1).sum(axis=1).tolist(), k)


@pytest.mark.parametrize(("k", "tokens", "drafted"), [(4, 3.3616, 0.5904), (8, 4.3289, 0.4161)])
def test_constant_acceptance_three_numbers_b01(k, tokens, drafted):
    """CASES B01: tested 0.8 at both k while the drafted rate falls. 40,000 rounds: the standard
    errors are below 0.013, 0.003 and 0.002; 4.5 of them are a false alarm of 7e-6 each."""
    counts = AcceptanceCounts.from_rounds(geometric_log(0.8, k, 40_000, seed=k), k)
    assert acceptance_rate_tested(counts) == pytest.approx(0.8, abs=0.008)
    assert block_efficiency(counts) == pytest.approx(tokens, abs=0.06)
    assert acceptance_rate_drafted(counts) == pytest.approx(drafted, abs=0.01)


def test_twin_accepted_over_accepted_is_always_one():
    """Broken twin: the "rate" that divides accepted by accepted cannot tell 0.2 from 0.8."""
    for alpha in (0.2, 0.8):
        counts = AcceptanceCounts.from_rounds(geometric_log(alpha, 4, 20_000, seed=1), 4)
        twin = counts.accepted / sum(one for one in [counts.accepted])
        assert twin == 1.0
        assert abs(twin - alpha) > 0.19
        assert acceptance_rate_tested(counts) == pytest.approx(alpha, abs=0.02)


def test_twin_mean_of_drafts_accepted_anywhere_overstates():
    """Broken twin: summing an acceptance mask counts tokens after a rejection."""
    flags = np.array([[1, 0, 1, 1], [0, 1, 1, 1]])
    counts = AcceptanceCounts.from_rounds(log(np.cumprod(flags, axis=1).sum(axis=1), 4), 4)
    assert acceptance_rate_drafted(counts) == pytest.approx(1 / 8)
    assert flags.sum() / flags.size == 0.75


def test_no_rounds_every_rate_is_missing_b11():
    """CASES B11: nothing drafted is null, not 0 and not 1."""
    counts = AcceptanceCounts.from_rounds([], 3)
    assert acceptance_rate_tested(counts) is None
    assert acceptance_rate_drafted(counts) is None
    assert block_efficiency(counts) is None
    assert tokens_per_round(counts) is None
    assert accept_at_joint(counts) == [None] * 3
    assert accept_at_cond(counts) == [None] * 3


def test_plain_step_rounds_draft_nothing_and_have_no_rate():
    rounds = [Round(num_drafted=0, num_tested=0, num_accepted=0, num_committed=1, context=5)]
    counts = AcceptanceCounts.from_rounds(rounds, 2)
    assert acceptance_rate_tested(counts) is None
    assert block_efficiency(counts) == 1.0


def test_conditional_rate_after_nothing_reached_is_missing():
    counts = AcceptanceCounts.from_rounds(log([0, 0], 3), 3)
    assert accept_at_joint(counts) == [0.0, 0.0, 0.0]
    assert accept_at_cond(counts) == [0.0, None, None]


def test_walk_rows_pool_as_ratio_of_sums():
    table = walk(random_paths(9), [2, 3, 4, 5], [4])
    rows = table.loc[table["exit_layer"] == 3]
    counts = AcceptanceCounts.from_walk(rows)
    assert acceptance_rate_tested(counts) == pytest.approx(
        rows["accepted"].sum() / rows["tested"].sum()
    )
    assert sum(counts.rounds_by_accepted) == pytest.approx(counts.rounds, rel=1e-12)
    joint = accept_at_joint(counts)
    assert sum(joint) * counts.rounds == pytest.approx(counts.accepted, rel=1e-9)
    assert joint == sorted(joint, reverse=True), joint


def test_walk_of_constant_coins_has_that_tested_rate():
    """Coins of 0.8 everywhere and no EOS: tested rate 0.8 exactly, for every k."""
    table = walk([make_path(np.full(60, 0.8))], [2], [1, 4, 8])
    for k in (1, 4, 8):
        counts = AcceptanceCounts.from_walk(table.loc[table["draft_length"] == k])
        assert acceptance_rate_tested(counts) == pytest.approx(0.8, abs=1e-12)


def test_rows_of_several_draft_lengths_are_refused():
    with pytest.raises(ValueError, match="several draft lengths"):
        AcceptanceCounts.from_walk(walk([make_path(np.full(9, 0.5))], [2], [1, 4]))


def test_round_beyond_the_draft_length_is_refused():
    with pytest.raises(ValueError, match="3 accepted"):
        AcceptanceCounts.from_rounds(log([3], 3), 2)
