"""The tail of a cell: slow requests, quantiles with their minimum numbers, inter-token gaps."""

import time
from dataclasses import replace

import numpy as np
import pytest
from analysis_helpers import make_path, make_surface
from scipy import stats

from selfspec_cli.analysis.tail import SLOW_FACTOR, request_tail, upper_share
from selfspec_cli.analysis.walk import walk
from selfspec_cli.errors import CostRangeError

LAYER, K = 1, 4  # cheap drafts of a six-layer model
CELL = (LAYER, K)


def drawn_paths(count, alpha, *, tokens=60, seed=0):
    """Paths whose coins are all `alpha`, or that of their row."""
    alphas = np.broadcast_to(alpha, count)
    return [
        make_path(np.append(np.nan, np.full(tokens - 1, a)), name=f"p{seed}-{i}")
        for i, a in enumerate(alphas)
    ]


def tail(paths, prefill=None, **more):
    return request_tail(paths, CELL, [LAYER], make_surface(), prefill, **more)


def seconds_by_hand(path, starts):
    """Rounds at `starts` and plain steps of a path, in seconds."""
    surface = make_surface()
    rounds = [
        surface.round_seconds([LAYER], min(K, path.budget - s - 1), path.prompt_tokens + s - 1)[0]
        for s in starts
    ]
    steps = surface.ar_seconds(path.prompt_tokens + np.arange(1, path.num_tokens) - 1)
    return np.array(rounds), steps


def test_certain_path_by_hand():
    """All accepted, n = 12, k = 4: rounds start at 1 and 6, and one at 11 that drafts nothing."""
    path = make_path(np.append(np.nan, np.ones(11)), temperature=0.0, law="sampled")
    rounds, steps = seconds_by_hand(path, [1, 6, 11])
    found = tail([path])
    assert found.p50_ratio == pytest.approx(rounds.sum() / steps.sum(), rel=1e-12)
    assert found.gap_p99_s == pytest.approx(rounds.max(), rel=1e-12)
    assert found.gap_p99_ar_s == pytest.approx(steps.max(), rel=1e-12)
    assert found.slow_share == 0.0
    assert (found.num_requests, found.num_groups, found.with_prefill) == (1, 1, False)


def test_all_rejected_is_slow_and_prefill_can_hide_it():
    path = make_path(np.append(np.nan, np.zeros(11)), name="p")
    rounds, steps = seconds_by_hand(path, range(1, 12))
    over = rounds.sum() - steps.sum()
    assert tail([path]).slow_share == 1.0
    enough = over / (SLOW_FACTOR - 1) - steps.sum()  # the prefill at which 5 % are just reached
    assert tail([path], {"p": 0.99 * enough}).slow_share == 1.0
    assert tail([path], {"p": 1.01 * enough}).slow_share == 0.0
    found = tail([path], {"p": 7.0})
    assert found.with_prefill
    assert found.p50_ratio == pytest.approx((7 + rounds.sum()) / (7 + steps.sum()), rel=1e-12)


def test_twin_expected_seconds_have_no_tail():
    """Broken twin: 60 equal requests that gain 5 % on average and are often slower in the event.
    Their expected times call none of them slow."""
    paths = drawn_paths(60, 0.65, tokens=30)
    rows = walk(paths, [LAYER], [K], make_surface())
    ratio = (rows["seconds"] / rows["ar_seconds"]).to_numpy()
    assert (ratio < 1.0).all(), f"expected ratio {ratio[0]:.3f}"
    found = tail(paths)
    assert found.slow_share > 0.10, f"slow share {found.slow_share:.3f} at mean {ratio[0]:.3f}"


def test_slow_share_counts_pairs():
    """A quarter of the requests never accept, the others always do."""
    paths = drawn_paths(20, np.repeat([0.0, 1.0], [5, 15]))
    assert tail(paths).slow_share == 0.25
    # One request of a hundred walks weighs like one whose coins are certain.
    mixed = drawn_paths(1, 0.5, seed=1) + drawn_paths(1, 1.0, seed=2)
    one, _ = (tail([path], num_walks=100).slow_share for path in mixed)
    assert tail(mixed, num_walks=100).slow_share == pytest.approx(one / 2, abs=1e-12)


def test_order_of_paths_and_other_paths_change_nothing():
    paths = drawn_paths(25, np.linspace(0.2, 0.9, 25))
    one, two = tail(paths), tail(paths[::-1])
    assert one == two
    assert tail(paths[:1]) == tail(paths[:1])
    assert tail(paths) != tail(paths, seed=1), "another seed should toss other coins"


def test_more_walks_agree_with_fewer():
    """200 and 5000 walks of 20 requests: shares agree within 4.5 standard errors (7e-6)."""
    paths = drawn_paths(20, 0.62, tokens=30)
    few, many = tail(paths), tail(paths, num_walks=5000)
    error = np.sqrt(many.slow_share * (1 - many.slow_share) / (20 * 200))
    assert error > 0
    assert abs(few.slow_share - many.slow_share) < 4.5 * error * 1.03, (few, many)


