"""Reader of LiteLLM logs: the standard logging payload of callbacks, and rows of its spend table.

    {"call_type": "acompletion", "model_parameters": {...}, "messages": [...], "response": {...},
     "request_tags": ["creative"], "session_id": ..., "cache_hit": false, "completion_tokens": 7}

The spend table stores objects as text, keeps the parameters in `proxy_server_request`, and keeps
no text at all by default. Long texts are cut in their middle, and such rows are refused.

Source: BerriAI/litellm, `StandardLoggingPayload` and `LiteLLM_SpendLogs`.
"""

import json

from selfspec_cli.trace import jsonl
from selfspec_cli.trace.rows import ReadRow, Row, RowRefusedError, json_text, mapping, show

_CALLS = ("completion", "acompletion", "text_completion", "atext_completion")
_CUT = "litellm_truncated"  # in the note that stands in the gap
_REDACTED = "redacted-by-litellm"
_OWN_TAG = "User-Agent:"  # added by the proxy itself, says nothing of the task


def accepts(row: Row) -> bool:
    """Return whether a row is one of LiteLLM's: it names its call type beside the messages."""
    return "call_type" in row and ("messages" in row or "model_parameters" in row)


def read(row: Row, source: str) -> ReadRow:
    """Return the request of a logged call, with its answer.

    The first of `request_tags` is the task, unless the row has a `task` of its own.

    Raises:
        RowRefusedError: as `jsonl.read`; `unsupported endpoint`; `cached answer`; `text was cut by
            the logger`; `text was redacted by the logger`; `no prompt` where text is not stored.
    """
    call = row.get("call_type")
    if call not in _CALLS:
        raise RowRefusedError("unsupported endpoint", show(call))
    if str(row.get("cache_hit")).lower() == "true":
        raise RowRefusedError("cached answer", "nothing was decoded for it")
    texts = json.dumps([row.get("messages"), row.get("response")], ensure_ascii=False)
    for mark, reason in ((_CUT, "cut"), (_REDACTED, "redacted")):
        if mark in texts:
            raise RowRefusedError(f"text was {reason} by the logger")
    return jsonl.read(_flat(row), source)


def _flat(row: Row) -> Row:
    outer = {key: value for key, value in row.items() if value is not None}
    flat = {**_parameters(row), **outer, "messages": _messages(row.get("messages"))}
    flat["response"] = mapping(row.get("response"), "response") or None
    return {"task": _tag(row.get("request_tags")), **flat}


def _parameters(row: Row) -> Row:
    given = mapping(row.get("model_parameters"), "model_parameters")
    if given is not None:
        return given
    sent = mapping(row.get("proxy_server_request"), "proxy_server_request") or {}
    return mapping(sent.get("body"), "body") or sent


def _messages(value: object) -> object:
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        value = json_text(value, "messages")
    if value in ({}, [], None):
        raise RowRefusedError("no prompt", "LiteLLM stores none unless it is told to")
    return value


def _tag(tags: object) -> str | None:
    names = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    return next((name for name in names if not name.startswith(_OWN_TAG)), None)
