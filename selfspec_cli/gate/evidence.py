"""What the checks of a gate need, read from a run's files once. No model, no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from selfspec_cli.analysis.confirmation import CONFIRM_KEYS
from selfspec_cli.errors import StorageError
from selfspec_cli.gate.plan_check import read_own_plan
from selfspec_cli.gate.whole_run import hash_differs, refuse_partial
from selfspec_cli.plan.document import PlanDocument, Rule
from selfspec_cli.plan.files import PLAN_FILE
from selfspec_cli.report.rule_rows import by_traffic
from selfspec_cli.storage import RunDir, read_table

_CONFIRMED = (
    *CONFIRM_KEYS, "path_id", "group_id", "role", "committed", "rounds", "free_rounds",
    "free_committed", "ar_seconds", "seconds", "priced_seconds", "predicted_ar_seconds",
    "predicted_seconds", "predicted_rounds", "exact", "is_tie",
)  # fmt: skip
_REQUESTS = ("request_id", "task", "prompt_tokens", "max_tokens", "temperature")
_DECODED = ("temperature", "exact", "is_tie")


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
    refuse_partial(run)
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
        plan_replaced=hash_differs(run, PLAN_FILE),
    )


def _table(run: RunDir, name: str, columns: Sequence[str]) -> pd.DataFrame | None:
    """A table the run may lack; what it wrote is there, and its own (`refuse_partial`)."""
    file = run.artefact(name)
    return read_table(file, columns) if file.exists() else None


def read_walk(path: Path, columns: Sequence[str]) -> pd.DataFrame | None:
    """Return columns of a run's walk.parquet; None where it was never written.

    It is large and seldom needed, so it is no part of the evidence.

    Args:
        path: of the run.
        columns: that must be there.

    Raises:
        StorageError: it is torn, or lacks a column.
    """
    return _table(RunDir.load(path), "walk.parquet", columns)


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
