"""What a trace recorded of an answer: its text or token ids, why it ended, how long it was.

An answer is a path of METHOD.md §3 only if every token of it is known. The text of a tool call, or
of an answer that was preceded by hidden reasoning, cannot be turned back into tokens and is left
out; token ids, where the server logged them, are exact.

Sources: the OpenAI chat completion object; `token_ids` and `stop_reason` of vLLM; logprobs with
vLLM's `return_tokens_as_token_ids`.
"""

from dataclasses import dataclass, replace

from selfspec_cli.records import Finish
from selfspec_cli.trace.rows import MAX_INTEGER, Row, RowRefusedError, first_of, mapping, token_ids

_FINISHES: dict[str, Finish] = {
    "stop": "stop",
    "eos": "eos",
    "eos_token": "eos",
    "end_turn": "eos",
    "length": "length",
    "max_tokens": "length",
}
_TOKEN_ID = "token_id:"  # what vLLM writes in front of an id
_REASONING = ("reasoning_content", "reasoning", "thinking")
HIDDEN_REASONING = "the recorded answer follows hidden reasoning and is not used"
TOOL_CALL = "the recorded answer is a tool call and is not used"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A recorded answer; text and ids are both None where nothing usable was recorded."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    finish: Finish = "unknown"
    num_tokens: int | None = None
    """Output tokens as the server counted them; None where it did not say or counted more than
    the recorded text holds."""
    remarks: tuple[str, ...] = ()

    @property
    def is_recorded(self) -> bool:
        """Whether there is a text or ids."""
        return self.text is not None or self.token_ids is not None


def read_answer(row: Row) -> Answer:
    """Return the answer on a row: plain text, token ids, or an OpenAI response object.

    Args:
        row: with `completion` or `response`, `completion_token_ids`, `finish_reason`, `usage` or
            `completion_tokens`, and the request's own `stop`.

    Raises:
        RowRefusedError: `failed call`, `n > 1`, `invalid completion`,
            `invalid completion_token_ids`.
    """
    _, value = first_of(row, ("completion", "response"))
    refuse_failed(row)
    has_stop = bool(row.get("stop"))
    if isinstance(value, dict):
        answer = read_response(value, has_stop=has_stop, outer=row)
    else:
        text, ids = _plain(value)
        finish = _finish(row, {}, has_stop=has_stop)
        answer = Answer(text=text, token_ids=ids, finish=finish, num_tokens=_logged_count(row))
    if row.get("completion_token_ids") is None:
        return answer
    exact = token_ids(row["completion_token_ids"], "completion_token_ids")
    return replace(answer, token_ids=exact, remarks=())


def read_response(response: Row, *, has_stop: bool, outer: Row | None = None) -> Answer:
    """Return the answer in an OpenAI response object, which may sit in `body`.

    Args:
        response: the object with `choices`.
        has_stop: whether the request set stop strings; tells a stop string from EOS.
        outer: the row around it, asked where the response does not say.

    Raises:
        RowRefusedError: `failed call`, `n > 1`, `cut or malformed JSON text`, `invalid token_ids`.
    """
    outer = outer or {}
    refuse_failed(response)
    body = mapping(response.get("body"), "body") or response
    refuse_failed(body)
    choice = _first_choice(body)
    message = choice.get("message")
    holder, name = (message, "content") if isinstance(message, dict) else (choice, "text")
    text, remarks = _text(holder, name, _reasoning_tokens(body))
    ids = _choice_ids(choice)
    return Answer(
        text=text,
        token_ids=ids,
        finish=_finish(choice, outer, has_stop=has_stop),
        num_tokens=None if remarks else _logged_count(body, outer),
        remarks=remarks if ids is None else (),
    )


def refuse_failed(row: Row) -> None:
    """Pass if a row or response does not say that the call failed.

    Raises:
        RowRefusedError: `failed call`; never the error's own text, which may repeat the prompt.
    """
    for name in ("status_code", "response_status", "status"):
        status = row.get(name)
        if isinstance(status, int) and status >= 400:
            raise RowRefusedError("failed call", f"status {status}")
    if row.get("status") in ("failure", "error"):
        raise RowRefusedError("failed call", f"status {row['status']}")
    for name in ("error", "error_str"):
        if row.get(name):
            raise RowRefusedError("failed call", f"{name} is set")


def _plain(value: object) -> tuple[str | None, tuple[int, ...] | None]:
    if value is None or isinstance(value, str):
        return value, None
    if isinstance(value, list):
        return None, token_ids(value, "completion")
    raise RowRefusedError("invalid completion", f"a {type(value).__name__}")


def _first_choice(body: Row) -> Row:
    choices = body.get("choices")
    if isinstance(choices, list) and len(choices) > 1:
        raise RowRefusedError("n > 1", f"{len(choices)} choices; rows are not expanded")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _text(holder: Row, name: str, reasoning_tokens: int) -> tuple[str | None, tuple[str, ...]]:
    text = holder.get(name)
    if holder.get("tool_calls") or holder.get("function_call"):
        return None, (TOOL_CALL,)
    if not isinstance(text, str):
        return None, ()
    if reasoning_tokens or any(holder.get(field) for field in _REASONING):
        return None, (HIDDEN_REASONING,)
    return text, ()


def _choice_ids(choice: Row) -> tuple[int, ...] | None:
    """Return the ids of a choice as vLLM logs them, by one of its two options."""
    if choice.get("token_ids") is not None:
        return token_ids(choice["token_ids"], "token_ids")
    logprobs = choice.get("logprobs")
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(entries, list) or not entries:
        return None
    names = [entry.get("token") if isinstance(entry, dict) else None for entry in entries]
    if not all(isinstance(name, str) and name.startswith(_TOKEN_ID) for name in names):
        return None
    digits = [str(name).removeprefix(_TOKEN_ID) for name in names]
    ids: list[object] = [int(each) if each.isdecimal() else each for each in digits]
    return token_ids(ids, "token_ids")


def _logged_count(*holders: Row) -> int | None:
    for holder in holders:
        usage = holder.get("usage")
        for place in (usage if isinstance(usage, dict) else {}, holder):
            value = place.get("completion_tokens")
            if type(value) is int and 0 <= value <= MAX_INTEGER:
                return value
    return None


def _reasoning_tokens(body: Row) -> int:
    usage = body.get("usage")
    details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
    value = details.get("reasoning_tokens") if isinstance(details, dict) else None
    return value if isinstance(value, int) else 0


def _finish(holder: Row, outer: Row, *, has_stop: bool) -> Finish:
    """Return why the answer ended; `stop` stays ambiguous where stop strings are set."""
    _, reason = first_of({**outer, **holder}, ("finish_reason", "finish"))
    finish = _FINISHES.get(reason, "unknown") if isinstance(reason, str) else "unknown"
    if finish == "stop" and "stop_reason" in holder:  # vLLM: null for EOS, else what matched
        if holder["stop_reason"] is None:
            return "eos"
        return "stop" if has_stop else "unknown"
    return finish
