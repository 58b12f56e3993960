"""`selfspec init`: a config file to fill in, with every key and what it means."""

from pathlib import Path
from typing import Annotated

import typer

from selfspec_cli.errors import ConfigError, StorageError


def init(
    file: Annotated[str, typer.Argument(metavar="FILE", help="File to write, or - for stdout.")],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a commented config: every key with its default and its meaning.

    Example: selfspec init selfspec.yaml

    Set model, traces and out in it, then run: selfspec calibrate -c ./selfspec.yaml. Flags win
    over the file. Exit codes: 0 written, 2 the file exists or cannot be written.
    """
    if file == "-":
        typer.echo(config_text("FILE"), nl=False)
        return
    path = Path(file)
    if path.is_dir():
        raise ConfigError("is a folder", where=file, hint="Name a file in it.")
    if path.exists() and not force:
        raise ConfigError("exists already", where=file, hint="Add --force to replace it.")
    shown = _as_file(path)
    _write(path, config_text(shown))
    typer.echo(
        f"wrote {file}\nSet model, traces and out in it, then run: selfspec calibrate -c {shown}",
        err=True,
    )


def config_text(shown: str) -> str:
    """Return the default preset under a head of its own.

    The three keys without a default stand first, as comments to set: what is left out there can
    still be given by a flag, and is asked for by name otherwise.

    Args:
        shown: the file's name as -c takes it.
    """
    from selfspec_cli.config.resources import preset_path

    head, _, keys = preset_path("default").read_text(encoding="utf-8").partition("\n\n")
    if any(not line.startswith("#") for line in head.splitlines()):
        raise ValueError(f"the default preset begins with no comment: {head[:60]!r}")
    return (
        "# Every key with its default and its meaning; flags win over this file. Set the first\n"
        f"# three (take the # away), then run: selfspec calibrate -c {shown}\n\n{keys}"
    )


def _as_file(path: Path) -> str:
    """Name the file so that -c never takes it for a preset: `./quickstart`."""
    return str(path) if path.is_absolute() or path.parts[0] == ".." else f"./{path}"


def _write(path: Path, text: str) -> None:
    from selfspec_cli.storage.files import atomic_write

    try:
        atomic_write(path, lambda stream: stream.write(text.encode("utf-8")))
    except StorageError as error:
        raise ConfigError(error.what, where=error.where, hint=error.hint) from error
