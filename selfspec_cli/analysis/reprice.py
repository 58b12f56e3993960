"""Price walk rows again with other costs, from the sums that walk.parquet keeps."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.analysis.cost_surface import CostSurface

Floats = npt.NDArray[np.float64]


def stack_lists(column: pd.Series, width: int) -> Floats:
    """Return a list column as float64 [rows, width], zero where a list is shorter."""
    table = np.zeros((len(column), width))
    for row, values in enumerate(column):
        table[row, : len(values)] = values
    return table


def mean_ar_context(rows: pd.DataFrame) -> Floats:
    """Return the mean context (tokens) of the n - 1 plain steps of each row's path."""
    steps = rows["committed"].to_numpy(dtype=np.float64)  # n - 1
    return rows["prompt_tokens"].to_numpy(dtype=np.float64) + np.maximum(steps - 1, 0) / 2


def mean_context(sums: Floats, counts: Floats, surface: CostSurface) -> Floats:
    """Return sums ÷ counts (tokens), with what rounding alone put beyond the timed range put back.

    Args:
        sums: summed contexts, [...].
        counts: rounds they belong to, [...], above 0.
        surface: the costs that are to be asked.
    """
    mean, (low, high) = sums / counts, surface.context_range
    slack = 1e-9 * high
    return np.where((mean > low - slack) & (mean < high + slack), np.clip(mean, low, high), mean)


def reprice(rows: pd.DataFrame, surface: CostSurface) -> pd.DataFrame:
    """Return `rows`, all of one law, with seconds, ar_seconds and prefill_seconds from `surface`.

    Each row's rounds of one drafted length are priced at their mean context. Costs are piecewise
    linear in the context, so this is exact unless a path crosses a measured context.

    Args:
        rows: walk rows; exit_layer, prompt_tokens, committed, rounds_by_drafted,
            context_by_drafted.
        surface: the costs.

    Raises:
        CostRangeError: a mean context, L or k lies outside what was measured.
    """
    width = int(rows["draft_length"].max()) + 1 if len(rows) else 1
    counts = stack_lists(rows["rounds_by_drafted"], width)
    contexts = stack_lists(rows["context_by_drafted"], width)
    seconds = price_rounds(rows["exit_layer"].to_numpy(), counts, contexts, surface)
    steps = rows["committed"].to_numpy(dtype=np.float64)
    plain = np.zeros(len(rows))
    some = steps > 0
    plain[some] = steps[some] * surface.ar_seconds(mean_ar_context(rows)[some])
    prefill = surface.prefill_seconds(rows["prompt_tokens"])
    return rows.assign(
        seconds=seconds, ar_seconds=plain, prefill_seconds=np.nan if prefill is None else prefill
    )


def price_rounds(
    exit_layers: npt.NDArray[np.int64],
    counts: Floats,
    contexts: Floats,
    surface: CostSurface,
    paid: npt.NDArray[np.int64] | None = None,
) -> Floats:
    """Return seconds [rows] of rounds counted by drafted length.

    Args:
        exit_layers: L of each row, [rows].
        counts: rounds that drafted j tokens, [rows, k+1].
        contexts: their summed contexts (tokens), [rows, k+1].
        surface: the costs.
        paid: drafted length at which all rounds of a row are priced, [rows]; None for their own.
    """
    seconds = np.zeros(len(counts))
    row, drafted = np.nonzero(counts > 0)
    weight = counts[row, drafted]
    mean = mean_context(contexts[row, drafted], weight, surface)
    lengths = drafted if paid is None else paid[row]
    for layer in np.unique(exit_layers):
        chosen = exit_layers[row] == layer
        each = surface.round_seconds([layer], lengths[chosen], mean[chosen])[0]
        np.add.at(seconds, row[chosen], weight[chosen] * each)
    return seconds
