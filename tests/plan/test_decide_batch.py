"""`Plan.decide` and batch sizes: nothing beyond the crossover, nothing between without proof."""

import copy
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_helpers import asks, batch_rows, cost_rows, make_run, plan_run

from selfspec_cli.errors import PlanError
from selfspec_cli.plan import decide as decide_module
from selfspec_cli.plan.decide import Plan
from selfspec_cli.plan.files import plan_data, read_plan
from selfspec_cli.storage import write_document

SIZES = (1, 4, 8)


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    """Task code is on up to batch 4 of 1, 4 and 8; task slow is off."""
    log = [*asks(20), *asks(20, task="slow", accept=0.0)]
    run = make_run(tmp_path_factory.mktemp("d") / "run", log, costs=batch_rows())
    return plan_data(plan_run(run))


@pytest.fixture(scope="module")
def plan(document):
    return Plan.of_document(document)


def ask(plan, batch_size, **fields):
    base = {"task": "code", "context_tokens": 40, "temperature": 0.7}
    return plan.decide(**{**base, **fields}, batch_size=batch_size)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_up_to_the_crossover_the_rule_holds_between_sizes_too(plan, size):
    assert ask(plan, size).enabled, ask(plan, size).reason


@pytest.mark.parametrize("size", [5, 7, 8, 9, 500])
def test_beyond_it_the_reason_names_the_crossover(plan, size):
    found = ask(plan, size)
    assert (found.enabled, found.exit_layer) == (False, None)
    assert found.reason == "pays up to batch 4; at 8 it measures 0.76x (0.76-0.76)"
    assert found.rule["task"] == "code"


def test_a_rule_that_is_off_keeps_its_own_reason_at_any_size(plan):
    assert "reaches 0.81" in ask(plan, 8, task="slow").reason


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (0, "batch size 0 is out of range"),
        (-4, "batch size -4 is out of range"),
        (0.5, "batch size 0.5 is out of range"),
        (math.nan, "batch_size nan is not a number"),
        (math.inf, "batch_size inf is not a number"),
        ("4", "batch_size '4' is not a number"),
        (None, "batch_size None is not a number"),
        (True, "batch_size True is not a number"),
    ],
)
def test_what_is_no_batch_size_is_off_with_its_reason(plan, size, says):
    found = ask(plan, size)
    assert not found.enabled
    assert says in found.reason, found.reason


def changed(document, **rule):
    data = copy.deepcopy(document)
    data["rules"][0].update(rule)
    return data


def all_pass(document):
    """The same plan, had every size passed."""
    data = changed(document, max_batch=8)
    for entry in data["rules"][0]["by_batch"]:
        entry["check"] = "pass"
    return data


def test_beyond_the_largest_measured_size_nothing_is_calibrated(document):
    plan = Plan.of_document(all_pass(document))
    assert ask(plan, 8).enabled
    assert ask(plan, 9).reason == "batch size 9 was not calibrated, only up to 8"


def test_below_the_smallest_measured_size_nothing_is_calibrated(tmp_path):
    run = make_run(tmp_path / "run", asks(20), costs=batch_rows({4: 1.0, 8: 1.0}))
    plan = Plan.of_document(plan_data(plan_run(run)))
    assert ask(plan, 4).enabled
    for size in (1, 3):
        said = f"batch size {size} was not calibrated, the smallest measured is 4"
        assert ask(plan, size).reason == said


@given(size=st.floats(1, 1e6))
def test_enabled_only_where_the_next_measured_size_is(plan, size):
    """Checked against the plan's own entries, without the reader's look-up."""
    entries = plan.rules[0]["by_batch"]
    above = [entry["check"] for entry in entries if entry["batch_size"] >= size]
    below = [entry["check"] for entry in entries if entry["batch_size"] < size]
    expected = bool(above) and set(above[:1]) | set(below) == {"pass"}
    assert ask(plan, size).enabled is expected, size


def test_broken_twin_a_reader_that_rounds_down_enables_what_was_not_measured(plan, monkeypatch):
    """Batch 6 lies between 4, which pays, and 8, which does not: 4 must not speak for it."""

    def smaller_speaks(rule, sizes, batch_size):
        return beyond(rule, sizes, max(size for size in sizes if size <= batch_size))

    beyond = decide_module.beyond_batch
    assert not ask(plan, 6).enabled
    monkeypatch.setattr(decide_module, "beyond_batch", smaller_speaks)
    assert ask(plan, 6).enabled, f"the twin must differ at 6: {ask(plan, 6).reason}"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"max_batch": 0}, "max_batch 0 lies below 1, the smallest batch size measured"),
        ({"max_batch": -1}, "max_batch -1 lies below 1"),
        ({"max_batch": None}, "enabled without max_batch"),
        ({"max_batch": math.nan}, "max_batch is nan"),
        ({"max_batch": 4.0}, "max_batch is 4.0"),
        ({"max_batch": True}, "max_batch is True"),
        ({"max_batch": "4"}, "max_batch is '4'"),
        ({"max_batch": 8}, "max_batch 8, but batch 8 is fail"),
        ({"by_batch": {"8": {}}}, "by_batch is no list of mappings"),
        ({"by_batch": [8]}, "by_batch is no list of mappings"),
        ({"by_batch": [{"batch_size": 8, "check": "pass"}]}, r"by_batch\[0\]: reason is missing"),
        (
            {"by_batch": [{"batch_size": math.nan, "check": "pass", "reason": ""}]},
            r"by_batch\[0\]: batch_size is nan",
        ),
    ],
)
def test_a_rule_with_odd_batch_sizes_is_no_rule(document, change, says):
    with pytest.raises(PlanError, match=says):
        Plan.of_document(changed(document, **change))


