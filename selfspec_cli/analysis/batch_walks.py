"""Batches walked round by round: coin-sampled rows side by side, none refilled.

Rows start together; every pass gives each row that still runs one round. Whole batches are drawn
and walked at once as arrays [S batches, B rows]; only the passes are a loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from selfspec_cli.analysis.batch_pools import RowPool
from selfspec_cli.analysis.intervals import ratio_interval
from selfspec_cli.analysis.walk import Floats, Ints
from selfspec_cli.errors import CostRangeError

Bools = npt.NDArray[np.bool_]


class BatchSeconds(Protocol):
    """Seconds of one pass of a whole batch, for one law.

    Where nothing was timed it raises CostRangeError, or gives NaN.
    """

    def round_seconds(
        self, exit_layer: int, draft_length: int, contexts: Floats, rows: Ints, /
    ) -> Floats:
        """Return seconds [X] of rounds of `rows` [X] rows, the longest at `contexts` [X]."""
        ...

    def ar_seconds(self, contexts: Floats, rows: Ints, /) -> Floats:
        """Return seconds [X] of plain steps of `rows` [X] rows, the longest at `contexts` [X]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Passes:
    """What S batches cost."""

    seconds: Floats
    """float64 [S]; NaN where a pass has no time."""
    count: Ints
    """Passes until the last row ended, int64 [S]."""
    row_rounds: Ints
    """Passes each row took part in, int64 [S, B]."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """One pass of the batches that still run."""

    batch: Ints  # [X]
    drafted: Ints  # [X] longest draft among the rows
    contexts: Floats  # [X] of the longest row in the pass
    rows: Ints  # [X]


def run_rounds(
    pool: RowPool,
    members: Ints,
    rejections: Ints,
    cell: tuple[int, int],
    costs: BatchSeconds,
    *,
    leaving: bool = True,
) -> Passes:
    """Walk batches with speculation until their last rows end.

    A pass drafts as long as the row that may draft most, and attends over the context of its
    longest row, as the decoder does; the others wait inside it.

    Args:
        pool: the paths.
        members: path of each row, int64 [S, B].
        rejections: tossed coins (`RowPool.toss`), int64 [S, B, n_max + 1].
        cell: (L, k).
        costs: seconds of passes.
        leaving: rows that ended leave the pass; otherwise they stay as padding, at the context at
            which they ended.
    """
    layer, k = cell
    lengths, budgets = pool.lengths[members], pool.budgets[members]
    starts = np.ones_like(members)
    rounds = np.zeros_like(members)
    passes: list[_Pass] = []
    while (alive := starts < lengths).any():
        drafted = np.where(alive, np.minimum(k, budgets - starts - 1), 0)
        passes.append(_one_pass(pool.prompts[members] + starts - 1, drafted, alive, leaving))
        rejected = np.take_along_axis(rejections, starts[..., None], axis=-1)[..., 0]
        accepted = np.minimum(rejected - starts, np.minimum(drafted, lengths - starts))
        rounds += alive
        starts = np.where(alive, np.minimum(starts + accepted + 1, lengths), starts)
    seconds = _priced(passes, len(members), lambda k, x, b: costs.round_seconds(layer, k, x, b))
    return Passes(seconds=seconds, count=rounds.max(axis=1), row_rounds=rounds)


def run_plain(pool: RowPool, members: Ints, costs: BatchSeconds, *, leaving: bool = True) -> Passes:
    """Decode the same batches plainly: one token a row and pass. Arguments as in `run_rounds`."""
    lengths = pool.lengths[members]
    passes: list[_Pass] = []
    for start in range(1, int(lengths.max(initial=0))):
        alive = start < lengths
        contexts = pool.prompts[members] + np.minimum(start, lengths) - 1
        passes.append(_one_pass(contexts, np.zeros_like(members), alive, leaving))
    seconds = _priced(passes, len(members), lambda _, x, b: costs.ar_seconds(x, b))
    return Passes(seconds=seconds, count=(lengths - 1).max(axis=1), row_rounds=lengths - 1)


def _one_pass(contexts: Ints, drafted: Ints, alive: Bools, leaving: bool) -> _Pass:
    """Reduce rows [S, B] to the batches that still run; only living rows count if they leave."""
    batch = np.flatnonzero(alive.any(axis=1))
    inside = alive[batch] if leaving else np.ones_like(alive[batch])
    rows = inside.sum(axis=1)
    longest = np.where(inside, contexts[batch], 0).max(axis=1)
    return _Pass(batch, drafted[batch].max(axis=1), longest.astype(np.float64), rows)


class _Price(Protocol):
    def __call__(self, drafted: int, contexts: Floats, rows: Ints, /) -> Floats: ...


def _priced(passes: Sequence[_Pass], num_batches: int, price: _Price) -> Floats:
    """Sum the seconds of all passes by batch; one question per drafted length."""
    if not passes:
        return np.zeros(num_batches)
    batch = np.concatenate([one.batch for one in passes])
    drafted = np.concatenate([one.drafted for one in passes])
    contexts = np.concatenate([one.contexts for one in passes])
    rows = np.concatenate([one.rows for one in passes])
    seconds = np.zeros(len(batch))
    for k in np.unique(drafted):
        chosen = drafted == k
        seconds[chosen] = _timed(price, int(k), contexts[chosen], rows[chosen])
    totals = np.zeros(num_batches)
    np.add.at(totals, batch, seconds)
    return totals


def _timed(price: _Price, drafted: int, contexts: Floats, rows: Ints) -> Floats:
    """Seconds [X]; all NaN where one lies outside what was timed, since no sum may lack one."""
    try:
        return price(drafted, contexts, rows)
    except CostRangeError:
        return np.full(len(rows), np.nan)


def costs_of(costs: Mapping[str, BatchSeconds], law: str) -> BatchSeconds:
    """Return the seconds that price a law class.

    Raises:
        CostRangeError: this law was not measured.
    """
    if law not in costs:
        raise CostRangeError(
            f"no cost was measured for the {law} law",
            hint=f"measured laws: {', '.join(sorted(costs))}",
        )
    return costs[law]


def ratio_of_sums(above: Floats, below: Floats) -> tuple[float | None, float | None]:
    """Ratio of sums and its standard error, over batches or pools; None where undefined."""
    if not (np.isfinite(above).all() and np.isfinite(below).all()):
        return None, None
    found = ratio_interval(above, below, np.arange(len(above)))
    if found.estimate is None or found.log_sd is None:
        return found.estimate, None
    return found.estimate, found.estimate * found.log_sd


def waiting_share(row_rounds: Floats, passes: Floats, size: int) -> float | None:
    """Return 1 - row-rounds ÷ (B × passes), both summed; None without a pass."""
    slots = size * passes.sum()
    return float(1.0 - row_rounds.sum() / slots) if slots > 0 else None


def finite(value: float) -> float | None:
    """Return the value, None where it is not finite."""
    return float(value) if np.isfinite(value) else None
