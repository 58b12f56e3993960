"""What real decodes say of the predictions, cell by cell of a bucket."""

import math
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest

from selfspec_cli.analysis.confirmation import (
    add_predictions,
    median_and_worst_error,
    regrets,
    rounds_z,
    summarise_confirm,
)


def test_a_prediction_stands_beside_its_decode():
    walk = pd.DataFrame(
        {
            "path_id": ["a", "a"], "exit_layer": [3, 3], "draft_length": [1, 2],
            "ar_seconds": [4.0, 4.0], "seconds": [3.0, 2.0], "rounds": [6.0, 5.0],
            "tested": [6.0, 9.0], "accepted": [4.0, 5.0],
        }
    )  # fmt: skip
    measured = pd.DataFrame({"path_id": ["a"] * 2, "exit_layer": 3, "draft_length": [2, 2]})
    rows = add_predictions(measured, walk)
    assert rows["predicted_seconds"].tolist() == [2.0, 2.0]
    assert rows["predicted_rounds"].tolist() == [5.0, 5.0]


def confirm_rows(temperature=0.7):
    """Two paths of 10 and 30 tokens after x_0 in one cell, with figures to add by hand."""
    rows = pd.DataFrame(
        {
            "task": "chat", "context_min": 0, "context_max": None, "role": "rule",
            "path_id": ["a", "b"], "group_id": ["ga", "gb"],
            "temperature": temperature, "exit_layer": 3, "draft_length": 2,
            "committed": [10, 30], "ar_seconds": [1.0, 3.0], "seconds": [0.5, 2.0],
            "priced_seconds": [0.6, 1.9], "predicted_ar_seconds": [1.1, 2.9],
            "predicted_seconds": [0.6, 1.4], "predicted_rounds": [5.0, 20.0],
            "rounds": [6, 18], "free_rounds": [4, 22], "free_committed": [10, 30],
            "exact": [None, None],
        }
    )  # fmt: skip
    return rows if temperature else rows.assign(exact=[True, False])


def cauchy_as_normal(t):
    """Normal deviate as rare as t with one degree of freedom."""
    return NormalDist().inv_cdf(0.5 + math.atan(t) / math.pi)


def test_a_summary_by_hand():
    (row,) = summarise_confirm(confirm_rows()).to_dict("records")
    assert row["num_paths"] == 2
    assert row["num_tokens"] == 40
    assert row["predicted_speedup"] == pytest.approx(4.0 / 2.0)
    assert row["measured_speedup"] == pytest.approx(4.0 / 2.5)
    assert row["error"] == pytest.approx(2.0 / 1.6 - 1)
    assert row["coin_error"] == pytest.approx((4.0 / 2.5) / 1.6 - 1)
    assert row["predicted_rounds_per_token"] == pytest.approx(25 / 40)
    assert row["free_rounds_per_token"] == pytest.approx(26 / 40)
    # Linearised residuals over the mean of 20 tokens: walked (5 - 6.25)/20 and (20 - 18.75)/20,
    # decoded (4 - 6.5)/20 and (22 - 19.5)/20; their differences -+0.0625 have the standard error
    # 0.0625, and 26/40 - 25/40 = 0.025: t = 0.4 with one degree of freedom (a Cauchy law).
    assert row["rounds_z"] == pytest.approx(cauchy_as_normal(0.4))
    assert row["exact"] is None


def test_the_interval_of_a_measured_speedup_by_hand():
    """Leaving one of two groups out gives log ratios log 1.5 and log 2; the jackknife's standard
    error is half their difference, and t with one degree of freedom at 97.5 % is 12.706 (here the
    groups count as 1.6 effective ones, so the interval is at least that wide)."""
    (row,) = summarise_confirm(confirm_rows()).to_dict("records")
    half = 12.706 * math.log(2 / 1.5) / 2
    assert row["measured_speedup_low"] <= 1.6 * math.exp(-half) * 1.001
    assert row["measured_speedup_high"] >= 1.6 * math.exp(half) * 0.999
    assert row["num_groups"] == 2
    assert row["effective_groups"] == pytest.approx(16 / 10)
    one = summarise_confirm(confirm_rows().iloc[:1]).iloc[0]
    assert pd.isna(one["measured_speedup_low"]), "one group has no spread"
    assert one["measured_speedup"] == pytest.approx(2.0)


