"""Which part of a round takes a gain: told apart by what each part alone would leave in o."""

import pandas as pd
import pytest
from report_runs import make_run

from selfspec_cli.plan.document import Interval, Textbook
from selfspec_cli.report.finding_shares import dearest_part
from selfspec_cli.report.finding_types import Evidence
from selfspec_cli.report.tables import read_run

LENGTHS = (1, 2, 3, 4)


@pytest.fixture(scope="module")
def rule_and_plan(tmp_path_factory):
    """A rule that is off although its acceptance is fine and the formula promises a gain."""
    plan = read_run(make_run(tmp_path_factory.mktemp("runs") / "tiny")).plan
    rule = plan.rules[0]
    off = rule.model_copy(
        update={
            "enabled": False,
            "acceptance_rate_tested": 0.8,
            "speedup": Interval(estimate=0.93, low=0.9, high=0.96),
            "textbook": Textbook(formula_speedup=1.5, discounted_speedup=1.2, discount=0.62),
            "draft": rule.draft.model_copy(update={"length": 3}),
        }
    )
    return off, plan.model_copy(update={"rules": [off]})


def named(rule_and_plan, overhead, *, draft=0.0, verify=1.0, lengths=LENGTHS):
    """The finding of a run whose o at each draft length is `overhead(k)`, in plain steps."""
    rule, plan = rule_and_plan
    layer = rule.drafter.exit_layer
    grid = pd.DataFrame(
        [
            {
                "temperature": rule.temperature_min, "exit_layer": layer, "draft_length": k,
                "batch_size": 1, "draft_cost_ratio": layer / plan.model.num_layers + draft,
                "verify_cost_ratio": verify, "overhead_ratio": overhead(k),
            }
            for k in lengths
        ]
    )  # fmt: skip
    none = pd.DataFrame()
    evidence = Evidence(
        plan=plan, by_layer=none, measured=none, lengths=(), timings=(), self_check_error=None,
        grid=grid,
    )  # fmt: skip
    return list(dearest_part(evidence))


def test_what_a_round_waits_once_is_overhead(rule_and_plan):
    (found,) = named(rule_and_plan, lambda _k: 0.6)
    assert found.code == "overhead_share"
    assert "0.00 plain steps in drafting" in found.evidence
    assert "0.60 around them" in found.evidence


def test_what_each_draft_step_waits_is_drafting(rule_and_plan):
    """Short chains wait 0.2 steps each, which chains timed alone do not show: o is 0.2 k."""
    (found,) = named(rule_and_plan, lambda k: 0.02 + 0.2 * k)
    assert found.code == "draft_step_slow"
    assert "each drafted token takes 0.20 plain steps more" in found.evidence
    assert "0.60 plain steps in drafting" in found.evidence
    assert "0.02 around them" in found.evidence


def test_without_a_second_length_growth_is_not_claimed(rule_and_plan):
    (found,) = named(rule_and_plan, lambda k: 0.02 + 0.2 * k, lengths=(3,))
    assert found.code == "overhead_share"
    assert "0.62 around them" in found.evidence


@pytest.mark.parametrize("slope", [-0.05, 0.0])
def test_an_o_that_does_not_grow_makes_no_draft_slow(rule_and_plan, slope):
    (found,) = named(rule_and_plan, lambda k: 0.1 + slope * (k - 3), verify=1.3, draft=0.02)
    assert found.code == "verify_slow"
    assert "0.06 plain steps in drafting, 0.30 in verifying, 0.10 around them" in found.evidence


def test_costs_that_take_nothing_are_not_named(rule_and_plan):
    assert named(rule_and_plan, lambda k: 0.01 * k) == []
