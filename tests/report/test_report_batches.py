"""Batch size in every form of the report: the same numbers, and one sentence where there is one."""

import io
import re
from dataclasses import replace

import pandas as pd
import pytest
from report_runs import FADING, make_run
from rich.console import Console

from selfspec_cli.report.batch_data import batch_table
from selfspec_cli.report.figure_view import BATCHES
from selfspec_cli.report.figures import draw
from selfspec_cli.report.markdown import render_markdown
from selfspec_cli.report.page import render_page
from selfspec_cli.report.sheets import rules_sheet
from selfspec_cli.report.terminal import print_summary
from selfspec_cli.report.view import build_view
from selfspec_cli.storage import read_table

ONE = "Measured at batch 1 only: at any other size all rules are off."
SEVERAL = "Speculation pays up to batch 4 in 2 buckets; measured at 1, 4, 8."


@pytest.fixture(scope="module")
def one_size_view(tmp_path_factory):
    """One small task, measured at batch 1."""
    folder = tmp_path_factory.mktemp("runs") / "one"
    return build_view(
        make_run(folder, {"code": 0.9}, requests_per_task=4, tokens=12, confirm=False)
    )


def printed(view):
    sink = io.StringIO()
    print_summary(view, Console(file=sink, width=2000, highlight=False))
    return sink.getvalue()


def test_the_figures_data_are_the_plans_numbers(tiny_view, tiny_run):
    table = read_table(tiny_run / "figures" / f"{BATCHES}.csv")
    rules = {(rule.task, rule.temperature_min): rule for rule in tiny_view.plan.rules}
    assert len(table) == len(rules) * len(FADING) == 12
    for row in table.to_dict("records"):
        rule = rules[row["task"], row["temperature"]]
        (entry,) = [e for e in rule.by_batch if e.batch_size == row["batch_size"]]
        assert row["speedup"] == entry.speedup.estimate, f"{row['task']}, {row['batch_size']}"
        assert (row["low"], row["high"]) == (entry.speedup.low, entry.speedup.high)
        assert row["best_speedup"] == entry.best.speedup.estimate
        assert pd.isna(row["static_speedup"]) == (row["batch_size"] == 1)
    plain = table.drop_duplicates("batch_size").set_index("batch_size")
    for facts in tiny_view.plan.batches:
        assert plain.loc[facts.batch_size, "ar_step_s"] == facts.ar_step_s
        assert facts.tokens_per_s == pytest.approx(facts.batch_size / facts.ar_step_s)


def test_every_form_shows_the_crossover_and_the_loss(tiny_view):
    page = render_page(tiny_view, {})
    text = render_markdown(tiny_view)
    assert SEVERAL in page
    assert SEVERAL in text
    assert SEVERAL in printed(tiny_view)
    assert page.count('<tr class="batch"') == len(tiny_view.rules) == 4
    on = [row for row in tiny_view.rules if row.rule.enabled]
    for row in on:
        assert f'data-max-batch="{row.rule.max_batch}"' in page
        last = row.rule.by_batch[-1]
        assert last.check == "fail", f"{row.label} at batch {last.batch_size}: {last.speedup}"
        assert f'data-speedup="{last.speedup.estimate!r}"' in page
        assert f"{last.speedup.estimate:.2f}x ({last.speedup.low:.2f}" in text
        assert f"static {last.static_speedup:.2f}x" in text
        assert f"waiting {100 * last.waiting_share:.0f} %" in text
    for facts in tiny_view.plan.batches:
        assert f"{1000 * facts.ar_step_s:.3g} ms" in page
        assert f"{facts.tokens_per_s:.1f}" in text


def test_grouping_is_shown_where_there_are_enough_requests(tiny_view):
    """14 requests fill two batches of 4, not two of 8."""
    entries = [entry for row in tiny_view.rules for entry in row.rule.by_batch]
    known = {entry.batch_size for entry in entries if entry.grouping_gain is not None}
    assert known == {4}
    assert "grouping 1.0" in render_page(tiny_view, {})


def test_one_size_is_one_sentence_everywhere(one_size_view):
    page = render_page(one_size_view, {})
    assert one_size_view.figure(BATCHES).absent == ONE
    assert page.count(ONE) == 1, "a sentence in its section, no figure"
    assert '<tr class="batch"' not in page
    assert f'id="{BATCHES}"' not in page
    assert ONE in printed(one_size_view)
    text = render_markdown(one_size_view)
    assert ONE in text
    assert "pays up to" not in text
    assert "measured at batch 1 only" in " ".join(one_size_view.plan.warnings)
    assert "one_batch_size" in [finding.code for finding in one_size_view.findings]


def test_the_number_of_the_only_size_is_true(one_size_view):
    plan = one_size_view.plan.model_copy(update={"batch_sizes": [8]})
    view = replace(one_size_view, plan=plan)
    assert "Measured at batch 8 only" in render_page(view, {})
    assert "Measured at batch 8 only" in printed(view)


def test_rules_csv_has_a_column_a_size_only_if_there_are_several(tiny_view, one_size_view):
    sheet = rules_sheet(tiny_view.rules)
    for row, shown in zip(sheet.to_dict("records"), tiny_view.rules, strict=True):
        for entry in shown.rule.by_batch:
            assert row[f"speedup_at_batch_{entry.batch_size}"] == entry.speedup.estimate
        assert pd.isna(row["max_batch"]) == (shown.rule.max_batch is None)
    alone = rules_sheet(one_size_view.rules)
    assert "max_batch" in alone
    assert not [name for name in alone if "at_batch" in name]


def test_missing_numbers_are_shown_as_missing(tiny_view):
    """A size without a verdict: no interval, no best cell, no static batch; still a picture."""
    rule = tiny_view.plan.rules[2]
    bare = rule.by_batch[-1].model_copy(
        update={"check": "no_verdict", "speedup": rule.speedup.model_copy(
            update={"estimate": None, "low": None, "high": None}),
            "best": None, "static_speedup": None, "waiting_share": None, "grouping_gain": None}
    )  # fmt: skip
    rules = [one.model_copy(update={"by_batch": [*one.by_batch[:-1], bare]})
             for one in tiny_view.plan.rules]  # fmt: skip
    plan = tiny_view.plan.model_copy(update={"rules": rules})
    table = batch_table(plan)
    assert table.loc[table["batch_size"] == 8, "speedup"].isna().all()
    assert draw(replace(tiny_view.figure(BATCHES), table=table))
    rows = tuple(replace(row, rule=rules[0]) for row in tiny_view.rules)
    text = render_markdown(replace(tiny_view, plan=plan, rules=rows))
    assert "n/a; no verdict |" in text
    assert not re.search(r"\bnan", text.lower())


def test_two_equal_sizes_of_lines_still_draw(tiny_view):
    """One bucket, one size with data."""
    table = tiny_view.figure(BATCHES).table
    assert draw(replace(tiny_view.figure(BATCHES), table=table.head(1)))
