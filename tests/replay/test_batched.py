"""Batches decoded for real: tokens and rounds as alone, stretches, and what the clock runs over."""

import functools

import pytest
from checkpoints import random_model
from replay_helpers import requests, setting_of, view_of

from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.decoder import Decoder
from selfspec_cli.replay import batched
from selfspec_cli.replay.batched import (
    BatchRun,
    committed_of,
    decode_batched,
    decode_paths,
    seconds_of,
)
from selfspec_cli.replay.confirm import ConfirmPath, path_job, path_policy, path_target_laws
from selfspec_cli.replay.decode import Cell, decode
from selfspec_cli.replay.observe import PathJob, observe

EXITS = (1, 3)
CELL = Cell(3, 3)
BUDGETS = (9, 4, 14, 1, 6, 11, 8)


class CountsPasses:
    """A clock whose second is one pass of one batch: prompts, steps and rounds alike."""

    def __init__(self, monkeypatch) -> None:
        self.passes = 0
        for name in ("step", "round", "_run_prompt"):
            monkeypatch.setattr(BatchDecoder, name, self._counted(getattr(BatchDecoder, name)))

    def _counted(self, method):
        @functools.wraps(method)
        def counted(*arguments, **options):
            self.passes += 1
            depth = self.passes
            result = method(*arguments, **options)
            self.passes = depth  # a round that has nothing to draft is a step within
            return result

        return counted

    def span(self, step, repeats=1):
        before = self.passes
        step()
        return float(self.passes - before)


@functools.cache
def setting():
    model = random_model("gpt2", vocab_size=32, num_attention_heads=1, gain=16.0)
    return setting_of(view_of(model), eos=None, seed=2)


@functools.cache
def paths(temperature) -> tuple[ConfirmPath, ...]:
    """Seven observed paths whose outputs are as long as `BUDGETS` say."""
    wanted = requests(len(BUDGETS), 20, tokens=(3, 32))
    made = []
    for one, budget in zip(wanted, BUDGETS, strict=True):
        job = PathJob(request=one, temperature=temperature, source="regenerated")
        (path,) = observe(setting(), [job], EXITS)
        given = path.scores.accept_given_path
        made.append(
            ConfirmPath(
                path_id=job.path_id,
                request=one,
                temperature=temperature,
                tokens=path.tokens[:budget],
                budget=budget,
                accept_given_path={
                    exit_layer: (0.0, *given[row, 1:budget].tolist())
                    for row, exit_layer in enumerate(EXITS)
                },
            )
        )
    return tuple(made)


def run_of(size, schedule="refill", cell=CELL) -> BatchRun:
    return BatchRun(batch_size=size, schedule=schedule, cell=cell)


def alone(path, cell):
    """The same path by itself, as `confirm_path` decodes it."""
    policy = path_policy(setting(), path, path_target_laws(setting(), path), cell, 0)
    view = setting().loaded.view
    state = Decoder(view, path_job(setting(), path), policy, max_draft=CELL.draft_length)
    state.prefill()

    class NoClock:
        def span(self, step, repeats=1):
            step()
            return 1.0

    return decode(state, policy, cell, NoClock())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("schedule", ["static", "refill"])
@pytest.mark.parametrize("cell", [None, CELL, Cell(1, 1)])
def test_each_path_is_decoded_as_it_is_alone(temperature, schedule, cell):
    made = decode_paths(setting(), paths(temperature), run_of(3, schedule, cell))
    assert made.tokens == tuple(path.tokens for path in paths(temperature))
    apart = [alone(path, cell) for path in paths(temperature)]
    assert made.rounds == tuple(one.rounds for one in apart)
    assert made.finishes == tuple(one.finish for one in apart)
    assert made.num_committed == sum(BUDGETS) - len(BUDGETS)


def test_repeats_toss_coins_of_their_own():
    first, again, other = (
        decode_paths(setting(), paths(1.0), run_of(3), repeat).rounds for repeat in (0, 0, 1)
    )
    assert first == again != other


