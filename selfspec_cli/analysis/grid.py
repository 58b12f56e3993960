"""The grid: predicted speedup of every (bucket, B, L, k) as a table for people, and its ranking."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.analysis.batching import at_batch
from selfspec_cli.analysis.closed_form import closed_form_speedup
from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.analysis.grid_costs import LawCells
from selfspec_cli.analysis.intervals import jackknife_ratios
from selfspec_cli.analysis.walk import Surfaces
from selfspec_cli.buckets import OPEN, context_band
from selfspec_cli.errors import StorageError

Floats = npt.NDArray[np.float64]

ALL_TASKS = "(all)"
"""Task of the rows that pool a temperature's requests; their `evidence` is `all`."""

BUCKET_KEYS = ("task", "context_min", "context_max", "temperature", "batch_size")
_CELL_KEYS = ("drafter", "exit_layer", "draft_length")
# A task may be called like the roll-up; evidence keeps the two apart.
_BUCKET = [*BUCKET_KEYS, "evidence"]
_KEYS = [*_BUCKET, *_CELL_KEYS]

COLUMNS = (
    *BUCKET_KEYS, *_CELL_KEYS, "num_requests", "num_tokens", "evidence", "block_efficiency",
    "acceptance_rate_tested", "acceptance_rate_drafted", "draft_cost_ratio", "verify_cost_ratio",
    "overhead_ratio", "predicted_speedup", "predicted_speedup_low", "predicted_speedup_high",
    "predicted_request_speedup", "closed_form_speedup", "predicted_slow_share",
    "predicted_p99_ratio",
)  # fmt: skip
"""Columns of grid.csv, in order."""


def build_grid(
    walk: pd.DataFrame,
    requests: pd.DataFrame,
    surfaces: Surfaces | None,
    edges: Sequence[int],
    *,
    seed: int = 0,
    by_batch: Mapping[int, Mapping[str, CostSurface]] | None = None,
) -> pd.DataFrame:
    """Return grid.csv: one row per bucket, batch size and cell, and roll-ups by temperature.

    Speedups are ratios of sums over a bucket's requests; the interval is a delete-one-group
    jackknife with the cost uncertainty in quadrature. Batch sizes beyond the walk's own are priced
    for continuous refill (`at_batch`); there the request speedup adds the refill's own prefill to
    both sides, undivided: a prompt runs alone and the other rows wait for it.

    Args:
        walk: walk table (`walk`). Where prefill_seconds are missing, so is the request speedup.
        requests: request_id, task. Prompt lengths and groups come from the walk table.
        surfaces: costs, one surface or one per law class; None leaves costs and speedups missing.
        edges: rising context edges (prompt tokens), the first 0; the last band is open.
        seed: of the cost blocks drawn for the uncertainty.
        by_batch: costs by batch size and law (`Costs.by_batch`); None for the walk's own size only.

    Returns:
        Columns `COLUMNS`; slow share and P99 ratio need sampled walks and are missing here.
        context_max is missing in the open band and in roll-ups. Costs and speedups are missing in
        a cell of which some request was not timed at that batch size.

    Raises:
        StorageError: a walk row belongs to no request.
        CostRangeError: costs were not measured where a row needs them.
    """
    if walk.empty:
        return pd.DataFrame(columns=list(COLUMNS))
    rows = _bucket_rows(walk, requests, edges)
    tables = [_one_size(rows, surfaces, seed)]
    base = set(rows["batch_size"])
    for batch_size in sorted(set(by_batch or {}) - base):
        costs = (by_batch or {})[batch_size]
        tables.append(_one_size(at_batch(rows, costs, batch_size), costs, seed))
    table = pd.concat(tables).sort_values(_KEYS, kind="stable") if len(tables) > 1 else tables[0]
    return _finished(table)


