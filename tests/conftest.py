"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest

# Products of tiny matrices are slower on several threads, and much slower when other programs hold
# the cores; set before torch is imported, here and in the programs that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

REPO = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes minutes or an accelerator, unless -m speaks of it."""
    wanted = config.getoption("-m") or ""
    for item in items:
        for name in ("slow", "device"):
            if name in item.keywords and name not in wanted:
                item.add_marker(pytest.mark.skip(reason=f"run with -m {name}"))


@pytest.fixture(scope="session")
def repo() -> Path:
    """Root of the checkout."""
    return REPO


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of real public data and input cases, which is not part of this repository."""
    folder = Path(os.environ.get("SELFSPEC_SHARED", REPO.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no folder {folder.name!r} beside the checkout; set SELFSPEC_SHARED to it")
    return folder


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory) -> Path:
    """Folder of a random GPT-2 of 4 layers with a byte tokenizer and a chat template."""
    from checkpoints import random_model, save_checkpoint  # torch only where it is needed

    return save_checkpoint(random_model(), tmp_path_factory.mktemp("tiny") / "gpt2")
