"""The costs of a model on this machine alone: no traces, no requests, about a minute."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from selfspec_cli.analysis.cost_fit import CostFit, fit_correction
from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.cost.bandwidth import bandwidth_floor_seconds, read_bandwidth
from selfspec_cli.cost.clock import Clock, Stopwatch
from selfspec_cli.cost.measure import Progress, measure_costs
from selfspec_cli.cost.plan import CostPlan
from selfspec_cli.cost.summary import CostSummary, findings, summarise
from selfspec_cli.engine.view import LayerView


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostReport:
    """Raw samples and what they say, by law."""

    rows: pd.DataFrame
    """Rows of cost.csv."""
    fits: dict[str, CostFit]
    summaries: tuple[CostSummary, ...]
    read_bandwidth: float
    """Bytes a second."""
    step_bytes: int
    """Weight bytes that one plain step reads."""
    seed: int
    """Of the random tokens and of the order inside blocks (`measure.block_order`)."""

    def fit_document(self) -> dict[str, Any]:
        """Return the document of cost_fit.json: how well parts add up to rounds, by law."""
        return {law: fit.to_document() for law, fit in self.fits.items()}

    def to_document(self) -> dict[str, Any]:
        """Return everything but the raw samples as plain values."""
        return {
            "seed": self.seed,
            "num_blocks": int(self.rows["block"].nunique()),
            "order": "shuffled for every pair of blocks, the second of a pair backwards",
            "read_bandwidth_bytes_per_s": self.read_bandwidth,
            "step_weight_bytes": self.step_bytes,
            "laws": {
                summary.law: {
                    **summary.to_document(),
                    "findings": findings(summary),
                    "fit": self.fits[summary.law].to_document(),
                }
                for summary in self.summaries
            },
        }


def measure_alone(
    view: LayerView,
    plan: CostPlan,
    seed: int,
    *,
    clock: Stopwatch | None = None,
    progress: Progress | None = None,
) -> CostReport:
    """Measure and summarise the costs of a model.

    Args:
        view: the model, on its device.
        plan: what to time.
        seed: of the random tokens and the order of timing.
        clock: another clock than the device's own.
        progress: told after every sample.

    Raises:
        ConfigError: the plan does not fit the model.
    """
    clock = clock or Clock.for_device(view.device)
    bandwidth = read_bandwidth(view.device, clock)
    rows = measure_costs(view, plan, clock, seed, progress)
    floors: dict[int, float | None] = {
        context: bandwidth_floor_seconds(view, context, bandwidth) for context in plan.contexts
    }
    laws: list[str] = [sampling.law_class for sampling in plan.laws]
    surfaces = {
        law: CostSurface.from_rows(rows, layer_kinds=view.layer_kinds, law=law) for law in laws
    }
    fits = {law: fit_correction(surface, rows) for law, surface in surfaces.items()}
    summaries = tuple(
        summarise(
            surface,
            fits[law],
            exit_layers=plan.exit_layers,
            draft_lengths=plan.draft_lengths,
            floors=floors,
        )
        for law, surface in surfaces.items()
    )
    return CostReport(
        rows=rows,
        fits=fits,
        summaries=summaries,
        read_bandwidth=bandwidth,
        step_bytes=view.step_bytes(),
        seed=seed,
    )
