"""`--dry-run`: the work it counts, and time and memory within a factor of two of the real run."""

import json
import os
import subprocess
import sys

import pytest
from calibrate_helpers import REPO, command, manifest
from checkpoints import random_model, run_cli, save_checkpoint, trace_rows, write_trace

from selfspec_cli.storage import read_table

CONFIG = """
exit_layers: 2-6
draft_lengths: 1-3
confirm: {cells: 6, requests: 3, min_tokens: 8}
"""
TINY = CONFIG.replace("2-6", "1-3")
PROBE = """
import contextlib, io, json, pathlib, sys, time
from selfspec_cli.cli.app import _run
shown = io.StringIO()
with contextlib.redirect_stdout(shown):
    assert _run([*sys.argv[1:], "--dry-run", "--json"]) == 0
begin = time.perf_counter()
with contextlib.redirect_stdout(io.StringIO()):
    assert _run(sys.argv[1:]) in (0, 3)  # these few requests are no evidence
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
peak = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
real = {"seconds": time.perf_counter() - begin, "peak": peak}
print(json.dumps({"said": json.loads(shown.getvalue()), "real": real}))
"""


@pytest.fixture(scope="module")
def middling(tmp_path_factory):
    """A llama of 8 layers, hidden 128, vocabulary 4096, and 16 requests."""
    folder = tmp_path_factory.mktemp("middling")
    model = random_model(
        "llama", hidden_size=128, intermediate_size=384, num_attention_heads=4,
        num_key_value_heads=2, num_hidden_layers=8, vocab_size=4096, gain=6.0,
    )  # fmt: skip
    trace = write_trace(folder / "t.jsonl", trace_rows(16, max_tokens=24))
    return save_checkpoint(model, folder / "model"), trace


def assert_close(argv):
    """Estimate and run in a process of their own; time and peak memory within a factor of two."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *argv],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    said, real = report["said"], report["real"]
    ratio = said["minutes"] * 60 / real["seconds"]
    assert 0.5 <= ratio <= 2, f"{said['seconds']} said, {real['seconds']:.1f} s taken"
    ratio = said["peak_memory_bytes"] / real["peak"]
    assert 0.5 <= ratio <= 2, f"{said['peak_memory_bytes']} bytes said, {real['peak']} taken"


def test_minutes_and_memory_are_right_within_a_factor_of_two(middling, tmp_path):
    """The time of the imports is left out of both."""
    assert_close(command(*middling, tmp_path, config_text=CONFIG))
    assert manifest(tmp_path / "run")["status"] == "done"


@pytest.fixture
def dry(tiny_checkpoint, tmp_path, capsys):
    """Run --dry-run on given rows; returns (printed text, document)."""

    def run(rows, config=TINY, *more):
        trace = write_trace(tmp_path / "t.jsonl", rows)
        argv = command(tiny_checkpoint, trace, tmp_path, "--dry-run", *more, config_text=config)
        found = []
        for form in ([], ["--json"]):
            capsys.readouterr()
            assert run_cli(*argv, *form) == 0, capsys.readouterr().err
            found.append(capsys.readouterr().out)
        return found[0], json.loads(found[1])

    return run


def test_the_work_is_counted(dry):
    rows = trace_rows(5, max_tokens=7)
    text, document = dry(rows)
    assert document["num_requests"] == 5
    assert document["num_paths"] == 10, "two temperatures"
    assert document["num_cells"] == 3 * 3 * 2
    prompts = sum(1 + len(row["prompt"]) for row in rows)  # BOS and a token a byte
    assert document["prompt_tokens"] == 2 * prompts
    assert document["output_tokens"] == 2 * 5 * 7
    assert "5 requests, 10 paths, 18 cells" in text
    assert f"{2 * prompts} prompt tokens, at most 70 output tokens" in text
    assert "minutes: " in text
    assert "GiB" in text


def test_the_first_request_is_shown_as_the_model_sees_it(dry):
    rows = [{"id": "a", "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 3}]
    text, document = dry(rows)
    assert document["first_request"] == "[user]Hello?[assistant]"
    assert text.rstrip().endswith("[user]Hello?[assistant]")


def test_a_dry_run_leaves_nothing_behind(dry, tmp_path):
    before = {path.name for path in tmp_path.iterdir()}
    dry(trace_rows(2, max_tokens=3))
    after = {path.name for path in tmp_path.iterdir()}
    assert after - before == {"t.jsonl", "config.yaml"}


def test_more_work_takes_longer(dry):
    """Estimates follow the work: a sweep of every cell above confirming few, four times the
    output above once."""
    few = dry(trace_rows(4, max_tokens=8))[1]["seconds"]
    many = dry(trace_rows(4, max_tokens=128))[1]["seconds"]
    assert many["observe"] > 2 * few["observe"], (few, many)
    assert many["confirm"] > 2 * few["confirm"], (few, many)
    swept = dry(trace_rows(4, max_tokens=128), TINY + "sweep: decode\n")
    assert "confirm" not in swept[1]["seconds"]
    assert swept[1]["seconds"]["sweep"] > many["confirm"], (swept[1]["seconds"], many)


@pytest.mark.parametrize("budget", [0, 1])
def test_requests_without_anything_to_draft_are_estimated_too(dry, budget):
    _, document = dry(trace_rows(2, max_tokens=budget))
    assert document["output_tokens"] == 2 * 2 * budget
    assert document["minutes"] > 0


def test_a_prompt_near_the_models_limit_is_estimated_too(dry):
    rows = [{"id": "a", "prompt": "x" * 240, "max_tokens": 5}]
    assert dry(rows)[1]["prompt_tokens"] == 2 * 241


@pytest.mark.slow
def test_the_demo_models_estimate_is_right_within_a_factor_of_two(tmp_path):
    """Minutes on the demo model; needs `selfspec demo-model` once."""
    run = tmp_path / "run"
    assert_close(["calibrate", "-m", "demo", "-t", "sample", "-c", "quickstart", "-o", str(run)])
    assert manifest(run)["status"] == "done"
    assert len(read_table(run / "walk.parquet")) > 0
