"""Batch sizes in a calibration: what is timed, what is priced, and where parts do not add up."""

import json

import pytest
from calibrate_helpers import FINISHED, LIGHT, command, manifest
from checkpoints import run_cli, trace_rows, write_trace

from selfspec_cli.analysis import cost_fit
from selfspec_cli.analysis.costs import price
from selfspec_cli.cost import memory
from selfspec_cli.storage import read_table


@pytest.fixture
def calibrated(tiny_checkpoint, tmp_path):
    """Calibrate eight requests at given batch sizes; returns the run folder."""

    def run(sizes, *more):
        trace = write_trace(tmp_path / "t.jsonl", trace_rows(8, max_tokens=8))
        argv = command(
            tiny_checkpoint, trace, tmp_path, "--batch-size", sizes, *more, config_text=LIGHT
        )
        assert run_cli(*argv) in FINISHED
        return tmp_path / "run"

    return run


def priced(run):
    kinds = manifest(run)["stages"]["cost"]["layer_kinds"]
    return price(read_table(run / "cost.csv"), kinds)


def test_every_size_is_timed_and_has_its_own_fit(calibrated):
    run = calibrated("1,3")
    rows = read_table(run / "cost.csv")
    timed = rows[rows["part"] != "prefill"].groupby("batch")["block"].nunique()
    assert timed.to_dict() == {1: 10, 3: 10}, "each block times every size"
    assert set(rows.loc[rows["part"] == "prefill", "batch"]) == {1}
    fits = json.loads((run / "cost_fit.json").read_text(encoding="utf-8"))
    assert len(fits["by_batch"]["3"]["sampled"]["rounds"]) > 0
    costs = priced(run)
    assert costs.batch_sizes == (1, 3)
    one, three = (costs.by_batch[batch]["sampled"] for batch in (1, 3))
    assert three.context_range == one.context_range, "whatever one row was priced at, three are too"
    assert manifest(run)["config"]["batch_sizes"] == [1, 3]


def test_where_parts_miss_the_best_cells_are_timed_at_the_base(calibrated, monkeypatch):
    """No sum of parts is within -1 of whole rounds, so both sizes miss."""
    monkeypatch.setattr(cost_fit, "MAX_COST_MODEL_ERROR", -1.0)
    run = calibrated("2,3")
    assert {fit.mode for fit in priced(run).fits.values()} == {"whole_rounds"}
    again = read_table(run / "cost_rounds.csv")
    assert set(again["part"]) == {"ar", "round"}
    assert set(again["batch"]) == {2}, "rules are decided at the base"
    # One (L, k), as many contexts as are timed with two rows.
    contexts = again.loc[again["part"] == "round", "context"].unique()
    assert sorted(contexts) == sorted(again.loc[again["part"] == "ar", "context"].unique())


def test_a_size_that_memory_does_not_hold_is_left_out(calibrated, monkeypatch):
    """300 tokens a batch: two rows fit at every context, 200 at none, and the run goes on."""
    token = 4 * 2 * 16 * 4  # layers, keys and values, width, float32
    monkeypatch.setattr(memory, "free_bytes", lambda _: 4 * 2 * 300 * token)
    run = calibrated("1,2,200")
    costs = priced(run)
    assert costs.batch_sizes == (1, 2), costs.batch_sizes


def test_a_dry_run_counts_every_size(calibrated, tiny_checkpoint, tmp_path, capsys):
    """Twelve rows take longer and more memory than one."""
    trace = write_trace(tmp_path / "t.jsonl", trace_rows(8, max_tokens=8))
    said = {"1": [], "1,12": []}
    for sizes in (*said, *said):  # twice, as another program may hold a core during one probe
        argv = command(
            tiny_checkpoint, trace, tmp_path, "--batch-size", sizes, "--dry-run", "--json",
            config_text=LIGHT,
        )  # fmt: skip
        capsys.readouterr()
        assert run_cli(*argv) == 0
        said[sizes].append(json.loads(capsys.readouterr().out))
    one, both = (min(e["seconds"]["cost"] for e in estimates) for estimates in said.values())
    assert both > 1.2 * one, f"{one:.2f} s for one row, {both:.2f} s with twelve"
