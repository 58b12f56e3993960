"""Evidence, rule, verdict, exit code: one row a case, each a change of one passing run."""

import math
from dataclasses import replace
from datetime import timedelta

import pytest
from gate_runs import (
    DAY,
    HERE,
    RULES,
    change_manifest,
    change_plan,
    copy_of,
    passing_run,
    rewrite,
    without_rules,
)

from selfspec_cli.analysis.confirmation import CONFIRM_KEYS
from selfspec_cli.gate.run_gate import GateOptions, run_gate
from selfspec_cli.storage import read_table

GREEDY, SAMPLED = 0, 1  # rules of the plan


@pytest.fixture(scope="module")
def passing(tmp_path_factory):
    return passing_run(tmp_path_factory.mktemp("gate") / "passing")


def gate(run, rules=RULES, today=HERE, **options):
    return run_gate(run, rules, GateOptions(today=today, **options))


def outcomes(report, name):
    return [check.outcome for check in report.checks if check.name == name]


def in_rule(number=GREEDY, **values):
    return lambda plan: plan["rules"][number].update(values)


def speedup(low, estimate, high, number=GREEDY):
    return in_rule(number, speedup={"low": low, "estimate": estimate, "high": high})


def test_a_run_that_keeps_every_limit_passes(passing):
    report = gate(passing)
    assert (report.outcome, report.exit_code) == ("pass", 0), report.checks
    assert {c.name for c in report.checks if c.outcome == "pass"} >= {
        "speedup", "slow_share", "acceptance_break_even", "acceptance_floor", "memory",
        "exactness", "measured_speedup", "prediction_error", "regret", "enough_requests", "age",
    }  # fmt: skip


PLAN_CASES = {
    # name: (change of the plan, check, its outcomes, exit code)
    "equal to the threshold": (speedup(1.05, 1.2, 1.4), "speedup", {"pass"}, 0),
    "a hair below": (speedup(1.0499, 1.2, 1.4), "speedup", {"no_verdict", "pass"}, 3),
    "surely slower": (speedup(0.88, 0.9, 0.92), "speedup", {"fail", "pass"}, 1),
    "perhaps slower": (speedup(0.8, 0.98, 1.2), "speedup", {"no_verdict", "pass"}, 3),
    "n = 0": (
        in_rule(speedup={}, evidence_requests=0, effective_requests=0, slow_share=None,
                slow_share_high=None),
        "speedup", {"no_verdict", "pass"}, 3,
    ),
    "n = 1: no interval": (
        in_rule(speedup={"estimate": 1.4}, evidence_requests=1, effective_requests=1.0),
        "speedup", {"no_verdict", "pass"}, 3,
    ),
    "worth too few": (in_rule(effective_requests=4.2), "speedup", {"no_verdict", "pass"}, 3),
    "too few requests": (in_rule(evidence_requests=9), "enough_requests",
                         {"no_verdict", "pass"}, 3),
    "acceptance missing": (in_rule(acceptance_rate_tested=None), "acceptance_break_even",
                           {"no_verdict", "pass"}, 3),
    "acceptance at break-even": (
        in_rule(acceptance_rate_tested=0.61, break_even_acceptance=0.61),
        "acceptance_break_even", {"pass"}, 0,
    ),
    "acceptance below break-even": (
        in_rule(acceptance_rate_tested=0.61, break_even_acceptance=0.62),
        "acceptance_break_even", {"fail", "pass"}, 1,
    ),
    "acceptance below the floor only warns": (
        in_rule(acceptance_rate_tested=0.59), "acceptance_floor", {"fail", "pass"}, 0,
    ),
    "slow share at its limit": (in_rule(slow_share=0.10), "slow_share", {"pass"}, 0),
    "slow share perhaps above": (in_rule(slow_share=2 / 14), "slow_share",
                                 {"no_verdict", "pass"}, 3),
    "slow share surely above": (in_rule(slow_share=0.6), "slow_share", {"fail", "pass"}, 1),
    "P99 at its limit": (in_rule(request_p99_ratio=1.05), "request_p99",
                         {"pass", "no_verdict"}, 0),
    "old": (lambda plan: plan["traces"].update(date=(DAY - timedelta(91)).isoformat()),
            "age", {"fail"}, 1),
    "90 days": (lambda plan: plan["traces"].update(date=(DAY - timedelta(90)).isoformat()),
                "age", {"pass"}, 0),
    "of next week": (lambda plan: plan["traces"].update(date=(DAY + timedelta(7)).isoformat()),
                     "age", {"no_verdict"}, 3),
    "nothing enabled": (without_rules, "nothing_enabled", {"no_verdict"}, 3),
}  # fmt: skip


