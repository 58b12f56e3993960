"""Stage confirm: what is chosen, kept for a resumed run, decoded, and proved beside it."""

import json

import numpy as np
import pandas as pd
import pytest
from calibrate_helpers import FINISHED, command, manifest, shards
from checkpoints import run_cli, trace_rows, write_trace

from selfspec_cli.analysis.confirm_choice import ConfirmCell
from selfspec_cli.buckets import BucketKey
from selfspec_cli.calibrate import confirm_cells, confirm_stage
from selfspec_cli.calibrate.confirm_cells import Chosen
from selfspec_cli.calibrate.confirm_stage import confirm_paths
from selfspec_cli.calibrate.paths_table import shard_frame
from selfspec_cli.engine import verify as engine_verify
from selfspec_cli.plan.files import read_plan
from selfspec_cli.records import PreparedRequest, Sampling
from selfspec_cli.replay import law_proof
from selfspec_cli.replay.observe import ObservedPath, PathJob
from selfspec_cli.replay.score import Scores
from selfspec_cli.storage import read_table, write_table

SMALL = """
exit_layers: 1,3
draft_lengths: 1,2
confirm: {cells: 6, requests: 2, min_tokens: 4}
"""
EXITS = (2, 5)
N = 6  # output tokens


def observed(number):
    """A path whose every score tells its exit and position."""
    one = PreparedRequest(
        request_id=f"r{number}", group_id="g", task="t", prompt_token_ids=(4, 5, 6),
        completion_token_ids=None, finish="unknown", temperature=None, sampling=Sampling(),
        max_tokens=9, stop=(), content_hash="", source="",
    )  # fmt: skip
    given = (np.arange(N) + np.array([[0], [10]]) + 100 * number).astype(np.float32) / 1000
    nats = np.ones(N, dtype=np.float32)
    scores = Scores(
        accept_given_path=given, accept_prob=given / 2, is_argmax=given > 0.005, surprisal=nats,
        entropy=nats, varentropy=nats, zero_prob=np.zeros(N, bool),
        outside_truncation=np.zeros(N, bool), path_is_argmax=np.ones(N, bool),
    )  # fmt: skip
    job = PathJob(request=one, temperature=0.7, source="regenerated")
    tokens = tuple(range(number, number + N))
    return ObservedPath(job=job, tokens=tokens, finish="eos", scores=scores)


def test_coins_tokens_and_budget_come_back_at_their_positions(tmp_path):
    """Through a shard on disk: r of exit and position t stands at [exit][t], entry 0 is unused."""
    paths = [observed(number) for number in (1, 2)]
    write_table(shard_frame(paths), tmp_path / "shard.parquet")
    shards = read_table(tmp_path / "shard.parquet")
    wanted = ["r2|T=0.7", "r1|T=0.7"]
    found = confirm_paths(shards, [path.job.request for path in paths], wanted, EXITS)
    assert [path.path_id for path in found] == wanted
    for made, source in zip(found, reversed(paths), strict=True):
        assert made.tokens == source.tokens
        assert made.budget == 9
        assert made.request is source.job.request
        for row, exit_layer in enumerate(EXITS):
            want = source.scores.accept_given_path[row, 1:]
            assert np.allclose(made.accept_given_path[exit_layer][1:], want, atol=1e-7), exit_layer
            assert len(made.accept_given_path[exit_layer]) == N


def test_no_path_wanted_is_no_path():
    assert confirm_paths(pd.DataFrame({"path_id": ["a"]}), [], [], EXITS) == []


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    return write_trace(folder / "t.jsonl", trace_rows(6, max_tokens=12))


@pytest.fixture(scope="module")
def argv(tiny_checkpoint, trace, tmp_path_factory):
    """A calibration of two tasks at two temperatures, and its finished run."""
    folder = tmp_path_factory.mktemp("confirmed")
    made = command(tiny_checkpoint, trace, folder, config_text=SMALL)
    assert run_cli(*made) in FINISHED
    return made, folder / "run"


def test_rows_say_which_bucket_and_role_they_are_of(argv):
    _, run = argv
    table = read_table(run / "confirm.csv")
    tasks = read_table(run / "requests.parquet").set_index("request_id")["task"]
    assert (table["task"] == table["request_id"].map(tasks)).all(), "a path of another bucket"
    assert set(table["context_min"]) == {0}
    assert set(table["context_max"]) == {512}
    per_bucket = table.groupby(["task", "temperature"])
    assert len(per_bucket) == 4
    assert (per_bucket["path_id"].nunique() == 2).all()
    keys = ["task", "temperature", "exit_layer", "draft_length"]
    assert len(table.loc[table["role"] == "rule", keys].drop_duplicates()) == 4, "one cell a rule"
    assert set(table["role"]) == {"rule", "runner_up", "contrast"}
    extra = table.loc[table["role"] != "rule", ["task", "temperature"]].drop_duplicates()
    assert len(extra) == 1, "runner-up and contrast share the first bucket's paths"


