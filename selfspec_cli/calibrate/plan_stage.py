"""Stage plan: rules from the run's files before confirmation, and plan.yaml after it."""

import pandas as pd

from selfspec_cli.config import CalibrateConfig, analysis_hash
from selfspec_cli.config.hashes import document_hash
from selfspec_cli.plan.confirming import MeasuredCell, apply_confirmation
from selfspec_cli.plan.document import PlanDocument
from selfspec_cli.plan.document_origin import OWN_COSTS
from selfspec_cli.plan.files import PLAN_FILE, write_plan
from selfspec_cli.plan.inputs import load_plan_inputs
from selfspec_cli.plan.planner import basis_of
from selfspec_cli.plan.planner import draft_plan as plan_of
from selfspec_cli.plan.rules import Basis
from selfspec_cli.plan.settings import PlanSettings
from selfspec_cli.storage import RunDir

STAGE = "plan"


def draft_plan(run: RunDir, config: CalibrateConfig) -> tuple[Basis, PlanDocument]:
    """Plan from predictions alone, and put its hash into the manifest before anything is decoded.

    No file is written: an interrupted run must not leave a plan that enables anything.
    """
    basis = basis_of(load_plan_inputs(run), PlanSettings.of_config(config))
    draft = plan_of(basis)
    if "cells" not in run.manifest.get("stages", {}).get("confirm", {}):  # nothing decoded yet
        run.update(draft_plan_sha256=document_hash(draft.model_dump(mode="json", by_alias=True)))
    return basis, draft


def is_own(plan: PlanDocument, config: CalibrateConfig) -> bool:
    """Whether a plan was made with this configuration's thresholds and the run's own costs."""
    own_costs = plan.measured_on.costs.source == OWN_COSTS
    return own_costs and plan.analysis_hash == analysis_hash(config)


def finish_plan(
    run: RunDir, basis: Basis, draft: PlanDocument, confirm: pd.DataFrame | None
) -> PlanDocument:
    """Write plan.yaml: the draft after what confirm.csv says against it.

    Args:
        run: the run.
        basis: what the draft was planned from.
        draft: the plan before confirmation.
        confirm: confirm.csv; None where nothing was decoded.
    """
    measured = [] if confirm is None else MeasuredCell.of_table(confirm)
    plan = apply_confirmation(draft, measured, basis)
    write_plan(plan, run.artefact(PLAN_FILE))
    run.finish_stage(STAGE, [PLAN_FILE], verdict=plan.verdict, rules=len(plan.rules))
    return plan
