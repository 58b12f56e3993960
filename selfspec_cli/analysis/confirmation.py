"""What real decoding says of the predictions: measured beside predicted, and regret."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from selfspec_cli.analysis.intervals import RatioInterval, ratio_interval
from selfspec_cli.errors import ExactnessError

SMALLEST_LOG_TAIL = -700.0  # 1e-304, |z| = 37; below it the deviate would be infinite
LEVEL = 0.95  # of intervals
CELL_KEYS = ["temperature", "exit_layer", "draft_length"]
BUCKET_COLUMNS = ["task", "context_min", "context_max", "temperature"]
CONFIRM_KEYS = [*BUCKET_COLUMNS, "exit_layer", "draft_length"]
"""One cell of one bucket; context_max is missing where the band is open."""


def add_predictions(measured: pd.DataFrame, walk: pd.DataFrame) -> pd.DataFrame:
    """Put each measured decode beside what the walk said of the same path and cell."""
    keys = ["path_id", "exit_layer", "draft_length"]
    predicted = walk[[*keys, "ar_seconds", "seconds", "rounds", "tested", "accepted"]]
    names = {name: f"predicted_{name}" for name in predicted.columns if name not in keys}
    return measured.merge(predicted.rename(columns=names), on=keys, how="left", validate="m:1")


def summarise_confirm(confirm: pd.DataFrame) -> pd.DataFrame:
    """Predicted beside measured, one row a cell of a bucket.

    Args:
        confirm: confirm.csv.

    Returns:
        task, context_min, context_max, temperature, exit_layer, draft_length, role, num_paths,
        num_tokens, predicted_speedup, measured_speedup with measured_speedup_low and _high (95 %,
        jackknife over groups; missing below 2), num_groups and effective_groups, error (predicted
        / measured - 1, signed), coin_error (the same with the rounds that the coins really gave:
        cost alone), predicted_rounds_per_token, free_rounds_per_token and rounds_z (free decodes
        against the walk in standard errors over paths; at T = 0 the rounds of the timed decodes),
        exact (share of decodes equal to plain decoding; missing at T > 0).
    """
    rows = [_summary(cell) for _, cell in confirm.groupby(CONFIRM_KEYS, sort=True, dropna=False)]
    return pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS))


SUMMARY_COLUMNS = (
    *CONFIRM_KEYS, "role", "num_paths", "num_tokens", "predicted_speedup", "measured_speedup",
    "measured_speedup_low", "measured_speedup_high", "num_groups", "effective_groups", "error",
    "coin_error", "predicted_rounds_per_token", "free_rounds_per_token", "rounds_z", "exact",
)  # fmt: skip


def _summary(cell: pd.DataFrame) -> dict[str, object]:
    predicted = cell["predicted_ar_seconds"].sum() / cell["predicted_seconds"].sum()
    interval = ratio_interval(cell["ar_seconds"], cell["seconds"], cell["group_id"], level=LEVEL)
    measured = cell["ar_seconds"].sum() / cell["seconds"].sum()
    priced = cell["predicted_ar_seconds"].sum() / cell["priced_seconds"].sum()
    greedy = bool(cell["temperature"].iloc[0] == 0.0)
    rounds = cell["rounds"] if greedy else cell["free_rounds"]
    committed = cell["committed"] if greedy else cell["free_committed"]
    first = cell.iloc[0]
    return {
        **{name: first[name] for name in ("task", "context_min", "context_max")},
        **cell_key(cell),
        "role": first["role"],
        "num_paths": cell["path_id"].nunique(),
        "num_tokens": int(cell["committed"].sum()),
        "predicted_speedup": predicted,
        "measured_speedup": measured,
        "measured_speedup_low": interval.low,
        "measured_speedup_high": interval.high,
        "num_groups": interval.num_groups,
        "effective_groups": interval.effective_groups,
        "error": predicted / measured - 1,
        "coin_error": priced / measured - 1,
        "predicted_rounds_per_token": cell["predicted_rounds"].sum() / cell["committed"].sum(),
        "free_rounds_per_token": rounds.sum() / committed.sum() if committed.sum() else None,
        "rounds_z": rounds_z(cell["predicted_rounds"], cell["committed"], rounds, committed),
        "exact": cell["exact"].astype(float).mean() if greedy else None,
    }


def regrets(confirm: pd.DataFrame) -> pd.DataFrame:
    """What the chosen cell of a bucket costs against the best one measured on the same paths.

    The best of several looks good by chance alone, so the loss counts only where the paired
    interval of chosen ÷ best seconds (jackknife over groups, 95 % shared by the rivals) lies above
    1; else regret is 0. It is missing where nothing but the chosen cell was decoded, or on one
    group only.

    Args:
        confirm: confirm.csv.

    Returns:
        task, context_min, context_max, temperature, exit_layer and draft_length (the chosen cell),
        best_exit_layer, best_draft_length, seconds_ratio (chosen ÷ best) with _low and _high,
        regret (share of the best cell's seconds lost).
    """
    buckets = confirm.groupby(BUCKET_COLUMNS, sort=True, dropna=False)
    rows = [_regret(bucket) for _, bucket in buckets if (bucket["role"] == "rule").any()]
    return pd.DataFrame(rows, columns=list(REGRET_COLUMNS))


REGRET_COLUMNS = (
    *CONFIRM_KEYS, "best_exit_layer", "best_draft_length", "seconds_ratio", "seconds_ratio_low",
    "seconds_ratio_high", "regret",
)  # fmt: skip


def _regret(bucket: pd.DataFrame) -> dict[str, object]:
    first = bucket.loc[bucket["role"] == "rule"].iloc[0]
    row: dict[str, object] = {name: first[name] for name in CONFIRM_KEYS}
    table = bucket.pivot_table(
        index="group_id", columns=["exit_layer", "draft_length"], values="seconds", aggfunc="sum"
    )
    cells = [
        (int(layer), int(k))
        for layer, k in zip(*map(table.columns.get_level_values, (0, 1)), strict=True)
    ]
    seconds = table.to_numpy()  # [G, cells]
    chosen = cells.index((first["exit_layer"], first["draft_length"]))
    best = int(seconds.sum(axis=0).argmin())
    rivals = len(cells) - 1
    if rivals == 0:
        return row
    row |= {"best_exit_layer": cells[best][0], "best_draft_length": cells[best][1]}
    paired = ratio_interval(
        seconds[:, chosen], seconds[:, best], table.index, level=1 - (1 - LEVEL) / rivals
    )
    return row | {
        "seconds_ratio": paired.estimate,
        "seconds_ratio_low": paired.low,
        "seconds_ratio_high": paired.high,
        "regret": _loss(paired),
    }


def _loss(paired: RatioInterval) -> float | None:
    if paired.low is None or paired.estimate is None:
        return None
    return paired.estimate - 1 if paired.low > 1 else 0.0


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


def check_exact(confirm: pd.DataFrame, file: str = "confirm.csv") -> None:
    """Refuse to go on where greedy output differed.

    Args:
        confirm: decodes with temperature, exit_layer, draft_length, path_id, exact, is_tie,
            first_difference and top2_gap.
        file: where people find all of them.

    Raises:
        ExactnessError: names the first such decode and how many there are.
    """
    greedy = confirm.loc[confirm["temperature"] == 0.0]
    wrong = greedy.loc[~greedy["exact"].eq(True) & ~greedy["is_tie"].eq(True)]
    if len(wrong):
        first = wrong.iloc[0]
        raise ExactnessError(
            f"{len(wrong)} of {len(greedy)} greedy decodes differ from plain decoding; the first "
            f"at exit layer {first['exit_layer']}, draft length {first['draft_length']}, output "
            f"position {first['first_difference']:.0f} (top-2 gap {first['top2_gap']:.3g})",
            where=str(first["path_id"]),
            hint="This is a bug or an unsupported model; do not serve with it. "
            f"All differences are in {file}.",
        )


def check_law(proof: Mapping[str, Any]) -> None:
    """Refuse to go on where sampled rounds were found not to commit the target's law.

    Args:
        proof: the stage's `exactness` (`LawProof.to_document`).

    Raises:
        ExactnessError: with the smallest p-value and the level it was held against.
    """
    if proof["passed"] is False:
        raise ExactnessError(
            f"sampled rounds do not commit the target's law: smallest chi-square p "
            f"{proof['smallest_p']:.2g} of {proof['positions']} positions with {proof['draws']} "
            f"draws each, level {proof['alarm_level']:.2g}; {proof['disagreements']} of "
            f"{proof['checked']} single draws decided otherwise",
            where="temperature > 0",
            hint="This is a bug or an unsupported model; do not serve with it. By chance alone "
            f"this happens in {proof['false_alarm']:.2g} of runs.",
        )
