"""Presets and sample traces that travel with the package.

In a wheel they are package data; in a source checkout the same files are the top-level folders
`configs/` and `traces/`.
"""

import difflib
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

from selfspec_cli.errors import ConfigError

_PACKAGE = "selfspec_cli"
_RULES = "gate"  # presets of this name, or this name and a dash, are rules of the gate


def preset_names() -> tuple[str, ...]:
    """Return the names that `-c NAME` knows, sorted."""
    return tuple(sorted({path.stem for path in _files("configs", ".yaml")} - set(rules_names())))


def rules_names() -> tuple[str, ...]:
    """Return the names that `gate --rules NAME` knows, sorted."""
    stems = {path.stem for path in _files("configs", ".yaml")}
    return tuple(sorted(stem for stem in stems if stem.partition("-")[0] == _RULES))


def preset_path(name: str) -> Path:
    """Return the file of a preset.

    Raises:
        ConfigError: no such preset; the message lists them and the nearest.
    """
    return _named(name, preset_names(), "-c")


def rules_path(name: str) -> Path:
    """Return the file of a preset of the gate's rules.

    Raises:
        ConfigError: no such preset; the message lists them and the nearest.
    """
    return _named(name, rules_names(), "--rules")


def _named(name: str, names: Sequence[str], option: str) -> Path:
    for path in _files("configs", ".yaml"):
        if path.stem == name and name in names:
            return path
    near = difflib.get_close_matches(name, names, n=1)
    raise ConfigError(
        f"{name!r} is neither a preset nor a file",
        where=option,
        hint=(f"Did you mean {near[0]}? " if near else "")
        + f"Presets: {', '.join(names) or 'none found in this installation'}.",
    )


def sample_names() -> tuple[str, ...]:
    """Return the names of built-in traces that `-t NAME` knows, sorted."""
    return tuple(sorted(path.stem for path in _files("traces", ".jsonl")))


def resolve_trace(name: str) -> Path:
    """Return the file that `-t NAME` means: a built-in trace's, else the path itself.

    A file of your own called like a built-in trace is reached as `./sample`.
    """
    for path in _files("traces", ".jsonl"):
        if path.stem == name:
            return path
    return Path(name)


def _files(folder: str, suffix: str) -> Iterator[Path]:
    """Yield the data files of a kind: package data first, else the source checkout's folder."""
    for root in (_package_data(folder), _checkout(folder)):
        found = sorted(root.glob(f"*{suffix}")) if root is not None else []
        if found:
            yield from found
            return


def _package_data(folder: str) -> Path | None:
    try:
        roots = resources.files(f"{_PACKAGE}.data.{folder}")
        entries = [Path(str(entry)) for entry in roots.iterdir()]
    except (ModuleNotFoundError, OSError, TypeError):
        return None
    return entries[0].parent if entries else None


def _checkout(folder: str) -> Path | None:
    package = Path(str(resources.files(_PACKAGE)))
    root = package.parent
    # Beside an installed package lie other people's folders: only a checkout has both.
    return root / folder if (root / "pyproject.toml").is_file() else None
