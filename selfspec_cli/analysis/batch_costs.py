"""Costs of a batch that shrinks: linear in rows between measured batch sizes.

The rows of a static batch leave one by one, so it runs through every size from its first to 1. What
lies outside the measured sizes, or outside the contexts measured at a size that is needed, is never
extrapolated.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from selfspec_cli.analysis.cost_parts import Floats, Ints
from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.errors import CostRangeError

_Seconds = Callable[[CostSurface, npt.NDArray[np.bool_]], Floats]
"""Seconds that a surface gives where the mask is set, in the order of the mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCosts:
    """Seconds of steps and rounds of one law for any number of rows between the measured ones."""

    surfaces: Mapping[int, CostSurface]
    """Surfaces of one law by batch size, ascending (`Costs.of_law`)."""

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Measured batch sizes, ascending."""
        return tuple(self.surfaces)

    def ar_seconds(self, contexts: npt.ArrayLike, rows: npt.ArrayLike) -> Floats:
        """Return seconds of one plain step of the whole batch.

        Args:
            contexts: tokens in the cache before the step, of the batch's longest row.
            rows: rows that take part; broadcasts with `contexts`.

        Returns:
            float64, broadcast(contexts, rows).

        Raises:
            CostRangeError: rows below the smallest or above the largest measured batch size, or a
                context outside what was measured at a size next to its rows.
        """
        at, sizes = np.broadcast_arrays(np.asarray(contexts, dtype=np.float64), _counts(rows))
        return self._blend(lambda surface, mask: surface.ar_seconds(at[mask]), sizes)

    def round_seconds(
        self,
        exit_layer: int,
        drafted: npt.ArrayLike,
        contexts: npt.ArrayLike,
        rows: npt.ArrayLike,
    ) -> Floats:
        """Return seconds of one round of the whole batch.

        Args:
            exit_layer: L.
            drafted: k', the longest draft among the rows (tokens); 0 is a plain step and its
                bookkeeping.
            contexts: tokens in the cache before the round, of the batch's longest row.
            rows: rows that take part. The three broadcast.

        Returns:
            float64, broadcast(drafted, contexts, rows).

        Raises:
            CostRangeError: as `ar_seconds`, or an L or k' outside what was measured.
        """
        lengths, at, sizes = np.broadcast_arrays(
            np.asarray(drafted, dtype=np.int64),
            np.asarray(contexts, dtype=np.float64),
            _counts(rows),
        )

        def seconds(surface: CostSurface, mask: npt.NDArray[np.bool_]) -> Floats:
            return surface.round_seconds([exit_layer], lengths[mask], at[mask])[0]

        return self._blend(seconds, sizes)

    def _blend(self, seconds: _Seconds, rows: Ints) -> Floats:
        """Weigh the surfaces of the measured sizes next to each number of rows."""
        self._check(rows)
        total = np.zeros(rows.shape)
        for batch, weight in zip(self.batch_sizes, self._weights(rows), strict=True):
            mask = weight > 0  # a size that does not count need not have been timed there
            if mask.any():
                total[mask] += weight[mask] * seconds(self.surfaces[batch], mask)
        return total

    def _weights(self, rows: Ints) -> list[Floats]:
        """Weight of each measured size, [sizes] arrays in the shape of `rows`; they add up to 1."""
        sizes = np.array(self.batch_sizes, dtype=np.float64)
        unit = np.eye(len(sizes))
        return [np.interp(rows, sizes, unit[index]) for index in range(len(sizes))]

    def _check(self, rows: Ints) -> None:
        if rows.size == 0:
            return
        low, high = self.batch_sizes[0], self.batch_sizes[-1]
        least, most = int(rows.min()), int(rows.max())
        if least < low or most > high:
            raise CostRangeError(
                f"costs were measured for batches of {low} to {high} rows, asked for "
                f"{least if least < low else most}",
                hint="costs are never extrapolated; measure more batch sizes (--batch-size)",
            )


def _counts(rows: npt.ArrayLike) -> Ints:
    return np.asarray(rows, dtype=np.int64)
