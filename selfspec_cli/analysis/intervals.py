"""Ratio of sums over requests, with a delete-one-group jackknife interval.

Groups (a conversation, a repeated prompt) are the unit: rounds and temperatures of one request are
not independent. The percentile bootstrap is not used: with 20 groups it covers 0.80 to 0.90 where
it says 0.95. Student's t has n_eff - 1 degrees of freedom, which is n - 1 for equal groups: a few
long groups carry the sum, and their number is what the standard error rests on.

Source: delete-one jackknife of a ratio, Efron & Tibshirani 1993, chapter 11; degrees of freedom
from an effective number of clusters, Carter, Schnepel & Steigerwald 2017 (Review of Economics and
Statistics 99, 698-709).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import special

Floats = npt.NDArray[np.float64]

MIN_EFFECTIVE_GROUPS = 8.0  # below it no verdict rests on an interval


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioInterval:
    """Σ numerators ÷ Σ denominators, with its interval."""

    estimate: float | None
    """None where either sum is 0."""
    low: float | None
    """None with fewer than 2 groups."""
    high: float | None
    log_sd: float | None
    """Standard error of log(estimate), cost uncertainty included."""
    num_groups: int
    """Groups that contribute, that is with a numerator above 0."""
    effective_groups: float | None
    """(Σ a)² / Σ a² over the numerators: how many equal groups these are worth."""

    @property
    def supports_verdict(self) -> bool:
        """Whether there are enough effective groups for a rule to rest on this."""
        return (self.effective_groups or 0.0) >= MIN_EFFECTIVE_GROUPS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RatioTable:
    """Many ratios over the same groups at once; NaN where undefined. Arrays have shape [...]."""

    estimate: Floats
    low: Floats
    high: Floats
    num_groups: int
    effective_groups: Floats


def jackknife_ratios(
    numerators: npt.ArrayLike,
    denominators: npt.ArrayLike,
    *,
    extra_log_sd: npt.ArrayLike = 0.0,
    level: float = 0.95,
) -> RatioTable:
    """Return Σ_g a ÷ Σ_g b for every column, with Student-t jackknife intervals of the log ratio.

    Args:
        numerators: a, float64 [G, ...], one row a group, not negative (s).
        denominators: b, broadcasts with a (s).
        extra_log_sd: standard error of log costs, [...], added in quadrature.
        level: coverage aimed at.

    Raises:
        ValueError: a negative or non-finite value.
    """
    a, b = np.broadcast_arrays(_times(numerators), _times(denominators))
    # A group without a decode step says nothing about the ratio and must not add a degree of
    # freedom. Which groups these are does not depend on the column.
    used = (a > 0).any(axis=tuple(range(1, a.ndim)))
    a, b = a[used], b[used]
    n = len(a)
    with np.errstate(divide="ignore", invalid="ignore"):
        estimate = _defined(a.sum(axis=0) / b.sum(axis=0))
        effective = a.sum(axis=0) ** 2 / (a**2).sum(axis=0)
    log_sd = np.hypot(_jackknife_log_sd(a, b), extra_log_sd)
    half = _quantile(effective, level) * log_sd
    return RatioTable(
        estimate=estimate,
        low=estimate * np.exp(-half),
        high=estimate * np.exp(half),
        num_groups=n,
        effective_groups=effective,
    )


def ratio_interval(
    numerators: npt.ArrayLike,
    denominators: npt.ArrayLike,
    groups: npt.ArrayLike,
    *,
    extra_log_sd: float = 0.0,
    level: float = 0.95,
) -> RatioInterval:
    """Return one ratio of sums; rows of one group are added up first.

    Args:
        numerators: a of each row (s), for a speedup the plain seconds.
        denominators: b of each row (s), for a speedup the speculative seconds.
        groups: group of each row.
        extra_log_sd: standard error of log costs, added in quadrature.
        level: coverage aimed at.

    Raises:
        ValueError: a negative or non-finite value.
    """
    # Checked before summing: a group's sum would skip a missing time.
    frame = pd.DataFrame({"a": _times(numerators), "b": _times(denominators), "group": groups})
    sums = frame.groupby("group", sort=True)[["a", "b"]].sum()
    a, b = sums["a"].to_numpy(dtype=float), sums["b"].to_numpy(dtype=float)
    table = jackknife_ratios(a, b, extra_log_sd=extra_log_sd, level=level)
    low, high = _number(table.low), _number(table.high)
    log_sd = None
    if low is not None and high is not None:
        log_sd = float(np.log(high / low) / (2 * _quantile(table.effective_groups, level)))
    return RatioInterval(
        estimate=_number(table.estimate),
        low=low,
        high=high,
        log_sd=log_sd,
        num_groups=table.num_groups,
        effective_groups=_number(table.effective_groups),
    )


def _quantile(effective_groups: Floats, level: float) -> Floats:
    """Student-t quantile of a two-sided interval, in the shape of `effective_groups`."""
    degrees = np.fmax(effective_groups - 1.0, 1.0)  # 1 also where it is missing
    return np.asarray(special.stdtrit(degrees, 0.5 + level / 2))


def _jackknife_log_sd(a: Floats, b: Floats) -> Floats:
    """Standard error of log(Σa/Σb), [...]; NaN below 2 groups."""
    n = len(a)
    if n < 2:
        return np.full(a.shape[1:], np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        left_out = np.log((a.sum(axis=0) - a) / (b.sum(axis=0) - b))  # [G, ...]
        return np.sqrt((n - 1) / n * ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0))


def _times(values: npt.ArrayLike) -> Floats:
    times = np.asarray(values, dtype=np.float64)
    if not (np.isfinite(times).all() and (times >= 0).all()):
        raise ValueError("times must be finite and not negative")
    return times


def _defined(values: Floats) -> Floats:
    return np.where(np.isfinite(values) & (values > 0), values, np.nan)


def _number(value: Floats) -> float | None:
    return float(value) if np.isfinite(value) else None
