"""What the checks of a gate need, read from a run's files once. No model, no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from selfspec_cli.analysis.confirmation import CONFIRM_KEYS
from selfspec_cli.errors import RunDirError, StorageError
from selfspec_cli.gate.plan_check import read_own_plan
from selfspec_cli.plan.document import PlanDocument, Rule
from selfspec_cli.plan.files import PLAN_FILE
from selfspec_cli.report.rule_rows import by_traffic
from selfspec_cli.storage import RunDir, read_table
from selfspec_cli.storage.files import file_sha256

_CONFIRMED = (
    *CONFIRM_KEYS, "path_id", "group_id", "role", "committed", "rounds", "free_rounds",
    "free_committed", "ar_seconds", "seconds", "priced_seconds", "predicted_ar_seconds",
    "predicted_seconds", "predicted_rounds", "exact", "is_tie",
)  # fmt: skip
_REQUESTS = ("request_id", "task", "prompt_tokens", "max_tokens", "temperature")
_DECODED = ("temperature", "exact", "is_tie")
_AGAIN = "Run the same `selfspec calibrate` command again; it goes on from here."


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GateEvidence:
    """The files of one run; a table that was never written is None."""

    path: Path
    manifest: Mapping[str, Any]
    plan: PlanDocument
    requests: pd.DataFrame | None
    confirm: pd.DataFrame | None
    confirm_batch: pd.DataFrame | None
    plan_replaced: bool
    """Whether plan.yaml is not the file whose hash the manifest holds."""

    @property
    def enabled(self) -> tuple[Rule, ...]:
        """Rules that are on, the largest share of decode time first."""
        return tuple(rule for rule in by_traffic(self.plan.rules) if rule.enabled)

    def facts(self, *keys: str) -> Mapping[str, Any]:
        """Return a mapping in the manifest; empty where a key is missing or holds none."""
        found: Any = self.manifest
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found if isinstance(found, Mapping) else {}


def read_evidence(path: Path) -> GateEvidence:
    """Read the evidence of a run.

    Raises:
        RunDirError: `path` holds no run, one of another schema, or one that has not ended.
        StorageError: a file is missing, torn, of another schema, or not what the run wrote.
        PlanError: plan.yaml is no plan, not this run's, or contradicts itself.
    """
    run = RunDir.load(path)
    manifest = run.manifest
    _check_ended(manifest, path)
    plan = read_own_plan(run)
    confirm = _table(run, "confirm.csv", _CONFIRMED)
    if confirm is not None:
        _check_seconds(confirm, run.artefact("confirm.csv"))
    return GateEvidence(
        path=path,
        manifest=manifest,
        plan=plan,
        requests=_table(run, "requests.parquet", _REQUESTS),
        confirm=confirm,
        confirm_batch=_table(run, "confirm_batch.csv", _DECODED),
        plan_replaced=_hash_differs(run, PLAN_FILE),
    )


def _check_ended(manifest: Mapping[str, Any], path: Path) -> None:
    for key in ("stages", "artefacts", "measurement"):
        if not isinstance(manifest.get(key), Mapping):
            raise RunDirError(f"{key} is missing or no mapping", where=str(path / "manifest.json"))
    status = manifest.get("status")
    if status != "done":
        raise RunDirError(
            f"status is {status!r}: the run has not ended, so nothing can be judged by it",
            where=str(path / "manifest.json"),
            hint=_AGAIN,
        )


def _table(run: RunDir, name: str, columns: Sequence[str]) -> pd.DataFrame | None:
    """A table the run may lack; one that it lost, or that was changed since, is an error."""
    file = run.artefact(name)
    if not file.exists():
        if name in run.manifest["artefacts"]:
            raise StorageError("this file of the run is gone", where=str(file), hint=_AGAIN)
        return None
    if _hash_differs(run, name):
        raise StorageError(
            "is not the file that the run wrote: its hash differs from the manifest's",
            where=str(file),
            hint="Restore it, or measure again.",
        )
    return read_table(file, columns)


def read_walk(path: Path, columns: Sequence[str]) -> pd.DataFrame | None:
    """Return columns of a run's walk.parquet; None where it was never written.

    It is large and seldom needed, so it is no part of the evidence.

    Args:
        path: of the run.
        columns: that must be there.

    Raises:
        StorageError: it is gone, torn, or not what the run wrote.
    """
    return _table(RunDir.load(path), "walk.parquet", columns)


def _hash_differs(run: RunDir, name: str) -> bool:
    entry = run.manifest["artefacts"].get(name)
    known = entry.get("sha256") if isinstance(entry, Mapping) else None
    return known is not None and file_sha256(run.artefact(name)) != known


def _check_seconds(confirm: pd.DataFrame, file: Path) -> None:
    for name in ("ar_seconds", "seconds"):
        values = pd.to_numeric(confirm[name], errors="coerce").to_numpy(dtype=float)
        wrong = ~(np.isfinite(values) & (values >= 0))
        if wrong.any():
            raise StorageError(
                f"{name} of row {int(wrong.argmax()) + 1} is {confirm[name].iloc[wrong.argmax()]}, "
                "not a time",
                where=str(file),
                hint="Measure again.",
            )
