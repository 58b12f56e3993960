"""Messages in the form templates take."""

import pytest

from selfspec_cli.trace.messages import read_messages, read_tools
from selfspec_cli.trace.rows import RowRefusedError


def call(arguments: object) -> list[dict]:
    function = {"name": "f", "arguments": arguments}
    return [{"role": "assistant", "tool_calls": [{"id": "c", "function": function}]}]


def arguments_of(messages: tuple[dict, ...]) -> object:
    return messages[0]["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, ""),
        ("a", "a"),
        ("\ufeffa\u0000", "\ufeffa\u0000"),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}], "a\nb"),
        (["a", {"type": "refusal", "refusal": "no"}], "a\nno"),
    ],
)
def test_read_messages_content_becomes_text(content, expected):
    assert read_messages([{"role": "user", "content": content}])[0]["content"] == expected


def test_read_messages_missing_content_is_empty_text():
    assert read_messages([{"role": "user"}]) == ({"role": "user", "content": ""},)


@pytest.mark.parametrize("kind", ["image_url", "input_image", "input_audio", "file", "video_url"])
def test_read_messages_refuses_what_a_text_model_cannot_see(kind):
    parts = [{"type": "text", "text": "a"}, {"type": kind, kind: {}}]
    with pytest.raises(RowRefusedError, match="images, audio or files"):
        read_messages([{"role": "user", "content": parts}])


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ("hi", "malformed messages"),
        (["hi"], "malformed messages"),
        ([{"role": "user", "content": 3}], "malformed messages"),
        ([{"role": "user", "content": [{"type": "text"}]}], "malformed messages"),
        ([{"role": "user", "content": [7]}], "malformed messages"),
        ([{"role": "human", "content": "hi"}], "unknown role"),
        ([{"role": ["user"], "content": "hi"}], "unknown role"),
        ([{"content": "hi"}], "unknown role"),
        ([{"role": "assistant", "tool_calls": {"a": 1}}], "malformed messages"),
        ([{"role": "assistant", "tool_calls": [{"id": "c"}]}], "malformed messages"),
    ],
)
def test_read_messages_refuses_with_a_countable_reason(messages, reason):
    with pytest.raises(RowRefusedError) as caught:
        read_messages(messages)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"city": "Oslo"}', {"city": "Oslo"}),
        ({"city": "Oslo"}, {"city": "Oslo"}),
        ("null", {}),
        ("", {}),
        (None, {}),
    ],
)
def test_read_messages_tool_arguments_become_a_mapping(arguments, expected):
    assert arguments_of(read_messages(call(arguments))) == expected


@pytest.mark.parametrize("arguments", ['["a"]', ["a"], "3", "{", '"text"', 7])
def test_read_messages_refuses_other_tool_arguments(arguments):
    with pytest.raises(RowRefusedError) as caught:
        read_messages(call(arguments))
    assert caught.value.reason == "tool arguments are not a mapping"


def test_read_messages_does_not_change_its_input():
    messages = call('{"a": 1}')
    read_messages(messages)
    assert messages[0]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'


def test_read_tools_takes_a_list_of_objects_only():
    assert read_tools(None) is read_tools([]) is None
    assert read_tools([{"type": "function"}]) == ({"type": "function"},)
    with pytest.raises(RowRefusedError, match="invalid tools"):
        read_tools(["f"])