def test_the_manifest_holds_cells_budget_and_proof(argv):
    _, run = argv
    facts = manifest(run)["stages"]["confirm"]
    assert facts["budget_s"] == 90
    assert 0 < facts["predicted_s"] < 90
    assert facts["num_left_out"] == 0
    assert len(facts["cells"]) == 6
    proof = facts["exactness"]
    assert proof["passed"] is True, proof
    assert (proof["positions"], proof["draws"], proof["disagreements"]) == (6, 20_000, 0)
    assert proof["smallest_p"] > proof["alarm_level"] == pytest.approx(1e-4 / 6)


def test_the_budget_is_kept_but_for_the_first_cell(tiny_checkpoint, trace, tmp_path, capsys):
    config = SMALL.replace("cells: 6", "cells: 6, budget_s: 0") + "temperatures: 0\n"
    made = command(tiny_checkpoint, trace, tmp_path, config_text=config)
    made.remove("-q")
    assert run_cli(*made) in FINISHED
    facts = manifest(tmp_path / "run")["stages"]["confirm"]
    assert [cell["role"] for cell in facts["cells"]] == ["rule"]
    assert facts["num_left_out"] == 3, "the runner-up, the contrast and the other task's rule"
    assert "3 cells stay unconfirmed" in " ".join(capsys.readouterr().err.split())
    table = read_table(tmp_path / "run" / "confirm.csv")
    assert len(table[["task", "exit_layer", "draft_length"]].drop_duplicates()) == 1
    proof = facts["exactness"]
    assert proof["passed"] is None, "no verdict on sampling where nothing was sampled"
    assert proof["positions"] == 0


def test_a_resumed_run_confirms_what_it_chose_before(tiny_checkpoint, trace, tmp_path, monkeypatch):
    """Stopped after two paths; then even another choice would come too late."""
    real, done = confirm_stage.confirm_path, []

    def stops(*args):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(args)
        return real(*args)

    made, run = command(tiny_checkpoint, trace, tmp_path, config_text=SMALL), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(confirm_stage, "confirm_path", stops)
        assert run_cli(*made) == 130
    before = manifest(run)["stages"]["confirm"]
    assert before["status"] == "running"
    kept = shards(run, "confirm")
    assert len(kept) == 2

    again = []
    monkeypatch.setattr(confirm_stage, "confirm_path", lambda *a: again.append(a) or real(*a))
    monkeypatch.setattr(confirm_cells, "choose", lambda *_: pytest.fail("cells chosen again"))
    assert run_cli(*made) in FINISHED
    after = manifest(run)["stages"]["confirm"]
    assert after["cells"] == before["cells"]
    assert after["budget_s"] == before["budget_s"]
    paths = {path for cell in after["cells"] for path in cell["path_ids"]}
    assert len(again) == len(paths) - 2, "finished paths were decoded again"


def test_resampling_from_p_ends_the_run_with_code_1(
    tiny_checkpoint, trace, tmp_path, monkeypatch, capsys
):
    """Broken twin inside the decoder: greedy output stays equal, only the sampled law is off."""
    made, run = command(tiny_checkpoint, trace, tmp_path, config_text=SMALL), tmp_path / "run"
    with monkeypatch.context() as patch:
        for module in (engine_verify, law_proof):
            patch.setattr(module, "residual", lambda target, draft: target)
        capsys.readouterr()
        assert run_cli(*made) == 1
    said = capsys.readouterr().err
    assert "do not commit the target's law" in said
    assert "Traceback" not in said
    proof = manifest(run)["stages"]["confirm"]["exactness"]
    assert proof["passed"] is False
    assert proof["disagreements"] == 0, "the decoder does what was proved wrong"
    assert proof["smallest_p"] < 1e-6
    assert f"p {proof['smallest_p']:.2g}" in said
    greedy = read_table(run / "confirm.csv").query("temperature == 0")
    assert greedy["exact"].eq(True).all(), "equality alone would not have seen it"
    assert run_cli(*made) == 1, "a rerun must not call the same decoder lossless"


