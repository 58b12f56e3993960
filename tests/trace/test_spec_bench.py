"""Spec-Bench questions."""

import pytest

from selfspec_cli.trace.rows import RowRefusedError
from selfspec_cli.trace.spec_bench import accepts, read


def test_read_takes_the_first_turn_and_counts_the_rest():
    row = {"question_id": 82, "category": "writing", "turns": ["Draft it.", "Shorten it."]}
    assert accepts(row)
    result = read(row, "q.jsonl:1")
    request = result.request
    assert (request.request_id, request.task) == ("82", "writing")
    assert request.messages == ({"role": "user", "content": "Draft it."},)
    assert result.remarks == ("later user turns are left out (no recorded answer)",)


def test_read_of_one_turn_has_no_remark_and_no_temperature():
    result = read({"question_id": 1, "category": "qa", "turns": ["Who?"]}, "q.jsonl:1")
    assert result.remarks == ()
    assert result.request.temperature is None


@pytest.mark.parametrize("turns", [[], [1], "Who?", None])
def test_read_refuses_malformed_turns(turns):
    with pytest.raises(RowRefusedError, match="malformed turns"):
        read({"question_id": 1, "turns": turns}, "q.jsonl:1")


def test_accepts_leaves_our_own_rows_alone():
    assert not accepts({"prompt": "x"})
    assert not accepts({"prompt": "x", "turns": ["a"]})
