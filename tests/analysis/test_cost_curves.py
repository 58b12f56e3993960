"""Cost curves: values are the surface's own, intervals those of its blocks."""

import numpy as np
import pandas as pd
import pytest
from analysis_helpers import BLOCK_FACTORS, ar_cost, cost_rows, make_surface

from selfspec_cli.analysis.cost_curves import cost_curves, plain_steps


def test_values_are_those_of_the_surface():
    surface = make_surface()
    table = cost_curves(surface, [2, 4], [1, 3], 100.0)
    assert len(table) == 2 + 4
    for row in table.to_dict("records"):
        layer, k = int(row["exit_layer"]), row["draft_length"]
        if row["quantity"] == "draft_cost_ratio":
            assert pd.isna(k)
            assert row["value"] == surface.draft_cost_ratio(layer, 100.0)
        else:
            assert row["value"] == surface.verify_cost_ratio(layer, int(k), 100.0)


def test_blocks_that_are_fast_as_a_whole_leave_ratios_certain():
    """Every part of a block is slow alike, so c and v do not move and have no interval to speak of;
    the twin, in which only layers vary, has one."""
    table = cost_curves(make_surface(), [2], [3], 100.0)
    assert (table["high"] - table["low"]).max() < 1e-9
    rows = cost_rows()
    layers = rows["part"].str.startswith("layers")
    pace = rows["block"].map(dict(enumerate((1.0, 1.3, 0.7))))
    uneven = rows.assign(seconds=rows["seconds"].where(~layers, rows["seconds"] * pace))
    table = cost_curves(make_surface(uneven), [2], [3], 100.0)
    assert (table["high"] - table["low"]).min() > 0.05


def test_plain_steps_by_context_with_student_intervals():
    table = plain_steps(make_surface())
    assert list(table["context"]) == [16, 128, 512]
    for row in table.to_dict("records"):
        assert row["ar_step_s"] == pytest.approx(ar_cost(row["context"]))
        spread = np.std(BLOCK_FACTORS, ddof=1) / np.sqrt(3) * ar_cost(row["context"])
        assert row["high"] - row["ar_step_s"] == pytest.approx(4.302652729911275 * spread)


def test_one_block_has_no_interval():
    surface = make_surface(cost_rows(factors=(1.0,)))
    assert cost_curves(surface, [2], [1], 100.0)[["low", "high"]].isna().all(axis=None)
    assert plain_steps(surface)[["low", "high"]].isna().all(axis=None)
