"""From observation files to the walk's coins, and acceptance by exit layer for people."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.analysis.intervals import jackknife_ratios
from selfspec_cli.analysis.walk import PathCoins
from selfspec_cli.errors import StorageError
from selfspec_cli.records import EARLY_EXIT

OUTPUT_BANDS: tuple[tuple[int, int | None], ...] = ((1, 32), (33, 128), (129, None))
"""Output positions reported apart, both ends included; position t drafts x_t."""

BAND_COLUMNS = (
    "output_from", "output_to", "num_positions", "accept_prob_mean", "accept_prob_low",
    "accept_prob_high", "accept_given_path_mean", "greedy_match",
)  # fmt: skip
"""Columns of acceptance.csv after its keys."""

_ENDED = frozenset({"eos", "stop"})  # the text ended by itself, with budget left


def build_paths(
    observations: pd.DataFrame,
    paths: pd.DataFrame,
    requests: pd.DataFrame,
    exit_layers: Sequence[int],
    drafter: str = EARLY_EXIT,
) -> list[PathCoins]:
    """Return the coins of every path, in the order of `paths`.

    A position that was not observed leaves its coin missing, so such a path cannot be walked.

    Args:
        observations: path_id, position (t of x_t), drafter, exit_layer, accept_given_path.
        paths: path_id, request_id, temperature, completion_tokens, finish; optional budget
            (output tokens in force). Without it a path that ended by itself has its request's
            max_tokens, and any other path is taken to have used its budget up.
        requests: request_id, group_id, prompt_tokens, max_tokens; optional law (law class).
        exit_layers: E layers, the rows of each coin array.
        drafter: canonical drafter name to read.

    Raises:
        StorageError: a path's request is unknown, or it has more tokens than its budget.
    """
    rows = paths.merge(
        requests.drop(columns=["temperature"], errors="ignore"),
        on="request_id",
        how="left",
        suffixes=("", "_request"),
        validate="many_to_one",
    )
    unknown = rows.loc[rows["prompt_tokens"].isna(), "path_id"]
    if len(unknown):
        raise StorageError(f"path {unknown.iloc[0]} belongs to no request", where="paths.parquet")
    lengths = rows["completion_tokens"].to_numpy(dtype=np.int64)
    coins = _coin_arrays(observations, rows["path_id"], lengths, list(exit_layers), drafter)
    budgets = _budgets(rows, lengths)
    # An empty path (no output token at all) has no x_0 and nothing to walk.
    return [
        PathCoins(
            path_id=row["path_id"],
            request_id=row["request_id"],
            group_id=row["group_id"],
            temperature=float(row["temperature"]),
            prompt_tokens=int(row["prompt_tokens"]),
            budget=int(budget),
            coins=coin,
            law=_law(row.get("law"), float(row["temperature"])),
        )
        for row, budget, coin in zip(rows.to_dict("records"), budgets, coins, strict=True)
        if coin.shape[1] > 0
    ]


def _coin_arrays(
    observations: pd.DataFrame,
    path_ids: pd.Series,
    lengths: npt.NDArray[np.int64],
    exit_layers: list[int],
    drafter: str,
) -> list[npt.NDArray[np.float64]]:
    """One float64 [E, n] a path; unobserved positions and column 0 are NaN."""
    wanted = observations["exit_layer"].isin(exit_layers) & (observations["drafter"] == drafter)
    seen = observations.loc[wanted & (observations["position"] >= 1)]
    row = pd.Index(path_ids).get_indexer(pd.Index(seen["path_id"]))
    layer = pd.Index(exit_layers).get_indexer(pd.Index(seen["exit_layer"]))
    position = seen["position"].to_numpy(dtype=np.int64)
    inside = (row >= 0) & (position < lengths[row])
    # All paths share one flat array, so that a large file is filled without a loop over rows.
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.full((len(exit_layers), int(offsets[-1])), np.nan)
    values = seen["accept_given_path"].to_numpy(dtype=np.float64)
    flat[layer[inside], offsets[row[inside]] + position[inside]] = values[inside]
    return [flat[:, offsets[i] : offsets[i + 1]] for i in range(len(lengths))]


def _budgets(rows: pd.DataFrame, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if "budget" in rows:
        budgets = rows["budget"].to_numpy(dtype=np.int64)
    else:
        ended = rows["finish"].isin(_ENDED).to_numpy()
        budgets = np.where(ended, rows["max_tokens"].to_numpy(), lengths).astype(np.int64)
    over = np.flatnonzero(budgets < lengths)
    if len(over):
        path_id = rows["path_id"].iloc[over[0]]
        raise StorageError(
            f"path {path_id} has {lengths[over[0]]} tokens and a budget of {budgets[over[0]]}",
            where="paths.parquet",
        )
    return budgets


def _law(law: object, temperature: float) -> str:
    """A truncated request read at T = 0 is greedy; only penalties survive there."""
    if not isinstance(law, str) or (temperature == 0.0 and law != "penalised"):
        return ""
    return law


def acceptance_table(
    observations: pd.DataFrame, requests: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return mean acceptance per exit layer, pooled over positions, by stretch of the output.

    Args:
        observations: temperature, drafter, exit_layer, position, accept_prob, accept_given_path,
            is_argmax, request_id. Position 0 comes from prefill and is never drafted: left out.
        requests: request_id, task, optional group_id; with it rows are split by task, and requests
            of one group count once in the intervals.

    Returns:
        One row a (task if given, temperature, drafter, exit_layer, output band): output_from,
        output_to (positions, both included; missing where the band is open), num_positions,
        accept_prob_mean with its 95 % interval over groups accept_prob_low and accept_prob_high
        (missing below 2 groups, or where nothing is ever accepted), accept_given_path_mean (over
        known coins), greedy_match. The band from 1 with no end covers the whole output. Bands
        without a position have no row.
    """
    seen = observations.loc[observations["position"] >= 1]
    keys, features = ["temperature", "drafter", "exit_layer"], ["request_id", "task"]
    if requests is not None:
        features += [name for name in ("group_id",) if name in requests]
        seen = seen.merge(requests[features], on="request_id", how="left")
        keys = ["task", *keys]
    tables = [_band_means(seen, keys, band) for band in ((1, None), *OUTPUT_BANDS)]
    table = pd.concat(tables, ignore_index=True)
    return table.sort_values([*keys, "output_from", "output_to"], ignore_index=True)


