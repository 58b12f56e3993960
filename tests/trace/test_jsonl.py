"""Our own JSON lines: every spelling of a field, and what refuses a row."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfspec_cli.records import Request, Sampling
from selfspec_cli.trace.jsonl import read
from selfspec_cli.trace.lines import Line
from selfspec_cli.trace.rows import RowRefusedError, parse_row


def request(row: dict) -> Request:
    return read(row, "folder/t.jsonl:7").request


def refusal(row: dict) -> str:
    with pytest.raises(RowRefusedError) as caught:
        read(row, "t.jsonl:7")
    return caught.value.reason


def test_read_takes_the_simplest_row():
    got = request({"prompt": "hi"})
    expected = Request(request_id="t.jsonl:7", task=None, prompt="hi", source="folder/t.jsonl:7")
    assert got == expected


@pytest.mark.parametrize("name", ["id", "request_id", "custom_id", "task_id"])
def test_read_id_spellings(name):
    assert request({name: 7, "prompt": "x"}).request_id == "7"


@pytest.mark.parametrize(
    "row", [{"task": "a/../b"}, {"category": "a/../b"}, {"metadata": {"task": "a/../b"}}]
)
def test_read_task_spellings(row):
    assert request({"prompt": "x", **row}).task == "a/../b"


@pytest.mark.parametrize("name", ["conversation_id", "session_id", "group_id", "group"])
def test_read_group_spellings(name):
    assert request({name: "c1", "prompt": "x"}).group_id == "c1"


@pytest.mark.parametrize(
    ("row", "field", "expected"),
    [
        ({"prompt": [1, 40]}, "prompt_token_ids", (1, 40)),
        ({"prompt": [[1, 40]]}, "prompt_token_ids", (1, 40)),
        ({"prompt": ["one"]}, "prompt", "one"),
        ({"prompt_token_ids": [5], "prompt": "x"}, "prompt_token_ids", (5,)),
        ({"messages": None, "prompt": "x"}, "prompt", "x"),
    ],
)
def test_read_prompt_forms(row, field, expected):
    got = request(row)
    forms = {n: getattr(got, n) for n in ("prompt", "messages", "prompt_token_ids")}
    assert {n: v for n, v in forms.items() if v is not None} == {field: expected}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "no prompt"),
        ({"prompt": None}, "no prompt"),
        ({"system": "be brief", "prompt": "x"}, "system turn outside the messages"),
        ({"prompt": "x", "error": {"message": "boom"}}, "failed call"),
        ({"prompt": "x", "status": "failure"}, "failed call"),
        ({"prompt": "x", "extra_body": {"guided_regex": "a+"}}, "unsupported parameter"),
        ({"prompt": ["a", "b"]}, "several prompts in one row"),
        ({"prompt": [[1], [2]]}, "several prompts in one row"),
        ({"prompt": {"a": 1}}, "invalid prompt"),
        ({"prompt": [1, "a"]}, "invalid prompt"),
        ({"prompt": [1, -4]}, "invalid prompt"),
        ({"prompt_token_ids": [1, 2.0]}, "invalid prompt_token_ids"),
        ({"prompt_token_ids": [True]}, "invalid prompt_token_ids"),
        ({"prompt": "x", "completion": 3}, "invalid completion"),
        ({"prompt": "x", "completion_token_ids": "12"}, "invalid completion_token_ids"),
        ({"prompt": "x", "response": {"choices": [{}, {}]}}, "n > 1"),
        ({"prompt": "x", "n": 3}, "n > 1"),
        ({"prompt": "x", "temperature": "0.7"}, "invalid temperature"),
        ({"prompt": "x", "max_tokens": -239}, "invalid max_tokens"),
        ({"prompt": "x", "guided_json": {"a": 1}}, "unsupported parameter"),
        ({"prompt": "x", "tools": "f"}, "invalid tools"),
    ],
)
def test_read_refuses_with_a_countable_reason(row, reason):
    assert refusal(row) == reason


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [1, "my secret"]},
        {"prompt": {"a": "my secret"}},
        {"prompt": "x", "tools": ["my secret"]},
        {"messages": [{"role": "user", "content": ["x", {"type": "my", "text": 3}]}]},
    ],
)
def test_read_refusal_does_not_repeat_prompt_text(row):
    with pytest.raises(RowRefusedError) as caught:
        read(row, "t.jsonl:7")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "text", "ids"),
    [
        ({"completion": "out"}, "out", None),
        ({"completion": ""}, "", None),
        ({"response": "out"}, "out", None),
        ({"completion": [4, 5]}, None, (4, 5)),
        ({"completion": "out", "completion_token_ids": [4]}, "out", (4,)),
        ({"response": {"choices": [{"message": {"content": "out"}}]}}, "out", None),
        ({"response": {"body": {"choices": [{"text": "out"}]}}}, "out", None),
        ({"response": {"choices": []}}, None, None),
    ],
)
def test_read_completion_forms(row, text, ids):
    got = request({"prompt": "x", **row})
    assert (got.completion, got.completion_token_ids) == (text, ids)


def test_read_answer_with_a_tool_call_is_not_a_recorded_path():
    message = {"content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    got = request({"prompt": "x", "response": {"choices": [{"message": message}]}})
    assert got.completion is None


@pytest.mark.parametrize(
    ("row", "finish"),
    [
        ({}, "unknown"),
        ({"finish_reason": "stop"}, "stop"),
        ({"finish_reason": "eos"}, "eos"),
        ({"finish_reason": "length"}, "length"),
        ({"finish_reason": "tool_calls"}, "unknown"),
        ({"finish_reason": 3}, "unknown"),
        ({"finish_reason": "stop", "stop": ["."], "stop_reason": None}, "eos"),
        ({"finish_reason": "stop", "stop": ["."], "stop_reason": "."}, "stop"),
        ({"finish_reason": "stop", "stop_reason": "."}, "unknown"),
        ({"response": {"choices": [{"text": "a", "finish_reason": "length"}]}}, "length"),
    ],
)
def test_read_finish(row, finish):
    assert request({"prompt": "x", **row}).finish == finish


def test_read_last_assistant_turn_is_the_recorded_answer():
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    result = read({"messages": turns}, "t.jsonl:1")
    assert (len(result.request.messages), result.request.completion) == (1, "a")
    assert result.remarks == ("the last assistant turn is the recorded answer",)
    assert request({"messages": turns, "completion": "a"}).completion == "a"
    assert refusal({"messages": turns, "completion": "b"}) == "answer begun in the prompt"


def test_read_unknown_fields_are_ignored():
    assert request({"prompt": "x", "extra": {"nested": [1, None]}, "seed": 3}).prompt == "x"


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.floats(0, 5),
    top_p=st.floats(0.001, 1),
    top_k=st.integers(0, 300),
    repetition_penalty=st.floats(0.1, 3),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    min_tokens=st.integers(0, 9),
    logit_bias=st.dictionaries(st.integers(0, 99), st.floats(-100, 100), max_size=3).map(
        lambda bias: tuple(sorted(bias.items()))
    ),
)


REQUESTS = st.builds(
    Request,
    request_id=st.text(min_size=1),
    task=st.none() | st.text(min_size=1),
    prompt=st.text(),
    completion=st.none() | st.text(),
    finish=st.sampled_from(["eos", "length", "stop"]),
    temperature=st.none() | st.floats(0, 5),
    sampling=SAMPLINGS,
    max_tokens=st.none() | st.integers(0, 4096),
    stop=st.lists(st.text(min_size=1), max_size=3).map(tuple),
    source=st.just("t:1"),
)


def as_row(request: Request) -> dict:
    names = ("task", "prompt", "completion", "temperature", "max_tokens", "stop")
    row = {name: getattr(request.sampling, name) for name in Sampling.__dataclass_fields__}
    row |= {name: getattr(request, name) for name in names}
    row["logit_bias"] = {str(token_id): amount for token_id, amount in row["logit_bias"]}
    return row | {"id": request.request_id, "finish_reason": request.finish}


@settings(deadline=None)
@given(REQUESTS, st.booleans())
def test_a_request_written_as_json_reads_back_equal(written, ascii_only):
    temperature = 1.0 if written.temperature is None else written.temperature
    written = replace(written, sampling=replace(written.sampling, temperature=temperature))
    data = json.dumps(as_row(written), ensure_ascii=ascii_only).encode()
    assert read(parse_row(Line(number=1, data=data, terminated=True)), "t:1").request == written