def test_repeats_of_a_path_are_one_group():
    rows = confirm_rows()
    once, thrice = (
        summarise_confirm(pd.concat([rows] * n, ignore_index=True)).iloc[0] for n in (1, 3)
    )
    for name in ("measured_speedup", "measured_speedup_low", "num_groups", "num_paths"):
        assert thrice[name] == pytest.approx(once[name]), name


def test_one_cell_in_two_buckets_has_two_rows():
    """Buckets of an open band have no context_max; they must not vanish from the groups."""
    rows = confirm_rows()
    slow = rows.assign(task="code", seconds=rows["seconds"] * 2)
    band = rows.assign(context_min=512, context_max=2048, seconds=rows["seconds"] * 4)
    summary = summarise_confirm(pd.concat([rows.assign(context_max=512), slow, band]))
    measured = dict(
        zip(zip(summary["task"], summary["context_min"], strict=True),
            summary["measured_speedup"], strict=True)
    )  # fmt: skip
    assert measured == pytest.approx({("chat", 0): 1.6, ("code", 0): 0.8, ("chat", 512): 0.4})


def decodes(cells, groups=8, noise=0.02, seed=0, task="chat"):
    """Rows of one bucket: seconds by (L, k, role), paths of unlike length, small noise."""
    rng = np.random.default_rng(seed)
    lengths = rng.uniform(1, 3, groups)
    return pd.DataFrame(
        [
            {
                "task": task, "context_min": 0, "context_max": None, "temperature": 0.7,
                "role": role, "path_id": f"p{g}", "group_id": f"g{g}", "exit_layer": layer,
                "draft_length": k, "seconds": lengths[g] * factor * rng.normal(1, noise),
            }
            for layer, k, role, factor in cells
            for g in range(groups)
        ]
    )  # fmt: skip


def test_a_clearly_better_rival_is_regretted():
    table = decodes([(3, 2, "rule", 1.0), (5, 4, "contrast", 2.0), (4, 2, "runner_up", 0.8)])
    (row,) = regrets(table).to_dict("records")
    assert (row["exit_layer"], row["draft_length"]) == (3, 2)
    assert (row["best_exit_layer"], row["best_draft_length"]) == (4, 2)
    assert row["regret"] == pytest.approx(0.25, abs=0.03)
    assert row["seconds_ratio_low"] > 1


def test_a_rival_that_is_better_by_chance_is_not():
    """Seconds that differ by noise alone, 400 buckets of three equal cells. 2,000 other buckets
    give regret in 2.1 % (the interval promises at most 5 %); 19 or more of 400 then have
    probability 1e-3, and the seed is fixed."""
    cells = [(3, 2, "rule", 1.0), (4, 2, "runner_up", 1.0), (5, 4, "contrast", 1.0)]
    found = [regrets(decodes(cells, noise=0.1, seed=seed)).iloc[0] for seed in range(400)]
    alarms = sum(row["regret"] > 0 for row in found)
    best = sum((row["best_exit_layer"], row["best_draft_length"]) != (3, 2) for row in found)
    assert best > 200, f"another cell is measured best in {best} of 400: the case says little"
    assert alarms < 19, f"regret in {alarms} of 400 buckets without any"