@pytest.mark.parametrize("case", PLAN_CASES)
def test_plan_table(passing, tmp_path, case):
    edit, name, expected, code = PLAN_CASES[case]
    report = gate(change_plan(copy_of(passing, tmp_path), edit))
    assert set(outcomes(report, name)) == expected, [c for c in report.checks if c.name == name]
    assert report.exit_code == code, [c for c in report.checks if c.fails or c.undecided]


def test_a_plan_that_enables_nothing_passes_only_if_the_rules_say_so(passing, tmp_path):
    run = change_plan(copy_of(passing, tmp_path), without_rules)
    assert gate(run).exit_code == 3
    assert gate(run, RULES.model_copy(update={"nothing_enabled": "pass"})).exit_code == 0


@pytest.mark.parametrize("verdict", ["no_verdict", "pass"])
def test_without_an_enabled_rule_nothing_about_rules_passes(passing, tmp_path, verdict):
    """What is left speaks of the decodes and of today; the rest is named, not passed over."""
    run = change_plan(copy_of(passing, tmp_path), without_rules)
    report = gate(run, RULES.model_copy(update={"nothing_enabled": verdict}))
    passed = {check.name for check in report.checks if check.outcome == "pass"}
    assert passed - {"nothing_enabled"} == {"prediction_error", "fingerprints", "age"}
    (note,) = [note for note in report.notes if note.startswith("not judged, the plan enables no")]
    assert note.endswith(
        ": speedup, measured_speedup, acceptance_break_even, acceptance_floor, slow_share, "
        "request_p99, memory, exactness, regret, enough_requests"
    )


def test_a_check_that_a_run_holds_nothing_for_is_named(passing, tmp_path):
    """Without decodes there is no measured speedup; the passing run has it and no such note."""
    run = copy_of(passing, tmp_path)
    (run / "confirm.csv").unlink()
    change_manifest(run, lambda m: m["artefacts"].pop("confirm.csv"))
    named = [note for note in gate(run).notes if note.startswith("not judged, ")]
    assert named == ["not judged, the run holds nothing that they could speak of: measured_speedup"]
    assert not any(note.startswith("not judged, ") for note in gate(passing).notes)


def test_other_device_takes_verdicts_on_times_back_and_keeps_the_rest(passing, tmp_path):
    """Broken twin: the same run with output that differs fails there too."""
    other = replace(HERE, device={**HERE.device, "processor": "Other"})
    report = gate(passing, today=other)
    assert report.exit_code == 3
    assert set(outcomes(report, "speedup")) == {"no_verdict"}
    assert set(outcomes(report, "acceptance_break_even")) == {"pass"}
    assert set(outcomes(report, "exactness")) == {"pass"}
    told = next(c.text for c in report.checks if c.name == "speedup")
    assert "processor Test there, Other here" in told

    table = read_table(passing / "confirm.csv")
    table.loc[0, "exact"] = False
    table["is_tie"] = table["is_tie"].astype("boolean")
    table.loc[0, "is_tie"] = False
    broken = rewrite(copy_of(passing, tmp_path), "confirm.csv", table)
    assert gate(broken, today=other).exit_code == 1


