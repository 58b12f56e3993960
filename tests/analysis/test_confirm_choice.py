"""Which cells are decoded for real, on which paths, within which time."""

from dataclasses import replace

import pandas as pd
import pytest

from selfspec_cli.analysis.confirm_choice import (
    MIN_BUDGET_S,
    Limits,
    RuleCell,
    auto_budget,
    bucket_seconds,
    choose,
    choose_paths,
    with_buckets,
)
from selfspec_cli.buckets import BucketKey

LAYERS, LENGTHS = (2, 4, 6, 8), (1, 2, 4)
LIMITS = Limits(cells=8, requests=3, min_tokens=32, repeats=1, budget_s=1e9, seed=5)


def key(task, temperature=0.0, band=(0, None)):
    return BucketKey(task=task, context_min=band[0], context_max=band[1], temperature=temperature)


def walk_of(task, *, paths=6, temperature=0.0, committed=40.0, plain=1.0, prefill=0.5, groups=None):
    """Walk rows of one bucket; every cell takes 0.1 s for a layer and 0.01 s for a draft more."""
    return pd.DataFrame(
        [
            {
                "path_id": f"{task}{i}|T={temperature:g}", "request_id": f"{task}{i}",
                "group_id": groups[i] if groups else f"{task}{i}", "temperature": temperature,
                "prompt_tokens": 10 + i, "exit_layer": layer, "draft_length": k,
                "committed": committed, "ar_seconds": plain, "seconds": 0.1 * layer + 0.01 * k,
                "prefill_seconds": prefill,
            }
            for i in range(paths)
            for layer in LAYERS
            for k in LENGTHS
        ]
    )  # fmt: skip


def rule(task, share, *, enabled=False, cell=(4, 2), runner_up=None, temperature=0.0):
    return RuleCell(
        bucket=key(task, temperature), cell=cell, enabled=enabled, time_share=share,
        runner_up=runner_up,
    )  # fmt: skip


def buckets_of(*tasks, **options):
    return {key(task, options.get("temperature", 0.0)): walk_of(task, **options) for task in tasks}


def picked(choice):
    return [(one.bucket.task, one.cell, one.role) for one in choice.cells]


def test_enabled_rules_come_first_then_disabled_ones_each_by_traffic():
    rules = [rule("a", 0.5), rule("b", 0.1, enabled=True), rule("c", 0.3, enabled=True),
             rule("d", 0.1)]  # fmt: skip
    for order in (rules, rules[::-1]):
        found = picked(choose(order, buckets_of("a", "b", "c", "d"), LIMITS))
        assert [task for task, _, role in found if role == "rule"] == ["c", "b", "a", "d"]
        assert [task for task, _, role in found if role != "rule"] == ["c", "c"]


def test_runner_up_and_contrast_keep_their_places_among_many_rules():
    tasks = [f"t{i:02}" for i in range(12)]
    rules = [rule(task, 1 / (2 + i), enabled=True) for i, task in enumerate(tasks)]
    found = picked(choose(rules, buckets_of(*tasks), LIMITS))
    assert len(found) == 8
    assert found[0] == ("t00", (4, 2), "rule")
    assert [role for _, _, role in found].count("rule") == 6
    roles = {role: (task, cell) for task, cell, role in found if role != "rule"}
    assert roles["runner_up"] == ("t00", (2, 1)), "the fastest other cell by prediction"
    assert roles["contrast"] == ("t00", (8, 4)), "two of three layer steps and both k steps away"


def test_the_plans_own_runner_up_is_taken_and_no_cell_twice():
    own = picked(choose([rule("a", 1.0, runner_up=(8, 4))], buckets_of("a"), LIMITS))
    assert own[1] == ("a", (8, 4), "runner_up")
    assert own[2][1] not in {(4, 2), (8, 4)}
    assert own[2] == ("a", (2, 4), "contrast"), "no other is far in both; (8, 1) costs more"


