"""Whether a run may use a folder: checked before any model is loaded, leaving no trace."""

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from selfspec_cli.errors import RunDirError, StorageError
from selfspec_cli.storage.documents import plain_data, read_document
from selfspec_cli.storage.schema import SCHEMA_VERSION

MANIFEST = "manifest.json"


def check_place(path: Path) -> None:
    """Raise RunDirError if `path` is a file or its parent folder is missing."""
    if path.exists() and not path.is_dir():
        raise RunDirError(
            "is a file; a run needs a folder", where=str(path), hint="Give another -o."
        )
    if not path.absolute().parent.is_dir():
        raise RunDirError(
            f"the parent folder {str(path.parent)!r} does not exist",
            where=str(path),
            hint="Create it first; it may be a typing error.",
        )


def found_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest in `path`, empty if there is none.

    Raises:
        RunDirError: it is torn, or of another schema version.
    """
    if not (path / MANIFEST).exists():
        return {}
    advice = "Use another -o, or --fresh to measure again in this folder."
    try:
        manifest = read_document(path / MANIFEST)
    except StorageError as error:
        raise RunDirError(error.what, where=error.where, hint=advice) from error
    if not isinstance(manifest, dict) or manifest.get("schema_version") != SCHEMA_VERSION:
        found = manifest.get("schema_version") if isinstance(manifest, dict) else None
        raise RunDirError(
            f"the run has schema version {found}, this selfspec writes {SCHEMA_VERSION}",
            where=str(path / MANIFEST),
            hint=advice,
        )
    return manifest


def check_same(
    path: Path, manifest: Mapping[str, Any], wanted: str, measurement: Mapping[str, object]
) -> None:
    """Raise RunDirError, naming the keys that differ, if the run is of another measurement."""
    found = manifest.get("measurement_hash")
    if found == wanted:
        return
    before = manifest.get("measurement") or {}
    after: Any = plain_data(without_folders(dict(measurement)))
    keys = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    told = "; ".join(f"{key}: {before.get(key)!r} there, {after.get(key)!r} now" for key in keys)
    raise RunDirError(
        f"holds another measurement ({str(found)[:12]} there, {wanted[:12]} now)"
        + (f": {told}" if measurement and before and told else ""),
        where=str(path),
        hint="Use another -o, or --fresh to delete that run and measure again.",
    )


def check_contents(path: Path) -> None:
    """Raise RunDirError if the folder holds files but no run of selfspec.

    A `manifest.json` that another program wrote is such a file: `fresh` must never delete it.
    """
    if not path.is_dir() or _is_run(path):
        return
    foreign = sorted(entry.name for entry in path.iterdir())
    if foreign:
        raise RunDirError(
            f"is not empty and holds no run (found {', '.join(foreign[:3])})",
            where=str(path),
            hint="Give an empty or new folder to -o; nothing there was touched.",
        )


def _is_run(path: Path) -> bool:
    """Whether there is a manifest of ours; a torn one gets the benefit of the doubt."""
    if not (path / MANIFEST).is_file():
        return False
    try:
        manifest = read_document(path / MANIFEST)
    except StorageError:
        return True
    return isinstance(manifest, dict) and "measurement_hash" in manifest


def probe(path: Path) -> None:
    """Write and remove something where the run will write: rights alone do not tell."""
    try:
        if path.is_dir():
            probe = path / ".selfspec-probe.tmp"
            probe.write_bytes(b"")
            probe.unlink()
        else:
            path.mkdir()
            path.rmdir()
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> RunDirError:
    """Return the error for a run folder the system does not let us write."""
    return RunDirError(
        f"cannot be written: {error.strerror or error}",
        where=str(path),
        hint="Check the rights and the free space, or give another -o.",
    )


def listed_artefacts(path: Path) -> list[str]:
    """Return the artefact names the earlier manifest lists, if they are plain file names."""
    try:
        manifest = read_document(path / MANIFEST)
    except StorageError:
        return []
    listed = manifest.get("artefacts", {}) if isinstance(manifest, dict) else {}
    return [name for name in listed if PurePath(name).name == name and not name.startswith(".")]


def without_folders(value: Any) -> Any:
    """Return `value` with every absolute path cut to its last part, at any depth.

    Run files travel between machines and people: where a file lay on one of them is no finding.
    """
    if isinstance(value, Mapping):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(item) for item in value]
    if isinstance(value, str):
        option, equals, path = value.partition("=") if value.startswith("--") else ("", "", value)
        if PurePath(path).is_absolute():
            return option + equals + PurePath(path).name
    return value
