"""What a rule may rest on: the cell chosen, and cross-fitted evidence for it.

A cell chosen because it looks best on some requests looks too good on those same requests, so its
own value is never its evidence. Instead every fold of requests is scored with the cell that the
other folds choose; the pooled pairs (plain seconds, speculative seconds) give one ratio of sums.

Source: cross-fitting as in Chernozhukov et al. 2018 (Econometrics Journal 21, C1-C68).
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.analysis.intervals import RatioInterval, jackknife_ratios, ratio_interval
from selfspec_cli.errors import ShapeError

Floats = npt.NDArray[np.float64]
Cell = tuple[int, int]
"""(exit layer, draft length)."""
Members = npt.NDArray[np.bool_] | npt.NDArray[np.int64]
"""Mask [G] or indices of groups."""

NUM_FOLDS = 10
MIN_FOLD = 3  # groups; a group scored alone gets the cell that its absence favours
NEAR_BEST = 0.01  # lower bounds this close (relative) to the best count as equal
_SAME_FOR_A_BUCKET = ("temperature", "drafter", "batch_size")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BucketTimes:
    """Seconds of one bucket by group of requests (G) and cell (C).

    Raises:
        ShapeError: the arrays do not agree in G or C.
    """

    groups: npt.NDArray[np.str_]
    """[G], unique and sorted."""
    ar: Floats
    """Plain decode seconds, [G]."""
    seconds: Floats
    """Expected speculative decode seconds, [G, C]."""
    cells: tuple[Cell, ...]
    """[C], sorted."""
    cost_log_sd: Floats
    """Standard error of log(speedup) that costs alone bring, [C]; NaN: unknown, no verdict."""
    prefill: Floats | None
    """Prefill seconds, [G]; None where not known for all."""

    def __post_init__(self) -> None:
        g, c = len(self.groups), len(self.cells)
        prefill = self.ar if self.prefill is None else self.prefill
        shapes = (self.ar.shape, prefill.shape, self.seconds.shape, self.cost_log_sd.shape)
        if shapes != ((g,), (g,), (g, c), (c,)):
            raise ShapeError(f"{g} groups and {c} cells, but arrays of shapes {shapes}")

    def select(self, cells: npt.ArrayLike) -> "BucketTimes":
        """Return the bucket with only some cells.

        Args:
            cells: mask [C] or indices of the cells kept, in order.
        """
        wanted = np.asarray(cells)
        kept = np.flatnonzero(wanted) if wanted.dtype == bool else wanted.astype(np.int64)
        return replace(
            self,
            seconds=self.seconds[:, kept],
            cells=tuple(self.cells[i] for i in kept),
            cost_log_sd=self.cost_log_sd[kept],
        )

    def decoding(self) -> "BucketTimes":
        """Return the bucket without groups that have no decode step: nothing can speed them up."""
        kept = self.ar > 0
        return replace(
            self,
            groups=self.groups[kept],
            ar=self.ar[kept],
            seconds=self.seconds[kept],
            prefill=None if self.prefill is None else self.prefill[kept],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The cell of a bucket and what speaks for it. All speedups are ratios of sums, decode only."""

    cell: Cell | None
    """Chosen on all groups; None where no group decodes."""
    interval: RatioInterval
    """Cross-fitted: the evidence. Missing below 2 groups."""
    in_sample: RatioInterval
    """Of `cell` on the groups that chose it: for display, never evidence."""
    num_groups: int
    """Groups with a decode step."""
    effective_groups: float | None
    fold_cells: Mapping[Cell, int]
    """How many folds chose each cell; many different ones mean that no cell stands out."""
    group_cells: Mapping[str, Cell]
    """The cell that each group was scored with: chosen without its fold. Empty where no fold could
    choose."""
    median_request_ratio: float | None
    """Median over groups of plain ÷ speculative seconds at `cell`: what a typical request sees, a
    different quantity from the ratio of sums, in which long requests weigh more."""
    request_speedup: float | None
    """As the interval's estimate, with prefill added to both sides; None without prefill times."""
    runner_up: tuple[Cell, float] | None
    """The cell chosen if `cell` were not there, with its in-sample speedup."""
    oracle_speedup: float | None
    """Every group at its own best cell, or off: a ceiling no rule can reach."""

    @property
    def supports_verdict(self) -> bool:
        """Whether a rule may rest on the interval: it exists and has enough effective groups."""
        return self.interval.low is not None and self.interval.supports_verdict


