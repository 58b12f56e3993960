"""What real batches say of their prices: predicted before they run, measured beside. No torch.

Continuous refill is priced with all rows alive, so it is compared with what a pass took while they
were, times the passes that the requests need. A real run ends with fewer rows, and those are of the
requests that are slow: the tokens committed until then come too cheap. A static batch is compared
whole, from its first pass to its last row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.analysis.batch_costs import BatchCosts
from selfspec_cli.analysis.batch_pools import RowPool
from selfspec_cli.analysis.batch_walks import BatchSeconds, finite, run_plain, run_rounds
from selfspec_cli.analysis.batching import at_batch
from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.analysis.walk import PathCoins
from selfspec_cli.errors import CostRangeError

NUM_WALKS = 200  # coin-sampled walks of each static batch (METHOD.md §4)
KEYS = ["batch_size", "schedule", "temperature", "exit_layer", "draft_length"]
Schedule = Literal["refill", "static"]
SCHEDULES: tuple[Schedule, ...] = ("refill", "static")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedBatch:
    """Decode seconds of given paths at one cell and batch size, all together."""

    plain_seconds: float
    seconds: float

    def to_document(self) -> dict[str, float]:
        """Plain values for the manifest."""
        return {"plain_seconds": self.plain_seconds, "seconds": self.seconds}


def predict_refill(
    rows: pd.DataFrame, surfaces: Mapping[str, CostSurface], batch_size: int
) -> PredictedBatch | None:
    """Return what paths take in a refilled batch whose B rows are always alive (`at_batch`).

    Args:
        rows: walk rows of the paths at one cell.
        surfaces: of this batch size, by law class.
        batch_size: B.

    Returns:
        None where one path lies outside what was timed at B.
    """
    priced = at_batch(rows, surfaces, batch_size)
    return _predicted(priced["ar_seconds"].to_numpy().sum(), priced["seconds"].to_numpy().sum())


def predict_static(
    paths: Sequence[PathCoins],
    row: int,
    cell: tuple[int, int],
    costs: BatchSeconds,
    batch_size: int,
) -> PredictedBatch | None:
    """Return what paths take in static batches of B in their order; the last may be smaller.

    Exact at temperature 0, where every coin is known; else the mean over coin-sampled walks of
    these very batches.

    Args:
        paths: walkable paths of one law class.
        row: of their coins, that of the exit layer.
        cell: (L, k).
        costs: seconds of passes of that law.
        batch_size: B.

    Returns:
        None where a pass of a batch has no measured time, as one of fewer rows than were timed.
    """
    pool, rng = RowPool.of(paths, row), np.random.default_rng(0)
    plain = fast = 0.0
    for first in range(0, len(paths), batch_size):
        batch = np.arange(first, min(first + batch_size, len(paths)))
        members = np.tile(batch, (NUM_WALKS, 1))
        walked = run_rounds(pool, members, pool.toss(members, rng), cell, costs)
        fast += float(walked.seconds.mean())
        plain += float(run_plain(pool, members[:1], costs).seconds[0])
    return _predicted(plain, fast)


def _predicted(plain: float, seconds: float) -> PredictedBatch | None:
    known = np.isfinite(plain) and np.isfinite(seconds) and seconds > 0
    return PredictedBatch(plain_seconds=float(plain), seconds=float(seconds)) if known else None


def price_passes(
    costs: BatchCosts,
    exit_layer: int | None,
    passes: Sequence[tuple[int, int, int]],
) -> float | None:
    """Return cost-model seconds of passes that really happened.

    Args:
        costs: of the batch's law.
        exit_layer: L; None for plain steps.
        passes: (longest draft, context of the longest row, rows) of each.

    Returns:
        None where one of them has no measured time.
    """
    if not passes:
        return 0.0
    drafted, contexts, rows = np.array(passes, dtype=np.int64).T
    try:
        if exit_layer is None:
            return finite(costs.ar_seconds(contexts, rows).sum())
        return finite(costs.round_seconds(exit_layer, drafted, contexts, rows).sum())
    except CostRangeError:
        return None


def compared(rows: pd.DataFrame) -> pd.DataFrame:
    """Put what a schedule is judged by beside its measurements.

    Args:
        rows: schedule, committed, rounds, the measured seconds of both sides, whole and `full` (all
            rows alive), plain_full_committed and full_rounds (rows times passes of the full phase).

    Returns:
        compared_plain_seconds and compared_seconds, of all tokens: as measured in a static batch;
        of refill the full phase's seconds, scaled from its steps and rounds to those of all
        requests. Missing where no pass had all rows alive.
    """
    refill = (rows["schedule"] == "refill").to_numpy()
    steps, rounds = (
        rows[name].where(rows[name] > 0) for name in ("plain_full_committed", "full_rounds")
    )
    full = {
        "compared_plain_seconds": rows["plain_full_seconds"] * rows["committed"] / steps,
        "compared_seconds": rows["full_seconds"] * rows["rounds"] / rounds,
    }
    whole = {
        "compared_plain_seconds": rows["plain_seconds"],
        "compared_seconds": rows["seconds"],
    }
    return rows.assign(**{name: np.where(refill, full[name], whole[name]) for name in full})


def with_speedups(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of confirm_batch.csv with predicted_speedup and measured_speedup.

    Args:
        rows: as decoded, with predicted_plain_seconds and predicted_seconds.
    """
    found = compared(rows)
    return rows.assign(
        predicted_speedup=rows["predicted_plain_seconds"] / rows["predicted_seconds"],
        measured_speedup=found["compared_plain_seconds"] / found["compared_seconds"],
    )


