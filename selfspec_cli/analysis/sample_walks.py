"""Coin-sampled walks: the distribution of rounds that an expectation does not have."""

from dataclasses import dataclass

import numpy as np

from selfspec_cli.analysis.walk import Floats, Ints
from selfspec_cli.errors import ShapeError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WalkSamples:
    """Sampled walks of one path; counts are int64 [num_walks]."""

    rounds: Ints
    drafted: Ints
    accepted: Ints
    starts: Ints
    """Walks that started a round at each position, int64 [n]; its sum is that of `rounds`."""
    seconds: Floats | None
    """float64 [num_walks]; None where rounds were given no seconds."""


def sample_walks(
    coins: Floats,
    *,
    budget: int,
    draft_length: int,
    num_walks: int,
    rng: np.random.Generator,
    round_seconds: Floats | None = None,
) -> WalkSamples:
    """Draw whole walks of one path by tossing its coins.

    A position's coin is tossed at most once a walk, so all tosses can be drawn first.

    Args:
        coins: float64 [n]. r_t of one exit layer; entry 0 is unused.
        budget: maximum output tokens, at least n.
        draft_length: k >= 1.
        num_walks: walks to draw.
        rng: source of all randomness.
        round_seconds: seconds of a round that starts at s, [n], with the drafts and the context it
            has there; entry 0 is unused. None where only counts are wanted.

    Raises:
        ShapeError: coins are not one-dimensional, or seconds are not [n].
        ValueError: a coin is missing, budget < n or draft_length < 1.
    """
    n = _checked_length(coins, budget, draft_length)
    if round_seconds is not None and round_seconds.shape != (n,):
        raise ShapeError(f"seconds of rounds {round_seconds.shape} for {n} tokens")
    rejected = rng.random((num_walks, n)) >= np.nan_to_num(coins, nan=0.0)
    next_rejection = _next_true(rejected)  # [num_walks, n+1]
    starts = np.ones(num_walks, dtype=np.int64)
    totals = np.zeros((3, num_walks), dtype=np.int64)
    started = np.zeros(n, dtype=np.int64)
    seconds = None if round_seconds is None else np.zeros(num_walks)
    walks = np.arange(num_walks) if n > 1 else np.arange(0)
    while len(walks):
        start = starts[walks]
        drafted = np.minimum(draft_length, budget - start - 1)
        reach = np.minimum(drafted, n - start)
        accepted = np.minimum(next_rejection[walks, start] - start, reach)
        totals[:, walks] += np.stack([np.ones_like(start), drafted, accepted])
        started += np.bincount(start, minlength=n)
        if seconds is not None and round_seconds is not None:
            seconds[walks] += round_seconds[start]
        starts[walks] = start + accepted + 1
        walks = walks[starts[walks] < n]
    return WalkSamples(
        rounds=totals[0], drafted=totals[1], accepted=totals[2], starts=started, seconds=seconds
    )


def _checked_length(coins: Floats, budget: int, draft_length: int) -> int:
    if coins.ndim != 1 or len(coins) < 1:
        raise ShapeError(f"coins {coins.shape}, expected [n >= 1]")
    if budget < len(coins) or draft_length < 1:
        raise ValueError(f"budget {budget} < {len(coins)} tokens or draft length {draft_length}")
    if np.isnan(coins[1:]).any():
        raise ValueError("a coin is missing; this path cannot be walked")
    return len(coins)


def _next_true(flags: np.ndarray) -> Ints:
    """Index of the first True at or after each column; the number of columns where none is."""
    rows, n = flags.shape
    index = np.where(flags, np.arange(n), n)
    index = np.concatenate([index, np.full((rows, 1), n)], axis=1)
    return np.minimum.accumulate(index[:, ::-1], axis=1)[:, ::-1].astype(np.int64)
