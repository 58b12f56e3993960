"""Stage confirm_batch: rules' cells decoded in real batches, static and refilled (METHOD.md §4)."""

import statistics
from collections.abc import Sequence
from typing import Any

import pandas as pd

from selfspec_cli.analysis.batch_confirmation import (
    batch_confirm_told,
    price_passes,
    summarise_batch_confirm,
    with_speedups,
)
from selfspec_cli.analysis.batch_costs import BatchCosts
from selfspec_cli.analysis.confirmation import check_exact
from selfspec_cli.analysis.costs import Costs
from selfspec_cli.calibrate.batch_confirm_cells import (
    STAGE,
    BatchCell,
    ChosenBatches,
    choose_batches_once,
)
from selfspec_cli.calibrate.confirm_stage import Subject, confirm_paths
from selfspec_cli.calibrate.progress import Progress
from selfspec_cli.config import CalibrateConfig
from selfspec_cli.replay.batched import (
    BatchedDecode,
    BatchRun,
    Schedule,
    Stretch,
    committed_of,
    decode_paths,
    seconds_of,
)
from selfspec_cli.replay.confirm import ConfirmPath, first_difference
from selfspec_cli.replay.decode import Cell
from selfspec_cli.replay.setting import Setting
from selfspec_cli.storage import RunDir, read_table, write_table

ARTEFACT = "confirm_batch.csv"


def run_confirm_batch(
    run: RunDir,
    config: CalibrateConfig,
    setting: Setting,
    costs: Costs,
    subject: Subject,
    progress: Progress,
) -> pd.DataFrame | None:
    """Write confirm_batch.csv, one row a (batch size, schedule, cell, repeat).

    What is decoded and what it is predicted to take stand in the manifest, hashed, before the first
    decode. Plain decoding in the same batches runs before and after each cell. A finished
    (batch size, schedule, cell) is not decoded again.

    Returns:
        The table; None, and no file, where no batch can be filled or priced.

    Raises:
        ExactnessError: a greedy request's output in a batch of rounds differed from plain decoding
            of the same batch beyond a numeric tie.
    """
    if not run.stage_done("confirm"):
        raise RuntimeError("cells are confirmed alone before they are decoded in batches")
    if not run.stage_done(STAGE):
        chosen = choose_batches_once(run, config, costs, subject.rules)
        _tell_left_out(chosen, progress)
        table = _decode_all(run, setting, (config, costs, subject), chosen, progress)
        artefacts = []
        if table is not None:
            write_table(table, run.artefact(ARTEFACT))
            artefacts = [ARTEFACT]
        rows = 0 if table is None else len(table)
        run.finish_stage(STAGE, artefacts, **chosen.to_document(), rows=rows)
    if not run.manifest["stages"][STAGE]["artefacts"]:
        return None
    table = read_table(run.artefact(ARTEFACT))
    check_exact(table, ARTEFACT)
    progress.note(batch_confirm_told(summarise_batch_confirm(table)))
    return table


def _tell_left_out(chosen: ChosenBatches, progress: Progress) -> None:
    if chosen.too_few:
        sizes = ", ".join(map(str, chosen.too_few))
        progress.note(f"too few requests of one temperature to fill a batch of {sizes}")
    if chosen.num_left_out:
        progress.note(
            f"{chosen.num_left_out} cells are not decoded in batches: their budget of "
            f"{chosen.budget_s:.0f} s is used up with {chosen.predicted_s:.0f} s"
        )


def _decode_all(
    run: RunDir,
    setting: Setting,
    given: tuple[CalibrateConfig, Costs, Subject],
    chosen: ChosenBatches,
    progress: Progress,
) -> pd.DataFrame | None:
    """Decode every cell in every schedule it is priced for; one shard each."""
    config, costs, subject = given
    todo = [(cell, schedule) for cell in chosen.cells for schedule in cell.predicted]
    frames = []
    with progress.stage(STAGE, len(todo)) as stage:
        for cell, schedule in todo:
            key = (cell.batch_size, schedule, cell.cell, cell.path_ids, config.confirm.repeats)
            shard = run.shard_path(STAGE, key)
            if not shard.exists():
                layers = subject.exit_layers
                paths = confirm_paths(subject.shards, subject.requests, cell.path_ids, layers)
                by_rows = BatchCosts(surfaces=costs.of_law(cell.law))
                rows = [
                    decode_cell(setting, paths, (cell, schedule), by_rows, repeat)
                    for repeat in range(config.confirm.repeats)
                ]
                write_table(with_speedups(pd.DataFrame(rows)), shard)
            frames.append(read_table(shard))
            stage.advance()
    return pd.concat(frames, ignore_index=True) if frames else None


