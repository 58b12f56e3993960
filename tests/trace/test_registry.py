"""Whole files to requests: skips with lines, unique ids, notes, fingerprints, errors."""

import gzip
import hashlib

import pytest

from selfspec_cli.errors import TraceError
from selfspec_cli.records import Skip
from selfspec_cli.trace import describe_skips, read_traces, skip_document, summarise_skips

GOOD = {"id": "a", "task": "chat", "prompt": "x"}


def test_read_traces_reads_what_it_can_and_skips_by_line(write_rows):
    path = write_rows(GOOD, b"", b"[1]", b'{"id": "\xe9"}', {"id": "b"}, {"id": "c", "prompt": "y"})
    got = read_traces([path])
    assert [request.request_id for request in got.requests] == ["a", "c"]
    assert [(skip.reason, skip.source) for skip in got.skips] == [
        ("malformed", f"{path}:3"),
        ("not UTF-8", f"{path}:4"),
        ("no prompt", f"{path}:5"),
    ]
    file = got.files[0]
    assert (file.num_rows, file.num_used, file.num_skipped) == (5, 2, 3)
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_read_traces_chooses_the_reader_row_by_row(write_rows):
    question = {"question_id": 9, "category": "qa", "turns": ["Who?"]}
    got = read_traces([write_rows(GOOD, question, {"id": "b", "prompt": "y"})])
    assert [request.task for request in got.requests] == ["chat", "qa", None]
    assert got.files[0].formats == (("jsonl", 2), ("spec_bench", 1))


def test_read_traces_skips_a_torn_last_line(write_rows):
    path = write_rows(GOOD)
    path.write_bytes(path.read_bytes() + b'{"id": "b", "prompt": "cut o')
    got = read_traces([path])
    assert [(skip.reason, skip.source) for skip in got.skips] == [("torn last line", f"{path}:2")]


def test_read_traces_makes_ids_unique_over_files_and_counts(write_rows):
    one = write_rows(GOOD, GOOD, {"id": "a#2", "prompt": "y"}, name="one.jsonl")
    two = write_rows(GOOD, GOOD, name="two.jsonl")
    got = read_traces([one, two])
    assert [request.request_id for request in got.requests] == ["a", "a#2", "a#2#3", "a#1", "a#2#2"]
    assert got.notes == ("the id was used before and got a #line suffix: 4",)


def test_read_traces_keeps_labels_exactly(write_rows):
    labels = ["../../escape", "a/b", ".", "n\0ul", "A", "a", "l" * 300, "\u202egnp", "\x1b[31mred"]
    labels += ["r\u00e9sum\u00e9", "re\u0301sume\u0301", " a", "tab\there"]
    got = read_traces([write_rows(*({"prompt": "x", "task": label} for label in labels))])
    assert [request.task for request in got.requests] == labels


def test_read_traces_notes_later_turns_and_byte_order_mark(write_rows):
    path = write_rows(
        {"question_id": 1, "turns": ["a", "b"]}, {"question_id": 2, "turns": ["a", "b"]}
    )
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_traces([path]).notes == (
        "a byte-order mark was removed: 1",
        "later user turns are left out (no recorded answer): 2",
    )


def test_read_traces_of_cut_gzip_uses_nothing_of_any_file(write_rows):
    good = write_rows(GOOD, name="good.jsonl")
    cut = good.with_name("cut.jsonl.gz")
    cut.write_bytes(gzip.compress(b'{"prompt": "x"}\n' * 1000)[:-12])
    with pytest.raises(TraceError, match="compressed file is cut off"):
        read_traces([good, cut])


@pytest.mark.parametrize("content", [b"", b"\n\n \n", gzip.compress(b"", mtime=0)])
def test_read_traces_of_empty_file_is_an_error(tmp_path, content):
    path = tmp_path / "empty.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError, match="empty") as caught:
        read_traces([path])
    assert caught.value.exit_code == 2
    assert str(path) in str(caught.value)


def test_read_traces_without_usable_row_lists_reasons(write_rows):
    path = write_rows({"id": 1}, {"id": 2}, {"prompt": "x", "n": 2})
    with pytest.raises(TraceError) as caught:
        read_traces([write_rows(GOOD, name="good.jsonl"), path])
    assert "2 x no prompt (line 1, line 2); 1 x n > 1 (line 3)" in caught.value.what
    assert "messages" in caught.value.hint


def test_read_traces_of_a_json_array_says_what_is_expected(tmp_path):
    path = tmp_path / "array.json"
    path.write_text('[{"prompt": "x"}, {"prompt": "y"}]\n', encoding="utf-8")
    with pytest.raises(TraceError) as caught:
        read_traces([path])
    assert "one JSON object a line" in caught.value.hint


def test_read_traces_of_no_file_is_an_error():
    with pytest.raises(TraceError, match="no trace file"):
        read_traces([])


def test_read_traces_takes_a_single_path_too(write_rows):
    assert len(read_traces(str(write_rows(GOOD))).requests) == 1


def test_summarise_skips_counts_and_shows_the_first_three():
    skips = [Skip(reason="b", source=f"f:{line}") for line in (5, 6, 7, 8)]
    skips += [Skip(reason="a", source="f:1")]
    assert summarise_skips(skips) == [("b", 4, ("f:5", "f:6", "f:7")), ("a", 1, ("f:1",))]
    assert describe_skips(skips) == "4 x b (f:5, f:6, f:7); 1 x a (f:1)"


def test_summarise_skips_of_nothing_is_empty():
    assert summarise_skips([]) == []


def test_skip_document_holds_counts_and_three_lines_a_reason_without_folders():
    skips = [Skip(reason="b", source=f"folder/f.jsonl:{i}") for i in (5, 6, 7, 8)]
    skips.append(Skip(reason="a", source="g.jsonl:1"))
    assert skip_document(skips, num_not_drawn=9) == {
        "b": {"rows": 4, "lines": ["f.jsonl:5", "f.jsonl:6", "f.jsonl:7"]},
        "a": {"rows": 1, "lines": ["g.jsonl:1"]},
        "not drawn, beyond the limit": {"rows": 9, "lines": []},
    }
    assert skip_document([]) == {}
