"""CSV exports: no cell runs in a spreadsheet, no number is touched."""

import csv
import io

import numpy as np
import pandas as pd
import pytest

from selfspec_cli.report.sheets import disarm, disarmed, rules_sheet
from selfspec_cli.report.view import build_view
from selfspec_cli.report.write import write_files
from selfspec_cli.storage import read_table


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r"])
def test_text_that_looks_like_a_formula_gets_an_apostrophe(first):
    assert disarm(first + "1+1") == "'" + first + "1+1"


@pytest.mark.parametrize("value", ["a=1", "code", "", "'quoted", -0.5, 3, None])
def test_everything_else_stays(value):
    assert disarm(value) == value


def test_numbers_of_a_table_are_untouched():
    table = pd.DataFrame({"task": ["-x", "y"], "change": [-0.5, np.nan], "on": [True, False]})
    safe = disarmed(table)
    assert list(safe["task"]) == ["'-x", "y"]
    assert safe["change"].iloc[0] == -0.5
    assert list(safe["on"]) == [True, False]


def test_hostile_labels_are_harmless_in_every_csv(hostile_run):
    """No cell of any file begins with what a spreadsheet would run, and labels are still there."""
    files = [hostile_run / "rules.csv", hostile_run / "findings.csv"]
    files += sorted((hostile_run / "figures").glob("*.csv"))
    assert len(files) >= 7, [file.name for file in files]
    for file in files:
        for row in csv.reader(io.StringIO(file.read_text(encoding="utf-8"), newline="")):
            for cell in row:
                dangerous = cell.startswith(("=", "+", "@", "\t", "\r"))
                assert not dangerous, f"{file.name}: {cell!r}"
                assert not cell.startswith("-") or _is_number(cell), f"{file.name}: {cell!r}"
    tasks = set(read_table(hostile_run / "rules.csv")["task"])
    assert "'=cmd|' /C calc'!A0" in tasks
    assert "a\"b'c&d" in tasks


def test_a_report_writes_no_other_csv_and_tables_of_a_run_stay_exact(hostile_run, tmp_path):
    """Sheets are for people and disarmed; grid.csv is read back by programs, to the letter."""
    out = tmp_path / "report"
    write_files(build_view(hostile_run), out, ("html", "csv", "md"))
    sheets = {str(file.relative_to(out)) for file in out.rglob("*.csv")}
    figures = {name for name in sheets if name.startswith("figures")}
    assert sheets - figures == {"rules.csv", "findings.csv"}
    for name in sorted(sheets):
        assert "\n=cmd" not in (out / name).read_text(encoding="utf-8"), name
    exact = set(read_table(hostile_run / "grid.csv")["task"])
    assert "=cmd|' /C calc'!A0" in exact, sorted(exact)


def _is_number(cell):
    try:
        float(cell)
    except ValueError:
        return False
    return True


def test_rules_sheet_holds_the_numbers_of_the_plan(tiny_view, tiny_run):
    sheet = read_table(tiny_run / "rules.csv")
    assert len(sheet) == len(tiny_view.plan.rules) == 4
    for row, view_row in zip(sheet.to_dict("records"), tiny_view.rules, strict=True):
        rule = view_row.rule
        assert row["speedup"] == rule.speedup.estimate, f"{row['task']}: {row['speedup']}"
        assert row["exit_layer"] == rule.drafter.exit_layer
        assert row["enabled"] == rule.enabled


def test_missing_numbers_are_empty_cells(tiny_view):
    rows = [
        row.__class__(**{**_fields(row), "rule": row.rule.model_copy(update={"slow_share": None})})
        for row in tiny_view.rules
    ]
    sheet = rules_sheet(rows)
    assert sheet["slow_share"].isna().all()
    assert sheet["context_max"].notna().all()


def _fields(row):
    return {name: getattr(row, name) for name in row.__slots__}
