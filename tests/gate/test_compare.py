"""Comparing two runs: paired by request, refused where they differ, in words."""

import dataclasses
import json
import math
import shutil

import numpy as np
import pandas as pd
import pytest
from report_runs import EDGES, make_run, plan_run
from scipy import stats

from selfspec_cli.errors import ComparisonError, PlanError, RunDirError, StorageError
from selfspec_cli.gate.compare import compare_runs, compare_sides
from selfspec_cli.gate.compare_text import brief, comparison_document, longer, words
from selfspec_cli.gate.fail_on import baseline_checks
from selfspec_cli.gate.pairing import (
    CostError,
    Paired,
    paired_p99,
    paired_rate,
    paired_speedup,
)
from selfspec_cli.gate.side import load_side
from selfspec_cli.plan.settings import PlanSettings
from selfspec_cli.storage import read_document, read_table, write_document, write_table

NUM_LAYERS = 6


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """base; again: the same traffic, coins tossed anew; worse: a drafter that is hit less often."""
    folder = tmp_path_factory.mktemp("runs")
    worse = {"code": 0.75, "chat": 0.2}
    return {
        "base": make_run(folder / "base"),
        "again": make_run(folder / "again", seed=2),
        "worse": make_run(folder / "worse", worse, seed=3),
    }


@pytest.fixture
def copy(runs, tmp_path):
    """A copy of the base run that a test may spoil."""
    return shutil.copytree(runs["base"], tmp_path / "copy")


def _all_rows(comparison):
    return [comparison.total, *comparison.rows]


def test_a_run_against_itself_shows_no_difference(runs):
    comparison = compare_runs(runs["base"], runs["base"])
    assert len(comparison.rows) == 4
    for row in _all_rows(comparison):
        assert words(row.speedup) == "not significant (1.00-1.00)", row.label
        assert words(row.acceptance) == "not significant (0.00 to 0.00)", row.label
        assert row.seconds_ratio == 1.0
        assert not row.rule_changed
    assert [check.outcome for check in baseline_checks(comparison)] == ["pass"] * 10
    assert (comparison.num_base_only, comparison.num_new_only) == (0, 0)
    assert comparison.other_differences == ()


def test_the_same_drafter_read_again_is_not_significant(runs):
    """Seeded; by chance alone a total is significant once in 20 seeds, and 1 in 100 fails."""
    comparison = compare_runs(runs["base"], runs["again"])
    for found in (comparison.total.acceptance, comparison.total.speedup):
        assert words(found).startswith("not significant"), found
    assert not any(check.fails for check in baseline_checks(comparison))


def test_a_worse_drafter_is_told_and_fails(runs):
    comparison = compare_runs(runs["base"], runs["worse"])
    code = next(row for row in comparison.rows if row.label == "code, 0-511 tokens, T=0")
    assert code.acceptance.estimate == pytest.approx(-0.2, abs=0.05)
    assert ", lower, 95 % " in words(code.acceptance)
    assert "x, slower, 95 % " in words(code.speedup)
    failed = {(check.name, check.subject) for check in baseline_checks(comparison) if check.fails}
    assert {("baseline acceptance", ""), ("baseline speedup", ""),
            ("baseline speedup", code.label)} <= failed  # fmt: skip
    back = compare_runs(runs["worse"], runs["base"])
    assert back.total.speedup.estimate > 1
    assert not any(check.fails for check in baseline_checks(back))


def test_speedups_are_those_of_the_plans(runs):
    """Same cell in both plans: the ratio of the in-sample speedups that both plans state."""
    comparison = compare_runs(runs["base"], runs["again"])
    old, new = (load_side(runs[name]).plan.rules for name in ("base", "again"))
    seen = 0
    for row in comparison.rows:
        one = next(
            r for r in old if r.task in row.label and row.label.endswith(f"={r.temperature_min:g}")
        )
        two = next(r for r in new if (r.task, r.temperature_min) == (one.task, one.temperature_min))
        if row.rule_changed or not one.enabled:
            continue
        seen += 1
        wanted = two.in_sample_speedup / one.in_sample_speedup
        assert row.speedup.estimate == pytest.approx(wanted, rel=1e-3)
    assert seen > 0


