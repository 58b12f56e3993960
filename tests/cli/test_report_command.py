"""`selfspec report`: what it writes, what it prints, how it refuses; without torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from report_runs import make_run

from selfspec_cli.storage import read_table

PROBE = """
import sys
from selfspec_cli.cli.app import main
try:
    main(sys.argv[1:])
finally:
    heavy = ("torch", "transformers", "matplotlib", "pandas")
    print("loaded:", *[name for name in heavy if name in sys.modules], file=sys.stderr)
"""
LABELS = {"résumé": 0.9, "re\u0301sume\u0301": 0.5, "中文": 0.5, "a\x1b[31mb": 0.5}
"""Composed and decomposed letters are two labels, and stay two."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "run", LABELS, requests_per_task=3, tokens=12)


def selfspec(repo, *argv, code=PROBE, **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, argv)],
        env={**os.environ, "PYTHONPATH": str(repo), "COLUMNS": "100", **environment},
        capture_output=True, check=False,
    )  # fmt: skip


def loaded(done):
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("loaded:")]
    return lines[-1].split()[1:]


def test_help_is_short_work_and_loads_nothing(repo):
    done = selfspec(repo, "report", "--help")
    assert done.returncode == 0
    assert b"--format" in done.stdout
    assert loaded(done) == []


def test_all_formats_without_torch(repo, run, tmp_path):
    out = tmp_path / "out"
    done = selfspec(repo, "report", run, "--format", "html,csv,md", "-o", out)
    assert done.returncode == 0, done.stderr
    assert "torch" not in loaded(done)
    names = {path.name for path in out.iterdir()}
    assert names == {"report.html", "report.md", "rules.csv", "findings.csv", "figures"}
    assert "report.html" in done.stdout.decode()
    assert not (run / "report.html").exists(), "-o was given, the run stays as it was"


def test_json_is_one_strict_document(repo, run, tmp_path):
    done = selfspec(repo, "report", run, "--format", "csv", "-o", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout, parse_constant=pytest.fail)
    assert document["verdict"] == "do not enable"
    assert all(Path(file).exists() for file in document["files"])
    assert {Path(file).suffix for file in document["files"]} == {".csv"}


def test_d17_a_locale_without_utf8_changes_nothing(repo, run, tmp_path):
    """D17: files are UTF-8 and equal, stdout holds no raw control character."""
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    plain, bare = tmp_path / "plain", tmp_path / "bare"
    formats = ("--format", "html,csv,md")
    assert selfspec(repo, "report", run, *formats, "-o", plain).returncode == 0
    done = selfspec(repo, "report", run, *formats, "-o", bare, **ascii_only)
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout
    files = [path.relative_to(plain) for path in plain.rglob("*") if path.is_file()]
    assert len(files) >= 14
    for file in files:
        assert (plain / file).read_bytes() == (bare / file).read_bytes(), file
    tasks = set(read_table(bare / "rules.csv")["task"])
    assert tasks == set(LABELS), tasks


def test_an_unknown_format_is_refused_before_anything_is_read(repo, tmp_path):
    done = selfspec(repo, "report", tmp_path / "none", "--format", "pdf")
    assert done.returncode == 2
    assert b"unknown format 'pdf'" in done.stderr
    assert b"html, csv, md" in done.stderr
    assert loaded(done) == []


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["missing"], "not a run directory"),
        (["{run}", "-o", "no/such/place"], "the folder cannot be made"),
        (["{run}", "-o", "{run}/plan.yaml"], "the folder cannot be made"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_message(repo, run, tmp_path, argv, says):
    given = [part.format(run=run) for part in argv]
    done = subprocess.run(
        [sys.executable, "-c", PROBE, "report", *given], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(repo)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_markdown_shows_labels_as_text(repo, run, tmp_path):
    done = selfspec(repo, "report", run, "--format", "md", "-o", tmp_path / "out", "-q")
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "résumé" in text
    assert "\x1b" not in text
    assert text.count("\n|") == 2 + 2 * len(LABELS)
