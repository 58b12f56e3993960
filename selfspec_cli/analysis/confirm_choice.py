"""Which cells are decoded for real, on which paths, within which budget. No torch.

A cell to confirm is a bucket with an (L, k). The cell of the rule that carries most traffic comes
first, then its runner-up and a deliberately different cell on the same paths (where a prediction
is extreme it is easiest to refute), then the other rules by traffic share: enabled ones, then
disabled ones, so that a "no" is checked too.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from selfspec_cli.buckets import BucketKey, bucket_of

Role = Literal["rule", "runner_up", "contrast"]
Pair = tuple[int, int]
"""(exit layer, draft length)."""

MIN_BUDGET_S = 90.0  # of confirmation by default
BUDGET_SHARE = 0.20  # of the run's time so far, where that is more
HALF_RANGE = 0.5  # of L and of k: as far as a contrast lies from the chosen cell at least
CELLS_PER_BASELINE = 3  # cells decoded between two plain runs of a path


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleCell:
    """What confirmation needs of a rule."""

    bucket: BucketKey
    cell: Pair
    enabled: bool
    time_share: float
    """Share of the log's plain decode time."""
    runner_up: Pair | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmCell:
    """A cell to decode, and the paths of its own bucket to decode it on."""

    bucket: BucketKey
    cell: Pair
    role: Role
    path_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may be decoded."""

    cells: int
    requests: int
    """Paths of a cell."""
    min_tokens: int
    """Output tokens of a path; shorter ones are taken only where a bucket has no others left."""
    repeats: int
    budget_s: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The cells chosen and what decoding them should take."""

    cells: tuple[ConfirmCell, ...]
    predicted_s: float
    num_left_out: int
    """Cells within the limit on cells that the budget had no room for."""


def with_buckets(
    walk: pd.DataFrame, requests: pd.DataFrame, edges: Sequence[int]
) -> dict[BucketKey, pd.DataFrame]:
    """Split walk rows that have something to draft by the bucket of their request.

    Args:
        walk: walk.parquet.
        requests: requests.parquet; request_id and task.
        edges: of the context bands, prompt tokens.
    """
    tasks = dict(zip(requests["request_id"], requests["task"], strict=True))
    paths = walk.loc[walk["committed"] > 0].drop_duplicates("path_id")
    names = ["path_id", "request_id", "prompt_tokens", "temperature"]
    found: dict[BucketKey, list[str]] = {}
    for path_id, request_id, prompt, temperature in paths[names].itertuples(index=False):
        key = bucket_of(
            task=tasks[request_id],
            prompt_tokens=int(prompt),
            temperature=float(temperature),
            edges=edges,
        )
        found.setdefault(key, []).append(path_id)
    return {key: walk.loc[walk["path_id"].isin(found[key])] for key in sorted(found)}


def choose(
    rules: Iterable[RuleCell],
    by_bucket: Mapping[BucketKey, pd.DataFrame],
    limits: Limits,
) -> Choice:
    """Choose the cells to confirm, in order of importance, while their predicted time fits.

    A cell that does not fit is left out and cheaper ones after it may still fit; the first cell is
    always kept. The choice depends on its arguments alone.

    Args:
        rules: the draft plan's, in any order; those without a path to decode are passed over.
        by_bucket: walk rows by bucket (`with_buckets`), only cells that a rule may use.
        limits: how much may be decoded.
    """
    usable = [rule for rule in rules if rule.bucket in by_bucket]
    ordered = sorted(usable, key=lambda r: (not r.enabled, -r.time_share, r.bucket))
    wanted = _by_importance(ordered, by_bucket)[: limits.cells]
    paths = {
        bucket: choose_paths(by_bucket[bucket], limits)
        for bucket in dict.fromkeys(bucket for bucket, _, _ in wanted)
    }
    chosen: list[ConfirmCell] = []
    spent = 0.0
    for bucket, cell, role in wanted:
        one = ConfirmCell(bucket=bucket, cell=cell, role=role, path_ids=paths[bucket])
        seconds = _seconds([*chosen, one], by_bucket, limits.repeats)
        if chosen and seconds > limits.budget_s:
            continue
        chosen.append(one)
        spent = seconds
    return Choice(cells=tuple(chosen), predicted_s=spent, num_left_out=len(wanted) - len(chosen))


def _by_importance(
    rules: Sequence[RuleCell], by_bucket: Mapping[BucketKey, pd.DataFrame]
) -> list[tuple[BucketKey, Pair, Role]]:
    """First rule, its runner-up and contrast, then the other rules."""
    if not rules:
        return []
    first = rules[0]
    rows = by_bucket[first.bucket]
    runner_up = first.runner_up or _second_best(rows, first.cell)
    contrast = _contrast(rows, first.cell, runner_up)
    extras: list[tuple[BucketKey, Pair, Role]] = []
    if runner_up is not None:
        extras.append((first.bucket, runner_up, "runner_up"))
    if contrast is not None:
        extras.append((first.bucket, contrast, "contrast"))
    rest: list[tuple[BucketKey, Pair, Role]] = [(r.bucket, r.cell, "rule") for r in rules[1:]]
    return [(first.bucket, first.cell, "rule"), *extras, *rest]


