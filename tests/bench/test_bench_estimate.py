"""How long a bench should take, against a clock that counts work, and what a budget leaves."""

from dataclasses import replace
from pathlib import Path

import pytest
from bench_helpers import bench, document, rows

import selfspec_cli.bench.run_bench as run_bench_module
from selfspec_cli.bench.choose import Chosen, Item, Limits
from selfspec_cli.bench.estimate import Estimate, Growth, Pace, Paces, planned_s, within_budget
from selfspec_cli.buckets import BucketKey
from selfspec_cli.cost.clock import Clock
from selfspec_cli.records import PreparedRequest, Sampling
from selfspec_cli.replay.decode import Cell

PACES = Paces(
    prompt_tokens=100,
    plain=Pace(1.0, 0.1),
    drafted=Pace(1.0, 0.2),
    rivals={"generate": Pace(3.0, 0.3), "prompt_lookup": Pace(3.0, 0.5)},
    overhead_s=0.25,
)
LIMITS = Limits(requests=9, budget_s=1e9, repeats=1, batch_sizes=(1,), seed=0)


def item(name: str = "r", task: str = "chat", *, prompt: int = 100, **fields: object) -> Item:
    request = PreparedRequest(
        request_id=name,
        group_id=name,
        task=task,
        prompt_token_ids=(5,) * prompt,
        completion_token_ids=None,
        finish="unknown",
        temperature=None,
        sampling=Sampling(),
        max_tokens=11,
        stop=(),
        content_hash=name,
        source="t:1",
    )
    bucket = BucketKey(task=task, context_min=0, context_max=None, temperature=0.0)
    base = Item(bucket=bucket, request=request, plan=None, forced=Cell(2, 2))
    return replace(base, **fields)


def estimate(*, library: bool = True, **growth: object) -> Estimate:
    grown = Growth(**{"steps": {}, **growth})
    return Estimate(paces=PACES, growth=grown, setup_s=5.0, supports=lambda _: library)


def test_every_arm_counts_with_its_own_pace_and_prompt():
    # One prompt and 10 steps of plain twice, the plan (off, so plain) and forced; two of 3 s.
    ours = 1.0 + 10 * (2 * 0.1 + 0.1 + 0.2) + 0.25
    library = 3.0 + 10 * 0.3 + 3.0 + 10 * 0.5
    assert estimate(library=False).item_s(item(), 1) == pytest.approx(ours)
    assert estimate().item_s(item(), 1) == pytest.approx(ours + library)
    on = estimate(library=False).item_s(item(plan=Cell(2, 2)), 1)
    assert on == pytest.approx(ours + 10 * 0.1), "a plan that drafts has the pace of drafting"
    bare = estimate(library=False).item_s(item(forced=None), 1)
    assert bare == pytest.approx(ours - 10 * 0.2), "no forced arm, no time of it"
    half = estimate(library=False, median_tokens=6).item_s(item(), 1)
    assert half == pytest.approx(1.0 + 5 * 0.5 + 0.25), "outputs are as long as the log's median"


def test_a_batch_reads_its_prompts_for_every_arm_and_shares_steps_as_measured():
    known = estimate(steps={1: 1.0, 4: 1.6})
    # Plain twice, plan, forced: four prompt passes; a step of 4 rows takes 1.6 of one.
    assert known.item_s(item(), 4) == pytest.approx(4 * 1.0 + 10 * 0.5 * 1.6 / 4)
    assert estimate().item_s(item(), 4) == pytest.approx(4 * 1.0 + 10 * 0.5), "nothing is shared"
    both = planned_s(known, [item()], [(4, [item(), item("s")])])
    assert both == pytest.approx(known.item_s(item(), 1) + 2 * known.item_s(item(), 4))


def test_prompts_grow_as_the_run_measured_them_else_in_proportion():
    measured = Growth(steps={}, prompts=((50.0, 1.0), (100.0, 1.5), (1000.0, 6.0)))
    assert measured.prefill(100, 100) == 1.0
    assert measured.prefill(550, 100) == pytest.approx(3.75 / 1.5)
    assert measured.prefill(10, 100) == pytest.approx(1.0 / 1.5), "a short pass is no free pass"
    assert measured.prefill(2000, 100) == pytest.approx(12.0 / 1.5)
    assert Growth(steps={}).prefill(550, 100) == 5.5


