"""From trace files to requests: which reader takes a row, what was skipped, what was read."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from selfspec_cli.errors import TraceError
from selfspec_cli.records import Request, Skip
from selfspec_cli.trace import jsonl, spec_bench
from selfspec_cli.trace.lines import file_digest, read_lines
from selfspec_cli.trace.rows import ReadRow, Row, RowRefusedError, parse_row
from selfspec_cli.trace.skips import describe_skips

_NOT_A_ROW = ("malformed", "torn last line", "not UTF-8")
_LINES_HINT = "one JSON object a line is expected; arrays and indented JSON must be converted"
_FIELDS_HINT = "a row needs prompt, messages or prompt_token_ids (or Spec-Bench turns)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A trace format: how to recognise a row of it, and how to read one."""

    name: str
    accepts: Callable[[Row], bool]
    read: Callable[[Row, str], ReadRow]
    """(row, `file:line`) to a request; raises RowRefusedError."""


READERS = (
    Reader(name="spec_bench", accepts=spec_bench.accepts, read=spec_bench.read),
    Reader(name="jsonl", accepts=jsonl.accepts, read=jsonl.read),  # takes what is left
)
"""Asked in this order, row by row, so that one row never decides how another is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """What one trace file was and gave. Invariant: num_rows = num_used + num_skipped."""

    path: str
    sha256: str
    """Of the bytes as stored (hex)."""
    num_rows: int
    """Lines that are not blank."""
    num_used: int
    num_skipped: int
    formats: tuple[tuple[str, int], ...]
    """(reader, rows used), sorted by reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRead:
    """Everything read from the trace files, in order of file and line."""

    requests: tuple[Request, ...]
    skips: tuple[Skip, ...]
    notes: tuple[str, ...]
    """Sentences for people about rows that were used, with counts."""
    files: tuple[TraceFile, ...]


@dataclass(slots=True)
class _Pile:
    """Rows of one file while it is read; nothing of it leaves if the file turns out damaged."""

    requests: list[Request]
    skips: list[Skip]
    formats: Counter[str]
    remarks: Counter[str]


def read_traces(paths: Sequence[str | Path]) -> TraceRead:
    """Read trace files row by row; rows that cannot be used are skipped with a reason.

    Args:
        paths: plain or gzip files of JSON lines, of any mix of formats.

    Returns:
        Requests with unique ids, skips, notes and file fingerprints.

    Raises:
        TraceError: no file given; a file is missing, empty, binary or a damaged archive, or has
            no row that can be used.
    """
    if isinstance(paths, str | Path):
        paths = [paths]
    if not paths:
        raise TraceError("no trace file was given", where="--traces")
    piles = [_read_file(Path(path)) for path in paths]
    requests = [request for pile, _ in piles for request in pile.requests]
    unique, num_renamed = _make_ids_unique(requests)
    remarks = sum((pile.remarks for pile, _ in piles), Counter())
    if num_renamed:
        remarks["the id was used before and got a #line suffix"] = num_renamed
    return TraceRead(
        requests=tuple(unique),
        skips=tuple(skip for pile, _ in piles for skip in pile.skips),
        notes=tuple(f"{remark}: {count}" for remark, count in sorted(remarks.items())),
        files=tuple(file for _, file in piles),
    )


def _read_file(path: Path) -> tuple[_Pile, TraceFile]:
    digest = file_digest(path)
    pile = _Pile([], [], Counter(), Counter())
    for line in read_lines(path):
        source = f"{path}:{line.number}"
        try:
            _read_row(parse_row(line), source, pile)
        except RowRefusedError as refusal:
            pile.skips.append(Skip(reason=refusal.reason, source=source, detail=refusal.detail))
        if line.bom:
            pile.remarks["a byte-order mark was removed"] += 1
    _refuse_unusable(path, pile)
    file = TraceFile(
        path=str(path),
        sha256=digest,
        num_rows=len(pile.requests) + len(pile.skips),
        num_used=len(pile.requests),
        num_skipped=len(pile.skips),
        formats=tuple(sorted(pile.formats.items())),
    )
    return pile, file


def _read_row(row: Row, source: str, pile: _Pile) -> None:
    reader = next(reader for reader in READERS if reader.accepts(row))
    result = reader.read(row, source)
    pile.requests.append(result.request)
    pile.formats[reader.name] += 1
    pile.remarks.update(result.remarks)


def _refuse_unusable(path: Path, pile: _Pile) -> None:
    if pile.requests:
        return
    if not pile.skips:
        raise TraceError("the trace file is empty", where=str(path))
    lines = [replace(skip, source=f"line {skip.source.rpartition(':')[2]}") for skip in pile.skips]
    readable = any(skip.reason not in _NOT_A_ROW for skip in pile.skips)
    raise TraceError(
        f"no row of the trace can be used: {describe_skips(lines)}",
        where=str(path),
        hint=_FIELDS_HINT if readable else _LINES_HINT,
    )


def _make_ids_unique(requests: Sequence[Request]) -> tuple[list[Request], int]:
    """Return requests with unique ids (the first of equals keeps its id), and how many changed."""
    taken: set[str] = set()
    unique: list[Request] = []
    for request in requests:
        line = request.source.rpartition(":")[2]
        name = request.request_id
        while name in taken:
            name = f"{name}#{line}"
        taken.add(name)
        unique.append(replace(request, request_id=name))
    changed = sum(a.request_id != b.request_id for a, b in zip(unique, requests, strict=True))
    return unique, changed
