"""YAML with fewer surprises: numbers are numbers, a repeated key is an error, keys have lines.

PyYAML follows YAML 1.1, where `1e3` and `1.0e3` are text and the last of two equal keys wins.
Here both forms are floats, and a repeated key is an error that names both lines.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from selfspec_cli.errors import SelfspecError, StorageError

_FLOAT = re.compile(
    r"""^[-+]?(?:
        (?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)[eE][-+]?[0-9]+  # 1e3, 1.0e3, .5e-1
        |[0-9]+\.[0-9]*|\.[0-9]+                            # 1.0, 1., .5
    )$""",
    re.VERBOSE,
)
_FIRST_CHARACTERS = list("-+.0123456789")
_FLOAT_TAG = "tag:yaml.org,2002:float"
KeyPath = tuple[str, ...]


class Loader(yaml.SafeLoader):
    """Safe loader that reads every usual spelling of a float as a float."""


class Dumper(yaml.SafeDumper):
    """Safe dumper that quotes text which `Loader` would read as a float."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Escape what is not printable; PyYAML would fold odd line breaks into spaces."""
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Dumper.add_representer(str, _text)
Loader.add_implicit_resolver(_FLOAT_TAG, _FLOAT, _FIRST_CHARACTERS)
Dumper.add_implicit_resolver(_FLOAT_TAG, _FLOAT, _FIRST_CHARACTERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlText:
    """A parsed document and where its keys stand."""

    data: object
    lines: dict[KeyPath, int]
    """Line (from 1) of each mapping key, by path of keys from the top."""


def parse_yaml(text: str | bytes, name: str, error: type[SelfspecError] = StorageError) -> YamlText:
    """Parse one YAML document strictly.

    Args:
        text: the document; bytes must be UTF-8.
        name: file name for messages.
        error: class of the error to raise, so that a config file speaks of config.

    Returns:
        The data (mappings, lists, scalars; None for an empty document) and the keys' lines.

    Raises:
        SelfspecError: (as `error`) not UTF-8, not YAML, a repeated or non-scalar key. A repeated
            key is named by its dotted path with both lines.
    """
    decoded = _decode(text, name, error)
    try:
        loader = Loader(decoded)
        root = loader.get_single_node()
        lines = _key_lines(root, name, error)
        data = None if root is None else loader.construct_document(root)
    except yaml.YAMLError as problem:
        raise _not_yaml(problem, name, error) from problem
    except (ValueError, RecursionError) as problem:
        raise error(f"a value cannot be read: {problem}", where=name) from problem
    return YamlText(data=data, lines=lines)


def dump_yaml(data: object) -> str:
    """Return `data` (mappings, lists, scalars) as YAML text that `parse_yaml` reads back.

    Innermost mappings and lists stand on one line each: an interval is read at a glance.
    """
    return yaml.dump(
        data,
        Dumper=Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100,
        default_flow_style=None,
    )


def _decode(text: str | bytes, name: str, error: type[SelfspecError]) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = text[: problem.start].count(b"\n") + 1
        raise error("not UTF-8 text", where=f"{name}:{line}") from problem


def _not_yaml(problem: yaml.YAMLError, name: str, error: type[SelfspecError]) -> SelfspecError:
    mark = getattr(problem, "problem_mark", None)
    where = f"{name}:{mark.line + 1}" if mark else name
    reason = getattr(problem, "problem", None) or str(problem).splitlines()[0]
    return error(f"not valid YAML: {reason}", where=where)


def _key_lines(root: yaml.Node | None, name: str, error: type[SelfspecError]) -> dict[KeyPath, int]:
    lines: dict[KeyPath, int] = {}
    for path, key in _keys(root, (), set()):
        if not isinstance(key, yaml.ScalarNode):
            raise error("a key must be plain text", where=f"{name}:{key.start_mark.line + 1}")
        full, line = (*path, key.value), key.start_mark.line + 1
        if full in lines:
            raise error(
                f"key {'.'.join(full)!r} is given twice, on lines {lines[full]} and {line}",
                where=f"{name}:{line}",
                hint="Keep one of the two lines.",
            )
        lines[full] = line
    return lines


def _keys(
    node: yaml.Node | None, path: KeyPath, open_nodes: set[int]
) -> Iterator[tuple[KeyPath, yaml.Node]]:
    """Yield (path of the parent, key node) of every mapping below `node`, in file order."""
    if node is None or id(node) in open_nodes:  # an alias: its keys were seen at the anchor
        return
    open_nodes.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield path, key
            yield from _keys(value, (*path, str(key.value)), open_nodes)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _keys(item, (*path, str(index)), open_nodes)
