"""Stage confirm_batch: real batches of tiny models, predicted before, resumed, exact."""

import shutil

import pytest
from calibrate_helpers import FINISHED, command, manifest, shards
from checkpoints import run_cli, trace_rows, write_trace

from selfspec_cli.analysis.batch_confirmation import summarise_batch_confirm
from selfspec_cli.analysis.confirm_choice import RuleCell
from selfspec_cli.buckets import BucketKey
from selfspec_cli.calibrate import batch_confirm_cells, batch_confirm_stage
from selfspec_cli.calibrate.batch_confirm_cells import (
    STAGE,
    ChosenBatches,
    first_of_each_temperature,
    sizes_in_order,
)
from selfspec_cli.config.hashes import document_hash
from selfspec_cli.engine import row_policies
from selfspec_cli.engine.verify import Verdict
from selfspec_cli.storage import RunDir, read_table

CONFIG = """
exit_layers: 3
draft_lengths: 2
temperatures: 0,0.7
batch_sizes: [1, 2, 4, 9]
confirm: {cells: 8, requests: 1, min_tokens: 4}
include_text: true
"""
DECODES = 3  # plain, the cell, plain


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batches")
    return write_trace(folder / "t.jsonl", trace_rows(7, max_tokens=8, task="one"))


@pytest.fixture(scope="module")
def stopped(tiny_checkpoint, trace, tmp_path_factory):
    """A run stopped in its third batch decode after one shard: argv, run, its manifest then."""
    folder = tmp_path_factory.mktemp("stopped")
    made, run = command(tiny_checkpoint, trace, folder, config_text=CONFIG), folder / "run"
    real, done = batch_confirm_stage.decode_paths, []

    def stops(*args):
        if len(done) == DECODES + 2:
            raise KeyboardInterrupt
        done.append(manifest(run)["stages"].get(STAGE))
        return real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_confirm_stage, "decode_paths", stops)
        assert run_cli(*made) == 130
    return made, run, done


@pytest.fixture(scope="module")
def resumed(stopped):
    """The same run at its end, with what its second start decoded."""
    made, run, _ = stopped
    before = manifest(run)["stages"][STAGE]
    kept = len(shards(run, STAGE))
    real, again = batch_confirm_stage.decode_paths, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_confirm_stage, "decode_paths", lambda *a: again.append(a) or real(*a))
        patch.setattr(batch_confirm_cells, "_candidates", lambda *_: pytest.fail("chosen again"))
        assert run_cli(*made) in FINISHED
    return run, before, kept, len(again)


def test_predictions_are_hashed_before_the_first_decode(stopped, resumed):
    _, _, at_decode = stopped
    run, *_ = resumed
    first = at_decode[0]
    assert first["status"] == "running"
    assert first["predictions_sha256"] == document_hash({"cells": first["cells"]})
    assert manifest(run)["stages"][STAGE]["predictions_sha256"] == first["predictions_sha256"]
    rows = read_table(run / "confirm_batch.csv")
    for cell in first["cells"]:
        for schedule, predicted in cell["predicted"].items():
            keys = {"schedule": schedule} | {
                name: cell[name] for name in ("batch_size", "temperature", "exit_layer")
            }
            (row,) = rows[(rows[list(keys)] == list(keys.values())).all(axis=1)].to_dict("records")
            assert row["predicted_seconds"] == pytest.approx(predicted["seconds"], rel=1e-12)
            assert row["num_requests"] == len(cell["path_ids"])


def test_a_resumed_run_decodes_only_what_is_left(resumed):
    run, before, kept, again = resumed
    assert kept == 1, f"{kept} shards after {DECODES + 2} decodes"
    after = manifest(run)["stages"][STAGE]
    assert after["cells"] == before["cells"]
    total = DECODES * sum(len(cell["predicted"]) for cell in after["cells"])
    assert again == total - DECODES, f"{again} decodes of {total}, {DECODES} were done"


def test_every_size_runs_in_both_schedules_smallest_and_largest_first(resumed):
    run, *_ = resumed
    rows = read_table(run / "confirm_batch.csv")
    keys = ["batch_size", "schedule", "temperature"]
    expected = {(b, s, t) for b in (2, 4) for s in ("refill", "static") for t in (0.0, 0.7)}
    assert set(rows[keys].itertuples(index=False, name=None)) == expected
    assert len(rows) == len(expected)
    facts = manifest(run)["stages"][STAGE]
    assert [cell["batch_size"] for cell in facts["cells"]] == [2, 4, 2, 4]
    assert facts["budget_s"] == 0.5 * manifest(run)["stages"]["confirm"]["budget_s"]
    assert (rows["seconds"] > 0).all()
    # Six of seven paths for two rows, all for four: x_0 is nobody's work.
    assert (rows["num_requests"] == rows["batch_size"].map({2: 6, 4: 7})).all()
    assert (rows["committed"] <= 7 * rows["num_requests"]).all()
    full = rows.loc[rows["schedule"] == "refill"]
    assert (full["full_committed"] <= full["committed"]).all()
    assert (full["full_committed"] > 0).all()


