"""The README says what the committed result files say."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))

from readme_numbers import README, RESULTS, TABLES, filled  # noqa: E402


def test_tables_equal_the_committed_results():
    """A number typed by hand, or results committed without `make numbers`, is caught here."""
    text = README.read_text(encoding="utf-8")
    assert filled(text) == text, "README.md differs from tests/benchmarks/results: make numbers"


def test_every_table_is_in_the_readme():
    text = README.read_text(encoding="utf-8")
    missing = [name for name in TABLES if f"<!-- numbers: {name} -->" not in text]
    assert not missing, missing


def test_a_changed_result_is_noticed(tmp_path):
    """The check above can fail."""
    results = shutil.copytree(RESULTS, tmp_path / "results")
    document = json.loads((results / "evidence.json").read_text(encoding="utf-8"))
    document["runs"][0]["median_error"] += 0.01
    (results / "evidence.json").write_text(json.dumps(document), encoding="utf-8")
    text = README.read_text(encoding="utf-8")
    assert filled(text, results) != text


def test_an_unknown_table_is_refused():
    with pytest.raises(SystemExit, match="nonsense"):
        filled("<!-- numbers: nonsense -->\n<!-- end -->")


def test_the_python_example_runs_on_the_example_run(monkeypatch):
    """Pasted into a shell at the root, it answers: this plan was measured, and says no."""
    text = README.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    answer = names["answer"]
    assert answer.enabled is False
    assert answer.reason


def test_the_picture_and_the_files_named_exist():
    text = README.read_text(encoding="utf-8")
    named = set(re.findall(r"\]\(([^)#]+)\)", text)) | set(
        re.findall(r"`(reports/example/[^`]*)`", text)
    )
    missing = [name for name in named if "://" not in name and not (ROOT / name).exists()]
    assert not missing, missing
