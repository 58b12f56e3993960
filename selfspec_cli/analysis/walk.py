"""The path walk: exact expected rounds, counts and seconds of every (path, L, k) at once.

A path is a continuation drawn from the target. Whether the draft of exit layer L would have been
accepted at output position t is an independent coin r_t(L), so a short recursion over round starts
gives the exact expectation for every draft length; nothing is drafted and nothing is sampled.

Conventions, used everywhere in this package:

* Output tokens are x_0 .. x_{n-1}; x_0 comes from prefill. A round started at s (1 <= s < n) has
  x_0 .. x_{s-1} committed, drafts positions s .. s+k'-1 and k' = min(k, budget - s - 1).
* The *context* of a round, and of a plain step, with start s is the number of tokens in the cache
  before its first input x_{s-1}: prompt_tokens + s - 1.

Source: the coins are the acceptance step of Leviathan et al. 2023 (arXiv 2211.17192, algorithm 1)
read along a path drawn from the target.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.errors import CostRangeError, ShapeError
from selfspec_cli.records import EARLY_EXIT

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Surfaces = CostSurface | Mapping[str, CostSurface]
"""One surface for all paths, or one per law class."""

_CELLS_PER_BATCH = 400_000  # (path, L, k) cells walked together; bounds memory near 100 MB


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathCoins:
    """One path and its acceptance coins for every exit layer of a sweep.

    Raises:
        ShapeError: `coins` is not [E, n] with n >= 1.
        ValueError: budget < n, a negative prompt length, or a coin outside [0, 1].
    """

    path_id: str
    request_id: str
    group_id: str
    temperature: float
    prompt_tokens: int
    """Tokens of the prompt, template included."""
    budget: int
    """Maximum output tokens in force for this path, x_0 included; at least n."""
    coins: Floats
    """float64 [E, n]. Column t holds r_t; column 0 is unused (NaN). NaN elsewhere: p(x_t) = 0."""
    law: str = ""
    """Law class of the request's sampling; empty means greedy at T = 0, else sampled."""

    def __post_init__(self) -> None:
        if self.coins.ndim != 2 or self.coins.shape[1] < 1:
            raise ShapeError(f"path {self.path_id}: coins {self.coins.shape}, expected [E, n >= 1]")
        if self.budget < self.num_tokens or self.prompt_tokens < 0:
            raise ValueError(
                f"path {self.path_id}: budget {self.budget} < {self.num_tokens} output tokens, "
                f"or negative prompt length {self.prompt_tokens}"
            )
        used = self.coins[:, 1:]
        if np.any((used < 0.0) | (used > 1.0)):
            raise ValueError(f"path {self.path_id}: a coin lies outside [0, 1]")

    @property
    def num_tokens(self) -> int:
        """Output tokens of the path, x_0 included."""
        return int(self.coins.shape[1])

    @property
    def law_class(self) -> str:
        """Key of the cost surface that prices this path."""
        return self.law or ("greedy" if self.temperature == 0.0 else "sampled")

    @property
    def walkable(self) -> bool:
        """Whether every coin is known."""
        return not bool(np.isnan(self.coins[:, 1:]).any())


def split_walkable(paths: Sequence[PathCoins]) -> tuple[list[PathCoins], list[str]]:
    """Separate paths whose coins are all known from those with a missing one.

    Returns:
        Paths that can be walked, and the path_ids of the others, both in input order. The caller
        reports how many were left out.
    """
    good = [path for path in paths if path.walkable]
    return good, [path.path_id for path in paths if not path.walkable]


def round_context(prompt_tokens: npt.ArrayLike, start: npt.ArrayLike) -> Ints:
    """Return the context (tokens in the cache) of a round or plain step that starts at `start`."""
    return np.asarray(prompt_tokens, dtype=np.int64) + np.asarray(start, dtype=np.int64) - 1


