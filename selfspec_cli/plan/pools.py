"""Pools of requests that evidence may rest on: a bucket, its parents, and their cells."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.analysis.evidence import (
    BucketTimes,
    Cell,
    Evidence,
    bucket_times,
    cross_fit,
)
from selfspec_cli.analysis.grid_costs import LawCells
from selfspec_cli.analysis.intervals import RatioInterval, ratio_interval
from selfspec_cli.buckets import OPEN, BucketKey
from selfspec_cli.plan.batch_times import PricedTimes, Stack, times_at_batch
from selfspec_cli.plan.inputs import PlanInputs
from selfspec_cli.plan.traffic import BUCKET, key_of

Level = Literal["own", "parent", "all"]
LEVELS: tuple[Level, ...] = ("own", "parent", "all")
_ALL = ""  # stands for "any" in the key columns of parents
CELL = ["exit_layer", "draft_length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFacts:
    """One cell of a pool: expected counts and costs."""

    drafted: float
    tested: float
    accepted: float
    speedup: float | None
    """In-sample ratio of sums; None where nothing is decoded."""
    draft_cost_ratio: float
    verify_cost_ratio: float
    overhead_ratio: float
    cost_log_sd: float
    """Standard error of log(speedup) that comes from the costs; NaN if unknown."""

    @property
    def tested_rate(self) -> float | None:
        """Accepted ÷ tested tokens; None where nothing is tested."""
        if not self.tested > 0:
            return None
        return min(self.accepted / self.tested, 1.0)  # expectations may round above 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pool:
    """Requests pooled for one decision, all read at one temperature."""

    level: Level
    key: BucketKey
    """Of a parent: task and band are those of the whole pool, see `name`."""
    path_ids: frozenset[str]
    laws: frozenset[str]
    """Law classes whose costs price these paths."""
    times: BucketTimes
    evidence: Evidence
    cells: dict[Cell, CellFacts]
    at_batch: dict[int, PricedTimes]
    """`times` at every measured batch size, the base included, ascending. A size at which none of
    its paths was timed is left out; where some were not, so are those paths."""

    @property
    def name(self) -> str:
        """What people call the pool."""
        if self.level == "own":
            return self.key.label
        task = "all tasks" if self.level == "all" else self.key.task
        return f"{task} at T={self.key.temperature:g}"

    @property
    def drafts(self) -> bool:
        """Whether any cell would draft anything at all."""
        return any(facts.drafted > 0 for facts in self.cells.values())

    def with_batches(self, base: int, others: Mapping[int, PricedTimes | None]) -> "Pool":
        """Return the pool with its seconds at other batch sizes beside those of the base."""
        found = {size: priced for size, priced in others.items() if priced is not None}
        own = PricedTimes(times=self.times, path_ids=self.path_ids)
        return replace(self, at_batch={base: own, **found})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pools:
    """Every pool of a log."""

    own: dict[BucketKey, Pool]
    parent: dict[tuple[str, float], Pool]
    """By task and temperature."""
    all: dict[float, Pool]
    """By temperature; temperatures are never pooled."""

    def parents_of(self, key: BucketKey) -> list[Pool]:
        """Return a bucket's parents, the nearest first."""
        return [self.parent[key.task, key.temperature], self.all[key.temperature]]


def fixed_cell(times: BucketTimes, cell: Cell) -> RatioInterval:
    """Return the speedup of one cell over a bucket with its interval, whoever chose the cell.

    In-sample if the cell was chosen on the same requests: then it is no evidence by itself.
    """
    used = times.decoding()
    at = used.cells.index(cell)
    return ratio_interval(
        used.ar, used.seconds[:, at], used.groups, extra_log_sd=float(used.cost_log_sd[at])
    )


