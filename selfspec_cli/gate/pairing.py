"""Paired statistics of two runs on the same requests; groups of requests are the unit.

Each result carries what a one-sided test needs. Where seconds come from measured costs, the costs'
own errors of both runs are added: they do not shrink with more requests.

Source: degrees of freedom of a sum of variances, Welch 1947 (Biometrika 34, 28-35).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import special

from selfspec_cli.analysis.intervals import MIN_EFFECTIVE_GROUPS, ratio_interval
from selfspec_cli.analysis.latency import min_values_for

Floats = npt.NDArray[np.float64]
LEVEL = 0.95  # of every interval here
NEGLIGIBLE = 1e-4
"""Differences up to this are none, however certain: two engines' rounding moves a coin as far."""
_DRAWS = 2000  # resamplings of a quantile; the smallest p-value is then 0.0005
_TAIL = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class CostError:
    """What timing the costs adds to the error of a log ratio."""

    log_sd: float
    """NaN: not known, then there is no interval."""
    degrees: float

    def at_most(self, bound: float) -> "CostError":
        """Return the error, no larger than `bound`; one that is not known stays so."""
        return CostError(log_sd=float(np.minimum(self.log_sd, bound)), degrees=self.degrees)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """A paired number: a ratio new ÷ base, or a difference new - base."""

    kind: str
    """`ratio` (1 is no change) or `difference` (0 is)."""
    estimate: float
    base: float
    """The base run's own value, over the paired requests."""
    new: float
    low: float | None
    """95 % interval; None where it cannot be known."""
    high: float | None
    sd: float | None
    """Standard error, of the logarithm where a ratio."""
    degrees: float
    num_groups: int
    effective_groups: float

    @property
    def neutral(self) -> float:
        """The value that means no change."""
        return 1.0 if self.kind == "ratio" else 0.0

    @property
    def supports_verdict(self) -> bool:
        """Whether there is an interval on enough effective groups."""
        return self.low is not None and self.effective_groups >= MIN_EFFECTIVE_GROUPS

    def p_below(self, limit: float) -> float:
        """Return the one-sided p-value against "the true value is at least `limit`".

        1 where there is no interval: nothing can then be rejected. A ratio's limit at or below 0
        cannot be undercut.
        """
        return self._tail(limit, 1.0)

    def p_above(self, limit: float) -> float:
        """Return the one-sided p-value against "the true value is at most `limit`"."""
        return self._tail(limit, -1.0)

    def _tail(self, limit: float, sign: float) -> float:
        if self.sd is None or (self.kind == "ratio" and limit <= 0):
            return 1.0
        gap = np.log(self.estimate / limit) if self.kind == "ratio" else self.estimate - limit
        if abs(gap) < 1e-12:
            return 0.5 if self.sd > 0 else 1.0
        if self.sd == 0:
            return 0.0 if sign * gap < 0 else 1.0
        return float(special.stdtr(self.degrees, sign * gap / self.sd))


def paired_speedup(
    pairs: pd.DataFrame, costs: Sequence[CostError] = (), weight: npt.ArrayLike = 1.0
) -> Paired | None:
    """Return the ratio of the speedups of two runs over the same requests.

    The base run's seconds are put on the new run's clock, path by path, with the plain seconds of
    both; so a machine that became faster as a whole changes nothing, and each group enters both
    sums. Paths without a decode step say nothing and are left out.

    Args:
        pairs: one row a path: group_id, base_seconds, new_seconds, base_ar, new_ar (s).
        costs: errors of the costs of both runs; empty where they share one measurement or where
            seconds were decoded.
        weight: of each row.

    Returns:
        new speedup ÷ base speedup; None where nothing is decoded.
    """
    rows = pairs.assign(weight=np.broadcast_to(np.asarray(weight, dtype=float), len(pairs)))
    columns = ["base_seconds", "new_seconds", "base_ar", "new_ar"]
    rows = rows.loc[(rows[columns] > 0).all(axis=1) & (rows["weight"] > 0)]
    if rows.empty:
        return None
    clock = rows["weight"] * rows["new_ar"] / rows["base_ar"]
    old, new = clock * rows["base_seconds"], rows["weight"] * rows["new_seconds"]
    plain = float((rows["weight"] * rows["new_ar"]).sum())
    found = ratio_interval(old, new, rows["group_id"].to_numpy(), level=LEVEL)
    groups = found.effective_groups or 0.0
    return _ratio(
        (float(old.sum() / new.sum()), plain / float(old.sum()), plain / float(new.sum())),
        [CostError(log_sd=_known(found.log_sd), degrees=max(groups - 1.0, 1.0)), *costs],
        (found.num_groups, groups),
    )