def test_greedy_batches_are_exact_and_their_passes_foreseen(resumed):
    """At T = 0 coins are known: a static batch runs the very passes it was priced for."""
    run, *_ = resumed
    rows = read_table(run / "confirm_batch.csv")
    greedy = rows.loc[rows["temperature"] == 0.0]
    assert greedy["exact"].eq(True).all(), greedy[["batch_size", "schedule", "path_id"]]
    static = greedy.loc[greedy["schedule"] == "static"]
    for name in ("seconds", "plain_seconds"):
        predicted, priced = static[f"predicted_{name}"], static[f"priced_{name}"]
        assert predicted.to_numpy() == pytest.approx(priced.to_numpy(), rel=1e-9), name
    summary = summarise_batch_confirm(rows)
    assert len(summary) == len(rows)
    assert summary["error"].notna().all()


def again_in(resumed, folder):
    """A copy of the finished run that has its batches still to decode."""
    run, *_ = resumed
    copied = folder / "run"
    shutil.copytree(run, copied)
    shutil.rmtree(copied / "shards" / STAGE)
    held = RunDir.load(copied)
    kept = {name: e for name, e in held.manifest["stages"].items() if name not in (STAGE, "plan")}
    held.update(stages=kept, status="incomplete")
    (copied / "confirm_batch.csv").unlink()
    return copied


def test_a_batch_that_writes_other_text_ends_the_run(
    resumed, tiny_checkpoint, trace, tmp_path, monkeypatch, capsys
):
    """Broken twin: rows of a round keep their first draft whatever the target says."""
    run = again_in(resumed, tmp_path)
    real = row_policies._greedy

    def keeps(drafted, target):
        verdict = real(drafted, target)
        wrong = verdict.num_accepted == 0 and len(drafted) > 0
        return Verdict(1, target[1], "bonus") if wrong else verdict

    made = command(tiny_checkpoint, trace, tmp_path, config_text=CONFIG)
    with monkeypatch.context() as patch:
        patch.setattr(row_policies, "_greedy", keeps)
        capsys.readouterr()
        assert run_cli(*made) == 1
    said = capsys.readouterr().err
    assert "differ from plain decoding" in said
    assert "confirm_batch.csv" in said
    wrong = read_table(run / "confirm_batch.csv").query("temperature == 0")
    assert wrong["exact"].eq(False).all()
    assert run_cli(*made) == 1, "a rerun must not call the same decoder exact"
    assert run_cli("plan", run) == 1, "nor may a plan rest on it"


def test_a_complete_run_is_only_read(resumed, tiny_checkpoint, trace, monkeypatch):
    run, *_ = resumed
    monkeypatch.setattr(batch_confirm_stage, "decode_paths", lambda *_: pytest.fail("decoded"))
    made = command(tiny_checkpoint, trace, run.parent, config_text=CONFIG)
    assert run_cli(*made) in FINISHED


def test_one_row_alone_has_no_such_stage(reference):
    """A run of the default batch size, confirmed at one row."""
    assert "confirm" in manifest(reference)["stages"], "the premise"
    assert STAGE not in manifest(reference)["stages"]
    assert not (reference / "confirm_batch.csv").exists()


def test_a_batch_nobody_can_fill_is_told(resumed):
    """Seven requests for nine rows."""
    run, before, _, _ = resumed
    assert before["too_few"] == manifest(run)["stages"][STAGE]["too_few"] == [9]
    said = []

    class Hears:
        note = staticmethod(said.append)

    batch_confirm_stage._tell_left_out(ChosenBatches.from_document(before), Hears)
    assert said == ["too few requests of one temperature to fill a batch of 9"]


def test_sizes_come_smallest_largest_then_the_rest():
    assert sizes_in_order((1, 2, 4, 8)) == [2, 8, 4]
    assert sizes_in_order((1,)) == []
    assert sizes_in_order((3,)) == [3]


def rule(temperature, share, *, enabled=False, layer=3):
    bucket = BucketKey(task="t", context_min=0, context_max=None, temperature=temperature)
    return RuleCell(
        bucket=bucket, cell=(layer, 2), enabled=enabled, time_share=share, runner_up=None
    )


def test_each_temperature_has_its_most_important_rule():
    rules = [rule(0.0, 0.5), rule(0.0, 0.2, enabled=True, layer=5), rule(0.7, 0.3), rule(0.7, 0.1)]
    found = first_of_each_temperature(rules)
    assert [(one.bucket.temperature, one.time_share) for one in found] == [(0.0, 0.2), (0.7, 0.3)]


def test_the_budget_is_kept_but_for_the_first_cell(resumed):
    run, *_ = resumed
    chosen = ChosenBatches.from_document(manifest(run)["stages"][STAGE])
    assert chosen.to_document() == ChosenBatches.from_document(chosen.to_document()).to_document()
    candidates = batch_confirm_cells._Candidates(
        cells=list(chosen.cells), seconds=[5.0, 3.0, 2.0, 1.0]
    )

    class Config:
        class confirm:  # noqa: N801
            cells = 8

    for budget, kept, spent in ((0.0, 1, 5.0), (7.0, 2, 7.0), (8.5, 2, 8.0), (11.0, 4, 11.0)):
        found = batch_confirm_cells._within(candidates, Config, budget)
        assert (len(found.cells), found.predicted_s) == (kept, spent), budget
        assert found.num_left_out == 4 - kept
