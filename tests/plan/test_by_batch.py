"""Rules at several batch sizes: evidence priced again, and where speculation stops paying."""

import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from plan_helpers import (
    ALL_ACCEPTED_K3,
    FADING,
    SHAKY,
    STEADY,
    Ask,
    asks,
    batch_rows,
    cost_rows,
    make_run,
    one_rule,
    plan_run,
)

from selfspec_cli.analysis.evidence import cross_fit, score
from selfspec_cli.plan import by_batch, planner
from selfspec_cli.plan.confirming import MeasuredCell, apply_confirmation
from selfspec_cli.plan.document import Interval
from selfspec_cli.plan.explain import explain
from selfspec_cli.plan.inputs import load_plan_inputs
from selfspec_cli.plan.planner import basis_of, draft_plan
from selfspec_cli.plan.settings import PlanSettings
from selfspec_cli.storage import write_table

LATER = {1: 1.0, 4: 3.0, 8: 1.0}
"""Pays alone and in eights, not in fours."""


def batched(tmp_path, requests, slower=FADING, **fields):
    return make_run(tmp_path / "run", requests, costs=batch_rows(slower, **fields))


def joined(frames):
    return pd.concat(frames, ignore_index=True)


def at(rule, size):
    (entry,) = [entry for entry in rule.by_batch if entry.batch_size == size]
    return entry


def checks(rule):
    return {entry.batch_size: entry.check for entry in rule.by_batch}


def test_a_rule_holds_up_to_where_its_cell_stops_paying(tmp_path):
    """Rounds of 1.75 s alone, 2.625 s in fours, 5.25 s in eights, 4 tokens each against 4 s."""
    plan = plan_run(batched(tmp_path, asks(20)))
    rule = one_rule(plan)
    assert (plan.batch_sizes, rule.max_batch) == ([1, 4, 8], 4)
    assert checks(rule) == {1: "pass", 4: "pass", 8: "fail"}
    for size, slower in FADING.items():
        found = at(rule, size).speedup
        assert found.estimate == pytest.approx(ALL_ACCEPTED_K3 / slower, rel=1e-6), size
        assert found.low == pytest.approx(ALL_ACCEPTED_K3 / slower, rel=1e-6), size
    assert at(rule, 8).reason == "it measures 0.76x (0.76-0.76)"
    assert rule.speedup == at(rule, 1).speedup, "the rule's own speedup is that of the base"


def test_a_smaller_size_that_fails_ends_it_whatever_larger_ones_say(tmp_path):
    rule = one_rule(plan_run(batched(tmp_path, asks(20), LATER)))
    assert checks(rule) == {1: "pass", 4: "fail", 8: "pass"}
    assert rule.max_batch == 1, f"0.76x at 4 must end it, got {rule.max_batch}"


def skipping(rule):
    """The mistake: the largest size that passes, as if the smaller ones did not matter."""
    held = [entry.batch_size for entry in rule.by_batch if entry.check == "pass"]
    return max(held, default=None) if rule.enabled else None


def test_broken_twin_the_largest_size_that_pays_would_skip_a_failing_one(tmp_path, monkeypatch):
    """Else the test above would pass although nobody looks at the sizes between."""
    monkeypatch.setattr(planner, "max_batch", skipping)
    rule = one_rule(plan_run(batched(tmp_path, asks(20), LATER)))
    assert rule.max_batch == 8, f"the twin says {rule.max_batch}, 4 measures {at(rule, 4).speedup}"


def test_a_rule_that_is_off_shows_the_trend_and_no_batch(tmp_path):
    rule = one_rule(plan_run(batched(tmp_path, asks(20, accept=0.0))))
    assert (rule.enabled, rule.max_batch) == (False, None)
    found = [at(rule, size).speedup.estimate for size in FADING]
    assert found == sorted(found, reverse=True), found
    assert found[0] == pytest.approx(32 / 39.75, rel=1e-6)


def test_a_refilled_round_drafts_k_to_the_end(tmp_path):
    """Alone the last round of 32 refused ones drafts nothing and costs 1 s; beside others 1.25."""
    rule = one_rule(plan_run(batched(tmp_path, asks(20, accept=0.0), {1: 1.0, 4: 1.0})))
    assert at(rule, 1).speedup.estimate == pytest.approx(32 / 39.75, rel=1e-6)
    assert at(rule, 4).speedup.estimate == pytest.approx(32 / 40.0, rel=1e-6)


