"""The path walk against literal enumeration, a scalar recursion and its own invariances."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from analysis_helpers import ACCEPT_S, PROMPT, cost_rows, make_path, make_surface, random_paths

from selfspec_cli.analysis.walk import round_context, split_walkable, walk
from selfspec_cli.errors import CostRangeError, ShapeError


def decode_with_outcomes(accepted_at, n, budget, k):
    """Play a decode whose coin outcomes are fixed, as a decoder would, round by round.

    Returns one (start, drafted, tested, accepted, committed) a round.
    """
    rounds, committed = [], 1  # x_0 came from prefill
    while committed < n:
        start = committed
        drafted = min(k, budget - committed - 1)
        accepted = tested = 0
        ended = False
        for i in range(drafted):
            position = start + i
            if position >= n:  # beyond an accepted end: drafted, paid, never tested
                break
            tested += 1
            if not accepted_at[position]:
                break
            accepted += 1
            if position == n - 1 and n < budget:
                ended = True
        gained = accepted if ended else accepted + 1
        committed += gained
        rounds.append((start, drafted, tested, accepted, gained))
    return rounds


def enumerate_rounds(coins, n, budget, k, prompt):
    """Exhaustive expectation over all 2^(n-1) outcomes of the coins r_1 .. r_{n-1}."""
    totals = dict.fromkeys(["rounds", "drafted", "tested", "accepted", "committed"], 0.0)
    by_drafted, contexts, by_accepted = np.zeros(k + 1), np.zeros(k + 1), np.zeros(k + 1)
    for outcome in product([False, True], repeat=n - 1):
        flags = [None, *outcome]
        chance = np.prod([c if f else 1 - c for c, f in zip(coins[1:], outcome, strict=True)])
        for start, drafted, tested, accepted, gained in decode_with_outcomes(flags, n, budget, k):
            for key, value in zip(totals, (1, drafted, tested, accepted, gained), strict=True):
                totals[key] += chance * value
            by_drafted[drafted] += chance
            contexts[drafted] += chance * (prompt + start - 1)
            by_accepted[accepted] += chance
    return totals, by_drafted, contexts, by_accepted


def largest_enumeration_gap(coins, n, budget, ks):
    frame = walk([make_path(coins, budget=budget)], [3], ks)
    worst = 0.0
    for _, row in frame.iterrows():
        k = int(row["draft_length"])
        totals, by_drafted, contexts, by_accepted = enumerate_rounds(coins, n, budget, k, PROMPT)
        gaps = [abs(row[key] - value) for key, value in totals.items()]
        gaps.append(np.abs(np.array(row["rounds_by_drafted"]) - by_drafted).max())
        gaps.append(np.abs(np.array(row["context_by_drafted"]) - contexts).max())
        gaps.append(np.abs(np.array(row["rounds_by_accepted"]) - by_accepted).max())
        worst = max(worst, *gaps)
    return worst


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("spare", [0, 1, 2, 3, 12])
def test_walk_every_k_and_budget_equals_enumeration(n, spare):
    """spare 0: the path ends by length; above: by EOS with `spare` tokens of budget left."""
    rng = np.random.default_rng(100 * n + spare)
    coins = rng.random(n)
    gap = largest_enumeration_gap(coins, n, n + spare, list(range(1, 10)))
    assert gap < 1e-9, f"n={n} budget={n + spare}: walk and enumeration differ by {gap:.3e}"


@pytest.mark.parametrize("spare", [0, 4])
def test_walk_certain_coins_equals_enumeration(spare):
    """Coins of exactly 0 and 1 (T = 0, or disjoint laws) are not special."""
    coins = np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    gap = largest_enumeration_gap(coins, 8, 8 + spare, list(range(1, 10)))
    assert gap < 1e-12, f"gap {gap:.3e}"


def test_enumeration_sees_a_walk_that_averages_over_all_starts():
    """Broken twin: weighting every start alike (V_s = 1) is far from the enumeration."""
    coins = np.random.default_rng(5).random(8)
    totals, *_ = enumerate_rounds(coins, 8, 8, 3, PROMPT)
    per_start = [
        1 + sum(np.prod(coins[s : s + j]) for j in range(1, min(3, 8 - s - 1) + 1))
        for s in range(1, 8)
    ]
    twin = 7 / np.mean(per_start)
    assert abs(twin - totals["rounds"]) > 1e-2, f"twin {twin:.4f}, truth {totals['rounds']:.4f}"


def scalar_walk(coins, n, budget, k):
    """Plain-Python recursion of METHOD.md §2: (rounds, drafted, accepted)."""
    starts = [0.0] * (n + k + 2)
    starts[1] = 1.0
    rounds = drafted = accepted = 0.0
    for s in range(1, n):
        tries = min(k, budget - s - 1)
        rounds += starts[s]
        drafted += starts[s] * tries
        chance = starts[s]
        for a in range(min(tries, n - s) + 1):
            stop = a == min(tries, n - s)
            share = chance if stop else chance * (1 - coins[s + a])
            accepted += share * a
            starts[s + a + 1] += share
            if not stop:
                chance *= coins[s + a]
    return rounds, drafted, accepted


def test_walk_long_paths_equals_scalar_reference():
    paths = random_paths(1)
    frame = walk(paths, [2, 3, 4, 5], [1, 2, 5, 8])
    for _, row in frame.iterrows():
        path = next(p for p in paths if p.path_id == row["path_id"])
        coins = path.coins[[2, 3, 4, 5].index(row["exit_layer"])]
        expected = scalar_walk(coins, path.num_tokens, path.budget, int(row["draft_length"]))
        found = (row["rounds"], row["drafted"], row["accepted"])
        assert np.allclose(found, expected, rtol=0, atol=1e-9), (found, expected)


def test_walk_commits_every_token_after_the_first():
    """Internal check: what rounds commit adds up to n - 1, whatever the coins."""
    frame = walk(random_paths(2), [2, 3, 4, 5], [1, 3, 8])
    lengths = {p.path_id: p.num_tokens for p in random_paths(2)}
    gap = np.abs(frame["committed"] - (frame["path_id"].map(lengths) - 1)).max()
    assert gap < 1e-9, f"committed differs from n - 1 by {gap:.3e}"


def test_walk_draft_equal_to_target_commits_k_plus_one_a_round():
    """CASES A14: L = N, k = 4, 40 tokens: 8 rounds and every tested draft accepted."""
    row = walk([make_path(np.ones(40))], [6], [4]).iloc[0]
    assert row["rounds"] == pytest.approx(8, abs=1e-12), row["rounds"]
    assert row["accepted"] == pytest.approx(row["tested"], abs=1e-12)


def test_walk_budget_one_drafts_nothing():
    """CASES A03: a single output token comes from prefill; there is no round."""
    row = walk([make_path([0.5])], [2], [8]).iloc[0]
    assert (row["rounds"], row["drafted"], row["tested"]) == (0, 0, 0)


def test_walk_end_inside_a_round_pays_drafts_beyond_it():
    """EOS at x_2, budget 20, k = 8, all accepted: 1 round, 8 drafts paid, 2 tested."""
    row = walk([make_path([0, 1, 1], budget=20)], [2], [8]).iloc[0]
    found = tuple(row[["rounds", "drafted", "tested", "accepted", "committed"]])
    assert found == pytest.approx((1, 8, 2, 2, 2)), found


def test_walk_last_token_of_the_budget_is_a_plain_step():
    """n = budget = 2: nothing may be drafted, one plain step remains."""
    surface = make_surface()
    row = walk([make_path([0, 1.0], budget=2)], [2], [4], surface).iloc[0]
    assert row["rounds_by_drafted"] == [1.0, 0, 0, 0, 0]
    plain = float(surface.ar_seconds(PROMPT)) + ACCEPT_S
    assert row["seconds"] == pytest.approx(plain, rel=1e-12)


def test_walk_seconds_price_every_round_at_its_own_context():
    """Seconds from the walk = enumeration with each round priced by the surface."""
    surface, rng = make_surface(), np.random.default_rng(8)
    n, budget, k, coins = 7, 9, 3, rng.random(7)
    expected = 0.0
    for outcome in product([False, True], repeat=n - 1):
        chance = np.prod([c if f else 1 - c for c, f in zip(coins[1:], outcome, strict=True)])
        for start, drafted, *_ in decode_with_outcomes([None, *outcome], n, budget, k):
            expected += chance * surface.round_seconds([3], drafted, PROMPT + start - 1)[0]
    row = walk([make_path(coins, budget=budget)], [3], [k], surface).iloc[0]
    assert row["seconds"] == pytest.approx(expected, rel=1e-12)
    plain = sum(float(surface.ar_seconds(PROMPT + s - 1)) for s in range(1, n))
    assert row["ar_seconds"] == pytest.approx(plain, rel=1e-12)


def test_walk_each_path_alone_equals_batch_exactly():
    paths, surface = random_paths(3), make_surface()
    together = walk(paths, [2, 3, 4, 5], [1, 4, 8], surface)
    alone = pd.concat(
        [walk([path], [2, 3, 4, 5], [1, 4, 8], surface) for path in paths], ignore_index=True
    )
    pd.testing.assert_frame_equal(together, alone, check_exact=True)


def test_walk_order_of_paths_layers_and_lengths_changes_nothing():
    paths, surface = random_paths(4), make_surface()
    order = np.random.default_rng(0).permutation(len(paths))
    flipped = [
        make_path(
            paths[i].coins[::-1],
            budget=paths[i].budget,
            prompt=paths[i].prompt_tokens,
            name=paths[i].path_id,
        )
        for i in order
    ]
    keys = ["path_id", "exit_layer", "draft_length"]
    one = walk(paths, [2, 3, 4, 5], [1, 4, 8], surface).sort_values(keys, ignore_index=True)
    two = walk(flipped, [5, 4, 3, 2], [8, 1, 4], surface).sort_values(keys, ignore_index=True)
    pd.testing.assert_frame_equal(one, two, check_exact=True)


def test_walk_duplicated_paths_double_sums_and_keep_ratios():
    paths, surface = random_paths(5), make_surface()
    once = walk(paths, [2, 3, 4, 5], [3], surface)
    twice = walk([*paths, *paths], [2, 3, 4, 5], [3], surface)
    assert twice["seconds"].sum() == pytest.approx(2 * once["seconds"].sum(), rel=1e-12)
    ratio = [frame["ar_seconds"].sum() / frame["seconds"].sum() for frame in (once, twice)]
    assert ratio[0] == pytest.approx(ratio[1], rel=1e-12)


def test_walk_scaling_all_seconds_leaves_speedups():
    paths, rows = random_paths(6), cost_rows()
    slow = rows.assign(seconds=rows["seconds"] * 7.5)
    speedups = []
    for frame in (rows, slow):
        table = walk(paths, [2, 3, 4, 5], [1, 5], make_surface(frame))
        sums = table.groupby(["exit_layer", "draft_length"])[["ar_seconds", "seconds"]].sum()
        speedups.append((sums["ar_seconds"] / sums["seconds"]).to_numpy())
    assert np.allclose(speedups[0], speedups[1], rtol=1e-12), speedups


def test_walk_better_coins_never_need_more_rounds():
    """Coupling: raising coins cannot raise expected rounds at the path's own length."""
    paths = random_paths(7)
    better = [
        make_path(np.sqrt(p.coins), budget=p.budget, prompt=p.prompt_tokens, name=p.path_id)
        for p in paths
    ]
    one = walk(paths, [2, 3, 4, 5], [1, 4, 8])["rounds"]
    two = walk(better, [2, 3, 4, 5], [1, 4, 8])["rounds"]
    assert (two <= one + 1e-9).all(), f"worst rise {(two - one).max():.3e}"


