"""Static batches: against the walk, by hand, round by round, and a twin that is too optimistic."""

import numpy as np
import pytest
from analysis_helpers import make_path, make_surface, random_paths
from batch_helpers import LinearCosts, batch_surface

from selfspec_cli.analysis.batch_costs import BatchCosts
from selfspec_cli.analysis.batch_pools import BatchSampling, law_pools
from selfspec_cli.analysis.batch_walks import run_plain, run_rounds
from selfspec_cli.analysis.batching import static_batches
from selfspec_cli.analysis.walk import walk
from selfspec_cli.errors import CostRangeError

EXITS = [2, 3, 4, 5]
LINEAR = {"sampled": LinearCosts(), "greedy": LinearCosts()}


def round_by_round(paths, members, k, coin, leaving):
    """Seconds and passes of one batch, in plain loops; `coin(row, position)` says accepted."""
    rows = [paths[i] for i in members]
    starts, seconds, passes = [1] * len(rows), 0.0, 0
    while alive := [i for i, path in enumerate(rows) if starts[i] < path.num_tokens]:
        drafts = {i: min(k, rows[i].budget - starts[i] - 1) for i in alive}
        inside = alive if leaving else range(len(rows))
        context = max(rows[i].prompt_tokens + starts[i] - 1 for i in inside)
        seconds += 1 + 0.3 * max(drafts.values()) + 0.05 * len(inside) + 0.001 * context
        passes += 1
        for i in alive:
            accepted = 0
            while accepted < drafts[i] and starts[i] + accepted < rows[i].num_tokens:
                if not coin(i, starts[i] + accepted):
                    break
                accepted += 1
            starts[i] = min(starts[i] + accepted + 1, rows[i].num_tokens)
    return seconds, passes


def certain(coins):
    return lambda row, position: coins[row][position] == 1.0


def tossed(coins, rng):
    return lambda row, position: rng.random() < coins[row][position]


@pytest.mark.parametrize("leaving", [True, False])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_certain_coins_are_exact(k, leaving):
    """Coins of 0 and 1: every batch equals plain loops over the same rows."""
    rng = np.random.default_rng(k)
    paths = [
        make_path(rng.integers(0, 2, n), budget=n + extra, prompt=int(rng.integers(20, 90)))
        for n, extra in zip([1, 2, 5, 9, 17, 30], [0, 0, 1, 0, 2, 9], strict=True)
    ]
    pool = law_pools(paths, (3, k), [3])[0].rows
    members = rng.integers(0, len(paths), (50, 4))
    costs = LINEAR["sampled"]
    fast = run_rounds(pool, members, pool.toss(members, rng), (3, k), costs, leaving=leaving)
    plain = run_plain(pool, members, costs, leaving=leaving)
    for at, batch in enumerate(members):
        own = [paths[i].coins[0] for i in batch]
        seconds, passes = round_by_round(paths, batch, k, certain(own), leaving)
        assert fast.seconds[at] == pytest.approx(seconds, rel=1e-12), f"batch {at}"
        assert fast.count[at] == passes
        steps, _ = round_by_round(paths, batch, 0, None, leaving)
        assert plain.seconds[at] == pytest.approx(steps, rel=1e-12), f"batch {at}"


@pytest.mark.parametrize("leaving", [True, False])
def test_sampled_batches_agree_with_tossing_round_by_round(leaving):
    """3000 batches against 1500 tossed one by one; 4.5 standard errors, a false alarm of 7e-6."""
    paths, k = random_paths(21, count=8, exits=1, longest=25), 3
    sampling = BatchSampling(batch_size=5, num_batches=3000, leaving=leaving)
    found = static_batches(paths, (3, k), [3], LINEAR, sampling)
    rng = np.random.default_rng(4)
    totals = []
    for _ in range(1500):
        batch = rng.integers(0, len(paths), 5)
        own = [paths[i].coins[0] for i in batch]
        totals.append(round_by_round(paths, batch, k, tossed(own, rng), leaving))
    seconds, passes = np.array(totals).T
    for name, values, estimate in (
        ("seconds", seconds, found.seconds),
        ("passes", passes, found.expected_max_rounds),
    ):
        error = values.std() * np.sqrt(1 / 1500 + 1 / 3000)
        gap = estimate - values.mean()
        assert abs(gap) < 4.5 * error, f"{name}: {estimate:.3f}, by hand {values.mean():.3f}"


@pytest.mark.parametrize("k", [1, 4])
def test_a_batch_of_one_is_the_expected_walk(k):
    """20000 batches of one row; the ratio of sums within 4.5 standard errors, false alarm 7e-6."""
    paths = random_paths(9, count=10)
    found = static_batches(
        paths, (4, k), EXITS, {"sampled": BatchCosts(surfaces={1: make_surface()})},
        BatchSampling(batch_size=1, num_batches=20_000),
    )  # fmt: skip
    table = walk(paths, EXITS, [k], make_surface()).query("exit_layer == 4")
    expected = table["ar_seconds"].sum() / table["seconds"].sum()
    assert abs(found.speedup - expected) < 4.5 * found.speedup_se, (
        f"{found.speedup:.4f} ± {found.speedup_se:.4f}, walk {expected:.4f}"
    )
    assert found.speedup_se < 0.01 * expected, f"error {found.speedup_se:.4f} shows nothing"
    assert found.waiting_share == 0.0
    assert found.plain_waiting_share == 0.0


def toy_paths():
    """Requests of one length whose acceptance differs a little, as the method's toy law."""
    rng = np.random.default_rng(2)
    return [
        make_path(rng.beta(4, 2.5, 101), budget=140, name=f"p{i:02d}", prompt=30) for i in range(40)
    ]