def build_pools(inputs: PlanInputs, paths: pd.DataFrame) -> Pools:
    """Return all pools with their evidence.

    Args:
        inputs: what was measured.
        paths: path table; only priced paths count.

    Returns:
        Pools at the base batch size, with their seconds at the others beside.

    Raises:
        ValueError: a walk row without seconds.
        CostRangeError: costs were not measured where a row needs them.
    """
    rows = _in_range(inputs, paths)
    if rows.empty:
        return Pools(own={}, parent={}, all={})
    stack = _stack(rows)
    surfaces = inputs.costs.surfaces
    table = _cell_table(stack, stack.by_law.ratios(surfaces))
    table["cost_log_sd"] = stack.by_law.cost_log_sd(surfaces, inputs.seed)
    others = {
        size: times_at_batch(stack, inputs.costs.by_batch[size], size, inputs.seed)
        for size in inputs.costs.batch_sizes[1:]
    }
    pools = [
        _pool(members, table.loc[np.unique(stack.cell[members.index])]).with_batches(
            inputs.costs.batch_sizes[0], {size: found.get(number) for size, found in others.items()}
        )
        for number, (_, members) in enumerate(stack.rows.groupby(stack.pool, sort=True))
    ]
    return Pools(
        own={pool.key: pool for pool in pools if pool.level == "own"},
        parent={(p.key.task, p.key.temperature): p for p in pools if p.level == "parent"},
        all={pool.key.temperature: pool for pool in pools if pool.level == "all"},
    )


def _stack(rows: pd.DataFrame) -> Stack:
    """Rows once a level, numbered by pool and by cell of a pool."""
    stacked = pd.concat([_keyed(rows, level) for level in LEVELS], ignore_index=True)
    keys = ["level", *BUCKET]
    cell = np.asarray(stacked.groupby([*keys, *CELL], sort=True).ngroup(), dtype=np.int64)
    return Stack(
        rows=stacked,
        num_levels=len(LEVELS),
        pool=np.asarray(stacked.groupby(keys, sort=True).ngroup(), dtype=np.int64),
        cell=cell,
        by_law=LawCells(stacked, cell),
    )


def _in_range(inputs: PlanInputs, paths: pd.DataFrame) -> pd.DataFrame:
    """Walk rows at the layers a rule may use, with their bucket."""
    usable = paths.loc[paths["priced"], ["path_id", "task", "context_min", "context_max"]]
    inside = inputs.walk["exit_layer"].isin(inputs.exit_layers)
    return inputs.walk.loc[inside].merge(usable, on="path_id", how="inner", validate="m:1")


def _keyed(rows: pd.DataFrame, level: Level) -> pd.DataFrame:
    keyed = rows.assign(level=level)
    if level != "own":
        keyed = keyed.assign(context_min=0, context_max=OPEN)
    return keyed.assign(task=_ALL) if level == "all" else keyed


def _cell_table(stack: Stack, ratios: npt.NDArray[np.float64]) -> pd.DataFrame:
    """One row a cell of a pool, index = its number."""
    names = ["drafted", "tested", "accepted", "ar_seconds", "seconds"]
    grouped = stack.rows.groupby(stack.cell, sort=True)
    table = grouped[names].sum().join(grouped[CELL].first())
    return table.assign(
        draft_cost_ratio=ratios[:, 0], verify_cost_ratio=ratios[:, 1], overhead_ratio=ratios[:, 2]
    )


def _pool(members: pd.DataFrame, table: pd.DataFrame) -> Pool:
    first = members.iloc[0].to_dict()
    cells = {
        (int(row["exit_layer"]), int(row["draft_length"])): _cell_facts(row)
        for row in table.to_dict("records")
    }
    times = bucket_times(members, {cell: facts.cost_log_sd for cell, facts in cells.items()})
    return Pool(
        level=first["level"],
        key=key_of(first),
        path_ids=frozenset(members["path_id"]),
        laws=frozenset(members["law"]),
        times=times,
        evidence=cross_fit(times),
        cells=cells,
        at_batch={},
    )


def _cell_facts(row: Mapping[Hashable, Any]) -> CellFacts:
    plain, seconds = float(row["ar_seconds"]), float(row["seconds"])
    return CellFacts(
        drafted=float(row["drafted"]),
        tested=float(row["tested"]),
        accepted=float(row["accepted"]),
        speedup=plain / seconds if seconds > 0 else None,
        draft_cost_ratio=float(row["draft_cost_ratio"]),
        verify_cost_ratio=float(row["verify_cost_ratio"]),
        overhead_ratio=float(row["overhead_ratio"]),
        cost_log_sd=float(row["cost_log_sd"]),
    )
