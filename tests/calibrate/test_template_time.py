"""A chat template that prints the date gives a resumed run the prompts it began with."""

import json

import pytest
from calibrate_helpers import command, manifest
from checkpoints import run_cli, trace_rows, write_trace

from selfspec_cli.errors import EXIT_NO_EVIDENCE, EXIT_OK
from selfspec_cli.storage import read_table

DONE = (EXIT_OK, EXIT_NO_EVIDENCE)  # these few requests are no evidence
CONFIG = """
exit_layers: 2
draft_lengths: 1
temperatures: 0.0
confirm: {cells: 0}
"""
DATED = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}{% endfor %}:"


@pytest.fixture
def begun(tiny_checkpoint, tmp_path):
    """A run of the dated template, set back by some years as if it began then."""
    (tmp_path / "template.jinja").write_text(DATED)
    rows = [
        {**row, "messages": [{"role": "user", "content": row.pop("prompt")}]}
        for row in trace_rows(3, max_tokens=3)
    ]
    trace = write_trace(tmp_path / "t.jsonl", rows)
    template = ("--chat-template", tmp_path / "template.jinja")
    argv = command(tiny_checkpoint, trace, tmp_path, *template, config_text=CONFIG)
    assert run_cli(*argv) in DONE
    run = tmp_path / "run"
    old = manifest(run) | {"template_time": "2020-02-03T04:05:06", "status": "incomplete"}
    old["stages"], old["artefacts"] = {}, {}
    (run / "manifest.json").write_text(json.dumps(old))
    return argv, run


def hashes(run):
    return read_table(run / "requests.parquet")["content_hash"].tolist()


def test_a_resumed_run_keeps_its_date(begun):
    argv, run = begun
    today = hashes(run)
    assert run_cli(*argv) in DONE
    assert manifest(run)["template_time"] == "2020-02-03T04:05:06"
    then = hashes(run)
    assert then != today, "the template does not print the date: the test shows nothing"
    assert run_cli(*argv) in DONE
    assert hashes(run) == then


def test_a_fresh_run_takes_todays(begun):
    argv, run = begun
    today = hashes(run)
    assert run_cli(*argv, "--fresh") in DONE
    assert manifest(run)["template_time"] > "2026"
    assert hashes(run) == today
