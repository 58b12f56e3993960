"""Full replay of one cell: the complete decoder over every request, and plain decoding beside it.

The slow truth that the walk replaces. Nothing here reads observations, so it stays honest where
the walk is not exact.
"""

from collections.abc import Sequence
from typing import Any

from selfspec_cli.cost.clock import Clock, Stopwatch
from selfspec_cli.engine.decoder import Decoder
from selfspec_cli.records import GridPoint, PreparedRequest
from selfspec_cli.replay.confirm import exactness_columns
from selfspec_cli.replay.decode import Cell, decode, round_totals
from selfspec_cli.replay.setting import Setting, derive_seed


def sweep_cell(
    setting: Setting,
    requests: Sequence[PreparedRequest],
    point: GridPoint,
    clock: Stopwatch | None = None,
) -> list[dict[str, Any]]:
    """Decode every request at one (L, k, T), each beside its own plain decode.

    Returns:
        Rows of sweep.csv, one a request: counts, committed tokens and seconds of both, and at
        T = 0 whether they are equal. At T > 0 the two write texts of their own, so seconds are
        to be compared per committed token.
    """
    clock = clock or Clock.for_device(setting.loaded.view.device)
    return [_one(setting, request, point, clock) for request in requests if request.max_tokens > 0]


def _one(
    setting: Setting, request: PreparedRequest, point: GridPoint, clock: Stopwatch
) -> dict[str, Any]:
    cell = Cell(point.exit_layer, point.draft_length)
    policies = [
        setting.policy(request, point.temperature, "sweep", way, max_draft=point.draft_length)
        for way in (None, cell)
    ]
    job = setting.job(request)
    # x_0 comes from the speculative side's policy; both sides go on from it.
    state = Decoder(setting.loaded.view, job, policies[1], max_draft=point.draft_length)
    state.prefill()
    first = derive_seed(request.request_id, cell) % 2  # neither side always goes first
    ways = (None, cell) if first else (cell, None)
    runs = {way: decode(state, policies[way is not None], way, clock) for way in ways}
    plain, run = runs[None], runs[cell]
    row = {
        "request_id": request.request_id,
        "group_id": request.group_id,
        "task": request.task,
        "prompt_tokens": request.prompt_tokens,
        "temperature": point.temperature,
        "exit_layer": point.exit_layer,
        "draft_length": point.draft_length,
        **round_totals(run.rounds),
        "committed": run.num_committed,
        "seconds": run.seconds,
        "ar_committed": plain.num_committed,
        "ar_seconds": plain.seconds,
    }
    return row | exactness_columns(setting, request, point.temperature, plain, run)
