"""Recorded answers: text, exact ids, logged counts, and what is no path of the model."""

import pytest

from selfspec_cli.trace.answers import HIDDEN_REASONING, TOOL_CALL, Answer, read_answer
from selfspec_cli.trace.rows import RowRefusedError


def response(message: dict | None = None, choice: dict | None = None, **usage: object) -> dict:
    message = {"role": "assistant", "content": "out"} if message is None else message
    return {"choices": [{"message": message, **(choice or {})}], "usage": usage}


@pytest.mark.parametrize(
    ("row", "num"),
    [
        ({"response": response(completion_tokens=7)}, 7),
        ({"response": response(completion_tokens=0), "completion_tokens": 9}, 0),
        ({"response": response(), "completion_tokens": 9}, 9),
        ({"completion": "out", "usage": {"completion_tokens": 3}}, 3),
        ({"completion": "out", "completion_tokens": 4}, 4),
        ({"completion": "out", "completion_tokens": "4"}, None),
        ({"completion": "out", "completion_tokens": True}, None),
        ({"completion": "out", "completion_tokens": -1}, None),
        ({"completion": "out"}, None),
    ],
)
def test_logged_count_is_taken_where_it_stands(row, num):
    assert read_answer(row).num_tokens == num


@pytest.mark.parametrize(
    ("choice", "ids"),
    [
        ({"token_ids": [5, 6]}, (5, 6)),
        ({"logprobs": {"content": [{"token": "token_id:5"}, {"token": "token_id:16"}]}}, (5, 16)),
        ({"logprobs": {"content": [{"token": "ou"}, {"token": "t"}]}}, None),
        ({"logprobs": {"content": [{"token": "token_id:5"}, {"token": "t"}]}}, None),
        ({"logprobs": {"content": []}}, None),
        ({"logprobs": None}, None),
    ],
)
def test_ids_are_taken_where_the_server_logged_them(choice, ids):
    got = read_answer({"response": response(choice=choice)})
    assert (got.text, got.token_ids) == ("out", ids)


def test_broken_ids_refuse_the_row():
    choice = {"logprobs": {"content": [{"token": "token_id:x"}]}}
    with pytest.raises(RowRefusedError, match="invalid token_ids"):
        read_answer({"response": response(choice=choice)})


@pytest.mark.parametrize(
    ("message", "usage", "remark"),
    [
        ({"content": "out", "reasoning_content": "hm"}, {}, HIDDEN_REASONING),
        ({"content": "out"}, {"completion_tokens_details": {"reasoning_tokens": 3}},
         HIDDEN_REASONING),
        ({"content": "", "tool_calls": [{"function": {"name": "f"}}]}, {}, TOOL_CALL),
        ({"content": None, "function_call": {"name": "f"}}, {}, TOOL_CALL),
    ],
)  # fmt: skip
def test_answers_that_are_no_path_are_left_out_and_counted(message, usage, remark):
    """Their tokens would be scored after the wrong prefix, or cannot be rebuilt at all."""
    got = read_answer({"response": response(message, **usage, completion_tokens=9)})
    assert got == Answer(remarks=(remark,))
    exact = read_answer({"response": response(message, {"token_ids": [1, 2]}, **usage)})
    assert (exact.text, exact.token_ids, exact.remarks) == (None, (1, 2), ())


def test_empty_reasoning_changes_nothing():
    usage = {"completion_tokens_details": {"reasoning_tokens": 0}, "completion_tokens": 2}
    got = read_answer({"response": response({"content": "out", "reasoning": ""}, **usage)})
    assert (got.text, got.num_tokens) == ("out", 2)


@pytest.mark.parametrize(
    ("row", "detail"),
    [
        ({"response": {"status_code": 429, "body": {}}}, "status 429"),
        ({"response_status": 500, "completion": "x"}, "status 500"),
        ({"status": "failure"}, "status failure"),
        ({"response": {"error": {"message": "my secret prompt"}}}, "error is set"),
        ({"response": {"body": {"error": {"message": "my secret prompt"}}}}, "error is set"),
        ({"error_str": "my secret prompt"}, "error_str is set"),
    ],
)
def test_failed_calls_are_refused_without_their_text(row, detail):
    with pytest.raises(RowRefusedError) as caught:
        read_answer(row)
    assert (caught.value.reason, caught.value.detail) == ("failed call", detail)


@pytest.mark.parametrize(
    "row", [{"status": "success"}, {"status": 200}, {"error": None}, {"error": {}}, {"error": ""}]
)
def test_calls_that_worked_are_not_failed(row):
    assert read_answer({"completion": "out", **row}).text == "out"
