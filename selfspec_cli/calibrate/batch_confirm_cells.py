"""Choose what is decoded in real batches, and predict it, once: both stay in the manifest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from selfspec_cli.analysis.batch_confirmation import (
    SCHEDULES,
    PredictedBatch,
    Schedule,
    predict_refill,
    predict_static,
)
from selfspec_cli.analysis.batch_costs import BatchCosts
from selfspec_cli.analysis.batching import at_batch
from selfspec_cli.analysis.confirm_choice import Limits, Pair, RuleCell, choose_paths, with_buckets
from selfspec_cli.analysis.costs import Costs
from selfspec_cli.analysis.run_walk import run_coins
from selfspec_cli.analysis.walk import PathCoins
from selfspec_cli.config import CalibrateConfig
from selfspec_cli.config.hashes import document_hash
from selfspec_cli.storage import RunDir, read_table

STAGE = "confirm_batch"
BUDGET_SHARE = 0.5  # of the budget that confirmation has at one row, and on top of it
BATCHES = 3  # paths decoded for every row of a batch, so that a refilled one runs full for long
PLAIN_RUNS = 2  # beside each run of a cell


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCell:
    """A cell to decode in batches of one size on paths of one temperature and law class."""

    batch_size: int
    temperature: float
    law: str
    cell: Pair
    path_ids: tuple[str, ...]
    """In the order they are given to the decoder."""
    predicted: Mapping[Schedule, PredictedBatch]
    """By schedule; one that cannot be priced is not there and is not decoded."""

    def to_document(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        return {
            "batch_size": self.batch_size,
            "temperature": self.temperature,
            "law": self.law,
            "exit_layer": self.cell[0],
            "draft_length": self.cell[1],
            "path_ids": list(self.path_ids),
            "predicted": {name: one.to_document() for name, one in self.predicted.items()},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "BatchCell":
        """The cell as `to_document` gave it."""
        return cls(
            batch_size=document["batch_size"],
            temperature=document["temperature"],
            law=document["law"],
            cell=(document["exit_layer"], document["draft_length"]),
            path_ids=tuple(document["path_ids"]),
            predicted={
                schedule: PredictedBatch(**document["predicted"][schedule])
                for schedule in SCHEDULES
                if schedule in document["predicted"]
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenBatches:
    """What is decoded in batches, within which budget."""

    cells: tuple[BatchCell, ...]
    budget_s: float
    predicted_s: float
    num_left_out: int
    """Cells that the budget had no room for."""
    too_few: tuple[int, ...] = ()
    """Batch sizes that no bucket's temperature has paths enough to fill."""

    def to_document(self) -> dict[str, Any]:
        """Plain values for the manifest, the predictions' hash among them."""
        cells = [one.to_document() for one in self.cells]
        return {
            "budget_s": self.budget_s,
            "predicted_s": self.predicted_s,
            "num_left_out": self.num_left_out,
            "too_few": list(self.too_few),
            "cells": cells,
            "predictions_sha256": document_hash({"cells": cells}),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "ChosenBatches":
        """The choice as `to_document` gave it."""
        return cls(
            cells=tuple(map(BatchCell.from_document, document["cells"])),
            budget_s=document["budget_s"],
            predicted_s=document["predicted_s"],
            num_left_out=document["num_left_out"],
            too_few=tuple(document["too_few"]),
        )


def due(config: CalibrateConfig) -> bool:
    """Whether a calibration decodes in batches at all."""
    return config.sweep == "walk" and config.confirm.cells > 0 and max(config.batch_sizes) > 1


def choose_batches_once(
    run: RunDir, config: CalibrateConfig, costs: Costs, rules: Sequence[RuleCell]
) -> ChosenBatches:
    """Return what this run decodes in batches: chosen before it was stopped, or a new choice.

    A new choice, and what it predicts, is in the manifest with a hash before anything is decoded.

    Args:
        run: a run whose stages walk and confirm are done.
        config: its limits.
        costs: of every batch size.
        rules: of the draft plan.
    """
    entry = run.manifest["stages"].get(STAGE, {})
    if "cells" in entry:
        return ChosenBatches.from_document(entry)
    budget = BUDGET_SHARE * _confirm_budget(run)
    chosen = _within(_candidates(run, config, costs, rules), config, budget)
    run.set_stage(STAGE, "running", **chosen.to_document())
    return chosen


def _confirm_budget(run: RunDir) -> float:
    """Budget of the stage before; nothing was confirmed where it has none."""
    return float(run.manifest["stages"]["confirm"].get("budget_s", 0.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Candidates:
    """Cells in order of importance, the seconds each would take, and what has too few paths."""

    cells: list[BatchCell] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    too_few: list[int] = field(default_factory=list)


def _within(found: _Candidates, config: CalibrateConfig, budget: float) -> ChosenBatches:
    """Keep cells in their order while their predicted time fits; the first one always."""
    kept: list[BatchCell] = []
    spent = 0.0
    wanted = list(zip(found.cells, found.seconds, strict=True))[: config.confirm.cells]
    for cell, seconds in wanted:
        if not kept or spent + seconds <= budget:
            kept.append(cell)
            spent += seconds
    return ChosenBatches(
        cells=tuple(kept),
        budget_s=budget,
        predicted_s=spent,
        num_left_out=len(wanted) - len(kept),
        too_few=tuple(found.too_few),
    )


def _candidates(
    run: RunDir, config: CalibrateConfig, costs: Costs, rules: Sequence[RuleCell]
) -> _Candidates:
    """Predict the most important rule of each temperature at every batch size."""
    layers = run.manifest["measurement"]
    observed = sorted({*layers["exit_layers"], *(layers.get("exit_layers_beyond") or ())})
    walk = read_table(run.artefact("walk.parquet"))
    requests = read_table(run.artefact("requests.parquet"))
    by_bucket = with_buckets(walk, requests, config.context_edges)
    coins = {path.path_id: path for path in run_coins(run, observed)}
    found, sizes = _Candidates(), sizes_in_order(costs.batch_sizes)
    for rule in first_of_each_temperature(rules):
        own = by_bucket.get(rule.bucket, walk.head(0))
        same = walk.loc[(walk["temperature"] == rule.bucket.temperature) & (walk["committed"] > 0)]
        for size in sizes:
            rows = _rows(own, same, rule.cell, (costs, size), config)
            if len(rows) < size:
                found.too_few.append(size)
                continue
            paths = [coins[path_id] for path_id in rows["path_id"]]
            cell = _predict(rows, paths, observed.index(rule.cell[0]), (costs, size))
            found.cells.append(cell)
            found.seconds.append(_seconds(cell, rows, config.confirm.repeats))
    done = {cell.batch_size for cell in found.cells}
    too_few = [size for size in sizes if size in found.too_few and size not in done]
    return _Candidates(cells=found.cells, seconds=found.seconds, too_few=too_few)


def sizes_in_order(batch_sizes: Sequence[int]) -> list[int]:
    """Return batch sizes above 1: the smallest, the largest, then those between."""
    several = sorted(size for size in batch_sizes if size > 1)
    ends = list(dict.fromkeys([*several[:1], *several[-1:]]))
    return [*ends, *several[1:-1]]


def first_of_each_temperature(rules: Sequence[RuleCell]) -> list[RuleCell]:
    """Return each temperature's rule of most traffic, enabled ones first; most traffic first."""
    ordered = sorted(rules, key=lambda r: (not r.enabled, -r.time_share, r.bucket))
    found: dict[float, RuleCell] = {}
    for rule in ordered:
        found.setdefault(rule.bucket.temperature, rule)
    return list(found.values())


def _rows(
    own: pd.DataFrame,
    same: pd.DataFrame,
    cell: Pair,
    priced_at: tuple[Costs, int],
    config: CalibrateConfig,
) -> pd.DataFrame:
    """Walk rows of the paths to decode, in the decoder's order: the rule's bucket, then others.

    All are of one law class, the most frequent in the bucket, and lie within what was timed at
    this batch size. One a group, drawn by a hash of their ids.
    """
    costs, size = priced_at
    wanted = BATCHES * size
    limits = Limits(
        cells=0, requests=wanted, min_tokens=config.confirm.min_tokens, repeats=0, budget_s=0.0,
        seed=config.seed,
    )  # fmt: skip
    usable = [_usable(rows, cell, costs, size) for rows in (own, same)]
    if usable[0].empty:
        return usable[0]
    law = usable[0]["law"].mode().iloc[0]
    order: dict[str, None] = {}
    for rows in usable:
        drawn = choose_paths(rows.loc[rows["law"] == law], limits)
        order |= dict.fromkeys(drawn)
    return usable[1].set_index("path_id", drop=False).loc[list(order)[:wanted]]


def _usable(rows: pd.DataFrame, cell: Pair, costs: Costs, size: int) -> pd.DataFrame:
    at_cell = (rows["exit_layer"] == cell[0]) & (rows["draft_length"] == cell[1])
    priced = at_batch(rows.loc[at_cell], costs.by_batch[size], size)
    return rows.loc[at_cell].loc[priced["seconds"].notna().to_numpy()]


def _predict(
    rows: pd.DataFrame, paths: Sequence[PathCoins], row: int, priced_at: tuple[Costs, int]
) -> BatchCell:
    costs, size = priced_at
    first = rows.iloc[0]
    law, cell = str(first["law"]), (int(first["exit_layer"]), int(first["draft_length"]))
    by_rows = BatchCosts(surfaces=costs.of_law(law))
    predicted: dict[Schedule, PredictedBatch | None] = {
        "refill": predict_refill(rows, costs.by_batch[size], size),
        "static": predict_static(paths, row, cell, by_rows, size),
    }
    return BatchCell(
        batch_size=size,
        temperature=float(first["temperature"]),
        law=law,
        cell=cell,
        path_ids=tuple(rows["path_id"]),
        predicted={name: one for name, one in predicted.items() if one is not None},
    )


def _seconds(cell: BatchCell, rows: pd.DataFrame, repeats: int) -> float:
    """Predict what decoding a cell takes, prompts and, at temperature > 0, their laws included."""
    sampled = 1 if cell.temperature > 0 else 0
    prompts = float(rows["prefill_seconds"].sum()) * (PLAIN_RUNS + 1 + sampled)
    decoding = sum(PLAIN_RUNS * p.plain_seconds + p.seconds for p in cell.predicted.values())
    return repeats * (decoding + prompts * len(cell.predicted))
