"""What `selfspec doctor` says of a run: the findings of its files, also where it ended early."""

from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from selfspec_cli.plan.document import PlanDocument
from selfspec_cli.plan.files import PLAN_FILE
from selfspec_cli.plan.inputs import load_plan_inputs
from selfspec_cli.plan.planner import basis_of, draft_plan
from selfspec_cli.plan.settings import PlanSettings
from selfspec_cli.report.evidence import gather, pooled_grid
from selfspec_cli.report.figure_data import (
    acceptance,
    acceptance_by_layer,
    predicted_measured,
    rule_lengths,
)
from selfspec_cli.report.finding_types import Evidence, Finding, Production
from selfspec_cli.report.findings import find
from selfspec_cli.report.second_run import second_walk
from selfspec_cli.report.second_trace import TrafficComparison, compare_traffic
from selfspec_cli.report.tables import RunTables, read_run
from selfspec_cli.storage import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a run shows, the most serious first."""

    name: str
    """Name of the run's folder."""
    status: str
    """As the manifest has it: done, or how far it came."""
    findings: tuple[Finding, ...]
    traffic: TrafficComparison | None = None
    """What a second trace says; None where none was given."""

    @property
    def complete(self) -> bool:
        """Whether the run came to its end; one that did not may have more to show."""
        return self.status == "done"


def diagnose(
    path: Path, production: Production | None = None, traffic: Path | None = None
) -> Diagnosis:
    """Return the findings of a run from its files alone: no model, no torch.

    A run that ended before its plan, for example because its output differed, is judged with the
    plan its predictions would give; nothing is written.

    Args:
        path: the run directory.
        production: what a server counted, to be held against the run.
        traffic: a run of the same model on a second trace, to be held against the run.

    Raises:
        RunDirError: `path` or `traffic` holds no run.
        ComparisonError: `traffic` is of another model or tokenizer.
        StorageError: a file is missing, torn or of another schema, or the run was stopped
            before its walk.
        PlanError: plan.yaml is no plan of this version.
    """
    run = RunDir.load(path)
    has_plan = run.artefact(PLAN_FILE).exists() or _lost_its_plan(run)
    tables = read_run(path, None if has_plan else _draft(run))
    evidence = gather(tables, _frames(tables), rule_lengths(tables))
    second = None if traffic is None else _second(evidence, run, traffic)
    return Diagnosis(
        name=path.resolve().name,
        status=str(run.manifest.get("status", "unknown")),
        findings=find(replace(evidence, production=production, traffic=second)),
        traffic=second,
    )


def _second(evidence: Evidence, run: RunDir, traffic: Path) -> TrafficComparison:
    rows = compare_traffic(evidence.cells, second_walk(traffic, run.manifest))
    return TrafficComparison(source=traffic.resolve().name, rows=rows)


def _lost_its_plan(run: RunDir) -> bool:
    """Whether a plan was written and is gone, which reading the run refuses."""
    return PLAN_FILE in run.manifest.get("artefacts", {})


def _draft(run: RunDir) -> PlanDocument:
    return draft_plan(basis_of(load_plan_inputs(run), PlanSettings.of_run(run)))


def _frames(tables: RunTables) -> dict[str, pd.DataFrame]:
    return {
        "by_layer": acceptance_by_layer(acceptance(tables), tables.plan),
        "measured": predicted_measured(tables),
        "grid": pooled_grid(tables),
    }