def noisy(tmp_path):
    """24 requests whose cells are noise at the base, none of which pays: choices differ by fold."""
    inputs = load_plan_inputs(batched(tmp_path, asks(24), {1: 1.0, 4: 1.0}))
    noise = np.exp(np.random.default_rng(20).normal(0.0, 0.3, len(inputs.walk)))
    walk = inputs.walk.assign(seconds=inputs.walk["ar_seconds"] * noise)
    return basis_of(replace(inputs, walk=walk), PlanSettings(margin=0.0))


def test_at_each_size_groups_keep_the_cells_chosen_without_them(tmp_path):
    """The base's own seconds, scored with its own choices, give the base's own evidence."""
    pool = noisy(tmp_path).pools.all[0.7]
    found = pool.evidence
    assert len(found.fold_cells) > 1, f"no cell should stand out: {found.fold_cells}"
    assert score(pool.at_batch[1].times, found.group_cells) == found.interval
    elsewhere = pool.at_batch[4].times
    by_hand = sum(
        elsewhere.seconds[i, elsewhere.cells.index(found.group_cells[str(group)])]
        for i, group in enumerate(elsewhere.groups)
    )
    repriced = score(elsewhere, found.group_cells).estimate
    assert repriced == pytest.approx(elsewhere.ar.sum() / by_hand)


def test_evidence_at_a_size_is_not_what_that_size_would_choose(tmp_path):
    """In-sample, `best` is never below the cross-fitted evidence; choosing anew would hide that."""
    basis = noisy(tmp_path)
    rule = one_rule(draft_plan(basis))
    anew = cross_fit(basis.pools.own[next(iter(basis.pools.own))].at_batch[4].times).cell
    best = at(rule, 4).best
    assert (best.exit_layer, best.draft_length) == anew
    assert best.speedup.estimate > at(rule, 4).speedup.estimate


def test_the_uncertainty_of_a_sizes_own_costs_is_in_its_interval(tmp_path):
    """Steady alone, 3 % between blocks in fours."""
    shaken = cost_rows((1.0, 1.03, 0.97), batch=4)
    layers = shaken["part"] == "ar"
    costs = [cost_rows(STEADY), shaken.assign(seconds=shaken["seconds"].where(~layers, 1.0))]
    run = make_run(tmp_path / "run", asks(20), costs=joined(costs))
    rule = one_rule(plan_run(run))
    narrow, wide = (at(rule, size).speedup for size in (1, 4))
    assert narrow.high - narrow.low < 1e-6
    assert wide.high / wide.low > 1.02, f"{wide}"


def test_no_verdict_rests_on_a_size_whose_timing_is_unstable(tmp_path):
    costs = joined([cost_rows(), cost_rows(SHAKY, batch=4)])
    plan = plan_run(make_run(tmp_path / "run", asks(20), costs=costs))
    rule = one_rule(plan)
    assert (rule.enabled, rule.max_batch) == (True, 1), rule.reason
    assert at(rule, 4).check == "no_verdict"
    assert "timing of the sampled law is unstable" in at(rule, 4).reason
    assert any("sampled law at batch 4 is unstable" in warning for warning in plan.warnings)


def test_contexts_not_timed_at_a_size_are_left_out_there(tmp_path):
    """Batch 4 was timed up to 500 tokens: 22 of 27 requests are priced, the band beyond is not."""
    costs = joined([cost_rows(), cost_rows(batch=4, top=500)])
    log = [*asks(22), *asks(25, prompt=600)]
    plan = plan_run(make_run(tmp_path / "run", log, costs=costs))
    near, far = (one_rule(plan, context_min=low) for low in (0, 512))
    assert (near.max_batch, far.max_batch) == (4, 1)
    assert at(far, 4).speedup.estimate is None
    assert at(far, 4).check == "no_verdict"
    assert [(f.prompt_tokens_min, f.prompt_tokens_max) for f in plan.batches] == [
        (40, 600),
        (40, 40),
    ]


def test_a_law_not_timed_at_a_size_is_no_verdict_there(tmp_path):
    costs = joined([cost_rows(), cost_rows(batch=4, laws=("greedy",))])
    rule = one_rule(plan_run(make_run(tmp_path / "run", asks(20), costs=costs)))
    assert (rule.max_batch, checks(rule)) == (1, {1: "pass", 4: "no_verdict"})


