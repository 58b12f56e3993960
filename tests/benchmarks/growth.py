"""How the time of a calibration grows with requests, output tokens, layers and vocabulary.

usage: python tests/benchmarks/growth.py [--only AXIS ...] [--quick]   (a minute an axis)

Small random models of the library's own Llama class are calibrated whole, one size after another
along one axis and all axes else fixed, the second time in the opposite order; kernels are eager, as
such models are far too small to be compiled. The exponent is the slope of log seconds over log
size: 1 where time doubles with the size, 0 where it stays. Its spread is over repeats. The smallest
sizes show the constant part, which pulls an exponent down. Whether the best cells are timed whole
depends on noise, so that stage has a column of its own and is not in the whole.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from peers import RESULTS, ROOT, record, spread
from speed_tables import growth_table

sys.path.insert(0, str(ROOT / "tests"))

from checkpoints import random_model, save_checkpoint, trace_rows, write_trace

from selfspec_cli.calibrate import run as stages_module
from selfspec_cli.calibrate.estimate import estimate
from selfspec_cli.calibrate.progress import Silent
from selfspec_cli.config import load_config
from selfspec_cli.engine.load import quiet_library

STAGES = {
    "load": "load",
    "run_observe": "observe",
    "run_cost": "cost",
    "run_finalists": "whole rounds",
    "run_walk": "walk",
    "draft_plan": "plan",
    "run_confirm": "confirm",
    "finish_plan": "plan",
}
"""Functions of the calibration by the stage they are counted to; the rest is `other`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One calibration's size."""

    requests: int = 16
    tokens: int = 32
    """Output tokens of every request, exactly: the model has no end token."""
    layers: int = 8
    vocabulary: int = 2048
    width: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes along each axis, and how often."""

    base: Shape = Shape()
    sizes: dict[str, tuple[int, ...]]
    repeats: int = 2
    settings: dict[str, object] = field(default_factory=dict)
    """Configuration keys other than the defaults."""


FULL = Plan(
    sizes={
        "requests": (8, 32, 128),
        "tokens": (16, 64, 128),
        "layers": (4, 8, 16),
        "vocabulary": (1024, 8192, 65536),
    }
)
QUICK = Plan(
    base=Shape(requests=4, tokens=8, layers=4, vocabulary=264, width=16),
    sizes={"requests": (2, 4), "tokens": (4, 8), "layers": (3, 4), "vocabulary": (264, 512)},
    repeats=1,
    settings={"exit_layers": "2", "draft_lengths": "1", "temperatures": "0", "confirm.cells": 0},
)


def write_inputs(shape: Shape, folder: Path) -> tuple[Path, Path]:
    """A random model and a trace of a shape: (checkpoint, trace)."""
    model = random_model(
        "llama",
        num_hidden_layers=shape.layers,
        hidden_size=shape.width,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=3 * shape.width,
        vocab_size=shape.vocabulary,
        max_position_embeddings=1024,
        eos_token_id=None,
        gain=4.0,
    )
    rows = trace_rows(shape.requests, max_tokens=shape.tokens)
    return save_checkpoint(model, folder / "model"), write_trace(folder / "trace.jsonl", rows)


@contextmanager
def timed_stages() -> Iterator[dict[str, float]]:
    """Seconds by stage of whatever is calibrated inside, from wrapped stage functions."""
    seconds: dict[str, float] = {}
    kept = {name: getattr(stages_module, name) for name in STAGES}

    def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                stage = STAGES[name]
                seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - begin

        return call

    for name, function in kept.items():
        setattr(stages_module, name, wrap(name, function))
    try:
        yield seconds
    finally:
        for name, function in kept.items():
            setattr(stages_module, name, function)


def prepared(plan: Plan, shape: Shape, folder: Path) -> Any:
    """A calibration of a shape, ready to run."""
    model, trace = write_inputs(shape, folder)
    settings = {"model": str(model), "traces": [str(trace)], "out": str(folder / "run"),
                "engine": "eager", "limit": shape.requests, **plan.settings}  # fmt: skip
    return stages_module.prepare_run(load_config(None, settings))


def calibration_seconds(plan: Plan, shape: Shape) -> dict[str, float]:
    """Seconds by stage of one calibration, `total` and `other` included."""
    with tempfile.TemporaryDirectory() as name, timed_stages() as seconds:
        ready = prepared(plan, shape, Path(name))
        begin = time.perf_counter()
        stages_module.calibrate(ready, Silent())
        total = time.perf_counter() - begin
    return {**seconds, "other": total - sum(seconds.values()), "total": total - _chance(seconds)}


def _chance(seconds: dict[str, float]) -> float:
    """Seconds of the stage that is only entered where parts do not add up to rounds."""
    return seconds.get("whole rounds", 0.0)


def axis_section(plan: Plan, axis: str) -> dict[str, Any]:
    """All sizes along one axis, repeated back and forth, and their exponents."""
    sizes = plan.sizes[axis]
    taken: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    for repeat in range(plan.repeats):
        for size in sizes if repeat % 2 == 0 else sizes[::-1]:
            taken[size].append(calibration_seconds(plan, replace(plan.base, **{axis: size})))
    names = list(dict.fromkeys(name for own in taken.values() for one in own for name in one))
    stages = {
        name: {
            "seconds": [_mean([one.get(name, 0.0) for one in taken[size]]) for size in sizes],
            "exponent": spread(_exponents(sizes, taken, name)),
        }
        for name in names
        if name != "total"
    }
    return {
        "base": {name: getattr(plan.base, name) for name in plan.base.__slots__},
        "sizes": list(sizes),
        "repeats": plan.repeats,
        "total_s": [_mean([one["total"] for one in taken[size]]) for size in sizes],
        "exponent": spread(_exponents(sizes, taken, "total")),
        "stages": stages,
    }


def estimate_section(plan: Plan) -> dict[str, Any]:
    """What `--dry-run` says of the base shape beside what it takes."""
    with tempfile.TemporaryDirectory() as name:
        told = estimate(prepared(plan, plan.base, Path(name)), Silent())
    taken = [calibration_seconds(plan, plan.base) for _ in range(plan.repeats)]
    return {
        "base": {name: getattr(plan.base, name) for name in plan.base.__slots__},
        "told_s": dict(told.seconds),
        "taken_s": {name: _mean([one.get(name, 0.0) for one in taken]) for name in taken[0]},
        "told_total_s": sum(told.seconds.values()),
    }


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float | None:
    """Slope of log seconds over log size by least squares; None where a stage did not run."""
    if min(seconds) <= 0:
        return None
    slope = np.polyfit([math.log(size) for size in sizes], [math.log(s) for s in seconds], 1)[0]
    return float(slope)


def _exponents(
    sizes: Sequence[int], taken: dict[int, list[dict[str, float]]], name: str
) -> list[float]:
    """One exponent a repeat."""
    repeats = range(len(taken[sizes[0]]))
    found = [exponent(sizes, [taken[size][at].get(name, 0.0) for size in sizes]) for at in repeats]
    return [value for value in found if value is not None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the asked axes, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    axes = (*FULL.sizes, "estimate")
    parser.add_argument("--only", nargs="+", choices=axes, default=list(axes))
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--json", type=Path, default=RESULTS / "growth.json")
    given = parser.parse_args(arguments)
    quiet_library()
    plan = QUICK if given.quick else FULL
    for axis in given.only:
        section = estimate_section(plan) if axis == "estimate" else axis_section(plan, axis)
        document = record(given.json, None, {axis: section})
    print(growth_table(document))


if __name__ == "__main__":
    main()
