"""JSON and YAML documents, in which a number that is undefined is null."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from selfspec_cli.errors import StorageError
from selfspec_cli.storage.files import atomic_write, read_bytes
from selfspec_cli.storage.yaml_text import dump_yaml, parse_yaml


def write_document(document: Mapping[str, object] | Sequence[object], path: Path) -> None:
    """Write a .json or .yaml document atomically, in UTF-8.

    NaN and infinity are written as null: strict readers refuse the words, and undefined is
    missing. numpy scalars become plain numbers, tuples become lists.

    Raises:
        StorageError: unknown suffix, or the disk refuses.
        TypeError: a value that neither format knows.
    """
    plain = plain_data(document)
    if _is_yaml(path):
        text = dump_yaml(plain)
    else:
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
    # A lone surrogate is legal in a JSON string but not in UTF-8: keep it, escaped.
    data = text.encode("utf-8", errors="backslashreplace")
    atomic_write(path, lambda file: file.write(data))


def read_document(path: Path) -> object:
    """Read a .json or .yaml document.

    Raises:
        StorageError: missing, torn, not UTF-8, a NaN or Infinity constant in JSON, a repeated
            key, or an unknown suffix; the message names the file and, where known, the line.
    """
    if _is_yaml(path):
        return parse_yaml(read_bytes(path), str(path)).data
    try:
        return json.loads(
            read_bytes(path).decode("utf-8"),
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique_keys,
        )
    except json.JSONDecodeError as error:
        raise _torn(path, error.msg, error.lineno) from error
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise _torn(path, str(error)) from error


def plain_data(value: object) -> object:
    """Return `value` with only dict, list, str, int, float, bool and None; non-finite is None.

    Raises:
        TypeError: a value of another type.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return [plain_data(item) for item in items]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a numpy scalar
        return plain_data(value.item())
    raise TypeError(f"a document cannot hold {type(value).__name__}: {value!r}")


def _is_yaml(path: Path) -> bool:
    if path.suffix in (".yaml", ".yml"):
        return True
    if path.suffix == ".json":
        return False
    raise StorageError(f"unknown document format {path.suffix!r}", where=str(path))


def _refuse_constant(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {repeated!r} is given twice")
    return keys


def _torn(path: Path, reason: str, line: int | None = None) -> StorageError:
    where = f"{path}:{line}" if line else str(path)
    return StorageError(
        f"torn or not valid JSON: {reason}",
        where=where,
        hint="Restore the file, or run the stage that writes it again.",
    )