def test_decodes_are_paired_where_both_runs_decoded_their_rule(runs):
    """The second run's machine is twice as fast, and its rounds are 5 % worse."""
    base = load_side(runs["base"])
    on = base.paths.loc[base.paths["on"]]
    decoded = on[["path_id", "exit_layer", "draft_length", "ar"]].rename(
        columns={"ar": "ar_seconds"}
    )
    decoded = decoded.assign(seconds=on["seconds"], role="rule")
    slower = decoded.assign(
        seconds=0.5 * 1.05 * decoded["seconds"], ar_seconds=0.5 * decoded["ar_seconds"]
    )
    other_cell = slower.assign(draft_length=99, seconds=1.0)  # a runner-up: not the plan's
    new = pd.concat([other_cell, slower.iloc[3:]]).sample(frac=1.0, random_state=1)
    comparison = compare_sides(
        dataclasses.replace(base, confirm=decoded), dataclasses.replace(base, confirm=new)
    )
    found = comparison.total.measured
    assert found.estimate == pytest.approx(1 / 1.05)
    assert found.num_groups <= on["group_id"].nunique()
    assert words(found).startswith("0.95x, slower")
    assert compare_sides(base, dataclasses.replace(base, confirm=None)).total.measured is None


def test_the_order_of_rows_in_the_files_changes_nothing(runs, tmp_path):
    """And the broken twin, which pairs by position, does see another comparison."""
    straight = compare_runs(runs["base"], runs["again"])
    mixed = shutil.copytree(runs["again"], tmp_path / "mixed")
    manifest = read_document(mixed / "manifest.json")
    for name in ("walk.parquet", "paths.parquet", "requests.parquet"):
        table = read_table(mixed / name)
        write_table(table.sample(frac=1.0, random_state=5).reset_index(drop=True), mixed / name)
        manifest["artefacts"].pop(name)
    manifest["stages"]["observe"]["artefacts"] = []
    write_document(manifest, mixed / "manifest.json")
    shuffled = compare_runs(runs["base"], mixed)
    for one, two in zip(_all_rows(straight), _all_rows(shuffled), strict=True):
        assert one.label == two.label
        assert two.speedup.low == pytest.approx(one.speedup.low, rel=1e-9)
        assert two.acceptance.estimate == pytest.approx(one.acceptance.estimate, abs=1e-12)
    old, new = load_side(runs["base"]).paths, load_side(mixed).paths
    by_position = pd.DataFrame(
        {"group_id": new["group_id"], "base_ar": old["ar"], "base_seconds": old["seconds"],
         "new_ar": new["ar"], "new_seconds": new["seconds"]}
    )  # fmt: skip
    broken = paired_speedup(by_position)
    assert broken.sd > 2 * paired_speedup(_pairs_of(runs["base"], mixed)).sd, broken.sd


def _pairs_of(base, new):
    columns = ["path_id", "group_id", "ar", "seconds"]
    old, new = load_side(base).paths[columns], load_side(new).paths[columns]
    pairs = old.merge(new.drop(columns="group_id"), on="path_id", suffixes=("_old", "_new"))
    names = {"ar_old": "base_ar", "seconds_old": "base_seconds", "ar_new": "new_ar",
             "seconds_new": "new_seconds"}  # fmt: skip
    return pairs.rename(columns=names)


def test_pairing_finds_what_unpaired_requests_hide():
    """2 % slower over requests of very different acceptance: paired it is certain."""
    rng = np.random.default_rng(0)
    ar = rng.lognormal(0, 0.3, 60)
    speedup = rng.uniform(0.8, 1.6, 60)
    old = ar / speedup
    pairs = pd.DataFrame(
        {"group_id": range(60), "base_ar": ar, "new_ar": 2 * ar, "base_seconds": old,
         "new_seconds": 2 * old * 1.02 * rng.lognormal(0, 0.01, 60)}
    )  # fmt: skip
    found = paired_speedup(pairs)
    assert found.estimate == pytest.approx(1 / 1.02, rel=0.005)
    assert found.p_below(1.0) < 1e-6
    mixed = pairs.assign(new_seconds=pairs["new_seconds"].to_numpy()[::-1],
                         new_ar=pairs["new_ar"].to_numpy()[::-1])  # fmt: skip
    assert paired_speedup(mixed).p_below(1.0) > 0.01, "the broken twin sees nothing"


