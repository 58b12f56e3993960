"""One run as a comparison sees it: what each observed path takes under the run's own plan."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from selfspec_cli.analysis.batching import paid_lengths
from selfspec_cli.analysis.cost_fit import CostFit
from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.analysis.evidence import Cell
from selfspec_cli.analysis.grid_costs import LawCells
from selfspec_cli.analysis.reprice import price_rounds, stack_lists
from selfspec_cli.analysis.walk import surface_for
from selfspec_cli.errors import PlanError, StorageError
from selfspec_cli.gate.pairing import CostError
from selfspec_cli.gate.plan_check import read_own_plan
from selfspec_cli.gate.whole_run import refuse_partial
from selfspec_cli.plan.document import PlanDocument, Rule
from selfspec_cli.plan.files import PLAN_FILE
from selfspec_cli.plan.inputs import PlanInputs, load_plan_inputs
from selfspec_cli.plan.rules import cell_of, key_of_rule
from selfspec_cli.plan.traffic import key_of, path_table
from selfspec_cli.storage import RunDir, read_table

Floats = npt.NDArray[np.float64]
CELL = ["exit_layer", "draft_length"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """A run, its plan, and one row a priced path."""

    path: Path
    manifest: dict[str, Any]
    plan: PlanDocument
    inputs: PlanInputs
    paths: pd.DataFrame
    """The plan's path table of priced paths, with rule (number in the plan), on, exit_layer and
    draft_length (of the rule's cell, also where off; missing where it has none), ar (s), seconds
    (under the plan), optimism (what its cell's seconds must be multiplied by where it is held
    against another cell), prefill_seconds."""
    confirm: pd.DataFrame | None
    """confirm.csv; None where nothing was decoded."""

    @property
    def cost_sha256(self) -> object:
        """Hash of the costs' own measurement."""
        return self.plan.measured_on.costs.sha256

    def at_cells(self, wanted: pd.DataFrame) -> pd.DataFrame:
        """Return walk rows of path_id at the cell that `wanted` names for it, index path_id."""
        keys = ["path_id", *CELL]
        found = self.inputs.walk.merge(wanted[keys].dropna(), on=keys, how="inner")
        return found.set_index("path_id")


def load_side(path: Path) -> Side:
    """Read a run for comparison.

    Raises:
        RunDirError: `path` holds no run, or one that has not ended.
        StorageError: plan.yaml or a stage is missing, or a file is torn or not what the run wrote.
        PlanError: the plan is another run's, or names a bucket or cell that the run does not hold.
    """
    run = RunDir.load(path)
    refuse_partial(run)
    file = run.artefact(PLAN_FILE)
    plan = read_own_plan(run)
    inputs = load_plan_inputs(run)
    confirm = run.artefact("confirm.csv")
    return Side(
        path=path,
        manifest=run.manifest,
        plan=plan,
        inputs=inputs,
        paths=_paths(plan, inputs, file),
        confirm=read_table(confirm) if confirm.exists() else None,
    )


def cost_errors(side: Side, rows: pd.DataFrame, bucket: npt.NDArray[np.int64]) -> list[CostError]:
    """Return what the side's costs add to the log speedup of each bucket, and of all, last.

    Cells of one machine err together: within a bucket, and over all, their errors are added with
    the share of seconds that each has. Where a rule is off, both plans decode alike: no error.

    Args:
        side: the run.
        rows: rows of `side.paths`, weighed by their column `weight`.
        bucket: number of the bucket of each row, from 0.
    """
    blocks = [len(surface.samples.blocks) for surface in side.inputs.costs.surfaces.values()]
    degrees = float(max(min(blocks, default=2) - 1, 1))
    walk = _walk_under_rules(side, rows, bucket)
    if walk.empty:
        return _shares(rows, bucket, walk, np.zeros(0), degrees)
    number = np.asarray(walk.groupby(["bucket", *CELL], sort=True).ngroup(), dtype=np.int64)
    sds = LawCells(walk, number).cost_log_sd(side.inputs.costs.surfaces, side.inputs.seed)
    return _shares(rows, bucket, walk, sds[number], degrees)


def pricing_errors(
    side: Side, rows: pd.DataFrame, bucket: npt.NDArray[np.int64], laws: Collection[str]
) -> list[CostError]:
    """Return what the way the side prices rounds adds to the log speedup; as `cost_errors`.

    Whether a law's sum of parts is corrected turns on a threshold that equal machines pass on
    either side, and then their rounds differ by the whole correction, however often they were
    timed. Each way is off by what its held-out rounds show; priced the same way, both are off
    alike. Rounds that were timed whole bring their own error.

    Args:
        side: the run.
        rows: rows of `side.paths`, weighed by their column `weight`.
        bucket: number of the bucket of each row, from 0.
        laws: that the other run prices another way.

    Returns:
        NaN where a law's rounds were never timed whole.
    """
    fits = side.inputs.costs.fits
    by_parts = [law for law in laws if law in fits and fits[law].mode != "whole_rounds"]
    judged = {law: _held_out_errors(fits[law]) for law in by_parts}
    sds = {law: _root_mean_square(errors) for law, errors in judged.items()}
    walk = _walk_under_rules(side, rows, bucket)
    of_row = np.array([sds.get(str(law), 0.0) for law in walk["law"]], dtype=float)
    degrees = float(max(min(map(len, judged.values()), default=1), 1))
    return _shares(rows, bucket, walk, of_row, degrees)


def pricing_jumps(
    side: Side, rows: pd.DataFrame, bucket: npt.NDArray[np.int64], laws: Collection[str]
) -> Floats:
    """Return log seconds less those by plain parts, of each bucket's decoding, and of all, last.

    Two ways of pricing cannot set two runs further apart than this, of both runs.

    Args:
        side: the run.
        rows: rows of `side.paths`, weighed by their column `weight`.
        bucket: number of the bucket of each row, from 0.
        laws: that the other run prices another way; others count 0.
    """
    walk = _walk_under_rules(side, rows, bucket)
    jumps = np.zeros(len(walk))
    for law in laws:
        chosen = (walk["law"] == law).to_numpy()
        if chosen.any():
            surface = surface_for(side.inputs.costs.surfaces, law)
            plain = replace(surface, whole=None, whole_error=None).corrected(1.0, 0.0)
            own, by_parts = (_priced(walk.loc[chosen], one) for one in (surface, plain))
            jumps[chosen] = np.log(np.maximum(own, 1e-300) / np.maximum(by_parts, 1e-300))
    return np.array([one.log_sd for one in _shares(rows, bucket, walk, jumps, 1.0)])


def _priced(walk: pd.DataFrame, surface: CostSurface) -> Floats:
    """Seconds of the rounds of each walk row under a surface."""
    lengths = walk["draft_length"].to_numpy(dtype=np.int64)
    width = int(lengths.max()) + 1
    return price_rounds(
        walk["exit_layer"].to_numpy(dtype=np.int64),
        stack_lists(walk["rounds_by_drafted"], width),
        stack_lists(walk["context_by_drafted"], width),
        surface,
        paid_lengths(lengths, int(walk["batch_size"].iloc[0])),
    )


def _held_out_errors(fit: CostFit) -> Floats:
    """Log errors of the rounds that judged a pricing."""
    ratios = [one.predicted_s / one.measured_s for one in fit.rounds if one.held_out]
    return np.log(np.asarray(ratios, dtype=float))


def _root_mean_square(errors: Floats) -> float:
    return float(np.sqrt((errors**2).mean())) if len(errors) else float("nan")


def _walk_under_rules(
    side: Side, rows: pd.DataFrame, bucket: npt.NDArray[np.int64]
) -> pd.DataFrame:
    """Walk rows of the paths whose rule is on, at its cell, with bucket and weighed seconds."""
    on = rows["on"].to_numpy(dtype=bool)
    seconds = (rows["weight"] * rows["seconds"])[on]
    chosen = rows.loc[on, ["path_id", *CELL]].assign(bucket=bucket[on], seconds=seconds)
    walk = side.at_cells(chosen).drop(columns=["seconds", *CELL], errors="ignore")
    return chosen.set_index("path_id").join(walk, how="inner")


def _shares(
    rows: pd.DataFrame,
    bucket: npt.NDArray[np.int64],
    walk: pd.DataFrame,
    sds: Floats,
    degrees: float,
) -> list[CostError]:
    """Add the errors of walk rows up by their share of a bucket's seconds, and of all, last."""
    num_buckets = int(bucket.max()) + 1 if len(bucket) else 0
    parts = np.zeros(num_buckets)
    np.add.at(parts, walk["bucket"].to_numpy(dtype=np.int64), walk["seconds"].to_numpy() * sds)
    seconds = (rows["weight"] * rows["seconds"]).to_numpy(dtype=float)
    whole = np.bincount(bucket, weights=seconds, minlength=num_buckets)
    shares = [*(parts / np.maximum(whole, 1e-300)), parts.sum() / max(whole.sum(), 1e-300)]
    return [CostError(log_sd=float(share), degrees=degrees) for share in shares]


def _paths(plan: PlanDocument, inputs: PlanInputs, file: Path) -> pd.DataFrame:
    table = path_table(inputs, plan.settings.context_edges)
    table = table.loc[table["priced"]].reset_index(drop=True)
    if table["path_id"].duplicated().any():
        raise StorageError("a path_id occurs twice", where="paths.parquet")
    rules = {key_of_rule(rule): number for number, rule in enumerate(plan.rules)}
    number = pd.Series([rules.get(key_of(row), -1) for row in table.to_dict("records")], dtype=int)
    if (number < 0).any():
        label = key_of(table.iloc[int(number.argmin())].to_dict()).label
        raise PlanError(f"rules: none for the bucket {label}, which the run holds", where=str(file))
    facts = pd.DataFrame([_facts(rule) for rule in plan.rules]).iloc[number].reset_index(drop=True)
    table = pd.concat([table.assign(rule=number), facts], axis=1)
    return _timed(table, inputs, file)


def _facts(rule: Rule) -> dict[str, object]:
    cell = cell_of(rule)
    own, evidence = rule.in_sample_speedup, rule.speedup.estimate
    corrected = rule.evidence == "own" and own is not None and evidence is not None
    return {
        "on": rule.enabled,
        "exit_layer": np.nan if cell is None else float(cell[0]),
        "draft_length": np.nan if cell is None else float(cell[1]),
        "optimism": own / evidence if corrected and own and evidence else 1.0,
    }


def _timed(table: pd.DataFrame, inputs: PlanInputs, file: Path) -> pd.DataFrame:
    """Add seconds under the plan; every enabled rule must name a cell that was walked."""
    at = inputs.walk.set_index(["path_id", *CELL])["seconds"]
    keys = pd.MultiIndex.from_frame(table[["path_id", *CELL]])
    walked = at.reindex(keys).to_numpy(dtype=float)
    on = table["on"].to_numpy(dtype=bool)
    lost = table.loc[on & ~np.isfinite(walked)]
    if len(lost):
        cell: Cell = (int(lost["exit_layer"].iloc[0]), int(lost["draft_length"].iloc[0]))
        raise PlanError(
            f"rules.{lost['rule'].iloc[0]}: the cell L={cell[0]}, k={cell[1]} was not measured",
            where=str(file),
        )
    prefill = inputs.prefill_seconds
    return table.assign(
        ar=table["ar_seconds"],
        seconds=np.where(on, walked, table["ar_seconds"].to_numpy(dtype=float)),
        prefill_seconds=np.nan if prefill is None else table["path_id"].map(prefill).astype(float),
    )
