"""The stage walk at several batch sizes, on a made-up run's own files."""

import numpy as np
import pandas as pd
import pytest
from report_runs import EDGES, LAYERS, cost_rows, make_run

from selfspec_cli.analysis.costs import price
from selfspec_cli.calibrate.progress import Silent
from selfspec_cli.calibrate.walk_stage import STAGE, run_walk
from selfspec_cli.cli.summary import best_cells
from selfspec_cli.config import CalibrateConfig
from selfspec_cli.storage import RunDir, read_table


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run") / "run", confirm=False)


def walked_at(finished, sizes):
    """Tables of the stage with costs of `sizes`; a batch of B takes 1 + (B - 1) / 10 of one row."""
    run = RunDir.load(finished)
    run.set_stage(STAGE, "running")
    config = CalibrateConfig(
        model="tiny", traces=("log.jsonl",), out="run", draft_lengths="1-4",
        batch_sizes=sizes, context_edges=EDGES,
    )  # fmt: skip
    rows = [
        cost_rows().assign(batch=size, seconds=lambda t, s=size: t["seconds"] * (1 + (s - 1) / 10))
        for size in sizes
    ]
    costs = price(pd.concat(rows, ignore_index=True), ["full"] * 6)
    walk, _ = run_walk(run, config, costs, LAYERS, Silent())
    # Read back whole: a resumed stage reads what was written.
    return walk, read_table(run.artefact("grid.csv"))


def test_the_grid_has_every_size_and_the_walk_its_base(finished):
    walk, grid = walked_at(finished, (1, 4))
    only, alone = walked_at(finished, (1,))
    assert set(walk["batch_size"]) == {1}
    assert walk["seconds"].equals(only["seconds"]), "other sizes moved the base"
    assert grid["batch_size"].value_counts().to_dict() == {1: len(alone), 4: len(alone)}
    base = grid.loc[grid["batch_size"] == 1].reset_index(drop=True)
    assert base.to_csv() == alone.to_csv()
    best = best_cells(grid)
    assert set(best["batch_size"]) == {1}
    assert len(best) == 2 * (2 + 1), "two tasks and a roll-up at two temperatures"


def test_a_larger_base_prices_the_walk_as_shares(finished):
    """Costs of a batch of 4 are 1.3 of one row's, so plain decoding costs 1.3 / 4 a request."""
    one, _ = walked_at(finished, (1,))
    four, grid = walked_at(finished, (4, 8))
    assert set(four["batch_size"]) == {4}
    assert set(grid["batch_size"]) == {4, 8}
    np.testing.assert_allclose(four["ar_seconds"], one["ar_seconds"] * 1.3 / 4, rtol=1e-9)
    # Budgets bind at each path's end, where a row of a batch pays the full draft.
    dearer = four["seconds"] * 4 / 1.3 / one["seconds"]
    assert (dearer >= 1 - 1e-9).all(), dearer.min()
    assert dearer.max() > 1.001, dearer.max()