def bucket_times(
    rows: pd.DataFrame, cost_log_sd: Mapping[Cell, float] | npt.ArrayLike
) -> BucketTimes:
    """Return the seconds of one bucket; the requests of a group are added up.

    Args:
        rows: walk rows of the bucket, every path at every cell: group_id, exit_layer,
            draft_length, ar_seconds, seconds and, optionally, prefill_seconds (s).
        cost_log_sd: standard error of log(speedup) from costs, by (L, k), or an array over the
            cells sorted by L, then k. A cell that the mapping lacks is unknown.

    Raises:
        ValueError: rows of several temperatures, drafters or batch sizes, a time that is not
            priced, or a path that lacks cells.
    """
    _check_rows(rows)
    groups, group = np.unique(rows["group_id"].to_numpy().astype(str), return_inverse=True)
    pairs = rows[["exit_layer", "draft_length"]].to_numpy(dtype=np.int64)
    table, cell = np.unique(pairs, axis=0, return_inverse=True)
    cells = tuple((int(layer), int(k)) for layer, k in table)
    code = group * len(cells) + cell.ravel()

    def sums(values: npt.ArrayLike) -> Floats:
        totals = np.bincount(code, np.asarray(values), len(groups) * len(cells))
        return totals.astype(np.float64).reshape(len(groups), len(cells))

    counts = sums(np.ones(len(rows)))
    if (counts != counts[:, :1]).any():
        raise ValueError("a path lacks some of the cells; rows must hold the whole grid")
    # Plain and prefill seconds repeat at every cell of a path; any one cell has them all.
    return BucketTimes(
        groups=groups,
        ar=sums(rows["ar_seconds"])[:, :1].sum(axis=1),
        seconds=sums(rows["seconds"]),
        cells=cells,
        cost_log_sd=_by_cell(cost_log_sd, cells),
        prefill=sums(rows["prefill_seconds"])[:, :1].sum(axis=1) if _has_prefill(rows) else None,
    )


def choose_cell(times: BucketTimes, members: Members | None = None) -> int | None:
    """Return the index of the cell with the best jackknife lower bound of the speedup.

    Cells whose bound is within 1 % (relative) of the best count as equal: the smaller draft length
    wins, then the smaller exit layer. Where no cell has a bound (fewer than 2 groups, or costs of
    unknown uncertainty) the estimates are compared instead.

    Args:
        times: seconds of the bucket.
        members: groups to use, mask [G] or indices; None for all.

    Returns:
        Index into `times.cells`; None without cells, or if no group used has a decode step.
    """
    use = np.arange(len(times.groups)) if members is None else np.asarray(members)
    ar, seconds = times.ar[use], times.seconds[use]
    ratios = jackknife_ratios(ar[:, None], seconds, extra_log_sd=times.cost_log_sd)
    score = ratios.low if np.isfinite(ratios.low).any() else ratios.estimate
    if not np.isfinite(score).any():
        return None
    near = np.flatnonzero(score >= np.nanmax(score) * (1.0 - NEAR_BEST))  # NaN compares false
    return int(min(near, key=lambda i: (times.cells[i][1], times.cells[i][0])))


def fold_of(groups: Sequence[str] | npt.NDArray[np.str_], num_folds: int) -> npt.NDArray[np.int64]:
    """Return the fold of each group: sorted by hash, dealt in turn, so folds are equal within 1.

    The hash makes folds independent of row order and of names that follow a task or a day.

    Args:
        groups: unique group ids, [G].
        num_folds: folds wanted; never more than groups.

    Raises:
        ValueError: num_folds < 1.
    """
    if num_folds < 1:
        raise ValueError(f"at least one fold is needed, got {num_folds}")
    names = [str(group) for group in groups]
    order = sorted(range(len(names)), key=lambda i: hashlib.sha256(names[i].encode()).digest())
    folds = np.empty(len(names), dtype=np.int64)
    folds[order] = np.arange(len(names)) % max(1, min(num_folds, len(names)))
    return folds


