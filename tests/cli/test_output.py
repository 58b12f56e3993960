"""What goes to the terminal and what `--json` prints: hostile labels, strict documents."""

import json
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from checkpoints import run_cli, trace_rows, write_trace

from selfspec_cli.cli.visible import visible
from selfspec_cli.storage import read_table

LABELS = (
    "esc\x1b[31mred", "tab\there", "[bold]loud[/bold]", "[/red]", "\u202egnp", "r\u00e9sum\u00e9",
    "re\u0301sume\u0301", "../../escape", "bell\x07", "two\nlines", "<script>alert(1)</script>",
)  # fmt: skip
PLANNED = (0, 3)  # 3: a plan was written, but so few requests are no evidence
CONFIG = """
exit_layers: 1,3
draft_lengths: 2
temperatures: 0
confirm: {cells: 2, requests: 2, min_tokens: 2}
"""


def strict(text):
    """Parse one JSON document; constants such as NaN, and a second document, are errors."""

    def refuse(word):
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def argv(tiny_checkpoint, tmp_path_factory):
    """A finished run over requests with one label each; the command that reads it again."""
    folder = tmp_path_factory.mktemp("labels")
    rows = trace_rows(len(LABELS) + 1, max_tokens=6)
    for row, label in zip(rows, LABELS, strict=False):
        row["task"] = label
    rows[-1]["task"] = "one token"
    rows[-1]["max_tokens"] = 1
    rows[0]["id"] = "id\x1b[2J"
    trace = write_trace(folder / "t.jsonl", rows)
    (folder / "c.yaml").write_text(CONFIG, encoding="utf-8")
    command = ["calibrate", "-c", folder / "c.yaml", "-m", tiny_checkpoint, "-t", trace]
    command += ["-o", folder / "run"]
    assert run_cli(*command) in PLANNED
    return [str(part) for part in command]


def controls(text):
    """Control and format characters other than the line break."""
    return sorted({c for c in text if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"})


def test_labels_are_shown_and_never_obeyed(argv, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")  # wide enough for every label whole
    capsys.readouterr()
    assert run_cli(*argv) in PLANNED
    out, err = capsys.readouterr()
    assert controls(out) == [], f"raw control characters on stdout: {controls(out)}"
    assert controls(err) == []
    assert run_cli("plan", argv[argv.index("-o") + 1]) == 0  # every rule, not the largest ten
    out += capsys.readouterr().out
    assert controls(out) == [], f"raw control characters on stdout: {controls(out)}"
    for shown in ("esc\\x1b[31mred", "tab\\there", "[bold]loud[/bold]", "[/red]", "\\u202egnp",
                  "two\\nlines"):  # fmt: skip
        assert shown in out, f"{shown} is not on the screen:\n{out}"


def test_a_request_is_shown_and_never_obeyed(argv, tmp_path, capsys):
    rows = trace_rows(1, prompt="line one\nclear\x1b[2Jscreen", max_tokens=4)
    rows[0]["prompt"] = "line one\nclear\x1b[2Jscreen [bold]x[/bold]"
    trace = write_trace(tmp_path / "t.jsonl", rows)
    capsys.readouterr()
    again = [*argv[:-3], str(trace), "-o", str(tmp_path / "run"), "--dry-run"]
    assert run_cli(*again) == 0
    out, _ = capsys.readouterr()
    assert controls(out) == []
    assert "line one\nclear\\x1b[2Jscreen [bold]x[/bold]" in out


def test_an_error_is_shown_and_never_obeyed(tmp_path, capsys):
    assert run_cli("calibrate", "-m", "x", "-t", tmp_path / "a\x1b[2Jb", "-o", tmp_path / "r") == 2
    said = capsys.readouterr().err
    assert controls(said) == []
    assert "a\\x1b[2Jb" in said


def test_labels_stay_exact_in_the_files(argv):
    grid = read_table(_run(argv) / "grid.csv")
    own = set(grid.loc[grid["evidence"] == "own", "task"])
    assert own == {*LABELS, "one token"}


def test_nothing_is_written_outside_the_run(argv):
    folder = _run(argv).parent
    assert sorted(p.name for p in folder.iterdir()) == ["c.yaml", "run", "t.jsonl"]


def _run(argv):
    return Path(argv[argv.index("-o") + 1])


def test_json_is_exactly_one_strict_document(argv, capsys):
    capsys.readouterr()
    assert run_cli(*argv, "--json") in PLANNED
    document = strict(capsys.readouterr().out)
    assert document["speculative_decodes_to_rank"] == 0
    tasks = {row["task"] for row in document["best"]}
    assert set(LABELS) <= tasks, "labels are exact in the document"
    assert len(document["confirm"]) == 2
    for row in document["best"]:
        assert row["acceptance_rate_tested"] is None or 0 <= row["acceptance_rate_tested"] <= 1


def test_the_json_of_a_dry_run_is_one_strict_document(argv, tmp_path, capsys):
    capsys.readouterr()
    assert run_cli(*argv[:-1], str(tmp_path / "run"), "--dry-run", "--json") == 0
    document = strict(capsys.readouterr().out)
    assert document["num_requests"] == len(LABELS) + 1
    assert document["minutes"] > 0
    assert not (tmp_path / "run").exists()


def test_d17_a_locale_of_ascii_ends_no_run(argv, repo):
    """D17: labels beyond ASCII under LC_ALL=C, without UTF-8 mode, into a pipe."""
    done = subprocess.run(
        [sys.executable, "-c", "from selfspec_cli.cli.app import main; main()", *argv],
        env={**os.environ, "PYTHONPATH": str(repo), "LC_ALL": "C", "PYTHONUTF8": "0",
             "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        check=False,
    )  # fmt: skip
    assert done.returncode in PLANNED, done.stderr.decode("ascii", "replace")[-800:]
    out = done.stdout.decode("ascii")
    assert "r\\xe9sum\\xe9" in out
    assert "\x1b" not in out


def test_results_and_progress_do_not_mix(argv, tmp_path, capsys):
    """stdout holds results, stderr progress; -q silences the latter."""
    capsys.readouterr()
    assert run_cli(*argv, "--json") in PLANNED
    out, err = capsys.readouterr()
    assert strict(out)
    assert "complete" in err
    assert run_cli(*argv, "-q", "--json") in PLANNED
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 日本", "plain é 日本"),
        ("\x1b[0m", "\\x1b[0m"),
        ("a\nb", "a\\nb"),
        ("\x00", "\\x00"),
    ],
)
def test_what_is_not_printable_becomes_an_escape(text, shown):
    assert visible(text) == shown
    assert visible("a\nb\x07", keep="\n") == "a\nb\\x07"


def test_the_table_fits_a_terminal_of_80_columns(argv, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    capsys.readouterr()
    assert run_cli(*argv) in PLANNED
    lines = capsys.readouterr().out.splitlines()
    columns = {line: sum(not unicodedata.combining(c) for c in line) for line in lines}
    widest = max(lines, key=columns.__getitem__)
    assert columns[widest] <= 80, f"{columns[widest]} columns: {widest}"
    assert not re.search(r"\bnan\b", "\n".join(lines))
