"""Textbook formulas against printed golden tables, to the digits that are called exact."""

import numpy as np
import pytest

from selfspec_cli.analysis.closed_form import (
    break_even_acceptance,
    closed_form_speedup,
    expected_drafted_rate,
    textbook_speedup,
    tokens_per_round,
)

# Speedup at c = 0.3 for k = 1..8 (field notes, exact arithmetic to two places).
SPEEDUPS = {
    0.6: [1.23, 1.22, 1.15, 1.05, 0.95, 0.87, 0.79, 0.73],
    0.7: [1.31, 1.37, 1.33, 1.26, 1.18, 1.09, 1.01, 0.94],
    0.8: [1.38, 1.52, 1.55, 1.53, 1.48, 1.41, 1.34, 1.27],
    0.9: [1.46, 1.69, 1.81, 1.86, 1.87, 1.86, 1.84, 1.80],
}
# Tokens a round at k = 2, 4, 8.
TOKENS = {
    0.9: [2.71, 4.10, 6.13],
    0.8: [2.44, 3.36, 4.33],
    0.7: [2.19, 2.77, 3.20],
    0.6: [1.96, 2.31, 2.47],
    0.5: [1.75, 1.94, 2.00],
    0.4: [1.56, 1.65, 1.67],
}


@pytest.mark.parametrize("alpha", SPEEDUPS)
def test_textbook_speedup_field_table(alpha):
    found = [float(textbook_speedup(alpha, k, 0.3)) for k in range(1, 9)]
    assert np.allclose(found, SPEEDUPS[alpha], atol=0.00501), found


@pytest.mark.parametrize("alpha", TOKENS)
def test_tokens_per_round_field_table(alpha):
    found = [float(tokens_per_round(alpha, k)) for k in (2, 4, 8)]
    assert np.allclose(found, TOKENS[alpha], atol=0.00501), found


@pytest.mark.parametrize(
    ("k", "drafted", "mean", "tau"),
    [
        (1, 0.7, 0.7, 1.7),
        (3, 0.511, 1.533, 2.533),
        (5, 0.388, 1.941, 2.941),
        (8, 0.275, 2.199, 3.199),
    ],
)
def test_glossary_same_process_four_numbers(k, drafted, mean, tau):
    """α = 0.7: the drafted rate falls with k while nothing about the drafter changes."""
    assert float(tokens_per_round(0.7, k)) == pytest.approx(tau, abs=5e-4)
    assert float(tokens_per_round(0.7, k)) - 1 == pytest.approx(mean, abs=5.01e-4)
    assert float(expected_drafted_rate(0.7, k)) == pytest.approx(drafted, abs=5e-4)


@pytest.mark.parametrize(
    ("k", "truth", "tested", "from_mean", "from_tested"),
    [
        (1, 1.700, 0.700, 1.700, 1.700),
        (3, 2.657, 0.743, 2.533, 2.705),
        (5, 3.327, 0.772, 2.941, 3.454),
        (8, 4.061, 0.796, 3.199, 4.278),
    ],
)
def test_glossary_mixture_of_rounds(k, truth, tested, from_mean, from_tested):
    """Half the rounds at 0.5, half at 0.9: the closed form is wrong in both directions."""
    alphas = np.array([0.5, 0.9])
    tau = tokens_per_round(alphas, k).mean()
    accepted = tau - 1
    rejected = 1 - (alphas**k).mean()
    rate = accepted / (accepted + rejected)
    found = (tau, rate, float(tokens_per_round(0.7, k)), float(tokens_per_round(rate, k)))
    assert found == pytest.approx((truth, tested, from_mean, from_tested), abs=6e-4), found


@pytest.mark.parametrize(
    ("alpha", "k", "c", "tokens", "speedup"),
    [
        (0.8, 4, 0.5, 3.3616, 1.1205),
        (0.8, 4, 0.75, 3.3616, 0.8404),
        (0.8, 8, 0.5, 4.3289, 0.8658),
        (0.6, 2, 0.5, 1.96, 0.98),
        (0.9, 1, 0.5, 1.9, 1.2667),
    ],
)
def test_model_curve_o4(alpha, k, c, tokens, speedup):
    assert float(tokens_per_round(alpha, k)) == pytest.approx(tokens, abs=5e-5)
    assert float(textbook_speedup(alpha, k, c)) == pytest.approx(speedup, abs=5e-5)


def test_drafted_rate_falls_with_k_b01():
    """CASES B01: 0.5904 at k = 4 and 0.4161 at k = 8 for the same α = 0.8."""
    found = [float(expected_drafted_rate(0.8, k)) for k in (4, 8)]
    assert found == pytest.approx([0.5904, 0.4161], abs=5e-5), found


def test_tokens_per_round_at_one_and_zero_are_exact():
    assert float(tokens_per_round(1.0, 7)) == 8.0
    assert float(tokens_per_round(0.0, 7)) == 1.0


def test_closed_form_divides_by_the_whole_round():
    found = closed_form_speedup(
        0.5, 1, draft_cost_ratio=0.25, verify_cost_ratio=1.0, overhead_ratio=0.25
    )
    assert float(found) == 1.0


def test_twin_alpha_in_the_cost_is_another_number():
    """Broken twin: k α c instead of k c promises 1.44 where the curve gives 1.12."""
    twin = float(tokens_per_round(0.8, 4)) / (4 * 0.8 * 0.5 + 1)
    assert abs(twin - 1.1205) > 0.1, twin


@pytest.mark.parametrize(("k", "c", "v", "o"), [(3, 0.3, 1.2, 0.05), (8, 0.2, 2.0, 0.1)])
def test_break_even_speedup_there_is_one(k, c, v, o):
    alpha = break_even_acceptance(k, c, v, o)
    assert alpha is not None
    speedup = closed_form_speedup(
        alpha, k, draft_cost_ratio=c, verify_cost_ratio=v, overhead_ratio=o
    )
    assert float(speedup) == pytest.approx(1.0, abs=1e-9)


def test_break_even_by_hand():
    """k = 1: 1 + α = c + v + o, so α = 0.5 at a cost of 1.5."""
    assert break_even_acceptance(1, 0.4, 1.0, 0.1) == pytest.approx(0.5, abs=1e-9)


@pytest.mark.parametrize("v", [5.0, 0.2])
def test_break_even_without_a_root_is_missing(v):
    """Never pays, or always pays: no α makes the speedup 1."""
    assert break_even_acceptance(3, 0.1, v, 0.0) is None


@pytest.mark.parametrize("alpha", [-0.1, 1.1])
def test_acceptance_outside_the_unit_interval_is_refused(alpha):
    with pytest.raises(ValueError, match="acceptance"):
        tokens_per_round(alpha, 3)
