"""The cell of a bucket and the evidence for it: by hand, and how often it misleads."""

import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from simulated_buckets import CELLS, simulate_bucket

from selfspec_cli.analysis.evidence import (
    BucketTimes,
    bucket_times,
    choose_cell,
    cross_fit,
    fold_of,
)
from selfspec_cli.analysis.intervals import jackknife_ratios, ratio_interval
from selfspec_cli.errors import ShapeError

THRESHOLD = 1.05


def bucket(ar, seconds, cells=None, *, cost=0.0, prefill=None):
    """Bucket with groups g0, g1, .. from lists."""
    seconds = np.asarray(seconds, dtype=float)
    cells = cells or tuple((8, k + 1) for k in range(seconds.shape[1]))
    return BucketTimes(
        groups=np.array([f"g{i}" for i in range(len(ar))]),
        ar=np.asarray(ar, dtype=float),
        seconds=seconds,
        cells=cells,
        cost_log_sd=np.broadcast_to(np.asarray(cost, dtype=float), len(cells)),
        prefill=None if prefill is None else np.asarray(prefill, dtype=float),
    )


def flat(speedups, cells, groups=6, **more):
    """Bucket in which every group has exactly these speedups, one a cell."""
    ar = 10.0 + np.arange(groups)
    return bucket(ar, ar[:, None] / np.asarray(speedups), cells, **more)


def walk_rows():
    """Two paths of group a, one of b, at two cells; (8, 2) comes first on purpose."""
    rows = [
        ("p1", "a", 2, 4.0, 3.0, 1.0),
        ("p1", "a", 1, 4.0, 2.0, 1.0),
        ("p2", "a", 1, 6.0, 5.0, 2.0),
        ("p2", "a", 2, 6.0, 4.0, 2.0),
        ("p3", "b", 1, 1.0, 2.0, 4.0),
        ("p3", "b", 2, 1.0, 3.0, 4.0),
    ]
    names = ["path_id", "group_id", "draft_length", "ar_seconds", "seconds", "prefill_seconds"]
    return pd.DataFrame(rows, columns=names).assign(exit_layer=8, temperature=0.7)


# -- bucket_times


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_requests_of_a_group_are_added_up_in_any_row_order(seed):
    rows = walk_rows() if seed is None else walk_rows().sample(frac=1.0, random_state=seed)
    times = bucket_times(rows, {(8, 1): 0.01, (8, 2): 0.02})
    assert times.groups.tolist() == ["a", "b"]
    assert times.cells == ((8, 1), (8, 2))
    assert times.ar.tolist() == [10.0, 1.0]
    assert times.seconds.tolist() == [[7.0, 7.0], [2.0, 3.0]]
    assert times.prefill.tolist() == [3.0, 4.0]
    assert times.cost_log_sd.tolist() == [0.01, 0.02]


def test_a_bucket_of_two_temperatures_is_refused():
    """A request read at two temperatures is not two requests."""
    with pytest.raises(ValueError, match="temperature"):
        bucket_times(pd.concat([walk_rows(), walk_rows().assign(temperature=0.0)]), 0.0)


def test_a_path_that_lacks_cells_is_refused():
    with pytest.raises(ValueError, match="lacks"):
        bucket_times(walk_rows().iloc[1:], 0.0)


def test_unpriced_rows_are_refused():
    with pytest.raises(ValueError, match="price"):
        bucket_times(walk_rows().assign(seconds=np.nan), 0.0)


def test_prefill_that_is_not_known_for_all_is_missing_for_all():
    rows = walk_rows()
    rows.loc[5, "prefill_seconds"] = np.nan
    assert bucket_times(rows, 0.0).prefill is None
    assert bucket_times(rows.drop(columns="prefill_seconds"), 0.0).prefill is None


def test_a_cell_without_known_cost_uncertainty_is_unknown_not_certain():
    assert np.isnan(bucket_times(walk_rows(), {(8, 1): 0.01}).cost_log_sd).tolist() == [False, True]


