"""What batches are drawn from: the paths of a bucket by law class, padded, with their walk."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from selfspec_cli.analysis.walk import Floats, Ints, PathCoins, walk

_COINS_AT_ONCE = 2_000_000  # coins tossed together; bounds memory near 60 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSampling:
    """How batches are drawn.

    Raises:
        ValueError: batch_size < 1 or num_batches < 2.
    """

    batch_size: int
    """B, rows that start together."""
    num_batches: int = 200
    seed: int = 0
    leaving: bool = True
    """Rows that ended leave the pass; otherwise they stay as padding, as in many servers."""

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.num_batches < 2:
            raise ValueError(f"{self.num_batches} batches of {self.batch_size} rows")

    def generator(self) -> np.random.Generator:
        """Return the source of draws; no cell is in it, so cells share their luck."""
        return np.random.default_rng([self.seed, self.batch_size])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowPool:
    """Paths that rows of a batch are drawn from, at one exit layer; P paths."""

    coins: Floats
    """float64 [P, n_max]; zero in column 0 and beyond a path's end."""
    lengths: Ints
    """Output tokens n, int64 [P]."""
    budgets: Ints
    """int64 [P]."""
    prompts: Ints
    """int64 [P]."""

    @classmethod
    def of(cls, paths: Sequence[PathCoins], row: int) -> "RowPool":
        """Read row `row` of each path's coins; paths are walkable and at least one."""
        lengths = np.array([path.num_tokens for path in paths], dtype=np.int64)
        coins = np.zeros((len(paths), int(lengths.max())))
        for at, path in enumerate(paths):
            coins[at, 1 : path.num_tokens] = path.coins[row, 1:]
        return cls(
            coins=coins,
            lengths=lengths,
            budgets=np.array([path.budget for path in paths], dtype=np.int64),
            prompts=np.array([path.prompt_tokens for path in paths], dtype=np.int64),
        )

    def chunks(self, batches: int, rows: int) -> Iterator[slice]:
        """Cut `batches` of `rows` rows into slices whose coins fit into memory together."""
        size = max(1, _COINS_AT_ONCE // (rows * self.coins.shape[1]))
        for first in range(0, batches, size):
            yield slice(first, min(first + size, batches))

    def toss(self, members: Ints, rng: np.random.Generator) -> Ints:
        """Toss all coins of the drawn rows.

        Args:
            members: path of each row, int64 [..., B].
            rng: source of the tosses.

        Returns:
            Position of the first rejected draft at or after each position, int64
            [..., B, n_max + 1]; n_max where there is none.
        """
        n = self.coins.shape[1]
        flags = rng.random((*members.shape, n)) >= self.coins[members]
        found = np.full((*members.shape, n + 1), n, dtype=np.int64)
        found[..., :n] = np.where(flags, np.arange(n), n)
        return np.minimum.accumulate(found[..., ::-1], axis=-1)[..., ::-1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LawPool:
    """Paths of one law at one cell, and what the expected walk says of each, [P]."""

    law: str
    rows: RowPool
    rounds: Floats
    """Expected rounds."""
    rates: Floats
    """Acceptance rate, tested; NaN where nothing is ever tested."""

    def __len__(self) -> int:
        return len(self.rates)


def law_pools(
    paths: Sequence[PathCoins], cell: tuple[int, int], exit_layers: Sequence[int]
) -> list[LawPool]:
    """Split the paths of a bucket by law class and walk each at `cell` = (L, k).

    Raises:
        ValueError: no paths, L is not among the exit layers, or a path has missing coins.
    """
    if not paths or cell[0] not in exit_layers:
        raise ValueError(f"{len(paths)} paths, no coins of exit layer {cell[0]}")
    row = list(exit_layers).index(cell[0])
    pools = []
    for law in dict.fromkeys(path.law_class for path in paths):
        chosen = [path for path in paths if path.law_class == law]
        alone = [replace(path, coins=path.coins[row : row + 1]) for path in chosen]
        table = walk(alone, [cell[0]], [cell[1]])
        tested, accepted = table["tested"].to_numpy(), table["accepted"].to_numpy()
        rates = np.divide(accepted, tested, out=np.full(len(tested), np.nan), where=tested > 0)
        rounds = table["rounds"].to_numpy(dtype=np.float64)
        pools.append(LawPool(law=law, rows=RowPool.of(chosen, row), rounds=rounds, rates=rates))
    return pools