def test_another_library_fails(passing):
    report = gate(passing, today=replace(HERE, libraries={"torch": "2.1", "numpy": "2.0"}))
    failed = [c for c in report.checks if c.fails]
    assert [(c.name, c.subject) for c in failed] == [("fingerprints", "libraries")]
    assert "torch 2.0 there, 2.1 here" in failed[0].text


def test_another_model_fails_and_the_same_passes(passing):
    model = {"config_sha256": "c" * 64, "tokenizer_sha256": "t" * 64, "weights": []}
    same = gate(passing, today=replace(HERE, model=model))
    assert same.exit_code == 0
    assert outcomes(same, "fingerprints") == ["pass"] * 4
    other = gate(passing, today=replace(HERE, model={**model, "config_sha256": "d" * 64}))
    assert [c.subject for c in other.checks if c.fails] == ["model"]


@pytest.mark.parametrize("proof", [{}, {"exactness": {}}, {"exactness": {"passed": None}}])
def test_sampled_rounds_without_a_proof_never_pass(passing, tmp_path, proof):
    def edit(manifest):
        stage = manifest["stages"]["confirm"]
        stage.pop("exactness")
        stage.update(proof)

    report = gate(change_manifest(copy_of(passing, tmp_path), edit))
    assert sorted(outcomes(report, "exactness")) == ["no_verdict", "pass"]
    assert report.exit_code == 3


def test_a_broken_law_fails(passing, tmp_path):
    def edit(manifest):
        manifest["stages"]["confirm"]["exactness"]["passed"] = False

    assert gate(change_manifest(copy_of(passing, tmp_path), edit)).exit_code == 1


def test_without_decodes_exactness_and_prediction_have_no_verdict(passing, tmp_path):
    run = copy_of(passing, tmp_path)
    (run / "confirm.csv").unlink()
    change_manifest(run, lambda manifest: manifest["artefacts"].pop("confirm.csv"))
    change_manifest(run, lambda manifest: manifest["stages"].pop("confirm"))
    report = gate(run)
    assert report.exit_code == 3
    for name in ("exactness", "prediction_error", "regret"):
        assert set(outcomes(report, name)) == {"no_verdict"}


def test_missing_bucket_is_not_judged_for_it(passing, tmp_path):
    """A bucket that was never decoded has no measured speedup; the other one has."""
    table = read_table(passing / "confirm.csv")
    run = rewrite(copy_of(passing, tmp_path), "confirm.csv", table.loc[table["temperature"] == 0.0])
    measured = [c for c in gate(run).checks if c.name == "measured_speedup"]
    assert [c.subject for c in measured] == ["code, 0-511 tokens, T=0 to below 0.7"]


def test_a_measured_loss_fails(passing, tmp_path):
    table = read_table(passing / "confirm.csv")
    mine = table["role"] == "rule"
    table.loc[mine, "seconds"] = table.loc[mine, "ar_seconds"] * 1.3
    report = gate(rewrite(copy_of(passing, tmp_path), "confirm.csv", table))
    assert set(outcomes(report, "measured_speedup")) == {"fail"}
    found = {c.subject: c.outcome for c in report.checks if c.name == "prediction_error"}
    assert found == {"median": "no_verdict", "worst": "fail"}, "two of four cells are off"


def test_a_prediction_off_by_chance_is_no_failure(passing, tmp_path):
    """A third off on average, and the decodes of every cell scatter by as much."""
    table = read_table(passing / "confirm.csv")
    scatter = table.groupby(CONFIRM_KEYS, dropna=False).cumcount() % 2 * 1.6 + 0.6
    table["seconds"] = table["priced_seconds"] * scatter
    report = gate(rewrite(copy_of(passing, tmp_path), "confirm.csv", table))
    found = {c.subject: c for c in report.checks if c.name == "prediction_error"}
    assert {name: c.outcome for name, c in found.items()} == dict.fromkeys(
        ("median", "worst"), "no_verdict"
    )
    assert found["worst"].value > 0.25
    assert "cannot tell" in found["worst"].text


