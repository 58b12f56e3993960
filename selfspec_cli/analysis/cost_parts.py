"""Timed parts of a round by block: reading cost.csv rows into tables of mean seconds."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.errors import CostRangeError, StorageError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ROUND_PART = "round"  # a whole measured round, not a part
PREFILL_PART = "prefill"  # a prompt and x_0, outside every round; timed in a few blocks only
CONTEXT_FREE = frozenset({"embed", "head", "draw", "accept"})
"""Parts whose work does not grow with the context; timed at one context, they hold at any."""

_CELL = ["part", "exit_layer", "positions", "context"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layout:
    """Where the cells of one part lie in its table; the same for every draw of blocks."""

    chosen: Ints  # cells of the part
    divisor: Floats  # layers in a chain, else 1
    positions: Ints  # [M]
    contexts: Floats  # [C]; empty where the part does not depend on the context
    place: tuple[Ints, Ints]  # row and column of each cell
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartSamples:
    """Mean seconds of every timed cell in every complete block.

    A block times every part once, and blocks are the unit of uncertainty: whatever is drawn with
    replacement is drawn as whole blocks, because a slow moment slows all parts of its block.
    """

    cells: pd.DataFrame
    """One row a cell: part, exit_layer (layers in a chain), positions, context (NaN: none)."""
    seconds: Floats
    """float64 [cells, blocks]."""
    blocks: tuple[int, ...]
    """Labels of the columns; a label repeats when blocks were drawn with replacement."""
    num_dropped_blocks: int
    """Incomplete blocks left out, for example the last one of an interrupted run."""
    _layouts: dict[str, _Layout] = field(default_factory=dict, repr=False)
    """Filled as parts are asked for, and shared by all draws of these cells."""

    def take(self, order: Ints) -> "PartSamples":
        """Return the samples of the blocks at these column numbers, all parts together."""
        return PartSamples(
            cells=self.cells,
            seconds=self.seconds[:, order],
            blocks=tuple(self.blocks[i] for i in order),
            num_dropped_blocks=self.num_dropped_blocks,
            _layouts=self._layouts,
        )

    def layout(self, part: str) -> _Layout:
        """Return where a part's cells lie; a part that was not timed has none.

        Raises:
            StorageError: a chain does not say how many layers it has.
        """
        if part not in self._layouts:
            self._layouts[part] = _layout(self.cells, part)
        return self._layouts[part]

    def relative_spread(self) -> Floats:
        """Return standard deviation over blocks / mean, per cell; NaN with fewer than 2 blocks."""
        if len(self.blocks) < 2:
            return np.full(len(self.cells), np.nan)
        return self.seconds.std(axis=1, ddof=1) / self.seconds.mean(axis=1)


def select_rows(frame: pd.DataFrame, *, law: str, batch: int, engine: str | None) -> pd.DataFrame:
    """Return the rows of cost.csv that price one (law, batch, engine).

    Rows without a law serve every law. `engine` None means the only engine in the file.

    Raises:
        StorageError: columns are missing, or `engine` is None and the file holds several.
        CostRangeError: nothing was measured for this combination.
    """
    wanted = ["block", *_CELL, "law", "batch", "engine", "seconds"]
    absent = [column for column in wanted if column not in frame.columns]
    if absent:
        raise StorageError(f"cost rows lack the columns {', '.join(absent)}", where="cost.csv")
    engines = sorted(frame["engine"].fillna("").unique())
    if engine is None and len(engines) > 1:
        raise StorageError(f"several engines were timed: {', '.join(engines)}", where="cost.csv")
    laws = frame["law"].fillna("")
    keep = laws.isin([law, ""]) & (frame["batch"] == batch)
    if engine is not None:
        keep &= frame["engine"] == engine
    if not (keep & (laws == law)).any():
        raise CostRangeError(
            f"no cost was measured for the {law} law at batch size {batch}",
            where="cost.csv",
            hint=f"measured laws: {', '.join(sorted(set(laws) - {''})) or 'none'}",
        )
    return frame.loc[keep]


def read_samples(rows: pd.DataFrame) -> PartSamples:
    """Pivot rows to cells × blocks; blocks that lack a cell are dropped and counted.

    Raises:
        StorageError: no block is complete, or a time is not a positive finite number.
    """
    _check_seconds(rows)
    filled = rows.fillna(dict.fromkeys(_CELL[1:], -1))  # a pivot would drop missing keys
    pivot = filled.pivot_table(
        index=_CELL,
        columns="block",
        values="seconds",
        aggfunc="mean",
    )
    complete = pivot.notna().all(axis=0)
    if not complete.any():
        worst = pivot.isna().sum(axis=1).idxmax()
        raise StorageError(f"no block timed every part; {worst} is missing most", where="cost.csv")
    kept = pivot.loc[:, complete]
    cells = kept.index.to_frame(index=False)
    cells["context"] = cells["context"].where(cells["context"] >= 0)
    return PartSamples(
        cells=cells,
        seconds=kept.to_numpy(dtype=np.float64),
        blocks=tuple(int(block) for block in kept.columns),
        num_dropped_blocks=int((~complete).sum()),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartTable:
    """Mean seconds of one part on its measured positions × contexts."""

    part: str
    positions: Ints
    """int64 [M], rising."""
    contexts: Floats
    """float64 [C] tokens, rising; empty where the part does not depend on the context."""
    seconds: Floats
    """float64 [M, max(C, 1)]."""

    def at(self, positions: int, contexts: Floats) -> Floats:
        """Return seconds [C'] at `positions` and each context, linear between measurements.

        Raises:
            CostRangeError: positions or a context lie outside what was measured.
        """
        low, high = int(self.positions[0]), int(self.positions[-1])
        if not low <= positions <= high:
            raise CostRangeError(
                f"{self.part} was measured at {low} to {high} positions, asked for {positions}"
            )
        upper = int(np.searchsorted(self.positions, positions))
        if self.positions[upper] == positions:
            row = self.seconds[upper]
        else:
            left, right = self.positions[upper - 1], self.positions[upper]
            share = (positions - left) / (right - left)
            row = (1 - share) * self.seconds[upper - 1] + share * self.seconds[upper]
        if len(self.contexts) == 0:
            return np.full(len(contexts), row[0])
        check_contexts(self.part, self.contexts, contexts)
        return np.interp(contexts, self.contexts, row)


def check_contexts(what: str, measured: Floats, asked: npt.NDArray[np.generic]) -> None:
    """Refuse contexts outside the measured range.

    Raises:
        CostRangeError: names the range and the offending context.
    """
    if asked.size == 0:
        return
    low, high = float(asked.min()), float(asked.max())
    if low < measured[0] or high > measured[-1]:
        offender = low if low < measured[0] else high
        raise CostRangeError(
            f"{what} was measured at contexts of {measured[0]:g} to {measured[-1]:g} tokens, "
            f"asked for {offender:g}",
            hint="costs are never extrapolated; measure a wider range of contexts",
        )


def part_table(samples: PartSamples, part: str) -> PartTable:
    """Return the mean table of one part; a chain of layers is divided by its length.

    Raises:
        StorageError: the part was not timed, or not at every (positions, context).
    """
    layout = samples.layout(part)
    if len(layout.chosen) == 0:
        raise StorageError(f"the part {part} was not timed", where="cost.csv")
    table = np.full(layout.shape, np.nan)
    table[layout.place] = samples.seconds[layout.chosen].mean(axis=1) / layout.divisor
    if np.isnan(table).any():
        raise StorageError(f"{part} was not timed at every (positions, context)", where="cost.csv")
    return PartTable(part=part, positions=layout.positions, contexts=layout.contexts, seconds=table)


def _layout(cells: pd.DataFrame, part: str) -> _Layout:
    chosen = np.flatnonzero(cells["part"].to_numpy() == part)
    divisor = np.ones(len(chosen))
    if part.startswith("layers/"):
        divisor = _chain_lengths(cells, part, chosen)
    # Unset positions mean one position; -1 marks what holds at any context.
    positions = np.maximum(cells["positions"].to_numpy(dtype=np.int64)[chosen], 1)
    contexts = np.nan_to_num(cells["context"].to_numpy(dtype=np.float64)[chosen], nan=-1.0)
    if part in CONTEXT_FREE and len(np.unique(contexts)) == 1:
        contexts = np.full(len(contexts), -1.0)
    rows, at_row = np.unique(positions, return_inverse=True)
    columns, at_column = np.unique(contexts, return_inverse=True)
    return _Layout(
        chosen=chosen,
        divisor=divisor,
        positions=rows,
        contexts=columns[columns >= 0],
        place=(at_row, at_column),
        shape=(len(rows), len(columns)),
    )


def prefill_curve(rows: pd.DataFrame) -> tuple[Floats, Floats] | None:
    """Return timed prompt lengths (tokens, rising) and mean seconds of their prefill, [C] each.

    Args:
        rows: rows of cost.csv; parts other than `prefill` are ignored.

    Returns:
        None where no prefill was timed: files of earlier versions have none.

    Raises:
        StorageError: a time is not a positive finite number.
    """
    timed = rows.loc[rows["part"] == PREFILL_PART]
    if timed.empty:
        return None
    _check_seconds(timed)
    mean = timed.groupby("context", sort=True)["seconds"].mean()
    return mean.index.to_numpy(dtype=np.float64), mean.to_numpy(dtype=np.float64)


def _check_seconds(rows: pd.DataFrame) -> None:
    if not (np.isfinite(rows["seconds"]) & (rows["seconds"] > 0)).all():
        raise StorageError("a time is not a positive number of seconds", where="cost.csv")


def _chain_lengths(cells: pd.DataFrame, part: str, chosen: Ints) -> Floats:
    lengths = cells["exit_layer"].to_numpy(dtype=np.float64)[chosen]
    if (lengths < 1).any():
        raise StorageError(f"{part} does not say how many layers were timed", where="cost.csv")
    return lengths
