"""What it would take: break-even acceptance by layer, gains at higher acceptance, the textbook.

Closed forms with measured costs: information for people, never the decision.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from selfspec_cli.analysis import break_even
from selfspec_cli.analysis.evidence import Cell
from selfspec_cli.plan.document import BreakEven, GainAt, Textbook
from selfspec_cli.plan.pools import Pool

ACCEPTANCES = (0.6, 0.7, 0.8)
FOLK_DISCOUNT = 0.8  # "real speedup is about 0.8 of the formula": a rule of thumb, shown as such


def layer_costs(pool: Pool, exit_layer: int) -> tuple[float, dict[int, float]]:
    """Return c and, by draft length, all of a round that is not k c (in plain steps).

    Costs are read at each cell's own mean context, so c differs a little between draft lengths;
    what differs goes to the rest, and k c + rest is exactly the cell's round.
    """
    found = {k: facts for (layer, k), facts in pool.cells.items() if layer == exit_layer}
    draft = found[min(found)].draft_cost_ratio
    rest = {
        k: facts.verify_cost_ratio + facts.overhead_ratio + k * (facts.draft_cost_ratio - draft)
        for k, facts in found.items()
    }
    return draft, {k: value for k, value in rest.items() if np.isfinite(value)}


def needed_acceptance(pool: Pool, exit_layer: int) -> float | None:
    """Return the smallest tested acceptance at which some draft length breaks even."""
    draft, rest = layer_costs(pool, exit_layer)
    found = break_even.break_even_acceptance(draft, rest, 0.0)
    return None if found is None else found[0]


def by_layer(pool: Pool, exit_layers: Sequence[int]) -> list[BreakEven]:
    """Return acceptance needed and had (at the layer's best draft length), layer by layer."""
    rows = []
    for layer in exit_layers:
        ks = [k for (at, k), facts in pool.cells.items() if at == layer and facts.speedup]
        best = max(ks, key=lambda k: pool.cells[layer, k].speedup or 0.0, default=None)
        rows.append(
            BreakEven(
                exit_layer=layer,
                needed=needed_acceptance(pool, layer),
                observed=None if best is None else pool.cells[layer, best].tested_rate,
            )
        )
    return rows


def gains(pool: Pool, exit_layers: Sequence[int]) -> list[GainAt]:
    """Return what the best cell would bring, were that share of tested drafts accepted.

    Every layer is asked, not only the one that is best at today's acceptance: a shallow exit that
    agrees as often is cheaper. Ties go to the smaller layer.
    """
    costs = {layer: layer_costs(pool, layer) for layer in exit_layers if _has(pool, layer)}
    usable = {
        layer: (draft, rest)
        for layer, (draft, rest) in costs.items()
        if rest and np.isfinite(draft)
    }
    return [_best_at(acceptance, usable) for acceptance in ACCEPTANCES if usable]


def _has(pool: Pool, layer: int) -> bool:
    return any(at == layer for at, _ in pool.cells)


def _best_at(acceptance: float, costs: Mapping[int, tuple[float, dict[int, float]]]) -> GainAt:
    found = {
        layer: break_even.speedup_at(acceptance, draft, rest, 0.0)
        for layer, (draft, rest) in costs.items()
    }
    best = max(found, key=lambda layer: (found[layer][1], -layer))
    k, speedup = found[best]
    return GainAt(acceptance=acceptance, exit_layer=best, draft_length=k, speedup=speedup)


def textbook(
    acceptance: float | None, cell: Cell, num_layers: int, speedup: float | None
) -> Textbook | None:
    """Return the textbook formula at a cell, its folk discount, and the discount found here.

    Args:
        acceptance: tested acceptance at the cell; None: no formula.
        cell: (L, k).
        num_layers: N.
        speedup: measured where confirmed, else predicted.
    """
    if acceptance is None:
        return None
    formula = break_even.textbook_speedup(acceptance, cell[1], cell[0], num_layers)
    return Textbook(
        formula_speedup=formula,
        discounted_speedup=FOLK_DISCOUNT * formula,
        discount=None if speedup is None else speedup / formula,
    )
