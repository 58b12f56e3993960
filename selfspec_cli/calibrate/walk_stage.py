"""Stage walk: every (L, k) of every path priced at once, without a decode."""

from collections.abc import Sequence

import pandas as pd

from selfspec_cli.analysis.grid import build_grid
from selfspec_cli.analysis.observations import acceptance_table, build_paths
from selfspec_cli.analysis.walk import PathCoins, split_walkable, walk
from selfspec_cli.calibrate.cost_stage import Costs
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
        The walk table and the grid.
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
    observations = read_table(run.artefact("observations.parquet"))
    requests = read_table(run.artefact("requests.parquet"))
    paths = read_table(run.artefact("paths.parquet"))
    coins = build_paths(observations, paths, requests, exit_layers)
    walkable, dropped = split_walkable(coins)
    priced, beyond = split_priced(walkable, costs)
    if dropped:
        progress.note(f"{len(dropped)} paths hold a token of probability 0 and are not walked")
    if beyond:
        progress.note(f"{len(beyond)} paths are longer than the contexts timed and not walked")
    lengths = resolve_draft_lengths(config.draft_lengths)
    table = walk(priced, exit_layers, lengths, costs.surfaces)
    grid = build_grid(table, requests, costs.surfaces, config.context_edges, seed=config.seed)
    write_table(table, run.artefact("walk.parquet"))
    write_table(grid, run.artefact("grid.csv"))
    write_table(acceptance_table(observations, requests), run.artefact("acceptance.csv"))
    cells = len(exit_layers) * len(lengths) * table["temperature"].nunique()
    run.finish_stage(
        STAGE,
        ARTEFACTS,
        cells=cells,
        paths=len(priced),
        paths_with_zero_probability=len(dropped),
        paths_beyond_timed_contexts=len(beyond),
    )


def split_priced(
    paths: Sequence[PathCoins], costs: Costs
) -> tuple[list[PathCoins], list[PathCoins]]:
    """Separate paths whose every context was timed; costs are never extrapolated."""
    inside: list[PathCoins] = []
    outside: list[PathCoins] = []
    for path in paths:
        low, high = costs.surfaces[path.law_class].context_range
        last = path.prompt_tokens + max(path.num_tokens - 2, 0)
        (inside if low <= path.prompt_tokens and last <= high else outside).append(path)
    return inside, outside
