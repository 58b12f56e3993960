"""Batches predicted and compared: by hand, at T = 0 to the pass, and what is missing stays so."""

import numpy as np
import pandas as pd
import pytest
from analysis_helpers import make_path, make_surface, random_paths
from batch_helpers import LinearCosts, batch_surfaces

from selfspec_cli.analysis.batch_confirmation import (
    KEYS,
    SUMMARY_COLUMNS,
    batch_confirm_told,
    compared,
    predict_refill,
    predict_static,
    price_passes,
    summarise_batch_confirm,
    with_speedups,
)
from selfspec_cli.analysis.batch_costs import BatchCosts
from selfspec_cli.analysis.batching import at_batch
from selfspec_cli.analysis.walk import walk

COSTS = LinearCosts()
PROMPT = make_path(np.zeros(2)).prompt_tokens


def path(coins, budget=None):
    """A path of len(coins) tokens, one exit; entry 0 is x_0's."""
    return make_path(np.array([coins], dtype=float), budget=budget or len(coins))


def step(context, rows):
    return float(COSTS.ar_seconds(context, rows))


def round_of(k, context, rows):
    return float(COSTS.round_seconds(2, k, context, rows))


def test_a_static_batch_at_temperature_0_by_hand():
    """k = 1. Row a of 3 tokens accepts nothing, b of 4 everything: two passes of two rows, the
    second at b's context. c is a batch of its own, whose only round may draft nothing."""
    a, b, c = path([0, 0, 0]), path([0, 1, 1, 1]), path([0, 0])
    found = predict_static([a, b, c], 0, (2, 1), COSTS, 2)
    first, second = round_of(1, PROMPT, 2), round_of(0, PROMPT + 2, 2)  # nothing left to draft
    assert found.seconds == pytest.approx(first + second + round_of(0, PROMPT, 1), rel=1e-12)
    plain = step(PROMPT, 2) + step(PROMPT + 1, 2) + step(PROMPT + 2, 1) + step(PROMPT, 1)
    assert found.plain_seconds == pytest.approx(plain, rel=1e-12)


def test_the_order_of_paths_makes_the_batches():
    """Two long paths side by side end together; beside short ones each holds a batch up."""
    long, short = path([0] * 12), path([0] * 3)
    together = predict_static([long, long, short, short], 0, (2, 2), COSTS, 2)
    apart = predict_static([long, short, long, short], 0, (2, 2), COSTS, 2)
    assert apart.seconds > 1.3 * together.seconds, f"{apart.seconds}, {together.seconds}"


def test_a_static_batch_above_temperature_0_is_the_mean_of_its_walks():
    """Coins of 0.5: by simulation apart from it, within 4 standard errors of 200 walks.

    False alarm below 1e-4; seeded.
    """
    paths = [path([0, *[0.5] * 9]) for _ in range(4)]
    found = predict_static(paths, 0, (2, 2), COSTS, 4).seconds
    rng, totals = np.random.default_rng(7), []
    for _ in range(4000):
        starts, total = np.ones(4, dtype=int), 0.0
        coins = rng.random((4, 10)) < 0.5
        while (starts < 10).any():
            live = np.flatnonzero(starts < 10)
            drafts = np.minimum(2, 10 - starts[live] - 1)
            total += round_of(int(drafts.max()), int(PROMPT + starts[live].max() - 1), len(live))
            for row, k in zip(live, drafts, strict=True):
                a = 0
                while a < k and coins[row, starts[row] + a]:
                    a += 1
                starts[row] += a + 1
        totals.append(total)
    error = np.std(totals) / np.sqrt(200)
    assert abs(found - np.mean(totals)) < 4 * error, f"{found:.3f}, {np.mean(totals):.3f} ± {error}"


def test_refill_is_the_sum_of_shares():
    table = walk(random_paths(3, count=6), [2, 3, 4, 5], [4], make_surface())
    rows = table.loc[table["exit_layer"] == 3]
    surfaces = batch_surfaces(4)[4]
    found = predict_refill(rows, surfaces, 4)
    shares = at_batch(rows, surfaces, 4)
    assert found.seconds == pytest.approx(shares["seconds"].sum(), rel=1e-12)
    assert found.plain_seconds == pytest.approx(shares["ar_seconds"].sum(), rel=1e-12)


def test_what_was_not_timed_is_not_predicted():
    """Other laws in refill; a static batch that thins out below the smallest size timed."""
    table = walk(random_paths(3, count=2), [2, 3, 4, 5], [4], make_surface())
    assert predict_refill(table, {"greedy": batch_surfaces(4)[4]["greedy"]}, 4) is None
    costs = BatchCosts(surfaces={b: s["sampled"] for b, s in batch_surfaces(2, 4).items()})
    rows = [path([0, 0, 0]), path([0, 0, 0, 0, 0])]
    assert predict_static(rows, 0, (2, 1), costs, 2) is None
    assert predict_static(rows[:1] * 2, 0, (2, 1), costs, 2) is not None


