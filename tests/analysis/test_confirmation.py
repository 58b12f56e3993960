"""Which cells and paths are decoded, and what the decodes say of the predictions."""

import math
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest

from selfspec_cli.analysis.confirmation import (
    CELL_KEYS,
    add_predictions,
    choose_cells,
    choose_paths,
    median_and_worst_error,
    rounds_z,
    summarise_confirm,
)


def grid_of(layers, lengths, temperatures=(0.0, 0.7), seed=0):
    """Roll-up rows with a random predicted speedup, and rows of one bucket that must not count."""
    rng = np.random.default_rng(seed)
    rows = [
        {
            "task": task, "context_min": 0, "context_max": None, "temperature": t, "batch_size": 1,
            "evidence": evidence, "drafter": "early_exit", "exit_layer": layer, "draft_length": k,
            "predicted_speedup": 9.0 if evidence == "own" else rng.uniform(0.5, 1.5),
        }
        for t in temperatures
        for layer in layers
        for k in lengths
        for task, evidence in (("(all)", "all"), ("chat", "own"))
    ]  # fmt: skip
    return pd.DataFrame(rows)


def best_of(grid, temperature):
    rows = grid.loc[(grid["evidence"] == "all") & (grid["temperature"] == temperature)]
    top = rows.loc[rows["predicted_speedup"].idxmax()]
    return int(top["exit_layer"]), int(top["draft_length"])


@pytest.mark.parametrize("seed", range(5))
def test_cells_spread_over_layers_and_lengths_with_the_best_first(seed):
    grid = grid_of(range(9, 25), range(1, 9), seed=seed)
    cells = choose_cells(grid, 12)
    assert len(cells) == 12
    assert not cells.duplicated().any()
    assert cells["exit_layer"].nunique() >= 4, cells["exit_layer"].unique()
    assert cells["draft_length"].nunique() >= 3, cells["draft_length"].unique()
    for temperature, own in cells.groupby("temperature"):
        first = tuple(own.iloc[0][["exit_layer", "draft_length"]].astype(int))
        assert first == best_of(grid, temperature), f"T={temperature}"
        assert own["exit_layer"].nunique() >= 4
        assert {9, 24} <= set(own["exit_layer"]), "both ends of the range are tried"


def test_cells_are_dealt_evenly_and_never_repeat():
    cells = choose_cells(grid_of((3, 4), (1, 2), temperatures=(0.0, 0.5, 1.0)), 8)
    assert cells.groupby("temperature").size().tolist() == [3, 3, 2]
    small = choose_cells(grid_of((3,), (1, 2)), 12)
    assert len(small) == 4, "two cells at each of two temperatures are all there are"
    assert not small.duplicated().any()


def test_the_choice_depends_on_the_grid_alone():
    grid = grid_of(range(1, 6), range(1, 5))
    shuffled = grid.sample(frac=1, random_state=3)
    pd.testing.assert_frame_equal(choose_cells(grid, 10), choose_cells(shuffled, 10))


def test_no_cell_can_be_chosen_from_an_empty_grid():
    cells = choose_cells(grid_of((3,), (1,)).iloc[:0], 12)
    assert list(cells.columns) == CELL_KEYS
    assert cells.empty


def walk_of(contexts, committed, groups=None, temperature=0.7):
    n = len(contexts)
    rows = pd.DataFrame(
        {
            "path_id": [f"p{i:02}" for i in range(n)],
            "group_id": groups or [f"g{i}" for i in range(n)],
            "temperature": temperature,
            "prompt_tokens": contexts,
            "committed": committed,
        }
    )
    return pd.concat([rows.assign(draft_length=k) for k in (1, 2)], ignore_index=True)


def test_paths_spread_over_their_contexts():
    contexts = list(range(10, 210, 10))
    chosen = choose_paths(walk_of(contexts, [63.0] * 20), 0.7, 4, 32)
    taken = [contexts[int(path_id[1:])] for path_id in chosen]
    assert taken == sorted(taken)
    assert len(taken) == 4
    gaps = np.diff(taken)
    assert gaps.min() >= 30, f"contexts {taken} of 10..200 huddle together"
    assert taken[0] < 75, taken
    assert taken[-1] > 135, taken


def test_one_path_a_group_and_only_of_the_temperature():
    groups = ["a"] * 6 + ["b"] * 6
    table = walk_of(list(range(12)), [40.0 + i for i in range(12)], groups)
    other = walk_of([1, 2], [99.0, 99.0], temperature=0.0)
    chosen = choose_paths(pd.concat([table, other]), 0.7, 4, 32)
    assert chosen == ["p05", "p11"], "the longest of each group, in order of context"


def test_short_paths_are_taken_only_where_long_ones_are_too_few():
    committed = [40.0, 5.0, 50.0, 6.0]
    table = walk_of([1, 2, 3, 4], committed)
    assert choose_paths(table, 0.7, 2, 32) == ["p00", "p02"]
    assert choose_paths(table, 0.7, 3, 32) == ["p00", "p02", "p03"], "then the longest"


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
            "path_id": ["a", "b"], "temperature": temperature, "exit_layer": 3, "draft_length": 2,
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
