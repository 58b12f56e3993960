"""Prices of a batch: continuous refill from the expected walk, static batches from sampled walks.

*Continuous refill*: B rows are always alive, so a request pays its share of every pass it takes
part in and the expected walk suffices (`at_batch`). *Static batch*: rows start together, none is
refilled, and the batch lasts as long as its longest row, so it needs the distribution of rounds:
expected rounds are always too few (`static_batches`). The plain baseline is run the same way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.analysis.batch_pools import BatchSampling, LawPool, law_pools
from selfspec_cli.analysis.batch_walks import (
    BatchSeconds,
    costs_of,
    finite,
    ratio_of_sums,
    run_plain,
    run_rounds,
    waiting_share,
)
from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.analysis.reprice import mean_ar_context, price_rounds, stack_lists
from selfspec_cli.analysis.walk import Floats, Ints, PathCoins


def at_batch(
    walk: pd.DataFrame, surfaces: Mapping[str, CostSurface], batch_size: int
) -> pd.DataFrame:
    """Return walk rows priced for continuous refill at a batch size: this request's share.

    `seconds` and `ar_seconds` are the seconds of the batch's rounds (plain steps) the request takes
    part in, divided by B. A round of a batch drafts as long as the row that drafts most, so from
    B = 2 on every round is priced at the cell's full k, also those in which this request's own
    budget leaves it less to draft, or nothing; a batch of one row has no other to wait for and pays
    its own drafts. Rounds are priced at their mean context (`reprice`), as if all rows stood where
    this request stands; where they differ much the longest one decides, and a share is a little
    too low on both sides of a speedup. A refill's own prefill is not in `seconds`, and
    `prefill_seconds` stay those of one request.

    Args:
        walk: walk rows of any batch size; law, exit_layer, draft_length, prompt_tokens, committed,
            rounds_by_drafted, context_by_drafted.
        surfaces: by law class, seconds of a step or round of the whole batch of B rows.
        batch_size: B >= 1.

    Returns:
        The rows with batch_size, seconds and ar_seconds replaced. Both are NaN where the law, k or
        a context of the path was not timed at B: never extrapolated.

    Raises:
        ValueError: batch_size < 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch size {batch_size}, expected >= 1")
    seconds, plain = np.full((2, len(walk)), np.nan)
    laws = walk["law"].to_numpy().astype(str)
    for law in sorted(set(laws) & set(surfaces)):
        at = np.flatnonzero(laws == law)
        at = at[_timed(walk.iloc[at], surfaces[law])]
        if len(at):
            totals = _batch_seconds(walk.iloc[at], surfaces[law], batch_size)
            seconds[at], plain[at] = (total / batch_size for total in totals)
    return walk.assign(batch_size=batch_size, seconds=seconds, ar_seconds=plain)


def _timed(rows: pd.DataFrame, surface: CostSurface) -> npt.NDArray[np.bool_]:
    """Whether every context of each row's path, and its k, was timed."""
    low, high = surface.context_range
    prompts = rows["prompt_tokens"].to_numpy(dtype=np.float64)
    steps = np.rint(rows["committed"].to_numpy(dtype=np.float64))  # n - 1
    inside = (prompts >= low) & (prompts + steps - 1 <= high)
    narrow = rows["draft_length"].to_numpy() <= surface.max_draft_length
    return np.asarray((inside & narrow) | (steps == 0))


def _batch_seconds(
    rows: pd.DataFrame, surface: CostSurface, batch_size: int
) -> tuple[Floats, Floats]:
    """Seconds [rows] of all rounds and of all plain steps that rows of one law take part in."""
    ks = rows["draft_length"].to_numpy(dtype=np.int64)
    counts = stack_lists(rows["rounds_by_drafted"], int(ks.max()) + 1)
    contexts = stack_lists(rows["context_by_drafted"], int(ks.max()) + 1)
    layers = rows["exit_layer"].to_numpy(dtype=np.int64)
    paid = paid_lengths(ks, batch_size)
    steps = rows["committed"].to_numpy(dtype=np.float64)
    plain, some = np.zeros(len(rows)), steps > 0
    plain[some] = steps[some] * surface.ar_seconds(mean_ar_context(rows)[some])
    return price_rounds(layers, counts, contexts, surface, paid), plain


