"""The tail of a cell: how many requests get slower, and the gaps between tokens.

Expected seconds have no tail, so walks are drawn by tossing the coins of every path. All times
are predictions on the cost surface; queueing is not in them.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from selfspec_cli.analysis.latency import min_values_for
from selfspec_cli.analysis.sample_walks import sample_walks
from selfspec_cli.analysis.walk import Floats, Ints, PathCoins, Surfaces, round_context, surface_for

SLOW_FACTOR = 1.05
"""A request is slow if it takes longer than this times its own plain time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Tail of one cell over the requests of a bucket."""

    slow_share: float | None
    """Share of (request, sampled walk) pairs that are slow; None without requests."""
    slow_share_high: float | None
    """Upper end of the two-sided 95 % Clopper-Pearson interval at x = slow_share × n, with n the
    groups of requests: walks of one request are no new evidence, nor are repeats of a prompt."""
    num_requests: int
    """Paths read."""
    num_groups: int
    with_prefill: bool
    """Whether request times include prefill; else they are decode only, which overstates slowness
    and gain alike."""
    p50_ratio: float | None
    """Median request time ÷ median plain request time; likewise below. Each a ratio of quantiles,
    not a quantile of ratios: what a dashboard shows before and after."""
    p90_ratio: float | None
    """Missing below 20 requests."""
    p95_ratio: float | None
    """Missing below 60 requests."""
    p99_ratio: float | None
    """Missing below 300 requests."""
    gap_p99_s: float | None
    """P99 over rounds of the time between a round's tokens and the one before, which is the
    round's own time (s). None without a decode step."""
    gap_p99_ar_s: float | None
    """P99 over plain steps (s)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _PathTimes:
    """Sampled times of one path."""

    plain: float  # s, prefill included where known
    speculative: Floats  # [num_walks] s, likewise
    rounds: Floats  # [n - 1] seconds of a round started at 1, 2, ..
    starts: Ints  # [n - 1] how many of the walks started a round there
    steps: Floats  # [n - 1] seconds of the plain steps

    def after(self, prefill: float) -> "_PathTimes":
        """Return the times with prefill (s) before both decodes."""
        return replace(self, plain=self.plain + prefill, speculative=self.speculative + prefill)


def request_tail(  # noqa: PLR0913 - four inputs, what to ask, and two defaults
    paths: Sequence[PathCoins],
    cell: tuple[int, int],
    exit_layers: Sequence[int],
    surfaces: Surfaces,
    prefill_seconds: Mapping[str, float] | None,
    *,
    num_walks: int = 200,
    seed: int = 0,
) -> Tail:
    """Return the tail of a cell over the paths of a bucket, one path a request.

    Walks depend on the seed and a path's own id only: neither the order of the paths nor the cell
    changes the coins tossed, so two cells are compared on the same luck.

    Args:
        paths: walkable paths of one bucket.
        cell: (L, k).
        exit_layers: L of each row of the paths' coins.
        surfaces: costs, one surface or one per law class.
        prefill_seconds: seconds of prefill by path_id, for every path; None if not known.
        num_walks: walks drawn a path; a path whose coins are all 0 or 1 needs only one.
        seed: of the coin tosses.

    Raises:
        ValueError: L is not among the exit layers, a path has missing coins, num_walks < 1.
        KeyError: a path without prefill seconds.
        CostRangeError: a context, L, k or law lies outside what was measured.
    """
    if cell[0] not in exit_layers or num_walks < 1:
        raise ValueError(f"no coins of exit layer {cell[0]}, or {num_walks} walks asked for")
    row = list(exit_layers).index(cell[0])
    times = []
    for path in paths:
        sampled = _path_times(path, path.coins[row], cell, surfaces, (num_walks, seed))
        prefill = 0.0 if prefill_seconds is None else prefill_seconds[path.path_id]
        times.append(sampled.after(prefill))
    groups = len({path.group_id for path in paths})
    return _tail(times, groups, with_prefill=prefill_seconds is not None)


def _path_times(
    path: PathCoins,
    coins: Floats,
    cell: tuple[int, int],
    surfaces: Surfaces,
    draws: tuple[int, int],
) -> _PathTimes:
    """Decode times of one path; `draws` is (walks, seed)."""
    layer, k = cell
    num_walks, seed = draws
    starts = np.arange(1, path.num_tokens)
    contexts = round_context(path.prompt_tokens, starts)
    surface = surface_for(surfaces, path.law_class)
    drafted = np.minimum(k, path.budget - starts - 1)
    rounds = surface.round_seconds([layer], drafted, contexts)[0]
    steps = surface.ar_seconds(contexts)
    certain = bool(np.isin(coins[1:], (0.0, 1.0)).all())
    samples = sample_walks(
        coins,
        budget=path.budget,
        draft_length=k,
        num_walks=1 if certain else num_walks,
        rng=_generator(path.path_id, seed),
        round_seconds=np.append(0.0, rounds),
    )
    copies = num_walks if certain else 1  # every path weighs the same
    return _PathTimes(
        plain=float(steps.sum()),
        speculative=np.tile(np.asarray(samples.seconds, dtype=np.float64), copies),
        rounds=rounds,
        starts=samples.starts[1:] * copies,
        steps=steps,
    )


def _generator(path_id: str, seed: int) -> np.random.Generator:
    """Generator of one path, the same on every machine."""
    digest = hashlib.sha256(path_id.encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])


def _tail(times: Sequence[_PathTimes], num_groups: int, *, with_prefill: bool) -> Tail:
    share = None
    if times:
        # Counts, not means: the sum is then exact in any order of the paths.
        slow = sum(int((t.speculative > SLOW_FACTOR * t.plain).sum()) for t in times)
        share = slow / sum(len(t.speculative) for t in times)
    steps = np.concatenate([t.steps for t in times]) if times else np.zeros(0)
    rounds = np.concatenate([t.rounds for t in times]) if times else np.zeros(0)
    starts = np.concatenate([t.starts for t in times]) if times else np.zeros(0, dtype=np.int64)
    return Tail(
        slow_share=share,
        slow_share_high=None if share is None else upper_share(share, num_groups),
        num_requests=len(times),
        num_groups=num_groups,
        with_prefill=with_prefill,
        p50_ratio=_quantile_ratio(times, 0.50),
        p90_ratio=_quantile_ratio(times, 0.90),
        p95_ratio=_quantile_ratio(times, 0.95),
        p99_ratio=_quantile_ratio(times, 0.99),
        gap_p99_s=_weighted_quantile(rounds, starts, 0.99),
        gap_p99_ar_s=_weighted_quantile(steps, np.ones(len(steps), dtype=np.int64), 0.99),
    )


def upper_share(share: float, num_trials: int) -> float:
    """Return the upper end of the two-sided 95 % Clopper-Pearson interval of a share.

    Args:
        share: observed share in [0, 1]; share × trials need not be whole.
        num_trials: independent trials, at least 1.

    Raises:
        ValueError: a share outside [0, 1] or no trial.
    """
    if not 0.0 <= share <= 1.0 or num_trials < 1:
        raise ValueError(f"share {share} of {num_trials} trials")
    hits = share * num_trials
    if hits >= num_trials:
        return 1.0
    return float(stats.beta.ppf(0.975, hits + 1.0, num_trials - hits))


def _quantile_ratio(times: Sequence[_PathTimes], level: float) -> float | None:
    """Quantile of request times ÷ quantile of plain request times, missing below the minimum."""
    if len(times) < min_values_for(level):
        return None
    speculative = np.concatenate([t.speculative for t in times])
    # Repeated like the walks: identical times must give exactly 1.
    plain = np.repeat([t.plain for t in times], [len(t.speculative) for t in times])
    below = float(np.quantile(plain, level, method="linear"))
    return float(np.quantile(speculative, level, method="linear")) / below if below > 0 else None


def _weighted_quantile(values: Floats, weights: Ints, level: float) -> float | None:
    """Smallest value with at least `level` of the weight at or below it; None without weight."""
    if weights.sum() == 0:
        return None
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, level * reached[-1])])
