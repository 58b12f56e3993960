"""`--sweep decode`: every cell decoded for real agrees with the walk, also after a kill."""

import shutil
import signal

import pytest
from calibrate_helpers import (
    FINISHED,
    assert_same_numbers,
    assert_whole,
    command,
    manifest,
    shards,
    stop_after_shards,
)
from checkpoints import run_cli, trace_rows, write_trace

from selfspec_cli.analysis.sweep_check import compare_sweep
from selfspec_cli.storage import read_table

GRID = """
exit_layers: 1-3
draft_lengths: 1,4
temperatures: [0.0, 0.7]
"""
CELLS = 3 * 2 * 2
DECODE = ("--sweep", "decode")


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    rows = [*trace_rows(18, max_tokens=16), *trace_rows(1, max_tokens=1)]
    rows[-1]["id"] = "one token"
    return write_trace(tmp_path_factory.mktemp("trace") / "t.jsonl", rows)


@pytest.fixture(scope="module")
def swept(tiny_checkpoint, trace, tmp_path_factory):
    """The whole grid of the tiny model, decoded without a break."""
    folder = tmp_path_factory.mktemp("swept")
    assert run_cli(*command(tiny_checkpoint, trace, folder, *DECODE, config_text=GRID)) in FINISHED
    return folder / "run"


@pytest.fixture(scope="module")
def compared(swept):
    return compare_sweep(read_table(swept / "sweep.csv"), read_table(swept / "walk.parquet"))


def test_every_cell_is_within_four_standard_errors(compared):
    """False alarm: 6 sampled cells at |z| > 4 (read from Student's t), below 6 x 6.3e-5."""
    assert len(compared) == CELLS
    assert (compared["num_requests"] == 18).all(), "an output of one token has no rounds"
    worst = compared.loc[compared["rounds_z"].abs().idxmax()].to_dict()
    assert abs(worst["rounds_z"]) <= 4.0, worst
    sampled = compared.loc[compared["temperature"] > 0, "rounds_z"]
    assert sampled.nunique() == CELLS // 2, f"cells that are no measurement: {sampled.tolist()}"


def test_greedy_cells_agree_to_the_last_round(compared, swept):
    greedy = compared.loc[compared["temperature"] == 0.0]
    assert (greedy["rounds_z"] == 0.0).all(), greedy["rounds_z"].tolist()
    rows = read_table(swept / "sweep.csv").query("temperature == 0")
    assert rows["exact"].eq(True).all(), rows.loc[~rows["exact"].eq(True)]
    walk = read_table(swept / "walk.parquet")
    keys = ["request_id", "temperature", "exit_layer", "draft_length"]
    both = rows.merge(walk, on=keys, suffixes=("", "_walk"), validate="1:1")
    for name in ("rounds", "drafted", "tested", "accepted", "committed"):
        gap = (both[name] - both[f"{name}_walk"]).abs().max()
        assert gap < 1e-9, f"{name} of one request differs by {gap}"


def test_plain_decoding_beside_a_cell_writes_no_more_than_its_budget(swept):
    rows = read_table(swept / "sweep.csv")
    assert len(rows) == CELLS * 19
    assert rows["committed"].max() == rows["ar_committed"].max() == 15
    assert (rows["rounds"] <= rows["committed"]).all()
    assert (rows.loc[rows["request_id"] == "one token", "committed"] == 0).all()


def test_a_killed_sweep_goes_on_with_its_cells(tiny_checkpoint, trace, swept, tmp_path):
    """SIGKILL leaves no time to tidy up: finished cells are kept, the rest is decoded."""
    argv = command(tiny_checkpoint, trace, tmp_path, *DECODE, config_text=GRID)
    run = tmp_path / "run"
    code, _ = stop_after_shards(argv, run, "sweep", 4, signal.SIGKILL)
    assert code == -signal.SIGKILL
    done = {path.name: path.read_bytes() for path in shards(run, "sweep")}
    assert 4 <= len(done) < CELLS
    assert not (run / "sweep.csv").exists()
    assert manifest(run)["status"] == "running"

    (run / ".sweep.csv.99.tmp").write_text("half")  # what a kill while writing leaves behind
    before = shutil.copytree(run, tmp_path / "copy")
    assert run_cli(*argv) in FINISHED
    assert_whole(run)
    assert_same_numbers(run, swept)
    seconds = read_table(run / "sweep.csv")["seconds"].tolist()
    for name in done:
        kept = read_table(before / "shards" / "sweep" / name)["seconds"].tolist()
        assert set(kept) <= set(seconds), "a finished cell was decoded again"
    assert manifest(run)["stages"]["sweep"]["cells"] == CELLS


def test_the_widest_gaps_are_printed(tiny_checkpoint, trace, swept, capsys):
    capsys.readouterr()
    argv = command(tiny_checkpoint, trace, swept.parent, *DECODE, config_text=GRID)
    assert run_cli(*argv) in FINISHED
    out = capsys.readouterr().out
    assert f"{CELLS} cells decoded in full" in out
    assert "114 of 114 greedy decodes equal plain decoding." in " ".join(out.split())