def test_statistics_by_hand():
    pairs = pd.DataFrame(
        {"group_id": ["a", "a", "b", "c"], "base_ar": [1.0, 1, 2, 0], "new_ar": [2.0, 2, 4, 0],
         "base_seconds": [0.5, 0.5, 2, 0], "new_seconds": [2.0, 2, 4, 0]}
    )  # fmt: skip
    found = paired_speedup(pairs)
    assert (found.base, found.new) == (pytest.approx(8 / 6), pytest.approx(1.0))
    assert found.estimate == pytest.approx(6 / 8)
    assert found.num_groups == 2, "a path without a decode step is no evidence"
    assert not found.supports_verdict
    rates = pd.DataFrame(
        {"group_id": [1, 2], "base_hits": [1.0, 3], "base_trials": [2.0, 4], "new_hits": [2.0, 3],
         "new_trials": [2.0, 4]}
    )  # fmt: skip
    found = paired_rate(rates, ("hits", "trials"))
    assert found.estimate == pytest.approx(5 / 6 - 4 / 6)
    gaps = np.array([3 / 4 - 3 / 4, 2 / 2 - 1 / 2])
    assert found.sd == pytest.approx(math.sqrt(0.5 * ((gaps - gaps.mean()) ** 2).sum()))
    nothing = rates.assign(new_trials=0.0, new_hits=0.0)
    assert paired_rate(nothing, ("hits", "trials")) is None
    assert paired_speedup(pairs.iloc[3:]) is None


def test_costs_of_both_runs_widen_the_interval_with_few_degrees_of_freedom():
    pairs = pd.DataFrame({"group_id": range(40)}).assign(
        base_ar=1.0, new_ar=1.0, base_seconds=0.8, new_seconds=0.8
    )
    found = paired_speedup(pairs, [CostError(log_sd=0.02, degrees=4.0)] * 2)
    assert found.degrees == pytest.approx(8.0)
    half = stats.t.ppf(0.975, 8) * 0.02 * math.sqrt(2)
    assert found.high == pytest.approx(math.exp(half), rel=1e-9)
    wanted = stats.t.cdf(math.log(1 / 1.03) / (0.02 * math.sqrt(2)), 8)
    assert found.p_below(1.03) == pytest.approx(wanted, rel=1e-9)
    assert found.p_above(0.97) == pytest.approx(
        stats.t.sf(math.log(1 / 0.97) / (0.02 * math.sqrt(2)), 8), rel=1e-9
    )
    unknown = paired_speedup(pairs, [CostError(log_sd=float("nan"), degrees=1.0)])
    assert unknown.low is None
    assert unknown.p_below(5.0) == 1.0, "without an interval nothing is rejected"


def test_p99_needs_300_pairs_and_sees_a_longer_tail():
    rng = np.random.default_rng(1)
    plain = rng.lognormal(0, 0.5, 400)
    pairs = pd.DataFrame(
        {"group_id": range(400), "base_plain": plain, "new_plain": 3 * plain,
         "base_request": 0.8 * plain, "new_request": 3 * plain * 0.96}
    )  # fmt: skip
    assert paired_p99(pairs.iloc[:299]) is None
    found = paired_p99(pairs)
    assert found.estimate == pytest.approx(1.2)
    assert longer(found).startswith("1.20x longer, 95 % ")
    assert paired_p99(pairs.assign(base_plain=np.nan)) is None


