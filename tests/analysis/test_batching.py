"""Continuous refill: walk rows at a batch size, against the walk itself and by hand."""

import numpy as np
import pandas as pd
import pytest
from analysis_helpers import cost_rows, make_path, make_surface, random_paths
from batch_helpers import batch_surface, batch_surfaces

from selfspec_cli.analysis.batching import at_batch
from selfspec_cli.analysis.costs import Costs
from selfspec_cli.analysis.run_walk import walk_at_base
from selfspec_cli.analysis.walk import walk

EXITS, KS = [2, 3, 4, 5], [1, 4, 8]


@pytest.fixture(scope="module")
def paths():
    return random_paths(5, count=16)


@pytest.fixture(scope="module")
def table(paths):
    return walk(paths, EXITS, KS, make_surface())


def free_walk(seed=6):
    """A walk whose budgets never bind."""
    rng = np.random.default_rng(seed)
    paths = [
        make_path(rng.beta(0.8, 0.6, (4, n)), budget=n + 20, prompt=30 * n, name=f"p{n}")
        for n in (1, 2, 9, 14)
    ]
    return walk(paths, EXITS, KS, make_surface())


def test_one_row_costs_what_the_walk_says(table):
    """The helper's costs are linear in the context, so mean contexts lose nothing."""
    again = at_batch(table, {"sampled": make_surface()}, 1)
    for name in ("seconds", "ar_seconds"):
        gap = np.abs(again[name] / table[name] - 1).max()
        assert gap < 1e-12, f"{name}: relative gap {gap:.2e}"
    assert list(again.columns) == list(table.columns)
    assert (again["batch_size"] == 1).all()


@pytest.mark.parametrize("batch_size", [2, 8])
def test_a_share_is_the_batch_s_time_over_its_rows(batch_size):
    """Budgets never bind, so rounds are those of one row at the batch's price."""
    table = free_walk()
    again = at_batch(table, {"sampled": batch_surface(batch_size)}, batch_size)
    factor = (1 + 0.1 * (batch_size - 1)) / batch_size
    for name in ("seconds", "ar_seconds"):
        np.testing.assert_allclose(again[name], table[name] * factor, rtol=1e-12, err_msg=name)
    assert (again["batch_size"] == batch_size).all()


def test_rounds_that_may_draft_less_pay_the_full_draft():
    """Coins 0, budget n = 6, k = 4: five rounds that may draft 4, 3, 2, 1, 0 all pay 4."""
    path, surface = make_path(np.zeros(6)), batch_surface(4)
    table = walk([path], [3], [4], make_surface())
    found = at_batch(table, {"sampled": surface}, 4)["seconds"].iloc[0]
    contexts = path.prompt_tokens + np.arange(5)
    full = surface.round_seconds([3], 4, contexts)[0].sum() / 4
    own = surface.round_seconds([3], np.array([4, 3, 2, 1, 0]), contexts)[0].sum() / 4
    assert found == pytest.approx(full, rel=1e-12)
    assert found > own * 1.2, f"{found:.4f} s, each its own draft {own:.4f} s"


def test_what_was_not_timed_at_that_size_is_missing(table):
    """Contexts to 128 only, four positions only, or another law: NaN, and nothing raised."""
    rows = cost_rows()
    short = batch_surface(4, rows=rows.loc[~(rows["context"] > 128)])
    found = at_batch(table, {"sampled": short}, 4)
    inside = table["prompt_tokens"] + table["committed"].round() - 1 <= 128
    inside |= table["committed"].round() == 0
    assert 0 < inside.sum() < len(table), f"{inside.sum()} of {len(table)}"
    assert (found["seconds"].notna() == inside).all()
    assert (found["ar_seconds"].notna() == inside).all()
    narrow = batch_surface(4, rows=rows.loc[~(rows["positions"] > 5)])
    wide = at_batch(table, {"sampled": narrow}, 4).loc[table["committed"] > 0]
    assert (wide["seconds"].isna() == (wide["draft_length"] > 4)).all()
    assert at_batch(table, {"greedy": batch_surface(4, "greedy")}, 4)["seconds"].isna().all()


def test_a_mean_context_at_the_edge_stays_inside():
    """Rounding of a sum over a probability must not push a context beyond the last one timed."""
    for seed in range(20):
        coins = np.random.default_rng(seed).random(7)
        path = make_path(coins, budget=7, prompt=512 - 5)
        found = at_batch(walk([path], [3], [4]), {"sampled": batch_surface(1)}, 1)
        assert np.isfinite(found["seconds"].iloc[0]), f"seed {seed}"


def test_prefill_order_and_duplicate_labels_are_kept(table):
    twice = pd.concat([table, table.sample(frac=1.0, random_state=1)]).assign(prefill_seconds=7.0)
    found = at_batch(twice, batch_surfaces(4)[4], 4)
    assert (found["prefill_seconds"] == 7.0).all()
    keys = ["path_id", "exit_layer", "draft_length"]
    assert found[keys].to_numpy().tolist() == twice[keys].to_numpy().tolist()
    assert found.groupby(keys)["seconds"].nunique().max() == 1


def test_batches_below_one_row_are_refused(table):
    with pytest.raises(ValueError, match="batch size 0"):
        at_batch(table, {}, 0)


def test_the_base_may_be_a_batch(paths):
    """walk.parquet is then priced at that size and says so."""
    by_batch = batch_surfaces(4, 8)
    found = walk_at_base(paths, EXITS, KS, Costs(by_batch=by_batch, fits_by_batch={4: {}, 8: {}}))
    expected = at_batch(walk(paths, EXITS, KS), by_batch[4], 4)
    assert (found["batch_size"] == 4).all()
    np.testing.assert_allclose(found["seconds"], expected["seconds"], rtol=1e-12)