def test_passes_that_happened_are_priced_each_at_its_rows():
    costs = BatchCosts(surfaces={b: s["sampled"] for b, s in batch_surfaces(2, 4).items()})
    passes = [(3, 100, 4), (0, 101, 2), (3, 102, 3)]
    expected = [float(costs.round_seconds(2, k, c, rows)) for k, c, rows in passes]
    assert price_passes(costs, 2, passes) == pytest.approx(sum(expected), rel=1e-12)
    assert price_passes(costs, None, passes[:1]) == pytest.approx(
        float(costs.ar_seconds(100, 4)), rel=1e-12
    )
    assert price_passes(costs, 2, []) == 0.0
    assert price_passes(costs, 2, [*passes, (3, 100, 1)]) is None, "one row was not timed"


def rows(**changes):
    """Two runs of one cell: 40 tokens in 24 rounds, 16 of them (plain: 20) with all rows alive."""
    both = {
        "batch_size": 4, "temperature": 0.7, "exit_layer": 3, "draft_length": 2, "repeat": 0,
        "num_requests": 8, "committed": 40, "rounds": 24, "plain_seconds": 8.0, "seconds": 5.0,
        "plain_full_seconds": 3.0, "plain_full_committed": 20, "full_seconds": 2.5,
        "full_rounds": 16, "full_committed": 32, "priced_plain_seconds": 6.4, "priced_seconds": 4.0,
        "predicted_plain_seconds": 6.0, "predicted_seconds": 4.0, "exact": None, "is_tie": None,
    }  # fmt: skip
    frame = pd.DataFrame([{**both, "schedule": name, **changes} for name in ("refill", "static")])
    return with_speedups(frame)


def test_refill_is_compared_by_its_passes_with_all_rows_alive():
    """3 s for 20 of 40 steps are 6 s, 2.5 s for 16 of 24 rounds are 3.75 s: 1.6.

    Twins: the whole run says 8/5 of either schedule; by tokens of the full phase, of which the
    fast requests make most, it would be 6 ÷ 3.125 = 1.92.
    """
    refill, static = rows().to_dict("records")
    assert refill["predicted_speedup"] == pytest.approx(1.5)
    assert refill["measured_speedup"] == pytest.approx(1.6)
    assert static["measured_speedup"] == pytest.approx(1.6)
    slow_tail = rows(seconds=7.0, plain_seconds=9.0).to_dict("records")
    assert slow_tail[0]["measured_speedup"] == pytest.approx(1.6), "a tail is not refill's"
    assert slow_tail[1]["measured_speedup"] == pytest.approx(9 / 7)
    by_tokens = (3.0 / 20) / (2.5 / 32)
    assert by_tokens > 1.9, by_tokens
    found = compared(rows()).iloc[0]
    assert found["compared_plain_seconds"] == pytest.approx(6.0)
    assert found["compared_seconds"] == pytest.approx(3.75)


def test_errors_are_those_of_each_side_and_of_the_costs():
    summary = summarise_batch_confirm(rows(seconds=5.0, plain_seconds=8.0))
    assert list(summary.columns) == list(SUMMARY_COLUMNS)
    refill, static = summary.to_dict("records")
    assert refill["error"] == pytest.approx(1.5 / 1.6 - 1)
    assert refill["cost_error"] == pytest.approx(0.0)
    assert refill["plain_seconds_error"] == pytest.approx(0.0)
    assert refill["seconds_error"] == pytest.approx(4 / 3.75 - 1)
    assert refill["committed"] == 40
    assert static["plain_seconds_error"] == pytest.approx(6 / 8 - 1)
    assert static["seconds_error"] == pytest.approx(4 / 5 - 1)
    assert refill["exact"] is None


def test_repeats_are_pooled_as_ratios_of_sums():
    slow = rows(repeat=1, plain_seconds=24.0, seconds=20.0)
    (static,) = (
        summarise_batch_confirm(pd.concat([rows(), slow]))
        .query("schedule == 'static'")
        .to_dict("records")
    )
    assert static["num_repeats"] == 2
    assert static["measured_speedup"] == pytest.approx(32 / 25)
    assert static["predicted_speedup"] == pytest.approx(1.5)


def test_without_a_full_phase_nothing_is_said_of_refill():
    some = rows(full_seconds=0.0, full_rounds=0)
    refill, static = some.to_dict("records")
    assert np.isnan(refill["measured_speedup"])
    assert static["measured_speedup"] == pytest.approx(1.6)
    summary = summarise_batch_confirm(some)
    assert summary.set_index("schedule")["error"].isna().to_dict() == {
        "refill": True, "static": False,
    }  # fmt: skip
    assert "1 runs in batches" in batch_confirm_told(summary)
    none = summary.loc[summary["schedule"] == "refill"]
    assert "none long enough" in batch_confirm_told(none)


def test_people_are_told_the_median_and_the_worst():
    told = batch_confirm_told(summarise_batch_confirm(rows()))
    assert "off by 6.2% in the median, 6.2% at worst (refill at 4 rows" in told
    worse = batch_confirm_told(summarise_batch_confirm(rows(plain_full_seconds=4.0)))
    assert "off by 18.0% in the median, 29.7% at worst (refill at 4 rows" in worse, worse


@pytest.mark.parametrize(
    ("exact", "is_tie", "expected"),
    [(True, None, True), (False, True, True), (False, False, False)],
)
def test_a_tie_is_exact_and_a_fault_is_not(exact, is_tie, expected):
    summary = summarise_batch_confirm(rows(temperature=0.0, exact=exact, is_tie=is_tie))
    assert summary["exact"].tolist() == [expected, expected]
    assert len(summary[KEYS].drop_duplicates()) == 2