def test_a_choice_comes_back_from_the_manifest_as_it_was():
    """Shards are named after cells: another type of number would be another name."""
    open_band = BucketKey(task="", context_min=512, context_max=None, temperature=0.7)
    cells = tuple(
        ConfirmCell(bucket=open_band, cell=(3, k), role=role, path_ids=("a|T=0.7", "b|T=0.7"))
        for k, role in ((2, "rule"), (4, "contrast"))
    )
    chosen = Chosen(cells=cells, budget_s=180.0, predicted_s=1.5, num_left_out=2)
    again = Chosen.from_document(json.loads(json.dumps(chosen.to_document())))
    assert again == chosen
    assert repr(again) == repr(chosen)
    assert again.by_path() == {"a|T=0.7": [(3, 2), (3, 4)], "b|T=0.7": [(3, 2), (3, 4)]}


def test_labels_of_an_open_band_have_no_upper_end():
    bucket = BucketKey(task="007", context_min=512, context_max=None, temperature=0.7)
    one = ConfirmCell(bucket=bucket, cell=(3, 2), role="rule", path_ids=("a", "b"))
    chosen = Chosen(cells=(one,), budget_s=1.0, predicted_s=1.0, num_left_out=0)
    rows = pd.DataFrame({"path_id": ["b", "a"], "exit_layer": 3, "draft_length": 2, "x": [1, 2]})
    found = chosen.label(rows)
    assert found["x"].tolist() == [1, 2]
    assert found["task"].tolist() == ["007", "007"]
    assert found["context_max"].isna().all()
    assert list(found.columns[:4]) == ["task", "context_min", "context_max", "role"]


def test_the_sampled_law_is_proved_where_no_sampled_cell_fits_the_budget(tiny_checkpoint, tmp_path):
    """One cell, the greedy bucket's: the law at T = 0.7 is tested on observed paths instead."""
    rows = trace_rows(6, max_tokens=10)
    for at, row in enumerate(rows):
        row["temperature"] = 0.7 if at == 0 else 0.0
    text = "exit_layers: 1-3\ndraft_lengths: 2\ntemperatures: trace\n"
    text += "confirm: {cells: 1, requests: 4, min_tokens: 4}\n"
    made = command(tiny_checkpoint, write_trace(tmp_path / "t.jsonl", rows), tmp_path,
                   config_text=text)  # fmt: skip
    assert run_cli(*made) in FINISHED
    table = read_table(tmp_path / "run" / "confirm.csv")
    assert set(table["temperature"]) == {0.0}, "the premise: nothing sampled was decoded"
    proof = manifest(tmp_path / "run")["stages"]["confirm"]["exactness"]
    assert proof["positions"] >= 1, proof
    assert proof["passed"] is True, proof


def test_no_plan_rests_on_a_run_whose_output_differed(tiny_checkpoint, tmp_path, capsys):
    """`plan` reads files only; a decode that differed stands in confirm.csv and ends it with 1."""
    trace = write_trace(tmp_path / "t.jsonl", trace_rows(4, max_tokens=8))
    assert run_cli(*command(tiny_checkpoint, trace, tmp_path, config_text=SMALL)) in FINISHED
    run = tmp_path / "run"
    assert run_cli("plan", run) == 0
    table = read_table(run / "confirm.csv")
    greedy = table.index[table["temperature"] == 0.0][0]
    table["exact"] = table["exact"].astype(object)
    table.loc[greedy, ["exact", "first_difference", "top2_gap"]] = [False, 3, 0.5]
    write_table(table, run / "confirm.csv")
    capsys.readouterr()
    assert run_cli("plan", run) == 1
    assert "differ from plain decoding" in capsys.readouterr().err


def test_a_plan_of_other_thresholds_in_the_runs_place_is_made_again(tiny_checkpoint, tmp_path):
    """`plan --margin 2 -o RUN/plan.yaml`, then calibrate: its own margin, and a report of it."""
    trace = write_trace(tmp_path / "t.jsonl", trace_rows(4, max_tokens=8))
    made = command(tiny_checkpoint, trace, tmp_path, config_text=SMALL)
    assert run_cli(*made) in FINISHED
    run = tmp_path / "run"
    first = (run / "report.html").read_text(encoding="utf-8")
    assert run_cli("plan", run, "--margin", "2", "-o", run / "plan.yaml") == 0
    assert run_cli("report", run) == 0
    assert (run / "report.html").read_text(encoding="utf-8") != first
    assert run_cli(*made) in FINISHED
    assert json.loads((run / "manifest.json").read_text())["status"] == "done"
    assert read_plan(run / "plan.yaml").settings.margin == 0.05
    assert (run / "report.html").read_text(encoding="utf-8") == first