def _paired(estimate, low, high, kind="ratio", effective=30.0, num_groups=31):
    return Paired(
        kind=kind, estimate=estimate, base=1.0, new=1.0, low=low, high=high, sd=0.01,
        degrees=29.0, num_groups=num_groups, effective_groups=effective,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (_paired(1.07, 1.03, 1.11), "1.07x faster, 95 % 1.03-1.11"),
        (_paired(0.94, 0.90, 0.98), "0.94x, slower, 95 % 0.90-0.98"),
        (_paired(1.01, 0.99, 1.03), "not significant (0.99-1.03)"),
        (_paired(1.003, 1.001, 1.005), "1.003x faster, 95 % 1.001-1.005"),
        (_paired(1.07, 1.03, 1.11, effective=7.9, num_groups=9), "too few requests (9, worth 7.9)"),
        (_paired(1.07, None, None), "1.07x, no interval"),
        (_paired(1.07, None, None, effective=1.0, num_groups=1), "too few requests (1, worth 1.0)"),
        (_paired(1.0, 1 - 2e-16, 1 + 2e-16), "not significant (1.00-1.00)"),
        (_paired(1.00003, 1.00002, 1.00004), "not significant (1.00-1.00)"),
        (_paired(0.9998, 0.9997, 0.99985), "0.9998x, slower, 95 % 0.9997-0.9999"),
        (_paired(-0.03, -0.04, -0.02, "difference"), "-0.03, lower, 95 % -0.04 to -0.02"),
        (_paired(0.03, 0.02, 0.04, "difference"), "+0.03, higher, 95 % +0.02 to +0.04"),
        (_paired(-0.0, -0.01, 0.01, "difference"), "not significant (-0.01 to +0.01)"),
        (None, "n/a"),
    ],
)
def test_words(found, told):
    assert words(found) == told


def test_brief_words():
    assert brief("1.07x faster, 95 % 1.03-1.11") == "1.07x faster (1.03-1.11)"
    assert brief("too few requests (9, worth 7.9)") == "too few requests"
    assert brief("not significant (0.99-1.03)") == "not significant (0.99-1.03)"


def _edit(run, *keys, value):
    manifest = read_document(run / "manifest.json")
    at = manifest
    for key in keys[:-1]:
        at = at.setdefault(key, {})
    at[keys[-1]] = value
    write_document(manifest, run / "manifest.json")
    return run


