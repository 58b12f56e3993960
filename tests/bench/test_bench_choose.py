"""Which requests a bench decodes and with which cells, from a plan and requests alone."""

from dataclasses import replace
from pathlib import Path

import pytest
from report_runs import make_run

from selfspec_cli.bench.arms import batch_plan_cell, forced_cell, plan_cell
from selfspec_cli.bench.choose import Chosen, Limits, choose_items
from selfspec_cli.bench.subject import Subject
from selfspec_cli.buckets import BucketKey
from selfspec_cli.config import CalibrateConfig
from selfspec_cli.plan.decide import Plan
from selfspec_cli.plan.document import PlanDocument
from selfspec_cli.plan.files import plan_data, read_plan
from selfspec_cli.records import PreparedRequest, Sampling
from selfspec_cli.replay.decode import Cell

LIMITS = Limits(requests=3, budget_s=1e9, repeats=1, batch_sizes=(1,), seed=0)


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> PlanDocument:
    """Two tasks at two temperatures: one pays, one does not."""
    folder = tmp_path_factory.mktemp("choose") / "run"
    make_run(folder, {"chat": 0.95, "code": 0.2}, requests_per_task=24, confirm=False)
    return read_plan(folder / "plan.yaml")


def subject(plan: PlanDocument) -> Subject:
    return Subject(
        plan=plan,
        decider=Plan.of_document(plan_data(plan)),
        plan_path=Path("plan.yaml"),
        run=None,
        config=CalibrateConfig(model="m", traces=("t",), out="o"),
    )


def request(name: str, task: str = "chat", prompt: int = 100, **fields: object) -> PreparedRequest:
    base = PreparedRequest(
        request_id=name,
        group_id=name,
        task=task,
        prompt_token_ids=(5,) * prompt,
        completion_token_ids=None,
        finish="unknown",
        temperature=None,
        sampling=Sampling(),
        max_tokens=40,
        stop=(),
        content_hash=name,
        source="t:1",
    )
    return replace(base, **fields)


def names(chosen: Chosen) -> dict[str, list[str]]:
    return {
        bucket.label: [item.request.request_id for item in items]
        for bucket, items in chosen.by_bucket().items()
    }


def test_the_run_has_rules_on_and_off(plan):
    found = {(rule.task, rule.enabled) for rule in plan.rules}
    assert {("chat", True), ("code", False)} <= found, found


def test_every_bucket_gets_its_number_one_request_a_group(plan):
    requests = [request(f"a{i}") for i in range(9)] + [
        request(f"b{i}", "code", group_id="one conversation") for i in range(9)
    ]
    chosen = choose_items(subject(plan), requests, LIMITS)
    counts = {label: len(own) for label, own in names(chosen).items()}
    assert sorted(counts.values()) == [1, 1, 3, 3], counts
    again = choose_items(subject(plan), list(reversed(requests)), LIMITS)
    assert names(again) == names(chosen), "the order of the trace decided"
    other = choose_items(subject(plan), requests, replace(LIMITS, seed=1))
    # 84 ways to draw 3 of 9
    assert names(other) != names(chosen), "the seed decides nothing"


def test_requests_that_decode_nothing_are_left_out_and_counted(plan):
    requests = [request("short", max_tokens=1), request("long")]
    chosen = choose_items(subject(plan), requests, LIMITS)
    assert {item.request.request_id for item in chosen.items} == {"long"}
    assert "1 requests allow fewer than 2 output tokens: not decoded" in chosen.notes


def test_the_plan_decides_as_it_does_for_a_server(plan):
    decider = subject(plan).decider
    on = plan_cell(decider, request("r"), 0.0)
    assert on is not None
    assert plan_cell(decider, request("r", "code"), 0.0) is None, "the rule is off"
    assert plan_cell(decider, request("r", "unseen"), 0.0) is None
    assert plan_cell(decider, request("r"), 0.0, batch_size=64) is None, "never measured"
    assert plan_cell(decider, request("r", stated_max_tokens=5), 0.0) is None, "too short to gain"
    penalised = request("r", sampling=Sampling(repetition_penalty=1.3))
    assert plan_cell(decider, penalised, 0.0) is None, "that law was not calibrated"
    assert batch_plan_cell(decider, [request("r"), request("s")], 0.0, 1) == on
    mixed = [request("r"), request("s", stated_max_tokens=5)]
    assert batch_plan_cell(decider, mixed, 0.0, 1) is None, "one row of the batch is off"


def test_forced_takes_the_rules_cell_though_it_is_off_else_the_nearest_best(plan):
    off = next(rule for rule in plan.rules if rule.task == "code" and not rule.enabled)
    bucket = BucketKey(
        task="code",
        context_min=off.context_min,
        context_max=off.context_max,
        temperature=off.temperature_min,
    )
    assert forced_cell(plan, bucket) == Cell(off.drafter.exit_layer, off.draft.length)
    best = max(plan.global_, key=lambda one: one.temperature)
    unseen = replace(bucket, task="unseen", temperature=best.temperature + 0.5)
    assert forced_cell(plan, unseen) == Cell(best.exit_layer, best.draft_length)
    nothing = plan.model_copy(update={"rules": [], "global_": []})
    assert forced_cell(nothing, bucket) is None
