"""What it would take, against hand-computed closed forms."""

from types import SimpleNamespace

import pytest

from selfspec_cli.plan.pools import CellFacts
from selfspec_cli.plan.what_it_takes import gains


def facts(draft_cost, verify_cost=1.0):
    return CellFacts(
        drafted=10.0, tested=10.0, accepted=3.0, speedup=0.9, draft_cost_ratio=draft_cost,
        verify_cost_ratio=verify_cost, overhead_ratio=0.0, cost_log_sd=0.01,
    )  # fmt: skip


def test_gains_ask_every_layer_not_the_one_that_is_best_today():
    """At c = 0.3, v = 1 the formula gives 1.23, 1.37 and 1.55 at k = 1, 2, 3; at c = 0.6 less.

    A twin that asks only the deeper layer, best at today's acceptance, says 1.13 at 0.8.
    """
    cells = {(2, k): facts(0.3) for k in range(1, 9)} | {(4, k): facts(0.6) for k in range(1, 9)}
    found = gains(SimpleNamespace(cells=cells), [2, 4])
    assert [(g.acceptance, g.exit_layer, g.draft_length) for g in found] == [
        (0.6, 2, 1), (0.7, 2, 2), (0.8, 2, 3),
    ]  # fmt: skip
    assert [g.speedup for g in found] == pytest.approx([1.2308, 1.3688, 1.5537], abs=1e-3)
    twin = gains(SimpleNamespace(cells=cells), [4])
    assert twin[2].speedup == pytest.approx(1.125, abs=0.02)


def test_equal_layers_give_the_shallower_one():
    cells = {(layer, 1): facts(0.3) for layer in (3, 2)}
    assert {gain.exit_layer for gain in gains(SimpleNamespace(cells=cells), [3, 2])} == {2}


def test_without_a_priced_cell_there_is_no_gain():
    assert gains(SimpleNamespace(cells={(2, 1): facts(float("nan"))}), [2]) == []
    assert gains(SimpleNamespace(cells={}), [2]) == []
