"""Stage walk: every (L, k) of every path priced at once, without a decode."""

from collections.abc import Sequence

import pandas as pd

from selfspec_cli.analysis.costs import Costs
from selfspec_cli.analysis.grid import build_grid
from selfspec_cli.analysis.observations import acceptance_table
from selfspec_cli.analysis.run_walk import walk_paths
from selfspec_cli.calibrate.progress import Progress
from selfspec_cli.config import CalibrateConfig, resolve_draft_lengths
from selfspec_cli.storage import RunDir, read_table, write_table

STAGE = "walk"
ARTEFACTS = ("walk.parquet", "grid.csv", "acceptance.csv")


def run_walk(
    run: RunDir,
    config: CalibrateConfig,
    costs: Costs,
    exit_layers: Sequence[int],
    progress: Progress,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Write walk.parquet, grid.csv and acceptance.csv, hash them into the manifest.

    Returns:
        The walk table at the base batch size, and the grid at every measured one.
    """
    if not run.stage_done(STAGE):
        _write(run, config, costs, exit_layers, progress)
    return read_table(run.artefact("walk.parquet")), read_table(run.artefact("grid.csv"))


def _write(
    run: RunDir,
    config: CalibrateConfig,
    costs: Costs,
    exit_layers: Sequence[int],
    progress: Progress,
) -> None:
    lengths = resolve_draft_lengths(config.draft_lengths)
    table, left_out = walk_paths(run, costs, exit_layers, lengths)
    for reason, count in left_out.items():
        if count:
            progress.note(f"{count} paths are not walked: {reason.replace('_', ' ')}")
    observations = read_table(run.artefact("observations.parquet"))
    requests = read_table(run.artefact("requests.parquet"))
    grid = build_grid(
        table,
        requests,
        costs.surfaces,
        config.context_edges,
        seed=config.seed,
        by_batch=costs.by_batch,
    )
    write_table(table, run.artefact("walk.parquet"))
    write_table(grid, run.artefact("grid.csv"))
    write_table(acceptance_table(observations, requests), run.artefact("acceptance.csv"))
    cells = len(exit_layers) * len(lengths) * table["temperature"].nunique()
    run.finish_stage(
        STAGE,
        ARTEFACTS,
        cells=cells,
        paths=table["path_id"].nunique(),
        not_walked=left_out,
    )
