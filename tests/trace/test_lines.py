"""Reading lines by content: compression, byte-order marks, line ends, damaged files."""

import gzip
import hashlib
from pathlib import Path

import pytest

from selfspec_cli.errors import TraceError
from selfspec_cli.trace.lines import file_digest, read_lines

ROWS = b'{"id": 1}\n{"id": 2}\n'


def lines_of(path: Path, content: bytes) -> list[bytes]:
    path.write_bytes(content)
    return [line.data for line in read_lines(path)]


@pytest.mark.parametrize("name", ["plain.jsonl", "plain.jsonl.gz", "plain.zst"])
@pytest.mark.parametrize("compressed", [False, True])
def test_read_lines_opens_by_content_not_suffix(tmp_path, name, compressed):
    content = gzip.compress(ROWS) if compressed else ROWS
    assert lines_of(tmp_path / name, content) == [b'{"id": 1}', b'{"id": 2}']


def test_read_lines_of_gzip_with_two_members_reads_both(tmp_path):
    assert len(lines_of(tmp_path / "a", gzip.compress(ROWS) + gzip.compress(ROWS))) == 4


@pytest.mark.parametrize("missing", [1, 8, 12, 40])
def test_read_lines_of_cut_gzip_says_cut_off(tmp_path, missing):
    content = gzip.compress(ROWS * 50)
    path = tmp_path / "cut.jsonl.gz"
    with pytest.raises(TraceError, match="compressed file is cut off") as caught:
        lines_of(path, content[:-missing])
    assert caught.value.where == str(path)


def test_read_lines_of_gzip_with_flipped_bits_says_damaged(tmp_path):
    content = bytearray(gzip.compress(ROWS * 50))
    content[-6] ^= 0xFF  # the checksum
    with pytest.raises(TraceError, match="damaged"):
        lines_of(tmp_path / "bad.gz", bytes(content))


def test_read_lines_strips_one_bom_and_crlf_and_keeps_u_feff_inside(tmp_path):
    path = tmp_path / "bom.jsonl"
    path.write_bytes('\ufeff"\ufeffa"\r\n\ufeff"b"\r\n'.encode())
    lines = list(read_lines(path))
    assert [line.data.decode() for line in lines] == ['"\ufeffa"', '\ufeff"b"']
    assert [line.bom for line in lines] == [True, False]


def test_read_lines_splits_on_newline_only(tmp_path):
    """U+0085, U+2028 and a lone CR are legal in JSON text; `str.splitlines` would cut there."""
    text = '{"key": "a\u2028b\u0085c\x0bd"}'
    assert len(text.splitlines()) == 4, "the broken twin must see more lines"
    assert lines_of(tmp_path / "u.jsonl", text.encode() + b"\n") == [text.encode()]


def test_read_lines_counts_blank_lines_but_does_not_yield_them(tmp_path):
    path = tmp_path / "blank.jsonl"
    path.write_bytes(b"1\n\n \t\r\n2")
    got = [(line.number, line.data, line.terminated) for line in read_lines(path)]
    assert got == [(1, b"1", True), (4, b"2", False)]


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\x28\xb5\x2f\xfd rest", "zstd"),
        (b"PK\x03\x04 rest", "zip"),
        (b"PAR1 rest", "Parquet"),
        ('{"id": 1}'.encode("utf-16"), "UTF-16"),
        (gzip.compress(gzip.compress(ROWS, mtime=0), mtime=0), "inside another"),
        (bytes(range(256)) * 4, "binary"),
        (b'[\n {"prompt": "x"},\n {"prompt": "y"}\n]\n', "one JSON document"),
        (b'[{"prompt": "x"},\n {"prompt": "y"}]\n', "one JSON document"),
        (b'{\n "prompt": "x"\n}\n', "one JSON document"),
    ],
)
def test_read_lines_refuses_other_files_by_kind(tmp_path, head, kind):
    with pytest.raises(TraceError, match=kind):
        lines_of(tmp_path / "trace.jsonl", head)


def test_read_lines_keeps_a_row_damaged_by_nul_bytes(tmp_path):
    content = b'{"a": "' + b"\0" * 50 + b'"}\n' + ROWS
    assert len(lines_of(tmp_path / "nul.jsonl", content)) == 3


def test_read_lines_of_missing_file_or_folder_names_it(tmp_path):
    with pytest.raises(TraceError, match="no such trace file"):
        list(read_lines(tmp_path / "nowhere.jsonl"))
    with pytest.raises(TraceError, match="folder"):
        list(read_lines(tmp_path))


def test_file_digest_is_that_of_the_stored_bytes(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(ROWS))
    assert file_digest(path) == hashlib.sha256(path.read_bytes()).hexdigest()