def test_a_budget_is_spent_in_turn_up_to_the_first_that_does_not_fit():
    long = item("long", prompt=10_000)
    items = (item("a"), item("b", "code"), long, item("c", "code"))
    chosen = Chosen(items=items, notes=())
    each = estimate().item_s(items[0], 1)
    tight = replace(LIMITS, budget_s=5.0 + 3.5 * each)
    kept = within_budget(chosen, estimate(), tight)
    assert [one.request.request_id for one in kept.items] == ["a", "b"], "a long one was skipped"
    assert kept.num_left_out == 2
    assert "2 of 4 requests are left out: the budget of" in kept.notes[0]
    assert len(within_budget(chosen, estimate(), LIMITS).items) == 4
    least = within_budget(chosen, estimate(), replace(LIMITS, budget_s=1e-9))
    assert len(least.items) == 1, "the first is always kept"
    twice = within_budget(chosen, estimate(), replace(tight, repeats=2))
    assert len(twice.items) == 1, "two repeats take twice the time"


class WorkClock:
    """A clock that no load can disturb: each pass of a layer takes 1 ms and 0.1 ms a token."""

    def __init__(self) -> None:
        self.now_ns = 0

    def hook(self, _layer: object, inputs: tuple, _output: object) -> None:
        self.now_ns += 1_000_000 + 100_000 * inputs[0].shape[0] * inputs[0].shape[1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WorkClock:
    made = WorkClock()
    real = run_bench_module.load_model

    def loaded(*args, **named):
        found = real(*args, **named)
        for layer in found.view.model.model.layers:
            layer.register_forward_hook(made.hook)
        return found

    monkeypatch.setattr(run_bench_module, "load_model", loaded)
    timed = Clock(read_ns=lambda: made.now_ns)
    monkeypatch.setattr(Clock, "for_device", classmethod(lambda *_: timed))
    return made


@pytest.mark.parametrize("sizes", ["1", "2"])
def test_a_bench_takes_about_what_was_planned(
    calibrated_run: Path, model: Path, trace: Path, tmp_path: Path, clock: WorkClock, sizes
):
    """Within a factor of 1.5: prompts of 5 to 60 tokens, and acceptance of each its own."""
    flags = ("-o", tmp_path / "out", "--engine", "eager", "--batch-size", sizes)
    assert bench(calibrated_run, model, trace, *flags, "--requests", 4, "--budget-s", 1e6) == 0
    told = document(tmp_path / "out")
    took, planned = told["took_s"], told["planned_s"]
    # All but the self-check of the model that was loaded.
    assert took == pytest.approx(clock.now_ns * 1e-9, rel=0.01), "the warm-up is left out"
    assert 1 / 1.5 < took / planned < 1.5, f"planned {planned:.2f} s, took {took:.2f} s"
    # Broken twin: plain steps alone, what the estimate once was.
    table = rows(tmp_path / "out")
    plain = table.loc[table["arm"] == "ar"]
    steps = 4 * plain["seconds"].sum()
    assert took > 1.5 * steps, f"{steps:.2f} s of plain steps tell {took:.2f} s: too easy a test"
    said = (tmp_path / "out" / "bench.md").read_text(encoding="utf-8")
    assert "Decoding: planned " in said, said
    assert f" s, took {took:.2g} s." in said or f" s, took {took:.0f} s." in said


def test_decoding_stops_when_the_budget_is_spent_whatever_was_planned(
    calibrated_run: Path, model: Path, trace: Path, tmp_path: Path, clock: WorkClock, monkeypatch
):
    real = run_bench_module.probe

    def slowed(*args):
        """The machine is ten times as fast while it is probed."""
        made = real(*args)
        rivals = {arm: _tenth(pace) for arm, pace in made.rivals.items()}
        return replace(made, plain=_tenth(made.plain), drafted=_tenth(made.drafted), rivals=rivals)

    monkeypatch.setattr(run_bench_module, "probe", slowed)
    flags = ("-o", tmp_path, "--engine", "eager", "--requests", 4)
    assert bench(calibrated_run, model, trace, *flags, "--budget-s", 4) == 0
    told = document(tmp_path)
    assert told["num_left_out"] == 0, "the plan was to fit"
    assert (told["partial"], told["stopped"]) == (True, "the time budget of 4 s is spent")
    measured, wanted = told["num_requests_measured"], told["num_requests"]
    assert 0 < measured < wanted == 16, f"{measured} of {wanted}"
    assert len(rows(tmp_path)[["request_id", "temperature"]].drop_duplicates()) == measured
    # A turn takes about 0.7 s.
    assert 4 <= told["took_s"] < 6, f"{told['took_s']:.1f} s of 4 s"
    assert told["took_s"] > 1.5 * told["planned_s"]


def _tenth(pace: Pace) -> Pace:
    return Pace(pace.prefill_s / 10, pace.token_s / 10)
