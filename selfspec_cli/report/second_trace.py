"""Tested acceptance of a plan's cells on a second run's traffic, bucket by bucket.

Buckets that both runs hold are paired, and both rates are weighed by the first run's tested drafts,
so another mix of traffic is no difference. Requests of one group count once. A variance is at least
that of independent drafts, so that groups which all accept everything claim no certainty.

Source: cluster-robust variance of a stratified ratio (Cochran 1977, Sampling Techniques, chapters
5 and 6); degrees of freedom of a difference by Welch and Satterthwaite.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats

from selfspec_cli.analysis.intervals import MIN_EFFECTIVE_GROUPS
from selfspec_cli.plan.document import Rule
from selfspec_cli.report.figure_data import rows_of

LEVEL = 0.95  # of the interval of a rate
FALSE_ALARM = 0.01  # of one comparison of equal traffic, over all its rows together
MORE = 0.05  # acceptance points: a difference that a user would act on
MIN_GROUPS = 4  # of a bucket in either run; fewer show no spread

Outcome = Literal["above", "not_above", "no_verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Accepted ÷ tested drafts, weighed by the plan's traffic, with its interval of 95 %."""

    estimate: float
    low: float
    high: float
    num_groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRow:
    """One task at one temperature; both None: all together."""

    task: str | None
    temperature: float | None
    num_buckets: int
    """Of the plan."""
    num_paired: int
    """Those that both runs hold with enough groups."""
    outcome: Outcome
    reason: str = ""
    """Why there is no verdict; empty where there is one."""
    offline: Rate | None = None
    """Of the run; None where no bucket is paired, as the rest."""
    second: Rate | None = None
    difference: float | None = None
    """Offline less second."""
    low: float | None = None
    """Of the difference: each end is passed in FALSE_ALARM of comparisons, over all rows."""
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficComparison:
    """What a second trace says of the plan's cells."""

    source: str
    """Name of the second run's folder."""
    rows: tuple[TrafficRow, ...]
    """By task and temperature, the largest first; with several, all together comes last."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pair:
    """A bucket of the plan in both runs: accepted and tested drafts by group."""

    task: str
    temperature: float
    offline: pd.DataFrame
    second: pd.DataFrame

    @property
    def weight(self) -> float:
        return float(self.offline["tested"].sum())

    @property
    def enough(self) -> bool:
        return min(len(self.offline), len(self.second)) >= MIN_GROUPS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Estimate:
    rate: float
    variance: float
    effective: float
    num_groups: int

    @property
    def degrees(self) -> float:
        return max(self.effective - 1.0, 1.0)

    def interval(self) -> Rate:
        half = float(stats.t.ppf((1 + LEVEL) / 2, self.degrees)) * math.sqrt(self.variance)
        low, high = max(self.rate - half, 0.0), min(self.rate + half, 1.0)
        return Rate(estimate=self.rate, low=low, high=high, num_groups=self.num_groups)


def compare_traffic(
    cells: Sequence[tuple[Rule, pd.DataFrame]], second: pd.DataFrame
) -> tuple[TrafficRow, ...]:
    """Hold a plan's tested acceptance against the walk of a second run.

    Args:
        cells: each rule of the plan with the walk rows of its bucket at its own cell, the largest
            bucket first. Rules that are on are compared, or all where none is.
        second: walk rows of the second run, with the task of each request.
    """
    on = [cell for cell in cells if cell[0].enabled] or cells
    pairs = [_pair(rule, rows, second) for rule, rows in on if rule.draft.length is not None]
    parts: dict[tuple[str, float], list[_Pair]] = {}
    for pair in pairs:
        parts.setdefault((pair.task, pair.temperature), []).append(pair)
    several = len(parts) > 1
    alarm = FALSE_ALARM / (len(parts) + several) if parts else FALSE_ALARM
    rows = [_row(*key, own, alarm) for key, own in parts.items()]
    return (*rows, *([_row(None, None, pairs, alarm)] if several else []))


def _pair(rule: Rule, rows: pd.DataFrame, second: pd.DataFrame) -> _Pair:
    there = rows_of(rule, second)
    return _Pair(
        task=rule.task,
        temperature=rule.temperature_min,
        offline=_by_group(rows),
        second=_by_group(there),
    )


def _by_group(rows: pd.DataFrame) -> pd.DataFrame:
    sums = rows.groupby("group_id")[["accepted", "tested"]].sum()
    return sums.loc[sums["tested"] > 0].astype(float)


def _row(
    task: str | None, temperature: float | None, pairs: Sequence[_Pair], alarm: float
) -> TrafficRow:
    paired = [pair for pair in pairs if pair.enough]
    bare = TrafficRow(
        task=task,
        temperature=temperature,
        num_buckets=len(pairs),
        num_paired=len(paired),
        outcome="no_verdict",
        reason="" if paired else _why_unpaired(pairs),
    )
    if not paired:
        return bare
    weights = [pair.weight for pair in paired]
    one = _estimate([pair.offline for pair in paired], weights)
    two = _estimate([pair.second for pair in paired], weights)
    difference = one.rate - two.rate
    half = _half_width(one, two, alarm)
    outcome, reason = _judged(one, two, difference, half)
    return replace(
        bare,
        offline=one.interval(),
        second=two.interval(),
        difference=difference,
        low=difference - half,
        high=difference + half,
        outcome=outcome,
        reason=reason,
    )


def _why_unpaired(pairs: Iterable[_Pair]) -> str:
    most = max((len(pair.second) for pair in pairs), default=0)
    if most == 0:
        return "the second run tested no draft in these buckets at the plan's cells"
    return f"no bucket has {MIN_GROUPS} requests in both runs"


def _estimate(groups: Sequence[pd.DataFrame], weights: Sequence[float]) -> _Estimate:
    """Weighed rate over buckets; what one group adds in several buckets varies together."""
    rate, floor = 0.0, 0.0
    residuals, shares = [], []
    for table, weight in zip(groups, np.asarray(weights) / np.sum(weights), strict=True):
        hit, tried, n = float(table["accepted"].sum()), float(table["tested"].sum()), len(table)
        own = hit / tried
        left = (table["accepted"] - own * table["tested"]) / tried
        residuals.append(weight * math.sqrt(n / (n - 1)) * left)
        shares.append(weight * table["tested"] / tried)
        smooth = (hit + 0.5) / (tried + 1.0)
        rate += float(weight) * own
        floor += float(weight) ** 2 * smooth * (1 - smooth) / tried
    share = pd.concat(shares).groupby(level=0).sum()
    spread = float((pd.concat(residuals).groupby(level=0).sum() ** 2).sum())
    return _Estimate(
        rate=rate,
        variance=max(spread, floor),
        effective=float(1.0 / (share**2).sum()),
        num_groups=len(share),
    )


def _half_width(one: _Estimate, two: _Estimate, alarm: float) -> float:
    total = one.variance + two.variance
    degrees = total**2 / (one.variance**2 / one.degrees + two.variance**2 / two.degrees)
    return float(stats.t.ppf(1 - alarm, degrees)) * math.sqrt(total)


def _judged(one: _Estimate, two: _Estimate, difference: float, half: float) -> tuple[Outcome, str]:
    effective = min(one.effective, two.effective)
    if effective < MIN_EFFECTIVE_GROUPS:
        least = f"{effective:.1f} requests' worth of evidence, {MIN_EFFECTIVE_GROUPS:.0f} needed"
        return "no_verdict", least
    if difference - half > 0 and difference >= MORE:
        return "above", ""
    if difference + half < MORE:
        return "not_above", ""
    return "no_verdict", "the interval of the difference is too wide"
