"""Whatever a file holds, reading ends in requests and skips or in one typed error."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from selfspec_cli.errors import TraceError
from selfspec_cli.records import Request
from selfspec_cli.trace import read_traces
from selfspec_cli.trace.registry import READERS
from selfspec_cli.trace.rows import ReadAnswer, RowRefusedError

FIELDS = [
    *("id", "task", "category", "metadata", "messages", "prompt", "prompt_token_ids", "turns"),
    *("completion", "completion_token_ids", "response", "body", "request", "tools", "stop"),
    *("temperature", "top_p", "top_k", "max_tokens", "logit_bias", "n", "finish_reason"),
    *("stop_reason", "guided_json", "response_format", "tool_choice", "followup_user_turns"),
    *("custom_id", "call_type", "model_parameters", "request_body", "response_body", "usage"),
    *("completion_tokens", "url", "status", "error", "request_properties", "extra_body"),
    *("logprobs", "token_ids", "message", "request_tags", "proxy_server_request"),
    *("role", "content", "tool_calls", "function", "arguments", "type", "text", "choices"),
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
ROWS = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6)


@settings(deadline=None, max_examples=50)
@given(ROWS, st.booleans())
def test_any_row_is_read_or_refused(row, with_prompt):
    if with_prompt:
        row["prompt"] = "x"
    reader = next(reader for reader in READERS if reader.accepts(row))
    try:
        result = reader.read(row, "f:1")
    except RowRefusedError:
        return
    if isinstance(result, ReadAnswer):
        return
    request = result.request
    forms = (request.prompt, request.messages, request.prompt_token_ids)
    assert sum(form is not None for form in forms) == 1, request
    assert isinstance(request, Request)
    assert hash((request.sampling, request.stop, request.task)) is not None


@settings(deadline=None, max_examples=50)
@given(st.lists(st.binary(max_size=30) | ROWS.map(lambda row: json.dumps(row).encode())))
def test_any_file_is_read_or_refused_and_rows_add_up(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("fuzz") / "trace.jsonl"
    path.write_bytes(b"\n".join(lines))
    try:
        got = read_traces([path])
    except TraceError:
        return
    file = got.files[0]
    assert file.num_rows == file.num_used + file.num_skipped
    assert file.num_skipped == len(got.skips)
    assert file.num_used >= len(got.requests)  # more where answers were joined
    assert len({request.request_id for request in got.requests}) == len(got.requests)
