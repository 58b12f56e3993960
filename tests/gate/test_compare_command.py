"""`selfspec compare`: its table, its document, its exit codes; without torch."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from report_runs import make_run

from selfspec_cli.cli.app import main
from selfspec_cli.storage import read_document, write_document

LABELS = {"code": 0.95, "chat\x1b[31m[bold]|x": 0.4}
PROBE = """
import sys
from selfspec_cli.cli.app import main
try:
    main(sys.argv[1:])
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    worse = {"code": 0.6, "chat\x1b[31m[bold]|x": 0.4}
    return make_run(folder / "base", LABELS), make_run(folder / "worse", worse)


@pytest.fixture
def compare(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")

    def run(*argv):
        with pytest.raises(SystemExit) as left:
            main(["compare", *map(str, argv)])
        out, err = capsys.readouterr()
        return left.value.code, out, err

    return run


def test_a_table_on_one_screen_that_labels_cannot_break(compare, runs):
    code, out, err = compare(*runs)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in out
    assert r"chat\x1b" in out
    assert lines[0].split()[:4] == ["task,", "prompt", "tokens,", "T"]
    assert "all 28 requests: speedup 0." in out
    assert "x, slower" in out
    places = [line[:30] for line in lines if " 0-511, T=" in line]
    assert len(set(places)) == len(places) == 4, "two buckets look alike"


def test_quiet_leaves_the_answer_and_what_was_asked(compare, runs):
    code, out, _ = compare(*runs, "-q", "--fail-on", "speedup:-3%")
    assert code == 1
    assert out.startswith("FAIL: speedup")
    assert "all 28 requests: " in out
    assert "task, prompt" not in out
    assert "differs: " not in out


def test_seconds_point_the_same_way_as_the_speedup(compare, runs):
    """A slower second run takes more of the first's seconds, not less."""
    _, out, _ = compare(*runs, "--json")
    ratio = json.loads(out)["total"]["seconds_ratio"]
    assert ratio < 1, "the second run accepts less"
    _, out, _ = compare(*runs, "-q")
    told = " ".join(out.split())
    assert f"the second run takes {1 / ratio:.2f}x the decode seconds of the first" in told


def test_json_is_one_strict_document(compare, runs):
    code, out, _ = compare(*runs, "--json", "--fail-on", "acceptance:-0.02")
    assert code == 1
    document = json.loads(out, parse_constant=pytest.fail)
    assert document["outcome"] == "fail"
    assert document["checks"][0]["name"] == "baseline acceptance"
    assert len(document["checks"]) == 5
    assert len(document["buckets"]) == 4


@pytest.mark.parametrize(
    ("limits", "code", "told"),
    [
        (["speedup:-3%"], 1, "FAIL: speedup "),
        (["speedup:-90%", "acceptance:-0.5"], 0, "pass: tested acceptance"),
        (["p99:+5%"], 3, "no verdict: P99 of request time: not in both runs"),
        (["p99:+5%", "speedup:-3%"], 1, "FAIL"),
    ],
)
def test_exit_codes_of_limits(compare, runs, limits, code, told):
    found, out, _ = compare(*runs, *(part for limit in limits for part in ("--fail-on", limit)))
    assert found == code, out
    assert told in out


def test_a_wrong_limit_is_told_before_anything_is_read(compare, tmp_path):
    code, out, err = compare(tmp_path / "a", tmp_path / "b", "--fail-on", "speeed:-3%")
    assert (code, out) == (2, "")
    assert "Did you mean speedup?" in err


def test_runs_of_other_traffic_end_with_2_and_both_values(compare, runs, tmp_path):
    other = shutil.copytree(runs[0], tmp_path / "other")
    manifest = read_document(other / "manifest.json")
    manifest["provenance"]["traces"]["sha256"] = "0" * 64
    write_document(manifest, other / "manifest.json")
    code, out, err = compare(runs[0], other)
    assert (code, out) == (2, "")
    assert "traces is ffffffffffff in the first run and 000000000000 in the second" in err
    code, _, err = compare(runs[0], tmp_path)
    assert code == 2
    assert "not a run directory" in err


def test_compare_needs_no_torch(repo, runs):
    done = subprocess.run(
        [sys.executable, "-c", PROBE, "compare", runs[0], runs[0]],
        env={**os.environ, "PYTHONPATH": str(repo), "PYTHONIOENCODING": "ascii"},
        capture_output=True, check=False, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == ["False"]
    assert "speedup not significant (1.00-1.00)" in done.stdout
