"""What it gains to put requests of similar acceptance into one static batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from selfspec_cli.analysis.batch_pools import BatchSampling, LawPool, law_pools
from selfspec_cli.analysis.batch_walks import (
    BatchSeconds,
    costs_of,
    finite,
    ratio_of_sums,
    run_rounds,
    waiting_share,
)
from selfspec_cli.analysis.walk import Floats, Ints, PathCoins

_MIN_POOLS = 20  # pools below which their spread says little


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupingGain:
    """Static batches of neighbours in acceptance against random ones, same requests, same coins.

    Under continuous refill no row waits for another, so there the gain is none by construction.
    """

    batch_size: int
    num_pools: int
    """Times all requests were shuffled, tossed and put into batches both ways."""
    pool_requests: int
    """Requests of a pool; what does not fill a batch is left out of both ways."""
    ratio: float | None
    """Seconds a token at random ÷ seconds a token of neighbours; above 1, grouping is faster."""
    ratio_se: float | None
    """Standard error over pools: of shuffles and coins, not of which requests were observed."""
    seconds_per_token_random: float | None
    seconds_per_token_grouped: float | None
    waiting_share_random: float | None
    waiting_share_grouped: float | None

    @property
    def refill_ratio(self) -> float:
        """The same ratio under continuous refill: 1, because no row waits for another."""
        return 1.0


def grouping_gain(
    paths: Sequence[PathCoins],
    cell: tuple[int, int],
    exit_layers: Sequence[int],
    costs: Mapping[str, BatchSeconds],
    sampling: BatchSampling,
) -> GroupingGain:
    """Return what putting requests of similar acceptance into one static batch gains.

    A pool is all requests of a law, each once: shuffled and cut into batches, or sorted by the
    walk's own tested acceptance rate at this cell and cut; both with the same coins. Requests keep
    their lengths and budgets, which mostly decide who waits: this is the gain of acceptance alone.
    A larger pool to choose from finds closer neighbours. Missing below 2 B requests of a law.

    Args:
        paths: walkable paths of one bucket.
        cell: (L, k).
        exit_layers: L of each row of the paths' coins.
        costs: seconds of passes by law class.
        sampling: batch size, least number of batches (at least 20 pools), seed, leaving.

    Raises:
        ValueError: no paths, L is not among the exit layers, or a path has missing coins.
        CostRangeError: a law was not measured.
    """
    size, rng = sampling.batch_size, sampling.generator()
    pools = [pool for pool in law_pools(paths, cell, exit_layers) if len(pool) >= 2 * size]
    batches = sum(len(pool) // size for pool in pools)
    count = max(_MIN_POOLS, -(-sampling.num_batches // batches)) if batches else 0
    sums = np.zeros((2, 3, count))
    tokens = 0.0
    for pool in pools:
        orders = rng.permuted(np.tile(np.arange(len(pool)), (count, 1)), axis=1)
        orders = orders[:, : len(pool) // size * size]
        price = costs_of(costs, pool.law)
        for chunk in pool.rows.chunks(count, len(pool)):
            sums[:, :, chunk] += _both_ways(pool, orders[chunk], cell, price, (rng, sampling))
        tokens += float((pool.rows.lengths[orders] - 1).sum())
    return _gain(sums, tokens, size, batches * size)


def _both_ways(
    pool: LawPool,
    orders: Ints,
    cell: tuple[int, int],
    costs: BatchSeconds,
    how: tuple[np.random.Generator, BatchSampling],
) -> Floats:
    """Seconds, row-rounds and passes of shuffled pools [R, m], [random or grouped, 3, R]."""
    rng, sampling = how
    coins = pool.rows.toss(orders, rng)  # [R, m, n_max + 1]; a request keeps its coins both ways
    by_rate = np.argsort(pool.rates[orders], axis=1, kind="stable")
    grouped = np.take_along_axis(orders, by_rate, axis=1)
    again = np.take_along_axis(coins, by_rate[..., None], axis=1)
    sums = np.zeros((2, 3, len(orders)))
    for way, (members, tossed) in enumerate(((orders, coins), (grouped, again))):
        shape = (-1, sampling.batch_size)
        found = run_rounds(
            pool.rows,
            members.reshape(shape),
            tossed.reshape(*shape, tossed.shape[-1]),
            cell,
            costs,
            leaving=sampling.leaving,
        )
        each = (found.seconds, found.row_rounds.sum(axis=1), found.count)
        sums[way] = [values.reshape(len(orders), -1).sum(axis=1) for values in each]
    return sums


def _gain(sums: Floats, tokens: float, size: int, pool_requests: int) -> GroupingGain:
    """Gain from seconds, row-rounds and passes of each pool, [random or grouped, 3, R]."""
    (random, random_rounds, random_passes), (grouped, rounds, passes) = sums
    ratio, error = ratio_of_sums(random, grouped)
    return GroupingGain(
        batch_size=size,
        num_pools=len(random),
        pool_requests=pool_requests,
        ratio=ratio,
        ratio_se=error,
        seconds_per_token_random=finite(random.sum() / tokens) if tokens else None,
        seconds_per_token_grouped=finite(grouped.sum() / tokens) if tokens else None,
        waiting_share_random=waiting_share(random_rounds, random_passes, size),
        waiting_share_grouped=waiting_share(rounds, passes, size),
    )