def test_the_longest_row_outlasts_the_largest_expectation():
    """B = 32: E[max] is above max of E in every one of 20 parts, a false alarm of 1e-6."""
    for seed in range(20):
        found = static_batches(
            toy_paths(), (3, 4), [3], LINEAR,
            BatchSampling(batch_size=32, num_batches=10, seed=seed),
        )  # fmt: skip
        assert found.expected_max_rounds > found.max_expected_rounds > found.mean_rounds, (
            found.lasting
        )


def test_a_twin_that_uses_expected_rounds_is_optimistic():
    """Its batches end at their largest expected rounds; the simulation takes visibly longer."""
    costs = {"sampled": BatchCosts(surfaces={s: batch_surface(s) for s in (1, 8, 32)})}
    found = static_batches(toy_paths(), (3, 4), [3], costs, BatchSampling(batch_size=32))
    mean_round = found.seconds / found.expected_max_rounds
    twin = found.plain_seconds / (found.max_expected_rounds * mean_round)
    assert twin > found.speedup + 10 * found.speedup_se, (
        f"twin {twin:.3f}, batches {found.speedup:.3f} ± {found.speedup_se:.4f}"
    )
    assert twin > 1.03 * found.speedup, f"twin {twin:.3f}, batches {found.speedup:.3f}"
    assert found.num_batches >= 200


def test_rows_that_stay_as_padding_cost_more_and_last_as_long():
    """Same draws and coins: the passes are the same, the rows in them are not."""
    paths = random_paths(3, count=20)
    gone, stays = (
        static_batches(paths, (2, 3), EXITS, LINEAR, BatchSampling(batch_size=8, leaving=leaving))
        for leaving in (True, False)
    )
    assert gone.expected_max_rounds == stays.expected_max_rounds
    assert gone.waiting_share == stays.waiting_share
    assert gone.seconds < stays.seconds
    assert gone.plain_seconds < stays.plain_seconds


def test_waiting_share_by_hand():
    """Plain rows of 2 and 10 steps: 12 of 20 row-passes are used if both are drawn, all else."""
    paths = [make_path(np.zeros(n), name=str(n)) for n in (3, 11)]
    found = static_batches(paths, (3, 1), [3], LINEAR, BatchSampling(batch_size=2))
    # Coins of 0: as many rounds as plain steps.
    assert found.waiting_share == pytest.approx(found.plain_waiting_share)
    # A quarter of batches lasts 2, three quarters 10; row-rounds 4, 12 twice, 20.
    expected = 1 - (0.25 * 4 + 0.5 * 12 + 0.25 * 20) / (2 * (0.25 * 2 + 0.75 * 10))
    assert found.waiting_share == pytest.approx(expected, abs=0.06)  # 4 errors of 200 batches


def test_cells_of_one_seed_share_their_batches():
    paths, sampling = random_paths(3, count=20), BatchSampling(batch_size=4, seed=5)
    one, same, other = (
        static_batches(paths, cell, EXITS, LINEAR, sampling) for cell in ((2, 3), (2, 3), (3, 1))
    )
    assert one == same
    assert one.plain_seconds == other.plain_seconds


def test_laws_do_not_mix_in_a_batch():
    """Greedy and sampled rows cannot share a pass that one law's costs price."""

    class Refuses(LinearCosts):
        def round_seconds(self, exit_layer, draft_length, contexts, rows):
            assert set(np.asarray(contexts) // 200) <= {self.side}, "rows of the other law"
            return super().round_seconds(exit_layer, draft_length, contexts, rows)

    paths = [
        make_path(np.full(9, 0.5), prompt=30 + 200 * (i % 2), name=f"{i}", temperature=i % 2)
        for i in range(9)
    ]
    low, high = Refuses(), Refuses()
    low.side, high.side = 0, 1
    found = static_batches(
        paths, (3, 2), [3], {"greedy": low, "sampled": high}, BatchSampling(batch_size=4)
    )
    assert found.speedup > 0
    assert found.num_requests == 9
    with pytest.raises(CostRangeError, match="sampled"):
        static_batches(paths, (3, 2), [3], {"greedy": low}, BatchSampling(batch_size=4))


def test_sizes_that_were_not_timed_leave_seconds_missing():
    """Rows leave, so 8 rows need costs of fewer too; the rounds are known all the same."""
    only = {"sampled": BatchCosts(surfaces={8: batch_surface(8)})}
    paths = random_paths(3, count=20)
    found = static_batches(paths, (2, 3), EXITS, only, BatchSampling(batch_size=8))
    assert (found.seconds, found.plain_seconds, found.speedup, found.speedup_se) == (None,) * 4
    assert found.expected_max_rounds > found.mean_rounds > 0
    padded = BatchSampling(batch_size=8, leaving=False)
    assert static_batches(paths, (2, 3), EXITS, only, padded).speedup > 0


def test_requests_of_one_token_have_no_rounds():
    paths = [make_path(np.zeros(1), name=str(i)) for i in range(3)]
    found = static_batches(paths, (3, 2), [3], LINEAR, BatchSampling(batch_size=2))
    assert found.seconds == found.plain_seconds == found.mean_rounds == 0.0
    assert (found.speedup, found.speedup_se, found.waiting_share) == (None, None, None)


@pytest.mark.parametrize(("paths", "layer"), [([], 3), ([make_path(np.ones(4))], 2)])
def test_nothing_to_draw_from_is_refused(paths, layer):
    with pytest.raises(ValueError, match="exit layer"):
        static_batches(paths, (layer, 2), [3], LINEAR, BatchSampling(batch_size=2))


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"batch_size": 2, "num_batches": 1}])
def test_samplings_without_batches_are_refused(wrong):
    with pytest.raises(ValueError, match="batches of"):
        BatchSampling(**wrong)
