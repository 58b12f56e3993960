"""Finished runs of a tiny model, made once, and ways to read and to stop a run."""

from pathlib import Path

import pytest
from calibrate_helpers import FINISHED, command
from checkpoints import run_cli, trace_rows, write_trace


@pytest.fixture(scope="session")
def long_trace(tmp_path_factory) -> Path:
    """24 requests of 32 output tokens: seconds of work for the tiny model."""
    folder = tmp_path_factory.mktemp("trace")
    return write_trace(folder / "long.jsonl", trace_rows(24, max_tokens=32))


@pytest.fixture(scope="session")
def reference(tiny_checkpoint, long_trace, tmp_path_factory) -> Path:
    """The run of the long trace that nobody interrupted."""
    folder = tmp_path_factory.mktemp("reference")
    assert run_cli(*command(tiny_checkpoint, long_trace, folder)) in FINISHED
    return folder / "run"
