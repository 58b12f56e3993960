"""Rows left out, counted by reason for people."""

from collections.abc import Iterable
from typing import NamedTuple

from selfspec_cli.records import Skip

_EXAMPLES = 3


class SkipCount(NamedTuple):
    """How many rows were left out for one reason."""

    reason: str
    num_rows: int
    examples: tuple[str, ...]
    """The first three `file:line`, in reading order."""


def summarise_skips(skips: Iterable[Skip]) -> list[SkipCount]:
    """Return the reasons with their counts, most frequent first, ties by reason."""
    sources: dict[str, list[str]] = {}
    for skip in skips:
        sources.setdefault(skip.reason, []).append(skip.source)
    counts = [SkipCount(r, len(found), tuple(found[:_EXAMPLES])) for r, found in sources.items()]
    return sorted(counts, key=lambda each: (-each.num_rows, each.reason))


def describe_skips(skips: Iterable[Skip]) -> str:
    """Return the reasons as one line, for an error: `2 x malformed (a.jsonl:7, a.jsonl:8)`."""
    return "; ".join(
        f"{count} x {reason} ({', '.join(examples)})"
        for reason, count, examples in summarise_skips(skips)
    )
