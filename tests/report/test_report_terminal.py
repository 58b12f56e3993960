"""The terminal summary: one screen, harmless, the answer in the last sentence."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from selfspec_cli.report.rule_rows import rule_rows
from selfspec_cli.report.terminal import print_summary
from selfspec_cli.report.view import build_view


def printed(view, width=100, **options):
    sink = io.StringIO()
    print_summary(view, Console(file=sink, width=width, highlight=False, **options))
    return sink.getvalue()


def with_rules(view, count):
    rules = [
        view.plan.rules[number % 4].model_copy(
            update={"task": f"a task with a long name {number}", "time_share": 1 / (number + 1)}
        )
        for number in range(count)
    ]
    return replace(view, rules=rule_rows(rules))


@pytest.mark.parametrize("count", [1, 4, 10, 24])
def test_summary_fits_one_screen(tiny_view, count):
    lines = printed(with_rules(tiny_view, count)).splitlines()
    assert len(lines) <= 24, f"{len(lines)} lines for {count} rules"
    assert max(map(len, lines)) <= 100
    rows = [line for line in lines if line.startswith("a task")]
    assert len(rows) == min(count, 10 if count <= 10 else 9)
    assert ("... and 15 more in report.html" in "\n".join(lines)) == (count == 24)


def test_the_last_sentence_answers_everything(tiny_view, tiny_run):
    last = " ".join(printed(tiny_view, width=2000).splitlines()[-1].split())
    assert last.startswith("Enable speculation in 2 of 4 buckets")
    assert f"saves {tiny_view.verdict.saved} of the decode time" in last
    assert str(tiny_run / "report.html") in last
    assert last.endswith(f"next: selfspec gate {tiny_run}")


def test_facts_of_the_run_are_named(tiny_view):
    text = printed(tiny_view, width=2000)
    assert "Read 31 rows = 28 used + 3 left out (3 malformed)." in text
    assert "56 paths observed: 0 recorded, 56 regenerated." in text
    assert "all 32 greedy decodes equal plain decoding" in text
    assert "regret" in text
    assert "popular rule: 0.80" in text
    assert "use --task-from" not in text


def test_a_trace_without_labels_names_the_flag(tiny_view):
    bare = replace(tiny_view, inputs=replace(tiny_view.inputs, task_labels=False))
    assert "One bucket: no task labels found, use --task-from." in printed(bare)


def test_labels_cannot_steer_the_terminal(hostile_run):
    """D17: control characters are shown, markup of the printer is text."""
    view = build_view(hostile_run)
    assert "\x1b" not in printed(view)
    for label, shown in (("a\x1b[31m\n", "a\\x1b[31m\\n"), ("[red]x[/red]", "[red]x[/red]")):
        rule = view.rules[0].rule.model_copy(update={"task": label})
        text = printed(replace(view, rules=rule_rows([rule])))
        assert shown in text
        assert "\x1b" not in text
