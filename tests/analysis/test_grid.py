"""The grid: ratios of sums per bucket, its interval and cross-checks, and its ranking."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from analysis_helpers import cost_rows, make_path, make_surface
from batch_helpers import batch_surface, batch_surfaces

from selfspec_cli.analysis.batching import at_batch
from selfspec_cli.analysis.closed_form import closed_form_speedup
from selfspec_cli.analysis.grid import ALL_TASKS, COLUMNS, base_batch, build_grid, rank_cells
from selfspec_cli.analysis.intervals import ratio_interval
from selfspec_cli.analysis.walk import walk
from selfspec_cli.errors import StorageError

EDGES = (0, 100, 300)
EXITS, KS = [2, 3, 4], [1, 2, 5]


@pytest.fixture(scope="module")
def paths():
    """24 requests of two tasks, prompts on both sides of the edges, at T = 0 and 0.7."""
    rng = np.random.default_rng(11)
    made = []
    for i in range(24):
        for temperature in (0.0, 0.7):
            n = int(rng.integers(5, 40))
            coins = rng.beta(2, 1, size=(len(EXITS), n))
            prompt = [20, 99, 100, 350][i % 4]
            made.append(
                make_path(
                    coins.round() if temperature == 0.0 else coins,
                    budget=n + int(rng.integers(0, 3)),
                    prompt=prompt,
                    name=f"{i:02d}",
                    temperature=temperature,
                )
            )
    return made


@pytest.fixture(scope="module")
def surfaces():
    return {"greedy": make_surface(law="greedy"), "sampled": make_surface()}


@pytest.fixture(scope="module")
def requests():
    ids = [f"r-{i:02d}" for i in range(24)]
    return pd.DataFrame(
        {"request_id": ids, "task": ["chat" if i % 2 else "code" for i in range(24)]}
    )


@pytest.fixture(scope="module")
def table(paths, surfaces):
    return walk(paths, EXITS, KS, surfaces)


@pytest.fixture(scope="module")
def grid(table, requests, surfaces):
    return build_grid(table, requests, surfaces, EDGES)


def cell_of(grid, task, low, temperature, layer, k):
    chosen = grid.loc[
        (grid["task"] == task)
        & (grid["context_min"] == low)
        & (grid["temperature"] == temperature)
        & (grid["exit_layer"] == layer)
        & (grid["draft_length"] == k)
    ]
    assert len(chosen) == 1, f"{len(chosen)} rows"
    return chosen.iloc[0]


def test_grid_has_the_contract_columns_and_one_row_a_cell(grid):
    assert list(grid.columns) == list(COLUMNS)
    keys = ["task", "context_min", "temperature", "exit_layer", "draft_length"]
    assert not grid.duplicated(keys).any()
    # code prompts: 20 and 100; chat prompts: 99 and 350; and one roll-up a temperature.
    buckets = grid.groupby(["task", "context_min", "temperature"]).ngroups
    assert buckets == 2 * (2 + 2 + 1), buckets
    assert len(grid) == buckets * len(EXITS) * len(KS)


def test_grid_band_borders_and_the_open_band(grid):
    """A prompt of 99 lies in [0, 100), one of 100 in [100, 300), one of 350 beyond."""
    bands = grid.loc[grid["evidence"] == "own", ["task", "context_min", "context_max"]]
    found = {
        (task, low, None if pd.isna(top) else int(top))
        for task, low, top in bands.drop_duplicates().itertuples(index=False)
    }
    assert found == {
        ("code", 0, 100), ("code", 100, 300), ("chat", 0, 100), ("chat", 300, None),
    }, found  # fmt: skip


def test_grid_speedup_and_interval_are_those_of_the_rows(grid, table):
    """Estimate and jackknife by hand for one cell; the helper's blocks add no cost uncertainty."""
    rows = table.loc[
        table["request_id"].isin([f"r-{i:02d}" for i in range(0, 24, 4)])
        & (table["temperature"] == 0.7)
        & (table["exit_layer"] == 3)
        & (table["draft_length"] == 2)
    ]
    expected = ratio_interval(rows["ar_seconds"], rows["seconds"], rows["group_id"])
    cell = cell_of(grid, "code", 0, 0.7, 3, 2)
    assert cell["num_requests"] == 6
    assert cell["num_tokens"] == round(rows["committed"].sum()) + 6
    found = cell[["predicted_speedup", "predicted_speedup_low", "predicted_speedup_high"]]
    assert list(found) == pytest.approx([expected.estimate, expected.low, expected.high], rel=1e-6)


