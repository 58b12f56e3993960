"""The table of cases is complete and true: every id once, every named test there."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

NUMBERS = {
    "A": (1, 3, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 41, 43),
    "B": (1, 3, 5, 7, 9, 11, 12, 14, 16),
    "C": (1, 3, 5, 7, 9, 11, 12, 14, 16, 17, 19, 21),
    "D": (1, 3, 4, 6, 8, 9, 11, 13, 14, 16, 17),
}
IDS = tuple(f"{group}{number:02}" for group, numbers in NUMBERS.items() for number in numbers)
TEST = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)")
ISSUE = re.compile(r"issue \d+")


@pytest.fixture(scope="module")
def table(repo) -> list[tuple[str, str, str]]:
    """Rows (case, shown by, note)."""
    return _rows((repo / "tests" / "cases.md").read_text(encoding="utf-8"))


def _rows(text: str) -> list[tuple[str, str, str]]:
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if re.match(r"\| [A-D]\d\d ", line)
    ]
    return [(case, shown, note) for case, shown, note in cells]


def _problems(rows: list[tuple[str, str, str]], repo: Path) -> list[str]:
    """What is wrong with the rows, in words."""
    counts = Counter(case for case, _, _ in rows)
    wrong = [f"{case} is listed {counts[case]} times" for case in IDS if counts[case] != 1]
    wrong += [f"{case} is no case" for case in counts if case not in IDS]
    for case, shown, note in rows:
        named = TEST.findall(f"{shown} {note}")
        wrong += [
            f"{case}: no {test} in {file}"
            for file, test in named
            if test not in _functions(repo / file)
        ]
        if ISSUE.fullmatch(shown):
            wrong += [] if note else [f"{case}: {shown} without a reason"]
        elif TEST.sub("", shown).strip(" ,") or not named:
            wrong.append(f"{case}: '{shown}' is neither tests nor an issue")
    return wrong


def _functions(file: Path) -> set[str]:
    if not file.is_file():
        return set()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_case_is_listed_once_and_every_named_test_exists(table, repo):
    assert len(IDS) == 54
    problems = _problems(table, repo)
    assert not problems, f"{len(problems)} problems: {problems}"


def test_ids_are_those_of_the_collection(shared):
    text = (shared / "cases" / "CASES.md").read_text(encoding="utf-8")
    assert re.findall(r"^### ([A-D]\d\d) ", text, flags=re.MULTILINE) == list(IDS)


def test_only_cases_of_later_parts_are_left_to_an_issue(table):
    """The decoder and its measurement are proved here."""
    later = {case for case, shown, _ in table if ISSUE.fullmatch(shown)}
    assert {case for case in later if case[0] in "AB"} == set()


@pytest.mark.parametrize(
    ("case", "shown", "note", "problem"),
    [
        ("A01", "tests/engine/test_view.py::test_no_such_thing", "", "no test_no_such_thing"),
        ("A01", "tests/engine/no_file.py::test_a", "", "no test_a in tests/engine/no_file.py"),
        ("A01", "issue 3", "", "without a reason"),
        ("A01", "soon", "", "neither tests nor an issue"),
        ("A01", "", "", "neither tests nor an issue"),
        ("A03", "issue 3", "twice", "A03 is listed 2 times"),
        ("A99", "issue 3", "unknown", "A99 is no case"),
    ],
)
def test_a_wrong_row_would_be_seen(table, repo, case, shown, note, problem):
    rows = [row for row in table if row[0] != "A01"] + [(case, shown, note)]
    found = _problems(rows, repo)
    assert any(problem in words for words in found), found