def paired_rate(
    pairs: pd.DataFrame, counts: tuple[str, str], weight: npt.ArrayLike = 1.0
) -> Paired | None:
    """Return the difference of two runs' rates, Σ hits ÷ Σ trials, jackknifed over groups.

    Args:
        pairs: one row a path: group_id, and base_ and new_ columns of the two counts.
        counts: names of hits and trials.
        weight: of each row.

    Returns:
        new rate - base rate; None where either run has no trial.
    """
    hits, trials = counts
    names = [f"base_{hits}", f"base_{trials}", f"new_{hits}", f"new_{trials}"]
    rows = pairs[names].mul(np.broadcast_to(np.asarray(weight, float), len(pairs)), axis=0)
    sums = rows.groupby(pairs["group_id"].to_numpy(), sort=True).sum()
    sums = sums.loc[(sums[[names[1], names[3]]] > 0).any(axis=1)]
    values = sums.to_numpy(dtype=float)  # [G, 4]
    whole = values.sum(axis=0)
    if not (whole[1] > 0 and whole[3] > 0):
        return None
    n = len(values)
    effective = float(whole[1] ** 2 / (values[:, 1] ** 2).sum())
    degrees = max(effective - 1.0, 1.0)
    estimate = float(_rates(whole)[1] - _rates(whole)[0])
    sd = _jackknife_sd(whole - values) if n >= 2 else None
    half = None if sd is None else float(special.stdtrit(degrees, 0.5 + LEVEL / 2)) * sd
    return Paired(
        kind="difference",
        estimate=estimate,
        base=float(_rates(whole)[0]),
        new=float(_rates(whole)[1]),
        low=None if half is None else estimate - half,
        high=None if half is None else estimate + half,
        sd=sd,
        degrees=degrees,
        num_groups=n,
        effective_groups=effective,
    )


def paired_p99(pairs: pd.DataFrame, seed: int = 0) -> Paired | None:
    """Return the ratio of the P99 of request time, new ÷ base, the base on the new run's clock.

    Its error is that of a bootstrap of whole groups: a quantile has no jackknife.

    Args:
        pairs: one row a path: group_id, base_request, new_request, base_plain, new_plain (s,
            prefill included).
        seed: of the resampling.

    Returns:
        None below 300 paths, the documented minimum of a P99, or where a time is missing.
    """
    columns = ["base_request", "new_request", "base_plain", "new_plain"]
    if len(pairs) < min_values_for(_TAIL) or not (pairs[columns] > 0).all(axis=None):
        return None
    new = pairs["new_request"].to_numpy(dtype=float)
    clock = (pairs["new_plain"] / pairs["base_plain"]).to_numpy(dtype=float)
    old = pairs["base_request"].to_numpy(dtype=float) * clock
    numbers = pairs.groupby("group_id", sort=True).ngroup().to_numpy()
    groups = int(numbers.max()) + 1
    rng = np.random.default_rng(seed)
    members = [np.flatnonzero(numbers == number) for number in range(groups)]
    draws = np.empty(_DRAWS)
    for draw in range(_DRAWS):
        chosen = np.concatenate([members[at] for at in rng.integers(groups, size=groups)])
        draws[draw] = np.log(np.quantile(new[chosen], _TAIL) / np.quantile(old[chosen], _TAIL))
    was, now = float(np.quantile(old, _TAIL)), float(np.quantile(new, _TAIL))
    spread = CostError(log_sd=float(draws.std(ddof=1)), degrees=max(0.01 * groups, 1.0))
    return _ratio((now / was, was, now), [spread], (groups, float(groups)))


def _ratio(
    values: tuple[float, float, float], errors: Sequence[CostError], groups: tuple[int, float]
) -> Paired:
    """Put a ratio (estimate, base, new) together with its sources of error."""
    estimate, base, new = values
    sds = np.array([error.log_sd for error in errors])
    sd = float(np.sqrt((sds**2).sum()))
    known = bool(np.isfinite(sd))
    degrees = _welch(errors) if known and sd > 0 else errors[0].degrees
    half = float(special.stdtrit(degrees, 0.5 + LEVEL / 2)) * sd if known else None
    return Paired(
        kind="ratio",
        estimate=estimate,
        base=base,
        new=new,
        low=None if half is None else estimate * float(np.exp(-half)),
        high=None if half is None else estimate * float(np.exp(half)),
        sd=sd if known else None,
        degrees=degrees,
        num_groups=groups[0],
        effective_groups=groups[1],
    )


def _welch(errors: Sequence[CostError]) -> float:
    variances = np.array([error.log_sd**2 for error in errors])
    degrees = np.array([error.degrees for error in errors])
    return float(variances.sum() ** 2 / (variances**2 / degrees).sum())


def _rates(sums: Floats) -> tuple[Floats, Floats]:
    """Rates of base and new from sums [..., 4]."""
    return sums[..., 0] / sums[..., 1], sums[..., 2] / sums[..., 3]


def _jackknife_sd(left_out: Floats) -> float | None:
    """Standard error of the difference from sums with one group left out, [G, 4]."""
    if not (left_out[:, [1, 3]] > 0).all():
        return None
    before, after = _rates(left_out)
    gaps = after - before
    n = len(gaps)
    return float(np.sqrt((n - 1) / n * ((gaps - gaps.mean()) ** 2).sum()))


def _known(value: float | None) -> float:
    return float("nan") if value is None else value
