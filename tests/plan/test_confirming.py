"""What real decodes do to a plan (METHOD.md §6)."""

import pytest
from plan_helpers import ALL_ACCEPTED_K3, Ask, asks, make_run, one_rule

from selfspec_cli.plan.confirming import MeasuredCell, apply_confirmation, contradicts
from selfspec_cli.plan.document import Interval
from selfspec_cli.plan.inputs import load_plan_inputs
from selfspec_cli.plan.planner import basis_of, draft_plan
from selfspec_cli.plan.settings import PlanSettings

BEST, SECOND = (1, 3), (1, 2)


def measured(cell, estimate, low=None, high=None, *, temperature=0.7, task="code", context_max=512):
    return MeasuredCell(
        task=task,
        context_min=0,
        context_max=context_max,
        temperature=temperature,
        exit_layer=cell[0],
        draft_length=cell[1],
        speedup=Interval(estimate=estimate, low=low, high=high),
        num_requests=8,
    )


@pytest.fixture(scope="module")
def basis(tmp_path_factory):
    """24 requests that all accept; predicted 2.29 at L=1, k=3, read at two temperatures."""
    run = make_run(tmp_path_factory.mktemp("c") / "run", asks(24, own=0.7, temperatures=(0.7, 1.0)))
    return basis_of(load_plan_inputs(run), PlanSettings())


@pytest.fixture(scope="module")
def draft(basis):
    return draft_plan(basis)


def test_without_decodes_nothing_is_confirmed_and_nothing_changes(basis, draft):
    assert apply_confirmation(draft, [], basis) == draft
    assert [rule.confirmed for rule in draft.rules] == [False, False]


def test_a_measurement_that_agrees_confirms(basis, draft):
    plan = apply_confirmation(draft, [measured(BEST, 2.3, 2.2, 2.4)], basis)
    rule = one_rule(plan)
    assert (rule.enabled, rule.confirmed) == (True, True)
    assert rule.measured_speedup == Interval(estimate=2.3, low=2.2, high=2.4)
    assert "measured 2.30 (2.20-2.40) over 8 requests" in rule.reason
    assert rule.textbook.discount == pytest.approx(2.3 / ALL_ACCEPTED_K3, rel=1e-3)
    assert not one_rule(plan, temperature=1.0).confirmed, "nobody decoded at T = 1"


def test_b16_measured_below_one_disables_with_both_numbers(basis, draft):
    """B16. The plan said 2.29; the clock says 0.9."""
    plan = apply_confirmation(draft, [measured(BEST, 0.9, 0.8, 1.0)], basis)
    rule = one_rule(plan)
    assert (rule.enabled, rule.confirmed) == (False, False)
    assert "L=1, k=3 measured 0.90 (0.80-1.00) over 8 requests" in rule.reason
    assert "2.29 (2.29-2.29) was predicted" in rule.reason
    assert plan.total.num_enabled == 1
    assert plan.total.decode_time_change.estimate == 0.0, "all traffic is served at T = 0.7"
    assert plan.verdict == "enable some"


def test_an_interval_wholly_below_the_predicted_bound_disables_although_above_one(basis, draft):
    plan = apply_confirmation(draft, [measured(BEST, 1.5, 1.4, 1.6)], basis)
    assert not one_rule(plan).enabled, "2.29 was predicted, at most 1.6 measured"


def test_an_interval_that_reaches_the_predicted_bound_does_not_disable(basis, draft):
    plan = apply_confirmation(draft, [measured(BEST, 1.9, 1.4, 2.4)], basis)
    assert one_rule(plan).confirmed


def test_disabling_one_temperature_shortens_its_neighbours_range(basis, draft):
    assert one_rule(draft).temperature_max == 1.0
    plan = apply_confirmation(draft, [measured(BEST, 0.9, 0.8, 1.0, temperature=1.0)], basis)
    assert one_rule(plan).temperature_max == 0.7


def test_a_contradicted_rule_moves_to_its_confirmed_runner_up(basis, draft):
    assert one_rule(draft).runner_up_cell == list(SECOND)
    cells = [measured(BEST, 0.9, 0.8, 1.0), measured(SECOND, 2.0, 1.9, 2.1)]
    rule = one_rule(apply_confirmation(draft, cells, basis))
    assert (rule.enabled, rule.confirmed) == (True, True)
    assert (rule.drafter.exit_layer, rule.draft.length) == SECOND
    assert rule.speedup.estimate == pytest.approx(32 / (10 * 1.5 + 1.25), rel=1e-6)
    assert rule.measured_speedup.estimate == 2.0
    assert "L=1, k=3 measured 0.90" in rule.reason
    assert "moved to L=1, k=2: predicted 1.97" in rule.reason


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (measured(SECOND, 1.02, 0.95, 1.1), "its lower bound lies below 1"),
        (measured(SECOND, 1.2), "one request gives no bound"),
        (measured(SECOND, 1.2, 1.1, 1.3), "far below the 1.97 predicted for it"),
        (measured((2, 3), 2.0, 1.9, 2.1), "not the runner-up"),
        (measured(SECOND, 2.0, 1.9, 2.1, temperature=1.0), "decoded at another temperature"),
        (measured(SECOND, 2.0, 1.9, 2.1, task="math"), "decoded in another bucket"),
    ],
)
def test_a_runner_up_that_does_not_hold_is_not_used(basis, draft, second, why):
    plan = apply_confirmation(draft, [measured(BEST, 0.9, 0.8, 1.0), second], basis)
    assert not one_rule(plan).enabled, why