def base_batch(grid: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the smallest batch size: the base, at which rules are decided."""
    return grid.loc[grid["batch_size"] == grid["batch_size"].min()].reset_index(drop=True)


def _one_size(rows: pd.DataFrame, surfaces: Surfaces | None, seed: int) -> pd.DataFrame:
    """Grid of the rows of one batch size, sorted by `_KEYS`."""
    groups = rows.groupby(_KEYS, sort=True)
    cell = np.asarray(groups.ngroup(), dtype=np.int64)
    table = groups.agg(
        num_requests=("request_id", "nunique"),
        num_tokens=("num_tokens", "sum"),
        rounds=("rounds", "sum"),
        drafted=("drafted", "sum"),
        tested=("tested", "sum"),
        accepted=("accepted", "sum"),
    ).reset_index()
    table = _with_rates(table)
    log_sd = np.zeros(len(table))
    unpriced = rows[["ar_seconds", "seconds"]].isna().any(axis=1).to_numpy()
    whole = ~np.isin(cell, cell[unpriced])
    if surfaces is not None and whole.any():
        by_law = LawCells(rows.loc[whole], cell[whole], len(table))
        costs = ["draft_cost_ratio", "verify_cost_ratio", "overhead_ratio"]
        table[costs] = by_law.ratios(surfaces)
        log_sd = by_law.cost_log_sd(surfaces, seed)
    table = _with_speedups(table, rows.assign(cell=cell), log_sd)
    table["closed_form_speedup"] = _closed_form(table)
    return table


def rank_cells(grid: pd.DataFrame) -> pd.DataFrame:
    """Return the grid sorted inside each bucket and batch size by predicted speedup, with `rank`.

    Ties go to the smaller k, then the smaller L. A cell without a predicted speedup comes last and
    has no rank. Acceptance rates play no part: the drafted rate always prefers the smallest k.
    """
    order = grid.sort_values(
        [*_BUCKET, "predicted_speedup", "draft_length", "exit_layer"],
        ascending=[True] * len(_BUCKET) + [False, True, True],
        na_position="last",
        ignore_index=True,
    )
    place = order.groupby(_BUCKET, dropna=False, sort=False).cumcount() + 1
    known = order["predicted_speedup"].notna()
    return order.assign(rank=place.astype("Int64").where(known))


def _bucket_rows(walk: pd.DataFrame, requests: pd.DataFrame, edges: Sequence[int]) -> pd.DataFrame:
    """Walk rows with task, band, tokens and prefill; twice: in their bucket and in the roll-up."""
    rows = walk.merge(
        requests[["request_id", "task"]], on="request_id", how="left", validate="many_to_one"
    )
    lost = rows.loc[rows["task"].isna(), "request_id"]
    if len(lost):
        raise StorageError(f"request {lost.iloc[0]} has no task", where="requests.parquet")
    bands = {p: context_band(int(p), edges) for p in rows["prompt_tokens"].unique()}
    low = rows["prompt_tokens"].map({p: band[0] for p, band in bands.items()})
    tops = {p: OPEN if band[1] is None else band[1] for p, band in bands.items()}
    own = rows.assign(
        context_min=low,
        context_max=rows["prompt_tokens"].map(tops),
        num_tokens=rows["committed"].round().astype(np.int64) + 1,
        evidence="own",
    )
    pooled = own.assign(task=ALL_TASKS, context_min=edges[0], context_max=OPEN, evidence="all")
    return pd.concat([own, pooled], ignore_index=True)


def _with_rates(table: pd.DataFrame) -> pd.DataFrame:
    """Add acceptance from sums; 0 / 0 is NaN, that is missing."""
    rounds, accepted = table["rounds"].to_numpy(), table["accepted"].to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        return table.assign(
            block_efficiency=1.0 + accepted / rounds,
            acceptance_rate_tested=accepted / table["tested"].to_numpy(),
            acceptance_rate_drafted=accepted / table["drafted"].to_numpy(),
        )


def _with_speedups(table: pd.DataFrame, rows: pd.DataFrame, log_sd: Floats) -> pd.DataFrame:
    """Add speedups and intervals, bucket by bucket because groups differ between buckets."""
    names = ["predicted_speedup", "predicted_speedup_low", "predicted_speedup_high"]
    result = table.reindex(columns=[*table.columns, *names, "predicted_request_speedup"])
    for _, bucket in rows.groupby(_BUCKET, sort=False):
        if bucket[["ar_seconds", "seconds"]].isna().any(axis=None):
            continue  # not priced
        plain, fast = _by_group(bucket, "ar_seconds"), _by_group(bucket, "seconds")
        cells = plain.columns.to_numpy()
        ratios = jackknife_ratios(plain.to_numpy(), fast.to_numpy(), extra_log_sd=log_sd[cells])
        result.loc[cells, names] = np.stack([ratios.estimate, ratios.low, ratios.high], axis=1)
        if "prefill_seconds" in bucket and bucket["prefill_seconds"].notna().all():
            prefill = _by_group(bucket, "prefill_seconds").sum()
            ratio = (plain.sum() + prefill) / (fast.sum() + prefill)
            result.loc[cells, "predicted_request_speedup"] = ratio.to_numpy()
    return result


def _by_group(bucket: pd.DataFrame, column: str) -> pd.DataFrame:
    """Sums [groups, cells]."""
    return bucket.pivot_table(index="group_id", columns="cell", values=column, aggfunc="sum")


def _closed_form(table: pd.DataFrame) -> Floats:
    """Closed form fed with the tested rate: a cross-check whose gap shows heterogeneity."""
    names = ["acceptance_rate_tested", "draft_cost_ratio", "verify_cost_ratio", "overhead_ratio"]
    values = np.full(len(table), np.nan)
    if not set(names) <= set(table.columns):
        return values
    inputs = table[names].to_numpy(dtype=np.float64)
    for row in np.flatnonzero(np.isfinite(inputs).all(axis=1)):
        alpha, c, v, o = inputs[row]
        values[row] = closed_form_speedup(
            min(alpha, 1.0),  # a sum of expectations may exceed 1 by rounding
            int(table["draft_length"].iloc[row]),
            draft_cost_ratio=c,
            verify_cost_ratio=v,
            overhead_ratio=o,
        )
    return values


def _finished(table: pd.DataFrame) -> pd.DataFrame:
    top = table["context_max"].astype("Int64")
    shown = table.assign(context_max=top.where(top != OPEN))
    return shown.reindex(columns=list(COLUMNS)).reset_index(drop=True)
