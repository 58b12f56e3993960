"""The run directory: whose measurement it holds, what is finished, what may be deleted."""

import copy
import hashlib
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any, TypedDict

from selfspec_cli.errors import RunDirError
from selfspec_cli.storage.documents import plain_data, write_document
from selfspec_cli.storage.files import file_sha256
from selfspec_cli.storage.place import (
    MANIFEST,
    check_contents,
    check_place,
    check_same,
    found_manifest,
    listed_artefacts,
    probe,
    unwritable,
    without_folders,
)
from selfspec_cli.storage.schema import SCHEMA_VERSION

SHARDS = "shards"
RUN_FILES = (
    MANIFEST, "requests.parquet", "paths.parquet", "observations.parquet", "lookups.parquet",
    "walk.parquet", "cost.csv", "cost_fit.json", "cost_rounds.csv", "grid.csv", "acceptance.csv",
    "confirm.csv", "confirm_batch.csv", "sweep.csv", "plan.yaml", "report.html", "report.md",
    "rules.csv", "findings.csv", "bench.html", "bench.md", "bench_summary.csv", "bench.csv",
    "bench.json",
)  # fmt: skip
"""Files that a run writes at its top; `fresh` deletes these, what the manifest lists, and the
folders of `RUN_FOLDERS`, and nothing else."""
RUN_FOLDERS = (SHARDS, "figures", "figures_bench")
_STAGE = re.compile(r"[a-z][a-z0-9_]*")


class SkippedRows(TypedDict):
    """Trace rows left out for one reason."""

    rows: int
    lines: list[str]
    """Where the first few of them are, as `file:line`."""