def test_a_disabled_rule_shows_what_was_measured(tmp_path):
    basis = basis_of(
        load_plan_inputs(make_run(tmp_path / "run", asks(24, accept=0.0))), PlanSettings()
    )
    draft = draft_plan(basis)
    cell = (1, 1)
    plan = apply_confirmation(draft, [measured(cell, 0.8, 0.78, 0.82)], basis)
    rule = one_rule(plan)
    assert (rule.enabled, rule.confirmed) == (False, True)
    assert rule.reason.endswith("measured 0.80 (0.78-0.82) over 8 requests")


def test_a_measured_gain_does_not_enable_what_was_not_predicted(tmp_path):
    basis = basis_of(
        load_plan_inputs(make_run(tmp_path / "run", asks(24, accept=0.0))), PlanSettings()
    )
    draft = draft_plan(basis)
    plan = apply_confirmation(draft, [measured((1, 1), 1.3, 1.2, 1.4)], basis)
    assert not one_rule(plan).enabled


def test_a_rule_on_its_parents_evidence_can_move_too(tmp_path):
    log = [*asks(30), Ask(prompt=600), Ask(prompt=700)]
    basis = basis_of(load_plan_inputs(make_run(tmp_path / "run", log)), PlanSettings())
    draft = draft_plan(basis)
    thin = [
        MeasuredCell(
            task="code",
            context_min=512,
            context_max=2048,
            temperature=0.7,
            exit_layer=cell[0],
            draft_length=cell[1],
            speedup=speedup,
            num_requests=2,
        )
        for cell, speedup in [
            (BEST, Interval(estimate=0.9, low=0.8, high=1.0)),
            (SECOND, Interval(estimate=2.0, low=1.9, high=2.1)),
        ]
    ]
    rule = one_rule(apply_confirmation(draft, thin, basis), context_min=512)
    assert (rule.enabled, rule.evidence) == (True, "parent")
    assert (rule.drafter.exit_layer, rule.draft.length) == SECOND


@pytest.mark.parametrize(
    ("found", "enabled", "wrong"),
    [
        (Interval(estimate=0.99), True, True),
        (Interval(estimate=0.99), False, False),
        (Interval(estimate=1.0), True, False),
        (Interval(estimate=1.05, low=1.0, high=1.1), True, True),
        (Interval(estimate=1.1, low=1.0, high=1.2), True, False),
        (Interval(), True, False),
    ],
)
def test_contradiction(found, enabled, wrong):
    """Predicted 1.3 (1.2-1.4); equal to the lower bound is not below it."""
    predicted = Interval(estimate=1.3, low=1.2, high=1.4)
    assert contradicts(found, predicted, enabled=enabled) is wrong


def test_a_decode_of_other_context_edges_says_nothing(basis, draft):
    """Measured in the band 0-255, planned with 0-511: another bucket, though both begin at 0."""
    plan = apply_confirmation(draft, [measured(BEST, 0.5, 0.4, 0.6, context_max=256)], basis)
    rule = one_rule(plan)
    assert (rule.enabled, rule.confirmed) == (True, False)


def test_a_refuted_no_is_not_called_confirmed():
    """Off at 0.90 (0.85-0.95), measured 1.40 (1.30-1.50): the rule stays off, unconfirmed."""
    predicted = Interval(estimate=0.9, low=0.85, high=0.95)
    above = Interval(estimate=1.4, low=1.3, high=1.5)
    assert contradicts(above, predicted, enabled=False)
    assert not contradicts(above, predicted, enabled=True), "better than promised is no reason"
    assert not contradicts(Interval(estimate=0.93, low=0.9, high=0.97), predicted, enabled=False)


def test_one_group_confirms_nothing(basis, draft):
    """Without an interval there is a number to show and no confirmation."""
    rule = one_rule(apply_confirmation(draft, [measured(BEST, 2.3)], basis))
    assert (rule.enabled, rule.confirmed) == (True, False)
    assert rule.measured_speedup.estimate == 2.3
