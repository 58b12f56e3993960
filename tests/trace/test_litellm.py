"""LiteLLM logs: payloads of callbacks and rows of the spend table."""

import json

import pytest

from selfspec_cli.trace import read_traces
from selfspec_cli.trace.litellm import accepts, read
from selfspec_cli.trace.rows import RowRefusedError

CHOICE = {"finish_reason": "length", "message": {"role": "assistant", "content": "iron sleeps"}}
PAYLOAD = {
    "id": "chatcmpl-77",
    "call_type": "acompletion",
    "status": "success",
    "cache_hit": None,
    "model_parameters": {"temperature": 0.9, "max_tokens": 12, "extra_body": {"top_k": 5}},
    "messages": [{"role": "user", "content": "haiku about rust"}],
    "response": {"choices": [CHOICE], "usage": {"completion_tokens": 7}},
    "completion_tokens": 7,
    "request_tags": ["User-Agent: python", "creative", "paid"],
    "session_id": "s-1",
    "metadata": {"user_api_key_hash": None},
    "error_str": None,
}


def one(**changes: object):
    row = {**PAYLOAD, **changes}
    assert accepts(row)
    return read(row, "l.jsonl:1").request


def test_payload_is_read_whole():
    got = one()
    assert (got.request_id, got.task, got.group_id) == ("chatcmpl-77", "creative", "s-1")
    assert (got.temperature, got.max_tokens, got.sampling.top_k) == (0.9, 12, 5)
    assert (got.completion, got.finish, got.logged_completion_tokens) == (
        "iron sleeps", "length", 7,
    )  # fmt: skip


def test_rows_of_the_spend_table_store_objects_as_text():
    sent = json.dumps({"body": PAYLOAD["model_parameters"]})
    got = one(
        messages=json.dumps(PAYLOAD["messages"]), response=json.dumps(PAYLOAD["response"]),
        model_parameters=None, proxy_server_request=sent,
    )  # fmt: skip
    assert (got.messages, got.completion) == (one().messages, "iron sleeps")
    assert (got.temperature, got.max_tokens) == (0.9, 12)


def test_a_task_of_its_own_wins_over_tags_and_no_tag_is_no_task():
    assert one(task="poems").task == "poems"
    assert one(request_tags=["User-Agent: curl"]).task is None
    assert one(request_tags=None).task is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"call_type": "aembedding"}, "unsupported endpoint"),
        ({"cache_hit": True}, "cached answer"),
        ({"cache_hit": "True"}, "cached answer"),
        ({"status": "failure"}, "failed call"),
        ({"error_str": "timeout"}, "failed call"),
        ({"messages": {}}, "no prompt"),
        ({"messages": "{}"}, "no prompt"),
        ({"messages": '[{"role": "user", "cont'}, "cut or malformed JSON text"),
        ({"messages": [{"role": "user", "content": "a ... (litellm_truncated 9 chars) ... b"}]},
         "text was cut by the logger"),
        ({"messages": [{"role": "user", "content": "redacted-by-litellm"}]},
         "text was redacted by the logger"),
        ({"model_parameters": {"response_format": {"type": "json_object"}}},
         "unsupported parameter"),
    ],
)  # fmt: skip
def test_unusable_rows_are_refused_by_reason(changes, reason):
    with pytest.raises(RowRefusedError) as caught:
        one(**changes)
    assert caught.value.reason == reason


def test_a_row_without_stored_answer_still_has_its_prompt():
    got = one(response={})
    assert (got.completion, got.messages[0]["content"]) == (None, "haiku about rust")


def test_the_projects_own_payload_is_read(shared, write_rows):
    """A payload from LiteLLM's tests, put on one line as its loggers write it."""
    path = shared / "data" / "trace_shapes" / "litellm_standard_logging_payload.json"
    got = read_traces([write_rows(json.loads(path.read_text(encoding="utf-8")))])
    request = got.requests[0]
    assert got.files[0].formats == (("litellm", 1),)
    assert (request.completion, request.finish, request.logged_completion_tokens) == (
        "hi", "stop", 20,
    )  # fmt: skip
    assert (request.temperature, request.max_tokens, request.task) == (None, None, None)