class RunDir:
    """A folder that holds one measurement and can be resumed.

    `open` only checks and leaves the disk as it was, so it is called before a model is loaded;
    `begin` creates the folder (or clears it, if fresh) and writes the manifest.
    """

    def __init__(
        self, path: Path, measurement_hash: str, manifest: dict[str, Any], *, fresh: bool = False
    ) -> None:
        self.path = path
        self.measurement_hash = measurement_hash
        self._manifest = manifest
        self._fresh = fresh
        self.resumed = bool(manifest) and not fresh
        """Whether the folder already held this measurement when it was opened."""

    @classmethod
    def open(
        cls,
        path: Path,
        measurement_hash: str,
        *,
        measurement: Mapping[str, object] | None = None,
        fresh: bool = False,
    ) -> "RunDir":
        """Check that a run may use `path`: new, or resumed from the same measurement.

        Args:
            path: the run's folder; its parent must exist.
            measurement_hash: of the measurement about to run (`config.measurement_hash`).
            measurement: the keys behind that hash, to name what differs from the folder's.
            fresh: measure again even if the folder holds a run (cleared by `begin`).

        Returns:
            The run; `manifest` is what was found, or empty.

        Raises:
            RunDirError: the parent is missing, `path` is a file, it cannot be written, it holds
                files but no run, or a run of another measurement or schema.
        """
        check_place(path)
        manifest = {} if fresh else found_manifest(path)
        if manifest:
            check_same(path, manifest, measurement_hash, measurement or {})
        check_contents(path)
        probe(path)
        return cls(path, measurement_hash, manifest, fresh=fresh)

    @classmethod
    def load(cls, path: Path) -> "RunDir":
        """Open an existing run for reading, whatever its measurement.

        Raises:
            RunDirError: `path` holds no readable manifest.
        """
        manifest = found_manifest(path)
        if not manifest:
            raise RunDirError(
                "not a run directory: it has no manifest.json",
                where=str(path),
                hint="Give the folder that `selfspec calibrate -o` wrote.",
            )
        return cls(path, str(manifest.get("measurement_hash", "")), manifest)

    @property
    def manifest(self) -> dict[str, Any]:
        """A copy of the manifest as last written."""
        return copy.deepcopy(self._manifest)

    def begin(
        self, *, argv: Iterable[str] = (), measurement: Mapping[str, object] | None = None,
        **facts: object,
    ) -> None:  # fmt: skip
        """Create or clear the folder and write the manifest.

        Args:
            argv: the command line, for the record; absolute paths are cut to their last part.
            measurement: the keys behind the measurement hash.
            facts: more top-level entries, for example `config`, `analysis_hash`, `provenance`,
                `seeds`.

        Raises:
            RunDirError: the folder cannot be created.
        """
        self._make_folder()
        if self._fresh:
            self._clear()
        for leftover in self.path.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        head = {
            "schema_version": SCHEMA_VERSION,
            "argv": [without_folders(argument) for argument in argv],
            "measurement_hash": self.measurement_hash,
            "measurement": without_folders(dict(measurement or {})),
        }
        kept = {key: self._manifest.get(key, {}) for key in ("stages", "artefacts")}
        self._save({**self._manifest, **head, **kept, **without_folders(facts)})

    def update(self, **entries: object) -> None:
        """Replace top-level entries of the manifest, atomically."""
        self._save({**self._manifest, **entries})

    def set_stage(self, stage: str, status: str, **facts: object) -> None:
        """Record a stage's status (`running`, `done`, `interrupted`) and facts about it."""
        entry = {"status": status, **facts}
        self.update(stages={**self._manifest.get("stages", {}), _checked(stage): entry})

    def finish_stage(self, stage: str, artefacts: Iterable[str], **facts: object) -> None:
        """Hash the stage's artefacts into the manifest and mark the stage done, in one write.

        Args:
            stage: name of the stage.
            artefacts: file names within the run directory, all complete.
            facts: more about the stage.

        Raises:
            StorageError: an artefact is missing.
        """
        hashes = {name: self._fingerprint(name) for name in artefacts}
        entry = {"status": "done", "artefacts": sorted(hashes), **facts}
        self.update(
            stages={**self._manifest.get("stages", {}), _checked(stage): entry},
            artefacts={**self._manifest.get("artefacts", {}), **hashes},
        )

    def stage_done(self, stage: str) -> bool:
        """Whether a stage is done and every artefact it wrote is still there, unchanged."""
        entry = self._manifest.get("stages", {}).get(stage, {})
        return entry.get("status") == "done" and all(
            self._unchanged(name) for name in entry.get("artefacts", ())
        )

    def record_read(
        self, *, read: int, skipped: Mapping[str, SkippedRows], notes: Iterable[str] = ()
    ) -> None:
        """Record how many trace rows were read, used and skipped, by reason.

        Args:
            read: rows of all trace files that are not blank.
            skipped: reason to its number of rows and the first few `file:line` of them.
            notes: sentences for people about rows that were used, with counts.

        Raises:
            ValueError: more skipped than read.
        """
        num_skipped = sum(entry["rows"] for entry in skipped.values())
        if num_skipped > read:
            raise ValueError(f"{num_skipped} rows skipped of {read} read")
        used = {"read": read, "used": read - num_skipped, "skipped": dict(skipped)}
        self.update(read={**used, "notes": list(notes)})

    def artefact(self, name: str) -> Path:
        """Return the path of an artefact; `name` is a plain file name.

        Raises:
            ValueError: a name with a folder part, or a hidden one.
        """
        if PurePath(name).name != name or name.startswith("."):
            raise ValueError(f"not an artefact name: {name!r}")
        return self.path / name

    def shard_path(self, stage: str, key: object, suffix: str = ".parquet") -> Path:
        """Return where a finished piece of a stage is kept for resume; its folder exists.

        Labels never become file names: the name is a digest of `key` (its `repr`).
        """
        folder = self.path / SHARDS / _checked(stage)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}{suffix}"

    def finished_shards(self, stage: str, suffix: str = ".parquet") -> tuple[Path, ...]:
        """Return the finished shards of a stage, ordered by name (not by when they ended)."""
        folder = self.path / SHARDS / _checked(stage)
        return tuple(sorted(path for path in folder.glob(f"*{suffix}") if path.name[0] != "."))

    def clear_shards(self, stage: str) -> None:
        """Delete a stage's shards: its artefact is complete, or it starts again."""
        shutil.rmtree(self.path / SHARDS / _checked(stage), ignore_errors=True)
        shards = self.path / SHARDS
        if shards.is_dir() and not any(shards.iterdir()):
            shards.rmdir()

    def _fingerprint(self, name: str) -> dict[str, object]:
        path = self.artefact(name)
        return {"sha256": file_sha256(path), "bytes": path.stat().st_size}

    def _unchanged(self, name: str) -> bool:
        known = self._manifest.get("artefacts", {}).get(name, {}).get("sha256")
        return (self.path / name).is_file() and file_sha256(self.artefact(name)) == known

    def _save(self, manifest: Mapping[str, object]) -> None:
        plain: Any = plain_data(manifest)
        write_document(plain, self.path / MANIFEST)
        self._manifest = plain

    def _make_folder(self) -> None:
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def _clear(self) -> None:
        """Delete the earlier run; shards first, so that no later run can mistake them."""
        listed = listed_artefacts(self.path)
        for folder in RUN_FOLDERS:
            if not (self.path / folder).is_symlink():
                shutil.rmtree(self.path / folder, ignore_errors=True)
        for name in [*sorted({*RUN_FILES, *listed} - {MANIFEST}), MANIFEST]:
            self.artefact(name).unlink(missing_ok=True)
        self._manifest, self._fresh = {}, False


def _checked(stage: str) -> str:
    if not _STAGE.fullmatch(stage):
        raise ValueError(f"not a stage name: {stage!r}")
    return stage
