"""JUnit, GitHub and JSON output of a gate: complete, within limits, and no data becomes markup."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from selfspec_cli.errors import StorageError
from selfspec_cli.gate.document import gate_document
from selfspec_cli.gate.github import (
    MAX_SUMMARY_BYTES,
    annotations,
    detected,
    step_summary,
    write_summary,
)
from selfspec_cli.gate.junit import junit_xml
from selfspec_cli.gate.verdict import Check, GateReport

HOSTILE = (
    "]]></failure><testcase name='x'/>",
    "\x00\x1b[31m\x07red",
    "a\n::error title=x::forged",
    "%0A::stop-commands::x",
    "| a | **b** | <img src=x onerror=alert(1)>",
    "\ud800 lone, \u202e turned, \ufffe none",
    "&amp; \"quoted\" 'label', title=y::z",
)


def _check(outcome="fail", **fields):
    return Check(**{"name": "speedup", "outcome": outcome, "text": "0.91x, limit 1.05x", **fields})


def _report(*checks, run="run", notes=()):
    return GateReport(run=run, checks=checks, notes=notes)


def _one_of_each():
    return _report(
        _check("pass"),
        _check("fail", next_step="Calibrate again."),
        _check("fail", warns_only=True),
        _check("no_verdict"),
        _check("no_verdict", optional=True),
        notes=("timed on a CPU",),
    )


def test_a_case_a_check_with_its_outcome():
    root = ElementTree.fromstring(junit_xml(_one_of_each()))
    suite = root.find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "1", "2")
    cases = suite.findall("testcase")
    kinds = [sorted(child.tag for child in case) for case in cases]
    assert kinds == [["system-out"], ["failure"], ["system-out"], ["skipped"], ["skipped"]]
    assert cases[1].find("failure").text == "0.91x, limit 1.05x\nCalibrate again."
    assert cases[2].find("system-out").text.startswith("warning: ")
    assert len({case.get("name") for case in cases}) == 5, "a test view would join cases"
    assert suite.find("system-out").text == "timed on a CPU"


@pytest.mark.parametrize("label", HOSTILE)
def test_labels_inject_nothing(label):
    checks = [
        _check(outcome, name=label, subject=label, text=label, next_step=label)
        for outcome in ("fail", "no_verdict", "pass")
    ]
    report = _report(*checks, run=label, notes=(label,))
    root = ElementTree.fromstring(junit_xml(report))
    assert len(root.findall(".//testcase")) == 3
    assert {tag.tag for tag in root.iter()} == {
        "testsuites", "testsuite", "properties", "property", "testcase", "failure", "skipped",
        "system-out",
    }  # fmt: skip
    lines = annotations(report)
    assert len(lines) == 2
    for line in lines:
        assert len(line.splitlines()) == 1
        assert line.isprintable()
        assert re.fullmatch(r"::(error|warning) title=[^:,]*::.*", line)
    text = step_summary(report)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 4
    assert "<" not in text
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 9 for row in rows), "a label made a column"
    assert json.loads(json.dumps(gate_document(report), allow_nan=False))["run"] == label


def test_text_of_a_label_survives():
    """Escaping must not lose what a person needs: a reader of the XML sees the label itself."""
    label = "code <&> 'Größe', 日本"
    root = ElementTree.fromstring(junit_xml(_report(_check(subject=label))))
    assert root.find(".//testcase").get("name") == f"speedup [{label}]"
    assert "100%25 slower%3A" in annotations(_report(_check(subject="100% slower:")))[0]


@pytest.mark.parametrize(("num_failed", "last"), [(5, "::warning"), (995, "::error")])
def test_a_thousand_checks_stay_within_ten_annotations(num_failed, last):
    checks = [_check("no_verdict", subject=f"b{n}") for n in range(1000 - num_failed)]
    checks += [_check(subject=f"bucket {n}") for n in range(num_failed)]
    lines = annotations(_report(*checks))
    assert len(lines) == 10
    assert lines[0].startswith("::error title=selfspec gate%3A speedup bucket 0::")
    failed = max(num_failed - 9, 0)
    assert lines[-1].startswith(last)
    assert "991 more checks" in lines[-1]
    assert f"{failed} failed, {991 - failed} without a verdict" in lines[-1]
    assert len(ElementTree.fromstring(junit_xml(_report(*checks))).findall(".//testcase")) == 1000


def test_every_failing_check_is_annotated_before_any_bucket_is_twice():
    """30 slow buckets must not push the one broken output out of ten annotations."""
    checks = [_check(subject=f"b{n}") for n in range(30)]
    lines = annotations(_report(*checks, _check(name="exactness", text="2 differ")))
    assert len(lines) == 10
    assert "exactness::2 differ" in lines[1]
    assert lines[-1].endswith("The step summary, --junit and --json list all.")
    assert "22 more checks: 22 failed" in lines[-1]


def test_an_annotation_is_two_sentences():
    (line,) = annotations(_report(_check(next_step="Turn it off.")))
    assert line.endswith("::0.91x, limit 1.05x. Turn it off.")


def test_what_passed_is_not_annotated():
    assert annotations(_report(_check("pass"), _check("no_verdict", optional=True))) == []
    assert len(annotations(_report(*[_check()] * 10))) == 10


def test_a_summary_is_cut_with_failures_kept():
    checks = [_check("pass", subject=f"b{n}", text="ä" * 900) for n in range(1000)]
    text = step_summary(_report(*checks, _check(subject="the failed one")))
    assert MAX_SUMMARY_BYTES - 3000 < len(text.encode()) <= MAX_SUMMARY_BYTES
    kept = text.count("| pass |")
    assert text.endswith(
        f"Cut here: {1000 - kept} of 1001 checks do not fit into a step summary.\n"
    )
    assert "the failed one" in text
    assert step_summary(_report(_check()), limit_bytes=20) == ""


def test_a_summary_shows_numbers_and_never_nan():
    check = _check(value=0.912345, low=0.9, high=float("nan"), limit=1.05)
    text = step_summary(_report(check))
    assert "| 0.9123 | 0.9 | 1.05 |" in text
    assert "nan" not in text


def test_the_summary_is_appended_and_counts_what_is_there(tmp_path):
    path = tmp_path / "summary"
    path.write_text("before\n")
    assert write_summary(_one_of_each(), {"GITHUB_STEP_SUMMARY": str(path)})
    assert path.read_text().startswith("before\n## selfspec gate: fail\n")
    path.write_bytes(b"x" * MAX_SUMMARY_BYTES)
    assert not write_summary(_one_of_each(), {"GITHUB_STEP_SUMMARY": str(path)})
    assert path.stat().st_size == MAX_SUMMARY_BYTES
    assert not write_summary(_one_of_each(), {})


@pytest.mark.parametrize("name", ["missing/summary", ".", "nul\0byte"])
def test_a_summary_file_that_cannot_be_written(tmp_path, name):
    with pytest.raises(StorageError, match="cannot be written") as error:
        write_summary(_one_of_each(), {"GITHUB_STEP_SUMMARY": str(Path(tmp_path) / name)})
    assert error.value.exit_code == 2


def test_only_github_reads_the_commands():
    assert detected({"GITHUB_ACTIONS": "true"})
    assert not any(map(detected, ({}, {"CI": "true"}, {"GITHUB_ACTIONS": "false"})))


def test_the_document_counts_every_check_once_and_holds_no_nan():
    report = _report(*_one_of_each().checks, _check(value=float("inf"), limit=float("nan")))
    document = gate_document(report)
    json.dumps(document, allow_nan=False)
    assert document["counts"] == {
        "passed": 1, "failed": 2, "warnings": 1, "no_verdict": 1, "optional": 1,
    }  # fmt: skip
    assert (document["outcome"], document["exit_code"]) == ("fail", 1)
    last = document["checks"][-1]
    assert last["value"] is None
    assert last["limit"] is None
    assert last["fails"] is True
