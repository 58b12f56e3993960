"""The costs of a model on this machine alone: no traces, no requests, about a minute."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from selfspec_cli.analysis.cost_fit import CostFit, fit_correction
from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.analysis.costs import fit_document, measured_laws
from selfspec_cli.cost.bandwidth import bandwidth_floor_seconds, read_bandwidth
from selfspec_cli.cost.clock import Clock, Stopwatch
from selfspec_cli.cost.measure import Progress, measure_costs
from selfspec_cli.cost.plan import CostPlan
from selfspec_cli.cost.summary import CostSummary, findings, summarise
from selfspec_cli.engine.view import LayerView


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostReport:
    """Raw samples and what they say, by batch size and law."""

    rows: pd.DataFrame
    """Rows of cost.csv."""
    fits: dict[int, dict[str, CostFit]]
    """By batch size, ascending, then law."""
    summaries: tuple[CostSummary, ...]
    """In the order of the fits."""
    read_bandwidth: float
    """Bytes a second."""
    step_bytes: int
    """Weight bytes that one plain step reads."""
    seed: int
    """Of the random tokens and of the order inside blocks (`measure.block_order`)."""

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Timed batch sizes, ascending; the first is the base."""
        return tuple(self.fits)

    def of_batch(self, batch: int) -> tuple[CostSummary, ...]:
        """Return the summaries of one batch size, one a law."""
        return tuple(summary for summary in self.summaries if summary.batch == batch)

    def fit_document(self) -> dict[str, Any]:
        """Return the document of cost_fit.json: how well parts add up to rounds."""
        return fit_document(self.fits)

    def to_document(self) -> dict[str, Any]:
        """Return everything but the raw samples as plain values.

        `laws` holds the base batch size, `batches` every larger one under its size, then law.
        """
        base, *others = self.batch_sizes
        return {
            "seed": self.seed,
            "engine": ", ".join(sorted(self.rows["engine"].unique())),
            "num_blocks": int(self.rows["block"].nunique()),
            "order": "shuffled for every pair of blocks, the second of a pair backwards",
            "read_bandwidth_bytes_per_s": self.read_bandwidth,
            "step_weight_bytes": self.step_bytes,
            "batch_sizes": list(self.batch_sizes),
            "laws": self._laws_document(base),
            "batches": {str(batch): self._laws_document(batch) for batch in others},
        }

    def _laws_document(self, batch: int) -> dict[str, Any]:
        return {
            summary.law: {
                **summary.to_document(),
                "findings": findings(summary),
                "fit": self.fits[batch][summary.law].to_document(),
            }
            for summary in self.of_batch(batch)
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
    fits: dict[int, dict[str, CostFit]] = {}
    summaries = []
    for batch, law in measured_laws(rows):
        surface = CostSurface.from_rows(rows, layer_kinds=view.layer_kinds, law=law, batch=batch)
        fit = fit_correction(surface, rows)
        fits.setdefault(batch, {})[law] = fit
        summary = summarise(
            surface,
            fit,
            exit_layers=plan.exit_layers,
            draft_lengths=plan.draft_lengths,
            floors={
                context: bandwidth_floor_seconds(view, context, bandwidth, batch)
                for context in plan.contexts_at(batch)
            },
        )
        summaries.append(summary)
    return CostReport(
        rows=rows,
        fits=fits,
        summaries=tuple(summaries),
        read_bandwidth=bandwidth,
        step_bytes=view.step_bytes(),
        seed=seed,
    )