def test_the_best_cell_itself_and_a_lone_cell_have_nothing_to_regret():
    best = regrets(decodes([(3, 2, "rule", 1.0), (4, 2, "runner_up", 1.5)])).iloc[0]
    assert best["regret"] == 0.0
    assert best["seconds_ratio"] == pytest.approx(1.0)
    lone = regrets(decodes([(3, 2, "rule", 1.0)])).iloc[0]
    assert pd.isna(lone["regret"]), "nothing was compared: missing, not 0"
    thin = regrets(decodes([(3, 2, "rule", 1.0), (4, 2, "runner_up", 0.5)], groups=1)).iloc[0]
    assert pd.isna(thin["regret"]), "one group has no interval"


def test_buckets_are_compared_each_with_its_own_cells():
    both = pd.concat(
        [
            decodes([(3, 2, "rule", 1.0), (4, 2, "runner_up", 0.5)]),
            decodes([(3, 2, "rule", 1.0)], task="code"),
        ]
    )
    found = regrets(both).set_index("task")
    assert found.loc["chat", "regret"] > 0.5
    assert pd.isna(found.loc["code", "regret"])


def test_greedy_cells_compare_the_timed_rounds_and_count_equal_outputs():
    (row,) = summarise_confirm(confirm_rows(0.0)).to_dict("records")
    assert row["free_rounds_per_token"] == pytest.approx(24 / 40)
    assert row["exact"] == pytest.approx(0.5)


def test_errors_are_summed_up_by_their_size():
    summary = pd.DataFrame({"error": [0.02, -0.10, 0.05]})
    assert median_and_worst_error(summary) == pytest.approx((0.05, 0.10))


def test_rounds_that_agree_everywhere_are_no_deviation():
    same = pd.Series([5.0, 9.0, 7.0])
    tokens = pd.Series([10, 20, 15])
    assert rounds_z(same, tokens, same, tokens) == 0.0
    assert rounds_z(same[:1], tokens[:1], same[:1], tokens[:1]) is None, "one path has no spread"


def test_a_deviation_beyond_all_measure_stays_a_number():
    tokens = pd.Series([100.0] * 2000)
    walked = tokens * 0.5 + np.tile([0.1, -0.1], 1000)
    z = rounds_z(walked, tokens, walked * 2, tokens)
    assert z is not None
    assert 30 < z < 1000, f"z = {z} is no number a report can hold"


def simulated_z(n, shift, rng):
    """z of n paths whose decoded rounds scatter around the walked ones, as coins make them."""
    tokens = rng.integers(10, 60, n)
    rate = rng.uniform(0.3, 0.9, n)
    walked = pd.Series(rate * tokens)
    decoded_tokens = rng.integers(10, 60, n)
    noise = rng.normal(0, np.sqrt(rate * decoded_tokens * 0.5))
    decoded = pd.Series(rate * decoded_tokens * (1 + shift) + noise)
    z = rounds_z(walked, pd.Series(tokens), decoded, pd.Series(decoded_tokens))
    assert z is not None
    return z


def test_the_false_alarm_rate_of_z_is_that_of_a_normal_law():
    """2000 simulated cells of 40 paths: |z| > 2 must occur in 3 to 8 % (normal: 4.6 %), and
    |z| > 4 in at most 0.3 % (t law with 39 degrees: 0.03 %).

    The true rates are seeded and fixed; a binomial count of 2000 at 5 % stays within 3..8 % but
    for 1e-5.
    """
    rng = np.random.default_rng(11)
    scores = np.abs([simulated_z(40, 0.0, rng) for _ in range(2000)])
    two, four = float((scores > 2).mean()), float((scores > 4).mean())
    assert 0.03 < two < 0.08, f"{two:.3f} beyond 2 standard errors"
    assert four <= 0.003, f"{four:.4f} beyond 4 standard errors"


def test_z_sees_a_shift():
    """Broken twin: 15 % more rounds than walked, 40 paths; at least 80 % beyond 2 errors."""
    rng = np.random.default_rng(12)
    scores = [simulated_z(40, 0.15, rng) for _ in range(300)]
    power = float(np.mean(np.array(scores) > 2))
    assert power > 0.8, f"only {power:.2f} of shifted cells are seen"
