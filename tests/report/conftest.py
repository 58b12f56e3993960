"""One small run for all tests of the report; who changes it takes a copy."""

import shutil
from pathlib import Path

import pytest
from report_runs import FADING, HOSTILE, make_run

from selfspec_cli.report.view import ReportView, build_view
from selfspec_cli.report.write import write_files


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory) -> Path:
    """A complete run with its report; two tasks, one of which pays, up to batch 4 of 8."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "tiny", batches=FADING)
    write_files(build_view(folder), folder, ("html", "csv"))
    return folder


@pytest.fixture(scope="session")
def tiny_view(tiny_run) -> ReportView:
    """The view of that run."""
    return build_view(tiny_run)


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory) -> Path:
    """A run whose labels are markup, formulas and control characters, with its report."""
    folder = make_run(
        tmp_path_factory.mktemp("runs") / "hostile", HOSTILE, requests_per_task=3, tokens=12
    )
    write_files(build_view(folder), folder, ("html", "csv"))
    return folder


@pytest.fixture
def own_run(tiny_run, tmp_path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(tiny_run, tmp_path / "run"))
