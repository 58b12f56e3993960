"""Tokens a second and speedups, in a bucket or over buckets by their weight in traffic."""

from collections.abc import Mapping

import pandas as pd

from selfspec_cli.analysis.intervals import RatioInterval, ratio_interval
from selfspec_cli.buckets import BucketKey

Traffic = Mapping[BucketKey, float]


def tokens_per_second(rows: pd.DataFrame, traffic: Traffic | None) -> float | None:
    """Return Σ tokens ÷ Σ decode seconds, each bucket at its weight; None without either.

    Args:
        rows: of `paired.averaged` with their bucket, one arm.
        traffic: tokens of each bucket; None takes the rows as they are.
    """
    scale = _weights(rows, traffic)
    seconds = float((rows["seconds"] * scale).sum())
    tokens = float((rows["committed"] * scale).sum())
    return tokens / seconds if seconds > 0 and tokens > 0 else None


def speedup(paired: pd.DataFrame, traffic: Traffic | None) -> RatioInterval:
    """Return plain ÷ the arm's decode time over the requests that both decoded.

    The jackknife holds the weights of buckets fixed, which widens the interval a little: a group
    left out takes its share of the bucket along.

    Args:
        paired: of `paired.pair`, with their bucket, one arm at one batch size.
        traffic: tokens of each bucket; None takes the rows as they are.
    """
    both = paired.loc[paired["committed"] > 0]
    scale = _weights(both, traffic)
    # Without a group a request stands for itself; whole batches have neither, so no interval.
    groups = both["group_id"].where(both["group_id"] != "", both["request_id"])
    return ratio_interval(both["plain_seconds"] * scale, both["seconds"] * scale, groups)


def _weights(rows: pd.DataFrame, traffic: Traffic | None) -> pd.Series:
    """What each row counts, so that a bucket's rows count as many tokens as it has in traffic."""
    if traffic is None or rows.empty:
        return pd.Series(1.0, index=rows.index)
    measured = rows.groupby("bucket")["committed"].sum()
    factor = {
        bucket: traffic.get(bucket, 0.0) / tokens if tokens > 0 else 0.0
        for bucket, tokens in measured.items()
        if isinstance(bucket, BucketKey)
    }
    return rows["bucket"].map(factor).astype("float64")
