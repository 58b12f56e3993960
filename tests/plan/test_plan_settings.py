"""Thresholds: the run's own, flags on top, and one analysis hash whoever computes it."""

from itertools import pairwise

import pytest
from plan_helpers import Ask, asks, make_run, plan_run

from selfspec_cli.config import analysis_hash, load_config
from selfspec_cli.errors import ConfigError
from selfspec_cli.plan.settings import PlanSettings


def config(**more):
    return load_config(None, {"model": "m", "traces": ["t"], "out": "o", **more})


def test_the_plans_analysis_hash_is_the_configurations():
    for given in ({}, {"plan.margin": 0.1}, {"plan.min_requests": 30}, {"context_edges": [0, 9]}):
        settings = config(**given)
        assert PlanSettings.of_config(settings).analysis_hash == analysis_hash(settings), given


def test_a_run_keeps_its_settings_and_flags_win(tmp_path):
    run = make_run(tmp_path / "run", asks(1))
    run.update(config=config(**{"plan.margin": 0.2, "context_edges": [0, 64]}).model_dump())
    kept = PlanSettings.of_run(run)
    assert (kept.margin, kept.min_requests, kept.context_edges) == (0.2, 20, (0, 64))
    flagged = PlanSettings.of_run(run, margin=0.0, min_requests=None)
    assert (flagged.margin, flagged.min_requests) == (0.0, 20)


@pytest.mark.parametrize("flag", [{"margin": float("nan")}, {"margin": -1.0}, {"min_requests": 1}])
def test_flags_out_of_range_are_named(tmp_path, flag):
    run = make_run(tmp_path / "run", asks(1))
    with pytest.raises(ConfigError) as caught:
        PlanSettings.of_run(run, **flag)
    assert caught.value.where == "--" + next(iter(flag)).replace("_", "-")


def test_a_plan_states_the_settings_it_was_made_with(tmp_path):
    run = make_run(tmp_path / "run", asks(4))
    settings = PlanSettings(margin=0.3, min_requests=3, max_slow_share=0.5, context_edges=(0, 64))
    plan = plan_run(run, margin=0.3, min_requests=3, max_slow_share=0.5, context_edges=(0, 64))
    stated = plan.settings
    assert (stated.margin, stated.min_requests, stated.max_slow_share) == (0.3, 3, 0.5)
    assert stated.context_edges == [0, 64]
    assert plan.analysis_hash == settings.analysis_hash


def test_a_larger_margin_never_enables_more(tmp_path):
    log = [
        Ask(task=f"t{task}", accept=accept)
        for task, level in enumerate((0.1, 0.3, 0.5, 0.7))
        for accept in (level, level + 0.2) * 12
    ]
    run = make_run(tmp_path / "run", log)
    on = []
    for margin in (0.0, 0.1, 0.3, 1.0):
        plan = plan_run(run, margin=margin, max_slow_share=1.0)
        on.append({rule.task for rule in plan.rules if rule.enabled})
    assert on == sorted(on, key=len, reverse=True)
    assert all(more <= less for less, more in pairwise(on)), on
    assert len(on[0]) > len(on[-1]), on
