"""Costs of a run: cost.csv to priced surfaces by law class. No torch: replanning starts here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from selfspec_cli.analysis.cost_fit import CostFit, fit_correction
from selfspec_cli.analysis.cost_surface import CostSurface


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Priced surfaces by law class, and how well parts add up to rounds."""

    surfaces: Mapping[str, CostSurface]
    fits: Mapping[str, CostFit]


def price(
    rows: pd.DataFrame, layer_kinds: Sequence[str], extra: pd.DataFrame | None = None
) -> Costs:
    """Surfaces and fits of every law in cost.csv; pure function of its rows.

    Args:
        rows: cost.csv.
        layer_kinds: kind of each of the N layers.
        extra: cost_rounds.csv, whole rounds timed later; used where parts do not add up.
    """
    whole = rows if extra is None else pd.concat([rows, at_pace_of(rows, extra)])
    laws = sorted(set(rows.loc[rows["part"] == "ar", "law"]))
    surfaces: dict[str, CostSurface] = {}
    fits: dict[str, CostFit] = {}
    for law in laws:
        surface = CostSurface.from_rows(rows, layer_kinds=layer_kinds, law=law)
        fits[law] = fit_correction(surface, rows)
        surface = fits[law].apply(surface)
        if fits[law].mode == "whole_rounds":
            surface = surface.with_whole_rounds(whole)
        surfaces[law] = surface
    return Costs(surfaces=surfaces, fits=fits)


def at_pace_of(rows: pd.DataFrame, extra: pd.DataFrame) -> pd.DataFrame:
    """Rescale later rounds so that plain steps of both visits take equally long.

    The machine may run at another pace the second time; ratios to a plain step are what counts.
    """
    keys = ["law", "context"]
    first = rows.loc[rows["part"] == "ar"].groupby(keys)["seconds"].mean()
    second = extra.loc[extra["part"] == "ar"].groupby(keys)["seconds"].mean()
    pace = (first / second).rename("pace").reset_index()
    rounds = extra.loc[extra["part"] == "round"].merge(pace, on=keys, how="left")
    return rounds.assign(seconds=rounds["seconds"] * rounds["pace"]).drop(columns="pace")
