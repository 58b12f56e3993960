"""One family of one-sided tests: how sure a failure has to be.

Source: Holm 1979, Scandinavian Journal of Statistics 6, 65-70; valid under any dependence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

FAMILY_LEVEL = 0.005
"""Chance that a run in which every limit holds fails any of its timing comparisons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A p-value against its level."""

    p: float
    level: float
    """Family level ÷ the tests left when its turn came."""
    rejected: bool


def holm(p_values: Sequence[float | None], level: float = FAMILY_LEVEL) -> list[Held | None]:
    """Return each test against its Holm level; None where there is no p-value.

    Args:
        p_values: one a comparison; a missing one is not part of the family.
        level: of the family.
    """
    tested = sorted((p, at) for at, p in enumerate(p_values) if p is not None)
    found: list[Held | None] = [None] * len(p_values)
    going = True
    for rank, (p, at) in enumerate(tested):
        own = level / (len(tested) - rank)
        going = going and p <= own
        found[at] = Held(p=p, level=own, rejected=going)
    return found


def ratio_p_value(
    interval: tuple[float | None, float | None, float | None],
    effective_groups: float | None,
    limit: float,
    coverage: float = 0.95,
) -> float | None:
    """Return the one-sided p-value of "the true ratio is at least `limit`"; small speaks against.

    The standard error of the log ratio is read off a Student-t jackknife interval, as
    `analysis.intervals.ratio_interval` makes it.

    Args:
        interval: low, estimate, high; two-sided.
        effective_groups: degrees of freedom are this less 1, at least 1.
        limit: above 0.
        coverage: of the interval.

    Returns:
        None where an end is missing, or nothing says how certain the ratio is.
    """
    low, estimate, high = interval
    if low is None or estimate is None or high is None or effective_groups is None:
        return None
    degrees = max(effective_groups - 1.0, 1.0)
    spread = math.log(high / low) / (2 * float(special.stdtrit(degrees, 0.5 + coverage / 2)))
    gap = math.log(estimate / limit)
    if spread <= 0:  # every group has the same ratio: no doubt is left
        return 1.0 if gap >= -1e-9 else 0.0
    return float(special.stdtr(degrees, gap / spread))


def share_p_value(share: float, num_trials: int, limit: float) -> float | None:
    """Return the one-sided p-value of "the true share is at most `limit`" (exact binomial).

    Args:
        share: observed share in [0, 1]; share × trials need not be whole.
        num_trials: independent trials; None is returned without any.
        limit: in [0, 1].
    """
    hits = share * num_trials
    if num_trials < 1:
        return None
    if hits <= 0 or limit >= 1:
        return 1.0
    return 0.0 if limit <= 0 else float(special.betainc(hits, num_trials - hits + 1.0, limit))
