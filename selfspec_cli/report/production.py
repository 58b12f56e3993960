"""What a server counted of its own speculation, read from its metrics."""

import math
from collections.abc import Mapping
from pathlib import Path

from selfspec_cli.errors import ConfigError
from selfspec_cli.report.finding_types import Production
from selfspec_cli.storage import read_document
from selfspec_cli.storage.files import read_bytes

_COUNTERS = {
    "rounds": "vllm:spec_decode_num_drafts_total",
    "drafted": "vllm:spec_decode_num_draft_tokens_total",
    "accepted": "vllm:spec_decode_num_accepted_tokens_total",
}
"""Our names and those of vLLM's Prometheus endpoint; per-position counters are other names."""


def read_production(path: Path) -> Production:
    """Read a server's counts.

    Args:
        path: a .json document with accepted, drafted and rounds, or any other file with the text
            of a Prometheus endpoint; there, counts of all label sets (engines, models) are added.

    Raises:
        StorageError: the file is missing or torn.
        ConfigError: a count is missing, no whole number, or impossible beside the others; the
            message names file and field.
    """
    counts = _of_json(path) if path.suffix == ".json" else _of_prometheus(path)
    rounds, drafted, accepted = (counts[name] for name in _COUNTERS)
    if rounds < 1:
        raise _refused(path, "rounds", "is 0: the server did not speculate")
    if drafted < rounds:
        raise _refused(path, "drafted", f"is {drafted}, fewer than the {rounds} rounds")
    if accepted > drafted:
        raise _refused(path, "accepted", f"is {accepted}, more than the {drafted} drafted tokens")
    return Production(source=path.name, rounds=rounds, drafted=drafted, accepted=accepted)


def _of_json(path: Path) -> dict[str, int]:
    document = read_document(path)
    if not isinstance(document, Mapping):
        raise ConfigError(
            "holds no object", where=f"--metrics {path}", hint=f"Wanted: {', '.join(_COUNTERS)}."
        )
    for name in _COUNTERS:
        if name not in document:
            raise _refused(path, name, "is missing")
    return {name: _whole(path, name, document[name]) for name in _COUNTERS}


def _of_prometheus(path: Path) -> dict[str, int]:
    """Sums over label sets of `name{labels} value [timestamp]` lines."""
    text = read_bytes(path).decode("utf-8", errors="replace")
    found: dict[str, int] = {}
    for line in text.splitlines():
        for name, counter in _COUNTERS.items():
            value = _value(line.strip(), counter)
            if value is not None:
                found[name] = found.get(name, 0) + _whole(path, counter, _number(value))
    for name, counter in _COUNTERS.items():
        if name not in found:
            raise _refused(path, counter, "is missing")
    return found


def _value(line: str, counter: str) -> str | None:
    """The value's text, or None where the line is not of this counter."""
    rest = line.split(" # ")[0].removeprefix(counter)  # an exemplar may follow
    if not line.startswith(counter) or rest[:1] not in ("{", " ", "\t"):
        return None
    fields = rest[rest.rfind("}") + 1 :].split()
    return fields[0] if fields else ""


def _number(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text


def _whole(path: Path, field: str, value: object) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or value < 0
        or value != int(value)
    ):
        raise _refused(path, field, f"is {value!r}, not a whole number of 0 or more")
    return int(value)


def _refused(path: Path, field: str, what: str) -> ConfigError:
    return ConfigError(
        f"{field} {what}",
        where=f"--metrics {path}",
        hint="Give counts of one span of time: the server's Prometheus text, or JSON such as "
        '{"rounds": 100, "drafted": 300, "accepted": 210}.',
    )
