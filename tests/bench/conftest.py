"""One calibrated run of a tiny llama, whose layers the library's early exit knows."""

from pathlib import Path

import pytest
from bench_helpers import TOKENS, calibrated
from checkpoints import random_model, save_checkpoint, trace_rows, write_trace


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="session")
def model(folder: Path) -> Path:
    return save_checkpoint(random_model("llama"), folder / "llama")


@pytest.fixture(scope="session")
def trace(folder: Path) -> Path:
    return write_trace(folder / "trace.jsonl", trace_rows(8, max_tokens=TOKENS))


@pytest.fixture(scope="session")
def calibrated_run(folder: Path, model: Path, trace: Path) -> Path:
    """Nothing pays. Only `run` of one module benches into it; others give -o."""
    return calibrated(model, trace, folder)