def walk(
    paths: Sequence[PathCoins],
    exit_layers: Sequence[int],
    draft_lengths: Sequence[int],
    surface: Surfaces | None = None,
) -> pd.DataFrame:
    """Return the walk table: expected counts and seconds, one row a (path, L, k).

    Args:
        paths: walkable paths; `coins` rows belong to `exit_layers` in order.
        exit_layers: L of each row of `coins` (layers).
        draft_lengths: k, each >= 1 (tokens).
        surface: costs, one surface or one per law class; None leaves the seconds missing.

    Returns:
        Keys path_id, request_id, group_id, temperature, law, prompt_tokens, drafter, exit_layer,
        draft_length, batch_size. Expected counts rounds, drafted, tested, accepted, committed
        (= n - 1). Lists of length k+1: rounds_by_drafted[j], context_by_drafted[j] (rounds that
        draft j tokens and the sum of their contexts, tokens), rounds_by_accepted[a]. ar_seconds,
        seconds (s, decode only), prefill_seconds (s; missing where none was timed). Rows follow the
        order of the arguments. A path of one token has no rounds.

    Raises:
        ShapeError: coins do not have one row an exit layer.
        ValueError: a path has missing coins, or a draft length is below 1.
        CostRangeError: a context, L, k or law lies outside what was measured.
    """
    lengths = _checked(paths, exit_layers, draft_lengths)
    tables, order = [pd.DataFrame(columns=list(COLUMNS))], np.zeros(0, dtype=np.int64)
    for law in dict.fromkeys(path.law_class for path in paths):
        price = None if surface is None else surface_for(surface, law)
        chosen = [i for i, path in enumerate(paths) if path.law_class == law]
        for indices in _batches(paths, chosen, len(exit_layers) * len(lengths)):
            batch = _Batch.of([paths[i] for i in indices], np.asarray(exit_layers), lengths)
            totals = _walk_batch(batch, price)
            tables.append(_batch_table([paths[i] for i in indices], batch, totals, price))
            order = np.append(order, np.repeat(indices, len(exit_layers) * len(lengths)))
    if len(tables) == 1:
        return tables[0]
    # Batches are sorted by length inside; bring rows back to the order of the arguments.
    return pd.concat(tables[1:]).iloc[np.argsort(order, kind="stable")].reset_index(drop=True)


COLUMNS = (
    "path_id", "request_id", "group_id", "temperature", "law", "prompt_tokens", "drafter",
    "exit_layer", "draft_length", "batch_size", "rounds", "drafted", "tested", "accepted",
    "committed", "rounds_by_drafted", "context_by_drafted", "rounds_by_accepted", "ar_seconds",
    "seconds", "prefill_seconds",
)  # fmt: skip
"""Columns of walk.parquet, in order."""


def _checked(paths: Sequence[PathCoins], exit_layers: Sequence[int], ks: Sequence[int]) -> Ints:
    if len(ks) == 0 or min(ks) < 1:
        raise ValueError(f"draft lengths must be >= 1, got {list(ks)}")
    for path in paths:
        if path.coins.shape[0] != len(exit_layers):
            raise ShapeError(
                f"path {path.path_id}: coins {path.coins.shape} for {len(exit_layers)} exit layers"
            )
        if not path.walkable:
            raise ValueError(f"path {path.path_id} has missing coins; use split_walkable first")
    return np.asarray(ks, dtype=np.int64)


def surface_for(surfaces: Surfaces, law: str) -> CostSurface:
    """Return the surface that prices a law class.

    Raises:
        CostRangeError: surfaces are kept by law and this one was not measured.
    """
    if isinstance(surfaces, CostSurface):
        return surfaces
    if law not in surfaces:
        raise CostRangeError(
            f"no cost was measured for the {law} law",
            hint=f"measured laws: {', '.join(sorted(surfaces))}",
        )
    return surfaces[law]


