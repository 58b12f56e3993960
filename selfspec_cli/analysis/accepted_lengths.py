"""Accepted lengths of one cell: their histogram, its spread over groups, and its peaks.

Two peaks, at "nothing accepted" and "everything accepted", mean that easy and hard stretches or
requests are mixed: the median request gains while the slowest pays for all-miss rounds.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from selfspec_cli.analysis.reprice import stack_lists

Floats = npt.NDArray[np.float64]

MIN_PEAK_GROUPS = 8  # fewer groups say nothing about a shape
PEAK_Z = 3.0  # standard errors over groups that each end must lie above constant acceptance
MIN_PEAK_EXCESS = 0.05  # share of rounds; a smaller excess is real in a large log but costs nothing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AcceptedLengths:
    """Shares of rounds by accepted length a = 0..k; arrays are float64 [k+1]."""

    share: Floats
    low: Floats
    """Lower end of the 95 % interval over groups; NaN below two groups."""
    high: Floats
    constant: Floats
    """Shares that one constant acceptance, the cell's own tested rate, would give."""
    num_groups: int
    two_peaks: bool


def accepted_lengths(rows: pd.DataFrame) -> AcceptedLengths | None:
    """Return the histogram of one bucket at one cell.

    Constant acceptance α alone has more rounds at 0 than at 1, and for α > 1/2 more at k than at
    k - 1, so a shape is not enough. Two peaks are reported only if, at both ends, the share is a
    local maximum and exceeds what constant acceptance gives by `MIN_PEAK_EXCESS` and by `PEAK_Z`
    jackknife standard errors over at least `MIN_PEAK_GROUPS` groups (k >= 2).

    Args:
        rows: walk rows of one draft length: group_id, tested, accepted, rounds_by_accepted,
            rounds_by_drafted.

    Returns:
        The histogram; None where no round was walked.
    """
    width = int(rows["draft_length"].max()) + 1 if len(rows) else 1
    codes, groups = pd.factorize(rows["group_id"], sort=True)
    counts = _by_group(codes, len(groups), stack_lists(rows["rounds_by_accepted"], width))
    drafted = _by_group(codes, len(groups), stack_lists(rows["rounds_by_drafted"], width))
    tests = _by_group(codes, len(groups), rows[["accepted", "tested"]].to_numpy(dtype=np.float64))
    if counts.sum() <= 0:
        return None
    share, constant = _shares(counts.sum(axis=0), drafted.sum(axis=0), tests.sum(axis=0))
    left_out = [
        _shares(*(whole.sum(axis=0) - whole[g] for whole in (counts, drafted, tests)))
        for g in range(len(groups))
    ]
    error = _jackknife_sd(np.array([one for one, _ in left_out]))
    excess_error = _jackknife_sd(np.array([one - flat for one, flat in left_out]))
    half = stats.t.ppf(0.975, max(len(groups) - 1, 1)) * error
    return AcceptedLengths(
        share=share,
        low=np.maximum(share - half, 0.0),
        high=np.minimum(share + half, 1.0),
        constant=constant,
        num_groups=len(groups),
        two_peaks=len(groups) >= MIN_PEAK_GROUPS
        and _two_peaks(share, share - constant, excess_error),
    )


def _two_peaks(share: Floats, excess: Floats, error: Floats) -> bool:
    if len(share) < 3:
        return False
    peaks = share[0] > share[1] and share[-1] > share[-2]
    ends = [0, -1]
    clear = (excess[ends] > PEAK_Z * error[ends]) & (excess[ends] > MIN_PEAK_EXCESS)
    return bool(peaks and clear.all())


def _shares(counts: Floats, drafted: Floats, tests: Floats) -> tuple[Floats, Floats]:
    """Shares observed and under constant acceptance, given how many tokens rounds drafted."""
    total = max(float(counts.sum()), 1e-300)
    alpha = float(tests[0] / tests[1]) if tests[1] > 0 else 0.0
    flat = np.zeros(len(counts))
    for k, rounds in enumerate(drafted):
        flat[:k] += rounds * (1.0 - alpha) * alpha ** np.arange(k)
        flat[k] += rounds * alpha**k
    return counts / total, flat / max(float(flat.sum()), 1e-300)


def _jackknife_sd(left_out: Floats) -> Floats:
    n = len(left_out)
    if n < 2:
        return np.full(left_out.shape[1:], np.nan)
    spread: Floats = ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0)
    return np.sqrt((n - 1) / n * spread)


def _by_group(codes: npt.NDArray[np.intp], count: int, values: Floats) -> Floats:
    sums = np.zeros((count, values.shape[1]))
    np.add.at(sums, codes, values)
    return sums
