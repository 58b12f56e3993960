"""Find a config, let flags win, and turn every problem into one message for a person."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from selfspec_cli.config.resources import preset_names, preset_path
from selfspec_cli.config.settings import CalibrateConfig
from selfspec_cli.errors import ConfigError, SelfspecError, StorageError
from selfspec_cli.storage.files import read_bytes
from selfspec_cli.storage.yaml_text import YamlText, parse_yaml

_REQUIRED_HINTS = {
    "model": "Give -m: a local path, a hub id, or demo.",
    "traces": "Give -t: one or more trace files, or sample.",
    "out": "Give -o: the folder the run is written to.",
}
_Error = TypeVar("_Error", bound=SelfspecError)
_FLAGS = {"model": "-m", "traces": "-t", "out": "-o", "batch_sizes": "--batch-size"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where the values came from, to name the place of a problem."""

    file: str
    yaml: YamlText
    overrides: Mapping[str, object]

    def place(self, path: tuple[str, ...]) -> str:
        """Name the option or `file:line` that set the key at `path`, or just the key."""
        dotted = ".".join(path)
        for key in (dotted, path[0] if path else ""):
            if key in self.overrides:
                return _FLAGS.get(key, "--" + key.replace("_", "-").replace(".", "-"))
        for length in range(len(path), 0, -1):
            if path[:length] in self.yaml.lines:
                return f"{self.file}:{self.yaml.lines[path[:length]]}"
        return dotted


def load_config(
    name_or_file: str | Path | None = None, overrides: Mapping[str, object] | None = None
) -> CalibrateConfig:
    """Return the calibration config of a preset or file, with flags on top.

    Args:
        name_or_file: a preset's name (`preset_names`), a YAML file, or None for the defaults.
            A file of your own called like a preset is reached as `./quickstart`.
        overrides: values by key, nested keys dotted (`cost.blocks`); they win. None means the
            flag was not given.

    Raises:
        ConfigError: no such preset or file, not YAML, a repeated, unknown, missing or wrong key;
            the message names the dotted key, its option or file and line, and the nearest
            known key.
        LossyRuleError: an acceptance rule that changes the output.
    """
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    file, yaml = _read(name_or_file)
    source = _Source(file=file, yaml=yaml, overrides=given)
    values = _merge(_mapping(yaml.data, file), given)
    try:
        return CalibrateConfig.model_validate(values)
    except ValidationError as error:
        raise _explain(error, source) from error
    except SelfspecError as error:
        raise _placed(error, source) from error


def _read(name_or_file: str | Path | None) -> tuple[str, YamlText]:
    if name_or_file is None:
        return "defaults", YamlText(data=None, lines={})
    path = Path(name_or_file)
    if str(name_or_file) in preset_names() or (not path.exists() and _is_name(name_or_file)):
        path = preset_path(str(name_or_file))
        shown = path.name
    else:
        shown = str(path)
    try:
        data = read_bytes(path)
    except StorageError as error:
        raise ConfigError(error.what, where=shown, hint="Check the path given to -c.") from error
    return shown, parse_yaml(data, shown, ConfigError)


def _is_name(name_or_file: str | Path) -> bool:
    return (
        isinstance(name_or_file, str) and not Path(name_or_file).suffix and "/" not in name_or_file
    )


def _mapping(data: object, file: str) -> dict[str, Any]:
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(
            f"a config is a mapping of keys, this is a {type(data).__name__}",
            where=file,
            hint="Write lines such as `limit: 100`.",
        )
    return data


def _merge(values: Mapping[str, Any], overrides: Mapping[str, object]) -> dict[str, Any]:
    merged = dict(values)
    for dotted, value in overrides.items():
        head, _, rest = dotted.partition(".")
        if not rest:
            merged[head] = value
            continue
        section = merged.get(head, {})
        merged[head] = _merge(section, {rest: value}) if isinstance(section, Mapping) else section
    return merged


def _explain(error: ValidationError, source: _Source) -> ConfigError:
    """Return one error that leads with the first problem and lists the others."""
    ranks = {"extra_forbidden": 0, "missing": 2}  # a misspelt key explains a missing one
    details = sorted(error.errors(), key=lambda detail: ranks.get(detail["type"], 1))
    problems = [_problem(detail, source) for detail in details]
    first, others = problems[0], problems[1:]
    also = (f"also {other.where + ': ' if other.where else ''}{other.what}" for other in others)
    hint = "\n  ".join([first.hint, *also])
    return ConfigError(first.what, where=first.where, hint=hint.strip())


def _problem(details: Any, source: _Source) -> ConfigError:
    path = tuple(str(part) for part in details["loc"])
    dotted = ".".join(path)
    if details["type"] == "extra_forbidden":
        return _unknown_key(path, source)
    if details["type"] == "missing":
        hint = _REQUIRED_HINTS.get(dotted, "")
        return ConfigError(f"{dotted} is not given", hint=hint)
    message = details["msg"].removeprefix("Value error, ")
    key = ".".join(part for part in path if part in _known_keys() or not part.isdigit())
    key = _shortest_known(key)
    text = f"{message[0].lower()}{message[1:]} (got {details['input']!r})"
    return _placed(ConfigError(text, where=key, hint=f"{key}: {_describe(key)}"), source)


def _unknown_key(path: tuple[str, ...], source: _Source) -> ConfigError:
    dotted = ".".join(path)
    known = _known_keys()
    if path[0] == "gate":
        hint = "Rules of the gate have a file of their own: selfspec gate RUN --rules FILE."
        return ConfigError(f"unknown key {dotted!r}", where=source.place(path), hint=hint)
    near = difflib.get_close_matches(dotted, known, n=1) or [
        key for key in known if key.rpartition(".")[2] == path[-1]
    ]
    hint = f"Did you mean {near[0]}?" if near else f"Known keys: {', '.join(known)}."
    return ConfigError(f"unknown key {dotted!r}", where=source.place(path), hint=hint)


def _placed(error: _Error, source: _Source) -> _Error:
    """Name the option, or the line and the key, in an error that knew only its key."""
    key = error.where
    place = source.place(tuple(key.split(".")))
    # An option says the key; a line of a file does not.
    what = f"{key}: {error.what}" if place.startswith(source.file) else error.what
    return type(error)(what, where=place, hint=error.hint)


def _known_keys(model: type[BaseModel] = CalibrateConfig, prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys.extend(_known_keys(field.annotation, f"{prefix}{name}."))
    return keys


def _shortest_known(dotted: str) -> str:
    """Cut pydantic's union branches (`max_tokens.int`) off a key."""
    known = _known_keys()
    while dotted not in known and "." in dotted:
        dotted = dotted.rpartition(".")[0]
    return dotted


def _describe(dotted: str) -> str:
    model: type[BaseModel] = CalibrateConfig
    description = ""
    for name in dotted.split("."):
        field = model.model_fields[name]
        description = field.description or ""
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            model = field.annotation
    return description
