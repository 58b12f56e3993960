"""Time every part, plain steps and whole rounds in interleaved blocks.

A block times each task once, so a slow moment of the machine falls on all of them alike; blocks
are the unit of uncertainty. Every second block runs the order of the one before it backwards
(ABBA), so a machine that slows down steadily favours nobody.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence

import pandas as pd
import torch

from selfspec_cli.cost.build import build_tasks
from selfspec_cli.cost.clock import Stopwatch
from selfspec_cli.cost.parts import Task
from selfspec_cli.cost.plan import CostPlan
from selfspec_cli.engine.view import LayerView

Progress = Callable[[int, int], None]
"""Told (samples taken, samples in all), warm-up included."""

COLUMNS = (
    "block", "part", "law", "exit_layer", "positions", "context", "batch", "engine", "seconds",
)  # fmt: skip
ENGINE = "eager"  # of a view that does not say which kernels it runs on
MIN_SAMPLE_S = 2e-3  # shorter parts are repeated inside a sample and divided
MAX_REPEATS = 1000
STEADY_SAMPLE_S, MAX_PASSES = 40e-3, 3  # for parts that take longer than that
_STEADY = 0.03  # two windows of plain steps this close: caches, clocks and allocators have settled
_WINDOW, _MAX_WINDOWS = 5, 12


def measure_costs(
    view: LayerView,
    plan: CostPlan,
    clock: Stopwatch,
    seed: int,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Time everything in `plan`.

    Args:
        view: the model, on its device.
        plan: what to time.
        clock: of the model's device.
        seed: of the random tokens and the order inside blocks.
        progress: told after every sample.

    Returns:
        Rows of cost.csv (`COLUMNS`), one a block and task timed in it; seconds of one call.

    Raises:
        ConfigError: the plan does not fit the model.
    """
    blocks = iter_blocks(view, plan, clock, seed, progress=progress)
    return pd.concat(blocks, ignore_index=True)


def iter_blocks(
    view: LayerView,
    plan: CostPlan,
    clock: Stopwatch,
    seed: int,
    *,
    start_block: int = 0,
    progress: Progress | None = None,
) -> Iterator[pd.DataFrame]:
    """Yield the rows of one block after another, so that a caller can store each and resume.

    Args:
        view: the model, on its device.
        plan: what to time.
        clock: of the model's device.
        seed: of the random tokens and the order inside blocks.
        start_block: first block to time; the earlier ones are stored already. The machine is
            warmed up again, and the order inside a block does not depend on where one starts.
        progress: told after every sample.

    Raises:
        ConfigError: the plan does not fit the model.
    """
    tasks = build_tasks(view, plan, seed)
    todo = range(start_block, plan.blocks)
    warmed = sum(task.warmed_in(block) for task in tasks for block in range(plan.warmup))
    timed = sum(task.timed_in(block) for task in tasks for block in todo)
    meter = _Meter(progress, warmed + timed)
    repeats = warm_up(tasks, plan.warmup, clock, meter.tick)
    for block in todo:
        order = [i for i in block_order(len(tasks), block, seed) if tasks[i].timed_in(block)]
        seconds = time_block(tasks, repeats, clock, order, meter.tick)
        yield block_frame(block, tasks, seconds, getattr(view, "engine", ENGINE))


class _Meter:
    """Counts samples for a progress callback."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.done, self.total, self.progress = 0, total, progress

    def tick(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total)


def block_order(num_tasks: int, block: int, seed: int) -> list[int]:
    """Return the order of a block's tasks: shuffled for each pair of blocks, then backwards."""
    order = list(range(num_tasks))
    random.Random(f"{seed}/{block // 2}").shuffle(order)
    return order if block % 2 == 0 else order[::-1]


@torch.inference_mode()
def time_block(
    tasks: Sequence[Task],
    repeats: Sequence[int],
    clock: Stopwatch,
    order: Sequence[int],
    tick: Callable[[], None] = lambda: None,
) -> list[float]:
    """Time tasks once; returns the seconds of one call in the order of `tasks`, NaN if not timed.

    Args:
        tasks: what to time.
        repeats: calls inside a sample, for each task.
        clock: of the tasks' device.
        order: indices of the `tasks` to time, each once.
        tick: called after each sample.
    """
    seconds = [math.nan] * len(tasks)
    for index in order:
        seconds[index] = sample(tasks[index], repeats[index], clock)
        tick()
    return seconds


def sample(task: Task, repeats: int, clock: Stopwatch) -> float:
    """Return the seconds of one call, from `repeats` calls; what each moved is put back untimed."""
    if task.restore is None:
        return clock.span(task.step, repeats) / repeats
    total = 0.0
    for _ in range(repeats):
        total += clock.span(task.step)
        task.restore()
    return total / repeats


@torch.inference_mode()
def warm_up(
    tasks: Sequence[Task],
    blocks: int,
    clock: Stopwatch,
    tick: Callable[[], None] = lambda: None,
) -> list[int]:
    """Run until plain steps are steady, then `blocks` blocks; returns the calls a sample needs.

    Args:
        tasks: what will be timed.
        blocks: blocks run and thrown away, at least 1.
        clock: of the tasks' device.
        tick: called after each task.
    """
    _settle([task for task in tasks if task.part == "ar"], clock)
    repeats = [1] * len(tasks)
    for block in range(blocks):
        for index, task in enumerate(tasks):
            if not task.warmed_in(block):
                continue
            seconds = sample(task, repeats[index], clock)
            if block == 0 and seconds < STEADY_SAMPLE_S:  # a first call may be slower than later
                repeats[index] = repeats_for(sample(task, 1, clock))
            tick()
    return repeats


def _settle(plain_steps: Sequence[Task], clock: Stopwatch) -> None:
    before = float("inf")
    for _ in range(_MAX_WINDOWS if plain_steps else 0):
        now = sample(plain_steps[0], _WINDOW, clock)
        if abs(now - before) <= _STEADY * now:
            return
        before = now


def repeats_for(seconds: float) -> int:
    """Return how many calls make a sample: of at least 2 ms, or up to three towards 40 ms.

    Passes and rounds decide the totals, and a single one is as long as a hiccup of the machine.
    """
    if seconds * MAX_REPEATS <= MIN_SAMPLE_S:
        return MAX_REPEATS
    if seconds >= MIN_SAMPLE_S:
        return min(MAX_PASSES, max(1, -int(-STEADY_SAMPLE_S // seconds)))
    return -int(-MIN_SAMPLE_S // seconds)


def block_frame(
    block: int, tasks: Sequence[Task], seconds: Sequence[float], engine: str
) -> pd.DataFrame:
    """Return one block's rows of cost.csv; what has no meaning for a part is missing."""
    rows = [
        (block, t.part, t.law, t.exit_layer, t.positions, t.context, t.batch, engine, value)
        for t, value in zip(tasks, seconds, strict=True)
        if not math.isnan(value)
    ]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype(dict.fromkeys(("exit_layer", "positions", "context"), "Int64"))