def test_grid_rates_are_ratios_of_sums(grid, table):
    rows = table.loc[
        (table["temperature"] == 0.7) & (table["exit_layer"] == 3) & (table["draft_length"] == 5)
    ]
    cell = cell_of(grid, ALL_TASKS, 0, 0.7, 3, 5)
    sums = rows[["rounds", "drafted", "tested", "accepted"]].sum()
    assert cell["acceptance_rate_tested"] == pytest.approx(sums["accepted"] / sums["tested"])
    assert cell["acceptance_rate_drafted"] == pytest.approx(sums["accepted"] / sums["drafted"])
    assert cell["block_efficiency"] == pytest.approx(1 + sums["accepted"] / sums["rounds"])
    assert cell["evidence"] == "all"


def test_grid_closed_form_uses_the_tested_rate_and_the_row_s_costs(grid):
    cell = cell_of(grid, ALL_TASKS, 0, 0.7, 3, 5)
    expected = closed_form_speedup(
        cell["acceptance_rate_tested"],
        5,
        draft_cost_ratio=cell["draft_cost_ratio"],
        verify_cost_ratio=cell["verify_cost_ratio"],
        overhead_ratio=cell["overhead_ratio"],
    )
    assert cell["closed_form_speedup"] == pytest.approx(float(expected), rel=1e-12)
    assert abs(cell["closed_form_speedup"] / cell["predicted_speedup"] - 1) > 1e-4


def test_grid_cost_ratios_follow_the_law(grid):
    """Greedy head and draw are cheaper in the helper's costs, and so is a plain step."""
    surface = make_surface(law="greedy")
    greedy = cell_of(grid, "code", 0, 0.0, 3, 2)
    assert greedy["draft_cost_ratio"] == pytest.approx(surface.draft_cost_ratio(3, 35), rel=0.01)
    sampled = cell_of(grid, "code", 0, 0.7, 3, 2)
    assert greedy["draft_cost_ratio"] < sampled["draft_cost_ratio"]


def test_grid_cost_uncertainty_widens_the_interval(table, requests):
    """Layers that vary between blocks while the head does not make the speedup uncertain."""
    rows = cost_rows(factors=(1.0,) * 5)
    wobble = rows["block"].map({0: 1.0, 1: 1.5, 2: 0.5, 3: 1.3, 4: 0.7})
    upset = rows.assign(
        seconds=rows["seconds"].where(
            ~rows["part"].str.startswith("layers/"), rows["seconds"] * wobble
        )
    )
    only = table.loc[table["temperature"] == 0.7]
    calm = build_grid(only, requests, make_surface(rows), EDGES)
    shaky = build_grid(only, requests, make_surface(upset), EDGES)
    widths = [
        np.log(g["predicted_speedup_high"] / g["predicted_speedup_low"]) for g in (calm, shaky)
    ]
    assert (widths[1] > widths[0] * 1.2).all(), (widths[0].median(), widths[1].median())
    assert np.allclose(calm["predicted_speedup"], shaky["predicted_speedup"])


