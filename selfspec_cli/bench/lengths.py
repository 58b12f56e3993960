"""Accepted lengths of real decodes, from the counts that bench.csv keeps."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.analysis.accepted_lengths import AcceptedLengths, accepted_lengths
from selfspec_cli.errors import StorageError

Counts = npt.NDArray[np.float64]


def measured_lengths(rows: pd.DataFrame) -> AcceptedLengths | None:
    """Return the histogram of one arm in one bucket; None where no round was counted.

    Args:
        rows: of `checked_rows`, one arm of one bucket.

    Raises:
        StorageError: counts that are no numbers, or more of them than draft_length + 1.
    """
    known = rows.loc[(rows["rounds_by_accepted"] != "") & rows["draft_length"].notna()]
    if known.empty:
        return None
    counts = [_counts(row) for row in known.to_dict("records")]
    drafted = known["drafted"].fillna(0.0)
    lengths = known["draft_length"].astype("int64")
    walked = pd.DataFrame(
        {
            # Without a group a request stands for itself.
            "group_id": known["group_id"].where(known["group_id"] != "", known["request_id"]),
            "draft_length": lengths,
            "tested": known["tested"].fillna(0.0),
            "accepted": known["accepted"].fillna(0.0),
        }
    )
    walked["rounds_by_accepted"] = pd.Series(counts, index=known.index, dtype=object)
    spread = [
        rounds_by_drafted(int(one.sum()), float(n), int(k))
        for one, n, k in zip(counts, drafted, lengths, strict=True)
    ]
    walked["rounds_by_drafted"] = pd.Series(spread, index=known.index, dtype=object)
    return accepted_lengths(walked)


def rounds_by_drafted(rounds: int, drafted: float, draft_length: int) -> Counts:
    """Return how many rounds drafted 0..k tokens, [k+1], from their sum.

    A round drafts k tokens unless the output's end (or, for prompt lookup, a lack of matches)
    leaves less, so what is missing from k × rounds is put on as few rounds as can miss it.

    Args:
        rounds: of one decode.
        drafted: tokens drafted in them.
        draft_length: k.
    """
    counts = np.zeros(draft_length + 1)
    counts[draft_length] = rounds
    short = min(max(draft_length * rounds - int(drafted), 0), draft_length * rounds)
    if not draft_length or not short:
        return counts
    empty, rest = divmod(short, draft_length)
    counts[draft_length] -= empty + (rest > 0)
    counts[0] += empty
    if rest:
        counts[draft_length - rest] += 1
    return counts


def _counts(row: dict[object, object]) -> Counts:
    text, width = str(row["rounds_by_accepted"]), int(float(str(row["draft_length"]))) + 1
    try:
        counts = np.array([float(word) for word in text.split()], dtype=np.float64)
    except ValueError as error:
        raise _bad(text) from error
    if len(counts) > width or not np.isfinite(counts).all() or (counts < 0).any():
        raise _bad(text)
    return np.pad(counts, (0, width - len(counts)))


def _bad(text: str) -> StorageError:
    return StorageError(
        f"no counts of rounds by accepted tokens: {text[:40]!r}",
        where="bench.csv, rounds_by_accepted",
        hint="Run `selfspec bench` again; the table is not to be edited.",
    )
