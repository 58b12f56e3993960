"""One row of a trace: JSON text to a mapping, and checked access to its fields.

Traces are foreign data: a row that cannot be used is refused by itself and never stops its file.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from selfspec_cli.records import Request
from selfspec_cli.trace.lines import Line

Row = Mapping[str, object]
MAX_INTEGER = 2**31 - 1  # largest count or token id taken; artefacts store 32-bit columns
_SHOWN = 60  # characters of a refused value that a message repeats


class RowRefusedError(Exception):
    """A row cannot be used.

    Args:
        reason: short and countable, the same for all rows of this kind.
        detail: what is special about this row; never prompt text.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}" if detail else reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRow:
    """What a reader made of one row."""

    request: Request
    remarks: tuple[str, ...] = ()
    """Countable facts that did not stop the row, for the notes of the report."""
    fields: Row = field(default_factory=dict)
    """The row without its wrapper, where labels are looked up too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer:
    """An answer whose request is on another row, with the same `custom_id`."""

    custom_id: str
    response: Row
    """The OpenAI response object, perhaps inside `body`."""


def parse_row(line: Line) -> dict[str, object]:
    """Return the JSON object on a line.

    `NaN` and `Infinity` are taken, since Python writes them, so that the field which holds one can
    be named.

    Raises:
        RowRefusedError: `not UTF-8`, `torn last line`, or `malformed`.
    """
    try:
        line.data.decode("utf-8")
    except UnicodeDecodeError as error:
        if not line.terminated and error.reason == "unexpected end of data":
            raise RowRefusedError("torn last line", "ends inside a character") from None
        raise RowRefusedError("not UTF-8", f"byte 0x{line.data[error.start]:02x}") from None
    try:
        value = _loads(line.data)
    except (ValueError, RecursionError) as error:
        torn = not line.terminated and line.data.lstrip().startswith(b"{")
        detail = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RowRefusedError("torn last line" if torn else "malformed", detail) from None
    if not isinstance(value, dict):
        raise RowRefusedError("malformed", f"{type(value).__name__}, not an object")
    return value


def _loads(data: bytes) -> object:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        if b"NaN" not in data and b"Infinity" not in data:
            raise
    value = json.loads(data)
    # The standard library takes lone surrogates, which no tokenizer can encode.
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def show(value: object) -> str:
    """Return a value for a message: escaped, on one line, at most about 60 characters."""
    text = ascii(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def first_of(row: Row, names: tuple[str, ...]) -> tuple[str, object]:
    """Return the first of several spellings whose value is not null, or the first name and None."""
    for name in names:
        if row.get(name) is not None:
            return name, row[name]
    return names[0], None


def mapping(value: object, name: str) -> Row | None:
    """Return a JSON object, also one that a log stored as text; None for anything else.

    Args:
        value: of the field.
        name: of the field, for the refusal.

    Raises:
        RowRefusedError: `cut or malformed JSON text`, where a text begins as an object does.
    """
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = json_text(value, name)
    return value if isinstance(value, dict) else None


def json_text(text: str, name: str) -> object:
    """Return the JSON value that a log stored as text.

    Raises:
        RowRefusedError: `cut or malformed JSON text`.
    """
    try:
        return _loads(text.encode("utf-8"))
    except (ValueError, RecursionError):
        detail = f"{name} of {len(text)} characters"
        raise RowRefusedError("cut or malformed JSON text", detail) from None


def number(row: Row, name: str, *, low: float = -math.inf, high: float = math.inf) -> float | None:
    """Return a finite number in [low, high], or None where the field is absent or null.

    Text and booleans are never converted.

    Raises:
        RowRefusedError: `invalid NAME`.
    """
    if row.get(name) is None:
        return None
    value = finite(row[name])
    if value is None or not low <= value <= high:
        raise RowRefusedError(f"invalid {name}", show(row[name]))
    return value


def finite(value: object) -> float | None:
    """Return a JSON number as a float, or None for NaN, infinities, booleans and anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not -1e300 <= value <= 1e300:  # false for NaN, and safe for integers too big for a float
        return None
    return float(value) + 0.0  # -0.0 becomes 0.0


def integer(row: Row, names: tuple[str, ...], *, low: int) -> int | None:
    """Return a whole number >= low (16.0 counts as 16), or None where absent or null.

    Args:
        row: the row.
        names: spellings of the field, in order of preference.
        low: smallest value taken.

    Raises:
        RowRefusedError: `invalid NAME`, the name as spelt in the row.
    """
    name, _ = first_of(row, names)
    value = number(row, name, low=low, high=MAX_INTEGER)
    if value is None:
        return None
    if not value.is_integer():
        raise RowRefusedError(f"invalid {name}", show(row[name]))
    return int(value)


def token_ids(value: object, name: str) -> tuple[int, ...]:
    """Return a list of token ids [S] as a tuple.

    Raises:
        RowRefusedError: `invalid NAME` if it is not a list of whole numbers >= 0.
    """
    if not isinstance(value, list):
        raise RowRefusedError(f"invalid {name}", f"a {type(value).__name__}, not a list")
    for item in value:
        if type(item) is not int or not 0 <= item <= MAX_INTEGER:
            raise RowRefusedError(f"invalid {name}", f"{_kind(item)} is not a token id")
    return tuple(value)


def _kind(item: object) -> str:
    """Describe an item without repeating text: prompts must not reach messages."""
    number_like = isinstance(item, int | float)
    return show(item) if number_like else f"a {type(item).__name__}"


def label(row: Row, names: tuple[str, ...]) -> str | None:
    """Return an identifier or label exactly as written, numbers as text; None if there is none."""
    _, value = first_of(row, names)
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value) or None