def _second_best(rows: pd.DataFrame, best: Pair) -> Pair | None:
    """The cell of largest predicted speedup but for `best`; ties to smaller k, then smaller L."""
    sums = rows.groupby(["draft_length", "exit_layer"])[["ar_seconds", "seconds"]].sum()
    ratios = (sums["ar_seconds"] / sums["seconds"]).drop(best[::-1], errors="ignore").dropna()
    if ratios.empty:
        return None
    k, layer = ratios.index[int(ratios.to_numpy().argmax())]  # first of equals: by k, then L
    return int(layer), int(k)


def _contrast(rows: pd.DataFrame, best: Pair, taken: Pair | None) -> Pair | None:
    """A cell at least half the range of L and half that of k away from `best`; not `taken`.

    The cheapest such cell by prediction, since the farthest is often the slowest of all and would
    use up the budget. Without one, the cheapest of those farthest by the sum of both shares.
    """
    names = ["exit_layer", "draft_length"]
    spans = [max(1, rows[name].max() - rows[name].min()) for name in names]
    far: dict[Pair, tuple[float, float]] = {}
    cost: dict[Pair, float] = {}
    sums = rows.groupby(names, as_index=False)["seconds"].sum()
    for layer, k, seconds in sums.itertuples(index=False, name=None):
        if (layer, k) not in (best, taken):
            far[int(layer), int(k)] = (abs(layer - best[0]) / spans[0], abs(k - best[1]) / spans[1])
            cost[int(layer), int(k)] = seconds
    if not far:
        return None
    some = [cell for cell, shares in far.items() if min(shares) >= HALF_RANGE]
    most = max(sum(shares) for shares in far.values()) - 1e-9
    some = some or [cell for cell, shares in far.items() if sum(shares) >= most]
    return min(some, key=lambda cell: (cost[cell], cell[1], cell[0]))


def choose_paths(rows: pd.DataFrame, limits: Limits) -> tuple[str, ...]:
    """Draw the paths of a bucket by a seeded hash of their ids, one a group.

    Length plays no part beyond `min_tokens`: long outputs are not like short ones. Where too few
    reach it, shorter ones follow in the order of the hash.

    Args:
        rows: walk rows of one bucket.
        limits: how many, how long, and the seed.

    Returns:
        path_ids in the order drawn.
    """
    paths = rows.drop_duplicates("path_id")
    paths = paths.loc[paths["committed"] > 0]
    place = [_hash(limits.seed, path_id) for path_id in paths["path_id"]]
    short = paths["committed"].round() + 1 < limits.min_tokens
    ordered = paths.assign(place=place, short=short).sort_values(["short", "place"])
    return tuple(ordered.drop_duplicates("group_id")["path_id"].head(limits.requests))


def _hash(seed: int, path_id: str) -> str:
    return hashlib.sha256(f"{seed}/{path_id}".encode()).hexdigest()


def _seconds(
    cells: Sequence[ConfirmCell],
    by_bucket: Mapping[BucketKey, pd.DataFrame],
    repeats: int,
) -> float:
    """Predicted seconds of decoding these cells as `replay.confirm.confirm_path` does."""
    by_own: dict[BucketKey, list[ConfirmCell]] = {}
    for one in cells:
        by_own.setdefault(one.bucket, []).append(one)
    return sum(
        bucket_seconds(by_bucket[bucket], own[0].path_ids, [one.cell for one in own], repeats)
        for bucket, own in by_own.items()
    )


def bucket_seconds(
    rows: pd.DataFrame,
    path_ids: Sequence[str],
    cells: Sequence[Pair],
    repeats: int,
) -> float:
    """Predict what decoding some cells on some paths of one bucket takes (s).

    A path is prefilled once, and at temperature > 0 read once more for its laws. Plain runs stand
    before, after and between every few cells; at temperature > 0 each cell also decodes freely.

    Args:
        rows: walk rows of the bucket.
        path_ids: paths decoded.
        cells: (L, k) decoded on each.
        repeats: times each cell is decoded.
    """
    own = rows.loc[rows["path_id"].isin(path_ids)]
    sampled = 1 if float(own["temperature"].iloc[0]) > 0 else 0
    pair = pd.MultiIndex.from_frame(own[["exit_layer", "draft_length"]])
    decoding = own.loc[pair.isin(list(cells)), "seconds"].sum() * (1 + sampled)
    plain_runs = 1 + -(-len(cells) // CELLS_PER_BASELINE)
    once = own.drop_duplicates("path_id")
    plain = once["ar_seconds"].sum() * plain_runs
    prefill = once["prefill_seconds"].sum() * (1 + sampled)  # missing: not timed, so not counted
    return float(prefill + repeats * (decoding + plain))


def auto_budget(spent_s: float) -> float:
    """Return the default budget (s) of a run that has taken `spent_s` so far."""
    return max(MIN_BUDGET_S, BUDGET_SHARE * spent_s)
