"""Batch files: input lines, output lines, and their join by custom_id."""

import pytest

from selfspec_cli.trace import read_traces
from selfspec_cli.trace.openai_batch import FAILED_LINE, accepts, read
from selfspec_cli.trace.rows import ReadAnswer, RowRefusedError
from selfspec_cli.trace.skips import summarise_skips

CHAT = "/v1/chat/completions"


def asked(name: str, **body: object) -> dict:
    body = {"messages": [{"role": "user", "content": f"say {name}"}], **body}
    return {"custom_id": name, "method": "POST", "url": CHAT, "body": body}


def answered(name: str, text: str, **choice: object) -> dict:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop", **choice}
    body = {"choices": [choice], "usage": {"completion_tokens": 2}}
    response = {"status_code": 200, "request_id": "req", "body": body}
    return {"id": f"batch-{name}", "custom_id": name, "response": response, "error": None}


def test_input_line_keeps_its_custom_id():
    row = asked("m-1", max_completion_tokens=8, temperature=0.2, id="inner")
    assert accepts(row)
    got = read({"id": "batch-line", **row}, "b.jsonl:1").request
    assert (got.request_id, got.max_tokens, got.temperature) == ("m-1", 8, 0.2)


def test_a_body_without_custom_id_is_read_too():
    row = {"id": "x", "body": asked("m")["body"]}
    assert accepts(row)
    assert read(row, "b.jsonl:1").request.request_id == "x"


def test_a_line_with_both_halves_needs_no_join():
    row = {**asked("m-1"), "response": answered("m-1", "hi")["response"]}
    got = read(row, "b.jsonl:1").request
    assert (got.completion, got.logged_completion_tokens, got.finish) == ("hi", 2, "stop")


def test_output_line_is_an_answer():
    got = read(answered("m-1", "hi"), "b.jsonl:1")
    assert isinstance(got, ReadAnswer)
    assert got.custom_id == "m-1"
    inside = {"custom_id": "m-1", "body": answered("m-1", "hi")["response"]["body"]}
    assert isinstance(read(inside, "b.jsonl:1"), ReadAnswer)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**asked("e"), "url": "/v1/embeddings"}, "unsupported endpoint"),
        ({**answered("e", "x"), "error": {"code": "batch_expired"}}, FAILED_LINE),
        ({**asked("e"), "error": {"code": "batch_expired"}}, FAILED_LINE),
        ({"body": {"choices": []}}, "no custom_id"),
        ({"body": {"input": "an embedding"}}, "no prompt"),
    ],
)
def test_unusable_lines_are_refused_by_reason(row, reason):
    with pytest.raises(RowRefusedError) as caught:
        read(row, "b.jsonl:1")
    assert caught.value.reason == reason


@pytest.mark.parametrize("order", [("in", "out"), ("out", "in")])
def test_answers_are_joined_by_id_whatever_the_order(write_rows, order):
    files = {
        "in": write_rows(asked("a"), asked("b", stop=["."]), asked("c"), name="in.jsonl"),
        "out": write_rows(
            answered("b", "bee", stop_reason="."),
            answered("a", "ay", stop_reason=7),
            answered("z", "stray"),
            {**answered("c", ""), "response": {"status_code": 500, "body": {}}},
            name="out.jsonl",
        ),
    }
    got = read_traces([files[name] for name in order])
    found = {one.request_id: (one.completion, one.finish) for one in got.requests}
    assert found == {"a": ("ay", "unknown"), "b": ("bee", "stop"), "c": (None, "unknown")}
    assert [(skip.reason, skip.source) for skip in got.skips] == [
        ("answer without its request", f"{files['out']}:3"),
        ("failed call", f"{files['out']}:4"),
    ]
    assert "answers were joined to their requests by custom_id: 2" in got.notes
    counts = {file.path: (file.num_rows, file.num_used, file.num_skipped) for file in got.files}
    assert counts == {str(files["in"]): (3, 3, 0), str(files["out"]): (4, 2, 2)}


def test_lines_that_report_an_error_are_counted_as_that(write_rows):
    """Their requests stay, without an answer; what the error says is told nowhere."""
    error = {"code": "batch_expired", "message": "say a"}
    failed = [
        {"id": f"batch-{name}", "custom_id": name, "response": None, "error": error}
        for name in ("a", "b")
    ]
    del failed[1]["response"]
    inputs = write_rows(asked("a"), asked("b"), asked("c"), name="in.jsonl")
    ended = write_rows(*failed, answered("c", "sea"), {"custom_id": "d"}, name="out.jsonl")
    got = read_traces([inputs, ended])
    found = [(one.request_id, one.completion) for one in got.requests]
    assert found == [("a", None), ("b", None), ("c", "sea")]
    counts = {(count.reason, count.num_rows) for count in summarise_skips(got.skips)}
    assert counts == {(FAILED_LINE, 2), ("no prompt", 1)}
    assert not any("say a" in str(skip) for skip in got.skips)
