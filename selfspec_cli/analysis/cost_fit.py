"""Do measured parts add up to measured rounds? The error, and the correction where they do not."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from selfspec_cli.analysis.cost_parts import ROUND_PART, Floats
from selfspec_cli.analysis.cost_surface import CostSurface

Mode = Literal["parts", "corrected", "whole_rounds"]
MAX_COST_MODEL_ERROR = 0.05  # median |predicted / measured - 1| over held-out rounds
_MIN_FIT_CELLS = 3  # a scale and an offset need more rounds than unknowns


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundError:
    """One measured whole round beside its prediction."""

    exit_layer: int
    draft_length: int
    context: float
    """Tokens in the cache before the round."""
    measured_s: float
    parts_s: float
    """Sum of parts, uncorrected (s)."""
    predicted_s: float
    """What the chosen mode predicts from parts (s)."""
    held_out: bool
    """Whether the round judged the model; the others may have been used to fit the correction."""

    @property
    def parts_error(self) -> float:
        """Signed relative error of the plain sum of parts."""
        return self.parts_s / self.measured_s - 1.0

    @property
    def error(self) -> float:
        """Signed relative error of the chosen mode."""
        return self.predicted_s / self.measured_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFit:
    """How rounds are priced, and how well that agrees with held-out whole rounds."""

    mode: Mode
    """parts: sums are used as they are. corrected: scale and offset are applied. whole_rounds: both
    miss, so cells that matter must be timed whole; the better of the two prices the others."""
    cost_model_error: float | None
    """Median |error| over held-out rounds of the pricing in use; None where none was timed."""
    parts_cost_model_error: float | None
    """The same for the plain sum of parts."""
    scale: float
    offset: float
    """Seconds a round."""
    rounds: tuple[RoundError, ...]

    def apply(self, surface: CostSurface) -> CostSurface:
        """Return `surface` with this correction; whole rounds are added by the caller."""
        if self.scale == 1.0 and self.offset == 0.0:
            return surface
        return surface.corrected(self.scale, self.offset)

    def to_document(self) -> dict[str, Any]:
        """Return plain values for a file; signed errors are written out for people."""
        document = asdict(self)
        document["rounds"] = [
            {**asdict(row), "parts_error": row.parts_error, "error": row.error}
            for row in self.rounds
        ]
        return document

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "CostFit":
        """Read what `to_document` wrote."""
        derived = {"parts_error", "error"}
        rounds = tuple(
            RoundError(**{key: value for key, value in row.items() if key not in derived})
            for row in document["rounds"]
        )
        return cls(**{**document, "rounds": rounds})


def fit_correction(surface: CostSurface, rounds: pd.DataFrame) -> CostFit:
    """Judge the sum of parts on held-out whole rounds and correct it if it misses by over 5 %.

    Args:
        surface: uncorrected surface of one (law, batch, engine).
        rounds: rows of cost.csv; part `round` with k >= 1 of the surface's law and batch is read.
            exit_layer is L, positions is k+1, context is in tokens, seconds may repeat by block.

    Raises:
        ValueError: the surface is already corrected.
        CostRangeError: a round lies outside the surface's range.
    """
    if surface.scale != 1.0 or surface.offset != 0.0 or surface.whole is not None:
        raise ValueError("the surface is already corrected")
    cells = _round_cells(surface, rounds)
    measured, parts = cells["seconds"].to_numpy(), cells["parts"].to_numpy()
    held = cells["held_out"].to_numpy(dtype=bool)
    plain = _median_error(parts[held], measured[held])
    scale, offset = 1.0, 0.0
    mode: Mode = "parts"
    error = plain
    if plain is not None and plain > MAX_COST_MODEL_ERROR:
        fitted = _fit_scale_offset(parts[~held], measured[~held], _cheapest(surface))
        tried = _median_error(fitted[0] * parts[held] + fitted[1], measured[held])
        if tried is not None and tried < plain:
            (scale, offset), error = fitted, tried
        mode = (
            "corrected" if error is not None and error <= MAX_COST_MODEL_ERROR else "whole_rounds"
        )
    return CostFit(
        mode=mode,
        cost_model_error=error,
        parts_cost_model_error=plain,
        scale=scale,
        offset=offset,
        rounds=_round_errors(cells, scale, offset),
    )


def _round_cells(surface: CostSurface, rounds: pd.DataFrame) -> pd.DataFrame:
    """One row a timed (L, k, context): mean seconds, sum of parts, held_out."""
    keep = (rounds["part"] == ROUND_PART) & (rounds["positions"] >= 2)
    if "law" in rounds:
        keep &= rounds["law"].fillna(surface.law) == surface.law
    if "batch" in rounds:
        keep &= rounds["batch"] == surface.batch
    keys = ["exit_layer", "positions", "context"]
    cells = rounds.loc[keep].groupby(keys, as_index=False).agg(seconds=("seconds", "mean"))
    cells["parts"] = [
        float(surface.round_seconds([int(layer)], int(positions) - 1, context)[0])
        for layer, positions, context in cells[keys].itertuples(index=False)
    ]
    cells["held_out"] = _held_out(cells[keys])
    return cells


def _held_out(keys: pd.DataFrame) -> list[bool]:
    """Every other cell in the order of a hash: deterministic, and no pattern in L, k or context."""
    names = [
        f"{int(layer)},{int(positions)},{context:g}"
        for layer, positions, context in keys.itertuples(index=False)
    ]
    order = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    chosen = set(order[::2])
    return [name in chosen for name in names]


def _median_error(predicted: Floats, measured: Floats) -> float | None:
    if len(measured) == 0:
        return None
    return float(np.median(np.abs(predicted / measured - 1.0)))


def _cheapest(surface: CostSurface) -> float:
    """Seconds of the cheapest round that drafts, by its parts, over all L, k and contexts."""
    layers = np.arange(1, surface.num_layers + 1)
    lengths = np.arange(1, surface.max_draft_length + 1)[:, None]
    return float(surface.round_seconds(layers, lengths, surface.context_range).min())


def _fit_scale_offset(parts: Floats, measured: Floats, cheapest: float) -> tuple[float, float]:
    """Least squares of the relative error; scale only without enough rounds or a believable line.

    A scale <= 0, or an offset that takes more than half of the cheapest round away, comes from
    timings that do not belong together; rounds elsewhere might then cost less than nothing.
    """
    if len(measured) == 0:
        return 1.0, 0.0
    relative = parts / measured
    if len(measured) >= _MIN_FIT_CELLS:
        design = np.column_stack([relative, 1.0 / measured])
        # Columns differ by orders of magnitude (1 and 1/s); scaled to keep the solve well posed.
        size = np.abs(design).max(axis=0)
        solution = np.linalg.lstsq(design / size, np.ones(len(measured)), rcond=None)[0] / size
        scale, offset = float(solution[0]), float(solution[1])
        if scale > 0.0 and -offset <= 0.5 * scale * cheapest:
            return scale, offset
    return float(relative.sum() / (relative**2).sum()), 0.0


def _round_errors(cells: pd.DataFrame, scale: float, offset: float) -> tuple[RoundError, ...]:
    return tuple(
        RoundError(
            exit_layer=int(row["exit_layer"]),
            draft_length=int(row["positions"]) - 1,
            context=float(row["context"]),
            measured_s=float(row["seconds"]),
            parts_s=float(row["parts"]),
            predicted_s=float(scale * row["parts"] + offset),
            held_out=bool(row["held_out"]),
        )
        for row in cells.to_dict("records")
    )
