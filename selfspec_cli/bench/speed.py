"""Tokens a second and speedups, in a bucket or over buckets by their weight in traffic."""

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from selfspec_cli.analysis.intervals import RatioInterval, ratio_interval
from selfspec_cli.buckets import BucketKey

Traffic = Mapping[BucketKey, float]
MIN_REPEATS = (
    3  # of whole batches: an interval of two is 12.7 standard errors wide and says nothing
)


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


def block_speedup(paired: pd.DataFrame, traffic: Traffic | None) -> RatioInterval:
    """Return plain ÷ the arm's decode time of whole batches, with the repeat as the unit.

    A repeat decodes the same requests again, so the interval is that of the timing (and above
    temperature 0 of the coins), not of the traffic. It is missing below `MIN_REPEATS`.

    Args:
        paired: of `paired.pair` with repeats apart, with their bucket, one arm at one batch size.
        traffic: tokens of each bucket; None takes the rows as they are.
    """
    both = paired.loc[paired["committed"] > 0]
    buckets = both["bucket"].nunique()
    everywhere = both.groupby("repeat")["bucket"].transform("nunique") == buckets
    both = both.loc[everywhere]  # a bench that was stopped has repeats that some buckets lack
    scale = _weights(both, traffic)
    found = ratio_interval(
        both["plain_seconds"] * scale, both["seconds"] * scale, both["repeat"].astype(str)
    )
    if both["repeat"].nunique() >= MIN_REPEATS:
        return found
    return replace(found, low=None, high=None, log_sd=None)


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