def _band_means(seen: pd.DataFrame, keys: list[str], band: tuple[int, int | None]) -> pd.DataFrame:
    first, last = band
    inside = seen["position"] >= first
    if last is not None:
        inside &= seen["position"] <= last
    rows = seen.loc[inside]
    means = (
        rows.assign(is_argmax=lambda rows: rows["is_argmax"].astype(float))
        .groupby(keys, as_index=False, sort=True, dropna=False)
        .agg(
            num_positions=("position", "size"),
            accept_prob_mean=("accept_prob", "mean"),
            accept_given_path_mean=("accept_given_path", "mean"),
            greedy_match=("is_argmax", "mean"),
        )
    )
    ends = pd.array([last] * len(means), dtype="Int64")
    low, high = _intervals(rows, keys)
    known = means.assign(output_from=first, output_to=ends)
    known = known.assign(accept_prob_low=low, accept_prob_high=high)
    return known[[*keys, *BAND_COLUMNS]]


def _intervals(rows: pd.DataFrame, keys: list[str]) -> tuple[list[float], list[float]]:
    """Interval of the mean accept_prob of each key, in sorted order.

    Positions of one group are not independent: the jackknife is over groups.
    """
    unit = "group_id" if "group_id" in rows else "request_id"
    groups = rows.groupby([*keys, unit], as_index=False, sort=True, dropna=False)
    sums = groups.agg(num=("accept_prob", "size"), total=("accept_prob", "sum"))
    low, high = [], []
    for _, group in sums.groupby(keys, sort=True, dropna=False):
        # Positions over accepted, then turned around: a group that accepts nothing must count.
        ratio = jackknife_ratios(group["num"].to_numpy(), group["total"].to_numpy(dtype=np.float64))
        low.append(float(1 / ratio.high))
        high.append(float(np.minimum(1.0, 1 / ratio.low)))  # NaN where undefined, not 1
    return low, high
