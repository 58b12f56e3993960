"""Reader of our own JSON lines, which are also OpenAI requests, batch lines and completions.

One request an object. Fields, first spelling that is not null wins:

    id | request_id | custom_id | task_id identifier, else FILE:LINE
    task | category | metadata.task      label, kept exactly
    prompt_token_ids | messages | prompt what the model was asked
    completion_token_ids | completion | response   what it answered, if recorded
    temperature, top_p, top_k, max_completion_tokens | max_tokens, penalties, min_tokens,
    logit_bias, stop, finish_reason, tools
    conversation_id | session_id | group_id | group

A request may sit inside `body` (OpenAI batch) or `request` (gateway logs). Fields not named here
are ignored, but for the parameters that `parameters.refuse_unsupported` knows.
"""

from pathlib import PurePath

from selfspec_cli.records import Finish, Request
from selfspec_cli.trace import messages as chat
from selfspec_cli.trace import parameters
from selfspec_cli.trace.rows import ReadRow, Row, RowRefusedError, first_of, label, token_ids

_ENVELOPES = ("body", "request")
_ID_NAMES = ("id", "request_id", "custom_id", "task_id")
_TASK_NAMES = ("task", "category")
_GROUP_NAMES = ("conversation_id", "session_id", "group_id", "group")
_FINISHES: dict[str, Finish] = {
    "stop": "stop",
    "eos": "eos",
    "eos_token": "eos",
    "end_turn": "eos",
    "length": "length",
    "max_tokens": "length",
}

Prompt = tuple[str | None, tuple[chat.Message, ...] | None, tuple[int, ...] | None]
Completion = tuple[str | None, tuple[int, ...] | None]
_NOTHING: Completion = (None, None)


def accepts(row: Row) -> bool:
    """Return True: this is the reader of last resort, and says why it refuses a row."""
    return isinstance(row, dict)


def read(row: Row, source: str) -> ReadRow:
    """Return the request on one row.

    Args:
        row: the JSON object.
        source: `file:line`, kept for messages; its last part is the id of rows without one.

    Returns:
        The request, and remarks to count.

    Raises:
        RowRefusedError: the row cannot be used; the reason is countable.
    """
    row = _unwrap(row)
    parameters.refuse_unsupported(row)
    prompt, messages, prompt_ids = _prompt(row)
    completion, finish = _completion(row), _finish(row)
    messages, completion, remarks = _split_answer(messages, completion)
    request = Request(
        request_id=label(row, _ID_NAMES) or PurePath(source).name,
        task=_task(row),
        prompt=prompt,
        messages=messages,
        prompt_token_ids=prompt_ids,
        completion=completion[0],
        completion_token_ids=completion[1],
        finish=finish,
        temperature=parameters.read_temperature(row),
        sampling=parameters.read_sampling(row),
        max_tokens=parameters.read_max_tokens(row),
        stop=parameters.read_stop(row),
        tools=chat.read_tools(row.get("tools")),
        group_id=label(row, _GROUP_NAMES) or "",
        source=source,
    )
    return ReadRow(request=request, remarks=remarks + _followups(row))


def _unwrap(row: Row) -> Row:
    for name in _ENVELOPES:
        inner = row.get(name)
        if isinstance(inner, dict):
            outer = {key: value for key, value in row.items() if key != name and value is not None}
            return {**inner, **outer}
    return row


def _task(row: Row) -> str | None:
    metadata = row.get("metadata")
    inner = label(metadata, ("task",)) if isinstance(metadata, dict) else None
    return label(row, _TASK_NAMES) or inner


def _prompt(row: Row) -> Prompt:
    name, value = first_of(row, ("prompt_token_ids", "messages", "prompt"))
    if value is None:
        raise RowRefusedError("no prompt", "none of prompt, messages, prompt_token_ids")
    if name == "messages":
        return None, chat.read_messages(value), None
    if name == "prompt_token_ids":
        return None, None, token_ids(value, name)
    if isinstance(value, list):
        return _prompt_list(value)
    if not isinstance(value, str):
        raise RowRefusedError("invalid prompt", f"a {type(value).__name__}")
    return value, None, None


def _prompt_list(value: list[object]) -> Prompt:
    if len(value) > 1 and all(isinstance(item, str | list) for item in value):
        raise RowRefusedError("several prompts in one row", f"{len(value)} prompts")
    if len(value) == 1 and isinstance(value[0], str):
        return value[0], None, None
    inner = value[0] if len(value) == 1 and isinstance(value[0], list) else value
    return None, None, token_ids(inner, "prompt")


def _completion(row: Row) -> Completion:
    ids = row.get("completion_token_ids")
    _, answer = first_of(row, ("completion", "response"))
    text, answer_ids = _answer(answer)
    return text, answer_ids if ids is None else token_ids(ids, "completion_token_ids")


def _answer(value: object) -> Completion:
    if value is None or isinstance(value, str):
        return value, None
    if isinstance(value, list):
        return None, token_ids(value, "completion")
    if isinstance(value, dict):
        return _choice_text(_first_choice(value)), None
    raise RowRefusedError("invalid completion", f"a {type(value).__name__}")


def _first_choice(response: Row) -> Row:
    body = response.get("body")
    choices = (body if isinstance(body, dict) else response).get("choices")
    if isinstance(choices, list) and len(choices) > 1:
        raise RowRefusedError("n > 1", f"{len(choices)} choices; rows are not expanded")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _choice_text(choice: Row) -> str | None:
    message = choice.get("message")
    holder, name = (message, "content") if isinstance(message, dict) else (choice, "text")
    text = holder.get(name)
    # The tokens of a tool call cannot be rebuilt from its parsed form: not a recorded path.
    return text if isinstance(text, str) and not holder.get("tool_calls") else None


def _finish(row: Row) -> Finish:
    """Return why the recorded answer ended; `stop` stays ambiguous where stop strings are set."""
    response = row.get("response")
    holder = _first_choice(response) if isinstance(response, dict) else row
    _, reason = first_of({**row, **holder}, ("finish_reason", "finish"))
    finish = _FINISHES.get(reason, "unknown") if isinstance(reason, str) else "unknown"
    if finish == "stop" and "stop_reason" in holder:  # vLLM: null for EOS, else what matched
        if holder["stop_reason"] is None:
            return "eos"
        return "stop" if row.get("stop") else "unknown"
    return finish


def _split_answer(
    messages: tuple[chat.Message, ...] | None, completion: Completion
) -> tuple[tuple[chat.Message, ...] | None, Completion, tuple[str, ...]]:
    """Take a trailing assistant turn out of the prompt: it is the recorded answer."""
    if not messages or messages[-1]["role"] != "assistant":
        return messages, completion, ()
    last = messages[-1]
    recorded = last["content"] if "tool_calls" not in last else None
    if completion == _NOTHING:
        completion = (recorded if isinstance(recorded, str) else None, None)
    elif completion[0] != recorded:
        raise RowRefusedError("answer begun in the prompt", "the last message is the assistant's")
    return messages[:-1], completion, ("the last assistant turn is the recorded answer",)


def _followups(row: Row) -> tuple[str, ...]:
    later = row.get("followup_user_turns")
    return ("later user turns are left out (no recorded answer)",) if later else ()
