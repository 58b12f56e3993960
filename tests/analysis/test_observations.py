"""Coins from observation files, and acceptance by stretch of the output."""

import numpy as np
import pandas as pd
import pytest

from selfspec_cli.analysis.observations import acceptance_table, build_paths
from selfspec_cli.analysis.walk import split_walkable, walk
from selfspec_cli.errors import StorageError


def observe(path_id, coins, request_id="r0", temperature=0.7, drafter="early_exit", first=1):
    """Rows for exits 2, 3, ..; coins [E, n]."""
    exits, n = coins.shape
    position, layer = np.meshgrid(np.arange(first, n), np.arange(2, 2 + exits))
    values = coins[:, first:].ravel()
    return pd.DataFrame(
        {
            "path_id": path_id,
            "request_id": request_id,
            "temperature": temperature,
            "position": position.ravel(),
            "drafter": drafter,
            "exit_layer": layer.ravel(),
            "accept_given_path": values,
            "accept_prob": values / 2,
            "is_argmax": values > 0.5,
        }
    )


def path_rows(*rows):
    names = ["path_id", "request_id", "temperature", "completion_tokens", "finish"]
    return pd.DataFrame(rows, columns=names)


REQUESTS = pd.DataFrame(
    {
        "request_id": ["r0", "r1"],
        "group_id": ["g0", "g1"],
        "prompt_tokens": [10, 20],
        "max_tokens": [50, 60],
        "temperature": [1.0, 1.0],
    }
)


def test_coins_land_at_their_position_and_layer():
    rng = np.random.default_rng(0)
    one, two = rng.random((2, 5)), rng.random((2, 8))
    seen = pd.concat([observe("b", two, "r1"), observe("a", one, "r0")])
    seen = seen.sample(frac=1.0, random_state=1)
    paths = path_rows(("a", "r0", 0.7, 5, "eos"), ("b", "r1", 0.0, 8, "length"))
    built = build_paths(seen, paths, REQUESTS, [3, 2])
    assert [p.path_id for p in built] == ["a", "b"]
    assert np.array_equal(built[0].coins[:, 1:], one[::-1, 1:])
    assert np.array_equal(built[1].coins[:, 1:], two[::-1, 1:])
    assert np.isnan(built[0].coins[:, 0]).all()
    assert (built[1].temperature, built[1].group_id, built[1].prompt_tokens) == (0.0, "g1", 20)


@pytest.mark.parametrize(
    ("finish", "budget"), [("eos", 50), ("stop", 50), ("length", 5), ("unknown", 5)]
)
def test_budget_follows_how_the_path_ended(finish, budget):
    """Only a path that ended by itself drafted beyond its end."""
    seen = observe("a", np.full((1, 5), 0.5))
    built = build_paths(seen, path_rows(("a", "r0", 0.7, 5, finish)), REQUESTS, [2])
    assert built[0].budget == budget


def test_budget_column_wins():
    paths = path_rows(("a", "r0", 0.7, 5, "eos")).assign(budget=9)
    assert build_paths(observe("a", np.ones((1, 5))), paths, REQUESTS, [2])[0].budget == 9


def test_position_zero_and_other_drafters_are_ignored():
    coins = np.full((1, 5), 0.5)
    seen = pd.concat(
        [observe("a", coins, first=0), observe("a", coins * 0, drafter="early_exit+ridge")]
    )
    built = build_paths(seen, path_rows(("a", "r0", 0.7, 5, "eos")), REQUESTS, [2])
    assert np.isnan(built[0].coins[0, 0])
    assert (built[0].coins[0, 1:] == 0.5).all()


def test_unobserved_or_impossible_position_makes_a_path_unwalkable():
    coins = np.full((1, 5), 0.5)
    seen = observe("a", coins)
    paths = path_rows(("a", "r0", 0.7, 5, "eos"))
    gone = build_paths(seen.loc[seen["position"] != 3], paths, REQUESTS, [2])
    zero = build_paths(
        seen.assign(accept_given_path=seen["accept_given_path"].where(seen["position"] != 2)),
        paths,
        REQUESTS,
        [2],
    )
    for built in (gone, zero):
        assert split_walkable(built) == ([], ["a"])


def test_empty_completion_has_no_path():
    paths = path_rows(("a", "r0", 0.7, 0, "eos"), ("b", "r0", 0.7, 3, "eos"))
    built = build_paths(observe("b", np.ones((1, 3))), paths, REQUESTS, [2])
    assert [p.path_id for p in built] == ["b"]


def test_single_token_path_walks_without_a_round():
    paths = path_rows(("a", "r0", 0.7, 1, "eos"))
    built = build_paths(observe("b", np.ones((1, 3))), paths, REQUESTS, [2])
    assert walk(built, [2], [4])["rounds"].tolist() == [0.0]


def test_law_of_a_truncated_request_is_greedy_at_zero():
    requests = REQUESTS.assign(law=["truncated", "penalised"])
    paths = path_rows(
        ("a", "r0", 0.0, 3, "eos"), ("b", "r0", 0.7, 3, "eos"), ("c", "r1", 0.0, 3, "eos")
    )
    seen = pd.concat([observe(name, np.ones((1, 3))) for name in "abc"])
    built = build_paths(seen, paths, requests, [2])
    assert [p.law_class for p in built] == ["greedy", "truncated", "penalised"]


