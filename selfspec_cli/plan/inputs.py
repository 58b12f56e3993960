"""Everything a plan is computed from, read from a run's files. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from selfspec_cli.analysis.costs import Costs, price
from selfspec_cli.analysis.run_walk import run_coins, usable_paths, walk_at_base
from selfspec_cli.analysis.walk import PathCoins
from selfspec_cli.errors import CostRangeError, StorageError
from selfspec_cli.plan.cost_file import load_cost_file
from selfspec_cli.plan.facts import RunFacts, run_facts
from selfspec_cli.storage import RunDir, read_table

_LATER_ROUNDS = "cost_rounds.csv"  # whole rounds, timed where parts did not add up


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanInputs:
    """What was measured, ready to be planned with."""

    walk: pd.DataFrame
    """Priced walk rows of every usable path at every cell, layers beyond the range included, at
    the base batch size: a request's share of a batch."""
    requests: pd.DataFrame
    """requests.parquet."""
    paths: pd.DataFrame
    """paths.parquet: every observed path, usable or not."""
    coins: tuple[PathCoins, ...]
    """Usable paths, those of `walk`; rows of coins belong to `observed_layers`."""
    costs: Costs
    exit_layers: tuple[int, ...]
    """Layers a rule may use."""
    exit_layers_beyond: tuple[int, ...]
    draft_lengths: tuple[int, ...]
    prefill_seconds: Mapping[str, float] | None
    """Prefill seconds by path_id; None where prefill was not timed."""
    left_out: Mapping[str, int]
    """Paths that cannot be walked or priced, by reason."""
    facts: RunFacts
    seed: int = 0
    """Of cost draws and sampled walks."""

    @property
    def observed_layers(self) -> tuple[int, ...]:
        """The range and what was observed beyond it, ascending."""
        return tuple(sorted({*self.exit_layers, *self.exit_layers_beyond}))


def load_plan_inputs(run: RunDir, cost_file: Path | None = None) -> PlanInputs:
    """Read a run, priced with its own costs or with those of another cost.csv.

    With other costs every path is walked again; a request whose contexts those costs do not cover
    is left out and counted, since costs are never extrapolated.

    Args:
        run: a run whose stages observe and cost are done.
        cost_file: cost.csv measured on another machine or engine; None for the run's own costs.

    Raises:
        StorageError: a stage is not complete, or an artefact is missing or torn.
        CostRangeError: the cost file lacks a law, a layer kind or draft lengths that are needed,
            or covers no path.
    """
    measurement = _measurement(run)
    layers = tuple(int(layer) for layer in measurement["exit_layers"])
    beyond = tuple(int(layer) for layer in measurement.get("exit_layers_beyond") or ())
    lengths = tuple(int(k) for k in measurement["draft_lengths"])
    observed = sorted({*layers, *beyond})
    coins = run_coins(run, observed)
    kinds = run.manifest["stages"]["cost"]["layer_kinds"]
    if cost_file is None:
        costs, source = _own_costs(run, kinds), run.artefact("cost.csv")
    else:
        laws = {path.law_class for path in coins}
        costs, source = load_cost_file(cost_file, kinds, laws, max(lengths)), cost_file
    usable, left_out = usable_paths(coins, costs)
    if coins and not usable:
        raise _none_usable(left_out, source)
    table = _walk_table(run, usable, costs, (observed, lengths), again=cost_file is not None)
    return PlanInputs(
        walk=table,
        requests=read_table(run.artefact("requests.parquet")),
        paths=read_table(run.artefact("paths.parquet")),
        coins=tuple(usable),
        costs=costs,
        exit_layers=layers,
        exit_layers_beyond=beyond,
        draft_lengths=lengths,
        prefill_seconds=_prefill(table),
        left_out=left_out,
        facts=run_facts(run, costs, source, own=cost_file is None),
        seed=int((run.manifest.get("seeds") or {}).get("run", 0)),
    )


def _measurement(run: RunDir) -> Mapping[str, Sequence[int]]:
    # A finished run's walk can be made again from the other two; a run that was stopped before it
    # has not timed or checked all that a plan would claim.
    stopped = run.manifest.get("status") in ("running", "incomplete")
    for stage in ("observe", "cost", "walk") if stopped else ("observe", "cost"):
        if not run.stage_done(stage):
            raise StorageError(
                f"the stage {stage} of this run is not complete, or its files have changed",
                where=str(run.path),
                hint="Run the same `selfspec calibrate` command again; it goes on from where it "
                "stopped.",
            )
    found: Mapping[str, Sequence[int]] = run.manifest["measurement"]
    return found


def _own_costs(run: RunDir, kinds: Sequence[str]) -> Costs:
    later = run.artefact(_LATER_ROUNDS)
    extra = read_table(later) if later.exists() else None
    return price(read_table(run.artefact("cost.csv")), kinds, extra)


def _walk_table(
    run: RunDir,
    coins: Sequence[PathCoins],
    costs: Costs,
    cells: tuple[Sequence[int], Sequence[int]],
    *,
    again: bool,
) -> pd.DataFrame:
    """walk.parquet, or the walk under other costs over (exit layers, draft lengths)."""
    stored = run.artefact("walk.parquet")
    if not again and stored.exists():
        return read_table(stored)
    layers, lengths = cells
    return walk_at_base(coins, layers, lengths, costs)


def _prefill(table: pd.DataFrame) -> dict[str, float] | None:
    """Prefill seconds by path, or None where one path has none: then nobody's are used."""
    if "prefill_seconds" not in table or table["prefill_seconds"].isna().any():
        return None
    paths = table.drop_duplicates("path_id")
    return dict(zip(paths["path_id"], paths["prefill_seconds"].astype(float), strict=True))


def _none_usable(left_out: Mapping[str, int], source: Path) -> CostRangeError:
    told = "; ".join(f"{n}: {reason.replace('_', ' ')}" for reason, n in left_out.items() if n)
    return CostRangeError(
        f"no observed path can be priced with these costs ({told})",
        where=str(source),
        hint="Measure contexts that cover the prompts and outputs of this traffic.",
    )
