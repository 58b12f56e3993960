"""Acceptance needed, and what more of it would bring: against printed tables and by hand."""

import numpy as np
import pytest

from selfspec_cli.analysis.break_even import (
    break_even_acceptance,
    speedup_at,
    textbook_speedup,
)
from selfspec_cli.analysis.closed_form import closed_form_speedup

# Speedup at c = 0.3, v = 1, o = 0 for k = 1..8 (field notes, exact arithmetic to two places).
SPEEDUPS = {
    0.6: [1.23, 1.22, 1.15, 1.05, 0.95, 0.87, 0.79, 0.73],
    0.7: [1.31, 1.37, 1.33, 1.26, 1.18, 1.09, 1.01, 0.94],
    0.8: [1.38, 1.52, 1.55, 1.53, 1.48, 1.41, 1.34, 1.27],
    0.9: [1.46, 1.69, 1.81, 1.86, 1.87, 1.86, 1.84, 1.80],
}
TEXTBOOK = dict.fromkeys(range(1, 9), 1.0)
# A small model on a CPU: verification of four positions costs twice a step.
MEASURED = {1: 1.3, 2: 1.6, 3: 2.0, 4: 2.4}


@pytest.mark.parametrize("alpha", SPEEDUPS)
def test_best_draft_length_of_the_field_table(alpha):
    row = SPEEDUPS[alpha]
    k, speedup = speedup_at(alpha, 0.3, TEXTBOOK, 0.0)
    assert k == int(np.argmax(row)) + 1, row
    assert speedup == pytest.approx(max(row), abs=0.00501)


@pytest.mark.parametrize("alpha", SPEEDUPS)
def test_textbook_speedup_at_three_tenths_of_the_depth(alpha):
    found = [textbook_speedup(alpha, k, 12, 40) for k in range(1, 9)]
    assert np.allclose(found, SPEEDUPS[alpha], atol=0.00501), found


@pytest.mark.parametrize(
    ("alpha", "k", "share", "expected"),
    [
        (0.8, 4, 0.5, 1.1205),
        (0.8, 4, 0.75, 0.8404),
        (0.8, 8, 0.5, 0.8658),
        (0.6, 2, 0.5, 0.98),
        (0.9, 1, 0.5, 1.2667),
    ],
)
def test_model_curve_of_the_case_table(alpha, k, share, expected):
    """Oracle O4."""
    assert textbook_speedup(alpha, k, round(share * 24), 24) == pytest.approx(expected, abs=5e-5)
    assert speedup_at(alpha, share, {k: 1.0}, 0.0) == (k, pytest.approx(expected, abs=5e-5))


def test_break_even_by_hand():
    """k = 1: 1 + α = c + v + o. Here 1.3 at c = 0.3, so α = 0.3; longer drafts need more."""
    assert break_even_acceptance(0.3, TEXTBOOK, 0.0) == (pytest.approx(0.3, abs=1e-9), 1)
    alpha, k = break_even_acceptance(0.3, {2: 1.0}, 0.0)
    assert (k, alpha + alpha**2) == (2, pytest.approx(0.6, abs=1e-9))


def test_break_even_may_need_a_longer_draft():
    """A fixed overhead is spread over more tokens: k = 1 cannot pay at all here, k = 3 can."""
    alpha, k = break_even_acceptance(0.1, TEXTBOOK, 1.0)
    assert k > 1
    assert break_even_acceptance(0.1, {1: 1.0}, 1.0) is None
    assert speedup_at(alpha, 0.1, TEXTBOOK, 1.0) == (k, pytest.approx(1.0, abs=1e-9))


@pytest.mark.parametrize("costs", [(0.3, 0.0), (0.1, 0.05), (0.3, 0.1)])
def test_nothing_pays_below_and_something_at_break_even(costs):
    """Against a search over a fine grid of acceptances, by the formula alone."""
    draft, overhead = costs
    alpha, k = break_even_acceptance(draft, MEASURED, overhead)
    grid = np.linspace(0.0, 1.0, 2001)
    table = np.stack(
        [
            closed_form_speedup(
                grid, n, draft_cost_ratio=draft, verify_cost_ratio=v, overhead_ratio=overhead
            )
            for n, v in MEASURED.items()
        ]
    )
    first = grid[(table >= 1.0).any(axis=0)][0]
    assert first - 0.0005 - 1e-9 <= alpha <= first + 1e-9, (alpha, first)
    assert speedup_at(alpha, draft, MEASURED, overhead)[1] == pytest.approx(1.0, abs=1e-9)
    assert k in MEASURED


def test_twin_the_textbook_promises_what_measured_costs_deny():
    """The same α = 0.5 that pays on paper at c = 0.3 loses once v and o are measured."""
    needed = break_even_acceptance(0.47, MEASURED, 0.1)
    paper = break_even_acceptance(0.3, TEXTBOOK, 0.0)
    assert paper[0] < 0.5 < needed[0], (paper, needed)


def test_no_acceptance_pays_or_every_one_does():
    assert break_even_acceptance(0.9, {1: 2.0, 2: 2.5}, 0.0) is None
    assert break_even_acceptance(0.1, {1: 0.8, 2: 0.9}, 0.0) == (0.0, 1)
    assert break_even_acceptance(0.9, {1: 1.1}, 0.0) == (pytest.approx(1.0), 1)


def test_costs_that_are_not_known():
    assert break_even_acceptance(0.3, {1: np.nan, 2: 1.0}, 0.0)[1] == 2
    assert break_even_acceptance(np.nan, TEXTBOOK, 0.0) is None
    assert break_even_acceptance(0.3, {}, 0.0) is None
    with pytest.raises(ValueError, match="k = 1"):
        speedup_at(0.5, 0.3, {1: np.nan}, 0.0)
    with pytest.raises(ValueError, match="no draft length"):
        speedup_at(0.5, 0.3, {}, 0.0)


def test_ties_go_to_the_shorter_draft():
    assert speedup_at(0.0, 0.0, {3: 1.0, 1: 1.0, 2: 1.0}, 0.0) == (1, 1.0)


@pytest.mark.parametrize("layer", [0, 25, -1])
def test_a_layer_the_model_lacks_is_refused(layer):
    with pytest.raises(ValueError, match="24 layers"):
        textbook_speedup(0.5, 2, layer, 24)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, np.nan])
def test_acceptance_outside_its_range_is_refused(alpha):
    with pytest.raises(ValueError, match="acceptance"):
        speedup_at(alpha, 0.3, TEXTBOOK, 0.0)
