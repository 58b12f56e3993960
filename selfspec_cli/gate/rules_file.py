"""Rules of a gate from YAML: a preset or a file, with options on top; problems name their line."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from selfspec_cli.config.resources import rules_names, rules_path
from selfspec_cli.errors import ConfigError, StorageError
from selfspec_cli.gate.rules import CheckRule, GateRules
from selfspec_cli.storage.files import read_bytes
from selfspec_cli.storage.yaml_text import YamlText, parse_yaml

DEFAULT_RULES = "gate"


def load_rules(
    name_or_file: str = DEFAULT_RULES,
    *,
    min_speedup: float | None = None,
    concurrency: int | None = None,
) -> GateRules:
    """Return the rules of a preset or file, with options on top.

    Args:
        name_or_file: a preset's name (`rules_names`) or a YAML file; a file of your own called like
            a preset is reached as `./gate`.
        min_speedup: in place of `speedup.min_speedup`.
        concurrency: in place of `memory.concurrency`, requests at once.

    Raises:
        ConfigError: no such preset or file, an empty one, not YAML, a repeated or unknown key, a
            limit that is not finite or out of range; names file, line and key, and the nearest
            known key.
    """
    shown, yaml = _read(name_or_file)
    try:
        rules = GateRules.model_validate(_mapping(yaml.data, shown))
    except ValidationError as error:
        raise _explain(error, shown, yaml) from error
    rules = _overridden(rules, "speedup", "min_speedup", min_speedup)
    return _overridden(rules, "memory", "concurrency", concurrency)


def _read(name_or_file: str) -> tuple[str, YamlText]:
    path = Path(name_or_file)
    bare = not path.suffix and "/" not in name_or_file
    if name_or_file in rules_names() or (bare and not path.exists()):
        path = rules_path(name_or_file)
    shown = path.name if path.name == f"{name_or_file}.yaml" else str(name_or_file)
    try:
        data = read_bytes(path)
    except StorageError as error:
        hint = f"Give --rules a YAML file or one of: {', '.join(rules_names())}."
        raise ConfigError(error.what, where=shown or "--rules", hint=hint) from error
    return shown, parse_yaml(data, shown, ConfigError)


def _mapping(data: object, shown: str) -> Mapping[str, Any]:
    if data is None:  # a file cut to nothing would else pass as the default
        raise ConfigError(
            "holds no rule",
            where=shown,
            hint="Leave --rules out for the default, or write `{}`.",
        )
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"rules are a mapping of checks, this is a {type(data).__name__}",
            where=shown,
            hint="Write lines such as `speedup: {min_speedup: 1.05}`.",
        )
    return data


def _explain(error: ValidationError, shown: str, yaml: YamlText) -> ConfigError:
    """Return one error that leads with the first problem and lists the others."""
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    problems = [_problem(detail, shown, yaml) for detail in details]
    first = problems[0]
    also = [f"also {other.where}: {other.what}" for other in problems[1:]]
    return ConfigError(first.what, where=first.where, hint="\n  ".join([first.hint, *also]).strip())


def _problem(detail: Any, shown: str, yaml: YamlText) -> ConfigError:
    path = tuple(str(part) for part in detail["loc"])
    where = _place(path, shown, yaml)
    if detail["type"] == "extra_forbidden":
        return _unknown(path, where)
    message = detail["msg"].removeprefix("Value error, ")
    text = f"{'.'.join(path)}: {message[0].lower()}{message[1:]} (got {detail['input']!r})"
    return ConfigError(text, where=where, hint=_meaning(path))


def _place(path: Sequence[str], shown: str, yaml: YamlText) -> str:
    for length in range(len(path), 0, -1):
        line = yaml.lines.get(tuple(path[:length]))
        if line is not None:
            return f"{shown}:{line}"
    return shown


def _unknown(path: Sequence[str], where: str) -> ConfigError:
    dotted, known = ".".join(path), _known_keys()
    near = difflib.get_close_matches(dotted, known, n=1) or [
        key for key in known if key.rpartition(".")[2] == path[-1]
    ]
    if path[0] == "gate":
        hint = "Write the checks at the top of the file, not below `gate`."
    else:
        hint = f"Did you mean {near[0]}?" if near else f"Checks: {', '.join(_checks())}."
    what = "unknown check" if len(path) == 1 else "unknown key"
    return ConfigError(f"{what} {dotted!r}", where=where, hint=hint)


def _checks() -> list[str]:
    return list(GateRules.model_fields)


def _known_keys() -> list[str]:
    keys: list[str] = []
    for name, field in GateRules.model_fields.items():
        keys.append(name)
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            keys.extend(f"{name}.{key}" for key in kind.model_fields)
    return keys


def _meaning(path: Sequence[str]) -> str:
    """What a key takes, from its description."""
    model: type[BaseModel] = GateRules
    told = ""
    for name in path:
        field = model.model_fields.get(name)
        if field is None:
            break
        told = field.description or told
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            model = field.annotation
    if not told:
        base = CheckRule.model_fields.get(path[-1])
        told = (base.description if base else None) or ""
    return f"{'.'.join(path)}: {told}" if told else ""


def _overridden(rules: GateRules, check: str, key: str, value: object) -> GateRules:
    if value is None:
        return rules
    try:
        return rules.replaced(check, {key: value})
    except ValidationError as error:
        detail = error.errors()[0]
        message = detail["msg"]
        raise ConfigError(
            f"{message[0].lower()}{message[1:]} (got {value!r})",
            where="--" + key.replace("_", "-"),
            hint=_meaning((check, key)),
        ) from error
