"""Must show: killed again and again inside observe, cost and confirm, a run ends as if never.

SIGKILL leaves no time to tidy up. Each of three runs is killed at seeded moments, some finished
shards into a stage plus a few milliseconds, and started again until the moments are used up; then
it may end. Only times may differ from a run that nobody touched.
"""

import multiprocessing
import random
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest
import yaml
from calibrate_helpers import (
    REPO,
    TABLES,
    assert_same_numbers,
    assert_whole,
    command,
    manifest,
    shards,
    untimed,
)
from checkpoints import run_cli, trace_rows, write_trace

from selfspec_cli.errors import EXIT_NO_EVIDENCE, EXIT_OK
from selfspec_cli.storage import read_table

# One cell, so that which cells are confirmed does not follow from times.
CONFIG = """
exit_layers: 2
draft_lengths: 2
temperatures: 0.7
observe_batch: 2
cost: {contexts: [2, 96], warmup: 1}
confirm: {cells: 12, requests: 8, min_tokens: 4, budget_s: 600}
"""
MOMENTS = {"observe": (2, 3), "cost": (2, 7), "confirm": (3, 11)}
"""By stage: kills a run, and the last number of finished shards to wait for. 21 in three runs."""
PAUSE_S = 0.03  # a kill comes up to this long after the shard; about what a shard takes
STAGES = ("observe", "cost", "confirm")
PRELOAD = (
    "selfspec_cli.calibrate.estimate", "selfspec_cli.cli.app", "selfspec_cli.cli.summary",
    "transformers.models.gpt2.modeling_gpt2", "pyarrow.parquet", "checkpoints",
)  # fmt: skip
RULE_FACTS = (
    "task", "context_min", "context_max", "temperature_min", "temperature_max", "drafter", "draft",
    "num_requests", "num_tokens", "token_share", "acceptance_rate_tested", "requests_missing",
    "window",
)  # fmt: skip


@dataclass
class Killed:
    """A run that was killed, and where."""

    run: Path
    moments: list[str] = field(default_factory=list)
    """Stage of each kill."""


@pytest.fixture(scope="module")
def processes():
    """Processes forked from one that has imported everything: a start takes no seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOAD))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPO))
        first = context.Process(target=run_cli_and_leave, args=("--version",))
        first.start()
        first.join(60)
    return context


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return write_trace(tmp_path_factory.mktemp("t") / "t.jsonl", trace_rows(24, max_tokens=10))


def attempt(processes, argv):
    process = processes.Process(target=run_cli_and_leave, args=argv)
    process.start()
    return process


def run_cli_and_leave(*argv):
    raise SystemExit(run_cli(*argv))


@pytest.fixture(scope="module")
def untouched(processes, tiny_checkpoint, trace, tmp_path_factory):
    folder = tmp_path_factory.mktemp("untouched")
    process = attempt(processes, command(tiny_checkpoint, trace, folder, config_text=CONFIG))
    process.join(120)
    assert process.exitcode in (EXIT_OK, EXIT_NO_EVIDENCE), process.exitcode
    return folder / "run"


def kill_at(process, run, stage, count, pause):
    """Kill once a stage has `count` finished shards and `pause` s are over; False if it ended."""
    count = max(count, len(shards(run, stage)) + 1)
    while len(shards(run, stage)) < count:
        if not process.is_alive():
            return False
        time.sleep(0.001)
    time.sleep(pause)
    process.kill()
    process.join(10)
    return process.exitcode == -signal.SIGKILL


def whole_shards(run):
    for stage in STAGES:
        for path in shards(run, stage):
            read_table(path)


@pytest.fixture(scope="module", params=range(3))
def killed(request, processes, tiny_checkpoint, trace, tmp_path_factory):
    """A run that was killed seven times and then left alone."""
    rng, folder = random.Random(f"kill/{request.param}"), tmp_path_factory.mktemp("killed")
    argv = command(tiny_checkpoint, trace, folder, config_text=CONFIG)
    found = Killed(folder / "run")
    for stage, (times, last) in MOMENTS.items():
        for count in sorted(rng.sample(range(1, last + 1), times)):
            process = attempt(processes, argv)
            if kill_at(process, found.run, stage, count, rng.uniform(0, PAUSE_S)):
                found.moments.append(stage)
                assert manifest(found.run)["status"] == "running"
                assert not (found.run / "plan.yaml").exists(), "a killed run holds a plan"
                whole_shards(found.run)
    process = attempt(processes, argv)
    process.join(120)
    assert process.exitcode in (EXIT_OK, EXIT_NO_EVIDENCE), process.exitcode
    return found


def plan_facts(run):
    """What of a plan does not follow from times."""
    plan = yaml.safe_load((run / "plan.yaml").read_text(encoding="utf-8"))
    rules = [{name: rule[name] for name in RULE_FACTS} for rule in plan["rules"]]
    same = {name: plan[name] for name in ("laws", "settings", "traces", "measurement_hash")}
    return same | {"rules": rules}


def test_a_killed_run_ends_with_the_numbers_of_one_that_was_not(killed, untouched):
    counts = {stage: killed.moments.count(stage) for stage in STAGES}
    assert counts == {stage: times for stage, (times, _) in MOMENTS.items()}, counts
    assert manifest(killed.run)["status"] == "done"
    assert not (killed.run / "shards").exists()
    assert_whole(killed.run)
    assert_same_numbers(killed.run, untouched)
    assert plan_facts(killed.run) == plan_facts(untouched)


def test_measured_paths_are_equal_to_the_last_bit(killed, untouched):
    for name in ("requests.parquet", "paths.parquet", "observations.parquet"):
        pd.testing.assert_frame_equal(
            *(read_table(run / name) for run in (killed.run, untouched)), check_exact=True, obj=name
        )


def test_no_block_and_no_decode_is_missing_or_there_twice(killed, untouched):
    cost = read_table(killed.run / "cost.csv")
    cells = ["block", "part", "law", "exit_layer", "positions", "context"]
    assert sorted(set(cost["block"])) == list(range(10))
    assert not cost.duplicated(cells).any()
    confirm = read_table(killed.run / "confirm.csv")
    assert not confirm.duplicated(["path_id", "exit_layer", "draft_length", "repeat"]).any()
    assert len(confirm) == len(read_table(untouched / "confirm.csv")) > 0


@pytest.mark.parametrize("name", ["paths.parquet", "walk.parquet", "confirm.csv"])
def test_twin_a_run_that_lost_a_row_is_noticed(untouched, tmp_path, name):
    """Broken twin: a resume that forgets the last path of a stage must not pass."""
    from selfspec_cli.storage import write_table

    run = shutil.copytree(untouched, tmp_path / "run")
    assert name in TABLES
    write_table(read_table(run / name).iloc[:-1], run / name)
    assert len(untimed(run, name)) < len(untimed(untouched, name))
    with pytest.raises(AssertionError):
        assert_same_numbers(run, untouched)
