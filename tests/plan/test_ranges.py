"""Where a rule holds: between temperatures, inside the observed window, at the edges of a sweep."""

import pytest
from plan_helpers import Ask, asks, make_run, one_rule, plan_of, plan_run

from selfspec_cli.plan.temperatures import extend_temperatures


def test_a_rule_reaches_to_the_next_temperature_that_enables_the_same_cell(tmp_path):
    plan = plan_of(tmp_path, asks(20, temperatures=(0.3, 0.7, 1.0)))
    found = [(rule.temperature_min, rule.temperature_max) for rule in plan.rules]
    assert found == [(0.3, 0.7), (0.7, 1.0), (1.0, 1.0)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"enabled": False}, "the neighbour is off"),
        ({"task": "other"}, "another task"),
        ({"context_min": 512}, "another band"),
        ({"laws": []}, "other laws were calibrated"),
    ],
)
def test_a_rule_does_not_reach_to_a_neighbour_that_differs(tmp_path, change, why):
    low, high = plan_of(tmp_path, asks(20, temperatures=(0.3, 0.7))).rules
    ranged = extend_temperatures([low, high.model_copy(update=change)])
    assert [rule.temperature_max for rule in ranged] == [0.3, 0.7], why


def test_another_cell_at_the_next_temperature_ends_the_range(tmp_path):
    low, high = plan_of(tmp_path, asks(20, temperatures=(0.3, 0.7))).rules
    draft = high.draft.model_copy(update={"length": 2})
    ranged = extend_temperatures([low, high.model_copy(update={"draft": draft})])
    assert ranged[0].temperature_max == 0.3


def test_a_temperature_measured_elsewhere_is_not_jumped_over(tmp_path):
    """Task math was read at 0.5 only: code between 0.3 and 0.7 passes a temperature it lacks."""
    log = [*asks(20, temperatures=(0.3, 0.7)), *asks(20, task="math", temperatures=(0.5,))]
    assert one_rule(plan_of(tmp_path, log), temperature=0.3).temperature_max == 0.3


@pytest.mark.parametrize(
    ("fields", "window"),
    [
        ({"stated": 66}, "full"),  # twice 33
        ({"stated": 67}, "partial"),
        ({"stated": 500, "finish": "eos"}, "full"),  # ended by itself: seen whole
        ({"stated": 500, "finish": "unknown"}, "partial"),
    ],
)
def test_window(tmp_path, fields, window):
    rule = one_rule(plan_of(tmp_path, asks(20, **fields)))
    assert rule.window == window


def test_the_observed_window_is_stated(tmp_path):
    plan = plan_of(tmp_path, [*asks(3, tokens=9), *asks(2, tokens=33)])
    window = plan.traces.output_window
    assert (window.observed_tokens, window.median_tokens) == (33, 9.0)
    assert window.num_default_max_tokens == 0


def test_edges_of_the_sweep_are_told_once_with_how_many_buckets(tmp_path):
    log = [*asks(20), *asks(20, task="b"), *asks(20, task="c"), *asks(20, task="d")]
    (warning,) = [w for w in plan_of(tmp_path, log).warnings if "draft length swept" in w]
    assert "the best cell is at the last draft length swept, 3" in warning
    assert "and 2 more: nothing was observed beyond it" in warning  # four buckets, all tasks


def test_the_best_cell_of_a_few_requests_is_no_reason_to_widen(tmp_path):
    """All tasks together have enough and are told; the thin buckets are not."""
    log = [*asks(12), *asks(12, task="b")]
    (warning,) = [w for w in plan_of(tmp_path, log).warnings if "swept" in w]
    assert "(all tasks at T=0.7: nothing was observed beyond it)" in warning


def test_no_edge_where_the_range_cannot_go_on(tmp_path):
    """L = 1 and k = 1 are the least there is; L = 3 of 4 layers the most."""
    run = make_run(tmp_path / "run", asks(20, accept=(0.0, 0.0, 0.0)), layers=(1, 2, 3))
    assert not [w for w in plan_run(run).warnings if "swept" in w]


def test_prompts_that_were_covered_are_stated(tmp_path):
    plan = plan_of(tmp_path, [Ask(prompt=30), Ask(prompt=300), Ask(prompt=900)])
    assert (plan.traces.prompt_tokens_min, plan.traces.prompt_tokens_max) == (30, 900)
    assert [rule.prompt_tokens_max for rule in plan.rules] == [300, 900]


def test_no_task_labels_are_told(tmp_path):
    plan = plan_of(tmp_path, asks(2, task="unlabelled"))
    assert "one bucket: no task labels found, use --task-from" in plan.warnings


def test_one_exit_layer_was_not_swept(tmp_path):
    """Whoever gives one value knows that its neighbours were not looked at."""
    run = make_run(tmp_path / "run", asks(20, accept=(1.0,)), layers=(2,))
    assert not [w for w in plan_run(run).warnings if "exit layer swept" in w]
