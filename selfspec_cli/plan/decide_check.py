"""Is a document a plan that `decide` can use? Only stdlib: a server reads plans with it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from selfspec_cli.errors import PlanError

SCHEMA_VERSION: Final = 2
READABLE = (1, SCHEMA_VERSION)
"""Version 1 knows one batch size, and its disabled rules name a `max_batch` all the same."""
LAW: Mapping[str, float] = {
    "top_p": 1.0,
    "top_k": 0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
}
"""Sampling parameters a law is made of, with the values that mean "off"."""
Rule = Mapping[str, Any]

_NUMBER = (int, float)
_HUGE = 1e300
_NOTHING = type(None)
_RULE_FIELDS: Mapping[str, tuple[type, ...]] = {
    "task": (str,),
    "context_min": (int,),
    "context_max": (int, _NOTHING),
    "temperature_min": _NUMBER,
    "temperature_max": _NUMBER,
    "max_batch": (int, _NOTHING),
    "prompt_tokens_max": (int, _NOTHING),
    "laws": (list,),
    "enabled": (bool,),
    "drafter": (dict,),
    "draft": (dict,),
    "reason": (str,),
}
_AT_BATCH: Mapping[str, tuple[type, ...]] = {
    "batch_size": (int,),
    "check": (str,),
    "reason": (str,),
}
_COVERED: Mapping[str, tuple[type, ...]] = {
    "batch_size": (int,),
    "prompt_tokens_min": (int, _NOTHING),
    "prompt_tokens_max": (int, _NOTHING),
}


def check_plan(data: object, where: str) -> Mapping[str, Any]:
    """Return the document if `decide` can use it.

    Args:
        data: what a file held.
        where: file, for messages.

    Raises:
        PlanError: no plan, of another schema version, or a field that is missing or wrong.
    """
    if not isinstance(data, dict):
        raise PlanError("holds no plan: a mapping of keys is expected", where=where)
    version = data.get("schema_version")
    if isinstance(version, bool) or version not in READABLE:
        known = " and ".join(str(number) for number in READABLE)
        raise PlanError(f"schema version {version}, this reader knows {known}", where=where)
    rules = data.get("rules")
    if not isinstance(rules, list) or not isinstance(data.get("traces"), dict):
        raise PlanError("torn: `rules` or `traces` is missing", where=where)
    for name in ("prompt_tokens_min", "prompt_tokens_max"):
        value = data["traces"].get(name)
        if value is not None and not finite(value):
            raise PlanError(f"traces.{name} is {value!r}, not a number", where=where)
    sizes = _batch_sizes(data, where)
    _check_entries(data, "batches", _COVERED, where)
    for number, rule in enumerate(rules):
        _check_rule(rule, sizes, f"{where}: rules[{number}]")
    return data


def finite(value: object) -> bool:
    """Whether a value is a finite number; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, _NUMBER):
        return False
    return -_HUGE <= value <= _HUGE  # false for NaN, and safe for integers beyond any float


def _batch_sizes(data: Mapping[str, Any], where: str) -> list[int]:
    sizes = data.get("batch_sizes", [1])
    whole = isinstance(sizes, list) and all(type(size) is int and size >= 1 for size in sizes)
    if not whole or not sizes or sorted(set(sizes)) != sizes:
        raise PlanError(f"batch_sizes is {sizes!r}, not rising batch sizes", where=where)
    return sizes


def _check_rule(rule: object, sizes: Sequence[int], where: str) -> None:
    if not isinstance(rule, dict):
        raise PlanError("a rule is a mapping of keys", where=where)
    _check_fields(rule, _RULE_FIELDS, where)
    _check_laws(rule["laws"], where)
    cell = (rule["drafter"].get("exit_layer"), rule["draft"].get("length"))
    if rule["enabled"] and not all(type(part) is int and part >= 1 for part in cell):
        raise PlanError(f"enabled without an exit layer and a draft length: {cell}", where=where)
    _check_batches(rule, sizes, where)


def _check_batches(rule: Rule, sizes: Sequence[int], where: str) -> None:
    """A rule holds at the smallest measured size, where it was decided, or nowhere."""
    most = rule["max_batch"]
    if rule["enabled"] and most is None:
        raise PlanError("enabled without max_batch", where=where)
    if most is not None and most < sizes[0]:
        told = f"max_batch {most} lies below {sizes[0]}, the smallest batch size measured"
        raise PlanError(told, where=where)
    _check_entries(rule, "by_batch", _AT_BATCH, where)
    for entry in rule.get("by_batch", []):
        if most is not None and entry["batch_size"] <= most and entry["check"] != "pass":
            told = f"max_batch {most}, but batch {entry['batch_size']} is {entry['check']}"
            raise PlanError(told, where=where)


def _check_entries(
    found: Mapping[str, Any], name: str, fields: Mapping[str, tuple[type, ...]], where: str
) -> None:
    """Check a list of what is said of each batch size; plans of version 1 have none."""
    entries = found.get(name, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise PlanError(f"{name} is no list of mappings", where=where)
    for number, entry in enumerate(entries):
        _check_fields(entry, fields, f"{where}: {name}[{number}]")


def _check_fields(
    found: Mapping[str, Any], wanted: Mapping[str, tuple[type, ...]], where: str
) -> None:
    for name, kinds in wanted.items():
        value = found.get(name, ...)
        odd_bool = isinstance(value, bool) and bool not in kinds
        if odd_bool or not isinstance(value, kinds):
            told = "missing" if value is ... else repr(value)
            raise PlanError(f"{name} is {told}", where=where)


def _check_laws(laws: Sequence[object], where: str) -> None:
    for law in laws:
        numbers = isinstance(law, dict) and all(
            finite(law.get(name, default)) for name, default in LAW.items()
        )
        if not numbers:
            raise PlanError(f"laws holds {law!r}", where=where)