def test_too_few_requests_left_at_a_size_are_no_verdict(tmp_path):
    """10 of 25 requests are short enough for batch 4."""
    costs = joined([cost_rows(), cost_rows(batch=4, top=200)])
    log = [*asks(10), *asks(15, prompt=300)]
    rule = one_rule(plan_run(make_run(tmp_path / "run", log, costs=costs)))
    assert checks(rule) == {1: "pass", 4: "no_verdict"}
    assert "only 10 of 20 requests" in at(rule, 4).reason


def test_a_slow_tail_at_a_size_ends_it_although_the_mean_pays(tmp_path):
    """In fours rounds cost 1.4 times as much: requests with half their drafts refused lose."""
    log = [*asks(34), *asks(6, accept=0.5)]
    rule = one_rule(plan_run(batched(tmp_path, log, {1: 1.0, 4: 1.4})))
    assert rule.enabled, rule.reason
    assert at(rule, 4).speedup.low > 1.05, at(rule, 4).speedup
    assert (rule.max_batch, at(rule, 4).check) == (1, "fail")
    assert "14 % of requests would take over 1.05 times as long" in at(rule, 4).reason


def test_a_thin_bucket_is_vetoed_at_the_size_where_its_own_requests_lose(tmp_path):
    """Own coins of 0.55 gain a little alone; their parent pays in fours, they do not."""
    log = [*asks(45), *asks(4, prompt=600, accept=0.55)]
    run = batched(tmp_path, log, {1: 1.0, 4: 1.3})
    rule = one_rule(plan_run(run, max_slow_share=1.0), context_min=512)
    assert (rule.enabled, rule.evidence) == (True, "parent"), rule.reason
    assert at(rule, 4).speedup.low > 1.05
    assert (rule.max_batch, at(rule, 4).check) == (1, "fail")
    assert "this bucket's own requests reach 0." in at(rule, 4).reason


def test_a_guard_that_disables_leaves_no_batch(tmp_path):
    rule = one_rule(plan_run(batched(tmp_path, [*asks(15, tokens=13), *asks(10)])))
    assert not rule.enabled
    assert checks(rule)[1] == "pass", "the evidence pays"
    assert rule.max_batch is None


def test_nothing_to_draft_has_no_batch_sizes(tmp_path):
    rule = one_rule(plan_run(batched(tmp_path, asks(24, tokens=1))))
    assert (rule.max_batch, rule.by_batch) == (None, [])


def test_one_size_is_told_with_its_own_number(tmp_path):
    alone = plan_run(make_run(tmp_path / "one", asks(20)))
    eights = plan_run(make_run(tmp_path / "eight", asks(20), costs=cost_rows(batch=8)))
    for plan, size in ((alone, 1), (eights, 8)):
        (told,) = [text for text in plan.warnings if "measured at batch" in text]
        assert told.startswith(f"measured at batch {size} only"), told
        assert (plan.batch_sizes, one_rule(plan).max_batch) == ([size], size)
    several = plan_run(batched(tmp_path, asks(20)))
    assert not [text for text in several.warnings if "measured at batch" in text]


def test_static_batches_wait_for_their_longest_row(tmp_path):
    """Requests of 33 and 9 tokens; where 1 was not timed nothing can be said of static batches."""
    log = [*asks(15), *asks(15, tokens=9)]
    rule = one_rule(plan_run(batched(tmp_path, log)))
    four = at(rule, 4)
    assert at(rule, 1).static_speedup is None
    assert 0.1 < four.waiting_share < 0.9
    assert four.static_speedup == pytest.approx(four.speedup.estimate, rel=0.35)
    assert four.grouping_gain >= 0.99
    no_single = make_run(tmp_path / "four", log, costs=batch_rows({4: 1.0, 8: 1.0}))
    other = one_rule(plan_run(no_single))
    assert [entry.static_speedup for entry in other.by_batch] == [None, None]
    assert other.max_batch == 8


def test_plain_decoding_at_each_size(tmp_path):
    plan = plan_run(batched(tmp_path, asks(20)))
    found = [(f.batch_size, f.ar_step_s, f.tokens_per_s) for f in plan.batches]
    assert found == [(1, 1.0, 1.0), (4, 1.0, 4.0), (8, 1.0, 8.0)]