def test_grid_groups_not_requests_are_the_unit(table, requests, surfaces):
    """Twelve conversations of two requests: the interval is that of the conversations."""
    number = table["request_id"].str[2:].astype(int)
    grouped = table.assign(group_id="talk" + (number // 2).astype(str))
    grid = build_grid(grouped, requests, surfaces, EDGES)
    rows = grouped.loc[
        (grouped["temperature"] == 0.7)
        & (grouped["exit_layer"] == 2)
        & (grouped["draft_length"] == 1)
    ]
    expected = ratio_interval(rows["ar_seconds"], rows["seconds"], rows["group_id"])
    assert expected.num_groups == 12
    cell = cell_of(grid, ALL_TASKS, 0, 0.7, 2, 1)
    assert cell["predicted_speedup_low"] == pytest.approx(expected.low, rel=1e-6)
    assert cell["num_requests"] == 24


def test_grid_laws_of_one_bucket_share_their_cost_blocks(paths, requests):
    """Blocks slow as a whole cancel in the speedup, also where a bucket mixes two laws."""
    mixed = [
        replace(path, law="truncated" if i % 4 == 1 else "sampled")
        for i, path in enumerate(paths)
        if path.temperature == 0.7
    ]
    rows = cost_rows(laws=("sampled", "truncated"), factors=(1.0, 1.4, 0.6, 1.2, 0.8))
    surfaces = {law: make_surface(rows, law=law) for law in ("sampled", "truncated")}
    table = walk(mixed, EXITS, KS, surfaces)
    assert set(table["law"]) == {"sampled", "truncated"}
    grid = build_grid(table, requests, surfaces, EDGES)
    cell = cell_of(grid, ALL_TASKS, 0, 0.7, 3, 2)
    one = table.loc[(table["exit_layer"] == 3) & (table["draft_length"] == 2)]
    expected = ratio_interval(one["ar_seconds"], one["seconds"], one["group_id"])
    assert cell["predicted_speedup_low"] == pytest.approx(expected.low, rel=1e-6)


def test_grid_one_block_of_costs_leaves_the_interval_missing(table, requests):
    surface = make_surface(cost_rows(factors=(1.0,)))
    only = table.loc[table["temperature"] == 0.7]
    grid = build_grid(only, requests, surface, EDGES)
    assert grid["predicted_speedup"].notna().all()
    assert grid["predicted_speedup_low"].isna().all()


def test_grid_permuted_and_duplicated_input(table, requests, surfaces, grid):
    """Order does not matter; every request twice under new ids keeps the estimates."""
    shuffled = table.sample(frac=1.0, random_state=3)
    again = build_grid(shuffled, requests.sample(frac=1.0, random_state=1), surfaces, EDGES)
    pd.testing.assert_frame_equal(grid, again, rtol=1e-9)
    copy = table.assign(
        request_id=table["request_id"] + "-b", path_id=table["path_id"] + "-b",
        group_id=table["group_id"] + "-b",
    )  # fmt: skip
    more = pd.concat([requests, requests.assign(request_id=requests["request_id"] + "-b")])
    double = build_grid(pd.concat([table, copy]), more, surfaces, EDGES)
    assert np.allclose(double["predicted_speedup"], grid["predicted_speedup"], rtol=1e-9)
    assert (double["num_requests"] == 2 * grid["num_requests"]).all()
    narrow = double["predicted_speedup_high"] / double["predicted_speedup_low"]
    assert (narrow < grid["predicted_speedup_high"] / grid["predicted_speedup_low"]).all()


def test_grid_request_speedup_lies_between_one_and_the_decode_speedup(table, requests, surfaces):
    grid = build_grid(table.assign(prefill_seconds=50.0), requests, surfaces, EDGES)
    decode, request = grid["predicted_speedup"], grid["predicted_request_speedup"]
    assert ((request - 1).abs() < (decode - 1).abs()).all()
    assert (np.sign(request - 1) == np.sign(decode - 1)).all()


def test_grid_request_speedup_is_missing_where_a_prefill_is(table, requests, surfaces):
    """Files of earlier versions hold no prefill; a part of it would understate the time."""
    older = build_grid(table.drop(columns="prefill_seconds"), requests, surfaces, EDGES)
    assert older["predicted_request_speedup"].isna().all()
    for gaps in (slice(None), slice(0, 1)):
        holed = table.assign(prefill_seconds=50.0)
        holed.loc[holed.index[gaps], "prefill_seconds"] = np.nan
        pooled = build_grid(holed, requests, surfaces, EDGES).query("evidence == 'all'")
        assert pooled["predicted_speedup"].notna().all()
        assert pooled["predicted_request_speedup"].isna().any()


def test_grid_without_costs_shows_acceptance_only(paths, requests):
    grid = build_grid(walk(paths, EXITS, KS), requests, None, EDGES)
    assert grid["block_efficiency"].notna().all()
    for name in ("predicted_speedup", "draft_cost_ratio", "closed_form_speedup"):
        assert grid[name].isna().all(), name


def test_grid_requests_of_one_token_have_missing_acceptance(surfaces):
    """CASES B11: nothing is ever drafted; null, not 0 and not 1."""
    table = walk([make_path(np.zeros((3, 1)), name="a")], EXITS, KS, surfaces)
    requests = pd.DataFrame({"request_id": ["r-a"], "task": ["score"]})
    grid = build_grid(table, requests, surfaces, EDGES)
    for name in ("acceptance_rate_tested", "block_efficiency", "predicted_speedup"):
        assert grid[name].isna().all(), name
    assert (grid["num_tokens"] == 1).all()


def test_grid_task_named_like_the_roll_up_stays_apart(table, surfaces):
    requests = pd.DataFrame({"request_id": table["request_id"].unique(), "task": ALL_TASKS})
    grid = build_grid(table, requests, surfaces, (0,))
    assert sorted(grid["evidence"].unique()) == ["all", "own"]
    assert (grid.groupby("evidence")["num_requests"].max() == 24).all()


def test_grid_unknown_request_is_an_error(table, requests, surfaces):
    with pytest.raises(StorageError, match="r-00"):
        build_grid(table, requests.iloc[1:], surfaces, EDGES)


def test_grid_empty_walk_is_an_empty_grid(requests):
    assert list(build_grid(walk([], EXITS, KS), requests, None, EDGES).columns) == list(COLUMNS)


def test_rank_is_by_speedup_inside_each_bucket(grid):
    ranked = rank_cells(grid)
    for _, bucket in ranked.groupby(["task", "context_min", "temperature"]):
        assert list(bucket["rank"]) == list(range(1, len(EXITS) * len(KS) + 1))
        assert bucket["predicted_speedup"].is_monotonic_decreasing
    best = ranked.loc[ranked["rank"] == 1]
    by_rate = grid.loc[grid.groupby(["task", "context_min", "temperature"])[
        "acceptance_rate_drafted"].idxmax()]  # fmt: skip
    assert (by_rate["draft_length"] == 1).mean() > 0.9, "the drafted rate prefers the smallest k"
    assert len(best) == len(by_rate)


def test_rank_ties_prefer_small_k_then_small_layer_and_missing_comes_last():
    base = {"task": "t", "context_min": 0, "context_max": pd.NA, "temperature": 0.0,
            "batch_size": 1, "evidence": "own", "drafter": "early_exit"}  # fmt: skip
    cells = [(4, 2, 1.2), (3, 2, 1.2), (3, 1, 1.2), (5, 1, np.nan), (6, 8, 1.5)]
    grid = pd.DataFrame(
        [{**base, "exit_layer": e, "draft_length": k, "predicted_speedup": s} for e, k, s in cells]
    )
    ranked = rank_cells(grid)
    assert list(zip(ranked["exit_layer"], ranked["draft_length"], strict=True)) == [
        (6, 8), (3, 1), (3, 2), (4, 2), (5, 1),
    ]  # fmt: skip
    assert pd.isna(ranked["rank"].iloc[-1])


def test_dominated_cell_never_moves_the_best(table, requests, surfaces, grid):
    """Adding an exit layer that is slower everywhere leaves the winners."""
    worse = table.loc[table["exit_layer"] == 4].assign(exit_layer=6)
    worse = worse.assign(seconds=worse["seconds"] * 3)
    wider = build_grid(pd.concat([table, worse]), requests, surfaces, EDGES)
    winners = [
        rank_cells(g).query("rank == 1")[["task", "context_min", "exit_layer", "draft_length"]]
        for g in (grid, wider)
    ]
    assert winners[0].to_numpy().tolist() == winners[1].to_numpy().tolist()


SIZES = (1, 4, 16)


@pytest.fixture(scope="module")
def by_batch():
    return batch_surfaces(*SIZES)


@pytest.fixture(scope="module")
def batches(table, requests, surfaces, by_batch):
    """The grid at three batch sizes; a prefill of 50 s."""
    return build_grid(
        table.assign(prefill_seconds=50.0), requests, surfaces, EDGES, by_batch=by_batch
    )


def test_grid_of_one_batch_size_is_the_same_bytes(table, requests, surfaces, by_batch, grid):
    """Naming the walk's own size adds nothing, and other sizes leave its rows alone."""
    only = build_grid(table, requests, surfaces, EDGES, by_batch={1: by_batch[1]})
    assert only.to_csv() == grid.to_csv()
    several = build_grid(table, requests, surfaces, EDGES, by_batch=by_batch)
    assert base_batch(several).to_csv() == grid.to_csv()
    assert list(several.columns) == list(COLUMNS)


def test_grid_has_every_cell_at_every_batch_size(batches, grid):
    sizes = batches["batch_size"].value_counts().to_dict()
    assert sizes == dict.fromkeys(SIZES, len(grid)), sizes
    keys = ["task", "context_min", "temperature", "batch_size", "evidence", "exit_layer"]
    ordered = batches.sort_values([*keys, "draft_length"], kind="stable")
    # "all" and "own" share no task here, so the table is in the order of its keys.
    assert ordered.index.is_monotonic_increasing


def test_grid_speedups_at_a_batch_size_are_ratios_of_its_shares(batches, table, by_batch):
    for size in SIZES:
        rows = at_batch(table, by_batch[size], size)
        rows = rows.query("temperature == 0.7 and exit_layer == 3 and draft_length == 5")
        expected = ratio_interval(rows["ar_seconds"], rows["seconds"], rows["group_id"])
        cell = cell_of(batches.query(f"batch_size == {size}"), ALL_TASKS, 0, 0.7, 3, 5)
        assert cell["predicted_speedup"] == pytest.approx(expected.estimate, rel=1e-12), size
        assert cell["predicted_speedup_low"] == pytest.approx(expected.low, rel=1e-6), size
        plain, fast = rows["ar_seconds"].sum(), rows["seconds"].sum()
        # Each of the 24 requests runs its prompt alone, whatever the batch.
        request = (plain + 24 * 50.0) / (fast + 24 * 50.0)
        assert cell["predicted_request_speedup"] == pytest.approx(request, rel=1e-12), size


def test_grid_ratios_at_a_batch_size_are_those_of_its_surface(table, requests, surfaces):
    """Layers that take four times as long in a batch make drafts dearer than the head does."""
    rows = cost_rows()
    heavy = rows.assign(
        seconds=rows["seconds"].where(rows["part"] != "layers/full", rows["seconds"] * 4)
    )
    costs = {law: batch_surface(4, law, heavy, 1.0) for law in ("greedy", "sampled")}
    grid = build_grid(table, requests, surfaces, EDGES, by_batch={1: surfaces, 4: costs})
    base, four = (
        cell_of(grid.query(f"batch_size == {size}"), "code", 0, 0.7, 3, 2) for size in (1, 4)
    )
    surface = costs["sampled"]
    context = 20 + 15
    assert four["draft_cost_ratio"] == pytest.approx(surface.draft_cost_ratio(3, context), rel=0.02)
    assert four["draft_cost_ratio"] != pytest.approx(base["draft_cost_ratio"], rel=0.02)
    closed = closed_form_speedup(
        four["acceptance_rate_tested"],
        2,
        draft_cost_ratio=four["draft_cost_ratio"],
        verify_cost_ratio=four["verify_cost_ratio"],
        overhead_ratio=four["overhead_ratio"],
    )
    assert four["closed_form_speedup"] == pytest.approx(float(closed), rel=1e-12)


def test_grid_cost_uncertainty_at_a_batch_size_is_its_own(table, requests, surfaces):
    """Costs steady for one row and shaky for four widen the interval of four only."""
    rows = cost_rows(factors=(1.0,) * 5)
    wobble = rows["block"].map({0: 1.0, 1: 1.5, 2: 0.5, 3: 1.3, 4: 0.7})
    upset = rows.assign(
        seconds=rows["seconds"].where(
            ~rows["part"].str.startswith("layers/"), rows["seconds"] * wobble
        )
    )
    only = table.loc[table["temperature"] == 0.7]
    calm = {"sampled": batch_surface(4, rows=rows)}
    shaky = {"sampled": batch_surface(4, rows=upset)}
    widths = {}
    for name, costs in (("calm", calm), ("shaky", shaky)):
        grid = build_grid(only, requests, surfaces, EDGES, by_batch={4: costs})
        widths[name] = np.log(grid["predicted_speedup_high"] / grid["predicted_speedup_low"])
    four = (grid["batch_size"] == 4).to_numpy()
    assert (widths["shaky"][four] > widths["calm"][four] * 1.2).all()
    assert (widths["shaky"][~four] == widths["calm"][~four]).all()


def test_grid_contexts_beyond_a_batch_size_s_range_are_missing(table, requests, surfaces):
    """Four rows were timed to 128 tokens: longer prompts, and roll-ups that hold them, are missing;
    a bucket inside is priced, and the base knows them all."""
    rows = cost_rows()
    short = rows.loc[~(rows["context"] > 128)]
    costs = {law: batch_surface(4, law, short) for law in ("greedy", "sampled")}
    grid = build_grid(table, requests, surfaces, EDGES, by_batch={1: surfaces, 4: costs})
    four = grid.query("batch_size == 4")
    names = ["draft_cost_ratio", "verify_cost_ratio", "overhead_ratio", "closed_form_speedup",
             "predicted_speedup", "predicted_speedup_low"]  # fmt: skip
    inside = four.query("task == 'code' and context_min == 0")
    assert len(inside) == 2 * len(EXITS) * len(KS)
    assert inside[names].notna().all(axis=None)
    beyond = four.query("context_min == 300 or evidence == 'all'")
    assert beyond[names].isna().all(axis=None), beyond[names].notna().sum().to_dict()
    assert beyond["acceptance_rate_tested"].notna().all()
    assert grid.query("batch_size == 1")[names].notna().all(axis=None)


def test_rank_is_within_a_batch_size(batches):
    ranked = rank_cells(batches)
    best = ranked.loc[ranked["rank"] == 1]
    buckets = batches.groupby(["task", "context_min", "temperature"]).ngroups
    assert len(best) == buckets * len(SIZES), len(best)
    assert rank_cells(base_batch(batches)).equals(
        ranked.loc[ranked["batch_size"] == 1].reset_index(drop=True)
    )