def test_nan_predictions_are_no_verdict(passing, tmp_path):
    table = read_table(passing / "confirm.csv")
    table["predicted_seconds"] = math.nan
    table["predicted_ar_seconds"] = math.nan
    report = gate(rewrite(copy_of(passing, tmp_path), "confirm.csv", table))
    assert set(outcomes(report, "prediction_error")) == {"no_verdict"}


@pytest.mark.parametrize(
    ("rule", "outcome"),
    [
        ({}, "pass"),
        ({"concurrency": 60}, "pass"),  # 1 GiB + 60 x 103 MiB of 8 GiB
        ({"concurrency": 70}, "fail"),
        ({"context_tokens": 8000}, "fail"),
    ],
)
def test_memory(passing, rule, outcome):
    report = gate(passing, RULES.replaced("memory", rule))
    assert outcomes(report, "memory") == [outcome]
    assert report.exit_code == 0, "the default rules only warn"
    strict = gate(passing, RULES.replaced("memory", {**rule, "on_fail": "fail"}))
    assert strict.exit_code == (0 if outcome == "pass" else 1)


def test_memory_without_geometry_is_no_verdict(passing, tmp_path):
    run = change_manifest(copy_of(passing, tmp_path), lambda m: m.pop("footprint"))
    assert outcomes(gate(run), "memory") == ["no_verdict"]


def test_p99_fails_only_where_the_excess_is_no_chance(passing, tmp_path):
    """Both plans say twice the time; the requests of one run are really three times as slow."""
    run = change_plan(copy_of(passing, tmp_path), in_rule(request_p99_ratio=2.0))
    quick = next(c for c in gate(run).checks if c.name == "request_p99" and c.value)
    assert quick.outcome == "no_verdict"
    assert "cannot tell: P99 of request time is 2.00x that of plain decoding" in quick.text
    walk = read_table(run / "walk.parquet")
    walk["seconds"] = walk["ar_seconds"] * 3
    slow = gate(rewrite(run, "walk.parquet", walk))
    assert [c.value for c in slow.checks if c.name == "request_p99" and c.fails] == [2.0]
    assert slow.exit_code == 1


def test_every_verdict_has_a_number_or_a_reason_and_a_next_step(passing, tmp_path):
    run = change_plan(copy_of(passing, tmp_path), speedup(0.88, 0.9, 0.92))
    for check in gate(run).checks:
        assert check.text, check
        assert check.outcome == "pass" or check.next_step, check
    failed = next(c for c in gate(run).checks if c.fails)
    assert "0.90x (0.88-0.92)" in failed.text
    assert "a failure needs" in failed.text


def test_disabled_checks_are_named_and_all_disabled_is_no_pass(passing):
    rules = RULES.replaced("age", {"enabled": False})
    assert any("age" in note for note in gate(passing, rules).notes)
    for name in type(RULES).model_fields:
        if name != "nothing_enabled":
            rules = rules.replaced(name, {"enabled": False})
    report = gate(passing, rules)
    assert (report.checks, report.exit_code) == ((), 3)


def test_acceptance_is_shown_with_its_interval_over_requests(passing, tmp_path):
    """The interval is that of the walk behind the number; another number borrows none of it."""
    found = [check for check in gate(passing).checks if check.name == "acceptance_break_even"]
    assert found
    for check in found:
        assert check.low < check.value < check.high <= 1.0, check
        assert f"({check.low:.2f}-{check.high:.2f})" in check.text, check.text
    edited = change_plan(copy_of(passing, tmp_path), in_rule(acceptance_rate_tested=0.7))
    bare = next(
        c for c in gate(edited).checks if c.name == "acceptance_break_even" and c.value == 0.7
    )
    assert (bare.low, bare.high) == (None, None)
    assert "tested acceptance 0.70, its" in bare.text
