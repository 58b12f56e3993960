"""A smaller trace with the same mix: stratified by task and context band, seeded.

Which requests are drawn depends on the seed and on what the requests say, never on the order of
rows or files, so adding a file or sorting one does not reshuffle the rest.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from selfspec_cli.buckets import context_band
from selfspec_cli.errors import TraceError
from selfspec_cli.records import PreparedRequest

CONTEXT_EDGES = (0, 512, 2048, 8192)  # prompt tokens, lower edges of the bands (METHOD.md §5)
Stratum = tuple[str, int]
"""(task, lower edge of the context band in prompt tokens)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StratumCount:
    """How much of one stratum was drawn."""

    task: str
    context_min: int
    num_available: int
    num_chosen: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The requests drawn, in their original order."""

    requests: tuple[PreparedRequest, ...]
    num_left_out: int
    strata: tuple[StratumCount, ...]


def sample_requests(
    requests: Sequence[PreparedRequest],
    limit: int | None,
    seed: int,
    context_edges: Sequence[int] = CONTEXT_EDGES,
) -> Sample:
    """Draw at most `limit` requests: in proportion to each stratum, at least one of each.

    With fewer places than strata the largest strata get one each.

    Args:
        requests: the prepared trace.
        limit: most requests to draw; None for all.
        seed: the same seed and the same requests give the same draw.
        context_edges: lower edges of the context bands (prompt tokens), ascending from 0.

    Raises:
        TraceError: the limit is below 1.
    """
    if limit is not None and limit < 1:
        raise TraceError(f"cannot draw {limit} requests", where="--limit", hint="1 or more")
    strata: dict[Stratum, list[int]] = defaultdict(list)
    for index in _draw_order(requests, seed):
        request = requests[index]
        context_min, _ = context_band(request.prompt_tokens, context_edges)
        strata[request.task, context_min].append(index)
    sizes = {stratum: len(found) for stratum, found in sorted(strata.items())}
    shares = allocate(sizes, len(requests) if limit is None else limit)
    chosen = sorted(index for stratum in sizes for index in strata[stratum][: shares[stratum]])
    counts = (
        StratumCount(task=t, context_min=c, num_available=n, num_chosen=shares[t, c])
        for (t, c), n in sizes.items()
    )
    return Sample(
        requests=tuple(requests[index] for index in chosen),
        num_left_out=len(requests) - len(chosen),
        strata=tuple(counts),
    )


def allocate(sizes: dict[Stratum, int], limit: int) -> dict[Stratum, int]:
    """Return how many to draw of each stratum, by largest remainder with a floor of one.

    Args:
        sizes: requests available by stratum.
        limit: places; the shares sum to min(limit, sum of sizes).
    """
    if limit >= sum(sizes.values()):
        return dict(sizes)
    by_size = sorted(sizes, key=lambda stratum: (-sizes[stratum], stratum))
    if limit <= len(sizes):
        return {stratum: int(rank < limit) for rank, stratum in enumerate(by_size)}
    return _proportional(sizes, by_size, limit)


def _proportional(
    sizes: dict[Stratum, int], by_size: list[Stratum], limit: int
) -> dict[Stratum, int]:
    shares: dict[Stratum, int] = {}
    places, available = limit, sum(sizes.values())
    # Smallest first: a stratum owed less than one place takes one, the others share the rest.
    for stratum in reversed(by_size):
        if sizes[stratum] * places >= available:
            break
        shares[stratum], places, available = 1, places - 1, available - sizes[stratum]
    large = [stratum for stratum in by_size if stratum not in shares]
    remainders: dict[Stratum, int] = {}
    for stratum in large:  # whole numbers throughout: no rounding decides a tie
        shares[stratum], remainders[stratum] = divmod(sizes[stratum] * places, available)
    owed = sorted(large, key=lambda stratum: -remainders[stratum])
    for stratum in owed[: limit - sum(shares.values())]:
        shares[stratum] += 1
    return shares


def _draw_order(requests: Sequence[PreparedRequest], seed: int) -> list[int]:
    """Return the indices in a random order that depends on content and seed alone.

    Exact repeats are numbered, so that they spread out like any other requests.
    """
    by_name = sorted(
        range(len(requests)),
        key=lambda i: (requests[i].content_hash, requests[i].request_id),
    )
    repeats: Counter[str] = Counter()
    keys: dict[int, str] = {}
    for index in by_name:
        content = requests[index].content_hash
        keys[index] = hashlib.sha256(f"{seed}|{content}|{repeats[content]}".encode()).hexdigest()
        repeats[content] += 1
    return sorted(by_name, key=keys.__getitem__)
