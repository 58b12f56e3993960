"""The program starts at once: help, versions and refusals need no heavy library."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "pandas", "matplotlib", "scipy", "numpy", "pyarrow")
PROBE = f"""
import sys
from selfspec_cli.cli.app import _run
code = _run(sys.argv[1:])
print("loaded:", *[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""


def start(repo, *argv, **environment):
    """Run the program in a fresh interpreter; returns (exit code, stdout, stderr, seconds)."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *map(str, argv)],
        env={**os.environ, "PYTHONPATH": str(repo), "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr, time.perf_counter() - begin


def loaded(stderr):
    return [line for line in stderr.splitlines() if line.startswith("loaded:")][-1].split()[1:]


def test_help_comes_in_half_a_second_without_heavy_libraries(repo):
    """Best of five: a busy machine makes single starts slow, the work itself is what counts."""
    runs = [start(repo, "--help") for _ in range(5)]
    code, out, err, _ = runs[0]
    assert code == 0, err
    assert "calibrate" in out
    assert loaded(err) == []
    best = min(seconds for *_, seconds in runs)
    assert best < 0.5, f"best of 5 starts took {best:.2f} s"


@pytest.mark.parametrize("argv", [["--version"], ["calibrate", "--help"], ["bench", "--help"]])
def test_other_short_answers_load_nothing_heavy(repo, argv):
    code, out, err, _ = start(repo, *argv)
    assert code == 0, err
    assert out.strip()
    assert loaded(err) == []


@pytest.fixture
def places(tmp_path):
    """A trace, and four outputs that cannot be used."""
    (tmp_path / "t.jsonl").write_text('{"id":"a","prompt":"b"}\n')
    (tmp_path / "file").write_text("mine")
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    return tmp_path


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("none/run", "parent folder"),
        ("file", "is a file"),
        ("full", "is not empty and holds no run"),
    ],
)
def test_d04_an_unusable_output_is_refused_before_torch_is_loaded(repo, places, out, says):
    """D04. The bound is generous for busy machines: an import of torch alone takes seconds."""
    model = ("-m", "no/such/model/anywhere")
    code, stdout, err, seconds = start(
        repo, "calibrate", *model, "-t", places / "t.jsonl", "-o", places / out
    )
    assert code == 2, err
    assert stdout == ""
    assert says in err
    assert str(places / out) in err
    assert "torch" not in loaded(err)
    assert "transformers" not in loaded(err)
    assert seconds < 3, f"{seconds:.1f} s to say it"
    assert (places / "file").read_text() == "mine"
    assert sorted(p.name for p in places.rglob("*")) == ["file", "full", "notes.txt", "t.jsonl"]


def test_d04_a_read_only_folder_is_refused(repo, places):
    """D04, for users without root's rights."""
    locked = places / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    if os.access(locked, os.W_OK):
        pytest.skip("this user may write everywhere (root)")
    code, _, err, _ = start(
        repo, "calibrate", "-m", "x/y/z", "-t", places / "t.jsonl", "-o", locked / "run"
    )
    assert code == 2, err
    assert "cannot be written" in err


def test_d04_a_place_where_nobody_may_write_is_refused(repo, places):
    """D04, for root too: the kernel's own folder takes no files."""
    if not Path("/proc/self").exists():
        pytest.skip("no /proc on this system")
    code, _, err, _ = start(
        repo, "calibrate", "-m", "x/y/z", "-t", places / "t.jsonl", "-o", "/proc/selfspec-run"
    )
    assert code == 2, err
    assert "/proc/selfspec-run: cannot be written" in err
    assert "torch" not in loaded(err)


def test_a_missing_trace_is_told_before_torch_is_loaded(repo, places):
    code, _, err, _ = start(
        repo, "calibrate", "-m", "demo", "-t", places / "gone.jsonl", "-o", places / "run"
    )
    assert code == 2, err
    assert "no such trace file" in err
    assert "gone.jsonl" in err
    assert "torch" not in loaded(err)
    assert not (places / "run").exists()
