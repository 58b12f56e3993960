"""Predictions are fixed before they are confirmed, and a difference in output stops the run."""

import pytest
from calibrate_helpers import FINISHED, command, manifest
from checkpoints import run_cli, trace_rows, write_trace

from selfspec_cli.calibrate import confirm_stage
from selfspec_cli.engine.decoder import Decoder
from selfspec_cli.storage import read_table
from selfspec_cli.storage.files import file_sha256

SMALL = """
exit_layers: 1,3
draft_lengths: 2
confirm: {cells: 4, requests: 2, min_tokens: 4}
"""
PREDICTIONS = ("cost.csv", "cost_fit.json", "walk.parquet", "grid.csv")


@pytest.fixture
def trace(tmp_path):
    return write_trace(tmp_path / "t.jsonl", trace_rows(6, max_tokens=12))


def test_predictions_are_hashed_before_the_first_confirming_decode(
    tiny_checkpoint, trace, tmp_path, monkeypatch
):
    """The manifest, read at every confirm decode, already holds the files' final hashes, and the
    hash of the plan drafted from them."""
    run, seen, drafts, real = tmp_path / "run", [], set(), confirm_stage.confirm_path

    def watched(*args, **options):
        listed = manifest(run)["artefacts"]
        seen.append({name: listed[name]["sha256"] for name in PREDICTIONS})
        drafts.add(manifest(run)["draft_plan_sha256"])
        assert not (run / "confirm.csv").exists()
        return real(*args, **options)

    monkeypatch.setattr(confirm_stage, "confirm_path", watched)
    argv = command(tiny_checkpoint, trace, tmp_path, config_text=SMALL)
    assert run_cli(*argv) in FINISHED
    paths = read_table(run / "confirm.csv")["path_id"].nunique()
    assert len(seen) == paths >= 4, f"{len(seen)} decodes of {paths} paths"
    assert len(drafts) == 1, "the draft changed while its cells were decoded"
    now = {name: file_sha256(run / name) for name in PREDICTIONS}
    for at, hashes in enumerate(seen):
        assert hashes == now, f"changed after confirm decode {at}"


def unfinished_walk_after(name, monkeypatch):
    """Broken twin: once the calibration's `name` is done, its walk counts as not finished."""
    import selfspec_cli.calibrate.run as module

    real = getattr(module, name)

    def unfinished(run, *rest):
        found = real(run, *rest)
        run.set_stage("walk", "running")
        return found

    monkeypatch.setattr(module, name, unfinished)


def test_without_predictions_nothing_is_planned(
    tiny_checkpoint, trace, tmp_path, monkeypatch, capsys
):
    unfinished_walk_after("run_walk", monkeypatch)
    assert run_cli(*command(tiny_checkpoint, trace, tmp_path, config_text=SMALL)) == 2
    assert "the stage walk of this run is not complete" in capsys.readouterr().err
    assert not (tmp_path / "run" / "confirm.csv").exists()


def test_without_predictions_nothing_is_confirmed(tiny_checkpoint, trace, tmp_path, monkeypatch):
    """Whatever comes between plan and confirmation, the first decode looks again."""
    unfinished_walk_after("draft_plan", monkeypatch)
    with pytest.raises(RuntimeError, match="before they are confirmed"):
        run_cli(*command(tiny_checkpoint, trace, tmp_path, config_text=SMALL))


def roll_back_one_too_few(monkeypatch):
    """Broken twin: a round leaves the slot of a rejected draft in the cache."""
    real = Decoder._roll_back

    def short(self):
        written = [lengths[0] for lengths in self.cache.lengths]
        real(self)
        if len(self.output) > 1:  # in a round, not where a decode begins again
            held = self.cache.lengths[0][0]
            self.cache.lengths = [[min(held + 1, before)] for before in written]

    monkeypatch.setattr(Decoder, "_roll_back", short)


@pytest.mark.parametrize("sweep", ["walk", "decode"])
def test_a_wrong_rollback_ends_with_code_1_and_the_first_difference(
    tiny_checkpoint, trace, tmp_path, monkeypatch, capsys, sweep
):
    config = SMALL.replace("requests: 2", "requests: 3") + f"sweep: {sweep}\ntemperatures: 0\n"
    argv = command(tiny_checkpoint, trace, tmp_path, config_text=config)
    with monkeypatch.context() as patch:
        roll_back_one_too_few(patch)
        assert run_cli(*argv) == 1
    said = capsys.readouterr().err
    name = "sweep.csv" if sweep == "decode" else "confirm.csv"
    rows = read_table(tmp_path / "run" / name)
    wrong = rows.loc[~rows["exact"].eq(True)]
    assert len(wrong) >= 2, "the twin is hardly wrong, so the test shows little"
    first = wrong.iloc[0]
    assert f"{len(wrong)} of {len(rows)} greedy decodes differ" in said
    assert f"exit layer {first['exit_layer']}, draft length {first['draft_length']}" in said
    assert f"output position {first['first_difference']:.0f}" in said
    assert f"top-2 gap {first['top2_gap']:.3g}" in said
    assert str(first["request_id"]) in said
    assert "Traceback" not in said
    assert manifest(tmp_path / "run")["status"] == "incomplete"

    assert run_cli(*argv) == 1, "a rerun must not call the same files lossless"
    assert "greedy decodes differ" in capsys.readouterr().err


def test_greedy_rounds_cost_what_was_predicted_of_them(reference):
    """At T = 0 real rounds are the walk's, so pricing them gives the predicted seconds exactly:
    drafted lengths and contexts mean the same on both sides.
    """
    rows = read_table(reference / "confirm.csv").query("temperature == 0")
    assert rows["path_id"].nunique() == 8, "two buckets of four paths"
    for name in ("rounds", "tested", "accepted"):
        gap = (rows[name] - rows[f"predicted_{name}"]).abs().max()
        assert gap < 1e-9, f"{name} differ by {gap}"
    off = (rows["priced_seconds"] / rows["predicted_seconds"] - 1).abs().max()
    assert off < 1e-9, f"the same rounds are priced {off:.2%} apart"


def test_sampled_rounds_cost_about_what_was_predicted_of_them(reference):
    """Coins scatter around the walk: all decodes together within 15 %; a shift by one position of
    every context or coin would go unseen at T = 0 only.
    """
    rows = read_table(reference / "confirm.csv").query("temperature > 0")
    ratio = rows["priced_seconds"].sum() / rows["predicted_seconds"].sum()
    assert abs(ratio - 1) < 0.15, ratio
    assert rows["exact"].isna().all()
    free = rows["free_rounds"].sum() / rows["free_committed"].sum()
    walked = rows["predicted_rounds"].sum() / rows["committed"].sum()
    assert abs(free / walked - 1) < 0.2, (free, walked)
