"""Reader of request and response logs of gateways: the OpenAI bodies, each in a field of its own.

    {"request": {...}, "response": {...}}              also with `body` inside either, and as text
    {"request_body": {...}, "response_body": {...}}    Helicone; `request_properties` are labels

Fields beside the bodies win over fields inside, but for `metadata`, which is merged.
"""

from selfspec_cli.trace import jsonl
from selfspec_cli.trace.rows import ReadRow, Row, first_of, mapping

_REQUESTS = ("request_body", "request")
_RESPONSES = ("response_body", "response")


def accepts(row: Row) -> bool:
    """Return whether a request body sits in a field of the row, as an object or as its text."""
    _, value = first_of(row, _REQUESTS)
    return isinstance(value, dict) or (isinstance(value, str) and value.lstrip().startswith("{"))


def read(row: Row, source: str) -> ReadRow:
    """Return the request of a logged call, with its answer.

    Args:
        row: the wrapper.
        source: `file:line`.

    Raises:
        RowRefusedError: as `jsonl.read`, and `cut or malformed JSON text`.
    """
    return jsonl.read(_flat(row), source)


def _flat(row: Row) -> Row:
    name, value = first_of(row, _REQUESTS)
    body = _body(mapping(value, name) or {})
    outer = {
        key: value
        for key, value in row.items()
        if value is not None and key not in (*_REQUESTS, *_RESPONSES)
    }
    properties = row.get("request_properties")
    if isinstance(properties, dict):  # spelt as people like: `Task`
        properties = {str(key).lower(): value for key, value in properties.items()}
    labels = [body.get("metadata"), properties, row.get("metadata")]
    merged = {k: v for each in labels if isinstance(each, dict) for k, v in each.items()}
    return {**body, **outer, "metadata": merged, "response": _response(row)}


def _body(request: Row) -> Row:
    inner = None if any(name in request for name in jsonl.PROMPT_NAMES) else request.get("body")
    return mapping(inner, "body") or request


def _response(row: Row) -> object:
    name, value = first_of(row, _RESPONSES)
    if isinstance(value, str) and '"choices"' not in value:
        return value  # the answer's own text, which may well be JSON
    return mapping(value, name) or value
