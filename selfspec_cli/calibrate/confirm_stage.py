"""Stage confirm: the chosen cells decoded for real, beside plain decoding (METHOD.md §6)."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from selfspec_cli.analysis.confirm_choice import RuleCell
from selfspec_cli.analysis.confirmation import add_predictions, check_exact, check_law
from selfspec_cli.analysis.costs import Costs
from selfspec_cli.calibrate.confirm_cells import STAGE, Chosen, choose_once
from selfspec_cli.calibrate.progress import Progress
from selfspec_cli.config import CalibrateConfig
from selfspec_cli.records import PreparedRequest
from selfspec_cli.replay.confirm import ConfirmPath, confirm_path
from selfspec_cli.replay.decode import Cell
from selfspec_cli.replay.law_proof import POSITIONS, LawProof, observed_laws, prove_law
from selfspec_cli.replay.setting import Setting, derive_seed
from selfspec_cli.storage import RunDir, read_table, write_table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subject:
    """What there is to confirm, and on which paths."""

    rules: Sequence[RuleCell]
    """Of the draft plan (`confirm_cells.rule_cells`)."""
    shards: pd.DataFrame
    """Rows of the observe stage, with token ids."""
    requests: Sequence[PreparedRequest]
    exit_layers: Sequence[int]
    """Layers observed, in the order of the shards' coins."""


def run_confirm(
    run: RunDir,
    config: CalibrateConfig,
    setting: Setting,
    costs: Costs,
    subject: Subject,
    progress: Progress,
) -> pd.DataFrame | None:
    """Write confirm.csv, one row a (path, cell, repeat); a finished path is not decoded again.

    Predictions are on disk and hashed in the manifest before the first decode here: the walk's
    stage must be done. The cells chosen stand in the manifest before they are decoded, so that a
    resumed run decodes the same ones; with them, in the end, stands the proof of exactness at
    temperature > 0.

    Returns:
        The table; None, and no file, where no path has anything to decode.

    Raises:
        ExactnessError: a greedy output differed from plain decoding beyond a numeric tie, or
            sampled rounds do not commit the target's law.
    """
    if not run.stage_done("walk"):
        raise RuntimeError("predictions must be written before they are confirmed")
    if not run.stage_done(STAGE):
        _confirm(run, config, setting, costs, subject, progress)
    facts = run.manifest["stages"][STAGE]
    if not facts["artefacts"]:
        return None
    table = read_table(run.artefact("confirm.csv"))
    check_exact(table)
    check_law(facts["exactness"])
    return table


def _confirm(
    run: RunDir,
    config: CalibrateConfig,
    setting: Setting,
    costs: Costs,
    subject: Subject,
    progress: Progress,
) -> None:
    chosen = choose_once(run, config, subject.rules)
    if not chosen.cells:
        progress.note("no path has anything to draft: nothing is confirmed")
        run.finish_stage(STAGE, [], rows=0)
        return
    if chosen.num_left_out:
        progress.note(
            f"{chosen.num_left_out} cells stay unconfirmed: the budget of {chosen.budget_s:.0f} s "
            f"is used up with {chosen.predicted_s:.0f} s"
        )
    layers = {path_id: own[0][0] for path_id, own in chosen.by_path().items()}
    wanted = list(layers)
    paths = confirm_paths(subject.shards, subject.requests, wanted, subject.exit_layers)
    table = _decode_all(run, config, setting, chosen, paths, progress)
    table = _finished(table, read_table(run.artefact("walk.parquet")), costs, chosen)
    write_table(table, run.artefact("confirm.csv"))
    proof = _prove(setting, _sampled_paths(subject, paths, layers))
    facts = chosen.to_document() | {"rows": len(table), "exactness": proof.to_document()}
    run.finish_stage(STAGE, ["confirm.csv"], **facts)


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


def _decode_all(
    run: RunDir,
    config: CalibrateConfig,
    setting: Setting,
    chosen: Chosen,
    paths: Sequence[ConfirmPath],
    progress: Progress,
) -> pd.DataFrame:
    """Decode every path with the cells of its bucket; one shard a path."""
    by_path, frames = chosen.by_path(), []
    with progress.stage(STAGE, len(paths)) as stage:
        for path in paths:
            todo = [Cell(layer, k) for layer, k in by_path[path.path_id]]
            shard = run.shard_path(STAGE, (path.path_id, todo))
            if not shard.exists():
                rows = confirm_path(setting, path, todo, config.confirm.repeats)
                write_table(pd.DataFrame(rows), shard)
            frames.append(read_table(shard))
            stage.advance()
    return pd.concat(frames, ignore_index=True)


def _finished(
    measured: pd.DataFrame, walk: pd.DataFrame, costs: Costs, chosen: Chosen
) -> pd.DataFrame:
    """Put bucket, role, prices and predictions beside every decode."""
    laws = dict(zip(walk["path_id"], walk["law"], strict=True))
    measured["priced_seconds"] = [
        _price(costs, laws[row["path_id"]], row) for row in measured.to_dict("records")
    ]
    rows = add_predictions(measured.drop(columns=["round_drafted", "round_contexts"]), walk)
    return chosen.label(rows)


def _price(costs: Costs, law: str, row: Mapping[Hashable, Any]) -> float:
    """Cost-model seconds of the rounds that really happened."""
    surface = costs.surfaces[law]
    drafted = np.asarray(row["round_drafted"], dtype=np.int64)
    contexts = np.asarray(row["round_contexts"], dtype=np.float64)
    layer = np.asarray([row["exit_layer"]])
    return float(surface.round_seconds(layer, drafted, contexts).sum())


def _sampled_paths(
    subject: Subject, decoded: Sequence[ConfirmPath], layers: Mapping[str, int]
) -> list[tuple[ConfirmPath, int]]:
    """Paths at temperature > 0 to test the law on, each with an exit layer.

    Those that were decoded; where the budget left every sampled cell out, the observed paths with
    the shortest prompts, at the layer of a rule: the law is proved all the same.
    """
    found = [(path, layers[path.path_id]) for path in decoded if path.temperature > 0]
    if found:
        return found
    rows = subject.shards
    rows = rows.loc[(rows["temperature"] > 0) & (rows["completion_tokens"] > 1)]
    prompts = {request.request_id: request.prompt_tokens for request in subject.requests}
    ordered = rows.assign(prompt_tokens=rows["request_id"].map(prompts)).sort_values(
        ["prompt_tokens", "path_id"]
    )
    wanted = ordered["path_id"].head(POSITIONS).tolist()
    at = {rule.bucket.temperature: rule.cell[0] for rule in subject.rules}
    paths = confirm_paths(rows, subject.requests, wanted, subject.exit_layers)
    return [(path, at.get(path.temperature, subject.exit_layers[0])) for path in paths]


def _prove(setting: Setting, sampled: Sequence[tuple[ConfirmPath, int]]) -> LawProof:
    """Test the accepted/residual law on some paths at temperature > 0."""
    return prove_law(list(observed_laws(setting, sampled)), derive_seed(setting.seed, "law proof"))
