"""Requests that got slower than their own plain decoding, and why, as far as numbers show it."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from selfspec_cli.analysis.tail import SLOW_FACTOR
from selfspec_cli.bench.paired import bucket_of_row
from selfspec_cli.buckets import BucketKey

NOISE = "timing noise"
SHORT = "short output"
PREFILL = "prefill share"
FEW_ACCEPTED = "few accepted"
NO_GAIN = "no gain in its bucket"
UNEXPLAINED = "not explained"
_MAIN_SHARE = 0.5  # of the lost time that a cause must account for


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRequest:
    """One request that took longer than `SLOW_FACTOR` times its own time in the baseline."""

    bucket: BucketKey
    request_id: str
    ratio: float
    """Its request time ÷ the baseline's for as many tokens, prefill included, above 1.05."""
    reason: str
    evidence: str
    """The numbers behind the reason, one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Usual:
    """What is usual in the request's bucket."""

    acceptance: float | None
    tokens_per_round: float | None
    time_ratio: float | None
    """Σ request times ÷ Σ baseline request times; None for one request, which is its bucket."""


def slow_requests(paired: pd.DataFrame) -> tuple[SlowRequest, ...]:
    """Return the slow requests of one arm in one bucket and batch size, slowest first.

    Args:
        paired: of `paired.pair`, one bucket, with known request times above 0.
    """
    usual = _usual(paired)
    slow = paired.loc[paired["request_seconds"] > SLOW_FACTOR * paired["plain_request"]]
    found = [_slow(row, usual) for row in slow.to_dict("records")]
    return tuple(sorted(found, key=lambda one: (-one.ratio, one.request_id)))


def _usual(rows: pd.DataFrame) -> _Usual:
    return _Usual(
        acceptance=_over(rows["accepted"].sum(), rows["tested"].sum()),
        tokens_per_round=_over(
            rows.loc[rows["rounds"] > 0, "committed"].sum(), rows["rounds"].sum()
        ),
        time_ratio=_over(rows["request_seconds"].sum(), rows["plain_request"].sum())
        if len(rows) > 1
        else None,
    )


def _slow(row: Mapping[Hashable, Any], usual: _Usual) -> SlowRequest:
    reason, evidence = _why(row, usual)
    return SlowRequest(
        bucket=bucket_of_row(row),
        request_id=str(row["request_id"]),
        ratio=float(row["request_seconds"] / row["plain_request"]),
        reason=reason,
        evidence=evidence,
    )


def _why(row: Mapping[Hashable, Any], usual: _Usual) -> tuple[str, str]:
    """The first reason that holds; noise comes first, since it leaves nothing to explain."""
    for judge in (_same_work, _noise, _short, _prefill, _few_accepted, _no_gain):
        if found := judge(row, usual):
            return found
    return UNEXPLAINED, "Slower beyond its repeats, and none of the known causes accounts for it."


def _same_work(row: Mapping[Hashable, Any], _usual: _Usual) -> tuple[str, str] | None:
    """A plan whose rule is off decodes plainly, so nothing but the clock can differ."""
    if row["arm"] != "plan" or not pd.isna(row["draft_length"]):
        return None
    return NOISE, "The plan decodes it plainly: the same work, timed twice."


def _noise(row: Mapping[Hashable, Any], _usual: _Usual) -> tuple[str, str] | None:
    """Within the spread of repeats: its fastest is not slow against the baseline's slowest."""
    if row["repeats"] < 2 or row["request_low"] > SLOW_FACTOR * row["plain_high"]:
        return None
    return NOISE, (
        f"Repeats took {row['request_low']:.3g} to {row['request_high']:.3g} s, the baseline's "
        f"{row['plain_low']:.3g} to {row['plain_high']:.3g} s."
    )


def _short(row: Mapping[Hashable, Any], _usual: _Usual) -> tuple[str, str] | None:
    tokens, k = row["committed"], row["draft_length"]
    if pd.isna(k) or not tokens < k:
        return None
    return SHORT, f"{tokens:g} tokens after the first, fewer than the {k:g} of one draft."


def _prefill(row: Mapping[Hashable, Any], _usual: _Usual) -> tuple[str, str] | None:
    more = row["prefill_seconds"] - row["plain_prefill"]
    lost = row["request_seconds"] - row["plain_request"]
    if not more >= _MAIN_SHARE * lost:
        return None
    return PREFILL, f"The first token came {more:.3g} s later, of {lost:.3g} s lost."


def _few_accepted(row: Mapping[Hashable, Any], usual: _Usual) -> tuple[str, str] | None:
    """Its rounds beyond what the bucket needs for as many tokens account for the time."""
    own = _over(row["accepted"], row["tested"])
    if own is None or usual.acceptance is None or not own < usual.acceptance:
        return None
    if usual.tokens_per_round is None or not row["rounds"] > 0:
        return None
    extra = row["rounds"] - row["committed"] / usual.tokens_per_round
    lost = row["request_seconds"] - row["plain_request"]
    if not extra * row["seconds"] / row["rounds"] >= _MAIN_SHARE * lost:
        return None
    return FEW_ACCEPTED, (
        f"{100 * own:.0f} % of its tested drafts were accepted, "
        f"{100 * usual.acceptance:.0f} % in its bucket."
    )


def _no_gain(_row: Mapping[Hashable, Any], usual: _Usual) -> tuple[str, str] | None:
    if usual.time_ratio is None or not usual.time_ratio > SLOW_FACTOR:
        return None
    return NO_GAIN, f"Its whole bucket takes {usual.time_ratio:.2f} times the baseline's time."


def _over(above: float, below: float) -> float | None:
    return float(above / below) if below > 0 else None
