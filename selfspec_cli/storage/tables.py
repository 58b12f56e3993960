"""Tables: Parquet between stages, CSV where people look too."""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from selfspec_cli.errors import StorageError
from selfspec_cli.storage.files import atomic_write, read_bytes
from selfspec_cli.storage.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_VERSION_KEY = b"selfspec_schema_version"

TEXT_COLUMNS = frozenset(
    {
        "acceptance", "block_kind", "content_hash", "device", "drafter", "dtype", "engine",
        "evidence", "finish", "group_id", "kind", "law", "part", "path_id", "reason",
        "request_id", "source", "stage", "task",
    }
)  # fmt: skip
"""Columns that are labels: a task called `007` or `NA` must come back from a CSV as that text."""


def write_table(frame: pd.DataFrame, path: Path) -> None:
    r"""Write a table atomically as .parquet or .csv, chosen by the suffix.

    Missing and non-finite numbers are written as null (Parquet) or as an empty cell (CSV, UTF-8,
    comma, `\n`). The row index is not written. Parquet carries the schema version in its
    metadata; CSV has no place for one, its version is that of the run's manifest.

    Args:
        frame: columns named as in the run directory's contract.
        path: target; its folder must exist.

    Raises:
        StorageError: unknown suffix, or the disk refuses.
    """
    encode = {".parquet": _parquet_bytes, ".csv": _csv_bytes}.get(path.suffix)
    if encode is None:
        raise _unknown_format(path)
    data = encode(_finite(frame))
    atomic_write(path, lambda file: file.write(data))


def read_table(path: Path, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Read a .parquet or .csv table.

    Args:
        path: an artefact written by `write_table`.
        columns: the columns wanted, in this order; None reads all.

    Returns:
        One row a record; missing values as pandas' missing. Label columns of a CSV
        (`TEXT_COLUMNS`) are text whatever they look like.

    Raises:
        StorageError: missing, torn, of another schema version, or without a wanted column.
    """
    reader = {".parquet": _read_parquet, ".csv": _read_csv}.get(path.suffix)
    if reader is None:
        raise _unknown_format(path)
    return reader(path, columns)


def _unknown_format(path: Path) -> StorageError:
    return StorageError(
        f"unknown table format {path.suffix!r}", where=str(path), hint="Use .parquet or .csv."
    )


def _finite(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with infinities missing: undefined is missing, never infinity."""
    import numpy as np

    floats = [name for name in frame.columns if getattr(frame[name].dtype, "kind", "") == "f"]
    return frame.assign(**{name: frame[name].where(np.isfinite(frame[name])) for name in floats})


def _parquet_bytes(frame: pd.DataFrame) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(frame, preserve_index=False)
    metadata = {**(table.schema.metadata or {}), _VERSION_KEY: str(SCHEMA_VERSION).encode()}
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), sink, compression="zstd")
    return sink.getvalue()


class _Rows(io.StringIO):
    r"""Text sink that ends rows with `\n`, although the writer was told `\r\n`.

    The csv module quotes a carriage return inside a cell only if it belongs to the terminator.
    """

    def write(self, text: str) -> int:
        return super().write(text[:-2] + "\n" if text.endswith("\r\n") else text)


def _csv_bytes(frame: pd.DataFrame) -> bytes:
    rows = _Rows(newline="")
    frame.to_csv(rows, index=False, lineterminator="\r\n")
    return rows.getvalue().encode("utf-8", errors="backslashreplace")


def _read_parquet(path: Path, columns: Sequence[str] | None) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = read_bytes(path)
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        _check_version(path, file.schema_arrow)
        _check_columns(path, file.schema_arrow.names, columns)
        frame: pd.DataFrame = file.read(columns=columns and list(columns)).to_pandas()
    except (pa.ArrowException, OSError) as error:
        raise _torn(path, "Parquet", str(error)) from error
    return frame if columns is None else frame[list(columns)]


def _check_version(path: Path, schema: pa.Schema) -> None:
    found = (schema.metadata or {}).get(_VERSION_KEY)
    if found != str(SCHEMA_VERSION).encode():
        text = "none" if found is None else found.decode("utf-8", errors="replace")
        raise StorageError(
            f"schema version {text}, this selfspec reads {SCHEMA_VERSION}",
            where=str(path),
            hint="Use the selfspec that wrote it, or run the calibration again.",
        )


def _check_columns(path: Path, present: Sequence[str], wanted: Sequence[str] | None) -> None:
    missing = [name for name in wanted or () if name not in present]
    if missing:
        near = difflib.get_close_matches(missing[0], present, n=3)
        raise StorageError(
            f"column {', '.join(missing)} is missing",
            where=str(path),
            hint=f"Near: {', '.join(near)}." if near else f"Present: {', '.join(present)}.",
        )


def _read_csv(path: Path, columns: Sequence[str] | None) -> pd.DataFrame:
    import pandas as pd

    text = _csv_text(path)
    header = _check_rows(path, text)
    _check_columns(path, header, columns)
    labels = {name: "str" for name in header if name in TEXT_COLUMNS}
    try:
        frame = pd.read_csv(
            io.StringIO(text),
            dtype=labels,
            keep_default_na=False,
            na_values=[""],
            lineterminator="\n",
        )
    except (ValueError, pd.errors.ParserError) as error:
        raise _torn(path, "CSV", str(error)) from error
    return frame if columns is None else frame[list(columns)]


def _csv_text(path: Path) -> str:
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _torn(path, "CSV", "not UTF-8 text") from error
    if not text.endswith("\n"):
        raise _torn(path, "CSV", "the last line is cut off" if text else "the file is empty")
    return text


def _check_rows(path: Path, text: str) -> list[str]:
    """Return the header; a row with another number of cells is an error, not missing values."""
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(rows)
        for row in rows:
            if len(row) != len(header):
                reason = f"line {rows.line_num} has {len(row)} cells, the header {len(header)}"
                raise _torn(path, "CSV", reason)
    except csv.Error as error:
        raise _torn(path, "CSV", f"line {rows.line_num}: {error}") from error
    return header


def _torn(path: Path, kind: str, reason: str) -> StorageError:
    return StorageError(
        f"torn or not a {kind} table: {reason.splitlines()[0] if reason else 'unreadable'}",
        where=str(path),
        hint="Restore the file, or run the stage that writes it again.",
    )
