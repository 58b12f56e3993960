"""Rules on logs small enough to be planned by hand (METHOD.md §5)."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from plan_helpers import (
    ALL_ACCEPTED_K3,
    REFUSED_K3,
    SHAKY,
    Ask,
    asks,
    cost_rows,
    make_run,
    one_rule,
    plan_of,
    plan_run,
)

from selfspec_cli.errors import StorageError
from selfspec_cli.plan import parents, pools, rules
from selfspec_cli.plan.inputs import load_plan_inputs
from selfspec_cli.plan.planner import basis_of, build_plan, no_evidence
from selfspec_cli.plan.settings import PlanSettings


def test_a_bucket_that_pays_is_enabled_by_its_own_evidence(tmp_path):
    """All drafts accepted: 4 tokens for 1.75 s at L = 1, k = 3, against 4 s."""
    rule = one_rule(plan_of(tmp_path, asks(20)))
    assert (rule.enabled, rule.evidence, rule.requests_missing) == (True, "own", 0), rule.reason
    assert (rule.drafter.exit_layer, rule.draft.length) == (1, 3)
    assert rule.speedup.estimate == pytest.approx(ALL_ACCEPTED_K3, rel=1e-6)
    assert rule.speedup.low == pytest.approx(ALL_ACCEPTED_K3, rel=1e-6)
    assert rule.acceptance_rate_tested == pytest.approx(1.0)
    assert (rule.slow_share, rule.num_requests, rule.num_tokens) == (0.0, 20, 660)


def test_a_bucket_that_loses_is_disabled_with_its_numbers(tmp_path):
    rule = one_rule(plan_of(tmp_path, asks(20, accept=0.0)))
    assert (rule.enabled, rule.evidence) == (False, "own"), rule.reason
    assert rule.speedup.estimate == pytest.approx(32 / 39.75, rel=1e-6)  # 31 rounds of 1.25, one 1
    assert "L=1, k=1 reaches 0.81 (0.81-0.81) over 20 requests" in rule.reason
    assert "at L = 1 you need 0.25, you have 0.00" in rule.reason  # 1 + α = 1.25


def test_equal_to_the_threshold_passes_and_just_below_does_not(tmp_path):
    run = make_run(tmp_path / "run", [Ask(accept=a) for a in np.linspace(0.8, 1.0, 24)])
    low = one_rule(plan_run(run)).speedup.low
    assert one_rule(plan_run(run, margin=low - 1.0)).enabled, f"lower bound {low} equals 1 + margin"
    assert not one_rule(plan_run(run, margin=low - 1.0 + 1e-6)).enabled, f"bound {low} is below"


def test_the_margin_is_asked_of_the_lower_bound_not_of_the_estimate(tmp_path):
    run = make_run(tmp_path / "run", [Ask(accept=a) for a in np.linspace(0.2, 1.0, 24)])
    rule = one_rule(plan_run(run))
    between = (rule.speedup.low + rule.speedup.estimate) / 2 - 1.0
    told = one_rule(plan_run(run, margin=between))
    assert not told.enabled, (
        f"estimate {told.speedup.estimate} > {1 + between} > {told.speedup.low}"
    )


@pytest.mark.parametrize(("number", "missing"), [(19, 1), (3, 17)])
def test_too_few_requests_and_no_larger_parent_is_no_evidence(tmp_path, number, missing):
    plan = plan_of(tmp_path, asks(number))
    rule = one_rule(plan)
    assert (rule.enabled, rule.evidence, rule.requests_missing) == (False, "none", missing)
    assert f"needs {missing} more request" in rule.reason
    assert no_evidence(plan)
    assert plan.verdict == "no verdict"


def test_repeats_of_one_prompt_are_one_request(tmp_path):
    repeated = [Ask(group=f"g{i // 2}") for i in range(38)]
    rule = one_rule(plan_of(tmp_path, repeated))
    assert (rule.num_requests, rule.requests_missing, rule.evidence) == (19, 1, "none")


def test_a_thin_bucket_follows_its_parent_that_pays(tmp_path):
    """Band 0-511 has 30 requests, band 512-2047 five that pay too: task code is the parent."""
    plan = plan_of(tmp_path, [*asks(30), *asks(5, prompt=600)])
    rule = one_rule(plan, context_min=512)
    assert (rule.enabled, rule.evidence, rule.requests_missing) == (True, "parent", 15)
    assert (rule.num_requests, rule.evidence_requests) == (5, 35)
    assert "code at T=0.7 is on" in rule.reason
    assert "needs 15 more requests" in rule.reason


def mixed_bands(tmp_path):
    """45 requests that pay, 4 thin ones where every draft is refused; their parent still pays."""
    return make_run(tmp_path / "run", [*asks(45), *asks(4, prompt=600, accept=0.0)])


def test_a_thin_bucket_whose_own_requests_lose_is_vetoed(tmp_path):
    rule = one_rule(plan_run(mixed_bands(tmp_path)), context_min=512)
    assert (rule.enabled, rule.evidence) == (False, "parent"), rule.reason
    assert rule.in_sample_speedup == pytest.approx(REFUSED_K3, rel=1e-6)
    assert "this bucket's own requests reach 0.59" in rule.reason


def test_broken_twin_without_the_veto_the_thin_bucket_is_enabled(tmp_path, monkeypatch):
    """Else the test above would pass although nobody vetoes."""
    monkeypatch.setattr(parents, "vetoed", lambda own, cell: False)
    rule = one_rule(plan_run(mixed_bands(tmp_path)), context_min=512)
    assert rule.enabled, f"parent {rule.speedup} pays, own ratio {rule.in_sample_speedup}"


def test_a_thin_bucket_of_a_parent_that_loses_is_off_with_the_parents_numbers(tmp_path):
    plan = plan_of(tmp_path, [*asks(30, accept=0.0), *asks(5, prompt=600)])
    rule = one_rule(plan, context_min=512)
    assert (rule.enabled, rule.evidence) == (False, "parent")
    assert "code at T=0.7 is off" in rule.reason
    assert "over 35 requests" in rule.reason


def test_tasks_too_thin_follow_all_tasks_at_their_temperature(tmp_path):
    plan = plan_of(tmp_path, [*asks(12), *asks(12, task="math")])
    for task in ("code", "math"):
        rule = one_rule(plan, task)
        assert (rule.enabled, rule.evidence, rule.evidence_requests) == (True, "all", 24), task
    assert not no_evidence(plan)


def test_temperatures_are_never_pooled(tmp_path):
    """12 requests at each of two temperatures are not 24 at one."""
    plan = plan_of(tmp_path, [*asks(12), *asks(12, temperatures=(1.0,))])
    found = {(rule.temperature_min, rule.enabled, rule.evidence) for rule in plan.rules}
    assert found == {(0.7, False, "none"), (1.0, False, "none")}


def test_broken_twin_pooling_temperatures_would_enable(tmp_path):
    """The same 24 requests, all read at one temperature: this is what pooling would make of it."""
    rule = one_rule(plan_of(tmp_path, asks(24)))
    assert rule.enabled, rule.reason


def test_a_request_read_at_two_temperatures_is_not_two_requests(tmp_path):
    plan = plan_of(tmp_path, asks(12, temperatures=(0.7, 1.0)))
    assert [rule.evidence_requests for rule in plan.rules] == [12, 12]
    assert no_evidence(plan)


def noisy_cells(tmp_path):
    """24 requests on which no cell pays, but whose cells are noise: the best one looks good."""
    inputs = load_plan_inputs(make_run(tmp_path / "run", asks(24)))
    noise = np.exp(np.random.default_rng(20).normal(0.0, 0.3, len(inputs.walk)))
    return replace(inputs, walk=inputs.walk.assign(seconds=inputs.walk["ar_seconds"] * noise))


def test_evidence_is_not_what_the_chosen_cell_did_on_its_own_requests(tmp_path):
    rule = one_rule(build_plan(noisy_cells(tmp_path), PlanSettings(margin=0.0)))
    assert rule.speedup.estimate < rule.in_sample_speedup
    assert not rule.enabled, f"cross-fitted {rule.speedup}, in-sample {rule.in_sample_speedup}"


def test_broken_twin_in_sample_evidence_enables_noise(tmp_path, monkeypatch):
    """The seed is one where the bucket of the test above looks good to whoever cheats."""
    honest = pools.cross_fit
    monkeypatch.setattr(
        pools, "cross_fit", lambda times: replace(honest(times), interval=honest(times).in_sample)
    )
    rule = one_rule(build_plan(noisy_cells(tmp_path), PlanSettings(margin=0.0)))
    assert rule.enabled, f"in-sample {rule.speedup}"


def test_few_long_requests_among_many_short_ones_support_no_verdict(tmp_path):
    """n_eff = (Σ AR)² / Σ AR²: two paths of 2,000 tokens outweigh 22 of 33."""
    rule = one_rule(plan_of(tmp_path, [*asks(22), *asks(2, tokens=2001)]))
    plain = np.array([32.0] * 22 + [2000.0] * 2)
    worth = plain.sum() ** 2 / (plain**2).sum()
    assert rule.effective_requests == pytest.approx(worth)
    assert (rule.enabled, rule.evidence) == (False, "none")
    assert f"worth {worth:.1f} equal ones" in rule.reason


def test_no_verdict_rests_on_unstable_timing(tmp_path):
    run = make_run(tmp_path / "run", asks(24), costs=cost_rows(SHAKY))
    plan = plan_run(run)
    rule = one_rule(plan)
    assert (rule.enabled, rule.evidence) == (False, "none"), rule.reason
    assert "timing of the sampled law is unstable" in rule.reason
    assert any("unstable" in warning for warning in plan.warnings)


def test_a_slow_tail_disables_although_the_mean_pays(tmp_path):
    """5 of 25 requests refuse every draft: a fifth is slowed down, a tenth may be."""
    rule = one_rule(plan_of(tmp_path, [*asks(20), *asks(5, accept=0.0)]))
    assert rule.speedup.low > 1.05, rule.speedup
    assert rule.slow_share == pytest.approx(0.2)
    assert rule.slow_share_high > 0.2
    assert not rule.enabled
    assert "20 % of requests would take over 1.05 times as long, at most 10 % may" in rule.reason


def test_b11_nothing_to_draft_is_disabled_with_missing_acceptance(tmp_path):
    """B11. max_tokens 1: prefill yields the only token."""
    plan = plan_of(tmp_path, [*asks(24), *asks(24, task="score", tokens=1)])
    rule = one_rule(plan, "score")
    assert (rule.enabled, rule.evidence) == (False, "none")
    assert rule.acceptance_rate_tested is None
    assert rule.speedup.estimate is None
    assert "too few drafted tokens" in rule.reason
    assert (rule.drafter.exit_layer, rule.draft.length) == (None, None)


@pytest.mark.parametrize("tokens", [0, 2])
def test_b11_other_budgets_that_leave_no_room(tmp_path, tokens):
    """No output at all; and two tokens, whose only round may draft nothing."""
    rule = one_rule(plan_of(tmp_path, asks(24, tokens=tokens)))
    assert "too few drafted tokens" in rule.reason
    assert rule.acceptance_rate_tested is None


def test_all_buckets_thin_disables_everything_and_says_what_is_missing(tmp_path):
    plan = plan_of(tmp_path, [*asks(5), *asks(4, task="math"), *asks(3, task="chat")])
    assert no_evidence(plan)
    assert [rule.requests_missing for rule in plan.rules] == [17, 15, 16]
    assert plan.total.decode_time_change.estimate == 0.0
    assert all("no parent has a verdict" in rule.reason for rule in plan.rules)


def test_short_outputs_disable_with_their_share(tmp_path):
    """15 of 25 requests allow fewer than 20 tokens; every draft is accepted all the same."""
    rule = one_rule(plan_of(tmp_path, [*asks(15, tokens=13), *asks(10)]))
    assert not rule.enabled
    assert [(g.name, g.value) for g in rule.guards] == [("short_outputs", 0.6)]
    assert rule.reason.startswith("60 % of requests allow fewer than 20 output tokens")


def test_half_of_short_outputs_is_still_allowed(tmp_path):
    rule = one_rule(plan_of(tmp_path, [*asks(12, tokens=13), *asks(12)]))
    assert rule.enabled, rule.reason


def test_prefill_dilutes_the_speedup_and_warns(tmp_path):
    """Prefill of 1,000 s: (1000 + 32) / (1000 + 14) = 1.018, below 1.05 but above 1."""
    run = make_run(tmp_path / "run", asks(24), costs=cost_rows(prefill=1000.0))
    rule = one_rule(plan_run(run))
    assert rule.request_speedup == pytest.approx(1032 / 1014)
    assert [guard.name for guard in rule.guards] == ["request_speedup"]
    assert rule.enabled, "a diluted gain is still a gain"


def test_without_prefill_times_the_request_speedup_is_missing(tmp_path):
    assert one_rule(plan_of(tmp_path, asks(20))).request_speedup is None


def test_a_step_far_above_the_bandwidth_floor_is_told_but_disables_nothing(tmp_path):
    bandwidth = {"bandwidth": {"floor_s": {"1": 0.2, "4096": 0.2}}}
    plan = plan_run(make_run(tmp_path / "run", asks(24), facts=bandwidth))
    rule = one_rule(plan)
    assert plan.measured_on.costs.floor_ratio == pytest.approx(5.0)
    assert [(g.name, g.value, g.limit) for g in rule.guards] == [("not_bandwidth_bound", 5.0, 2.0)]
    assert rule.enabled


def test_break_even_gain_and_textbook_by_hand(tmp_path):
    """Round = 1 + kL/4, so here the textbook is exact: break-even of k = 1 at L is α = L/4."""
    rule = one_rule(plan_of(tmp_path, asks(20, accept=0.0)))
    needed = [row.needed for row in rule.break_even_by_layer]
    assert needed == pytest.approx([0.25, 0.5, 0.75], abs=1e-6)
    assert [row.observed for row in rule.break_even_by_layer] == [0.0, 0.0, 0.0]
    assert rule.break_even_acceptance == pytest.approx(0.25, abs=1e-6)
    # 1.96 tokens for 1.5 s; 2.19 for 1.5 s; 2.952 for 1.75 s
    assert [(g.draft_length, g.speedup) for g in rule.gain_at] == [
        (2, pytest.approx(1.96 / 1.5)),
        (2, pytest.approx(2.19 / 1.5)),
        (3, pytest.approx(2.952 / 1.75)),
    ]
    assert rule.textbook.formula_speedup == pytest.approx(1 / 1.25)
    assert rule.textbook.discounted_speedup == pytest.approx(0.8 / 1.25)
    assert rule.textbook.discount == pytest.approx((32 / 39.75) * 1.25, rel=1e-6)


def test_the_oracle_switches_off_for_whom_it_loses(tmp_path):
    """12 requests win 32 -> 14, 12 keep their 32."""
    rule = one_rule(plan_of(tmp_path, [*asks(12), *asks(12, accept=0.0)]))
    assert rule.oracle_speedup == pytest.approx(64 / (14 + 32), rel=1e-6)


def test_laws_of_a_rule_are_those_of_its_requests(tmp_path):
    plan = plan_of(tmp_path, [*asks(10), *asks(10, top_p=0.9)])
    assert [law.top_p for law in one_rule(plan).laws] == [0.9, 1.0]
    assert plan.laws.top_p == [0.9, 1.0]


def test_requests_with_a_logit_bias_calibrate_no_law(tmp_path):
    """Penalised without a penalty shown: a bias, which a plan cannot name."""
    costs = cost_rows(laws=("greedy", "sampled", "penalised"))
    run = make_run(tmp_path / "run", asks(20, law="penalised"), costs=costs)
    assert one_rule(plan_run(run)).laws == []


def test_the_global_cell_is_cross_fitted_over_everything_at_a_temperature(tmp_path):
    plan = plan_of(tmp_path, [*asks(12), *asks(12, task="math")])
    (found,) = plan.global_
    assert (found.temperature, found.exit_layer, found.draft_length) == (0.7, 1, 3)
    assert found.speedup.estimate == pytest.approx(ALL_ACCEPTED_K3, rel=1e-6)
    assert found.enabled_alone


def test_the_plan_does_not_depend_on_the_order_of_its_tables(tmp_path):
    inputs = load_plan_inputs(mixed_bands(tmp_path))
    turned = replace(
        inputs,
        walk=inputs.walk.iloc[::-1].reset_index(drop=True),
        paths=inputs.paths.iloc[::-1].reset_index(drop=True),
        requests=inputs.requests.iloc[::-1].reset_index(drop=True),
        coins=inputs.coins[::-1],
    )
    one, two = build_plan(inputs, PlanSettings()), build_plan(turned, PlanSettings())
    assert [r.reason for r in one.rules] == [r.reason for r in two.rules]
    assert one.total.sentence == two.total.sentence


def test_a_cell_of_the_rule_is_always_one_of_the_range(tmp_path):
    """Layer 2 is observed beyond the range 3-3 and would be better; no rule may use it."""
    run = make_run(tmp_path / "run", asks(20, accept=(1.0, 1.0)), layers=(3,), beyond=(2,))
    plan = plan_run(run)
    assert rules.cell_of(one_rule(plan)) == (3, 3)
    (warning,) = [w for w in plan.warnings if "exit layer swept" in w]
    assert "L=2, k=3, beyond it, would bring 1.60 instead of 1.23" in warning  # 4/2.5, 4/3.25


def test_nothing_is_said_where_layers_beyond_are_worse(tmp_path):
    run = make_run(tmp_path / "run", asks(20, accept=(0.0, 1.0, 1.0)), layers=(2,), beyond=(1, 3))
    assert not [w for w in plan_run(run).warnings if "exit layer swept" in w]


def test_tables_with_a_lost_request_are_an_error_that_names_the_path(tmp_path):
    inputs = load_plan_inputs(make_run(tmp_path / "run", asks(2)))
    torn = replace(inputs, requests=inputs.requests.iloc[1:])
    with pytest.raises(StorageError, match="r000"):
        basis_of(torn, PlanSettings())


def test_the_plan_says_where_its_numbers_come_from(tmp_path):
    """B09: acceptance from replayed rows only, costs from a clock; A41: which tokenizer."""
    plan = plan_of(tmp_path, asks(3))
    assert plan.origins["acceptance"] == "replayed requests of this log (3 regenerated)"
    assert "this run" in plan.origins["costs"]
    assert plan.traces.date == "2026-01-31"
    assert (plan.model.num_layers, plan.model.dtype, plan.model.tokenizer_override) == (
        4,
        "float32",
        None,
    )


def test_a41_another_tokenizer_is_recorded_in_the_plan(tmp_path):
    run = make_run(tmp_path / "run", asks(3))
    run.update(config={**run.manifest["config"], "tokenizer": "other-tokenizer"})
    assert plan_run(run).model.tokenizer_override == "other-tokenizer"


def test_no_number_of_a_plan_is_nan(tmp_path):
    plan = plan_of(tmp_path, [*asks(24), *asks(3, task="one", tokens=1), *asks(1, task="two")])
    flat = pd.json_normalize(plan.model_dump(mode="json"), record_path="rules")
    for name in flat.select_dtypes("number"):
        values = flat[name].dropna()
        assert np.isfinite(values).all(), name
