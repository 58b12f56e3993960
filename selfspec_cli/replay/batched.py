"""Decode many requests for real in batches and time it, to check what batches are priced at.

Two ways to run a batch (METHOD.md §4): static, whose rows start together and none is refilled, and
continuous refill, whose freed rows take the next request at once. The clock runs over stretches of
passes between which no row leaves, so prompts of refills never count as decoding, and the time with
all rows alive can be told from the tail in which requests run out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from selfspec_cli.cost.clock import Clock, Stopwatch
from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.decoder import Job
from selfspec_cli.engine.policies import Policy
from selfspec_cli.engine.view import LayerView
from selfspec_cli.records import Finish, Round
from selfspec_cli.replay.confirm import ConfirmPath, path_job, path_policy, path_target_laws
from selfspec_cli.replay.decode import Cell
from selfspec_cli.replay.setting import Setting

Schedule = Literal["static", "refill"]


@dataclass(frozen=True, slots=True)
class BatchPass:
    """One step or round of all running rows, as far as its price depends on it."""

    num_drafted: int
    """Longest draft of its rows; 0 for a plain step."""
    contexts: tuple[int, ...]
    """Tokens in the cache before it, by row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Passes over the same rows, timed together."""

    seconds: float
    passes: tuple[BatchPass, ...]
    num_committed: int

    @property
    def num_rows(self) -> int:
        """Rows alive throughout."""
        return len(self.passes[0].contexts)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedDecode:
    """A list of jobs decoded at one batch size; lists by job are in the jobs' order."""

    batch_size: int
    schedule: Schedule
    stretches: tuple[Stretch, ...]
    prefill_seconds: float
    """Of all prompts, refills included; not part of any stretch."""
    tokens: tuple[tuple[int, ...], ...]
    """Output by job, x_0 included."""
    finishes: tuple[Finish | None, ...]
    rounds: tuple[tuple[Round, ...], ...]
    """By job; empty for plain decoding."""

    @property
    def full(self) -> tuple[Stretch, ...]:
        """Stretches with all B rows alive, which is what continuous refill is priced as."""
        return tuple(s for s in self.stretches if s.num_rows == self.batch_size)

    @property
    def tail(self) -> tuple[Stretch, ...]:
        """Stretches with fewer rows, because a static batch thins out or no job waits."""
        return tuple(s for s in self.stretches if s.num_rows < self.batch_size)

    @property
    def seconds(self) -> float:
        """Decode time from the first x_0 to the last token."""
        return seconds_of(self.stretches)

    @property
    def num_committed(self) -> int:
        """Tokens after each job's x_0, which those seconds made."""
        return committed_of(self.stretches)

    @property
    def rows_by_pass(self) -> tuple[int, ...]:
        """Rows alive in each pass of the batch."""
        return tuple(s.num_rows for s in self.stretches for _ in s.passes)


def seconds_of(stretches: Sequence[Stretch]) -> float:
    """Seconds of stretches together; 0 of none."""
    return sum(stretch.seconds for stretch in stretches)


def committed_of(stretches: Sequence[Stretch]) -> int:
    """Tokens that stretches committed together."""
    return sum(stretch.num_committed for stretch in stretches)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRun:
    """How a list of jobs is run."""

    batch_size: int
    schedule: Schedule
    cell: Cell | None
    """None decodes plainly."""


def decode_paths(
    setting: Setting,
    paths: Sequence[ConfirmPath],
    run: BatchRun,
    repeat: int = 0,
    clock: Stopwatch | None = None,
) -> BatchedDecode:
    """Decode observed paths again in batches: greedily at T = 0, on the path itself at T > 0.

    So speculative and plain decoding commit the same tokens, and each path's rounds are those it
    has alone. Laws along the paths are made before anything is timed; at T > 0 they take
    4 · n · V bytes a path.
    """
    plain = run.cell is None
    laws = [None if plain else path_target_laws(setting, path) for path in paths]
    policies = [
        path_policy(setting, path, law, run.cell, repeat)
        for path, law in zip(paths, laws, strict=True)
    ]
    jobs = [path_job(setting, path) for path in paths]
    return decode_batched(setting.loaded.view, jobs, policies, run, clock)


