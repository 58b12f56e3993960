"""The planner: from measurements to rules, a pure function."""

from selfspec_cli.plan.document import PlanDocument
from selfspec_cli.plan.inputs import PlanInputs
from selfspec_cli.plan.settings import PlanSettings


def build_plan(inputs: PlanInputs, settings: PlanSettings) -> PlanDocument:
    """Return the plan of a run, before confirmation."""
    raise NotImplementedError


def no_evidence(plan: PlanDocument) -> bool:
    """Whether no bucket had enough evidence: the program then leaves with exit code 3."""
    return all(rule.evidence == "none" for rule in plan.rules)