def test_the_contrast_is_the_cheapest_of_those_far_in_both():
    """From (8, 1): L up to 5 and k from 3 on are at least half the ranges away."""
    found = picked(choose([rule("a", 1.0, cell=(8, 1))], buckets_of("a"), LIMITS))
    assert found[2] == ("a", (2, 4), "contrast")
    dear = walk_of("a")
    dear.loc[dear["exit_layer"] == 2, "seconds"] += 5.0
    assert picked(choose([rule("a", 1.0, cell=(8, 1))], {key("a"): dear}, LIMITS))[2] == (
        "a", (4, 4), "contrast",
    )  # fmt: skip


@pytest.mark.parametrize(("cells", "roles"), [
    (1, ["rule"]), (2, ["rule", "runner_up"]), (3, ["rule", "runner_up", "contrast"]), (0, []),
])  # fmt: skip
def test_few_cells_are_spent_in_order(cells, roles):
    rules = [rule("a", 0.6), rule("b", 0.4)]
    choice = choose(rules, buckets_of("a", "b"), replace(LIMITS, cells=cells))
    assert [one.role for one in choice.cells] == roles


def test_a_bucket_with_one_cell_has_no_rival():
    rows = walk_of("a").query("exit_layer == 4 and draft_length == 2")
    assert picked(choose([rule("a", 1.0)], {key("a"): rows}, LIMITS)) == [("a", (4, 2), "rule")]


def test_rules_without_a_path_to_decode_are_passed_over():
    assert choose([rule("gone", 1.0)], buckets_of("a"), LIMITS).cells == ()
    assert choose([], {}, LIMITS).predicted_s == 0


def test_every_cell_decodes_requests_of_its_own_bucket():
    choice = choose([rule("a", 0.6), rule("b", 0.4)], buckets_of("a", "b"), LIMITS)
    for one in choice.cells:
        assert len(one.path_ids) == 3
        assert all(path_id.startswith(one.bucket.task) for path_id in one.path_ids), one
    shared = {one.path_ids for one in choice.cells if one.bucket.task == "a"}
    assert len(shared) == 1, "cells of one bucket share paths, and with them plain decodes"


def test_cells_are_taken_while_they_fit():
    """Greedy, three paths of prefill 0.5 and plain 1.0; a bucket of one cell: 3 * (0.5 + 2 * 1)
    + 3 * 0.42 = 8.76 s; runner-up and contrast of the first add 3 * 0.21 and 3 * 0.84.
    """
    rules = [rule(task, share) for task, share in (("a", 0.5), ("b", 0.3), ("c", 0.2))]
    rows = buckets_of("a", "b", "c")
    full = choose(rules, rows, LIMITS)
    assert full.predicted_s == pytest.approx(8.76 + 0.63 + 2.52 + 2 * 8.76)
    assert full.num_left_out == 0
    some = choose(rules, rows, replace(LIMITS, budget_s=8.76 + 0.63 + 2.52 + 8.76 + 1e-6))
    assert [one.bucket.task for one in some.cells] == ["a", "a", "a", "b"]
    assert some.num_left_out == 1
    assert some.predicted_s <= 8.76 + 0.63 + 2.52 + 8.76 + 1e-6


def test_a_cell_too_dear_makes_room_for_a_cheaper_one_after_it():
    rows = buckets_of("a", "c") | {key("b"): walk_of("b", prefill=1000.0)}
    rules = [rule(task, share) for task, share in (("a", 0.5), ("b", 0.3), ("c", 0.2))]
    choice = choose(rules, rows, replace(LIMITS, budget_s=100.0))
    assert [one.bucket.task for one in choice.cells if one.role == "rule"] == ["a", "c"]
    assert choice.num_left_out == 1, "a long prompt costs prefill, and prefill counts"


def test_one_cell_is_always_confirmed():
    choice = choose([rule("a", 1.0), rule("b", 0.5)], buckets_of("a", "b"),
                    replace(LIMITS, budget_s=0.0))  # fmt: skip
    assert picked(choice) == [("a", (4, 2), "rule")]
    assert choice.predicted_s == pytest.approx(8.76)


