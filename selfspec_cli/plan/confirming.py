"""What real decodes do to a plan: contradicted rules are disabled, or move to a confirmed cell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from selfspec_cli.analysis.confirmation import summarise_confirm
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

    @classmethod
    def of_table(cls, confirm: pd.DataFrame) -> list["MeasuredCell"]:
        """Return one entry a (bucket, cell) of confirm.csv: ratios of sums over its requests."""
        return [
            cls(
                task=str(row["task"]),
                context_min=int(row["context_min"]),
                temperature=float(row["temperature"]),
                exit_layer=int(row["exit_layer"]),
                draft_length=int(row["draft_length"]),
                speedup=Interval(
                    estimate=row["measured_speedup"],
                    low=row["measured_speedup_low"],
                    high=row["measured_speedup_high"],
                ),
                num_requests=int(row["num_groups"]),
            )
            for row in _records(summarise_confirm(confirm))
        ]


def apply_confirmation(
    plan: PlanDocument, measured: Sequence[MeasuredCell], inputs: PlanInputs
) -> PlanDocument:
    """Return the plan after real decodes."""
    raise NotImplementedError


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows with None where a value is missing."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(key): value for key, value in row.items()} for row in plain.to_dict("records")]