def test_a_largest_batch_below_the_base_is_refused(tmp_path):
    run = make_run(tmp_path / "run", asks(20), costs=batch_rows({4: 1.0, 8: 1.0}))
    data = changed(plan_data(plan_run(run)), max_batch=2)
    with pytest.raises(PlanError, match="max_batch 2 lies below 4"):
        Plan.of_document(data)


@pytest.mark.parametrize(
    "sizes", [[], [0, 4], [4, 1], [1, 1], [1, math.nan], [1, 4.0], [True], "1,4", None]
)
def test_odd_lists_of_batch_sizes_are_refused(document, sizes):
    with pytest.raises(PlanError, match="batch_sizes is"):
        Plan.of_document({**document, "batch_sizes": sizes})


def test_prompts_that_a_larger_batch_was_not_timed_at_are_off_there(tmp_path):
    """Batch 4 was timed up to 500 tokens; prompts of 600 pay alone."""
    import pandas as pd

    costs = pd.concat([cost_rows(), cost_rows(batch=4, top=500)], ignore_index=True)
    log = [*asks(20), *asks(20, prompt=300), *asks(20, prompt=490)]
    plan = Plan.of_document(plan_data(plan_run(make_run(tmp_path / "r", log, costs=costs))))
    assert ask(plan, 1, context_tokens=490).enabled
    assert ask(plan, 4, context_tokens=300).enabled
    refused = ask(plan, 2, context_tokens=301).reason
    assert "301 tokens was not measured at batch 4, where 40 to 300 were" in refused, refused


def test_between_two_temperatures_both_rules_must_hold_at_the_batch_size(tmp_path):
    """Greedy rounds in fours cost three times as much: 0.76x; sampled ones pay."""
    import pandas as pd

    fours = pd.concat(
        [cost_rows(batch=4, laws=("sampled",)), ar_rows("greedy", 4, 1 / 3)], ignore_index=True
    )
    costs = pd.concat([cost_rows(), fours], ignore_index=True)
    run = make_run(tmp_path / "run", asks(20, temperatures=(0.0, 0.7)), costs=costs)
    plan = Plan.of_document(plan_data(plan_run(run)))
    assert [rule["max_batch"] for rule in plan.rules] == [1, 4]
    assert ask(plan, 1, temperature=0.3).enabled
    assert ask(plan, 4, temperature=0.7).enabled
    for temperature in (0.0, 0.3):
        found = ask(plan, 4, temperature=temperature)
        assert found.reason.startswith("pays up to batch 1; at 4 it measures 0.76x"), found.reason


def test_the_warmer_rule_counts_too_between_two_temperatures(document):
    """The colder one pays in fours, the warmer one does not."""
    data = all_pass(document)
    cold = data["rules"][0] | {"temperature_min": 0.2}
    warm = changed(document, max_batch=1)["rules"][0]
    warm["by_batch"][1]["check"] = "fail"
    plan = Plan.of_document({**data, "rules": [cold, warm]})
    assert ask(plan, 4, temperature=0.2).enabled
    assert ask(plan, 1, temperature=0.5).enabled
    assert not ask(plan, 4, temperature=0.5).enabled


def ar_rows(law, batch, factor):
    """Rows of one law at a batch size whose plain step alone is `factor` as long."""
    rows = cost_rows(batch=batch, laws=(law,))
    rows = rows.loc[rows["law"] == law]
    plain = rows["part"] == "ar"
    return rows.assign(seconds=rows["seconds"].where(~plain, rows["seconds"] * factor))


def first_version(document):
    """The plan as schema version 1 had it: one batch size, named even where a rule is off."""
    data = copy.deepcopy(document)
    data["schema_version"], data["batch_sizes"] = 1, [1]
    del data["batches"]
    for rule in data["rules"]:
        del rule["by_batch"]
        rule["max_batch"] = 1
    return data


def test_plans_of_the_first_schema_version_are_still_read(document, tmp_path):
    old = first_version(document)
    plan = Plan.of_document(old)
    assert ask(plan, 1).enabled
    assert ask(plan, 2).reason == "batch size 2 was not calibrated, only up to 1"
    path = tmp_path / "plan.yaml"
    write_document(old, path)
    today = read_plan(path)
    assert today.schema_version == 2
    assert [(rule.enabled, rule.max_batch) for rule in today.rules] == [(True, 1), (False, None)]
    assert [rule.by_batch for rule in today.rules] == [[], []]
    assert ask(Plan.of_document(plan_data(today)), 1).enabled


def test_a_torn_plan_of_the_first_version_is_refused(document, tmp_path):
    path = tmp_path / "plan.yaml"
    for rules in ("all", [1], None):
        write_document({**first_version(document), "rules": rules}, path)
        with pytest.raises(PlanError, match="rules"):
            read_plan(path)
