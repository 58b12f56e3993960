"""How often a gate fails by chance: plain decoding against itself, blocks drawn again."""

import numpy as np
import pytest
from gate_runs import passing_run
from scipy import stats

from selfspec_cli.analysis.intervals import ratio_interval
from selfspec_cli.gate.checks_timing import judge, ratio_comparison
from selfspec_cli.gate.holm import FAMILY_LEVEL, holm, ratio_p_value, share_p_value
from selfspec_cli.plan.text import to_interval
from selfspec_cli.storage import read_table

RESAMPLINGS, BUCKETS = 400, 6


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Relative noise of a block of timings and the plain seconds of requests, as a run wrote."""
    run = passing_run(tmp_path_factory.mktemp("aa") / "run")
    table = read_table(run / "confirm.csv")
    noise = table["seconds"] / table["priced_seconds"]
    plain = table.drop_duplicates("path_id")["ar_seconds"]
    return noise.to_numpy() / noise.mean(), plain.to_numpy()


def failures(recorded, *, slower=1.0, gates=RESAMPLINGS, level=FAMILY_LEVEL, groups=20):
    """Gates that fail `speedup >= 1` where plain decoding meets itself, `slower` times."""
    noise, plain = recorded
    rng = np.random.default_rng(5)
    failed = 0
    for _ in range(gates):
        family = []
        for bucket in range(BUCKETS):
            seconds = rng.choice(plain, groups)
            first, second = (seconds * rng.choice(noise, groups) for _ in range(2))
            found = ratio_interval(first, second * slower, np.arange(groups))
            family.append(
                ratio_comparison(
                    "speedup", str(bucket), to_interval(found), found.effective_groups, 1.0
                )
            )
        failed += any(check.fails for check in judge(family, level))
    return failed


def test_plain_against_itself_seldom_fails(recorded):
    """400 gates of 6 buckets at 0.5 %: 2 expected; over 8 by chance in 0.02 % of seeds."""
    found = failures(recorded)
    assert found <= 8, f"{found} of {RESAMPLINGS} gates failed"
    assert stats.binom.sf(8, RESAMPLINGS, FAMILY_LEVEL) < 3e-4


def test_a_level_that_is_not_shared_fails_more_often(recorded):
    """Broken twin: each bucket at 5 % of its own."""
    assert failures(recorded, gates=100, level=0.05 * BUCKETS) > 8


def test_a_real_loss_is_found(recorded):
    """Ten percent slower under two percent noise: every gate fails."""
    assert failures(recorded, slower=1.1, gates=40) == 40


def test_holm_steps_down_and_stops():
    found = holm([0.0012, None, 0.9, 0.002, 0.00001], 0.005)
    assert found[1] is None
    levels = [held and round(held.level, 6) for held in found]
    assert levels == [0.001667, None, 0.005, 0.0025, 0.00125]
    assert [held.rejected for held in found if held] == [True, False, True, True]
    blocked = holm([0.002, 0.002], 0.003)  # neither passes half the level: both stay
    assert [held.rejected for held in blocked] == [False, False]


def test_the_p_value_is_that_of_the_interval():
    """A limit at the upper end of a two-sided 95 % interval has a one-sided p of 2.5 %."""
    found = ratio_interval([1.0, 1.1, 0.9, 1.2], [1.0, 0.9, 1.0, 1.0], [1, 2, 3, 4])
    ends = (found.low, found.estimate, found.high)
    assert ratio_p_value(ends, found.effective_groups, found.high) == pytest.approx(0.025)
    assert ratio_p_value(ends, found.effective_groups, found.low) == pytest.approx(0.975)
    assert ratio_p_value((None, 1.2, None), 1.0, 1.05) is None
    assert ratio_p_value((1.2, 1.2, 1.2), 9.0, 1.05) == 1.0
    assert ratio_p_value((1.0, 1.0, 1.0), 9.0, 1.05) == 0.0


@pytest.mark.parametrize(("hits", "trials", "limit"), [(3, 14, 0.1), (1, 20, 0.1), (14, 14, 0.5)])
def test_the_share_test_is_binomial(hits, trials, limit):
    expected = stats.binom.sf(hits - 1, trials, limit)
    assert share_p_value(hits / trials, trials, limit) == pytest.approx(expected)
    assert share_p_value(0.0, trials, limit) == 1.0
    assert share_p_value(0.5, 0, limit) is None
