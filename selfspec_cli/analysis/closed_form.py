"""Textbook formulas for independent, equally likely acceptance: cross-checks, never the planner.

Real requests are mixtures and rounds start just after rejections, so these formulas are off in
either direction depending on the α they are fed; the walk is not. The gap measures heterogeneity.

Source: Leviathan et al. 2023, arXiv 2211.17192, equation 1 and theorem 3.8; the general cost
(k c + v + o) is this project's.
"""

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

Floats = npt.NDArray[np.float64]


def tokens_per_round(acceptance: npt.ArrayLike, draft_length: int) -> Floats:
    """Return expected tokens a round, (1 - α^(k+1)) / (1 - α), as a sum of powers: exact at 1.

    Args:
        acceptance: α, probability that one tested draft is accepted, in [0, 1]; any shape.
        draft_length: k >= 0 (tokens).

    Raises:
        ValueError: α outside [0, 1] or k < 0.
    """
    alpha = np.asarray(acceptance, dtype=np.float64)
    if np.any((alpha < 0.0) | (alpha > 1.0)) or draft_length < 0:
        raise ValueError(f"acceptance must be in [0, 1] and k >= 0, got {alpha}, {draft_length}")
    return np.sum(alpha[..., None] ** np.arange(draft_length + 1), axis=-1)


def expected_drafted_rate(acceptance: npt.ArrayLike, draft_length: int) -> Floats:
    """Return accepted ÷ drafted for constant α: it falls as k grows though the drafter is the same.

    Raises:
        ValueError: α outside [0, 1] or k < 1.
    """
    if draft_length < 1:
        raise ValueError(f"nothing is drafted at k = {draft_length}")
    return (tokens_per_round(acceptance, draft_length) - 1.0) / draft_length


def closed_form_speedup(
    acceptance: npt.ArrayLike,
    draft_length: int,
    *,
    draft_cost_ratio: float,
    verify_cost_ratio: float,
    overhead_ratio: float,
) -> Floats:
    """Return tokens a round ÷ (k c + v + o), costs in plain steps.

    Raises:
        ValueError: α outside [0, 1], k < 0 or a cost of a round that is not positive.
    """
    cost = draft_length * draft_cost_ratio + verify_cost_ratio + overhead_ratio
    if cost <= 0.0:
        raise ValueError(f"a round cannot cost {cost} plain steps")
    return tokens_per_round(acceptance, draft_length) / cost


def textbook_speedup(
    acceptance: npt.ArrayLike, draft_length: int, draft_cost_ratio: float
) -> Floats:
    """Return tokens a round ÷ (k c + 1): verification as cheap as one step, nothing else to pay."""
    return closed_form_speedup(
        acceptance,
        draft_length,
        draft_cost_ratio=draft_cost_ratio,
        verify_cost_ratio=1.0,
        overhead_ratio=0.0,
    )


def break_even_acceptance(
    draft_length: int, draft_cost_ratio: float, verify_cost_ratio: float, overhead_ratio: float
) -> float | None:
    """Return the α at which the closed-form speedup is 1.

    Returns:
        α in [0, 1], or None where no α gives exactly 1: the round costs more than k + 1 steps, so
        speculation never pays, or less than one, so it always does.
    """
    cost = draft_length * draft_cost_ratio + verify_cost_ratio + overhead_ratio
    if not 1.0 <= cost <= draft_length + 1.0:
        return None

    def gap(alpha: float) -> float:
        return float(tokens_per_round(alpha, draft_length)) - cost

    return float(brentq(gap, 0.0, 1.0, xtol=1e-12))
