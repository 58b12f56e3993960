"""Reader of OpenAI batch files: input lines, and output lines joined to them by `custom_id`.

    {"custom_id": "a-1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
    {"custom_id": "a-1", "response": {"status_code": 200, "body": {...}}, "error": null}
    {"custom_id": "a-1", "response": null, "error": {"code": "batch_expired", ...}}

vLLM, SGLang and most gateways write the same shape. A line may also hold both halves. Lines of the
separate error file are counted as what they are: calls that the batch could not make.
"""

from selfspec_cli.trace import jsonl
from selfspec_cli.trace.answers import refuse_failed
from selfspec_cli.trace.rows import ReadAnswer, ReadRow, Row, RowRefusedError, label

_COMPLETIONS = ("/chat/completions", "/completions")
FAILED_LINE = "batch line reports an error"


def accepts(row: Row) -> bool:
    """Return whether a row is a line of a batch: a `body`, or an answer or error by `custom_id`."""
    if any(name in row for name in jsonl.PROMPT_NAMES):
        return False
    response = row.get("response")
    ended = isinstance(response, dict) or (response is None and bool(row.get("error")))
    return isinstance(row.get("body"), dict) or ("custom_id" in row and ended)


def read(row: Row, source: str) -> ReadRow | ReadAnswer:
    """Return the request of an input line, or the answer of an output line.

    Args:
        row: one line of the batch.
        source: `file:line`.

    Raises:
        RowRefusedError: as `jsonl.read`; `unsupported endpoint`; `no custom_id`; `batch line
            reports an error`, never with the error's own text, which may repeat the prompt.
    """
    body, custom_id = row.get("body"), label(row, ("custom_id",))
    if row.get("error"):
        raise RowRefusedError(FAILED_LINE, "error is set")
    refuse_failed(row)
    response = body if isinstance(body, dict) and "choices" in body else row.get("response")
    if isinstance(body, dict) and response is not body:
        return _request(row, body, source)
    if custom_id is None:
        raise RowRefusedError("no custom_id", "an answer without its request")
    return ReadAnswer(custom_id=custom_id, response=response if isinstance(response, dict) else {})


def _request(row: Row, body: Row, source: str) -> ReadRow:
    url = row.get("url")
    if isinstance(url, str) and url.startswith("/") and not url.endswith(_COMPLETIONS):
        raise RowRefusedError("unsupported endpoint", url[:60])
    outer = {key: value for key, value in row.items() if key != "body" and value is not None}
    labels = {"id": row["custom_id"]} if row.get("custom_id") is not None else {}
    return jsonl.read({**body, **outer, **labels}, source)