def test_an_empty_bucket_has_no_evidence():
    found = cross_fit(bucket_times(walk_rows().iloc[:0], 0.0))
    assert (found.cell, found.interval.estimate, found.num_groups) == (None, None, 0)
    assert not found.supports_verdict


def test_arrays_that_disagree_are_refused():
    with pytest.raises(ShapeError, match="2 groups"):
        bucket([1.0, 2.0], [[1.0], [1.0], [1.0]], ((8, 1),))


# -- choose_cell


@pytest.mark.parametrize(
    ("speedups", "cells", "expected"),
    [
        ([1.20, 1.19, 1.10], ((8, 4), (8, 2), (8, 1)), (8, 2)),  # 0.8 % worse, smaller k
        ([1.20, 1.18, 1.10], ((8, 4), (8, 2), (8, 1)), (8, 4)),  # 1.7 % worse
        ([1.20, 1.195, 1.195], ((16, 2), (12, 2), (8, 3)), (12, 2)),  # same k, smaller L
        ([0.61, 0.70], ((8, 1), (8, 2)), (8, 2)),  # also below 1
    ],
)
def test_equal_within_one_percent_the_cheaper_setting_wins(speedups, cells, expected):
    times = flat(speedups, cells)
    assert cells[choose_cell(times)] == expected
    order = np.arange(len(cells))[::-1]  # the answer does not hang on the order of cells
    turned = times.select(order)
    assert turned.cells[choose_cell(turned)] == expected


def test_the_lower_bound_decides_not_the_estimate():
    """Cell 2 has the better estimate and a wild spread: one group got lucky."""
    ar = np.full(8, 10.0)
    steady, wild = ar / 1.2, ar / 1.1
    wild[0] = 1.0
    times = bucket(ar, np.stack([steady, wild], axis=1))
    ratios = jackknife_ratios(ar[:, None], times.seconds)
    assert ratios.estimate[1] > ratios.estimate[0], ratios.estimate
    assert choose_cell(times) == 0, f"lower bounds {ratios.low}"


def test_cost_uncertainty_counts_in_the_choice():
    times = flat([1.2, 1.3], ((8, 1), (8, 2)), cost=[0.01, 0.10])
    assert choose_cell(times) == 0


def test_one_group_is_ranked_by_its_estimate():
    assert choose_cell(bucket([10.0], [[9.0, 8.0]])) == 1


def test_a_cell_of_unknown_cost_uncertainty_loses_to_a_known_one():
    assert choose_cell(flat([1.1, 1.5], ((8, 1), (8, 2)), cost=[0.01, np.nan])) == 0
    assert choose_cell(flat([1.1, 1.5], ((8, 1), (8, 2)), cost=np.nan)) == 1


def test_members_limit_the_choice():
    times = bucket([10.0, 10.0, 10.0], [[5.0, 9.0], [9.0, 5.0], [9.0, 5.0]])
    assert choose_cell(times, np.array([True, False, False])) == 0
    assert choose_cell(times, np.array([1, 2])) == 1
    assert choose_cell(times, np.zeros(3, dtype=bool)) is None


# -- fold_of


def test_folds_are_equal_within_one_and_follow_names_only():
    names = [f"request-{i}" for i in range(47)]
    folds = fold_of(names, 10)
    counts = np.bincount(folds)
    assert sorted(counts) == [4, 4, 4] + [5] * 7, counts
    assert fold_of(names[::-1], 10).tolist() == folds[::-1].tolist()
    assert fold_of(["a", "b", "c"], 10).max() == 2
    # Neighbours in a log do not share a fold, as blocks of a day would.
    assert (np.diff(folds) == 0).mean() < 0.3


def test_folds_are_the_same_on_every_machine():
    """sha256: ca97.. of a, 3e23.. of b, 2e7d.. of c, so the order is c, b, a."""
    assert fold_of(["a", "b", "c"], 2).tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match="fold"):
        fold_of(["a"], 0)


# -- cross_fit


