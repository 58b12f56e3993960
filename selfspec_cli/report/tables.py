"""A run's files, read once: what the view is built from. Only storage touches the disk."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from selfspec_cli.analysis.costs import Costs, price
from selfspec_cli.analysis.walk import COLUMNS as WALK_COLUMNS
from selfspec_cli.errors import StorageError
from selfspec_cli.plan.document import PlanDocument
from selfspec_cli.plan.files import PLAN_FILE, read_plan
from selfspec_cli.storage import RunDir, read_table

_OBSERVED = (
    "request_id", "temperature", "position", "drafter", "exit_layer", "accept_prob",
    "accept_given_path", "is_argmax",
)  # fmt: skip
_CONFIRMED = (
    "path_id", "request_id", "group_id", "task", "context_min", "context_max", "temperature",
    "exit_layer", "draft_length", "role", "committed", "rounds", "free_rounds", "free_committed",
    "ar_seconds", "seconds", "priced_seconds", "predicted_ar_seconds", "predicted_seconds",
    "predicted_rounds", "exact", "is_tie",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunTables:
    """The files of one run; a table that was never written is None."""

    path: Path
    manifest: Mapping[str, Any]
    plan: PlanDocument
    requests: pd.DataFrame | None
    observations: pd.DataFrame | None
    walk: pd.DataFrame | None
    costs: Costs | None
    confirm: pd.DataFrame | None
    confirm_batch: pd.DataFrame | None
    sweep: pd.DataFrame | None

    @property
    def config(self) -> Mapping[str, Any]:
        """Configuration of the run, as the manifest keeps it."""
        config: Mapping[str, Any] = self.manifest.get("config", {})
        return config

    def stage(self, name: str) -> Mapping[str, Any]:
        """Facts that a stage left in the manifest; empty if it did not run."""
        facts: Mapping[str, Any] = self.manifest.get("stages", {}).get(name, {})
        return facts


def read_run(path: Path, plan: PlanDocument | None = None) -> RunTables:
    """Read a run directory.

    Args:
        path: the run directory.
        plan: in place of the run's own, for a run that ended before it wrote one.

    Raises:
        RunDirError: `path` holds no run.
        StorageError: plan.yaml is missing, or a file is torn or of another schema.
        PlanError: plan.yaml is no plan of this version.
    """
    run = RunDir.load(path)
    manifest = run.manifest
    return RunTables(
        path=path,
        manifest=manifest,
        plan=_read_plan(run) if plan is None else plan,
        requests=_optional(run, "requests.parquet"),
        observations=_optional(run, "observations.parquet", _OBSERVED),
        walk=_optional(run, "walk.parquet", WALK_COLUMNS),
        costs=_costs(run, manifest),
        confirm=_optional(run, "confirm.csv", _CONFIRMED),
        confirm_batch=_optional(run, "confirm_batch.csv"),
        sweep=_optional(run, "sweep.csv"),
    )


def _read_plan(run: RunDir) -> PlanDocument:
    file = run.artefact(PLAN_FILE)
    if not file.exists():
        raise StorageError(
            "the run has no plan yet, and a report shows a plan",
            where=str(file),
            hint=f"Write it: selfspec plan {run.path} -o {file}",
        )
    return read_plan(file)


def _optional(run: RunDir, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame | None:
    """A table the run may lack; one that it wrote and lost is an error, not an empty figure."""
    file = run.artefact(name)
    if file.exists():
        return read_table(file, columns)
    if name in run.manifest.get("artefacts", {}):
        raise StorageError(
            "this file of the run is gone, so its report cannot be built again",
            where=str(file),
            hint="Restore it, or run the same `selfspec calibrate` command again.",
        )
    return None


def _costs(run: RunDir, manifest: Mapping[str, Any]) -> Costs | None:
    rows = _optional(run, "cost.csv")
    kinds = manifest.get("stages", {}).get("cost", {}).get("layer_kinds")
    if rows is None or kinds is None:
        return None
    return price(rows, kinds, _optional(run, "cost_rounds.csv"))
