"""Bytes on disk: atomic replacement and content hashes."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from selfspec_cli.errors import StorageError

_CHUNK_BYTES = 1 << 20  # read size while hashing: large enough to hide the call, small in memory


def atomic_write(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write `path` whole or leave it as it was.

    The bytes go to a hidden file in the same folder, are flushed to the disk and then renamed
    over the target, so a reader never sees half a file, whatever stops the process.

    Args:
        path: file to create or replace; its folder must exist.
        write: called once with the open binary file.

    Raises:
        StorageError: the folder is missing or the disk refuses; the old file is untouched.
    """
    hidden = path.with_name(temporary_name(path.name))
    try:
        with hidden.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        hidden.unlink(missing_ok=True)


def temporary_name(name: str) -> str:
    """Return the hidden name under which `name` is written before it is complete."""
    return f".{name[:100]}.{os.getpid()}.tmp"


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex.

    Raises:
        StorageError: the file is missing or unreadable.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise cannot_read(path, error) from error
    return digest.hexdigest()


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes.

    Raises:
        StorageError: the file is missing or unreadable.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise cannot_read(path, error) from error


def cannot_read(path: Path, error: OSError) -> StorageError:
    """Return the error for a file that is missing or unreadable."""
    if isinstance(error, FileNotFoundError):
        return StorageError(
            "the file is missing",
            where=str(path),
            hint="Run the stage that writes it, or check the path.",
        )
    return StorageError(f"cannot be read: {error.strerror or error}", where=str(path))


def _cannot_write(path: Path, error: OSError) -> StorageError:
    hint = "Create the folder first." if not path.parent.is_dir() else "Check space and rights."
    return StorageError(f"cannot be written: {error.strerror or error}", where=str(path), hint=hint)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system lets a folder be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems refuse; the rename stays atomic all the same
    finally:
        os.close(descriptor)
