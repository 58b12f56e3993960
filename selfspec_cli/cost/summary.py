"""What a cost measurement says, in the numbers a person reads: c(L), v(k+1), o, and the floor.

A pure function of measured rows; needs no model and no torch.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from selfspec_cli.analysis.cost_fit import CostFit
from selfspec_cli.analysis.cost_surface import UNSTABLE_SPREAD, CostSurface

BANDWIDTH_BOUND = 1.5  # steps within this factor of the floor wait for memory (METHOD.md §4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCosts:
    """Costs at one context, in units of a plain step there unless named otherwise."""

    context: int
    ar_seconds: float
    """Mean of one plain step of the whole batch (s)."""
    tokens_per_s: float
    """Output tokens a second of plain decoding, all rows of the batch together."""
    floor_seconds: float | None
    """Least seconds of a plain step, from the bandwidth; None where it was not measured."""
    draft_cost_ratio: tuple[float, ...]
    """c by exit layer."""
    verify_cost_ratio: tuple[tuple[float, ...], ...]
    """v by exit layer, then draft length."""
    overhead_ratio: tuple[float, ...]
    """o by draft length; with a correction it includes its offset, at the first exit layer."""

    @property
    def floor_ratio(self) -> float | None:
        """Plain step ÷ bandwidth floor."""
        return None if self.floor_seconds is None else self.ar_seconds / self.floor_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSummary:
    """Costs of one law, batch size and engine."""

    law: str
    batch: int
    """Rows of every step and round."""
    num_layers: int
    exit_layers: tuple[int, ...]
    draft_lengths: tuple[int, ...]
    contexts: tuple[ContextCosts, ...]
    mode: str
    """How rounds are priced: parts, corrected or whole_rounds."""
    cost_model_error: float | None
    """Median |predicted ÷ measured - 1| over held-out whole rounds."""
    between_seconds: float
    """What a plain step takes beyond its parts timed alone; in every draft step and verification
    (s)."""
    ar_spread: float
    """Standard deviation over blocks ÷ mean of a plain step, at the worst context."""
    round_spread: float
    """The same for a round as the sum of its parts, median over (L, k, context)."""
    stable: bool

    def draft_excess(self, at: ContextCosts) -> tuple[float, ...]:
        """Return c(L) ÷ (L/N) by exit layer: 1 where a draft step costs its share of the layers."""
        shares = (layer / self.num_layers for layer in self.exit_layers)
        return tuple(c / share for c, share in zip(at.draft_cost_ratio, shares, strict=True))

    def verify_excess(self, at: ContextCosts) -> tuple[tuple[float, ...], ...]:
        """Return v - 1 by exit layer and draft length: 0 where verification costs one step."""
        return tuple(tuple(v - 1.0 for v in row) for row in at.verify_cost_ratio)

    def to_document(self) -> dict[str, Any]:
        """Return plain values for a file, with the two gaps to the textbook beside each context."""
        document = asdict(self)
        document["contexts"] = [
            {
                **asdict(at),
                "floor_ratio": at.floor_ratio,
                "draft_cost_over_layer_share": self.draft_excess(at),
                "verify_cost_over_one_step": self.verify_excess(at),
            }
            for at in self.contexts
        ]
        return document


def summarise(
    surface: CostSurface,
    fit: CostFit,
    *,
    exit_layers: Sequence[int],
    draft_lengths: Sequence[int],
    floors: dict[int, float | None],
) -> CostSummary:
    """Summarise the costs of one law and batch size.

    Args:
        surface: measured parts of one law and batch size, uncorrected.
        fit: how they agree with whole rounds; a correction that brings them together is applied,
            one that does not is not.
        exit_layers: L to show.
        draft_lengths: k to show.
        floors: bandwidth floor (s) by context; its keys are the contexts shown.

    Raises:
        CostRangeError: an L, k or context lies outside what was measured.
    """
    priced = fit.apply(surface) if fit.mode == "corrected" else surface
    spread = surface.relative_spread()
    return CostSummary(
        law=surface.law,
        batch=surface.batch,
        num_layers=surface.num_layers,
        exit_layers=tuple(exit_layers),
        draft_lengths=tuple(draft_lengths),
        contexts=tuple(
            _at(priced, context, floor, tuple(exit_layers), tuple(draft_lengths))
            for context, floor in floors.items()
        ),
        mode=fit.mode,
        cost_model_error=fit.cost_model_error,
        between_seconds=surface.between_seconds,
        ar_spread=spread["ar_worst"],
        round_spread=spread["round"],
        stable=not surface.unstable,
    )


def _at(
    surface: CostSurface,
    context: int,
    floor: float | None,
    exit_layers: tuple[int, ...],
    draft_lengths: tuple[int, ...],
) -> ContextCosts:
    ar_seconds = float(surface.ar_seconds(context))
    return ContextCosts(
        context=context,
        ar_seconds=ar_seconds,
        tokens_per_s=surface.batch / ar_seconds,
        floor_seconds=floor,
        draft_cost_ratio=tuple(surface.draft_cost_ratio(L, context) for L in exit_layers),
        verify_cost_ratio=tuple(
            tuple(surface.verify_cost_ratio(L, k, context) for k in draft_lengths)
            for L in exit_layers
        ),
        overhead_ratio=tuple(
            surface.overhead_ratio(exit_layers[0], k, context) for k in draft_lengths
        ),
    )


def findings(summary: CostSummary) -> tuple[str, ...]:
    """Say in sentences what the numbers mean: agreement, stability, room, the textbook's error.

    The last two are said of one row; of several the numbers beside those of one row tell more.
    """
    if summary.batch > 1:
        return (_agreement(summary), _stability(summary))
    return (
        _agreement(summary),
        _stability(summary),
        *(_room(at) for at in summary.contexts if at.floor_ratio is not None),
        *(_textbook(summary, at) for at in summary.contexts),
    )


def _agreement(summary: CostSummary) -> str:
    advice = ": time the cells that matter whole" if summary.batch == 1 else ""
    how = {
        "parts": "parts add up to whole rounds",
        "corrected": "parts add up to whole rounds after a scale and an offset were fitted",
        "whole_rounds": f"parts do not add up to whole rounds{advice}",
    }[summary.mode]
    if summary.cost_model_error is None:
        return "no whole round was timed, so nothing says that the parts add up"
    return f"{how}: median error {summary.cost_model_error:.1%} on held-out rounds"


def _stability(summary: CostSummary) -> str:
    told = (
        f"plain steps vary by {summary.ar_spread:.1%}, rounds by {summary.round_spread:.1%} "
        "between blocks"
    )
    if summary.stable:
        return f"stable: {told}"
    return f"unstable: {told}, more than {UNSTABLE_SPREAD:.0%}; no verdict should rest on it"


def _room(at: ContextCosts) -> str:
    ratio = at.floor_ratio or float("nan")
    told = f"context {at.context}: a plain step takes {ratio:.2f} × the bandwidth floor"
    if ratio <= BANDWIDTH_BOUND:
        return f"{told}: decoding waits for memory, so speculation has room"
    return f"{told}: decoding does not wait for memory alone, so speculation has less room"


def _textbook(summary: CostSummary, at: ContextCosts) -> str:
    excess = summary.draft_excess(at)
    free = [v for row in summary.verify_excess(at) for v in row]
    return (
        f"context {at.context}: a draft step costs {min(excess):.2f} to {max(excess):.2f} × its "
        f"share L/N of the layers; verification costs {1 + min(free):.2f} to {1 + max(free):.2f} "
        "plain steps where the textbook says 1"
    )
