"""report.html as text: order, one row a rule, nothing of the data becomes markup."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
from page_tree import Tree
from report_runs import HOSTILE

from selfspec_cli.report.figure_view import MAP
from selfspec_cli.report.figures import draw
from selfspec_cli.report.page import render_page
from selfspec_cli.report.rule_rows import rule_rows


def page_of(run):
    text = (run / "report.html").read_text(encoding="utf-8")
    return text, Tree(text)


def test_every_tag_is_closed_and_ids_are_unique(tiny_run):
    _, tree = page_of(tiny_run)
    assert tree.open == []
    ids = [attrs["id"] for _, attrs in tree.tags if "id" in attrs]
    assert len(ids) == len(set(ids)), [name for name in ids if ids.count(name) > 1][:5]


def test_nothing_is_fetched_and_no_script_runs(tiny_run):
    text, tree = page_of(tiny_run)
    assert tree.of("script") == []
    assert [attrs for _, attrs in tree.tags if any(key.startswith("on") for key in attrs)] == []
    loads = [attrs.get("src") or attrs.get("href") or "" for _, attrs in tree.tags]
    outside = [link for link in loads if re.match(r"(https?:)?//", link)]
    assert outside == []
    assert "default-src 'none'" in text
    assert "@import" not in text
    assert "url(http" not in text


def test_the_verdict_comes_first_and_sections_in_order(tiny_run, tiny_view):
    text, tree = page_of(tiny_run)
    places = [text.index(f'id="{name}"') for name in (
        "verdict", "takes", "rules", "batches", "figures", "findings", "ceilings", "traffic",
        "provenance",
    )]  # fmt: skip
    assert places == sorted(places)
    assert tiny_view.verdict.sentence in tree.text
    assert tiny_view.verdict.next_command in tree.text


def test_one_row_a_rule_with_the_plans_numbers(tiny_run, tiny_view):
    _, tree = page_of(tiny_run)
    rows = tree.of("tr", class_="rule")
    assert len(rows) == len(tiny_view.plan.rules)
    for attrs, row in zip(rows, tiny_view.rules, strict=True):
        assert float(attrs["data-speedup"]) == row.rule.speedup.estimate
        assert float(attrs["data-speedup-low"]) == row.rule.speedup.low
        assert int(attrs["data-exit-layer"]) == row.rule.drafter.exit_layer
        assert attrs["data-enabled"] == str(row.rule.enabled).lower()


def test_figures_have_captions_text_alternatives_and_data(tiny_run, tiny_view):
    text, tree = page_of(tiny_run)
    assert len(tree.of("figure")) == len(tiny_view.figures) == 7
    pictures = [attrs for attrs in tree.of("svg") if attrs.get("class") == "plot"]
    assert len(pictures) == 7
    for attrs, figure in zip(pictures, tiny_view.figures, strict=True):
        assert attrs["role"] == "img"
        assert attrs["aria-label"] == figure.alt
        assert len(figure.alt) > 40, figure.alt
        assert f'href="figures/{figure.name}.csv"' in text
        assert (tiny_run / "figures" / f"{figure.name}.csv").exists()
        assert (tiny_run / "figures" / f"{figure.name}.svg").exists()
    assert len(tree.of("figcaption")) == 7


def test_no_nan_or_infinity_is_shown(tiny_run, hostile_run):
    """D16: undefined is n/a in HTML."""
    for run in (tiny_run, hostile_run):
        _, tree = page_of(run)
        assert not re.search(r"\b(nan|inf|infinity|null|<na>)\b", tree.text, re.IGNORECASE)
        values = [value or "" for _, attrs in tree.tags for value in attrs.values()]
        assert not [value for value in values if value.lower() in ("nan", "inf", "none", "<na>")]
    assert "n/a" in page_of(hostile_run)[1].text


def test_d01_labels_never_become_markup(hostile_run):
    """D01: hostile tasks are shown literally; the page has the elements of a harmless one."""
    text, tree = page_of(hostile_run)
    assert tree.open == []
    assert tree.of("script") == []
    assert tree.of("img") == []
    shown = tree.text
    assert "</script><script>document.title='owned'</script>" in shown
    assert "{{7*191}} ${7*191}" in shown
    assert "1337" not in shown, "evaluated"
    assert "\\x1b[31m" in shown
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert len(tree.of("tr", class_="rule")) == 2 * len(HOSTILE)


def test_d03_labels_are_not_file_names(hostile_run):
    """D03: file names are ours alone, and nothing lies outside the run."""
    files = {path.relative_to(hostile_run).as_posix() for path in hostile_run.rglob("*")}
    assert not [name for name in files if "escape" in name or "script" in name]
    assert {path.name for path in hostile_run.parent.iterdir()} == {hostile_run.name}


def test_a_large_run_stays_below_five_megabytes(tiny_view):
    """12 layers, 8 draft lengths, 4 temperatures and 400 rules: what 500 requests may give."""
    rng = np.random.default_rng(0)
    cells = pd.MultiIndex.from_product(
        [[0.0, 0.3, 0.7, 1.0], range(9, 21), range(1, 9)],
        names=["temperature", "exit_layer", "draft_length"],
    )
    speedup = rng.uniform(0.3, 1.6, len(cells))
    table = cells.to_frame(index=False).assign(
        num_requests=500, predicted_speedup=speedup, predicted_speedup_low=speedup * 0.9,
        predicted_speedup_high=speedup * 1.1, chosen=False,
    )  # fmt: skip
    figures = tuple(
        replace(figure, table=table) if figure.name == MAP else figure
        for figure in tiny_view.figures
    )
    rules = [
        rule.model_copy(update={"task": f"task {number}"})
        for number in range(100)
        for rule in tiny_view.plan.rules
    ]
    view = replace(tiny_view, figures=figures, rules=rule_rows(rules))
    page = render_page(view, {figure.name: draw(figure) for figure in view.figures})
    assert len(page.encode()) < 5_000_000, f"{len(page.encode())} bytes"
    assert page.count('<tr class="rule"') == 400


def test_figures_of_a_plan_with_other_costs_say_whose_they_show(tiny_view):
    own = render_page(tiny_view, {})
    assert "this run's own costs" not in own.replace("&#39;", "'")
    costs = tiny_view.plan.measured_on.costs.model_copy(update={"source": "gpu<box>.csv"})
    measured = tiny_view.plan.measured_on.model_copy(update={"costs": costs})
    plan = tiny_view.plan.model_copy(update={"measured_on": measured})
    page = render_page(replace(tiny_view, plan=plan, foreign_costs=True), {})
    assert "costs of gpu&lt;box&gt;.csv; the figures show this run" in page
