"""Rows left out, counted by reason for people."""

from collections.abc import Iterable
from pathlib import PurePath
from typing import NamedTuple

from selfspec_cli.records import Skip
from selfspec_cli.storage.rundir import SkippedRows

_EXAMPLES = 3
NOT_DRAWN = "not drawn, beyond the limit"


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


def skip_document(skips: Iterable[Skip], num_not_drawn: int = 0) -> dict[str, SkippedRows]:
    """Return the reasons as data: `{reason: {"rows": 2, "lines": ["a.jsonl:7", ...]}}`.

    Args:
        skips: rows that could not be used.
        num_not_drawn: usable requests beyond the limit; they are no fault of their lines, so
            none is named.
    """
    document: dict[str, SkippedRows] = {
        count.reason: {
            "rows": count.num_rows,
            "lines": [PurePath(example).name for example in count.examples],
        }
        for count in summarise_skips(skips)
    }
    if num_not_drawn:
        document[NOT_DRAWN] = {"rows": num_not_drawn, "lines": []}
    return document