def test_free_decodes_and_law_passes_count_above_temperature_zero():
    rows = walk_of("a", paths=1, temperature=0.7)
    path = rows["path_id"].iloc[0]
    one = bucket_seconds(rows, [path], [(4, 2)], 1)
    assert one == pytest.approx(2 * 0.5 + 2 * 1.0 + 2 * 0.42)
    four = bucket_seconds(rows, [path], [(4, 2), (2, 1), (2, 2), (2, 4)], 1)
    assert four == pytest.approx(2 * 0.5 + 3 * 1.0 + 2 * (0.42 + 0.21 + 0.22 + 0.24))
    assert bucket_seconds(rows, [path], [(4, 2)], 3) == pytest.approx(1.0 + 3 * (2.0 + 0.84))


def test_the_default_budget_is_a_fifth_of_the_run_and_at_least_three_minutes():
    assert auto_budget(10.0) == MIN_BUDGET_S == 90
    assert auto_budget(2000.0) == pytest.approx(400)


def test_paths_are_drawn_by_hash_and_not_by_length():
    """Lengths rise with the path's number; the mean number drawn over 200 seeds must be that of a
    fair draw, 9.5 of 0..19 with a standard error of 0.19 (4 errors: a false alarm in 6e-5).
    """
    rows = pd.concat(
        [walk_of("a", paths=20).query(f"path_id == 'a{i}|T=0'").assign(committed=40.0 + i)
         for i in range(20)]
    )  # fmt: skip
    drawn = [
        int(path_id[1:].split("|")[0])
        for seed in range(200)
        for path_id in choose_paths(rows, replace(LIMITS, requests=5, seed=seed))
    ]
    mean = sum(drawn) / len(drawn)
    assert abs(mean - 9.5) < 0.76, f"paths drawn have the mean number {mean:.2f}, not 9.5"
    again = choose_paths(rows.sample(frac=1, random_state=1), LIMITS)
    assert again == choose_paths(rows, LIMITS), "the order of rows plays no part"


def test_short_paths_follow_only_where_long_ones_are_too_few():
    rows = walk_of("a", paths=4)
    short = rows["path_id"].isin(["a0|T=0", "a2|T=0"])
    rows["committed"] = 40.0 - 35.0 * short
    assert set(choose_paths(rows, replace(LIMITS, requests=2))) == {"a1|T=0", "a3|T=0"}
    thin = choose_paths(rows, LIMITS)
    assert set(thin[:2]) == {"a1|T=0", "a3|T=0"}
    assert len(thin) == 3
    rows["committed"] = 31.0  # with x_0: 32 output tokens, enough
    rows.loc[rows["path_id"] == "a3|T=0", "committed"] = 30.0
    assert "a3|T=0" not in choose_paths(rows, LIMITS)


def test_one_path_a_group():
    rows = walk_of("a", paths=6, groups=["x", "x", "x", "y", "y", "z"])
    paths = choose_paths(rows, LIMITS)
    groups = dict(zip(rows["path_id"], rows["group_id"], strict=True))
    assert sorted(groups[path] for path in paths) == ["x", "y", "z"]


def test_buckets_are_task_band_and_temperature_of_what_can_be_drafted():
    rows = pd.concat([walk_of("a", paths=3), walk_of("a", paths=3, temperature=0.7)])
    rows.loc[rows["request_id"] == "a2", "prompt_tokens"] = 700
    rows.loc[rows["path_id"] == "a0|T=0.7", "committed"] = 0.0
    requests = pd.DataFrame({"request_id": ["a0", "a1", "a2"], "task": ["chat", "chat", "chat"]})
    found = with_buckets(rows, requests, (0, 512))
    want = {
        key("chat", 0.0, (0, 512)): {"a0|T=0", "a1|T=0"},
        key("chat", 0.7, (0, 512)): {"a1|T=0.7"},
        key("chat", 0.0, (512, None)): {"a2|T=0"},
        key("chat", 0.7, (512, None)): {"a2|T=0.7"},
    }
    assert {bucket: set(rows["path_id"]) for bucket, rows in found.items()} == want
    cells = len(LAYERS) * len(LENGTHS)
    assert len(found[key("chat", 0.0, (0, 512))]) == 2 * cells
