"""What costs add to a grid cell: the ratios c, v, o, and how uncertain the measured costs are."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.analysis.batching import paid_lengths
from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.analysis.reprice import (
    mean_ar_context,
    mean_context,
    price_rounds,
    stack_lists,
)
from selfspec_cli.analysis.walk import Surfaces, surface_for

Floats = npt.NDArray[np.float64]

COST_DRAWS = 100  # resampled cost surfaces; the error of a standard deviation is then about 7 %


class LawCells:
    """Walk rows summed by (cell, law): what any cost surface needs to price a cell again.

    Args:
        rows: walk rows of one batch size, at least one.
        cell: number of the cell of each row.
        num_cells: cells of the tables that are returned, by default those up to the last of `cell`;
            a cell without a row is NaN there.

    Attributes:
        cell: number of the cell of each row, [X].
        laws: law class of each row, [X].
        exit_layers, draft_lengths: [X].
        counts, contexts: rounds by drafted length and their summed contexts, [X, k_max+1].
        steps, step_contexts: plain steps and their summed contexts, [X].
        paid: drafted length that every round of a refilled batch pays, [X]; None: each its own.
    """

    def __init__(
        self, rows: pd.DataFrame, cell: npt.NDArray[np.int64], num_cells: int | None = None
    ) -> None:
        self.num_cells = int(cell.max()) + 1 if num_cells is None else num_cells
        keyed = rows.assign(_cell=cell)
        groups = keyed.groupby(["_cell", "law"], sort=True)
        code = np.asarray(groups.ngroup(), dtype=np.int64)
        first = keyed.groupby(code, sort=True)[["_cell", "law", "exit_layer", "draft_length"]]
        head = first.first()
        self.cell = head["_cell"].to_numpy(dtype=np.int64)
        self.laws = head["law"].to_numpy()
        self.exit_layers = head["exit_layer"].to_numpy(dtype=np.int64)
        self.draft_lengths = head["draft_length"].to_numpy(dtype=np.int64)
        self.paid = paid_lengths(self.draft_lengths, int(rows["batch_size"].iloc[0]))
        width = int(self.draft_lengths.max()) + 1
        self.counts = _sum_by(code, stack_lists(rows["rounds_by_drafted"], width))
        self.contexts = _sum_by(code, stack_lists(rows["context_by_drafted"], width))
        steps = rows["committed"].to_numpy(dtype=np.float64)  # n - 1
        self.steps = _sum_by(code, steps)
        self.step_contexts = _sum_by(code, steps * mean_ar_context(rows))

    def ratios(self, surfaces: Surfaces) -> Floats:
        """Return c, v, o of each cell, [cells, 3], at the mean context of its rounds.

        A cell with several laws gets their mean, weighted with rounds; NaN without a round.
        """
        rounds = self.counts.sum(axis=1)
        sums = np.zeros((self.num_cells, 3))
        weights = np.zeros(len(sums))
        for x in np.flatnonzero(rounds > 0):
            surface = surface_for(surfaces, str(self.laws[x]))
            context = float(mean_context(self.contexts[x].sum(), rounds[x], surface))
            layer, k = int(self.exit_layers[x]), int(self.draft_lengths[x])
            sums[self.cell[x]] += rounds[x] * np.array(
                [
                    surface.draft_cost_ratio(layer, context),
                    surface.verify_cost_ratio(layer, k, context),
                    surface.overhead_ratio(layer, k, context),
                ]
            )
            weights[self.cell[x]] += rounds[x]
        return np.where(weights[:, None] > 0, sums, np.nan) / np.maximum(weights, 1e-300)[:, None]

    def cost_log_sd(self, surfaces: Surfaces, seed: int) -> Floats:
        """Return the standard error of log(speedup) that comes from the costs alone, [cells].

        Blocks are drawn with replacement, the same ones for every law; sd × √(B / (B - 1)), since
        a bootstrap of B blocks is that much too narrow. NaN where costs have a single block.
        """
        draws = np.zeros((COST_DRAWS, self.num_cells))
        blocks = []
        seconds, plain = np.zeros((2, COST_DRAWS, len(self.cell)))
        for law in np.unique(self.laws.astype(str)):
            surface = surface_for(surfaces, law)
            blocks.append(len(surface.samples.blocks))
            chosen = self.laws == law
            rng = np.random.default_rng(seed)  # one seed for all laws: their blocks go together
            for draw in range(COST_DRAWS):
                one = surface.resample(rng)
                seconds[draw, chosen], plain[draw, chosen] = self._price(one, chosen)
        if min(blocks) < 2:
            return np.full(draws.shape[1], np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            for draw in range(COST_DRAWS):
                above, below = (self._by_cell(values[draw]) for values in (plain, seconds))
                draws[draw] = np.log(above / below)
            spread: Floats = draws.std(axis=0, ddof=1)
        return spread * np.sqrt(min(blocks) / (min(blocks) - 1))

    def _by_cell(self, values: Floats) -> Floats:
        sums = np.zeros(self.num_cells)
        np.add.at(sums, self.cell, values)
        return sums

    def _price(self, surface: CostSurface, chosen: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
        seconds = price_rounds(
            self.exit_layers[chosen],
            self.counts[chosen],
            self.contexts[chosen],
            surface,
            None if self.paid is None else self.paid[chosen],
        )
        steps, contexts = self.steps[chosen], self.step_contexts[chosen]
        plain = np.zeros(len(steps))
        some = steps > 0
        plain[some] = steps[some] * surface.ar_seconds(contexts[some] / steps[some])
        return seconds, plain


def _sum_by(code: npt.NDArray[np.int64], values: Floats) -> Floats:
    """Sum rows of `values` [rows, ...] by `code`: [codes, ...]."""
    sums = np.zeros((int(code.max()) + 1, *values.shape[1:]))
    np.add.at(sums, code, values)
    return sums
