"""Reader of our own JSON lines, which are also bare OpenAI requests.

One request an object. Fields, first spelling that is not null wins:

    id | request_id | custom_id | task_id               identifier, else FILE:LINE
    task | category | metadata.task                      label, kept exactly
    prompt_token_ids | messages | prompt                 what the model was asked
    completion_token_ids | completion | response         what it answered, if recorded
    finish_reason, usage.completion_tokens | completion_tokens    how the answer ended, its length
    temperature, top_p, top_k, max_completion_tokens | max_tokens, penalties, min_tokens,
    logit_bias, stop, tools, and `extra_body`, which holds more of these
    conversation_id | session_id | group_id | group

Fields not named here are ignored, but for the parameters that `parameters.refuse_unsupported`
knows and for those that say that the call failed (`answers.refuse_failed`). Readers of wrapped
formats take the wrapper off and hand the row on to `read`.
"""

from dataclasses import replace
from pathlib import PurePath

from selfspec_cli.records import Request
from selfspec_cli.trace import messages as chat
from selfspec_cli.trace import parameters
from selfspec_cli.trace.answers import Answer, read_answer
from selfspec_cli.trace.rows import ReadRow, Row, RowRefusedError, first_of, label, token_ids

PROMPT_NAMES = ("prompt_token_ids", "messages", "prompt")
_ID_NAMES = ("id", "request_id", "custom_id", "task_id")
_TASK_NAMES = ("task", "category")
_GROUP_NAMES = ("conversation_id", "session_id", "group_id", "group")

Messages = tuple[chat.Message, ...]
Prompt = tuple[str | None, Messages | None, tuple[int, ...] | None]


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
    extra = row.get("extra_body")
    row = {**extra, **row} if isinstance(extra, dict) else row
    parameters.refuse_unsupported(row)
    prompt, messages, prompt_ids = _prompt(row)
    answer = read_answer(row)
    messages, answer = _split_answer(messages, answer)
    request = Request(
        request_id=label(row, _ID_NAMES) or PurePath(source).name,
        task=_task(row),
        prompt=prompt,
        messages=messages,
        prompt_token_ids=prompt_ids,
        completion=answer.text,
        completion_token_ids=answer.token_ids,
        finish=answer.finish,
        logged_completion_tokens=answer.num_tokens,
        temperature=parameters.read_temperature(row),
        sampling=parameters.read_sampling(row),
        max_tokens=parameters.read_max_tokens(row),
        stop=parameters.read_stop(row),
        tools=chat.read_tools(row.get("tools")),
        group_id=label(row, _GROUP_NAMES) or "",
        source=source,
    )
    return ReadRow(request=request, remarks=answer.remarks + _followups(row), fields=row)


def _task(row: Row) -> str | None:
    metadata = row.get("metadata")
    inner = label(metadata, ("task",)) if isinstance(metadata, dict) else None
    return label(row, _TASK_NAMES) or inner


def _prompt(row: Row) -> Prompt:
    name, value = first_of(row, PROMPT_NAMES)
    if value is None:
        raise RowRefusedError("no prompt", "none of prompt, messages, prompt_token_ids")
    if row.get("system"):  # Anthropic's shape: left out, the prompt would be another one
        raise RowRefusedError("system turn outside the messages", "make it the first message")
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


def _split_answer(messages: Messages | None, answer: Answer) -> tuple[Messages | None, Answer]:
    """Take a trailing assistant turn out of the prompt: it is the recorded answer."""
    if not messages or messages[-1]["role"] != "assistant":
        return messages, answer
    last = messages[-1]
    recorded = last["content"] if "tool_calls" not in last else None
    if not answer.is_recorded and not answer.remarks:
        answer = replace(answer, text=recorded if isinstance(recorded, str) else None)
    elif answer.text != recorded:
        raise RowRefusedError("answer begun in the prompt", "the last message is the assistant's")
    remark = "the last assistant turn is the recorded answer"
    return messages[:-1], replace(answer, remarks=(remark, *answer.remarks))


def _followups(row: Row) -> tuple[str, ...]:
    later = row.get("followup_user_turns")
    return ("later user turns are left out (no recorded answer)",) if later else ()
