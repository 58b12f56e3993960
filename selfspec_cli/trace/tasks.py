"""Where a request's task comes from when the user says so: `--task-from`.

    FIELD            a field of the row, dotted for nested ones: `metadata.route`, `request_tags.0`
    regex:PATTERN    the first match in the prompt's text: its first group, else all of it
    file             the stem of the trace file, without `.gz` too
    system-prompt    a short label from the hash of the system turns, `system-3f2a9c`; `no-system`

A rule replaces the labels of the rows. Where it finds nothing the request has no task, and all
requests without one share the bucket `unlabelled`; a rule that finds nothing at all is an error.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

from selfspec_cli.errors import TraceError
from selfspec_cli.records import Request
from selfspec_cli.trace.rows import ReadRow, Row
from selfspec_cli.trace.script import prompt_text

_REGEX = "regex:"
_SYSTEM_ROLES = ("system", "developer")
_DIGITS = 6  # of the hash: one chance in 17 million that two given system turns share a label
_LONGEST_NAME = 80  # characters of a task name that a rule may find; prompts are longer

FindTask = Callable[[Row, ReadRow], str | None]
"""(row as stored, what its reader made of it) to a label, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSource:
    """A rule that gives requests their tasks."""

    text: str
    """As the user wrote it."""
    find: FindTask


def task_source(text: str) -> TaskSource:
    """Return the rule that `--task-from` names.

    Raises:
        TraceError: it is empty, or the pattern is not a regular expression.
    """
    if not text.strip():
        raise TraceError(
            "no field is named", where="--task-from",
            hint="give a field of the rows, regex:PATTERN, file or system-prompt",
        )  # fmt: skip
    return TaskSource(text=text, find=_finder(text))


def _finder(text: str) -> FindTask:
    if text == "file":
        return lambda _row, read: file_label(read.request)
    if text == "system-prompt":
        return lambda _row, read: system_label(read.request)
    if text.startswith(_REGEX):
        pattern = _compiled(text.removeprefix(_REGEX))
        return lambda _row, read: regex_label(pattern, read.request)
    return lambda row, read: field_label(row, text) or field_label(read.fields, text)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise TraceError(f"not a regular expression: {error}", where="--task-from") from None


def field_label(row: Row, path: str) -> str | None:
    """Return the label in a field: text or a whole number; of a list of texts the first.

    A field whose own name holds dots wins over a nested one.

    Args:
        row: of the trace.
        path: names joined by dots; a whole number counts into a list, from 0.
    """
    return _name(_label(_lookup(row, path)))


def _lookup(place: object, path: str) -> object:
    if isinstance(place, dict) and path in place:
        return place[path]
    head, dot, rest = path.partition(".")
    inner: object = None
    if isinstance(place, dict):
        inner = place.get(head)
    elif isinstance(place, list) and head.isdecimal() and int(head) < len(place):
        inner = place[int(head)]
    return _lookup(inner, rest) if dot and inner is not None else inner


def _label(value: object) -> str | None:
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) or None if isinstance(value, str | int) else None


def regex_label(pattern: re.Pattern[str], request: Request) -> str | None:
    """Return the first match in the prompt: its first group if there is one, else all of it."""
    found = pattern.search(prompt_text(request))
    if found is None:
        return None
    return _name((found.group(1) if pattern.groups else found.group(0)) or None)


def file_label(request: Request) -> str | None:
    """Return the stem of the request's file: `logs/sales.2024.jsonl.gz` is `sales.2024`."""
    name = PurePath(request.source.rpartition(":")[0]).name
    return PurePath(name.removesuffix(".gz")).stem or None


def system_label(request: Request) -> str:
    """Return a short label that is the same wherever the system turns are the same."""
    turns = [
        str(message.get("content", ""))
        for message in request.messages or ()
        if message.get("role") in _SYSTEM_ROLES
    ]
    if not any(turns):
        return "no-system"
    return _hashed("system", "\n".join(turns))


def _name(label: str | None) -> str | None:
    """A label as it is; text too long or broken for one is hashed: labels stand in every file."""
    if label is None or (len(label) <= _LONGEST_NAME and "\n" not in label):
        return label
    return _hashed("text", label)


def _hashed(kind: str, text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{kind}-{digest[:_DIGITS]}"


def refuse_unfound(source: TaskSource, num_found: int, fields: Row) -> None:
    """Pass if the rule found a task for at least one request.

    Args:
        source: the rule.
        num_found: requests it gave a task.
        fields: of one row, to show what there is.

    Raises:
        TraceError: it found none: the name or the pattern is likely a slip.
    """
    if num_found:
        return
    if source.text.startswith(_REGEX):
        raise TraceError(
            f"the pattern matched no prompt: {source.text}", where="--task-from",
            hint="it is searched in the text of all turns; without ^ it may match anywhere",
        )  # fmt: skip
    raise TraceError(
        f"no row has a label in the field {source.text!r}", where="--task-from",
        hint=f"the first row has: {', '.join(sorted(map(str, fields))[:20])}",
    )  # fmt: skip
