"""Chat messages of a row in the one form that chat templates take.

On the wire content may be null or a list of parts and tool arguments are JSON text; templates want
a string and a mapping. What a text-only model cannot see (images, audio) refuses the row.
"""

import orjson

from selfspec_cli.trace.rows import RowRefusedError, show

Message = dict[str, object]

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_OTHER_MEDIA = ("image", "audio", "video", "file")


def read_messages(value: object) -> tuple[Message, ...]:
    """Return messages with string content and tool arguments as mappings.

    Null content becomes an empty string. Text parts are joined with a newline, as vLLM and
    llama.cpp do. Other fields of a message (`name`, `tool_call_id`) go to the template unchanged.

    Raises:
        RowRefusedError: `malformed messages`, `unknown role`, `images, audio or files`,
            `tool arguments are not a mapping`.
    """
    if not isinstance(value, list):
        raise RowRefusedError("malformed messages", f"{type(value).__name__}, not a list")
    return tuple(_message(item) for item in value)


def _message(item: object) -> Message:
    if not isinstance(item, dict):
        raise RowRefusedError("malformed messages", f"a {type(item).__name__} among them")
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise RowRefusedError("unknown role", show(role))
    message = {name: field for name, field in item.items() if field is not None}
    message["content"] = _text(item.get("content"))
    calls = message.pop("tool_calls", None)
    if calls:
        message["tool_calls"] = _tool_calls(calls)
    return message


def _text(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RowRefusedError("malformed messages", f"content is a {type(content).__name__}")
    return "\n".join(_part_text(part) for part in content)


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and isinstance(kind, str):
        if any(medium in kind for medium in _OTHER_MEDIA):
            raise RowRefusedError("images, audio or files", show(kind))
        text = part.get(_TEXT_PARTS.get(kind, ""))
        if isinstance(text, str):
            return text
    raise RowRefusedError("malformed messages", f"content part of type {show(kind)}")


def _tool_calls(calls: object) -> list[Message]:
    if not isinstance(calls, list):
        raise RowRefusedError("malformed messages", "tool_calls is not a list")
    return [_tool_call(call) for call in calls]


def _tool_call(call: object) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise RowRefusedError("malformed messages", "a tool call without a function")
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(value: object) -> dict[str, object]:
    if isinstance(value, str):
        try:
            value = orjson.loads(value.strip() or "null")
        except orjson.JSONDecodeError:
            raise RowRefusedError("tool arguments are not a mapping", "not JSON") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RowRefusedError("tool arguments are not a mapping", f"a {type(value).__name__}")
    return value


def read_tools(value: object) -> tuple[Message, ...] | None:
    """Return the tool definitions for the template, or None if there are none.

    Raises:
        RowRefusedError: `invalid tools` if it is not a list of objects.
    """
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise RowRefusedError("invalid tools", "not a list of objects")
    return tuple(value)