def cross_fit(times: BucketTimes, num_folds: int = NUM_FOLDS) -> Evidence:
    """Return the cell of a bucket and the evidence for it.

    The evidence judges the procedure "choose the best cell": its pairs come from whatever cell the
    other folds chose. Their log ratio mixes the cost errors of those cells with weights that sum
    to 1, so the largest of the cells' standard errors bounds its own, however the errors are
    correlated; that bound enters the interval.

    Args:
        times: seconds of the bucket, cells restricted to those a rule may use.
        num_folds: folds at most. Fewer where folds would have under 3 groups, but always 2:
            scored alone, a group meets the cells that its own absence favours, and intervals
            then cover too little (measured at 12 and 20 groups).

    Raises:
        ValueError: num_folds < 1, or a time that is negative or not finite.
    """
    used = times.decoding()
    best = choose_cell(used)
    if best is None:
        return _no_evidence(used)
    folds = fold_of(used.groups, min(num_folds, max(2, len(used.groups) // MIN_FOLD)))
    chosen = [choose_cell(used, folds != fold) for fold in range(folds.max() + 1)]
    picks = _picks(used, folds, chosen)
    cross = score(used, picks)
    own = used.seconds[:, best]
    return Evidence(
        cell=used.cells[best],
        interval=cross,
        in_sample=_interval(used, own, float(used.cost_log_sd[best])),
        num_groups=len(used.groups),
        effective_groups=cross.effective_groups,
        fold_cells=dict(sorted(Counter(used.cells[i] for i in chosen if i is not None).items())),
        group_cells=picks,
        median_request_ratio=float(np.median(used.ar / own)),
        request_speedup=_request_speedup(times, cross.estimate),
        runner_up=_runner_up(used, best),
        oracle_speedup=float(used.ar.sum() / np.minimum(used.ar, used.seconds.min(axis=1)).sum()),
    )


def score(times: BucketTimes, group_cells: Mapping[str, Cell]) -> RatioInterval:
    """Return the speedup of groups whose cells were chosen elsewhere, with its interval.

    With the choices of `cross_fit` and the seconds of another batch size, the evidence stays out of
    fold: each group meets a cell that was chosen without it.

    Args:
        times: seconds of the bucket, at any costs.
        group_cells: cell of each group (`Evidence.group_cells`); groups that it lacks have no
            decode step and are left out.

    Returns:
        The interval, the largest standard error of the cells' costs in it; missing without groups.
    """
    places = {cell: at for at, cell in enumerate(times.cells)}
    asked = [places.get(group_cells.get(str(group), (0, 0)), -1) for group in times.groups]
    cells = np.array(asked, dtype=np.int64)
    use = np.flatnonzero(cells >= 0)
    if not len(use):
        return _missing(len(times.groups))
    seconds = times.seconds[use, cells[use]]
    log_sd = float(times.cost_log_sd[cells[use]].max())  # NaN stays NaN
    return ratio_interval(times.ar[use], seconds, use, extra_log_sd=log_sd)


def _picks(
    times: BucketTimes, folds: npt.NDArray[np.int64], chosen: Sequence[int | None]
) -> dict[str, Cell]:
    """Cell of each group by its fold; nothing where a fold could not choose."""
    picked = [at for at in chosen if at is not None]
    if len(chosen) < 2 or len(picked) < len(chosen):
        return {}
    return {
        str(group): times.cells[picked[fold]]
        for group, fold in zip(times.groups, folds, strict=True)
    }


def _interval(times: BucketTimes, seconds: Floats, cost_log_sd: float) -> RatioInterval:
    one_row_each = np.arange(len(times.groups))
    return ratio_interval(times.ar, seconds, one_row_each, extra_log_sd=cost_log_sd)


def _runner_up(times: BucketTimes, best: int) -> tuple[Cell, float] | None:
    others = times.select(np.arange(len(times.cells)) != best)
    second = choose_cell(others)
    if second is None:
        return None
    return others.cells[second], float(others.ar.sum() / others.seconds[:, second].sum())


def _request_speedup(times: BucketTimes, speedup: float | None) -> float | None:
    """Speedup with prefill on both sides; groups without a decode step have a prefill too."""
    if times.prefill is None or speedup is None:
        return None
    prefill, plain = times.prefill.sum(), times.ar.sum()
    return float((prefill + plain) / (prefill + plain / speedup))


def _missing(num_groups: int) -> RatioInterval:
    nothing = ratio_interval([], [], [])
    return replace(nothing, num_groups=num_groups)


def _no_evidence(times: BucketTimes) -> Evidence:
    nothing = _missing(len(times.groups))
    return Evidence(
        cell=None,
        interval=nothing,
        in_sample=nothing,
        num_groups=len(times.groups),
        effective_groups=None,
        fold_cells={},
        group_cells={},
        median_request_ratio=None,
        request_speedup=None,
        runner_up=None,
        oracle_speedup=None,
    )


def _check_rows(rows: pd.DataFrame) -> None:
    for name in _SAME_FOR_A_BUCKET:
        if name in rows and len(rows[name].unique()) > 1:
            raise ValueError(f"rows of one bucket differ in {name}: {rows[name].unique()}")
    if rows[["ar_seconds", "seconds"]].isna().any(axis=None):
        raise ValueError("walk rows without seconds; price them first")


def _has_prefill(rows: pd.DataFrame) -> bool:
    return "prefill_seconds" in rows and bool(rows["prefill_seconds"].notna().all())


def _by_cell(cost_log_sd: Mapping[Cell, float] | npt.ArrayLike, cells: tuple[Cell, ...]) -> Floats:
    if isinstance(cost_log_sd, Mapping):
        cost_log_sd = [cost_log_sd.get(cell, np.nan) for cell in cells]
    return np.broadcast_to(np.asarray(cost_log_sd, dtype=np.float64), (len(cells),))
