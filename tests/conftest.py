"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest

# Products of tiny matrices are slower on several threads, and much slower when other programs hold
# the cores; set before torch is imported, here and in the programs that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

REPO = Path(__file__).resolve().parent.parent


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
