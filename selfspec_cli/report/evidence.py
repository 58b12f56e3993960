"""What findings are drawn from, gathered from a run's files."""

from collections.abc import Mapping, Sequence

import pandas as pd

from selfspec_cli.analysis.accepted_lengths import AcceptedLengths
from selfspec_cli.analysis.grid import ALL_TASKS, build_grid
from selfspec_cli.analysis.grid import COLUMNS as GRID_COLUMNS
from selfspec_cli.plan.document import Rule
from selfspec_cli.report.figure_data import rows_of
from selfspec_cli.report.finding_types import Evidence, Memory, Timing
from selfspec_cli.report.format import known
from selfspec_cli.report.rule_rows import by_traffic
from selfspec_cli.report.tables import RunTables
from selfspec_cli.storage import RunDir, read_table


def gather(
    tables: RunTables,
    frames: Mapping[str, pd.DataFrame],
    lengths: Sequence[tuple[Rule, AcceptedLengths]],
) -> Evidence:
    """Return the evidence of a run.

    Args:
        tables: the run's files.
        frames: `by_layer` and `measured` as `figure_data` makes them, and `grid`, the roll-ups of
            grid.csv by temperature.
        lengths: accepted lengths of each rule's cell.

    Raises:
        StorageError: confirm.csv or confirm_batch.csv is torn.
    """
    error = tables.manifest.get("self_check_error")
    run = RunDir.load(tables.path)
    return Evidence(
        plan=tables.plan,
        by_layer=frames["by_layer"],
        measured=frames["measured"],
        lengths=lengths,
        timings=_timings(tables),
        self_check_error=float(error) if isinstance(error, int | float) else None,
        grid=frames["grid"],
        decodes=_with_source(_whole(run, "confirm.csv"), _whole(run, "paths.parquet")),
        batch_decodes=_whole(run, "confirm_batch.csv"),
        law_proof=tables.stage("confirm").get("exactness") or {},
        cells=_cells(tables),
        bench=_whole(run, "bench.csv"),
        memory=_memory(tables),
    )


def pooled_grid(tables: RunTables) -> pd.DataFrame:
    """Return the roll-ups of grid.csv; one bucket a temperature costs a tenth of all of them."""
    if tables.walk is None or tables.requests is None:
        return pd.DataFrame(columns=list(GRID_COLUMNS))
    surfaces = None if tables.costs is None else tables.costs.surfaces
    pooled = tables.requests[["request_id"]].assign(task=ALL_TASKS)
    grid = build_grid(tables.walk, pooled, surfaces, [0], seed=int(tables.config.get("seed", 0)))
    return grid.loc[grid["evidence"] == "all"].reset_index(drop=True)


def _cells(tables: RunTables) -> list[tuple[Rule, pd.DataFrame]]:
    if tables.walk is None or tables.requests is None:
        return []
    rows = tables.walk.merge(tables.requests[["request_id", "task"]], on="request_id", how="left")
    return [(rule, rows_of(rule, rows)) for rule in by_traffic(tables.plan.rules)]


def _whole(run: RunDir, name: str) -> pd.DataFrame:
    """A table with all its columns; empty where it was never written."""
    file = run.artefact(name)
    return read_table(file) if file.exists() else pd.DataFrame()


def _with_source(decodes: pd.DataFrame, paths: pd.DataFrame) -> pd.DataFrame:
    """Decodes with their path's `source`, recorded or regenerated; without it where unknown."""
    if decodes.empty or paths.empty or "source" not in paths:
        return decodes
    return decodes.assign(source=decodes["path_id"].map(paths.set_index("path_id")["source"]))


def _timings(tables: RunTables) -> tuple[Timing, ...]:
    """Of the run's own costs; a plan priced with other costs is judged by the plan's warnings."""
    if tables.costs is None:
        return ()
    found = []
    for law, surface in tables.costs.surfaces.items():
        spread = surface.relative_spread()
        found.append(
            Timing(
                law=law,
                ar_spread=spread["ar"],
                round_spread=spread["round"],
                unstable=surface.unstable,
                cost_model_error=tables.costs.fits[law].cost_model_error,
            )
        )
    return tuple(found)


def _memory(tables: RunTables) -> Memory | None:
    """What the model takes, and what the device has; None where the run does not say."""
    device = (tables.manifest.get("provenance") or {}).get("device") or {}
    held = device.get("memory_bytes" if device.get("kind") == "cpu" else "gpu_memory_bytes")
    facts = tables.manifest.get("footprint") or {}
    taken = facts.get("weights_bytes"), facts.get("kv_bytes_per_token")
    if not known(held) or not all(known(size) for size in taken):
        taken = _bytes_read(tables)
    weights, token = taken
    if held is None or not known(held) or weights is None or token is None:
        return None
    return Memory(device_bytes=float(held), weight_bytes=float(weights), token_bytes=float(token))


def _bytes_read(tables: RunTables) -> tuple[float | None, float | None]:
    """Weights and a cached token as a plain step reads them, of runs that kept no footprint.

    A step reads every weight that it uses and the whole cache; that much must be held.
    """
    bandwidth = tables.stage("cost").get("bandwidth") or {}
    rate, floors = bandwidth.get("read_bytes_per_s"), bandwidth.get("floor_s") or {}
    read = sorted((int(at), float(s) * float(rate)) for at, s in floors.items() if s and rate)
    if len(read) < 2:
        return None, None
    (low, at_low), (high, at_high) = read[0], read[-1]
    token = (at_high - at_low) / (high - low)
    return at_low - token * low, token
