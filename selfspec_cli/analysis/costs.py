"""Costs of a run: cost.csv to surfaces by batch size and law. No torch: replanning starts here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from selfspec_cli.analysis.cost_fit import CostFit, fit_correction
from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.errors import CostRangeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Priced surfaces by batch size and law class, and how well parts add up to rounds.

    A surface at batch size B gives the seconds of one step or round of the whole batch of B rows;
    its prefill is that of one prompt, since prompts are run one by one whatever the batch.
    """

    by_batch: Mapping[int, Mapping[str, CostSurface]]
    """Surfaces by batch size, ascending, then law class."""
    fits_by_batch: Mapping[int, Mapping[str, CostFit]]
    """Fits in the same order."""

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Measured batch sizes, ascending; the first is the base, where rules are decided."""
        return tuple(self.by_batch)

    @property
    def surfaces(self) -> Mapping[str, CostSurface]:
        """Surfaces of the base batch size by law class."""
        return self.by_batch[self.batch_sizes[0]]

    @property
    def fits(self) -> Mapping[str, CostFit]:
        """Fits of the base batch size by law class."""
        return self.fits_by_batch[self.batch_sizes[0]]

    def of_law(self, law: str) -> dict[int, CostSurface]:
        """Return one law's surfaces by batch size, ascending.

        Raises:
            KeyError: no cost was measured for this law.
        """
        return {batch: surfaces[law] for batch, surfaces in self.by_batch.items()}

    def fit_document(self) -> dict[str, Any]:
        """Return the document of cost_fit.json (`fit_document`)."""
        return fit_document(self.fits_by_batch)


def fit_document(fits_by_batch: Mapping[int, Mapping[str, CostFit]]) -> dict[str, Any]:
    """Return the document of cost_fit.json: fits of the base by law, others under `by_batch`.

    Args:
        fits_by_batch: fits by batch size, ascending, then law; those of the sizes after the first
            stand in the same order under `by_batch`, a key that is not there with one size.
    """
    base, *others = fits_by_batch
    documents = {
        batch: {law: fit.to_document() for law, fit in fits.items()}
        for batch, fits in fits_by_batch.items()
    }
    if not others:
        return documents[base]
    return {**documents[base], "by_batch": {str(batch): documents[batch] for batch in others}}


def price(
    rows: pd.DataFrame, layer_kinds: Sequence[str], extra: pd.DataFrame | None = None
) -> Costs:
    """Surfaces and fits of every batch size and law in cost.csv; pure function of its rows.

    Args:
        rows: cost.csv.
        layer_kinds: kind of each of the N layers.
        extra: cost_rounds.csv, whole rounds timed later; used where parts do not add up.

    Raises:
        StorageError: columns or parts are missing, or no block timed every part.
        CostRangeError: no plain step was timed.
    """
    whole = rows if extra is None else pd.concat([rows, at_pace_of(rows, extra)])
    by_batch: dict[int, dict[str, CostSurface]] = {}
    fits: dict[int, dict[str, CostFit]] = {}
    for batch, law in measured_laws(rows):
        surface = CostSurface.from_rows(rows, layer_kinds=layer_kinds, law=law, batch=batch)
        fit = fit_correction(surface, rows)
        surface = fit.apply(surface)
        if fit.mode == "whole_rounds":
            surface = surface.with_whole_rounds(whole)
        by_batch.setdefault(batch, {})[law] = surface
        fits.setdefault(batch, {})[law] = fit
    return Costs(by_batch=by_batch, fits_by_batch=fits)


def measured_laws(rows: pd.DataFrame) -> list[tuple[int, str]]:
    """Return the (batch size, law class) pairs with plain steps in cost.csv, ascending.

    Raises:
        CostRangeError: there are none.
    """
    timed = rows.loc[rows["part"] == "ar", ["batch", "law"]].drop_duplicates()
    if timed.empty:
        raise CostRangeError("no plain step was timed", where="cost.csv")
    return sorted((int(batch), str(law)) for batch, law in timed.itertuples(index=False))


def at_pace_of(rows: pd.DataFrame, extra: pd.DataFrame) -> pd.DataFrame:
    """Rescale later rounds so that plain steps of both visits take equally long.

    The machine may run at another pace the second time; ratios to a plain step are what counts.
    """
    keys = ["law", "batch", "context"]
    first = rows.loc[rows["part"] == "ar"].groupby(keys)["seconds"].mean()
    second = extra.loc[extra["part"] == "ar"].groupby(keys)["seconds"].mean()
    pace = (first / second).rename("pace").reset_index()
    rounds = extra.loc[extra["part"] == "round"].merge(pace, on=keys, how="left")
    return rounds.assign(seconds=rounds["seconds"] * rounds["pace"]).drop(columns="pace")