def by_hand(times, num_folds):
    """Out-of-fold pairs, one fold at a time."""
    folds = fold_of(times.groups, num_folds)
    seconds = np.zeros(len(folds))
    chosen = []
    for fold in range(num_folds):
        outside = np.flatnonzero(folds != fold)
        train = replace(
            times, groups=times.groups[outside], ar=times.ar[outside],
            seconds=times.seconds[outside],
        )  # fmt: skip
        chosen.append(choose_cell(train))
        seconds[folds == fold] = times.seconds[folds == fold, chosen[-1]]
    return seconds, [times.cells[i] for i in chosen]


def test_evidence_is_the_pooled_out_of_fold_pairs():
    times = simulate_bucket(np.random.default_rng(3), 40, 1.1)
    found = cross_fit(times)
    seconds, chosen = by_hand(times, 10)
    expected = ratio_interval(times.ar, seconds, times.groups)
    assert found.interval == expected
    assert dict(found.fold_cells) == {cell: chosen.count(cell) for cell in chosen}
    assert len(found.fold_cells) > 1, "this bucket should have no clear winner"
    best = choose_cell(times)
    assert found.cell == times.cells[best]
    own = ratio_interval(times.ar, times.seconds[:, best], times.groups)
    assert found.in_sample == own
    assert own.estimate > found.interval.estimate, (own.estimate, found.interval.estimate)


def test_own_luck_is_no_evidence():
    """Two folds that like opposite cells: each is scored with the other's, which gains nothing."""
    lucky = fold_of([f"g{i}" for i in range(5)], 2)
    speedups = np.where(lucky[:, None] == [[0, 1]], 1.2, 1.0)
    found = cross_fit(bucket(np.full(5, 10.0), 10.0 / speedups))
    assert found.interval.estimate == pytest.approx(1.0, rel=1e-12)
    assert found.in_sample.estimate > 1.07, f"in sample {found.in_sample.estimate:.3f}"


@pytest.mark.parametrize(
    ("groups", "folds"), [(2, 2), (5, 2), (12, 4), (29, 9), (30, 10), (80, 10)]
)
def test_small_buckets_have_fewer_folds(groups, folds):
    found = cross_fit(flat([1.1, 1.3], ((8, 1), (8, 2)), groups=groups))
    assert sum(found.fold_cells.values()) == folds


def test_row_order_of_groups_does_not_matter():
    times = simulate_bucket(np.random.default_rng(5), 30, 1.1)
    order = np.random.default_rng(0).permutation(30)
    turned = replace(
        times, groups=times.groups[order], ar=times.ar[order], seconds=times.seconds[order]
    )
    one, two = cross_fit(times), cross_fit(turned)
    assert one.cell == two.cell
    assert one.interval.low == pytest.approx(two.interval.low, rel=1e-12)


def test_one_group_gives_a_cell_and_no_interval():
    found = cross_fit(bucket([10.0], [[9.0, 8.0]]))
    assert found.cell == (8, 2)
    assert found.num_groups == 1
    assert (found.interval.estimate, found.interval.low) == (None, None)
    assert found.in_sample.estimate == pytest.approx(1.25)
    assert not found.supports_verdict


def test_groups_without_a_decode_step_are_not_counted():
    """Ten requests of one output token: nothing to speed up, no evidence either way."""
    some = flat([1.1, 1.3], ((8, 1), (8, 2)), groups=9)
    more = bucket(
        np.append(some.ar, np.zeros(10)),
        np.concatenate([some.seconds, np.zeros((10, 2))]),
        some.cells,
    )
    found = cross_fit(more)
    assert found == cross_fit(some)
    assert found.num_groups == 9
    nothing = cross_fit(bucket([0.0, 0.0], np.zeros((2, 2))))
    assert (nothing.cell, nothing.num_groups, nothing.oracle_speedup) == (None, 0, None)


def test_unknown_cost_uncertainty_is_no_verdict():
    found = cross_fit(flat([1.1, 1.3], ((8, 1), (8, 2)), groups=20, cost=np.nan))
    assert found.cell == (8, 2)
    assert found.interval.estimate == pytest.approx(1.3)
    assert found.interval.low is None
    assert not found.supports_verdict


