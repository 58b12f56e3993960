"""Lines of a trace file: opened by what it holds, not by its name, and split on newline bytes only.

Suffixes lie (`.gz` on plain files, gzip under plain names), and text-mode reading splits records
at U+0085 and U+2028, which are legal inside JSON strings. So everything here works on bytes.
"""

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from selfspec_cli.errors import TraceError

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_HEAD = 8192  # bytes looked at to tell text from binary
_BINARY_SHARE = 0.05  # share of control bytes in the head; JSON text has none but tab, CR and LF
_CONTROL = bytes({*range(32), 127} - set(b"\t\r\n"))
_OTHER_FORMATS = {
    b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"\xfd7zXZ": "an xz archive",
    b"BZh": "a bzip2 archive",
    b"PK\x03\x04": "a zip archive",
    b"PAR1": "a Parquet file",
    b"GGUF": "a model file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    _GZIP: "a gzip archive inside another one",
}
_CONVERT = "convert it to UTF-8 JSON lines, plain or gzip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a trace file, without its line end."""

    number: int
    """Counts from 1, blank lines included."""
    data: bytes
    terminated: bool
    """False for a last line without a newline: it may have been cut."""
    bom: bool = False
    """Whether a byte-order mark was removed in front of it."""


def file_digest(path: Path) -> str:
    """Return the sha256 of a file's bytes as stored (hex), as `sha256sum` prints it.

    Raises:
        TraceError: the file cannot be read.
    """
    try:
        with path.open("rb") as raw:
            return hashlib.file_digest(raw, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from None


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a plain or gzip file that are not blank.

    A damaged archive raises on the way; callers drop what they had, so nothing of it is used.

    Args:
        path: a regular file; gzip is recognised by its first two bytes, of any suffix.

    Yields:
        Lines with LF or CRLF removed, and one leading UTF-8 byte-order mark.

    Raises:
        TraceError: missing, unreadable or binary file, or an archive that is cut off or damaged.
    """
    try:
        with path.open("rb") as raw:
            content: io.BufferedReader | gzip.GzipFile = raw
            if raw.peek(2)[:2] == _GZIP:
                content = gzip.GzipFile(fileobj=raw)
            _refuse_other_formats(path, content.peek(_HEAD)[:_HEAD])
            yield from _split(content)
    except EOFError:
        raise TraceError(
            "compressed file is cut off",
            where=str(path),
            hint="nothing of it was used; copy it again",
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"compressed file is damaged ({error})", where=str(path)) from None
    except OSError as error:
        raise _unreadable(path, error) from None


def _split(content: io.BufferedReader | gzip.GzipFile) -> Iterator[Line]:
    for number, raw_line in enumerate(content, start=1):
        bom = number == 1 and raw_line.startswith(_BOM)
        data = raw_line[len(_BOM) :] if bom else raw_line
        if data.strip():
            terminated = data.endswith(b"\n")
            yield Line(number=number, data=data.rstrip(b"\r\n"), terminated=terminated, bom=bom)


def _refuse_other_formats(path: Path, head: bytes) -> None:
    for magic, kind in _OTHER_FORMATS.items():
        if head.startswith(magic):
            raise TraceError(f"this is {kind}, not JSON lines", where=str(path), hint=_CONVERT)
    body = head.removeprefix(_BOM).lstrip()
    first_line = body.partition(b"\n")[0].strip()
    if first_line in (b"[", b"{") or (first_line[:1] == b"[" and first_line[-1:] in b",{["):
        # Read by lines, its last item alone would pass for a row.
        kind = "one JSON document over several lines"
        raise TraceError(f"this is {kind}, not JSON lines", where=str(path), hint=_CONVERT)
    controls = len(body) - len(body.translate(None, _CONTROL))
    # A JSON row damaged by a block of NULs is one bad row, not a binary file.
    if not body.startswith((b"{", b"[")) and controls > _BINARY_SHARE * len(body):
        raise TraceError("this is a binary file, not JSON lines", where=str(path), hint=_CONVERT)


def _unreadable(path: Path, error: OSError) -> TraceError:
    if isinstance(error, FileNotFoundError):
        return TraceError("no such trace file", where=str(path))
    if isinstance(error, IsADirectoryError):
        return TraceError("this is a folder", where=str(path), hint="name the files in it")
    return TraceError(f"cannot be read ({error.strerror})", where=str(path))
