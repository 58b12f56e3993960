"""Findings: each symptom is seen with its numbers, and a healthy run is not accused."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from report_runs import STEADY as LASTING
from report_runs import make_run

from selfspec_cli.analysis.accepted_lengths import AcceptedLengths
from selfspec_cli.plan.document import GlobalCell, Interval, Textbook
from selfspec_cli.report.finding_types import Evidence, Timing
from selfspec_cli.report.findings import find
from selfspec_cli.report.view import build_view

STEADY = Timing(
    law="greedy", ar_spread=0.02, round_spread=0.02, unstable=False, cost_model_error=0.01
)


@pytest.fixture(scope="module")
def healthy_view(tmp_path_factory):
    """Two tasks that both pay clearly at every batch size, with enough requests."""
    folder = tmp_path_factory.mktemp("runs") / "well"
    make_run(folder, {"code": 0.93, "json": 0.9}, seed=3, batches=LASTING)
    return build_view(folder)


@pytest.fixture
def evidence(healthy_view):
    """What a run that is well shows."""
    return Evidence(
        plan=healthy_view.plan,
        by_layer=healthy_view.figure("acceptance_by_layer").table,
        measured=healthy_view.figure("predicted_measured").table,
        lengths=(),
        timings=(STEADY,),
        self_check_error=1e-7,
    )


def codes(evidence):
    return [finding.code for finding in find(evidence)]


def with_rules(evidence, **update):
    """The first rule changed."""
    rules = list(evidence.plan.rules)
    rules[0] = rules[0].model_copy(update=update)
    return replace(evidence, plan=evidence.plan.model_copy(update={"rules": rules}))


def test_a_healthy_run_is_not_accused(healthy_view, evidence):
    assert healthy_view.plan.verdict == "enable"
    assert [finding.code for finding in healthy_view.findings] == []
    assert codes(evidence) == []


def test_unsteady_timing_comes_first(evidence):
    shaky = replace(STEADY, law="sampled", ar_spread=0.3, unstable=True, cost_model_error=0.2)
    found = find(replace(evidence, timings=(STEADY, shaky)))
    assert [finding.code for finding in found] == ["unstable_timing", "parts_do_not_add_up"]
    assert "30.0 %" in found[0].evidence
    assert "20.0 %" in found[1].evidence


def test_predictions_that_miss_are_told(evidence):
    wrong = evidence.measured.assign(measured_speedup=evidence.measured["predicted_speedup"] / 1.2)
    found = find(replace(evidence, measured=wrong))
    assert [finding.code for finding in found] == ["prediction_off"]
    assert "20.0 %" in found[0].evidence


def test_low_acceptance_says_what_is_needed(evidence):
    found = find(
        with_rules(
            evidence, enabled=False, acceptance_rate_tested=0.34, break_even_acceptance=0.71,
            speedup=Interval(estimate=0.7, low=0.65, high=0.75),
        )
    )  # fmt: skip
    assert [finding.code for finding in found] == ["low_acceptance"]
    assert "34 %" in found[0].evidence
    assert "71 %" in found[0].evidence


def test_acceptance_that_is_fine_points_to_the_costs(evidence):
    found = find(
        with_rules(
            evidence, enabled=False, acceptance_rate_tested=0.8, break_even_acceptance=0.85,
            speedup=Interval(estimate=0.93, low=0.9, high=0.96),
            textbook=Textbook(formula_speedup=1.5, discounted_speedup=1.2, discount=0.62),
        )
    )  # fmt: skip
    assert [finding.code for finding in found] == ["costly_drafts"]
    assert "1.50x" in found[0].evidence
    assert "0.93x (0.90-0.96)" in found[0].evidence


def test_a_rule_that_is_on_is_never_called_low(evidence):
    assert codes(with_rules(evidence, acceptance_rate_tested=0.4)) == []


def test_chance_level_names_the_self_check(evidence):
    flat = evidence.by_layer.assign(accept_prob_mean=0.01, low=0.005, high=0.02)
    found = find(replace(evidence, by_layer=flat))
    assert [finding.code for finding in found] == ["chance_level"]
    assert "1e-07" in found[0].evidence
    some = flat.assign(high=np.linspace(0.02, 0.08, len(flat)))
    assert codes(replace(evidence, by_layer=some)) == [], "one layer above chance is no such run"
    few = flat.assign(num_positions=20)
    assert codes(replace(evidence, by_layer=few)) == [], "20 positions prove nothing"


def test_gains_that_fade_with_context(evidence):
    rules = [rule for rule in evidence.plan.rules if rule.task == "code"][:1]
    short = rules[0].model_copy(update={"speedup": Interval(estimate=1.4, low=1.3, high=1.5)})
    long = short.model_copy(
        update={
            "context_min": 512, "context_max": None, "enabled": False,
            "speedup": Interval(estimate=0.85, low=0.8, high=0.9),
        }
    )  # fmt: skip
    plan = evidence.plan.model_copy(update={"rules": [long, short]})
    found = find(replace(evidence, plan=plan))
    assert "fades_with_context" in [finding.code for finding in found]
    unsure = long.model_copy(update={"speedup": Interval(estimate=0.85, low=0.5, high=1.4)})
    plan = evidence.plan.model_copy(update={"rules": [unsure, short]})
    assert "fades_with_context" not in codes(replace(evidence, plan=plan)), "intervals overlap"


def test_acceptance_that_falls_with_temperature(evidence):
    hot = evidence.by_layer["temperature"] > 0
    table = evidence.by_layer.copy()
    table.loc[hot, ["accept_prob_mean", "low", "high"]] = [0.5, 0.45, 0.55]
    found = find(replace(evidence, by_layer=table))
    assert [finding.code for finding in found] == ["falls_with_temperature"]
    assert "50 % at T=0.7" in found[0].evidence


def test_a_fall_at_a_layer_that_no_rule_may_choose_is_not_named(evidence):
    hot = evidence.by_layer["temperature"] > 0
    table = evidence.by_layer.copy()
    table.loc[hot, ["accept_prob_mean", "low", "high"]] = [0.5, 0.45, 0.55]
    beyond = max(evidence.plan.settings.exit_layers) + 1
    outside = table.assign(exit_layer=beyond).drop_duplicates("temperature")
    assert codes(replace(evidence, by_layer=outside)) == [], f"L={beyond} was only observed"
    found = find(replace(evidence, by_layer=pd.concat([table, outside], ignore_index=True)))
    assert [finding.code for finding in found] == ["falls_with_temperature"]
    assert f"L={beyond}:" not in found[0].evidence


def test_two_peaks_are_reported_with_both_ends(evidence):
    shares = np.array([0.5, 0.02, 0.03, 0.45])
    peaked = AcceptedLengths(
        share=shares, low=shares, high=shares, constant=np.full(4, 0.25), num_groups=20,
        two_peaks=True,
    )  # fmt: skip
    found = find(replace(evidence, lengths=[(evidence.plan.rules[0], peaked)]))
    assert [finding.code for finding in found] == ["two_peaks"]
    assert "50 %" in found[0].evidence
    assert "45 %" in found[0].evidence


def test_a_step_far_from_the_floor(evidence):
    measured = evidence.plan.measured_on
    far = measured.costs.model_copy(
        update={"floor_ratio": 3.4, "ar_step_s": 0.017, "bandwidth_floor_s": 0.005}
    )
    plan = evidence.plan.model_copy(
        update={"measured_on": measured.model_copy(update={"costs": far})}
    )
    found = find(replace(evidence, plan=plan))
    assert [finding.code for finding in found] == ["not_bandwidth_bound"]
    assert "3.4 times" in found[0].evidence
    assert "17 ms" in found[0].evidence


def test_notes_on_traffic(evidence):
    thin = find(with_rules(evidence, requests_missing=7, num_requests=3))
    assert [finding.code for finding in thin] == ["thin_buckets"]
    assert "has 3 and needs 7 more" in thin[0].evidence
    assert codes(with_rules(evidence, window="partial")) == ["partial_window"]
    longest = max(evidence.plan.settings.draft_lengths)
    rule = evidence.plan.rules[0]
    near_one = with_rules(
        evidence,
        draft=rule.draft.model_copy(update={"length": longest}),
        acceptance_rate_tested=0.98,
    )
    assert codes(near_one) == ["longer_drafts"]


def test_a_gain_that_ends_at_a_measured_batch_size(evidence):
    rule = evidence.plan.rules[0]
    lost = rule.by_batch[-1].model_copy(
        update={"check": "fail", "reason": "it measures 0.93x (0.90-0.96)"}
    )
    faded = with_rules(evidence, max_batch=4, by_batch=[*rule.by_batch[:-1], lost])
    found = find(faded)
    assert [finding.code for finding in found] == ["fades_with_batch"]
    assert "pays up to batch 4; at 8 it measures 0.93x (0.90-0.96)." in found[0].evidence
    unknown = lost.model_copy(update={"check": "no_verdict"})
    silent = with_rules(evidence, max_batch=4, by_batch=[*rule.by_batch[:-1], unknown])
    assert codes(silent) == [], "no verdict is no loss"


def test_a_better_cell_at_the_size_that_fails_is_named(evidence):
    rule = evidence.plan.rules[0]
    last = rule.by_batch[-1]
    other = last.best.model_copy(
        update={"exit_layer": 5, "draft_length": 1,
                "speedup": Interval(estimate=1.08, low=1.02, high=1.14)}
    )  # fmt: skip
    lost = last.model_copy(update={"check": "fail", "best": other})
    (found,) = find(with_rules(evidence, max_batch=4, by_batch=[*rule.by_batch[:-1], lost]))
    assert "At batch 8 L=5, k=1 would bring 1.08x" in found.remedy


def test_one_measured_batch_size_is_told_with_its_number(evidence):
    plan = evidence.plan.model_copy(update={"batch_sizes": [4]})
    (found,) = find(replace(evidence, plan=plan))
    assert found.code == "one_batch_size"
    assert "Measured at batch 4 only" in found.evidence
    assert "--batch-size" in found.remedy


def test_an_empty_run_gives_no_findings(evidence):
    plan = evidence.plan.model_copy(update={"rules": [], "global_": list[GlobalCell]()})
    empty = replace(
        evidence, plan=plan, by_layer=pd.DataFrame(), measured=pd.DataFrame(), timings=()
    )
    assert codes(empty) == []
