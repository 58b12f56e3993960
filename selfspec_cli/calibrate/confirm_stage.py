"""Stage confirm: the chosen cells decoded for real, beside plain decoding (METHOD.md §6)."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from selfspec_cli.analysis.confirmation import add_predictions, choose_cells, choose_paths
from selfspec_cli.analysis.costs import Costs
from selfspec_cli.calibrate.progress import Progress
from selfspec_cli.config import CalibrateConfig
from selfspec_cli.errors import ExactnessError
from selfspec_cli.records import PreparedRequest
from selfspec_cli.replay.confirm import ConfirmPath, confirm_path
from selfspec_cli.replay.decode import Cell
from selfspec_cli.replay.setting import Setting
from selfspec_cli.storage import RunDir, read_table, write_table

STAGE = "confirm"


def run_confirm(
    run: RunDir,
    config: CalibrateConfig,
    setting: Setting,
    costs: Costs,
    paths: Sequence[ConfirmPath],
    progress: Progress,
) -> pd.DataFrame | None:
    """Write confirm.csv, one row a (path, cell, repeat); a finished path is not decoded again.

    Predictions are on disk and hashed in the manifest before the first decode here: the walk's
    stage must be done.

    Returns:
        The table; None, and no file, where no path has anything to decode.

    Raises:
        ExactnessError: a greedy output differed from plain decoding beyond a numeric tie.
    """
    if not run.stage_done("walk"):
        raise RuntimeError("predictions must be written before they are confirmed")
    if not paths:
        progress.note("no path has anything to draft: nothing is confirmed")
        run.finish_stage(STAGE, [], rows=0)
        return None
    if not run.stage_done(STAGE):
        table = _decode_all(run, config, setting, costs, paths, progress)
        write_table(table, run.artefact("confirm.csv"))
        run.finish_stage(STAGE, ["confirm.csv"], rows=len(table))
    table = read_table(run.artefact("confirm.csv"))
    check_exact(table)
    return table


def confirm_paths(
    shards: pd.DataFrame,
    requests: Sequence[PreparedRequest],
    wanted: Sequence[str],
    exit_layers: Sequence[int],
) -> list[ConfirmPath]:
    """Paths to decode, rebuilt from their shard rows, in the order of `wanted`."""
    by_id = {request.request_id: request for request in requests}
    rows = {row["path_id"]: row for row in shards.to_dict("records") if row["path_id"] in wanted}
    found = []
    for path_id in wanted:
        row = rows[path_id]
        n = int(row["completion_tokens"])
        given = np.asarray(row["accept_given_path"], dtype=np.float64)
        coins = given.reshape(len(exit_layers), n - 1)
        found.append(
            ConfirmPath(
                path_id=path_id,
                request=by_id[row["request_id"]],
                temperature=float(row["temperature"]),
                tokens=tuple(int(token) for token in row["tokens"]),
                budget=int(row["budget"]),
                accept_given_path={
                    layer: (0.0, *coin) for layer, coin in zip(exit_layers, coins, strict=True)
                },
            )
        )
    return found


def choose(
    config: CalibrateConfig, walk: pd.DataFrame, grid: pd.DataFrame, exit_layers: Sequence[int]
) -> tuple[pd.DataFrame, list[str]]:
    """Cells to confirm, within `exit_layers`, and the path_ids to confirm them on."""
    cells = choose_cells(grid.loc[grid["exit_layer"].isin(exit_layers)], config.confirm.cells)
    wanted = [
        path_id
        for temperature in sorted(cells["temperature"].unique())
        for path_id in choose_paths(
            walk, temperature, config.confirm.requests, config.confirm.min_tokens
        )
    ]
    return cells, wanted


def _decode_all(
    run: RunDir,
    config: CalibrateConfig,
    setting: Setting,
    costs: Costs,
    paths: Sequence[ConfirmPath],
    progress: Progress,
) -> pd.DataFrame:
    walk = read_table(run.artefact("walk.parquet"))
    layers = run.manifest["measurement"]["exit_layers"]
    cells, _ = choose(config, walk, read_table(run.artefact("grid.csv")), layers)
    frames = []
    with progress.stage("confirm", len(paths)) as stage:
        for path in paths:
            own = cells.loc[cells["temperature"] == path.temperature]
            pairs = own[["exit_layer", "draft_length"]].to_numpy(dtype=int).tolist()
            todo = [Cell(layer, k) for layer, k in pairs]
            shard = run.shard_path(STAGE, (path.path_id, todo))
            if not shard.exists():
                rows = confirm_path(setting, path, todo, config.confirm.repeats)
                write_table(pd.DataFrame(rows), shard)
            frames.append(read_table(shard))
            stage.advance()
    measured = pd.concat(frames, ignore_index=True)
    laws = dict(zip(walk["path_id"], walk["law"], strict=True))
    measured["priced_seconds"] = [
        _price(costs, laws[row["path_id"]], row) for row in measured.to_dict("records")
    ]
    return add_predictions(measured.drop(columns=["round_drafted", "round_contexts"]), walk)


def _price(costs: Costs, law: str, row: Mapping[Hashable, Any]) -> float:
    """Cost-model seconds of the rounds that really happened."""
    surface = costs.surfaces[law]
    drafted = np.asarray(row["round_drafted"], dtype=np.int64)
    contexts = np.asarray(row["round_contexts"], dtype=np.float64)
    layer = np.asarray([row["exit_layer"]])
    return float(surface.round_seconds(layer, drafted, contexts).sum())


def check_exact(confirm: pd.DataFrame) -> None:
    """Refuse to go on where greedy output differed.

    Raises:
        ExactnessError: names the first such decode and how many there are.
    """
    greedy = confirm.loc[confirm["temperature"] == 0.0]
    wrong = greedy.loc[~greedy["exact"].eq(True) & ~greedy["is_tie"].eq(True)]
    if len(wrong):
        first = wrong.iloc[0]
        raise ExactnessError(
            f"{len(wrong)} of {len(greedy)} greedy decodes differ from plain decoding; the first "
            f"at exit layer {first['exit_layer']}, draft length {first['draft_length']}, output "
            f"position {first['first_difference']:.0f} (top-2 gap {first['top2_gap']:.3g})",
            where=str(first["path_id"]),
            hint="This is a bug or an unsupported model; do not serve with it. "
            "All differences are in confirm.csv.",
        )