SUMMARY_COLUMNS = (
    *KEYS, "num_requests", "num_repeats", "committed", "predicted_speedup", "measured_speedup",
    "error", "cost_error", "plain_seconds_error", "seconds_error", "exact",
)  # fmt: skip


def summarise_batch_confirm(rows: pd.DataFrame) -> pd.DataFrame:
    """Predicted beside measured, one row a (batch size, schedule, cell), repeats pooled.

    Args:
        rows: confirm_batch.csv.

    Returns:
        batch_size, schedule, temperature, exit_layer, draft_length, num_requests, num_repeats,
        committed, predicted_speedup, measured_speedup, error (predicted / measured - 1, signed),
        cost_error (the same with the cost model's seconds of the passes that really happened: cost
        alone, no walk), plain_seconds_error and seconds_error (predicted / measured - 1 of each
        side's time), exact (every greedy request equal to plain decoding or listed as a tie;
        missing at T > 0). All that needs a phase without a pass, or an unmeasured cost, is missing.
    """
    found = [_summary(own) for _, own in compared(rows).groupby(KEYS, sort=True)]
    return pd.DataFrame(found, columns=list(SUMMARY_COLUMNS))


def _summary(own: pd.DataFrame) -> dict[str, object]:
    first = own.iloc[0]
    plain, seconds, priced_plain, priced, predicted_plain, predicted = (
        own[f"{kind}_{name}"].sum(skipna=False)
        for kind in ("compared", "priced", "predicted")
        for name in ("plain_seconds", "seconds")
    )
    measured = plain / seconds
    greedy = float(first["temperature"]) == 0.0
    known = own["exact"].eq(True) | own["is_tie"].eq(True)
    return {
        **{name: first[name] for name in KEYS},
        "num_requests": int(first["num_requests"]),
        "num_repeats": len(own),
        "committed": int(own["committed"].sum()),
        "predicted_speedup": predicted_plain / predicted,
        "measured_speedup": measured,
        "error": predicted_plain / predicted / measured - 1,
        "cost_error": priced_plain / priced / measured - 1,
        "plain_seconds_error": predicted_plain / plain - 1,
        "seconds_error": predicted / seconds - 1,
        "exact": bool(known.all()) if greedy else None,
    }


def batch_confirm_told(summary: pd.DataFrame) -> str:
    """One line for people: how far the prices of batches were off.

    Args:
        summary: of `summarise_batch_confirm`.
    """
    known = summary.dropna(subset=["error"])
    if known.empty:
        return "batches were decoded, none long enough with all its rows to be compared"
    errors: npt.NDArray[np.float64] = known["error"].abs().to_numpy(dtype=np.float64)
    worst = known.iloc[int(errors.argmax())]
    return (
        f"{len(known)} runs in batches compared with their price: predicted speedups are off by "
        f"{np.median(errors):.1%} in the median, {errors.max():.1%} at worst "
        f"({worst['schedule']} at {worst['batch_size']} rows: predicted "
        f"{worst['predicted_speedup']:.2f}, measured {worst['measured_speedup']:.2f})"
    )
