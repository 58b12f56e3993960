"""bench.csv as one row a request: checked, repeats averaged, and put beside a baseline's row."""

from typing import Any

import numpy as np
import pandas as pd

from selfspec_cli.buckets import OPEN, BucketKey
from selfspec_cli.errors import StorageError

BUCKET = ["task", "context_min", "context_max", "temperature"]
PLACE = [*BUCKET, "batch_size", "arm"]
_TIMES = ("prefill_seconds", "seconds", "request_seconds", "gap_max_s")
_NUMBERS = (
    *_TIMES, "exit_layer", "draft_length", "committed", "rounds", "drafted", "tested", "accepted",
    "peak_memory_bytes",
)  # fmt: skip
REQUIRED = (
    *PLACE,
    "repeat",
    "request_id",
    "group_id",
    *_NUMBERS,
    "rounds_by_accepted",
    "exact",
    "engine",
)
_TRUTHS = {"true": 1.0, "1": 1.0, "1.0": 1.0, "false": 0.0, "0": 0.0, "0.0": 0.0}


def checked_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the decodes of bench.csv with plain types: open bands as `OPEN`, no missing labels.

    Rows without committed tokens or decode time (a decode that failed) are left out.

    Args:
        table: bench.csv, one row a (request, arm, batch size, repeat).

    Raises:
        StorageError: a column is missing, or a number is no number, infinite or negative.
    """
    missing = [name for name in REQUIRED if name not in table.columns]
    if missing:
        raise StorageError(
            f"column {', '.join(missing)} is missing",
            where="bench.csv",
            hint="Run `selfspec bench` again: the table is of another version, or was cut.",
        )
    rows = table.copy()
    for name in (*_NUMBERS, "temperature", "batch_size"):
        rows[name] = _numbers(rows[name])
    for name in ("task", "arm", "request_id", "group_id", "rounds_by_accepted"):
        rows[name] = [("" if pd.isna(value) else str(value)) for value in rows[name]]
    rows["context_min"] = rows["context_min"].astype("int64")
    rows["context_max"] = rows["context_max"].fillna(OPEN).astype("int64")
    rows["batch_size"] = rows["batch_size"].astype("int64")
    rows["exact"] = _truths(rows["exact"])
    decoded = rows["committed"].notna() & rows["seconds"].notna()
    return rows.loc[decoded].reset_index(drop=True)


def averaged(rows: pd.DataFrame, *, by_repeat: bool = False) -> pd.DataFrame:
    """Return one row a (bucket, batch size, arm, request), its times the mean over repeats.

    The number of rows is then the number of requests: a repeat is no new request, and must add
    nothing to what a quantile or an interval rests on.

    Args:
        rows: of `checked_rows`; those of whole batches (no request) become one row a bucket.
        by_repeat: keep repeats apart, for whole batches, of which they are the only unit.

    Returns:
        `PLACE`, request_id, group_id; mean committed, rounds and times; summed drafted, tested and
        accepted; request_low and request_high, the range of request_seconds over repeats; repeats;
        exact, 0 where any repeat differed.
    """
    mean = {name: (name, "mean") for name in ("committed", "rounds", *_TIMES)}
    total = {name: (name, _total) for name in ("drafted", "tested", "accepted")}
    keys = [*PLACE, "request_id", *(["repeat"] if by_repeat else [])]
    return rows.groupby(keys, sort=True, as_index=False).agg(
        group_id=("group_id", "first"),
        draft_length=("draft_length", "max"),
        peak_memory_bytes=("peak_memory_bytes", "max"),
        exact=("exact", "min"),
        repeats=("seconds", "size"),
        request_low=("request_seconds", "min"),
        request_high=("request_seconds", "max"),
        **mean,
        **total,
    )


def pair(requests: pd.DataFrame, arm: str, baseline: str) -> pd.DataFrame:
    """Return the requests that both arms decoded, the baseline's times at the arm's tokens.

    At temperature 0 both commit the same tokens and the times stand as measured. Where numbers
    differ (sampled output, a stop that another library sees elsewhere) the baseline's decode time
    is scaled to as many tokens as the arm's, at that request's own time per token.

    Args:
        requests: of `averaged`.
        arm: to judge.
        baseline: arm to compare it with.

    Returns:
        The arm's rows with plain_seconds (decode) and plain_request (prefill included, s),
        plain_prefill, plain_low and plain_high (range of plain_request over repeats, s). Requests
        of which only one arm committed a token beyond the first are left out.
    """
    keys = [*BUCKET, "batch_size", "request_id", *(["repeat"] if "repeat" in requests else [])]
    times = ["committed", "seconds", "prefill_seconds", "request_seconds"]
    ranges = ["request_low", "request_high"]
    other = requests.loc[requests["arm"] == baseline, [*keys, *times, *ranges]]
    ours = requests.loc[requests["arm"] == arm]
    both = ours.merge(other, on=keys, suffixes=("", "_plain"), validate="1:1")
    both = both.loc[(both["committed"] > 0) == (both["committed_plain"] > 0)]
    scale = (both["committed"] / both["committed_plain"].where(both["committed_plain"] > 0)).fillna(
        1.0
    )
    grown = both["seconds_plain"] * (scale - 1.0)
    return both.assign(
        plain_seconds=both["seconds_plain"] * scale,
        plain_prefill=both["prefill_seconds_plain"],
        plain_request=both["request_seconds_plain"] + grown,
        plain_low=both["request_low_plain"] + grown,
        plain_high=both["request_high_plain"] + grown,
    ).reset_index(drop=True)


def bucket_of_row(row: Any) -> BucketKey:
    """Return the bucket of a row (or group key) with the names of `BUCKET`."""
    top = int(row["context_max"])
    return BucketKey(
        task=str(row["task"]),
        context_min=int(row["context_min"]),
        context_max=None if top == OPEN else top,
        temperature=float(row["temperature"]),
    )


def _numbers(column: pd.Series) -> pd.Series:
    try:
        values = pd.to_numeric(column).astype("Float64").to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise _no_number(column, str(error)) from error
    if np.isinf(values).any() or (values < 0).any():
        raise _no_number(column, "infinite or negative")
    return pd.Series(values, index=column.index)


def _no_number(column: pd.Series, why: str) -> StorageError:
    return StorageError(
        f"a value cannot be used: {why.splitlines()[0]}",
        where=f"bench.csv, {column.name}",
        hint="Run `selfspec bench` again; the table is not to be edited.",
    )


def _truths(column: pd.Series) -> pd.Series:
    """1 exact, 0 differs, NaN not compared, whatever the CSV made of them."""
    found = [np.nan if pd.isna(v) else _TRUTHS.get(str(v).lower(), np.nan) for v in column]
    return pd.Series(found, index=column.index, dtype="float64")


def _total(values: pd.Series) -> float:
    return float(values.sum(min_count=1))
