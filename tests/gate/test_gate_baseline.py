"""`selfspec gate --baseline --fail-on --junit`, and what a GitHub workflow is told."""

import json
import shutil
from xml.etree import ElementTree

import pandas as pd
import pytest
from checkpoints import run_cli
from report_runs import make_run, plan_run

from selfspec_cli.storage import RunDir


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run, and one whose drafts are accepted far less often; same requests."""
    folder = tmp_path_factory.mktemp("runs")
    good = make_run(folder / "good", {"code": 0.95}, requests_per_task=30)
    return good, make_run(folder / "worse", {"code": 0.75}, requests_per_task=30)


def gate_json(capsys, *argv):
    capsys.readouterr()
    code = run_cli("gate", *argv, "--json")
    return code, json.loads(capsys.readouterr().out)


def baseline_rows(document):
    return [c for c in document["checks"] if c["name"].startswith("baseline")]


def test_a_run_does_not_fall_behind_its_copy(runs, tmp_path, capsys):
    copy = shutil.copytree(runs[0], tmp_path / "copy")
    _, document = gate_json(capsys, runs[0], "--baseline", copy)
    rows = baseline_rows(document)
    assert {row["name"] for row in rows} == {"baseline speedup", "baseline acceptance"}
    assert not [row["text"] for row in rows if row["outcome"] == "fail"]


def test_a_run_is_no_baseline_of_itself(runs, capsys):
    """By whatever path: it would pass whatever it does."""
    for same in (runs[0], runs[0] / ".." / runs[0].name):
        assert run_cli("gate", runs[0], "--baseline", same) == 2
        assert f"--baseline {same}: is the run itself" in capsys.readouterr().err


def test_a_run_that_fell_behind_fails_and_says_where(runs, capsys):
    code, document = gate_json(capsys, runs[1], "--baseline", runs[0])
    failed = {row["name"] for row in baseline_rows(document) if row["outcome"] == "fail"}
    assert code == 1, document["outcome"]
    assert "baseline acceptance" in failed, f"only {failed} failed"


def test_a_limit_without_a_baseline_is_refused(runs, capsys):
    assert run_cli("gate", runs[0], "--fail-on", "speedup:-3%") == 2
    assert "--baseline" in capsys.readouterr().err


def test_a_limit_that_allows_the_loss_judges_it_so(runs, capsys):
    limits = ("--fail-on", "acceptance:-0.5")
    _, document = gate_json(capsys, runs[1], "--baseline", runs[0], *limits)
    whole = [row for row in baseline_rows(document) if row["name"] == "baseline acceptance"]
    outcomes = [row["outcome"] for row in whole if not row["subject"]]
    assert sorted(outcomes) == ["fail", "pass"], "the standing limit fails, the wide one passes"


def test_junit_has_one_case_a_check(runs, tmp_path, capsys):
    file = tmp_path / "gate.xml"
    _, document = gate_json(capsys, runs[0], "--junit", file)
    cases = ElementTree.parse(file).getroot().iter("testcase")
    assert sum(1 for _ in cases) == len(document["checks"])


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("no/gate.xml", "the folder does not exist"),
        (".", "is a folder, not a file"),
        ("", "is a folder, not a file"),
        ("plan.yaml", "exists and is no XML; it is left alone"),
        ("page.html", "exists and is no XML; it is left alone"),
    ],
)
def test_a_junit_file_that_cannot_be_written(runs, tmp_path, capsys, monkeypatch, place, told):
    """Told before anything is judged; no other file is replaced."""
    monkeypatch.chdir(tmp_path)
    for name in ("plan.yaml", "page.html"):
        (tmp_path / name).write_text("<!doctype html>")
    assert run_cli("gate", runs[0], "--junit", place, "-q") == 2
    said = capsys.readouterr()
    assert f"--junit {place or '.'}: {told}" in said.err
    assert not said.out
    assert (tmp_path / "plan.yaml").read_text() == "<!doctype html>"


def test_a_junit_file_is_written_again(runs, tmp_path, capsys):
    file = tmp_path / "gate.xml"
    codes = {run_cli("gate", runs[0], "--junit", file, "-q") for _ in range(2)}
    assert len(codes) == 1
    assert 2 not in codes, capsys.readouterr().err


def test_a_workflow_gets_annotations_and_a_summary(runs, tmp_path, capsys, monkeypatch):
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    code = run_cli("gate", runs[1], "--baseline", runs[0], "--json")
    shown = capsys.readouterr()
    assert json.loads(shown.out)["outcome"] == "fail", "stdout is one document"
    told = [line for line in shown.err.splitlines() if line.startswith("::")]
    assert code == 1
    assert 1 <= len(told) <= 10, f"{len(told)} annotations"
    assert told[0].startswith("::error")
    assert "baseline acceptance" in summary.read_text(encoding="utf-8")


def test_elsewhere_nothing_is_annotated(runs, capsys, monkeypatch):
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    run_cli("gate", runs[0], "-q")
    assert "::" not in capsys.readouterr().err


def test_a_run_with_unsteady_timing_is_no_loss(runs, tmp_path, capsys):
    """Its rules are off because nothing rests on such timing, which is not a slower plan."""
    shaken = tmp_path / "shaken"
    shutil.copytree(runs[0], shaken)
    costs = pd.read_csv(shaken / "cost.csv")
    costs["seconds"] *= costs["block"].map(lambda block: 1.0 + 0.5 * (block % 2))
    costs.to_csv(shaken / "cost.csv", index=False)
    run = RunDir.load(shaken)
    facts = {**run.manifest["stages"]["cost"]}
    run.finish_stage("cost", facts.pop("artefacts"), layer_kinds=facts["layer_kinds"])
    plan_run(shaken)
    capsys.readouterr()
    limit = ("--fail-on", "speedup:0%", "--json")
    code = run_cli("compare", runs[0], shaken, *limit)
    document = json.loads(capsys.readouterr().out)
    told = [check["text"] for check in document["checks"]]
    assert code == 3, told
    assert any("unstable timing" in text for text in told), told