def decode_batched(
    view: LayerView,
    jobs: Sequence[Job],
    policies: Sequence[Policy],
    run: BatchRun,
    clock: Stopwatch | None = None,
) -> BatchedDecode:
    """Decode jobs to their ends, each exactly as if alone, and time it.

    Args:
        view: the model.
        jobs: at least one. A static run takes them B at a time in their order, the last batch may
            be smaller; refill keeps B rows alive as long as jobs wait.
        policies: one a job.
        run: batch size, schedule and cell.
        clock: the device's own unless given.
    """
    clock = clock or Clock.for_device(view.device)
    size = run.batch_size if run.schedule == "static" else len(jobs)
    parts = [
        _decode(view, jobs[at : at + size], policies[at : at + size], run, clock)
        for at in range(0, len(jobs), size)
    ]
    return BatchedDecode(
        batch_size=run.batch_size,
        schedule=run.schedule,
        stretches=tuple(s for part in parts for s in part.stretches),
        prefill_seconds=sum(part.prefill_seconds for part in parts),
        tokens=tuple(t for part in parts for t in part.tokens),
        finishes=tuple(f for part in parts for f in part.finishes),
        rounds=tuple(r for part in parts for r in part.rounds),
    )


def _decode(
    view: LayerView,
    jobs: Sequence[Job],
    policies: Sequence[Policy],
    run: BatchRun,
    clock: Stopwatch,
) -> BatchedDecode:
    """One decoder's worth: a static batch, or all jobs through B refilled rows."""
    max_draft = run.cell.draft_length if run.cell else 0
    rows = min(run.batch_size, len(jobs))
    batch = BatchDecoder(view, jobs, policies, max_draft=max_draft, rows=rows)
    rounds: list[list[Round]] = [[] for _ in jobs]
    prefill_seconds, stretches = clock.span(batch.prefill), []
    while True:
        if batch.num_waiting and len(batch.live) < rows:
            prefill_seconds += clock.span(batch.refill)
        if not batch.live:
            break
        stretch, made = _stretch(batch, run.cell, clock)
        stretches.append(stretch)
        for job, own in made.items():
            rounds[job] += own
    return BatchedDecode(
        batch_size=run.batch_size,
        schedule=run.schedule,
        stretches=tuple(stretches),
        prefill_seconds=prefill_seconds,
        tokens=tuple(map(tuple, batch.outputs)),
        finishes=tuple(batch.finishes),
        rounds=tuple(map(tuple, rounds)),
    )


def _stretch(
    batch: BatchDecoder, cell: Cell | None, clock: Stopwatch
) -> tuple[Stretch, dict[int, list[Round]]]:
    """Step until a job ends; returns the stretch and the rounds of each job."""
    running = batch.running
    before = [len(batch.outputs[job]) for job in running]
    starts = [len(batch.jobs[job].prompt) + n - 1 for job, n in zip(running, before, strict=True)]
    made: list[dict[int, Round]] = []

    def passes() -> None:
        while all(batch.finishes[job] is None for job in running):
            if cell is None:
                batch.step()
            else:
                made.append(batch.round(cell.exit_layer, cell.draft_length))

    batch.ready(*(cell.exit_layer, cell.draft_length) if cell else ())
    seconds = clock.span(passes)
    committed = [len(batch.outputs[job]) - n for job, n in zip(running, before, strict=True)]
    stretch = Stretch(
        seconds=seconds,
        passes=_rounds(made, running) if cell else _steps(starts, committed[0]),
        num_committed=sum(committed),
    )
    return stretch, {job: [own[job] for own in made] for job in running}


def _rounds(made: Sequence[dict[int, Round]], running: Sequence[int]) -> tuple[BatchPass, ...]:
    return tuple(
        BatchPass(
            num_drafted=max(own.num_drafted for own in rounds.values()),
            contexts=tuple(rounds[job].context for job in running),
        )
        for rounds in made
    )


def _steps(starts: Sequence[int], count: int) -> tuple[BatchPass, ...]:
    return tuple(
        BatchPass(num_drafted=0, contexts=tuple(start + i for start in starts))
        for i in range(count)
    )
