"""Quantiles and time per output token, each with the number of values it rests on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_MIN_VALUES = ((0.90, 20), (0.95, 60), (0.99, 300))
"""A quantile up to the first number needs at least the second: a tail needs values in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """A quantile that may be missing because too few values were seen."""

    level: float
    value: float | None
    """Linear interpolation between order statistics (type 7); None below `min_values`."""
    num_values: int
    min_values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePerToken:
    """Time per output token over many requests, as one ratio of sums."""

    seconds: float | None
    """Σ(end - first token) ÷ Σ(n - 1), seconds a token; None if no request has two tokens."""
    num_requests: int
    """Requests with at least two output tokens, the only ones used."""
    num_left_out: int


def linear_quantile(values: Sequence[float], level: float) -> float:
    """Return the quantile by linear interpolation, position (n - 1) * level of the sorted values.

    Raises:
        ValueError: no values, a value that is not finite, or a level outside [0, 1].
    """
    if len(values) == 0 or not np.isfinite(values).all() or not 0.0 <= level <= 1.0:
        raise ValueError(f"no quantile {level} of {len(values)} values, all must be finite")
    return float(np.quantile(np.asarray(values, dtype=np.float64), level, method="linear"))


def min_values_for(level: float) -> int:
    """Return how many values a quantile needs; low tails need as many as high ones.

    Below P75 (and above P25) any value will do; the median of one value is that value.

    Raises:
        ValueError: a level outside [0.01, 0.99]: no documented number of values supports it.
    """
    tail = max(level, 1.0 - level)
    if tail <= 0.75:
        return 1
    for limit, needed in _MIN_VALUES:
        if tail <= limit + 1e-12:
            return needed
    raise ValueError(f"quantiles beyond 0.99 are not reported, got {level}")


def reported_quantile(values: Sequence[float], level: float) -> Quantile:
    """Return a quantile for people and rules: missing where n is below the documented minimum.

    Raises:
        ValueError: a value that is not finite, or a level outside [0.01, 0.99].
    """
    needed = min_values_for(level)
    enough = len(values) >= needed
    return Quantile(
        level=level,
        value=linear_quantile(values, level) if enough else None,
        num_values=len(values),
        min_values=needed,
    )


def time_per_output_token(seconds: float, num_tokens: int) -> float | None:
    """Return (end - first token) ÷ (n - 1) in seconds; None for n <= 1, which has no gap.

    Args:
        seconds: from the first output token to the last.
        num_tokens: output tokens n.
    """
    return seconds / (num_tokens - 1) if num_tokens > 1 else None


def pooled_time_per_output_token(
    seconds: Sequence[float], num_tokens: Sequence[int]
) -> TimePerToken:
    """Return the ratio of sums over requests with at least two tokens, and how many those are."""
    pairs = [(s, n) for s, n in zip(seconds, num_tokens, strict=True) if n > 1]
    gaps = sum(n - 1 for _, n in pairs)
    return TimePerToken(
        seconds=sum(s for s, _ in pairs) / gaps if gaps else None,
        num_requests=len(pairs),
        num_left_out=len(num_tokens) - len(pairs),
    )