@pytest.mark.parametrize(
    ("keys", "value", "named"),
    [
        (("provenance", "traces", "sha256"), "0" * 64, ("traces", "ffff", "0000")),
        (("measurement", "temperatures"), [0.0], ("temperatures", "[0.0, 0.7]", "[0.0]")),
        (("measurement", "max_tokens"), 64, ("max_tokens", "not known", "64")),
        (("measurement", "task_from"), "model", ("task_from", "not known", "model")),
        (
            ("provenance", "model", "tokenizer_sha256"),
            "u",
            ("tokenizer_sha256", "is ttt", "and u in"),
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_key(runs, copy, keys, value, named):
    _edit(copy, *keys, value=value)
    with pytest.raises(ComparisonError) as error:
        compare_runs(runs["base"], copy)
    assert error.value.exit_code == 2
    for part in named:
        assert part in str(error.value), str(error.value)


@pytest.mark.parametrize(
    ("keys", "value", "told"),
    [
        (("provenance", "device", "processor"), "Other", "other hardware: not judged"),
        (("provenance", "libraries", "torch"), "9.9", "other libraries: not judged"),
        (("engine",), "compiled", "other engine: not judged"),
    ],
)
def test_other_hardware_is_not_judged_but_acceptance_is(runs, copy, keys, value, told):
    comparison = compare_runs(runs["base"], _edit(copy, *keys, value=value))
    assert not comparison.timing_judged
    document = comparison_document(comparison)
    assert document["total"]["speedup"]["words"] == told
    assert document["total"]["acceptance"]["words"].startswith("not significant")
    outcomes = {check.name: check.outcome for check in baseline_checks(comparison)}
    assert outcomes == {"baseline speedup": "no_verdict", "baseline acceptance": "pass"}


def test_more_memory_and_other_tools_do_not_make_timing_foreign(runs, copy):
    _edit(copy, "provenance", "device", "memory_bytes", value=2**34)
    _edit(copy, "provenance", "libraries", "pandas", value="9.9")
    comparison = compare_runs(runs["base"], copy)
    assert comparison.timing_judged
    assert [entry.text for entry in comparison.other_differences] == [
        "libraries.pandas: not known | 9.9"
    ]


def test_a_rule_that_went_off_is_listed(tmp_path, runs):
    """The plan alone changed: what was on and pays is slower now."""
    off = shutil.copytree(runs["base"], tmp_path / "off")
    plan_run(off, PlanSettings(min_requests=10, context_edges=EDGES, margin=9.0))
    comparison = compare_runs(runs["base"], off)
    assert comparison.changed
    for row in comparison.changed:
        assert (row.base_rule[:2], row.new_rule) == ("L=", "off")
        assert row.speedup.new == 1.0
        assert row.speedup.estimate < 1
        assert row.acceptance.estimate == 0.0, "compared at one and the same cell"
    assert comparison.total.speedup.new == 1.0


def test_plans_with_other_context_edges_are_compared_path_by_path(tmp_path, runs):
    other = shutil.copytree(runs["base"], tmp_path / "other")
    plan_run(other, PlanSettings(min_requests=5, context_edges=(0, 60)))
    comparison = compare_runs(other, runs["base"])
    assert len(comparison.rows) == 4
    assert comparison.total.num_pairs == 56
    assert "settings.context_edges" in {entry.key for entry in comparison.other_differences}


def test_only_common_requests_are_paired(runs):
    base = load_side(runs["base"])
    kept = ~base.paths["request_id"].isin(["0-3", "1-3"])
    comparison = compare_sides(base, dataclasses.replace(base, paths=base.paths.loc[kept]))
    assert comparison.total.num_pairs == 52
    assert (comparison.num_base_only, comparison.num_new_only) == (4, 0)


@pytest.mark.parametrize("column", ["content_hash", "prompt_tokens"])
def test_a_request_that_reads_otherwise_is_refused(runs, column):
    base = load_side(runs["base"])
    paths = base.paths.copy()
    paths[column] = paths[column].mask(paths["path_id"] == "1-3|T=0", paths[column] * 2)
    with pytest.raises(ComparisonError, match=f"{column} of '1-3"):
        compare_sides(base, dataclasses.replace(base, paths=paths))


def test_runs_that_share_no_request_are_refused(runs):
    base = load_side(runs["base"])
    none = dataclasses.replace(base, paths=base.paths.assign(path_id=base.paths["path_id"] + "x"))
    with pytest.raises(ComparisonError, match="no request of the first run"):
        compare_sides(base, none)


def _spoil_plan(run, **changes):
    plan = read_document(run / "plan.yaml")
    plan.update(changes)
    write_document(plan, run / "plan.yaml")


def test_spoilt_runs_are_refused_with_file_and_field(runs, copy, tmp_path):
    with pytest.raises(RunDirError, match="not a run directory"):
        compare_runs(runs["base"], tmp_path)
    good = read_document(copy / "plan.yaml")
    rules = [dict(rule) for rule in good["rules"]]
    on = next(number for number, rule in enumerate(rules) if rule["enabled"])
    rules[on]["drafter"] = {**rules[on]["drafter"], "exit_layer": NUM_LAYERS - 1}
    _spoil_plan(copy, rules=rules)
    with pytest.raises(PlanError, match=rf"rules.{on}.* L=5, .* was not measured") as error:
        compare_runs(runs["base"], copy)
    assert "plan.yaml" in str(error.value)
    _spoil_plan(copy, rules=good["rules"], measurement_hash="another")
    with pytest.raises(PlanError, match="measurement_hash: another"):
        compare_runs(runs["base"], copy)
    (copy / "plan.yaml").unlink()
    with pytest.raises(StorageError, match="the run has no plan"):
        compare_runs(runs["base"], copy)


def test_the_document_is_strict_json(runs):
    document = comparison_document(compare_runs(runs["base"], runs["worse"]))
    again = json.loads(json.dumps(document, allow_nan=False))
    assert again == document
    assert len(document["buckets"]) == 4
    assert document["total"]["p99"] is None
    assert set(document["total"]["speedup"]) == {
        "estimate", "base", "new", "low", "high", "num_groups", "effective_groups", "words",
    }  # fmt: skip