def _batches(
    paths: Sequence[PathCoins], chosen: list[int], cells_per_path: int
) -> Iterator[list[int]]:
    """Yield indices by falling length, so that the living paths of a batch are its first rows."""
    order = sorted(chosen, key=lambda i: -paths[i].num_tokens)
    size = max(1, _CELLS_PER_BATCH // max(1, cells_per_path))
    for first in range(0, len(order), size):
        yield order[first : first + size]


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Paths padded to one array, sorted by falling length."""

    coins: Floats  # [P, E, n_max + k_max + 1], zero beyond each path's end
    lengths: Ints  # [P] n
    budgets: Ints  # [P]
    prompts: Ints  # [P]
    exit_layers: Ints  # [E]
    ks: Ints  # [K]

    @classmethod
    def of(cls, paths: Sequence[PathCoins], exit_layers: Ints, ks: Ints) -> "_Batch":
        lengths = np.array([path.num_tokens for path in paths], dtype=np.int64)
        width = int(lengths[0] + ks.max() + 1)
        coins = np.zeros((len(paths), len(exit_layers), width))
        for row, path in enumerate(paths):
            coins[row, :, 1 : path.num_tokens] = path.coins[:, 1:]
        budgets = np.array([path.budget for path in paths], dtype=np.int64)
        prompts = np.array([path.prompt_tokens for path in paths], dtype=np.int64)
        return cls(coins, lengths, budgets, prompts, exit_layers, ks)


@dataclass(frozen=True, slots=True, eq=False)
class _Totals:
    """Sums over starts, weighted with the probability of a start."""

    by_accepted: Floats  # [P, E, K, k_max+1]
    by_drafted: Floats  # [P, E, K, k_max+1]
    context_by_drafted: Floats  # [P, E, K, k_max+1] tokens
    rejections: Floats  # [P, E, K]
    next_tokens: Floats  # [P, E, K] recovered and bonus tokens
    seconds: Floats  # [P, E, K]

    @classmethod
    def zeros(cls, batch: _Batch) -> "_Totals":
        cells = (len(batch.lengths), len(batch.exit_layers), len(batch.ks))
        lists = (*cells, int(batch.ks.max()) + 1)
        return cls(*(np.zeros(lists) for _ in range(3)), *(np.zeros(cells) for _ in range(3)))

    def add_starts(self, starts: Floats, drafted: Ints, contexts: Ints) -> None:
        """Add rounds that start with probability `starts` [P', E, K] and draft `drafted` [P', K].

        Each (path, k) meets exactly one drafted length, so the indexed += never collides.
        """
        rows, columns = np.indices(drafted.shape)
        weight = np.swapaxes(starts, 1, 2)  # [P', K, E]
        self.by_drafted[rows, :, columns, drafted] += weight
        self.context_by_drafted[rows, :, columns, drafted] += weight * contexts[:, None, None]


def _walk_batch(batch: _Batch, surface: CostSurface | None) -> _Totals:
    totals = _Totals.zeros(batch)
    k_max = int(batch.ks.max())
    # pending[s % width] holds V_s; a round reaches at most k_max + 1 positions ahead.
    pending = np.zeros((k_max + 2, *totals.seconds.shape))
    pending[1] = 1.0
    for start in range(1, int(batch.lengths[0])):
        alive = int(np.searchsorted(-batch.lengths, -start))  # paths with n > start
        starts = pending[start % (k_max + 2), :alive].copy()
        pending[start % (k_max + 2)] = 0.0
        contexts = round_context(batch.prompts[:alive], start)
        drafted = np.minimum(batch.ks, batch.budgets[:alive, None] - start - 1)  # [P', K]
        totals.add_starts(starts, drafted, contexts)
        if surface is not None:
            seconds = surface.round_seconds(batch.exit_layers, drafted, contexts[:, None])
            totals.seconds[:alive] += starts * np.swapaxes(seconds, 0, 1)
        _spread(batch, totals, pending, start, (starts, drafted))
    return totals


def _spread(
    batch: _Batch,
    totals: _Totals,
    pending: Floats,
    start: int,
    opened: tuple[Floats, Ints],
) -> None:
    """Spread the rounds opened at `start` over their accepted lengths and the next starts.

    `reach` is how many drafts can be tested: k', or fewer where the path ends first. Accepting all
    of `reach` < n - s drafts is followed by a bonus token; accepting up to the path's end is not.
    """
    survivors, drafted = opened
    alive = len(survivors)
    left = batch.lengths[:alive, None] - start  # [P', 1] path tokens from start on
    reach = np.minimum(drafted, left)[:, None, :]  # [P', 1, K]
    for accepted in range(len(pending) - 1):
        coin = batch.coins[:alive, :, start + accepted, None]  # [P', E, 1]
        rejected = np.where(accepted < reach, survivors * (1.0 - coin), 0.0)
        ended = rejected + np.where(accepted == reach, survivors, 0.0)
        totals.by_accepted[:alive, :, :, accepted] += ended
        totals.rejections[:alive] += rejected
        totals.next_tokens[:alive] += np.where(accepted < left[:, None, :], ended, 0.0)
        pending[(start + accepted + 1) % len(pending), :alive] += ended
        survivors = survivors * coin


def _batch_table(
    paths: Sequence[PathCoins], batch: _Batch, totals: _Totals, surface: CostSurface | None
) -> pd.DataFrame:
    """Return the rows of a batch: paths outside, then exit layers, then draft lengths."""
    steps = np.arange(totals.by_accepted.shape[-1])
    accepted = (totals.by_accepted * steps).sum(axis=-1)  # [P, E, K]
    grid = [len(paths), len(batch.exit_layers), len(batch.ks)]
    per_path = {
        "path_id": [path.path_id for path in paths],
        "request_id": [path.request_id for path in paths],
        "group_id": [path.group_id for path in paths],
        "temperature": [path.temperature for path in paths],
        "law": [path.law_class for path in paths],
        "prompt_tokens": batch.prompts,
        "ar_seconds": [_ar_seconds(path, surface) for path in paths],
        "prefill_seconds": [_prefill_seconds(path, surface) for path in paths],
    }
    table = pd.DataFrame(per_path).loc[np.repeat(np.arange(grid[0]), grid[1] * grid[2])]
    ks = np.tile(batch.ks, grid[0] * grid[1])
    seconds = totals.seconds if surface is not None else np.full(grid, np.nan)
    return table.assign(
        drafter=EARLY_EXIT,
        exit_layer=np.tile(np.repeat(batch.exit_layers, grid[2]), grid[0]),
        draft_length=ks,
        batch_size=1,
        rounds=totals.by_accepted.sum(axis=-1).ravel(),
        drafted=(totals.by_drafted * steps).sum(axis=-1).ravel(),
        tested=(accepted + totals.rejections).ravel(),
        accepted=accepted.ravel(),
        committed=(accepted + totals.next_tokens).ravel(),
        rounds_by_drafted=_lists(totals.by_drafted, ks),
        context_by_drafted=_lists(totals.context_by_drafted, ks),
        rounds_by_accepted=_lists(totals.by_accepted, ks),
        seconds=seconds.ravel(),
    ).loc[:, list(COLUMNS)]


def _lists(values: Floats, ks: Ints) -> npt.NDArray[np.object_]:
    """One list of length k+1 a row."""
    cells = np.empty(len(ks), dtype=object)
    rows = values.reshape(len(ks), -1)
    for index, (row, k) in enumerate(zip(rows, ks, strict=True)):
        cells[index] = row[: k + 1].tolist()
    return cells


def _ar_seconds(path: PathCoins, surface: CostSurface | None) -> float:
    if surface is None:
        return float("nan")
    contexts = round_context(path.prompt_tokens, np.arange(1, path.num_tokens))
    return float(surface.ar_seconds(contexts).sum())


def _prefill_seconds(path: PathCoins, surface: CostSurface | None) -> float:
    seconds = None if surface is None else surface.prefill_seconds(path.prompt_tokens)
    return float("nan") if seconds is None else float(seconds)
