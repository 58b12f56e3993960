"""Quantiles and time per output token: documented interpolation, missing where n is small."""

import numpy as np
import pytest

from selfspec_cli.analysis.latency import (
    linear_quantile,
    min_values_for,
    pooled_time_per_output_token,
    reported_quantile,
    time_per_output_token,
)

EIGHT = [float(v) for v in range(1, 9)]


@pytest.mark.parametrize(("level", "value"), [(0.5, 4.5), (0.95, 7.65), (0.99, 7.93)])
def test_linear_quantile_of_eight_values_b12(level, value):
    """CASES B12, with linear interpolation documented."""
    assert linear_quantile(EIGHT[::-1], level) == pytest.approx(value, abs=1e-12)


def test_reported_quantile_of_eight_values_states_n_and_hides_tails_b12():
    median, tail = reported_quantile(EIGHT, 0.5), reported_quantile(EIGHT, 0.95)
    assert (median.value, median.num_values) == (4.5, 8)
    assert (tail.value, tail.num_values, tail.min_values) == (None, 8, 60)


@pytest.mark.parametrize(("level", "needed"), [(0.9, 20), (0.95, 60), (0.99, 300)])
def test_reported_quantile_appears_exactly_at_its_minimum(level, needed):
    values = np.arange(needed, dtype=float)
    assert reported_quantile(values[:-1], level).value is None
    assert reported_quantile(values, level).value == pytest.approx(level * (needed - 1))


def test_low_tails_need_as_many_values_as_high_ones():
    assert min_values_for(0.05) == min_values_for(0.95) == 60
    assert min_values_for(0.8) == 20


def test_quantile_beyond_the_documented_range_is_refused():
    with pytest.raises(ValueError, match=r"beyond 0\.99"):
        reported_quantile(EIGHT, 0.999)


def test_reported_quantile_of_nothing_is_missing():
    assert reported_quantile([], 0.5).value is None


@pytest.mark.parametrize("values", [[], [1.0, np.nan], [np.inf]])
def test_linear_quantile_of_no_or_broken_values_is_refused(values):
    with pytest.raises(ValueError, match="finite"):
        linear_quantile(values, 0.5)


@pytest.mark.parametrize(("n", "expected"), [(0, None), (1, None), (2, 6.0), (4, 2.0)])
def test_time_per_output_token_divides_by_gaps_b14(n, expected):
    """CASES B14: n - 1 gaps, none for a single token."""
    assert time_per_output_token(6.0, n) == expected


def test_pooled_time_uses_only_rows_with_two_tokens_b14():
    found = pooled_time_per_output_token([9.0, 6.0, 2.0, 0.0], [1, 4, 2, 0])
    assert found.seconds == pytest.approx((6.0 + 2.0) / (3 + 1))
    assert (found.num_requests, found.num_left_out) == (2, 2)


def test_pooled_time_without_gaps_is_missing():
    assert pooled_time_per_output_token([1.0], [1]).seconds is None