def paid_lengths(draft_lengths: Ints, batch_size: int) -> Ints | None:
    """Return the drafted length every round pays in a refilled batch; None: each its own."""
    return draft_lengths if batch_size > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBatches:
    """What static batches of one cell cost, decode only; standard errors are over batches drawn.

    They say nothing about how well the bucket's requests stand for others. Seconds are None where
    a pass has no measured time.
    """

    batch_size: int
    num_batches: int
    num_requests: int
    """Paths drawn from."""
    leaving: bool
    seconds: float | None
    """Mean seconds of a batch with speculation."""
    plain_seconds: float | None
    """Mean seconds of the same batches decoded plainly."""
    speedup: float | None
    """Ratio of sums; None also where nothing is decoded."""
    speedup_se: float | None
    """Standard error of `speedup` from the batches drawn."""
    expected_max_rounds: float
    """Mean over batches of the rounds of the longest row: what a batch lasts."""
    max_expected_rounds: float
    """Mean over batches of the largest expected rounds of a row: too few."""
    mean_rounds: float
    """Rounds of a row."""
    waiting_share: float | None
    """1 - row-rounds / (B × passes): share of row time lost to waiting for the longest row."""
    plain_waiting_share: float | None
    """The same for plain decoding, where only lengths differ."""

    @property
    def lasting(self) -> str:
        """How long a batch lasts, in words."""
        return (
            f"a static batch of {self.batch_size} lasts {self.expected_max_rounds:.1f} rounds, "
            f"those of its longest row, on average over {self.num_batches} sampled batches; its "
            f"largest expected rounds are {self.max_expected_rounds:.1f}, those of a row "
            f"{self.mean_rounds:.1f}"
        )


def static_batches(
    paths: Sequence[PathCoins],
    cell: tuple[int, int],
    exit_layers: Sequence[int],
    costs: Mapping[str, BatchSeconds],
    sampling: BatchSampling,
) -> StaticBatches:
    """Return the cost of static batches of a cell: rows start together, none is refilled.

    Rows are drawn with replacement from the paths, coins are tossed anew for each row. A batch is
    of one law class, each law as often as its share of the paths. A pass drafts as long as the row
    that may draft most and costs the seconds of the rows in it at the context of the longest.

    Args:
        paths: walkable paths of one bucket.
        cell: (L, k).
        exit_layers: L of each row of the paths' coins.
        costs: seconds of passes by law class.
        sampling: batch size, batches, seed, and whether ended rows leave.

    Raises:
        ValueError: no paths, L is not among the exit layers, or a path has missing coins.
        CostRangeError: a law was not measured.
    """
    rng, size = sampling.generator(), sampling.batch_size
    pools = law_pools(paths, cell, exit_layers)
    sizes = np.array([len(pool) for pool in pools])
    shares = rng.multinomial(sampling.num_batches, sizes / sizes.sum())
    parts = []
    for pool, count in zip(pools, shares, strict=True):
        members = rng.integers(0, len(pool), (count, size))
        price = costs_of(costs, pool.law)
        for chunk in pool.rows.chunks(count, size):
            parts.append(_walked(pool, members[chunk], cell, price, (rng, sampling.leaving)))
    seconds, plain, passes, longest, rounds, steps, plain_passes = np.concatenate(parts, axis=1)
    speedup, error = ratio_of_sums(plain, seconds)
    return StaticBatches(
        batch_size=size,
        num_batches=sampling.num_batches,
        num_requests=len(paths),
        leaving=sampling.leaving,
        seconds=finite(seconds.mean()),
        plain_seconds=finite(plain.mean()),
        speedup=speedup,
        speedup_se=error,
        expected_max_rounds=float(passes.mean()),
        max_expected_rounds=float(longest.mean()),
        mean_rounds=float(rounds.mean()) / size,
        waiting_share=waiting_share(rounds, passes, size),
        plain_waiting_share=waiting_share(steps, plain_passes, size),
    )


def _walked(
    pool: LawPool,
    members: Ints,
    cell: tuple[int, int],
    costs: BatchSeconds,
    how: tuple[np.random.Generator, bool],
) -> Floats:
    """Seven numbers a batch, [7, S]; `how` is (rng, leaving)."""
    rng, leaving = how
    rejections = pool.rows.toss(members, rng)
    fast = run_rounds(pool.rows, members, rejections, cell, costs, leaving=leaving)
    plain = run_plain(pool.rows, members, costs, leaving=leaving)
    longest = pool.rounds[members].max(axis=1)
    rounds, steps = fast.row_rounds.sum(axis=1), plain.row_rounds.sum(axis=1)
    return np.stack(
        [fast.seconds, plain.seconds, fast.count, longest, rounds, steps, plain.count]
    ).astype(np.float64)
