"""What a bench measured, as its files: bench.csv and bench.json."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from selfspec_cli.bench.measure import COLUMNS
from selfspec_cli.bench.taken import Taken
from selfspec_cli.errors import ExactnessError
from selfspec_cli.storage import write_document, write_table

BENCH_FILE, BENCH_DOCUMENT = "bench.csv", "bench.json"
_COUNTS = (
    "context_min", "context_max", "batch_size", "repeat", "exit_layer", "draft_length",
    "prompt_tokens", "committed", "rounds", "drafted", "tested", "accepted",
    "peak_memory_bytes", "order",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """What was measured."""

    table: pd.DataFrame
    """One row a (request, arm, batch size, repeat), columns `measure.COLUMNS`."""
    notes: tuple[str, ...]
    """Sentences for people: what was left out, and why."""
    document: dict[str, Any]
    """bench.json."""
    taken: Taken
    """How much of what was planned this is."""
    signal: BaseException | None = None
    """What ended it early; to be raised once the results are written."""


def write_bench(run: BenchRun, folder: Path, summary: Mapping[str, Any] | None = None) -> None:
    """Write bench.csv and bench.json.

    Args:
        run: what was measured.
        folder: where to; made if its parent exists.
        summary: of `document.summary_document`, kept in bench.json too.

    Raises:
        StorageError: the disk refuses.
    """
    folder.mkdir(exist_ok=True)
    write_table(run.table, folder / BENCH_FILE)
    told = {} if summary is None else {"summary": summary}
    write_document({**run.document, **told}, folder / BENCH_DOCUMENT)


def check_bench_exact(run: BenchRun) -> None:
    """Refuse output that is not plain decoding's at temperature 0, numeric ties apart.

    Raises:
        ExactnessError: names the first such decode and how many there are.
    """
    wrong = [one for one in run.document["differences"] if not one["is_tie"]]
    if wrong:
        first = wrong[0]
        raise ExactnessError(
            f"{len(wrong)} greedy decodes differ from plain decoding; the first of arm "
            f"{first['arm']} at batch size {first['batch_size']}, exit layer "
            f"{first['exit_layer']}, draft length {first['draft_length']}, output position "
            f"{first['position']}",
            where=str(first["request_id"] or first["task"]),
            hint="This is a bug or an unsupported model; do not serve with it. All differences "
            f"are in {BENCH_DOCUMENT}.",
        )


def bench_rows(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Return rows as bench.csv has them, counts as whole numbers that may be missing."""
    table = pd.DataFrame(list(rows), columns=list(COLUMNS))
    return table.astype(dict.fromkeys(_COUNTS, "Int64"))


def difference_document(row: dict[str, Any], other: Any) -> dict[str, Any]:
    """A difference for bench.json: whose, where, and whether rounding explains it."""
    names = ("task", "request_id", "temperature", "batch_size", "arm", "repeat")
    gap = float(other.top2_gap)
    return {name: row[name] for name in (*names, "exit_layer", "draft_length")} | {
        "position": other.position,
        "top2_gap": gap if gap < float("inf") else None,
        "is_tie": other.is_tie,
    }
