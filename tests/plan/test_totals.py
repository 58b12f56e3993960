"""What a plan brings to the whole log: weights, totals and verdicts by hand."""

import re

import pytest
from plan_helpers import ALL_ACCEPTED_K3, Ask, asks, make_run, one_rule, plan_of, plan_run

from selfspec_cli.plan.inputs import load_plan_inputs
from selfspec_cli.plan.planner import basis_of
from selfspec_cli.plan.settings import PlanSettings
from selfspec_cli.plan.totals import verdict_of
from selfspec_cli.plan.traffic import path_table


def test_half_the_log_gains_and_half_stays(tmp_path):
    """24 requests at 14 instead of 32 s, 24 at 32 s: (14 + 32) / 64 - 1."""
    plan = plan_of(tmp_path, [*asks(24), *asks(24, task="math", accept=0.0)])
    total = plan.total
    assert total.decode_time_change.estimate == pytest.approx(46 / 64 - 1, rel=1e-6)
    assert total.decode_time_change.low < 46 / 64 - 1 < total.decode_time_change.high
    assert (total.num_buckets, total.num_enabled) == (2, 1)
    assert total.enabled_token_share == pytest.approx(0.5)
    assert total.oracle_decode_time_change == pytest.approx(46 / 64 - 1, rel=1e-6)
    pattern = r"decode time -28 % \(\d+\.\.\d+\) on this log; 1 of 2 buckets, 50 % of tokens"
    assert re.fullmatch(pattern, total.sentence), total.sentence
    assert plan.verdict == "enable some"


def test_a_plan_that_disables_everything_changes_exactly_nothing(tmp_path):
    plan = plan_of(tmp_path, asks(24, accept=0.0))
    change = plan.total.decode_time_change
    assert (change.estimate, change.low, change.high) == (0.0, 0.0, 0.0)
    assert plan.total.sentence == (
        "decode time unchanged (0 %) on this log: speculation is off everywhere (1 bucket)"
    )
    assert plan.verdict == "do not enable"


def test_each_request_weighs_once_whatever_it_was_read_at(tmp_path):
    """Own temperature known: all its weight there. Unknown, or not read: spread over those read."""
    log = [
        Ask(own=0.7, temperatures=(0.0, 0.7)),
        Ask(own=None, temperatures=(0.0, 0.7)),
        Ask(own=0.3, temperatures=(0.0, 0.7)),
    ]
    inputs = load_plan_inputs(make_run(tmp_path / "run", log))
    table = path_table(inputs, (0,))
    assert table["weight"].tolist() == [0.0, 1.0, 0.5, 0.5, 0.5, 0.5]
    assert table.groupby("request_id")["weight"].sum().eq(1.0).all()


def test_traffic_at_its_own_temperature_makes_the_total(tmp_path):
    """All requests are served at 0.7, where drafts are refused: what T = 0 gains is no traffic."""
    log = [*asks(24, own=0.7, temperatures=(0.7,), accept=0.0), *asks(24, own=0.7, accept=0.0)]
    plan = plan_of(tmp_path, [*log, *asks(24, task="idle", own=0.7, temperatures=(0.0, 0.7))])
    idle = one_rule(plan, "idle", temperature=0.0)
    assert idle.enabled
    assert idle.token_share == 0.0, "nobody asks for T = 0"


def test_the_total_rests_on_evidence_not_on_the_chosen_cells_own_value(tmp_path):
    """Cross-fitted estimate below the in-sample one: the total must follow the former."""
    run = make_run(tmp_path / "run", [Ask(accept=(a, 1 - a / 2, 0.5)) for a in [0.4, 0.9] * 12])
    plan = plan_run(run, margin=0.0, max_slow_share=1.0)
    rule = one_rule(plan)
    assert rule.enabled, rule.reason
    change = plan.total.decode_time_change.estimate
    assert change == pytest.approx(1 / rule.speedup.estimate - 1, rel=1e-9)


def test_shares_of_tokens_and_of_time_sum_to_one(tmp_path):
    plan = plan_of(tmp_path, [*asks(24), *asks(10, task="math", tokens=65)])
    assert sum(rule.token_share for rule in plan.rules) == pytest.approx(1.0)
    assert sum(rule.time_share for rule in plan.rules) == pytest.approx(1.0)
    assert one_rule(plan, "math").token_share == pytest.approx(650 / (650 + 24 * 33))


def test_a_log_without_any_output_has_no_total_to_divide_by(tmp_path):
    plan = plan_of(tmp_path, asks(3, tokens=0))
    assert plan.total.decode_time_change.estimate == 0.0
    assert plan.rules[0].token_share is None
    assert plan.total.oracle_decode_time_change is None


def test_verdicts(tmp_path):
    on = plan_of(tmp_path, asks(24))
    assert on.verdict == "enable"
    rule = on.rules[0]
    off = rule.model_copy(update={"enabled": False})
    unknown = off.model_copy(update={"evidence": "none"})
    assert verdict_of([rule, off]) == "enable some"
    assert verdict_of([off, unknown]) == "do not enable"
    assert verdict_of([unknown, unknown]) == "no verdict"
    assert verdict_of([]) == "no verdict"


def test_shares_stated_by_the_basis_leave_out_what_costs_do_not_cover(tmp_path):
    """A prompt of 5,000 tokens lies beyond the costs: counted, and no part of any share."""
    run = make_run(tmp_path / "run", [*asks(24), Ask(task="long", prompt=5000)])
    inputs = load_plan_inputs(run)
    assert dict(inputs.left_out)["contexts_beyond_those_timed"] == 1
    plan = plan_run(run)
    long = one_rule(plan, "long", context_min=2048)
    assert not long.enabled
    assert "none of its 1 path can be priced" in long.reason
    assert any(w.startswith("1 path left out") for w in plan.warnings)
    assert plan.traces.prompt_tokens_max == 40
    assert one_rule(plan).token_share == 1.0
    assert basis_of(inputs, PlanSettings()).pools.all[0.7].evidence.num_groups == 24
    assert plan.total.decode_time_change.estimate == pytest.approx(1 / ALL_ACCEPTED_K3 - 1)
