"""Is a run whole? One that has not ended, or lost or changed what it measured, is not judged."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from selfspec_cli.errors import RunDirError, StorageError
from selfspec_cli.storage import RunDir
from selfspec_cli.storage.files import file_sha256

MEASURED = (
    "requests.parquet", "paths.parquet", "observations.parquet", "cost.csv", "cost_rounds.csv",
    "walk.parquet", "confirm.csv", "confirm_batch.csv",
)  # fmt: skip
"""What a plan rests on; figures and pages may be gone."""
_MAPPINGS = ("provenance", "config", "seeds", "footprint")
_FACTS = ("device", "libraries", "model", "traces")
_AGAIN = "Run the same `selfspec calibrate` command again; it goes on from where it stopped."


def refuse_partial(run: RunDir) -> None:
    """Refuse a run that cannot be judged by.

    Args:
        run: as loaded.

    Raises:
        RunDirError: its manifest lacks a part, or the run has not ended.
        StorageError: a table that it measured is gone, or is not what it wrote.
    """
    _check_ended(run.manifest, run.path / "manifest.json")
    for name in MEASURED:
        if name in run.manifest["artefacts"]:
            _check_table(run, name)


def hash_differs(run: RunDir, name: str) -> bool:
    """Return whether a file is not the one whose hash the manifest holds; False without a hash.

    Args:
        run: whose artefacts are a mapping.
        name: of a file that exists.

    Raises:
        RunDirError: the manifest's entry is no mapping.
        StorageError: the file cannot be read.
    """
    entry = run.manifest["artefacts"].get(name)
    if entry is None:
        return False
    known = entry.get("sha256") if isinstance(entry, Mapping) else None
    if not isinstance(known, str):
        raise RunDirError(
            f"artefacts.{name}: holds no sha256", where=str(run.path / "manifest.json")
        )
    return file_sha256(run.artefact(name)) != known


def _check_table(run: RunDir, name: str) -> None:
    file = run.artefact(name)
    if not file.exists():
        raise StorageError("this file of the run is gone", where=str(file), hint=_AGAIN)
    if hash_differs(run, name):
        raise StorageError(
            "is not the file that the run wrote: its hash differs from the manifest's",
            where=str(file),
            hint="Restore it, or measure again.",
        )


def _check_ended(manifest: Mapping[str, Any], file: Path) -> None:
    for field, what in _problems(manifest):
        raise RunDirError(f"{field} {what}", where=str(file))
    status = manifest.get("status")
    if status != "done":
        raise RunDirError(
            f"status is {status!r}: the run has not ended, so nothing can be judged by it",
            where=str(file),
            hint=_AGAIN,
        )


def _problems(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Fields that no calibration writes so, of those that are read without asking again."""
    for key in ("stages", "artefacts", "measurement"):
        if not isinstance(manifest.get(key), Mapping):
            yield key, "is missing or no mapping"
    yield from _no_mappings("", manifest, _MAPPINGS)
    yield from _no_mappings("provenance.", manifest.get("provenance") or {}, _FACTS)
    yield from _no_mappings("stages.", manifest["stages"], tuple(manifest["stages"]))
    yield from _wrong_numbers(manifest)
    kinds = manifest["stages"].get("cost", {}).get("layer_kinds")
    if not (isinstance(kinds, list) and kinds and all(isinstance(kind, str) for kind in kinds)):
        yield "stages.cost.layer_kinds", "is no list of names"


def _no_mappings(
    place: str, found: Mapping[str, Any], keys: Sequence[str]
) -> Iterator[tuple[str, str]]:
    for key in keys:
        value = found.get(key)
        if value is not None and not isinstance(value, Mapping):
            yield f"{place}{key}", f"is {value!r}, no mapping"


def _wrong_numbers(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    version, seed = manifest.get("schema_version"), (manifest.get("seeds") or {}).get("run", 0)
    if type(version) is not int:  # True equals 1
        yield "schema version", f"is {version!r}"
    if type(seed) is not int or seed < 0:
        yield "seeds.run", f"is {seed!r}, no whole number from 0"
    for key in ("exit_layers", "draft_lengths"):
        if not _counts(manifest["measurement"].get(key)):
            yield f"measurement.{key}", "is no list of whole numbers above 0"


def _counts(values: object) -> bool:
    numbers = values if isinstance(values, list) else []
    return bool(numbers) and all(type(number) is int and number > 0 for number in numbers)
