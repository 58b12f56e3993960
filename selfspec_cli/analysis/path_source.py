"""Was recorded text drawn from this model's law? Tested on a bucket, never on one request.

The walk is exact only for paths drawn from the target. If they were, surprisal has the entropy as
its mean and the varentropy as its variance at every position, so the pooled difference is close to
a standard normal. Dropping single requests by this test would select easy text.
"""

import math
from dataclasses import dataclass
from typing import Literal, cast

import pandas as pd

Verdict = Literal["recorded ok", "failed", "unknown"]

MIN_TOKENS = 1000  # fewer positions cannot tell
MAX_Z = 3.0
MAX_EXCESS = 0.02  # nats a token; a large bucket finds significance in what does not matter
MAX_ZERO_SHARE = 0.001  # tokens to which p gives nothing
MAX_GREEDY_MISSES = 0.01  # at T = 0, positions below the maximum by more than the tie tolerance

SUM_COLUMNS = (
    "completion_tokens", "surprisal", "entropy", "varentropy", "num_zero_prob",
    "num_outside_truncation", "num_argmax",
)  # fmt: skip
"""Columns of paths.parquet that the test reads, each a sum over the path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCheck:
    """Outcome of the test on one (task, T) bucket."""

    verdict: Verdict
    reason: str
    """One sentence with the numbers; empty when the text may be used."""
    num_tokens: int
    """Positions pooled."""
    z: float | None
    """Σ(surprisal - entropy) / √Σ varentropy; None at T = 0, or where nothing varies."""
    excess: float | None
    """Σ(surprisal - entropy) / tokens, nats a token; None at T = 0."""


def check_path_source(paths: pd.DataFrame, temperature: float) -> SourceCheck:
    """Test the recorded paths of one bucket at one temperature, pooled.

    Args:
        paths: rows of paths.parquet with the columns of `SUM_COLUMNS`; sums of surprisal, entropy
            (nats) and varentropy (nats²) leave out positions where p(x_t) = 0.
        temperature: of the bucket; all rows are read at it.
    """
    sums = {name: float(paths[name].sum()) for name in SUM_COLUMNS}
    tokens = int(sums["completion_tokens"])
    if tokens < MIN_TOKENS:
        return _check("unknown", f"{tokens} tokens, {MIN_TOKENS} needed", tokens)
    if temperature == 0.0:
        return _greedy_check(tokens, tokens - sums["num_argmax"])
    scored = tokens - sums["num_zero_prob"]
    if sums["num_outside_truncation"] > 0:
        count = f"{sums['num_outside_truncation']:.0f} of {tokens} tokens"
        return _check("failed", f"the requests' own top-k or top-p rule out {count}", tokens)
    if sums["num_zero_prob"] > MAX_ZERO_SHARE * tokens:
        share = sums["num_zero_prob"] / tokens
        return _check("failed", f"the model gives nothing to {share:.2%} of the tokens", tokens)
    return _sampled_check(tokens, sums, scored)


def check_by_bucket(paths: pd.DataFrame, requests: pd.DataFrame) -> pd.DataFrame:
    """Test every (task, temperature) bucket of recorded paths.

    Args:
        paths: paths.parquet; rows whose source is not `recorded` are ignored.
        requests: request_id, task.

    Returns:
        One row a bucket: task, temperature, num_requests, num_tokens, verdict, reason, z, excess.
    """
    recorded = paths.loc[paths["source"] == "recorded"]
    joined = recorded.merge(requests[["request_id", "task"]], on="request_id", how="left")
    rows = []
    for key, bucket in joined.groupby(["task", "temperature"], sort=True):
        task, temperature = cast("tuple[str, float]", key)
        check = check_path_source(bucket, temperature)
        rows.append(
            {
                "task": task,
                "temperature": temperature,
                "num_requests": bucket["request_id"].nunique(),
                "num_tokens": check.num_tokens,
                "verdict": check.verdict,
                "reason": check.reason,
                "z": check.z,
                "excess": check.excess,
            }
        )
    columns = ["task", "temperature", "num_requests", "num_tokens", "verdict", "reason", "z"]
    return pd.DataFrame(rows, columns=[*columns, "excess"])


def _greedy_check(tokens: int, misses: float) -> SourceCheck:
    share = misses / tokens
    if share > MAX_GREEDY_MISSES:
        reason = f"{share:.2%} of the tokens are not the model's most likely one"
        return _check("failed", reason, tokens)
    return _check("recorded ok", "", tokens)


def _sampled_check(tokens: int, sums: dict[str, float], scored: float) -> SourceCheck:
    gap = sums["surprisal"] - sums["entropy"]
    if not math.isfinite(gap) or not math.isfinite(sums["varentropy"]):
        return _check("unknown", "the sums of surprisal are missing", tokens)
    excess = gap / scored
    z = gap / math.sqrt(sums["varentropy"]) if sums["varentropy"] > 0 else None
    # Without variance (top-k = 1) any difference at all is more than chance.
    significant = abs(z) > MAX_Z if z is not None else True
    if significant and abs(excess) > MAX_EXCESS:
        size = "without any variance" if z is None else f"z = {z:.1f}"
        reason = f"surprisal is off by {excess:+.3f} nats a token ({size})"
        return SourceCheck(verdict="failed", reason=reason, num_tokens=tokens, z=z, excess=excess)
    return SourceCheck(verdict="recorded ok", reason="", num_tokens=tokens, z=z, excess=excess)


def _check(verdict: Verdict, reason: str, tokens: int) -> SourceCheck:
    return SourceCheck(verdict=verdict, reason=reason, num_tokens=tokens, z=None, excess=None)