def test_unknown_request_and_overlong_path_are_errors():
    seen = observe("a", np.ones((1, 3)))
    with pytest.raises(StorageError, match="path a belongs to no request"):
        build_paths(seen, path_rows(("a", "nobody", 0.7, 3, "eos")), REQUESTS, [2])
    with pytest.raises(StorageError, match="3 tokens and a budget of 2"):
        build_paths(seen, path_rows(("a", "r0", 0.7, 3, "eos")).assign(budget=2), REQUESTS, [2])


def test_acceptance_table_by_output_band():
    """r is 1 up to position 32, 0.5 up to 128 and 0 beyond."""
    coins = np.concatenate([np.ones(33), np.full(96, 0.5), np.zeros(71)])[None]
    table = acceptance_table(observe("a", coins, first=0)).set_index(["output_from", "output_to"])
    found = {
        (low, None if pd.isna(top) else top): (row["num_positions"], row["accept_given_path_mean"])
        for (low, top), row in table.iterrows()
    }
    assert found == {
        (1, 32): (32, 1.0), (33, 128): (96, 0.5), (129, None): (71, 0.0),
        (1, None): (199, pytest.approx((32 + 48) / 199)),
    }, found  # fmt: skip
    whole = table.loc[table["num_positions"] == 199].iloc[0]
    assert whole["accept_prob_mean"] == pytest.approx((32 + 48) / 199 / 2)
    assert whole["greedy_match"] == pytest.approx(32 / 199)


def test_acceptance_table_leaves_out_bands_and_coins_that_are_missing():
    coins = np.array([[np.nan, 1.0, np.nan, 0.0]])
    table = acceptance_table(observe("a", coins).assign(accept_prob=0.25))
    assert set(table["output_from"]) == {1}
    assert table["accept_given_path_mean"].tolist() == [0.5, 0.5]
    assert table["num_positions"].tolist() == [3, 3]


def test_acceptance_table_by_task():
    seen = pd.concat([observe("a", np.ones((1, 4)), "r0"), observe("b", np.zeros((1, 4)), "r1")])
    requests = pd.DataFrame({"request_id": ["r0", "r1"], "task": ["x", "y"]})
    table = acceptance_table(seen, requests)
    means = table.groupby("task")["accept_given_path_mean"].mean().to_dict()
    assert means == {"x": 1.0, "y": 0.0}


def many(count, draw, group_of=lambda i: f"g{i}"):
    """Observations of `count` requests with constant acceptance draw(i), and their requests."""
    seen = [observe(f"p{i}", np.full((1, 41), draw(i)), f"r{i}") for i in range(count)]
    names = [f"r{i}" for i in range(count)]
    groups = [group_of(i) for i in range(count)]
    requests = pd.DataFrame({"request_id": names, "task": "t", "group_id": groups})
    return pd.concat(seen), requests


def whole(table):
    row = table.loc[(table["output_from"] == 1) & table["output_to"].isna()]
    assert len(row) == 1
    return row.iloc[0]


def test_acceptance_interval_is_over_requests_not_positions():
    """Ten requests of 40 equal positions each: the mean of ten numbers, by hand within a tenth."""
    values = np.linspace(0.3, 0.7, 10)
    row = whole(acceptance_table(*many(10, lambda i: values[i])))
    assert row["accept_prob_mean"] == pytest.approx(0.25)  # the helper halves beta
    half = 2.262 * (values / 2).std(ddof=1) / np.sqrt(10)
    width = (row["accept_prob_high"] - row["accept_prob_low"]) / 2
    assert width == pytest.approx(half, rel=0.1), f"{width:.4f}, by hand {half:.4f}"
    assert row["accept_prob_low"] < 0.25 < row["accept_prob_high"]
    positions = 1.966 * (values / 2).std(ddof=1) / np.sqrt(400)
    assert width > 5 * positions, "twin: 400 positions taken for 400 requests"


def test_acceptance_interval_counts_a_conversation_once():
    """20 requests in 5 conversations of equal acceptance are worth 5."""
    own = whole(acceptance_table(*many(20, lambda i: 0.3 + 0.1 * (i // 4))))
    told = whole(
        acceptance_table(*many(20, lambda i: 0.3 + 0.1 * (i // 4), lambda i: f"g{i // 4}"))
    )
    assert told["accept_prob_mean"] == pytest.approx(own["accept_prob_mean"])
    ratio = (told["accept_prob_high"] - told["accept_prob_low"]) / (
        own["accept_prob_high"] - own["accept_prob_low"]
    )
    assert 2.0 < ratio < 4.0, f"five groups are {ratio:.2f} times as uncertain as twenty"


def test_acceptance_interval_is_missing_without_two_groups_or_any_acceptance():
    for table in (
        acceptance_table(*many(1, lambda i: 0.5)),
        acceptance_table(*many(9, lambda i: 0)),
    ):
        assert np.isnan(whole(table)["accept_prob_low"])
        assert np.isnan(whole(table)["accept_prob_high"])
    row = whole(acceptance_table(*many(9, lambda i: float(i % 3 == 0))))
    assert 0 < row["accept_prob_low"] < row["accept_prob_mean"] == pytest.approx(1 / 6)


def test_acceptance_interval_stays_below_one():
    seen, requests = many(3, lambda i: 1.0 if i else 0.2)
    row = whole(acceptance_table(seen.assign(accept_prob=seen["accept_given_path"]), requests))
    assert row["accept_prob_high"] == 1.0
