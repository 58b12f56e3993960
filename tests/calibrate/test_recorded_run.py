"""A log with answers: what is used, what is written again, and what the run says about it."""

import pytest
from calibrate_helpers import command, manifest
from checkpoints import run_cli, trace_rows, write_trace

from selfspec_cli.engine.load import LoadOptions, load_model, load_tokenizer
from selfspec_cli.errors import EXIT_NO_EVIDENCE, EXIT_OK
from selfspec_cli.replay.observe import PathJob, observe
from selfspec_cli.replay.setting import Setting
from selfspec_cli.storage import read_table
from selfspec_cli.trace import PrepareOptions, prepare, read_traces

DONE = (EXIT_OK, EXIT_NO_EVIDENCE)  # these few requests are no evidence
CONFIG = """
exit_layers: 2
draft_lengths: 1
temperatures: [0.7, 1.0]
confirm: {cells: 0}
"""
BUDGET = 64
NUM = 32  # a task: 2,048 tokens at most, the test needs 1,000


@pytest.fixture(scope="module")
def setting(tiny_checkpoint):
    options = LoadOptions(model=str(tiny_checkpoint))
    return Setting(loaded=load_model(options, load_tokenizer(options), (2,)), seed=7)


def logged_rows(setting, folder):
    """Task `true` was written at T = 0.7 and says so; task `hot` at 1.5 and says 0.7."""
    rows = trace_rows(2 * NUM, max_tokens=BUDGET, temperature=0.7)
    for at, row in enumerate(rows):
        row["task"] = "true" if at % 2 else "hot"
    read = read_traces([write_trace(folder / "bare.jsonl", rows)])
    bare = prepare(read.requests, setting.loaded.tokenizer, PrepareOptions()).requests
    for task, temperature in (("true", 0.7), ("hot", 1.5)):
        jobs = [
            PathJob(request=r, temperature=temperature, source="regenerated")
            for r in bare
            if r.task == task
        ]
        for path in observe(setting, jobs, (2,)):
            (row,) = (row for row in rows if row["id"] == path.job.request.request_id)
            ended = path.finish == "eos"
            row["completion_token_ids"] = list(path.tokens[: -1 if ended else None])
            row["finish_reason"] = "stop" if ended else "length"
    return rows


@pytest.fixture(scope="module")
def run(setting, tiny_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    trace = write_trace(folder / "t.jsonl", logged_rows(setting, folder))
    assert run_cli(*command(tiny_checkpoint, trace, folder, config_text=CONFIG)) in DONE
    return folder / "run"


def test_each_bucket_has_a_verdict_with_its_numbers(run):
    checks = manifest(run)["stages"]["observe"]["recorded_checks"]
    found = {(c["task"], c["temperature"]): c for c in checks}
    assert set(found) == {("true", 0.7), ("hot", 0.7)}, "T = 1.0 must not be read from this log"
    true, hot = found["true", 0.7], found["hot", 0.7]
    assert (true["verdict"], hot["verdict"]) == ("recorded ok", "failed"), checks
    assert true["num_requests"] == hot["num_requests"] == NUM
    assert 1000 <= true["num_tokens"] <= NUM * BUDGET, true
    assert abs(true["z"]) < 3, true
    assert hot["excess"] > 0.02, hot
    assert "nats a token" in hot["reason"]


def test_only_true_text_at_its_own_temperature_is_used(run):
    paths = read_table(run / "paths.parquet").merge(
        read_table(run / "requests.parquet")[["request_id", "task"]], on="request_id"
    )
    sources = paths.groupby(["task", "temperature"])["source"].agg(set).to_dict()
    assert sources == {
        ("true", 0.7): {"recorded"}, ("hot", 0.7): {"regenerated"},
        ("true", 1.0): {"regenerated"}, ("hot", 1.0): {"regenerated"},
    }  # fmt: skip
    stage = manifest(run)["stages"]["observe"]
    assert stage["sources"] == {"recorded": NUM, "regenerated": 3 * NUM}


def test_an_answer_that_finished_ends_with_eos(setting, run):
    """The log's ids lack EOS where the reason is `stop`; the path has it, and the budget left."""
    paths = read_table(run / "paths.parquet").query("source == 'recorded'")
    ended = paths.loc[paths["finish"] == "eos"]
    assert 0 < len(ended) < NUM, f"{len(ended)} of {NUM} ended: the test shows one kind only"
    assert (ended["budget"] == BUDGET).all()
    assert (ended["num_zero_prob"] == 0).all()
    cut = paths.loc[paths["finish"] == "length"]
    assert (cut["completion_tokens"] == BUDGET).all()


def test_the_output_window_is_stated(run):
    window = manifest(run)["stages"]["observe"]["output_window"]
    lengths = read_table(run / "paths.parquet")["completion_tokens"]
    assert lengths.max() == BUDGET
    assert window == {
        "observed_tokens": lengths.max(), "median_tokens": lengths.median(),
        "default_max_tokens": 128, "num_default_max_tokens": 0,
    }  # fmt: skip


def test_budgets_nobody_stated_are_counted(tiny_checkpoint, tmp_path):
    rows = trace_rows(5)
    for row in rows[:2]:
        row["max_tokens"] = 4
    text = CONFIG + "default_max_tokens: 6\n"
    argv = command(tiny_checkpoint, write_trace(tmp_path / "t.jsonl", rows), tmp_path)
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    assert run_cli(*argv) in DONE
    window = manifest(tmp_path / "run")["stages"]["observe"]["output_window"]
    assert window["num_default_max_tokens"] == 3
    assert window["default_max_tokens"] == 6
    assert window["observed_tokens"] <= 6


@pytest.mark.parametrize("choice", ["regenerate", "recorded"])
def test_the_choice_of_text_is_obeyed_and_said(setting, tiny_checkpoint, tmp_path, choice):
    trace = write_trace(tmp_path / "t.jsonl", logged_rows(setting, tmp_path))
    argv = command(tiny_checkpoint, trace, tmp_path, "--continuations", choice, config_text=CONFIG)
    assert run_cli(*argv) in DONE
    stage = manifest(tmp_path / "run")["stages"]["observe"]
    if choice == "regenerate":
        assert stage["sources"] == {"regenerated": 4 * NUM}
        assert stage["recorded_checks"] == [], "text that is not read is not judged"
    else:
        assert stage["sources"] == {"recorded": 2 * NUM}
        verdicts = sorted(check["verdict"] for check in stage["recorded_checks"])
        assert verdicts == ["failed", "recorded ok"]
