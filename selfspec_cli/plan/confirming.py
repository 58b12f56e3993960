"""What real decodes do to a plan: contradicted rules are disabled, or move to a confirmed cell."""

from collections.abc import Sequence
from dataclasses import dataclass

from selfspec_cli.plan.document import Interval, PlanDocument
from selfspec_cli.plan.inputs import PlanInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCell:
    """Measured speedup of one cell in one bucket, decode only."""

    task: str
    context_min: int
    """Smallest prompt of the bucket's band, tokens; with task and temperature it names the rule."""
    temperature: float
    exit_layer: int
    draft_length: int
    speedup: Interval
    """Plain seconds ÷ speculative seconds of the same tokens, with its 95 % interval."""
    num_requests: int
    """Groups of requests decoded."""


def apply_confirmation(
    plan: PlanDocument, measured: Sequence[MeasuredCell], inputs: PlanInputs
) -> PlanDocument:
    """Return the plan after real decodes."""
    raise NotImplementedError
