"""From trace files to requests: which reader takes a row, what was skipped, what was read."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from selfspec_cli.errors import TraceError
from selfspec_cli.records import Request, Skip
from selfspec_cli.trace import jsonl, litellm, openai_batch, openai_log, spec_bench
from selfspec_cli.trace.join import FoundAnswer, Joined, join_answers
from selfspec_cli.trace.lines import file_digest, read_lines
from selfspec_cli.trace.rows import ReadAnswer, ReadRow, Row, RowRefusedError, parse_row
from selfspec_cli.trace.skips import describe_skips
from selfspec_cli.trace.tasks import TaskSource, refuse_unfound

_NOT_A_ROW = ("malformed", "torn last line", "not UTF-8")
_LINES_HINT = "one JSON object a line is expected; arrays and indented JSON must be converted"
_FIELDS_HINT = "a row needs prompt, messages or prompt_token_ids (or Spec-Bench turns)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A trace format: how to recognise a row of it, and how to read one."""

    name: str
    accepts: Callable[[Row], bool]
    read: Callable[[Row, str], ReadRow | ReadAnswer]
    """(row, `file:line`) to a request, or to the answer of one; raises RowRefusedError."""


READERS = (
    Reader(name="spec_bench", accepts=spec_bench.accepts, read=spec_bench.read),
    Reader(name="openai_batch", accepts=openai_batch.accepts, read=openai_batch.read),
    Reader(name="litellm", accepts=litellm.accepts, read=litellm.read),
    Reader(name="openai_log", accepts=openai_log.accepts, read=openai_log.read),
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
    """Rows that became a request, or the answer of one."""
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


@dataclass(slots=True, kw_only=True)
class _Pile:
    """Rows of one file while it is read; nothing of it leaves if the file turns out damaged."""

    path: Path
    sha256: str
    requests: list[Request] = field(default_factory=list)
    answers: list[FoundAnswer] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)
    formats: Counter[str] = field(default_factory=Counter)
    remarks: Counter[str] = field(default_factory=Counter)
    first_row: Row = field(default_factory=dict)
    """Fields of the first row that was a request."""


def read_traces(paths: Sequence[str | Path], tasks: TaskSource | None = None) -> TraceRead:
    """Read trace files row by row; rows that cannot be used are skipped with a reason.

    Answers of batch output are joined to their requests over all files; such a row is no request
    of its own and is not counted as one.

    Args:
        paths: plain or gzip files of JSON lines, of any mix of formats.
        tasks: where the tasks come from; None for the labels of the rows.

    Returns:
        Requests with unique ids, skips, notes and file fingerprints.

    Raises:
        TraceError: no file given; a file is missing, empty, binary or a damaged archive, or has
            no row that can be used; or `tasks` finds none.
    """
    if isinstance(paths, str | Path):
        paths = [paths]
    if not paths:
        raise TraceError("no trace file was given", where="--traces")
    piles = [_read_file(Path(path), tasks) for path in paths]
    joined = _join(piles)
    unique, num_renamed = _make_ids_unique(joined.requests)
    if tasks is not None:
        num_found = sum(request.task is not None for request in unique)
        refuse_unfound(tasks, num_found, next((p.first_row for p in piles if p.requests), {}))
    remarks = sum((pile.remarks for pile in piles), Counter(joined.remarks))
    if num_renamed:
        remarks["the id was used before and got a #line suffix"] = num_renamed
    if joined.num_joined:
        remarks["answers were joined to their requests by custom_id"] = joined.num_joined
    return TraceRead(
        requests=tuple(unique),
        skips=tuple(skip for pile in piles for skip in pile.skips),
        notes=tuple(f"{remark}: {count}" for remark, count in sorted(remarks.items())),
        files=tuple(_describe(pile) for pile in piles),
    )


def _read_file(path: Path, tasks: TaskSource | None) -> _Pile:
    pile = _Pile(path=path, sha256=file_digest(path))
    for line in read_lines(path):
        source = f"{path}:{line.number}"
        try:
            _read_row(parse_row(line), source, pile, tasks)
        except RowRefusedError as refusal:
            pile.skips.append(Skip(reason=refusal.reason, source=source, detail=refusal.detail))
        if line.bom:
            pile.remarks["a byte-order mark was removed"] += 1
    if not pile.requests and not pile.answers:
        _refuse_unusable(path, pile.skips)
    return pile


def _read_row(row: Row, source: str, pile: _Pile, tasks: TaskSource | None) -> None:
    reader = next(reader for reader in READERS if reader.accepts(row))
    result = reader.read(row, source)
    pile.formats[reader.name] += 1
    if isinstance(result, ReadAnswer):
        pile.answers.append(FoundAnswer(answer=result, source=source))
        return
    request = result.request
    if tasks is not None:
        request = replace(request, task=tasks.find(row, result))
    pile.first_row = pile.first_row or row
    pile.requests.append(request)
    pile.remarks.update(result.remarks)


def _join(piles: Sequence[_Pile]) -> Joined:
    """Join answers over all files; those left over become skips of their own file."""
    joined = join_answers(
        [request for pile in piles for request in pile.requests],
        [found for pile in piles for found in pile.answers],
    )
    refusals = iter(joined.refusals)
    for pile in piles:
        left_over = [skip for skip in islice(refusals, len(pile.answers)) if skip is not None]
        pile.skips = sorted([*pile.skips, *left_over], key=_line_number)
        pile.formats["openai_batch"] -= len(left_over)
        if not pile.requests and len(left_over) == len(pile.answers):
            _refuse_unusable(pile.path, pile.skips)
    return joined


def _line_number(skip: Skip) -> int:
    return int(skip.source.rpartition(":")[2])


def _describe(pile: _Pile) -> TraceFile:
    num_used = sum(pile.formats.values())
    return TraceFile(
        path=str(pile.path),
        sha256=pile.sha256,
        num_rows=num_used + len(pile.skips),
        num_used=num_used,
        num_skipped=len(pile.skips),
        formats=tuple(sorted((name, count) for name, count in pile.formats.items() if count)),
    )


def _refuse_unusable(path: Path, skips: Sequence[Skip]) -> None:
    if not skips:
        raise TraceError("the trace file is empty", where=str(path))
    lines = [replace(skip, source=f"line {skip.source.rpartition(':')[2]}") for skip in skips]
    readable = any(skip.reason not in _NOT_A_ROW for skip in skips)
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
