"""Which cells to decode for real, on which paths, and what that says of the predictions."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from selfspec_cli.analysis.grid import rank_cells

NUM_SPREAD_LAYERS = 4  # deliberately different exit layers among the cells of a temperature
NUM_SPREAD_LENGTHS = 3
SMALLEST_LOG_TAIL = -700.0  # 1e-304, |z| = 37; below it the deviate would be infinite
CELL_KEYS = ["temperature", "exit_layer", "draft_length"]


def choose_cells(grid: pd.DataFrame, count: int) -> pd.DataFrame:
    """Choose cells to confirm: the best of each temperature, its runner-up, then a spread.

    The spread walks over exit layers and draft lengths from one end of the range to the other, so
    that predictions are tried where they are good and where they are bad.

    Args:
        grid: grid.csv; only its roll-ups over all tasks are read.
        count: cells in all, dealt evenly to the temperatures.

    Returns:
        temperature, exit_layer, draft_length; distinct, at most `count`.
    """
    pooled = rank_cells(grid.loc[grid["evidence"] == "all"])
    temperatures = sorted(pooled["temperature"].unique())
    picks = []
    for at, temperature in enumerate(temperatures):
        share = count // len(temperatures) + (at < count % len(temperatures))
        ranked = pooled.loc[pooled["temperature"] == temperature]
        picks += [(temperature, *cell) for cell in _cells_of(ranked, share)]
    return pd.DataFrame(picks, columns=CELL_KEYS)


def _cells_of(ranked: pd.DataFrame, count: int) -> list[tuple[int, int]]:
    cells = list(zip(ranked["exit_layer"], ranked["draft_length"], strict=True))
    layers = _spread(sorted(set(ranked["exit_layer"])), NUM_SPREAD_LAYERS)
    lengths = _spread(sorted(set(ranked["draft_length"])), NUM_SPREAD_LENGTHS)
    best = cells[0]
    runner_up = next((cell for cell in cells if cell[0] != best[0]), best)
    rotated = [
        (layers[i % len(layers)], lengths[(i + i // len(layers)) % len(lengths)])
        for i in range(len(layers) * len(lengths))
    ]
    wanted = dict.fromkeys([best, *rotated[: len(layers)], runner_up, *rotated, *cells])
    return [(int(layer), int(k)) for layer, k in wanted][:count]


def _spread(values: Sequence[int], count: int) -> list[int]:
    """At most `count` of the sorted values, evenly from the first to the last."""
    if len(values) <= count:
        return list(values)
    places = np.linspace(0, len(values) - 1, count).round().astype(int)
    return [values[place] for place in places]


def choose_paths(walk: pd.DataFrame, temperature: float, count: int, min_tokens: int) -> list[str]:
    """Choose paths to decode: long enough, spread evenly over their contexts.

    Args:
        walk: walk.parquet.
        temperature: of the cells to confirm.
        count: paths at most, each of another group.
        min_tokens: least output tokens of a path; where too few have them the longest are taken.

    Returns:
        path_ids, in order of prompt length. A path of one token has nothing to decode: left out.
    """
    usable = (walk["temperature"] == temperature) & (walk["committed"] > 0)
    rows = walk.loc[usable].drop_duplicates("path_id")
    rows = rows.sort_values(["committed", "path_id"], ascending=[False, True])
    rows = rows.drop_duplicates("group_id")
    enough = rows.loc[rows["committed"] + 1 >= min_tokens]
    chosen = enough if len(enough) >= count else rows.head(count)
    ordered = chosen.sort_values(["prompt_tokens", "path_id"], ignore_index=True)
    if len(ordered) > count:
        places = np.linspace(0, len(ordered) - 1, count + 2).round().astype(int)[1:-1]
        ordered = ordered.iloc[sorted(set(places.tolist()))]
    return list(ordered["path_id"])


def add_predictions(measured: pd.DataFrame, walk: pd.DataFrame) -> pd.DataFrame:
    """Put each measured decode beside what the walk said of the same path and cell."""
    keys = ["path_id", "exit_layer", "draft_length"]
    predicted = walk[[*keys, "ar_seconds", "seconds", "rounds", "tested", "accepted"]]
    names = {name: f"predicted_{name}" for name in predicted.columns if name not in keys}
    return measured.merge(predicted.rename(columns=names), on=keys, how="left", validate="m:1")


def summarise_confirm(confirm: pd.DataFrame) -> pd.DataFrame:
    """Predicted beside measured, one row a cell.

    Args:
        confirm: confirm.csv.

    Returns:
        temperature, exit_layer, draft_length, num_paths, num_tokens, predicted_speedup,
        measured_speedup, error (predicted / measured - 1, signed), coin_error (the same with the
        rounds that the coins really gave: cost alone), predicted_rounds_per_token,
        free_rounds_per_token and rounds_z (free decodes against the walk in standard errors over
        paths; at T = 0 the rounds of the timed decodes), exact (share of decodes equal to plain
        decoding; missing at T > 0).
    """
    rows = [_summary(cell) for _, cell in confirm.groupby(CELL_KEYS, sort=True)]
    return pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS))


SUMMARY_COLUMNS = (
    *CELL_KEYS, "num_paths", "num_tokens", "predicted_speedup", "measured_speedup", "error",
    "coin_error", "predicted_rounds_per_token", "free_rounds_per_token", "rounds_z", "exact",
)  # fmt: skip


def _summary(cell: pd.DataFrame) -> dict[str, object]:
    predicted = cell["predicted_ar_seconds"].sum() / cell["predicted_seconds"].sum()
    measured = cell["ar_seconds"].sum() / cell["seconds"].sum()
    priced = cell["predicted_ar_seconds"].sum() / cell["priced_seconds"].sum()
    greedy = bool(cell["temperature"].iloc[0] == 0.0)
    rounds = cell["rounds"] if greedy else cell["free_rounds"]
    committed = cell["committed"] if greedy else cell["free_committed"]
    return {
        **cell_key(cell),
        "num_paths": cell["path_id"].nunique(),
        "num_tokens": int(cell["committed"].sum()),
        "predicted_speedup": predicted,
        "measured_speedup": measured,
        "error": predicted / measured - 1,
        "coin_error": priced / measured - 1,
        "predicted_rounds_per_token": cell["predicted_rounds"].sum() / cell["committed"].sum(),
        "free_rounds_per_token": rounds.sum() / committed.sum() if committed.sum() else None,
        "rounds_z": rounds_z(cell["predicted_rounds"], cell["committed"], rounds, committed),
        "exact": cell["exact"].astype(float).mean() if greedy else None,
    }


def cell_key(cell: pd.DataFrame) -> dict[str, object]:
    """The grid point that all rows of `cell` share."""
    first = cell.iloc[0]
    return {
        "temperature": float(first["temperature"]),
        "exit_layer": int(first["exit_layer"]),
        "draft_length": int(first["draft_length"]),
    }


def rounds_z(
    predicted: pd.Series, path_tokens: pd.Series, rounds: pd.Series, tokens: pd.Series
) -> float | None:
    """Difference of rounds per committed token, decoded less walked, in standard errors.

    Both are ratios of sums over paths; their linearised residuals differ path by path, and the
    spread of that difference over paths is the error (paired: same prompts). With few paths that
    error is itself uncertain, so the ratio is read from Student's t with n-1 degrees and given as
    the normal deviate of equal tail probability: |z| > 3 is as rare with 4 paths as with 400.
    Missing below two paths or without a committed token, 0 where both agree on every path.
    """
    n = len(predicted)
    if n < 2 or path_tokens.sum() == 0 or tokens.sum() == 0:
        return None
    walked = predicted.sum() / path_tokens.sum()
    decoded = rounds.sum() / tokens.sum()
    residual_walked = (predicted - walked * path_tokens) / path_tokens.mean()
    residual_decoded = (rounds - decoded * tokens) / tokens.mean()
    gaps = (residual_decoded - residual_walked).to_numpy(dtype=np.float64)
    error = float(np.std(gaps, ddof=1) / np.sqrt(n))
    difference = float(decoded - walked)
    if abs(difference) < 1e-9:
        return 0.0
    if error <= 0:
        return None
    tail = max(stats.t.logsf(abs(difference) / error, n - 1), SMALLEST_LOG_TAIL)
    return float(np.sign(difference) * stats.norm.isf(np.exp(tail)))


def median_and_worst_error(summary: pd.DataFrame) -> tuple[float, float]:
    """Median and largest |predicted / measured - 1| over cells."""
    errors = summary["error"].abs()
    return float(errors.median()), float(errors.max())