def test_plain_static_batches_thin_out_and_the_next_starts_whole():
    """Budgets 9 4 14 | 1 6 11 | 8, each less its x_0."""
    made = decode_paths(setting(), paths(0.0), run_of(3, "static", None))
    expected = [3] * 3 + [2] * 5 + [1] * 5 + [2] * 5 + [1] * 5 + [1] * 7
    assert list(made.rows_by_pass) == expected
    assert committed_of(made.full) == 9
    assert committed_of(made.tail) == made.num_committed - 9


def test_refilled_rows_are_all_alive_until_no_job_waits():
    """Six jobs with tokens left to make on three rows: 8 3 13 5 10 7, the fourth is done at x_0."""
    made = decode_paths(setting(), paths(0.0), run_of(3, cell=None))
    rows = made.rows_by_pass
    assert rows == tuple(sorted(rows, reverse=True)), f"{rows}: a row stood empty"
    # Row 1 takes 8, row 2 takes 3 + 5 + 7, row 3 takes 13; 10 goes to row 1 or 2 when it is free.
    assert rows.count(3) == 13
    assert sum(rows) == made.num_committed == 46


def test_decode_seconds_leave_every_prompt_out(monkeypatch):
    clock = CountsPasses(monkeypatch)
    for schedule in ("static", "refill"):
        for cell in (None, CELL):
            run = run_of(3, schedule, cell)
            made = decode_paths(setting(), paths(0.0), run, clock=clock)
            assert made.prefill_seconds == len(BUDGETS)
            assert made.seconds == len(made.rows_by_pass), f"{schedule}, {cell}"
            assert made.seconds == seconds_of(made.full) + seconds_of(made.tail)


def test_a_runner_that_refills_inside_the_clock_is_caught(monkeypatch):
    """Twin: prompts of refills are run where passes are timed."""
    clock = CountsPasses(monkeypatch)
    step = BatchDecoder.step
    monkeypatch.setattr(BatchDecoder, "step", lambda batch: (step(batch), batch.refill()))
    made = decode_paths(setting(), paths(0.0), run_of(3, cell=None), clock=clock)
    assert made.seconds > len(made.rows_by_pass)


@pytest.mark.parametrize("schedule", ["static", "refill"])
@pytest.mark.parametrize("cell", [None, CELL])
def test_passes_say_what_their_price_depends_on(schedule, cell):
    """Every row's contexts, pass after pass, are those of its own rounds."""
    made = decode_paths(setting(), paths(0.0), run_of(2, schedule, cell))
    contexts = sorted(c for s in made.stretches for one in s.passes for c in one.contexts)
    if cell is None:
        own = [
            path.request.prompt_tokens + i for path in paths(0.0) for i in range(path.budget - 1)
        ]
        assert {one.num_drafted for s in made.stretches for one in s.passes} == {0}
    else:
        own = [made_round.context for rounds in made.rounds for made_round in rounds]
        longest = max(one.num_drafted for s in made.stretches for one in s.passes)
        assert longest == CELL.draft_length
    assert contexts == sorted(own)


@pytest.mark.parametrize("size", [1, 7, 20])
def test_batches_of_one_and_larger_than_the_list(size):
    made = decode_paths(setting(), paths(0.0), run_of(size))
    assert made.tokens == tuple(path.tokens for path in paths(0.0))
    assert max(made.rows_by_pass) == min(size, 6), "the fourth path is done at x_0"
    assert bool(made.full) == (size == 1)


def test_any_jobs_and_policies_may_be_run():
    """Without an observed path: the setting's own policies, sampled and greedy in one batch."""
    wanted = requests(4, 10, tokens=(3, 32))
    jobs = [setting().job(one) for one in wanted]
    made, again = (
        decode_batched(
            setting().loaded.view,
            jobs,
            [
                setting().policy(r, t, max_draft=3)
                for r, t in zip(wanted, (0, 1, 0.5, 0), strict=True)
            ],
            run_of(2),
        )
        for _ in range(2)
    )
    assert made.tokens == again.tokens
    assert made.seconds > 0
    assert made.prefill_seconds > 0


def test_time_is_told_by_the_devices_own_clock_unless_given(monkeypatch):
    asked = []
    own = batched.Clock.for_device
    monkeypatch.setattr(batched.Clock, "for_device", lambda d: asked.append(d) or own(d))
    decode_paths(setting(), paths(0.0)[:2], run_of(2))
    assert asked == [setting().loaded.view.device]
