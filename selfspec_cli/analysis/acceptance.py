"""Acceptance from counts. A rate's name says what it is divided by; what is undefined is None.

Expected counts of the walk and counted rounds of a decoder go through the same functions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.records import Round

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceCounts:
    """Sums over rounds; real numbers, because expected counts are not whole."""

    rounds: float
    drafted: float
    tested: float
    accepted: float
    committed: float
    rounds_by_accepted: tuple[float, ...]
    """Entry a: rounds that accepted exactly a drafts, a = 0..k."""

    @classmethod
    def from_rounds(cls, rounds: Iterable[Round], draft_length: int) -> "AcceptanceCounts":
        """Count the rounds of a decoder.

        Raises:
            ValueError: a round accepted more than `draft_length` tokens.
        """
        kept = list(rounds)
        histogram = [0.0] * (draft_length + 1)
        for one in kept:
            if one.num_accepted > draft_length:
                raise ValueError(f"{one.num_accepted} accepted with draft length {draft_length}")
            histogram[one.num_accepted] += 1
        return cls(
            rounds=len(kept),
            drafted=sum(one.num_drafted for one in kept),
            tested=sum(one.num_tested for one in kept),
            accepted=sum(one.num_accepted for one in kept),
            committed=sum(one.num_committed for one in kept),
            rounds_by_accepted=tuple(histogram),
        )

    @classmethod
    def from_walk(cls, rows: pd.DataFrame) -> "AcceptanceCounts":
        """Sum walk rows of one draft length: a ratio of sums, not a mean of ratios.

        Raises:
            ValueError: rows of several draft lengths, which share no per-position counts.
        """
        if len(rows["draft_length"].unique()) > 1:
            raise ValueError("rows of several draft lengths cannot be pooled by position")
        names = ("rounds", "drafted", "tested", "accepted", "committed")
        sums = {name: float(rows[name].sum()) for name in names}
        histogram = np.sum([np.asarray(row) for row in rows["rounds_by_accepted"]], axis=0)
        return cls(**sums, rounds_by_accepted=tuple(np.atleast_1d(histogram).tolist()))


def ratio(numerator: float, denominator: float) -> float | None:
    """Return the ratio, or None where the denominator is 0 and nothing is known."""
    return numerator / denominator if denominator > 0 else None


def acceptance_rate_tested(counts: AcceptanceCounts) -> float | None:
    """Return accepted ÷ tested: does not fall because k grows; None if nothing was tested."""
    return ratio(counts.accepted, counts.tested)


def acceptance_rate_drafted(counts: AcceptanceCounts) -> float | None:
    """Return accepted ÷ drafted: the useful share of draft work, falls as k grows."""
    return ratio(counts.accepted, counts.drafted)


def mean_accepted_tokens(counts: AcceptanceCounts) -> float | None:
    """Return accepted ÷ rounds, without the target's own token."""
    return ratio(counts.accepted, counts.rounds)


def block_efficiency(counts: AcceptanceCounts) -> float | None:
    """Return 1 + accepted ÷ rounds: tokens a target pass yields before trimming."""
    mean = mean_accepted_tokens(counts)
    return None if mean is None else 1.0 + mean


def tokens_per_round(counts: AcceptanceCounts) -> float | None:
    """Return committed ÷ rounds: after trimming at the end and the budget; what time sees."""
    return ratio(counts.committed, counts.rounds)


def accept_at_joint(counts: AcceptanceCounts) -> list[float | None]:
    """Return, for i = 1..k, rounds that accepted at least i drafts ÷ rounds."""
    reached = _at_least(counts.rounds_by_accepted)
    return [ratio(value, counts.rounds) for value in reached[1:]]


def accept_at_cond(counts: AcceptanceCounts) -> list[float | None]:
    """Return, for i = 1..k, rounds that accepted >= i drafts ÷ rounds that accepted >= i-1."""
    reached = _at_least(counts.rounds_by_accepted)
    return [ratio(value, before) for before, value in pairwise(reached)]


def _at_least(histogram: Sequence[float]) -> list[float]:
    """Entry i: rounds that accepted i or more."""
    tail: Floats = np.cumsum(np.asarray(histogram, dtype=np.float64)[::-1])[::-1]
    return [float(value) for value in tail]