@pytest.mark.parametrize(
    ("name", "needed"), [("p90_ratio", 20), ("p95_ratio", 60), ("p99_ratio", 300)]
)
def test_quantiles_are_missing_below_their_minimum_of_requests(name, needed):
    """Walks of one request are not more requests."""
    paths = drawn_paths(needed, 0.6, tokens=6)
    assert getattr(tail(paths[1:], num_walks=20), name) is None
    assert getattr(tail(paths, num_walks=20), name) > 0


def test_equal_times_have_quantile_ratio_one():
    """Requests of one output token never speculate, whatever the number of walks."""
    paths = drawn_paths(60, 0.5, tokens=1)
    prefill = {path.path_id: 1.0 + i for i, path in enumerate(paths)}
    found = tail(paths, prefill)
    assert (found.p50_ratio, found.p90_ratio, found.p95_ratio) == (1.0, 1.0, 1.0)
    assert found.slow_share == 0.0
    assert (found.gap_p99_s, found.gap_p99_ar_s) == (None, None)
    assert tail(paths).p50_ratio is None, "no time at all has no ratio"


def test_quantiles_are_over_request_and_walk_pairs():
    """Against numpy on the pooled times of certain paths of different lengths."""
    rng = np.random.default_rng(0)
    paths = [
        make_path(np.append(np.nan, rng.integers(0, 2, n).astype(float)), name=f"p{n}")
        for n in range(3, 43)
    ]
    rows = walk(paths, [LAYER], [K], make_surface())
    times = [np.repeat(rows[name], 10) for name in ("seconds", "ar_seconds")]
    expected = np.quantile(times[0], 0.9) / np.quantile(times[1], 0.9)
    assert tail(paths, num_walks=10).p90_ratio == pytest.approx(expected, rel=1e-9)


def test_gap_is_weighted_with_rounds():
    """Rounds near the budget draft less and are shorter. All rejected at n = 60 and budget 60: 59
    rounds, of which the last four draft fewer than k; the P99 round is the longest of full ones."""
    path = drawn_paths(1, 0.0)[0]
    rounds, _ = seconds_by_hand(path, range(1, 60))
    assert tail([path]).gap_p99_s == pytest.approx(np.sort(rounds)[58], rel=1e-12)
    many = [path, *drawn_paths(99, 1.0, seed=3)]
    certain = [seconds_by_hand(many[1], range(1, 60, 5))[0]] * 99
    pooled = np.sort(np.concatenate([rounds, *certain]))
    expected = pooled[int(np.ceil(0.99 * len(pooled))) - 1]
    assert tail(many).gap_p99_s == pytest.approx(expected, rel=1e-12)


def test_repeats_of_a_prompt_are_no_new_requests():
    paths = drawn_paths(20, np.repeat([0.0, 1.0], [2, 18]))
    repeats = [
        replace(path, path_id=f"{path.path_id}/{i}", group_id=path.group_id)
        for path in paths
        for i in range(5)
    ]
    one, many = tail(paths), tail(repeats)
    assert one.slow_share == many.slow_share == 0.1
    assert (many.num_requests, many.num_groups) == (100, one.num_groups)
    assert many.slow_share_high == one.slow_share_high
    assert one.slow_share_high == pytest.approx(0.3170, abs=1e-4)


@pytest.mark.parametrize(("hits", "trials"), [(0, 20), (2, 20), (1, 300), (20, 20), (7, 12)])
def test_upper_share_is_clopper_pearson(hits, trials):
    expected = stats.binomtest(hits, trials).proportion_ci(0.95, method="exact").high
    assert upper_share(hits / trials, trials) == pytest.approx(expected, rel=1e-9)


def test_upper_share_between_whole_numbers_and_out_of_range():
    assert upper_share(0.10, 20) < upper_share(0.12, 20) < upper_share(0.15, 20)
    for share, trials in ((-0.1, 5), (1.1, 5), (0.1, 0), (np.nan, 5)):
        with pytest.raises(ValueError, match="share"):
            upper_share(share, trials)


def test_no_request_no_tail():
    found = tail([])
    assert (found.slow_share, found.slow_share_high, found.p50_ratio) == (None, None, None)
    assert (found.gap_p99_s, found.num_requests) == (None, 0)


def test_inputs_that_cannot_be_used():
    paths = drawn_paths(2, 0.5)
    with pytest.raises(ValueError, match="exit layer 2"):
        request_tail(paths, (2, 4), [LAYER], make_surface(), None)
    with pytest.raises(ValueError, match="0 walks"):
        tail(paths, num_walks=0)
    with pytest.raises(KeyError, match="p0-1"):
        tail(paths, {"p0-0": 1.0})
    with pytest.raises(ValueError, match="missing"):
        tail([make_path([np.nan, 0.5, np.nan])])
    with pytest.raises(CostRangeError, match="greedy"):
        request_tail(paths, CELL, [LAYER], {"greedy": make_surface(law="greedy")}, None)


def test_a_full_bucket_takes_about_a_second():
    """300 paths, 200 walks, 128 tokens: 0.6 s alone on a core, the allowance is for a busy one."""
    paths = drawn_paths(300, np.linspace(0.1, 0.9, 300), tokens=128)
    start = time.process_time()
    found = tail(paths)
    spent = time.process_time() - start
    assert found.p99_ratio is not None
    assert spent < 3.0, f"{spent:.1f} s"
