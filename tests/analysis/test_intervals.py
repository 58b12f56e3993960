"""Intervals of ratios of sums: by hand, and their real coverage in simulation."""

import numpy as np
import pytest
from scipy import stats

from selfspec_cli.analysis.intervals import jackknife_ratios, ratio_interval


def simulate(groups, tables, seed, *, repeats=1):
    """AR and speculative seconds [groups * repeats, tables] with true ratio `truth`.

    Requests vary by a factor of about 1.6 in length and 1.35 in speedup; repeats of one group
    share both, as the turns of a conversation do.
    """
    rng = np.random.default_rng(seed)
    plain = np.repeat(rng.lognormal(0, 0.5, (groups, tables)), repeats, axis=0)
    fast = plain / 1.2 * np.repeat(rng.lognormal(0, 0.3, (groups, tables)), repeats, axis=0)
    return plain, fast, 1.2 / np.exp(0.3**2 / 2)


def coverage(low, high, truth):
    return float(((low <= truth) & (truth <= high)).mean())


@pytest.mark.parametrize("groups", [8, 20, 60])
def test_interval_covers_the_truth(groups):
    """4000 tables each: standard error 0.004. Accepts 0.92 to 0.97; the truth lies near 0.94, so a
    false alarm is below 1e-4; seeds are fixed."""
    plain, fast, truth = simulate(groups, 4000, seed=groups)
    table = jackknife_ratios(plain, fast)
    found = coverage(table.low, table.high, truth)
    assert 0.92 <= found <= 0.97, f"95 % interval covers {found:.3f} with {groups} groups"


def test_twin_percentile_bootstrap_covers_too_little():
    """Broken twin: the same check refuses a percentile bootstrap (8 groups, 800 tables)."""
    plain, fast, truth = simulate(8, 800, seed=1)
    rng = np.random.default_rng(2)
    rows = rng.integers(0, 8, (500, 8))
    ratios = plain[rows].sum(axis=1) / fast[rows].sum(axis=1)  # [draws, tables]
    low, high = np.quantile(ratios, [0.025, 0.975], axis=0)
    found = coverage(low, high, truth)
    assert found < 0.90, f"bootstrap covers {found:.3f}"
    table = jackknife_ratios(plain, fast)
    jackknife = coverage(table.low, table.high, truth)
    assert jackknife > found + 0.03, f"jackknife {jackknife:.3f}, bootstrap {found:.3f}"


def test_twin_rows_as_units_cover_too_little():
    """Broken twin: five turns of a conversation counted as five independent requests."""
    plain, fast, truth = simulate(12, 1500, seed=3, repeats=5)
    by_row = jackknife_ratios(plain, fast)
    summed = [values.reshape(12, 5, -1).sum(axis=1) for values in (plain, fast)]
    by_group = jackknife_ratios(*summed)
    wrong = coverage(by_row.low, by_row.high, truth)
    right = coverage(by_group.low, by_group.high, truth)
    assert wrong < 0.80, f"rows cover {wrong:.3f}"
    assert right >= 0.92, f"rows cover {wrong:.3f}, groups {right:.3f}"


def test_interval_by_hand_two_groups():
    """a = (2, 4), b = (1, 4): ratio 6/5; leaving one out gives 1 and 2."""
    found = ratio_interval([2, 4], [1, 4], ["x", "y"])
    log_sd = np.sqrt(0.5 * 2 * (np.log(2) / 2) ** 2)
    half = stats.t.ppf(0.975, 1) * log_sd
    assert found.estimate == pytest.approx(1.2, rel=1e-12)
    assert found.log_sd == pytest.approx(log_sd, rel=1e-9)
    assert found.low == pytest.approx(1.2 * np.exp(-half), rel=1e-9)
    assert found.high == pytest.approx(1.2 * np.exp(half), rel=1e-9)
    assert found.effective_groups == pytest.approx(36 / 20, rel=1e-12)
    assert not found.supports_verdict


def test_degrees_of_freedom_follow_the_effective_groups():
    """One group carries 90 % of the time: four groups then say as little as one or two."""
    equal = ratio_interval([1, 1, 1, 1], [0.8, 0.9, 1.0, 1.1], list("wxyz"))
    half = np.log(equal.high / equal.low) / 2
    assert half / equal.log_sd == pytest.approx(stats.t.ppf(0.975, 3), rel=1e-9)
    long = ratio_interval([27, 1, 1, 1], [25, 0.9, 1.0, 1.1], list("wxyz"))
    half = np.log(long.high / long.low) / 2
    assert long.effective_groups == pytest.approx(900 / 732)
    assert half / long.log_sd == pytest.approx(stats.t.ppf(0.975, 1), rel=1e-9)


def test_interval_is_a_ratio_of_sums_not_a_mean_of_ratios():
    found = ratio_interval([1, 100], [2, 50], ["x", "y"])
    assert found.estimate == pytest.approx(101 / 52)
    assert abs(found.estimate - np.mean([0.5, 2.0])) > 0.5


@pytest.mark.parametrize("rows", [0, 1])
def test_interval_below_two_groups_is_missing(rows):
    found = ratio_interval([2.0] * rows, [1.0] * rows, ["x"] * rows)
    assert (found.low, found.high, found.log_sd) == (None, None, None)
    assert found.estimate == (2.0 if rows else None)


def test_interval_one_group_of_many_rows_is_one_group():
    found = ratio_interval([2.0, 3.0, 4.0], [1.0, 1.0, 1.0], ["x"] * 3)
    assert found.num_groups == 1
    assert found.low is None


def test_group_without_a_decode_step_adds_no_degree_of_freedom():
    one = ratio_interval([2, 4, 3], [1, 4, 2], ["x", "y", "z"])
    two = ratio_interval([2, 4, 3, 0], [1, 4, 2, 0], ["x", "y", "z", "w"])
    assert one == two


def test_cost_uncertainty_is_added_in_quadrature():
    plain = ratio_interval([2, 4, 3], [1, 4, 2], ["x", "y", "z"])
    wide = ratio_interval([2, 4, 3], [1, 4, 2], ["x", "y", "z"], extra_log_sd=0.3)
    assert wide.log_sd == pytest.approx(np.hypot(plain.log_sd, 0.3), rel=1e-9)
    assert wide.estimate == plain.estimate


def test_order_of_groups_does_not_matter():
    rng = np.random.default_rng(0)
    a, b, groups = rng.random(30), rng.random(30), rng.integers(0, 9, 30)
    order = rng.permutation(30)
    one = ratio_interval(a, b, groups)
    two = ratio_interval(a[order], b[order], groups[order])
    assert one.low == pytest.approx(two.low, rel=1e-12)


def test_table_equals_single_intervals():
    rng = np.random.default_rng(4)
    a, b = rng.random((9, 1)) + 0.1, rng.random((9, 3)) + 0.1
    table = jackknife_ratios(a, b)
    for column in range(3):
        one = ratio_interval(a[:, 0], b[:, column], range(9))
        found = (table.estimate[column], table.low[column], table.high[column])
        assert found == pytest.approx((one.estimate, one.low, one.high), rel=1e-12)


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_impossible_times_are_refused(bad):
    with pytest.raises(ValueError, match="finite"):
        ratio_interval([1.0, bad], [1.0, 1.0], ["x", "y"])
