"""The log as a plan sees it: one row a path with its bucket, and what each request weighs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.buckets import OPEN, BucketKey, context_band
from selfspec_cli.errors import StorageError
from selfspec_cli.plan.document import Law
from selfspec_cli.plan.inputs import PlanInputs

BUCKET = ["task", "context_min", "context_max", "temperature"]
_PENALISED = "penalised"  # law class of requests whose law depends on earlier tokens


def path_table(inputs: PlanInputs, edges: Sequence[int]) -> pd.DataFrame:
    """Return one row an observed path.

    Args:
        inputs: what was measured.
        edges: rising context edges (prompt tokens), the first 0; the last band is open.

    Returns:
        path_id, request_id, group_id, temperature, the bucket (task, context_min, context_max with
        -1 where open), prompt_tokens, tokens (of the output), finish, allowed_tokens (what the
        request may ask for, before any cap on the measurement), weight (share of its request in
        the log), priced (whether it is in the walk table), ar_seconds (s; missing where it is
        not), and the request's sampling parameters.

    Raises:
        StorageError: a path belongs to no request.
    """
    own = inputs.requests.rename(columns={"temperature": "own_temperature"})
    rows = inputs.paths.merge(own, on="request_id", how="left", validate="many_to_one")
    lost = rows.loc[rows["task"].isna(), "path_id"]
    if len(lost):
        raise StorageError(f"path {lost.iloc[0]} belongs to no request", where="paths.parquet")
    plain = inputs.walk.drop_duplicates("path_id").set_index("path_id")["ar_seconds"]
    bands = {p: context_band(int(p), edges) for p in rows["prompt_tokens"].unique()}
    tops = {p: OPEN if band[1] is None else band[1] for p, band in bands.items()}
    return rows.assign(
        context_min=rows["prompt_tokens"].map({p: band[0] for p, band in bands.items()}),
        context_max=rows["prompt_tokens"].map(tops),
        tokens=rows["completion_tokens"].astype(np.int64),
        allowed_tokens=_allowed(rows, inputs.facts.traces.output_window.default_max_tokens),
        priced=rows["path_id"].isin(plain.index),
        ar_seconds=rows["path_id"].map(plain).astype(float),
        weight=_weights(rows),
    )


def _allowed(rows: pd.DataFrame, default: int) -> pd.Series:
    """Output tokens a request may ask for: what it stated, else the documented default."""
    if "stated_max_tokens" not in rows:  # runs of earlier versions keep only the capped budget
        return rows["max_tokens"].astype(float)
    return rows["stated_max_tokens"].astype(float).fillna(float(default))


def _weights(rows: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Each request weighs 1: at its own temperature if that was read, else spread over those read.

    The sum over a request's paths is 1, so a request read at two temperatures is not two requests.
    """
    same = (rows["own_temperature"] == rows["temperature"]).astype(float)
    by_request = rows["request_id"]
    num_same = same.groupby(by_request).transform("sum")
    num_paths = same.groupby(by_request).transform("size")
    weights = np.where(num_same > 0, same / num_same.clip(lower=1.0), 1.0 / num_paths)
    return weights.astype(np.float64)


def bucket_keys(paths: pd.DataFrame) -> list[BucketKey]:
    """Return the buckets that hold at least one path, sorted."""
    unique = paths[BUCKET].drop_duplicates()
    return sorted(key_of(row) for row in unique.to_dict("records"))


def key_of(row: Mapping[Any, Any]) -> BucketKey:
    """Return the bucket of a row of the path table."""
    top = int(row["context_max"])
    return BucketKey(
        task=str(row["task"]),
        context_min=int(row["context_min"]),
        context_max=None if top == OPEN else top,
        temperature=float(row["temperature"]),
    )


def in_bucket(paths: pd.DataFrame, key: BucketKey) -> pd.DataFrame:
    """Return the rows of one bucket."""
    top = OPEN if key.context_max is None else key.context_max
    return paths.loc[
        (paths["task"] == key.task)
        & (paths["context_min"] == key.context_min)
        & (paths["context_max"] == top)
        & (paths["temperature"] == key.temperature)
    ]


def laws_of(paths: pd.DataFrame) -> list[Law]:
    """Return the sampling parameters of these paths' requests, each combination once, sorted.

    A request with a logit bias says nothing of requests without one, and a plan cannot name the
    bias: such requests, penalised without any penalty shown, are left out.
    """
    names = [name for name in Law.model_fields if name in paths]
    found = paths.drop_duplicates([*names, "law"]) if "law" in paths else paths
    laws = []
    for row in found.to_dict("records"):
        values = {name: row[name] for name in names if not pd.isna(row[name])}
        law = Law.model_validate(values)
        if row.get("law") != _PENALISED or _penalty_shown(law):
            laws.append(law)
    unique = {tuple(law.model_dump().values()): law for law in laws}
    return [unique[values] for values in sorted(unique)]


def _penalty_shown(law: Law) -> bool:
    neutral = Law(top_p=law.top_p, top_k=law.top_k)
    return law != neutral
