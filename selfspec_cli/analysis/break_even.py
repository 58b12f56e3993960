"""How much acceptance a layer needs to pay, by the closed form: information, never the decision.

The plan rests on the walk. These numbers tell a person what it would take where the answer is no,
so they use the measured cost ratios of a layer and one acceptance for all its tokens.

Source: Leviathan et al. 2023, arXiv 2211.17192, theorem 3.8, with the general cost k c + v + o.
"""

import math
from collections.abc import Mapping

from selfspec_cli.analysis import closed_form


def speedup_at(
    acceptance: float,
    draft_cost_ratio: float,
    verify_cost_ratios: Mapping[int, float],
    overhead_ratio: float,
) -> tuple[int, float]:
    """Return the draft length with the best closed-form speedup, and that speedup.

    Ties go to the smaller draft length.

    Args:
        acceptance: α, tested acceptance, in [0, 1].
        draft_cost_ratio: c, one draft step ÷ one plain step.
        verify_cost_ratios: v by draft length k >= 1, one verification ÷ one plain step.
        overhead_ratio: o, the rest of a round ÷ one plain step.

    Returns:
        (k, speedup).

    Raises:
        ValueError: α outside [0, 1], no draft length, or costs that are missing or not positive.
    """
    _check_acceptance(acceptance)
    if not verify_cost_ratios:
        raise ValueError("no draft length to choose from")
    best = (0, -math.inf)
    for k in sorted(verify_cost_ratios):
        cost = k * draft_cost_ratio + verify_cost_ratios[k] + overhead_ratio
        if not (math.isfinite(cost) and cost > 0.0):
            raise ValueError(f"a round of k = {k} cannot cost {cost} plain steps")
        speedup = float(closed_form.tokens_per_round(acceptance, k)) / cost
        if speedup > best[1]:
            best = (k, speedup)
    return best


def break_even_acceptance(
    draft_cost_ratio: float, verify_cost_ratios: Mapping[int, float], overhead_ratio: float
) -> tuple[float, int] | None:
    """Return the smallest acceptance at which some draft length breaks even, and that length.

    Args:
        draft_cost_ratio: c, one draft step ÷ one plain step.
        verify_cost_ratios: v by draft length k >= 1, one verification ÷ one plain step.
        overhead_ratio: o, the rest of a round ÷ one plain step.

    Returns:
        (α, k), ties to the smaller k; α is 0 where a round costs no more than a plain step. None
        where even α = 1 does not pay at any k, or no cost is known.
    """
    needed = [
        (alpha, k)
        for k, verify in sorted(verify_cost_ratios.items())
        if (alpha := _needed(k, draft_cost_ratio, verify, overhead_ratio)) is not None
    ]
    return min(needed, default=None)


def textbook_speedup(
    acceptance: float, draft_length: int, exit_layer: int, num_layers: int
) -> float:
    """Return (1 - α^(k+1)) / ((1 - α)(k L/N + 1)): only layers cost, verification is one step.

    Args:
        acceptance: α, tested acceptance, in [0, 1].
        draft_length: k (tokens).
        exit_layer: L (layers), 1 <= L <= N.
        num_layers: N.

    Raises:
        ValueError: α outside [0, 1], k < 0 or L outside 1..N.
    """
    _check_acceptance(acceptance)
    if not 1 <= exit_layer <= num_layers:
        raise ValueError(f"exit layer {exit_layer} of a model with {num_layers} layers")
    share = exit_layer / num_layers
    return float(closed_form.textbook_speedup(acceptance, draft_length, share))


def _check_acceptance(acceptance: float) -> None:
    if not 0.0 <= acceptance <= 1.0:  # also refuses NaN: a missing rate has no speedup
        raise ValueError(f"acceptance must be in [0, 1], got {acceptance}")


def _needed(k: int, draft: float, verify: float, overhead: float) -> float | None:
    cost = k * draft + verify + overhead
    if not math.isfinite(cost):
        return None
    if cost <= 1.0:
        return 0.0
    return closed_form.break_even_acceptance(k, draft, verify, overhead)
