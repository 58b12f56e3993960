"""Gateway logs with a request and its response side by side."""

import json

import pytest

from selfspec_cli.trace.openai_log import accepts, read
from selfspec_cli.trace.rows import RowRefusedError

BODY = {
    "model": "house-8b",
    "messages": [{"role": "system", "content": None}, {"role": "user", "content": "Name a river."}],
    "temperature": 0.2,
    "max_tokens": 24,
    "stop": ["\n"],
    "metadata": {"task": "facts"},
    "user": "u-1",
    "stream": True,
}
RESPONSE = {
    "id": "chatcmpl-1",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Oder"}}
    ],
    "usage": {"prompt_tokens": 9, "completion_tokens": 3},
}


def one(row: dict):
    assert accepts(row), sorted(row)
    return read(row, "log.jsonl:4").request


@pytest.mark.parametrize(
    "row",
    [
        {"request": BODY, "response": RESPONSE},
        {
            "request": {"method": "POST", "body": BODY},
            "response": {"status": 200, "body": RESPONSE},
        },
        {"request": json.dumps(BODY), "response": json.dumps(RESPONSE)},
        {"request": {"url": "u", "body": json.dumps(BODY)}, "response": RESPONSE},
        {"request_body": BODY, "response_body": RESPONSE, "response_status": 200},
        {"request_body": json.dumps(BODY), "response_body": json.dumps(RESPONSE)},
    ],
    ids=["objects", "http", "text", "body as text", "helicone", "helicone text"],
)
def test_all_wrappers_give_the_same_request(row):
    got = one(row)
    assert [turn["content"] for turn in got.messages] == ["", "Name a river."]
    assert (got.temperature, got.max_tokens, got.stop) == (0.2, 24, ("\n",))
    assert (got.completion, got.finish, got.logged_completion_tokens) == ("Oder", "stop", 3)
    assert (got.request_id, got.task, got.source) == ("log.jsonl:4", "facts", "log.jsonl:4")


def test_fields_beside_the_bodies_win_and_metadata_is_merged():
    row = {"id": "r-1", "session_id": "s", "metadata": {"route": "a"}, "request": BODY}
    result = read(row, "log.jsonl:4")
    got = result.request
    assert (got.request_id, got.group_id, got.task) == ("r-1", "s", "facts")
    assert result.fields["metadata"] == {"task": "facts", "route": "a"}
    assert one({**row, "metadata": {"task": "outer"}}).task == "outer"


def test_helicone_properties_are_labels():
    body = {name: value for name, value in BODY.items() if name != "metadata"}
    assert one({"request_body": body, "request_properties": {"Task": "sql"}}).task == "sql"


def test_an_answer_that_is_json_text_stays_text():
    """A twin that parsed every text beginning with a brace would lose structured answers."""
    text = '{"river": "Oder"}'
    got = one({"request": BODY, "response": text})
    assert (got.completion, got.finish) == (text, "unknown")


def test_a_request_without_an_answer_is_read():
    got = one({"request": BODY, "response": None})
    assert (got.completion, got.logged_completion_tokens) == (None, None)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"request": json.dumps(BODY)[:60]}, "cut or malformed JSON text"),
        ({"request": BODY, "response_body": json.dumps(RESPONSE)[:-9]},
         "cut or malformed JSON text"),
        ({"request": {**BODY, "n": 2}}, "n > 1"),
        ({"request": {**BODY, "system": "be brief"}}, "system turn outside the messages"),
        ({"request": {**BODY, "response_format": {"type": "json_object"}}},
         "unsupported parameter"),
        ({"request": BODY, "response": {"error": {"code": 1}}}, "failed call"),
        ({"request": {"input": "an embedding"}}, "no prompt"),
    ],
)  # fmt: skip
def test_unusable_calls_are_refused_by_reason(row, reason):
    with pytest.raises(RowRefusedError) as caught:
        one(row)
    assert caught.value.reason == reason


@pytest.mark.parametrize("row", [{"prompt": "x"}, {"prompt": "x", "request": "GET /"}, {}])
def test_other_rows_are_left_to_other_readers(row):
    assert not accepts(row)