def test_largest_cost_error_of_the_folds_enters_once():
    """Costs are shared by all groups: more groups do not average their error away."""
    times = simulate_bucket(np.random.default_rng(3), 40, 1.1)
    chosen = list(cross_fit(times).fold_cells)
    sd = np.full(len(CELLS), 0.001)
    sd[CELLS.index(chosen[0])] = 0.002  # small enough to leave the choice alone
    found = cross_fit(replace(times, cost_log_sd=sd))
    assert list(found.fold_cells) == chosen
    bare = cross_fit(times).interval.log_sd
    assert found.interval.log_sd == pytest.approx(np.hypot(bare, 0.002), rel=1e-9)


def test_displayed_numbers_by_hand():
    """Two groups of 10 s and 30 s, two cells, prefill 5 s each. Group 0 alone would choose the
    second cell, so group 1 is scored with it: 60 s; group 1 chooses the first for group 0: 8 s."""
    times = bucket([10.0, 30.0], [[8.0, 5.0], [25.0, 60.0]], prefill=[5.0, 5.0])
    found = cross_fit(times)
    assert found.cell == (8, 1)
    assert found.in_sample.estimate == pytest.approx(40 / 33)
    assert found.median_request_ratio == pytest.approx((1.25 + 1.2) / 2)
    assert found.runner_up == ((8, 2), pytest.approx(40 / 65))
    assert found.oracle_speedup == pytest.approx(40 / 30)
    assert found.interval.estimate == pytest.approx(40 / 68)
    assert dict(found.fold_cells) == {(8, 1): 1, (8, 2): 1}
    assert found.request_speedup == pytest.approx(50 / 78)
    slow = cross_fit(bucket([10.0, 10.0], [[20.0], [5.0]]))
    assert slow.oracle_speedup == pytest.approx(20 / 15), "off where off is faster"
    assert slow.runner_up is None
    assert slow.request_speedup is None


def test_prefill_of_requests_that_never_decode_weighs_in():
    """A request of one output token has a prefill; users wait for it all the same."""
    times = bucket([10.0, 30.0, 0.0], [[5.0], [15.0], [0.0]], prefill=[5.0, 5.0, 20.0])
    assert cross_fit(times).request_speedup == pytest.approx(70 / 50)


def test_few_effective_groups_support_no_verdict():
    """20 groups, one of which is nearly the whole bucket."""
    ar = np.append(np.full(19, 1.0), 500.0)
    found = cross_fit(bucket(ar, ar[:, None] / 1.3))
    assert found.num_groups == 20
    assert found.effective_groups < 8
    assert not found.supports_verdict


def test_select_keeps_cells_by_mask_or_index():
    times = flat([1.1, 1.2, 1.3], ((8, 1), (10, 1), (12, 1)), cost=[0.1, 0.2, 0.3])
    kept = times.select(np.array([True, False, True]))
    assert kept.cells == ((8, 1), (12, 1))
    assert kept.seconds.shape == (6, 2)
    assert kept.cost_log_sd.tolist() == [0.1, 0.3]
    assert times.select([2]).cells == ((12, 1),)
    assert cross_fit(times.select([])).cell is None


