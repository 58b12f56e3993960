"""What a run takes from its traces, before any weights are loaded."""

import json
from pathlib import Path

import pandas as pd
import pytest

from selfspec_cli.calibrate.inputs import load_inputs, load_options
from selfspec_cli.calibrate.paths_table import requests_frame
from selfspec_cli.config import CalibrateConfig, load_config
from selfspec_cli.engine.load import load_tokenizer, read_config
from selfspec_cli.errors import TraceError
from selfspec_cli.storage import read_table, write_table


@pytest.fixture
def take(tiny_checkpoint, tmp_path):
    """Return a function that writes rows to a trace and loads them as a run does."""

    def load(*rows: dict, **overrides: object):
        trace = tmp_path / "trace.jsonl"
        trace.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        settings = {"model": str(tiny_checkpoint), "traces": [str(trace)], "out": "run"}
        config = load_config(None, {**settings, **overrides})
        options = load_options(config)
        return load_inputs(config, load_tokenizer(options), read_config(options))

    return load


def rows(count: int) -> list[dict]:
    return [{"id": f"r{i}", "prompt": f"say {i}", "route": "ab"[i % 2]} for i in range(count)]


def test_three_hundred_requests_are_drawn_unless_told_otherwise(take):
    assert CalibrateConfig.model_fields["limit"].default == 300
    usual = take(*rows(310))
    assert (len(usual.requests), usual.num_left_out, usual.num_read) == (300, 10, 310)
    fewer = take(*rows(40), limit=8, task_from="route")
    assert (len(fewer.requests), fewer.num_left_out) == (8, 32)
    tasks = [one.task for one in fewer.requests]
    assert (tasks.count("a"), tasks.count("b")) == (4, 4), tasks


def test_without_labels_there_is_one_bucket_and_a_note(take):
    got = take(*rows(3))
    assert "one bucket: no task labels found, use --task-from" in got.notes
    assert {one.task for one in got.requests} == {"unlabelled"}
    labelled = take(*rows(3), task_from="route")
    assert not [note for note in labelled.notes if "task" in note], labelled.notes


def test_a_rule_without_a_task_is_an_input_error(take):
    with pytest.raises(TraceError, match="'rout'"):
        take(*rows(3), task_from="rout")


def test_read_is_used_plus_skipped_plus_left_out(take):
    bad = [{"prompt": "x", "n": 2}, {"messages": [{"role": "wizard", "content": "x"}]}, {}]
    got = take(*rows(5), *bad, {"prompt": "long " * 400}, limit=3)
    assert got.num_read == len(got.requests) + len(got.skips) + got.num_left_out == 9
    assert sorted(skip.reason for skip in got.skips) == [
        "n > 1", "no prompt", "over length", "unknown role",
    ]  # fmt: skip
    assert got.counts["max_tokens_defaulted"] == 5
    assert "no max_tokens in the trace, 128 was used: 5" in got.notes


def test_requests_table_keeps_features_and_no_text(take, tmp_path: Path):
    got = take(
        {"id": "a", "prompt": "大海为什么是咸的", "max_tokens": 9},
        {"id": "b", "prompt": [5, 6, 7], "temperature": 0},
    )
    path = tmp_path / "requests.parquet"
    write_table(requests_frame(got.requests, ["0", "0"]), path)
    table = read_table(path)
    assert table["script"].fillna("none").tolist() == ["han", "none"]
    assert table["stated_max_tokens"].tolist() == [9, pd.NA]
    assert table["max_tokens"].tolist() == [9, 128]
    assert "大海" not in table.to_json()
