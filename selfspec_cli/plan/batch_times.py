"""Seconds of the pools at other batch sizes: the base's rows again, under other costs."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.analysis.batching import at_batch, paid_lengths
from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.analysis.evidence import BucketTimes, Cell, bucket_times
from selfspec_cli.analysis.grid_costs import LawCells

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedTimes:
    """A pool at one batch size."""

    times: BucketTimes
    path_ids: frozenset[str]
    """Paths whose every context was timed there."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stack:
    """Walk rows of all pools: the same rows once a level, in the same order."""

    rows: pd.DataFrame
    """Index 0, 1, .. of all levels; priced at the base batch size."""
    num_levels: int
    pool: Ints
    """Number of each row's pool."""
    cell: Ints
    """Number of each row's (pool, L, k)."""
    by_law: LawCells
    """The rows summed by cell and law: what does not depend on costs."""


def times_at_batch(
    stack: Stack, surfaces: Mapping[str, CostSurface], batch_size: int, seed: int
) -> dict[int, PricedTimes]:
    """Return the pools' seconds at a batch size, for continuous refill, by number of the pool.

    A path of which some cell was not timed at that size is left out, and so is a pool without any
    other.

    Args:
        stack: the pools at the base batch size.
        surfaces: costs at `batch_size` by law class.
        batch_size: B.
        seed: of the cost blocks drawn for the uncertainty, as at the base.
    """
    priced = _priced(stack, surfaces, batch_size)
    lost = priced.loc[priced["seconds"].isna(), "path_id"].unique()
    kept = ~priced["path_id"].isin(lost).to_numpy()
    if not kept.any():
        return {}
    log_sd = _law_cells(stack, priced, kept, batch_size).cost_log_sd(surfaces, seed)
    rows = priced.assign(_cell=stack.cell).loc[kept]
    return {
        int(str(number)): PricedTimes(
            times=bucket_times(members, _by_cell(members, log_sd)),
            path_ids=frozenset(members["path_id"]),
        )
        for number, members in rows.groupby(stack.pool[kept], sort=True)
    }


def _priced(stack: Stack, surfaces: Mapping[str, CostSurface], batch_size: int) -> pd.DataFrame:
    """The stacked rows at a batch size; each level repeats the first, so that is priced once."""
    once = at_batch(stack.rows.iloc[: len(stack.rows) // stack.num_levels], surfaces, batch_size)
    names = ("seconds", "ar_seconds")
    again = {name: np.tile(once[name].to_numpy(), stack.num_levels) for name in names}
    return stack.rows.assign(batch_size=batch_size, **again)


def _law_cells(
    stack: Stack, priced: pd.DataFrame, kept: npt.NDArray[np.bool_], batch_size: int
) -> LawCells:
    """Sums by cell and law of the rows kept; those of the base where all are."""
    if not kept.all():
        return LawCells(priced.loc[kept], stack.cell[kept], stack.by_law.num_cells)
    found = copy.copy(stack.by_law)
    found.paid = paid_lengths(found.draft_lengths, batch_size)
    return found


def _by_cell(members: pd.DataFrame, log_sd: npt.NDArray[np.float64]) -> dict[Cell, float]:
    """Cost uncertainty of each (L, k) of one pool."""
    first = members.drop_duplicates("_cell")
    return {
        (int(layer), int(k)): float(log_sd[number])
        for number, layer, k in first[["_cell", "exit_layer", "draft_length"]].itertuples(
            index=False
        )
    }
