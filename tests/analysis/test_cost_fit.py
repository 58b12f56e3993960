"""The correction of the cost model: found where it exists, refused where it does not help."""

import json

import numpy as np
import pandas as pd
import pytest
from analysis_helpers import make_surface

from selfspec_cli.analysis.cost_fit import CostFit, fit_correction
from selfspec_cli.errors import CostRangeError

CELLS = [(layer, k, c) for layer in (2, 3, 5) for k in (1, 4, 8) for c in (16, 512)]


def measured_rounds(change, cells=CELLS):
    """Whole rounds in cost.csv form, `change` applied to the sum of parts of each cell."""
    surface = make_surface()
    rows = []
    for i, (layer, k, context) in enumerate(cells):
        parts = float(surface.round_seconds([layer], k, context)[0])
        for block in range(3):
            rows.append(
                {
                    "block": block,
                    "part": "round",
                    "law": "sampled",
                    "exit_layer": layer,
                    "positions": k + 1,
                    "context": context,
                    "batch": 1,
                    "engine": "eager",
                    "seconds": change(parts, i) * (1 + 0.01 * (block - 1)),
                }
            )
    return pd.DataFrame(rows)


def test_fit_parts_that_add_up_are_used_as_they_are():
    fit = fit_correction(make_surface(), measured_rounds(lambda s, i: s * 1.01))
    assert fit.mode == "parts"
    assert (fit.scale, fit.offset) == (1.0, 0.0)
    assert fit.cost_model_error == pytest.approx(1 - 1 / 1.01, rel=1e-6)


def test_fit_recovers_scale_and_offset():
    fit = fit_correction(make_surface(), measured_rounds(lambda s, i: 1.3 * s + 2.0))
    assert fit.mode == "corrected"
    assert (fit.scale, fit.offset) == pytest.approx((1.3, 2.0), rel=1e-6)
    assert fit.cost_model_error == pytest.approx(0.0, abs=1e-9)
    assert fit.parts_cost_model_error is not None
    assert fit.parts_cost_model_error > 0.2
    surface = fit.apply(make_surface())
    plain = make_surface().round_seconds([4], 5, 100)
    assert np.allclose(surface.round_seconds([4], 5, 100), 1.3 * plain + 2.0)


def test_no_correction_makes_a_round_cost_less_than_nothing():
    """Long rounds that a jolt made slower: the line through them is below 0 for short ones."""
    long = [(layer, 8, c) for layer in (2, 3, 5) for c in (16, 512)]
    rows = measured_rounds(lambda s, i: 3.0 * s - 40.0, cells=long)
    assert rows["seconds"].min() > 0, "the premise: what was timed is positive"
    surface = make_surface()
    assert (surface.corrected(3.0, -40.0).round_seconds([1], 1, 16) < 0).all(), "the premise"
    fit = fit_correction(surface, rows)
    cheapest = fit.apply(surface).round_seconds(np.arange(1, 7), np.arange(1, 9)[:, None], 16).min()
    assert cheapest > 0, f"{cheapest:.3f} s with scale {fit.scale:.2f}, offset {fit.offset:.2f} s"
    assert fit.offset == 0.0


def test_correction_leaves_plain_steps_alone():
    surface = make_surface().corrected(1.3, 2.0)
    assert float(surface.ar_seconds(100)) == float(make_surface().ar_seconds(100))
    assert np.array_equal(
        surface.round_seconds([3], 0, 100), make_surface().round_seconds([3], 0, 100)
    )


def test_corrected_ratios_still_add_up():
    surface = make_surface().corrected(1.3, 2.0)
    plain = float(surface.ar_seconds(100))
    total = (
        4 * surface.draft_cost_ratio(3, 100)
        + surface.verify_cost_ratio(3, 4, 100)
        + surface.overhead_ratio(3, 4, 100)
    )
    assert total == pytest.approx(float(surface.round_seconds([3], 4, 100)[0]) / plain, rel=1e-12)


def test_fit_that_no_line_can_mend_asks_for_whole_rounds():
    rng = np.random.default_rng(3)
    noise = rng.uniform(0.5, 2.0, size=len(CELLS))
    fit = fit_correction(make_surface(), measured_rounds(lambda s, i: s * noise[i]))
    assert fit.mode == "whole_rounds"
    assert fit.cost_model_error is not None
    assert fit.cost_model_error > 0.05


def test_fit_is_judged_on_rounds_it_did_not_see():
    """Held-out rounds are 1.5 × their parts, the others 1.2 ×: the fit says 1.2 and admits it."""
    first = fit_correction(make_surface(), measured_rounds(lambda s, i: s))
    held = {(r.exit_layer, r.draft_length, r.context): r.held_out for r in first.rounds}
    rows = measured_rounds(lambda s, i: s * (1.5 if held[CELLS[i]] else 1.2))
    fit = fit_correction(make_surface(), rows)
    assert fit.scale == pytest.approx(1.2, rel=1e-6)
    assert fit.mode == "whole_rounds"
    assert fit.cost_model_error == pytest.approx(1 - 1.2 / 1.5, rel=1e-6)
    signed = {round(row.error, 6) for row in fit.rounds if row.held_out}
    assert signed == {-0.2}, signed


def test_fit_split_halves_and_does_not_depend_on_row_order():
    rows = measured_rounds(lambda s, i: 1.3 * s)
    one = fit_correction(make_surface(), rows)
    two = fit_correction(make_surface(), rows.sample(frac=1.0, random_state=4))
    assert one.rounds == two.rounds or _close(one, two)
    assert sum(row.held_out for row in one.rounds) == len(CELLS) // 2


def _close(one, two):
    keys = [(r.exit_layer, r.draft_length, r.context, r.held_out) for r in one.rounds]
    others = [(r.exit_layer, r.draft_length, r.context, r.held_out) for r in two.rounds]
    return keys == others and one.scale == pytest.approx(two.scale, rel=1e-12)


def test_fit_keeps_signed_errors():
    fit = fit_correction(
        make_surface(), measured_rounds(lambda s, i: s * (1.02 if i % 2 else 0.98))
    )
    signs = {row.parts_error > 0 for row in fit.rounds}
    assert signs == {True, False}, [row.parts_error for row in fit.rounds]


def test_fit_without_whole_rounds_has_no_error_to_state():
    fit = fit_correction(make_surface(), measured_rounds(lambda s, i: s).iloc[:0])
    assert fit.cost_model_error is None
    assert fit.mode == "parts"


def test_fit_reads_only_its_own_law():
    other = measured_rounds(lambda s, i: 9 * s).assign(law="greedy")
    fit = fit_correction(make_surface(), pd.concat([measured_rounds(lambda s, i: s), other]))
    assert fit.mode == "parts"


def test_fit_of_a_corrected_surface_is_refused():
    with pytest.raises(ValueError, match="already corrected"):
        fit_correction(make_surface().corrected(1.1, 0.0), measured_rounds(lambda s, i: s))


def test_fit_of_a_round_outside_the_range_is_refused():
    rows = measured_rounds(lambda s, i: s).assign(context=4096)
    with pytest.raises(CostRangeError, match="4096"):
        fit_correction(make_surface(), rows)


def test_document_round_trip_through_json():
    fit = fit_correction(make_surface(), measured_rounds(lambda s, i: 1.3 * s + 2.0))
    document = json.loads(json.dumps(fit.to_document()))
    assert CostFit.from_document(document) == fit
    assert {"parts_error", "error"} <= set(document["rounds"][0])
