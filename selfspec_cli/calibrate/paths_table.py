"""Observed paths to rows and back: shards, paths.parquet, observations.parquet."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from selfspec_cli.records import EARLY_EXIT, PreparedRequest
from selfspec_cli.replay.observe import ObservedPath, PathJob

PATH_COLUMNS = (
    "path_id", "request_id", "temperature", "source", "completion_tokens", "finish", "budget",
    "surprisal", "entropy", "varentropy", "num_zero_prob", "num_outside_truncation", "num_argmax",
)  # fmt: skip
_SCORES = ("accept_given_path", "accept_prob", "is_argmax")


def shard_frame(paths: Sequence[ObservedPath]) -> pd.DataFrame:
    """One row a path: its columns, its token ids, its scores of positions 1.. as flat lists.

    Scores are stored exit by exit, [E * (n - 1)]; position 0 is prefill's and never drafted.
    """
    return pd.DataFrame([_shard_row(path) for path in paths])


def _shard_row(path: ObservedPath) -> dict[str, Any]:
    s, greedy = path.scores, path.job.temperature == 0.0
    row = _head(path.job, len(path.tokens), path.finish)
    row |= {
        "surprisal": None if greedy else float(np.nansum(s.surprisal, dtype=np.float64)),
        "entropy": None if greedy else float(s.entropy[~s.zero_prob].sum(dtype=np.float64)),
        "varentropy": None if greedy else float(s.varentropy[~s.zero_prob].sum(dtype=np.float64)),
        "num_zero_prob": int(s.zero_prob.sum()),
        "num_outside_truncation": int(s.outside_truncation.sum()),
        "num_argmax": int(s.path_is_argmax.sum()),
        "tokens": list(path.tokens),
    }
    return row | {name: getattr(s, name)[:, 1:].ravel() for name in _SCORES}


def empty_row(job: PathJob) -> dict[str, Any]:
    """Row of a request whose budget is zero tokens: a path without a position."""
    row = dict.fromkeys(PATH_COLUMNS) | _head(job, 0, "length")
    counts = dict.fromkeys(("num_zero_prob", "num_outside_truncation", "num_argmax"), 0)
    return row | counts | {"tokens": []} | {name: [] for name in _SCORES}


def _head(job: PathJob, num_tokens: int, finish: str) -> dict[str, Any]:
    return {
        "path_id": job.path_id,
        "request_id": job.request.request_id,
        "temperature": job.temperature,
        "source": job.source,
        "completion_tokens": num_tokens,
        "finish": finish,
        "budget": job.budget,
    }


def paths_frame(shards: pd.DataFrame) -> pd.DataFrame:
    """paths.parquet from all shard rows, in order of path_id; `path_z` is for people to look at."""
    floats = {"surprisal": float, "entropy": float, "varentropy": float}
    rows = shards[list(PATH_COLUMNS)].astype(floats)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = (rows["surprisal"] - rows["entropy"]) / np.sqrt(rows["varentropy"])
    return rows.assign(path_z=z.where(np.isfinite(z)))


def observations_frame(shards: pd.DataFrame, exit_layers: Sequence[int]) -> pd.DataFrame:
    """observations.parquet from all shard rows: one row a (path, exit layer, position)."""
    pieces = [_long(row, exit_layers) for row in shards.to_dict("records")]
    frame = pd.concat(pieces, ignore_index=True) if pieces else pd.DataFrame()
    return frame


def _long(row: Mapping[Hashable, Any], exit_layers: Sequence[int]) -> pd.DataFrame:
    n = max(0, int(row["completion_tokens"]) - 1)
    size = len(exit_layers) * n
    return pd.DataFrame(
        {
            "path_id": pd.Series([row["path_id"]] * size, dtype="str"),
            "request_id": pd.Series([row["request_id"]] * size, dtype="str"),
            "temperature": np.full(size, row["temperature"], dtype=np.float64),
            "position": np.tile(np.arange(1, n + 1, dtype=np.int32), len(exit_layers)),
            "drafter": pd.Series([EARLY_EXIT] * size, dtype="str"),
            "exit_layer": np.repeat(np.asarray(exit_layers, dtype=np.int32), n),
            "accept_given_path": np.asarray(row["accept_given_path"], dtype=np.float32),
            "accept_prob": np.asarray(row["accept_prob"], dtype=np.float32),
            "is_argmax": np.asarray(row["is_argmax"], dtype=bool),
        }
    )


def requests_frame(requests: Iterable[PreparedRequest], bands: Sequence[str]) -> pd.DataFrame:
    """requests.parquet: features known at request time, no text."""
    return pd.DataFrame(
        [
            {
                "request_id": r.request_id,
                "group_id": r.group_id,
                "task": r.task,
                "context_band": band,
                "prompt_tokens": r.prompt_tokens,
                "max_tokens": r.max_tokens,
                "stated_max_tokens": r.stated_max_tokens,
                "script": r.script,
                "temperature": r.temperature,
                "top_p": r.sampling.top_p,
                "top_k": r.sampling.top_k,
                "repetition_penalty": r.sampling.repetition_penalty,
                "presence_penalty": r.sampling.presence_penalty,
                "frequency_penalty": r.sampling.frequency_penalty,
                "min_tokens": r.sampling.min_tokens,
                "law": law_name(r),
                "content_hash": r.content_hash,
            }
            for r, band in zip(requests, bands, strict=True)
        ]
    ).astype({"temperature": float, "stated_max_tokens": "Int64", "script": "str"})


def law_name(request: PreparedRequest) -> str:
    """Law class of a request above temperature 0; empty where only the temperature decides."""
    if request.sampling.penalised:
        return "penalised"
    return "truncated" if request.sampling.truncated else ""