def test_a_large_bucket_takes_a_fraction_of_a_second():
    """300 groups, 200 cells, 10 folds take 0.03 s; the allowance is for a busy machine."""
    rng = np.random.default_rng(0)
    cells = tuple((i // 8 + 1, i % 8 + 1) for i in range(200))
    times = bucket(rng.random(300) + 1, rng.random((300, 200)) + 1, cells)
    spent = []
    for _ in range(5):
        start = time.perf_counter()
        cross_fit(times)
        spent.append(time.perf_counter() - start)
    assert min(spent) < 0.5, f"{min(spent):.2f} s"


# -- how often it misleads


def shares(groups, buckets, seed, lengths="bounded", **costs):
    """Share of buckets whose interval holds the truth, and that would be enabled."""
    rng = np.random.default_rng([groups, seed])
    marks = []
    for _ in range(buckets):
        times = simulate_bucket(rng, groups, THRESHOLD, lengths, **costs)
        found = cross_fit(times).interval
        marks.append((found.low <= THRESHOLD <= found.high, found.low >= THRESHOLD))
    return np.mean(marks, axis=0)


def test_coverage_with_12_clustered_groups():
    """Accepts >= 92 %; 1200 buckets, truth about 93.5 %: false alarm 2 %; the seed is fixed."""
    covered, _ = shares(12, 1200, seed=1)
    assert covered >= 0.92, f"the 95 % interval covers {covered:.3f} with 12 groups"


@pytest.mark.parametrize(("groups", "buckets"), [(50, 1000), (100, 600)])
def test_coverage_with_many_groups_of_bounded_length(groups, buckets):
    """Accepts 93 to 97 %. The truth is about 94.5 % and the standard error 0.7 to 0.9 %: false
    alarm 2 and 5 %; seeds are fixed."""
    covered, _ = shares(groups, buckets, seed=2)
    assert 0.93 <= covered <= 0.97, f"the 95 % interval covers {covered:.3f} with {groups} groups"


@pytest.mark.parametrize("lengths", ["lognormal", "Pareto"])
def test_coverage_with_heavy_tails_is_shown(lengths, capsys):
    """Accepts >= 90 %; 400 buckets, truth about 94 %: false alarm below 1e-3."""
    covered, enabled = shares(24, 400, seed=3, lengths=lengths)
    with capsys.disabled():
        print(f"\n{lengths} lengths, 24 groups: covers {covered:.3f}, enables {enabled:.3f}")
    assert covered >= 0.90, f"{lengths}: the 95 % interval covers {covered:.3f}"
    assert enabled <= 0.08, f"{lengths}: {enabled:.3f} of worthless buckets enabled"


def test_a_bucket_at_the_threshold_is_rarely_enabled():
    """400 buckets of 24 groups, 128 cells at exactly the threshold: at most 8 %. The true share is
    about 4 %, so a false alarm has probability 1e-4."""
    _, enabled = shares(24, 400, seed=4)
    assert enabled <= 0.08, f"{enabled:.3f} of buckets at the threshold enabled"


def test_twin_the_best_bound_in_sample_enables_too_often():
    """Broken twin: the best lower bound, believed on the requests that chose it. The true share is
    0.24; 800 buckets must show 20 % or more, a false alarm of 0.4 %; the seed is fixed."""
    rng = np.random.default_rng([24, 4])
    enabled = []
    for _ in range(800):
        times = simulate_bucket(rng, 24, THRESHOLD)
        enabled.append(jackknife_ratios(times.ar[:, None], times.seconds).low.max() >= THRESHOLD)
    share = float(np.mean(enabled))
    assert share >= 0.20, f"the twin enables {share:.3f}"


def test_shared_cost_errors_keep_the_rule_honest():
    """Costs off by 2 % with correlation 0.95 between cells, as measured on real cost blocks. At
    most 10 % of 400 buckets may be enabled; the true share is about 5 %: false alarm 1e-5."""
    _, enabled = shares(50, 400, seed=5, cost_sd=0.02, cost_rho=0.95)
    assert enabled <= 0.10, f"{enabled:.3f} of buckets at the threshold enabled"


def test_a_truly_better_cell_is_found_and_its_value_covered():
    """One cell at 1.3, the others at 0.9. 300 buckets of 24 groups; accepts >= 90 % where 94 % is
    true: false alarm 0.3 %; the seed is fixed."""
    truth = np.full(len(CELLS), 0.9)
    best = CELLS.index((15, 3))
    truth[best] = 1.3
    rng = np.random.default_rng(6)
    found = [cross_fit(simulate_bucket(rng, 24, truth)) for _ in range(300)]
    assert np.mean([e.cell == (15, 3) for e in found]) >= 0.99
    covered = np.mean([e.interval.low <= 1.3 <= e.interval.high for e in found])
    assert covered >= 0.90, f"covers {covered:.3f}"
    enabled = np.mean([e.interval.low >= THRESHOLD and e.supports_verdict for e in found])
    assert enabled >= 0.9, f"only {enabled:.3f} of buckets worth 1.3 enabled"