def test_walk_prices_each_path_with_its_own_law():
    greedy = make_path([0, 1, 1, 0], temperature=0.0, name="a")
    sampled = make_path([0, 1, 1, 0], name="b")
    surfaces = {"greedy": make_surface(law="greedy"), "sampled": make_surface()}
    table = walk([greedy, sampled], [3], [2], surfaces).set_index("path_id")
    assert table.loc["a", "law"] == "greedy"
    assert table.loc["a", "ar_seconds"] < table.loc["b", "ar_seconds"]


def test_walk_unmeasured_law_is_refused():
    with pytest.raises(CostRangeError, match="penalised"):
        walk([make_path([0, 1, 1], law="penalised")], [3], [2], {"sampled": make_surface()})


def test_walk_context_beyond_the_measured_range_is_refused():
    with pytest.raises(CostRangeError, match=r"16 to 512 tokens"):
        walk([make_path(np.ones(30), prompt=500)], [3], [2], make_surface())


def test_walk_missing_coin_is_counted_and_refused():
    good, bad = make_path([0, 0.5, 0.5], name="good"), make_path([0, 0.5, np.nan], name="bad")
    kept, skipped = split_walkable([good, bad])
    assert [p.path_id for p in kept] == ["good"]
    assert skipped == ["bad"]
    with pytest.raises(ValueError, match="bad has missing coins"):
        walk([good, bad], [3], [2])


def test_walk_wrong_number_of_layers_is_a_shape_error():
    with pytest.raises(ShapeError, match="2 exit layers"):
        walk([make_path([0, 0.5])], [3, 4], [2])


@pytest.mark.parametrize("ks", [[], [0, 1]])
def test_walk_draft_length_below_one_is_refused(ks):
    with pytest.raises(ValueError, match="draft lengths"):
        walk([make_path([0, 0.5])], [3], ks)


def test_walk_no_paths_gives_an_empty_table_with_columns():
    frame = walk([], [3], [2])
    assert len(frame) == 0
    assert "rounds_by_drafted" in frame.columns


@pytest.mark.parametrize(
    ("coins", "budget", "message"),
    [([0, 0.5], 1, "budget 1 < 2"), ([0, 1.5], 2, "outside"), ([0, -0.1], 2, "outside")],
)
def test_path_coins_refuses_impossible_values(coins, budget, message):
    with pytest.raises(ValueError, match=message):
        make_path(coins, budget=budget)


def test_round_context_is_what_the_cache_holds():
    """A round that starts at 1 has the prompt in its cache and x_0 as its first input."""
    assert int(round_context(10, 1)) == 10