def test_other_batch_sizes_come_with_other_costs(tmp_path):
    run = make_run(tmp_path / "run", asks(20))
    path = tmp_path / "server.csv"
    write_table(batch_rows({2: 1.0, 16: 3.0}), path)
    plan = draft_plan(basis_of(load_plan_inputs(run, path), PlanSettings()))
    rule = one_rule(plan)
    assert (plan.batch_sizes, rule.max_batch) == ([2, 16], 2)
    assert rule.speedup.estimate == pytest.approx(ALL_ACCEPTED_K3, rel=1e-6)
    assert any("rules are decided at batch 2" in warning for warning in plan.warnings)


def decoded(cell, estimate, low, high):
    return MeasuredCell(
        task="code", context_min=0, context_max=512, temperature=0.7, exit_layer=cell[0],
        draft_length=cell[1], speedup=Interval(estimate=estimate, low=low, high=high),
        num_requests=8,
    )  # fmt: skip


def test_a_contradicted_rule_has_no_batch_and_a_moved_one_its_new_cells(tmp_path):
    """L = 1, k = 2 commits 3 tokens for 1.5 s: 2 alone, 1.31 in fours, 0.66 in eights."""
    basis = basis_of(load_plan_inputs(batched(tmp_path, asks(20))), PlanSettings())
    draft = draft_plan(basis)
    off = one_rule(apply_confirmation(draft, [decoded((1, 3), 0.9, 0.8, 1.0)], basis))
    assert (off.enabled, off.max_batch) == (False, None)
    both = [decoded((1, 3), 0.9, 0.8, 1.0), decoded((1, 2), 2.0, 1.9, 2.1)]
    moved = one_rule(apply_confirmation(draft, both, basis))
    assert (moved.draft.length, moved.max_batch) == (2, 4), moved.reason
    assert at(moved, 1).speedup.estimate == pytest.approx(moved.speedup.estimate)
    assert at(moved, 4).speedup.estimate == pytest.approx(32 / (11 * 1.5 * 1.5), rel=0.01)


def test_decodes_one_at_a_time_say_nothing_of_a_plan_for_batches(tmp_path):
    run = make_run(tmp_path / "run", asks(20), costs=cost_rows(batch=4))
    basis = basis_of(load_plan_inputs(run), PlanSettings())
    draft = draft_plan(basis)
    plan = apply_confirmation(draft, [decoded((1, 3), 0.5, 0.4, 0.6)], basis)
    assert plan == draft, one_rule(plan).reason


@pytest.mark.parametrize("slower", [FADING, LATER, {1: 1.0, 4: 1.0}, {1: 3.0, 8: 1.0}])
def test_max_batch_agrees_with_the_bounds_it_stands_beside(tmp_path, slower):
    """Recomputed from the document alone: every size up to it reaches 1.05, the next does not."""
    log = [Ask(accept=a) for a in np.linspace(0.7, 1.0, 24)]
    rule = one_rule(plan_run(batched(tmp_path, log, slower), max_slow_share=1.0))
    passing = [entry.speedup.low >= 1.05 for entry in rule.by_batch]
    length = passing.index(False) if False in passing else len(passing)
    expected = None if length == 0 else sorted(slower)[length - 1]
    assert rule.max_batch == expected, [(e.batch_size, e.speedup.low) for e in rule.by_batch]


def test_the_explanation_has_every_size(tmp_path):
    told = explain(one_rule(plan_run(batched(tmp_path, asks(20)))))
    for part in ("1: 2.29x (2.29-2.29) (pass)", "4: 1.52x (1.52-1.52) (pass), static 1.52x",
                 "8: 0.76x (0.76-0.76) (fail)", "Pays up to batch 4."):  # fmt: skip
        assert part in told, told


def test_planning_several_sizes_stays_quick(tmp_path):
    """A small run at three batch sizes: processor seconds, so that other programs do not count."""
    run = batched(tmp_path, [*asks(40, temperatures=(0.0, 0.7)), *asks(40, task="math")])
    start = time.process_time()
    plan_run(run)
    took = time.process_time() - start
    assert took < 2.0, f"{took:.2f} s"


def test_sampling_size_of_static_batches():
    """METHOD.md §4 asks for at least 200 coin-sampled walks of batches."""
    assert by_batch.NUM_BATCHES >= 200
