"""Batches that were decoded for real, beside what they were priced at: one row a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from selfspec_cli.analysis.batch_confirmation import summarise_batch_confirm
from selfspec_cli.report.format import NOT_KNOWN, known, percent

_LATER = ("full_rounds", "is_tie")  # columns that files of earlier versions lack


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBatch:
    """One (batch size, schedule, cell); speedups over plain decoding of the same requests."""

    batch_size: int
    schedule: str
    temperature: float
    exit_layer: int
    draft_length: int
    num_requests: int
    predicted_speedup: float | None
    measured_speedup: float | None
    """None where no pass had all rows alive, or the file does not say how many had."""
    error: float | None
    """Predicted / measured - 1, signed."""
    exact: bool | None
    """Every greedy request as plain decoding, ties aside; None at T > 0."""

    @property
    def cell(self) -> str:
        """The cell on one line."""
        return f"L={self.exit_layer}, k={self.draft_length}, T={self.temperature:g}"

    @property
    def signed_error(self) -> str:
        """The error with its sign: `+5.0 %`."""
        plus = "+" if self.error is not None and self.error > 0 else ""
        return f"{plus}{percent(self.error, 1)}"

    @property
    def output(self) -> str:
        """What was proved about the output."""
        if self.exact is None:
            return NOT_KNOWN
        return "as plain decoding" if self.exact else "DIFFERS from plain decoding"


def decoded_batches(confirm_batch: pd.DataFrame | None) -> tuple[DecodedBatch, ...]:
    """Return what confirm_batch.csv says, repeats pooled; empty where nothing was decoded.

    Args:
        confirm_batch: confirm_batch.csv; None where the run has none.
    """
    if confirm_batch is None or confirm_batch.empty:
        return ()
    missing = [name for name in _LATER if name not in confirm_batch]
    rows = confirm_batch.assign(**{name: float("nan") for name in missing})
    return tuple(_decoded(row) for row in summarise_batch_confirm(rows).to_dict("records"))


def _decoded(row: Mapping[Any, Any]) -> DecodedBatch:
    return DecodedBatch(
        batch_size=int(row["batch_size"]),
        schedule=str(row["schedule"]),
        temperature=float(row["temperature"]),
        exit_layer=int(row["exit_layer"]),
        draft_length=int(row["draft_length"]),
        num_requests=int(row["num_requests"]),
        predicted_speedup=_or_none(row["predicted_speedup"]),
        measured_speedup=_or_none(row["measured_speedup"]),
        error=_or_none(row["error"]),
        exact=None if pd.isna(row["exact"]) else bool(row["exact"]),
    )


def _or_none(value: Any) -> float | None:
    return float(value) if known(value) else None
