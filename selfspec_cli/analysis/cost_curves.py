"""Cost curves of a surface for people: c(L), v(L, k) and the plain step, with their spread."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from selfspec_cli.analysis.cost_surface import CostSurface

Floats = npt.NDArray[np.float64]
Cell = tuple[str, int, int | None]
"""(quantity, exit layer, draft length)."""

CURVE_DRAWS = 60  # resampled surfaces; the error of a standard deviation is then about 9 %


def cost_curves(
    surface: CostSurface,
    exit_layers: Sequence[int],
    draft_lengths: Sequence[int],
    context: float,
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """Return c and v at one context with 95 % intervals over timing blocks.

    Args:
        surface: measured costs of one law.
        exit_layers: L to price.
        draft_lengths: k to price.
        context: tokens in the cache, within the measured range.
        seed: of the blocks drawn.

    Returns:
        quantity (draft_cost_ratio, verify_cost_ratio), exit_layer, draft_length (missing for c),
        value, low, high: multiples of a plain step. low and high are missing with one block.

    Raises:
        CostRangeError: an L, k or context outside what was measured.
    """
    cells: list[Cell] = [("draft_cost_ratio", layer, None) for layer in exit_layers]
    cells += [("verify_cost_ratio", layer, k) for k in draft_lengths for layer in exit_layers]
    table = pd.DataFrame(cells, columns=["quantity", "exit_layer", "draft_length"])
    table["draft_length"] = table["draft_length"].astype("Int64")
    value = _values(surface, cells, context)
    blocks = len(surface.samples.blocks)
    half = np.full(len(cells), np.nan)
    if blocks > 1:
        rng = np.random.default_rng(seed)
        draws = [_values(surface.resample(rng), cells, context) for _ in range(CURVE_DRAWS)]
        # A bootstrap of B blocks is too narrow by √((B - 1) / B).
        spread = np.std(draws, axis=0, ddof=1) * np.sqrt(blocks / (blocks - 1))
        half = stats.t.ppf(0.975, blocks - 1) * spread
    return table.assign(value=value, low=value - half, high=value + half)


def plain_steps(surface: CostSurface) -> pd.DataFrame:
    """Return the plain step at every measured context: context (tokens), ar_step_s, low, high (s).

    Intervals are Student-t over blocks, missing with one block.
    """
    cells = surface.samples.cells
    timed = np.flatnonzero((cells["part"] == "ar").to_numpy() & cells["context"].notna().to_numpy())
    seconds = surface.samples.seconds[timed]
    mean = seconds.mean(axis=1)
    half = np.full(len(mean), np.nan)
    blocks = seconds.shape[1]
    if blocks > 1:
        error = seconds.std(axis=1, ddof=1) / np.sqrt(blocks)
        half = stats.t.ppf(0.975, blocks - 1) * error
    table = pd.DataFrame(
        {
            "context": cells["context"].to_numpy()[timed],
            "ar_step_s": mean,
            "low": mean - half,
            "high": mean + half,
        }
    )
    return table.sort_values("context", ignore_index=True)


def _values(surface: CostSurface, cells: Sequence[Cell], context: float) -> Floats:
    return np.array(
        [
            surface.draft_cost_ratio(layer, context)
            if k is None
            else surface.verify_cost_ratio(layer, k, context)
            for _, layer, k in cells
        ]
    )
