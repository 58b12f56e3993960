"""Stage sweep: `--sweep decode` runs the complete decoder over every (L, k, T) cell."""

from collections.abc import Sequence

import pandas as pd

from selfspec_cli.analysis.confirmation import check_exact
from selfspec_cli.calibrate.progress import Progress
from selfspec_cli.config import CalibrateConfig, resolve_draft_lengths
from selfspec_cli.errors import ConfigError
from selfspec_cli.records import GridPoint, PreparedRequest
from selfspec_cli.replay.setting import Setting
from selfspec_cli.replay.sweep import sweep_cell
from selfspec_cli.storage import RunDir, read_table, write_table

STAGE = "sweep"


def sweep_points(config: CalibrateConfig, exit_layers: Sequence[int]) -> list[GridPoint]:
    """Every cell of the grid, in a fixed order.

    Raises:
        ConfigError: temperatures are the trace's own, so cells are not the same for all requests.
    """
    if isinstance(config.temperatures, str):
        raise ConfigError(
            "decoding every cell needs temperatures to sweep",
            where="--temperatures trace",
            hint="Give numbers, for example --temperatures 0,0.7, or use --sweep walk.",
        )
    return [
        GridPoint(exit_layer=layer, draft_length=k, temperature=temperature)
        for temperature in config.temperatures
        for layer in exit_layers
        for k in resolve_draft_lengths(config.draft_lengths)
    ]


def run_sweep(
    run: RunDir,
    config: CalibrateConfig,
    setting: Setting,
    requests: Sequence[PreparedRequest],
    exit_layers: Sequence[int],
    progress: Progress,
) -> pd.DataFrame:
    """Write sweep.csv, one row a (cell, request); finished cells are not decoded again.

    Raises:
        ExactnessError: a greedy output differed from plain decoding beyond a numeric tie.
    """
    points = sweep_points(config, exit_layers)
    if not run.stage_done(STAGE):
        frames = []
        with progress.stage("sweep", len(points)) as stage:
            for point in points:
                shard = run.shard_path(STAGE, point)
                if not shard.exists():
                    write_table(pd.DataFrame(sweep_cell(setting, requests, point)), shard)
                frames.append(read_table(shard))
                stage.advance()
        write_table(pd.concat(frames, ignore_index=True), run.artefact("sweep.csv"))
        run.finish_stage(STAGE, ["sweep.csv"], cells=len(points))
    table = read_table(run.artefact("sweep.csv"))
    check_exact(table.assign(path_id=table["request_id"]))
    return table