def decode_cell(
    setting: Setting,
    paths: Sequence[ConfirmPath],
    how: tuple[BatchCell, Schedule],
    costs: BatchCosts,
    repeat: int,
) -> dict[str, Any]:
    """Decode paths plainly, with the cell, and plainly again, all in the same batches.

    Args:
        setting: model and choices.
        paths: in the order that makes the batches.
        how: the cell with its prediction, and the schedule to run it in.
        costs: of the paths' law, to price the passes that happen.
        repeat: each has coins of its own.

    Returns:
        A row of confirm_batch.csv but for its speedups (`with_speedups`).
    """
    cell, schedule = how
    pair = Cell(*cell.cell)

    def decode(own: Cell | None) -> BatchedDecode:
        one = BatchRun(batch_size=cell.batch_size, schedule=schedule, cell=own)
        return decode_paths(setting, paths, one, repeat)

    before, run, after = decode(None), decode(pair), decode(None)
    return {
        "batch_size": cell.batch_size,
        "schedule": schedule,
        "temperature": cell.temperature,
        "law": cell.law,
        "exit_layer": pair.exit_layer,
        "draft_length": pair.draft_length,
        "repeat": repeat,
        "num_requests": len(paths),
        **_measured((before, after), run),
        **_priced(costs, pair.exit_layer, before, run),
        **{f"predicted_{k}": v for k, v in cell.predicted[schedule].to_document().items()},
        **_exactness(setting, paths, before, run),
    }


def _measured(plain: tuple[BatchedDecode, BatchedDecode], run: BatchedDecode) -> dict[str, Any]:
    """Seconds and tokens of both sides, whole and with all rows alive; the rest is the tail."""
    return {
        "committed": run.num_committed,
        "rounds": sum(map(len, run.rounds)),
        "passes": len(run.rows_by_pass),
        "plain_passes": len(plain[0].rows_by_pass),
        "plain_seconds": statistics.fmean(one.seconds for one in plain),
        "seconds": run.seconds,
        "plain_full_seconds": statistics.fmean(seconds_of(one.full) for one in plain),
        "plain_full_committed": committed_of(plain[0].full),
        "full_seconds": seconds_of(run.full),
        "full_rounds": _row_passes(run.full),
        "full_committed": committed_of(run.full),
        "prefill_seconds": run.prefill_seconds,
    }


def _priced(
    costs: BatchCosts, exit_layer: int, plain: BatchedDecode, run: BatchedDecode
) -> dict[str, Any]:
    """Cost-model seconds of the passes that happened in the phase that is compared, both sides.

    Refill's full phase is scaled to all steps and rounds, as its measured seconds are.
    """
    return {
        "priced_plain_seconds": _priced_side(costs, None, plain),
        "priced_seconds": _priced_side(costs, exit_layer, run),
    }


def _priced_side(costs: BatchCosts, exit_layer: int | None, run: BatchedDecode) -> float | None:
    own = run.full if run.schedule == "refill" else run.stretches
    seconds, part = price_passes(costs, exit_layer, _passes(own)), _row_passes(own)
    return None if seconds is None or part == 0 else seconds * _row_passes(run.stretches) / part


def _row_passes(stretches: Sequence[Stretch]) -> int:
    """Steps or rounds of single rows: a pass counts once for every row in it."""
    return sum(one.num_rows * len(one.passes) for one in stretches)


def _passes(stretches: Sequence[Stretch]) -> list[tuple[int, int, int]]:
    """Longest draft, context of the longest row, and rows of each pass."""
    return [
        (one.num_drafted, max(one.contexts), len(one.contexts))
        for stretch in stretches
        for one in stretch.passes
    ]


def _exactness(
    setting: Setting, paths: Sequence[ConfirmPath], plain: BatchedDecode, run: BatchedDecode
) -> dict[str, Any]:
    """Row-by-row equality with plain decoding at T = 0, and the worst difference; missing at T > 0.

    A row that differs for another reason than a numeric tie is worse than any tie.
    """
    names = ("exact", "num_ties", "path_id", "first_difference", "top2_gap", "is_tie")
    if paths[0].temperature > 0:
        return dict.fromkeys(names)
    pairs = zip(paths, plain.tokens, run.tokens, strict=True)
    found = [
        (path.path_id, one)
        for path, own, other in pairs
        if (one := first_difference(setting, path.request, own, other)) is not None
    ]
    if not found:
        return dict.fromkeys(names) | {"exact": True, "num_ties": 0}
    path_id, worst = max(found, key=lambda one: one[1].top2_gap - one[1].tolerance)
    ties = sum(one.is_tie for _, one in found)
    values = (False, ties, path_id, worst.position, worst.top2_gap, worst.is_tie)
    return dict(zip(names, values, strict=True))
