"""Stage observe: every request at every temperature becomes a path with its acceptance law.

Recorded text is used where it passes the path-source test of its (task, temperature) bucket and
was written at that temperature; the rest is regenerated (METHOD.md §3).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from selfspec_cli.analysis.path_source import check_by_bucket
from selfspec_cli.buckets import context_band, context_label
from selfspec_cli.calibrate.paths_table import (
    empty_row,
    observations_frame,
    paths_frame,
    requests_frame,
    shard_frame,
)
from selfspec_cli.calibrate.progress import Progress, Stage
from selfspec_cli.config import CalibrateConfig
from selfspec_cli.errors import TraceError
from selfspec_cli.records import PreparedRequest
from selfspec_cli.replay.observe import PathJob, observe
from selfspec_cli.replay.setting import Setting, temperatures_of
from selfspec_cli.storage import RunDir, read_table, write_table

STAGE = "observe"
SHARD_BATCHES = 4  # times as many paths a shard as rows: rows are refilled until a shard's end


def run_observe(
    run: RunDir,
    config: CalibrateConfig,
    setting: Setting,
    requests: Sequence[PreparedRequest],
    exit_layers: Sequence[int],
    progress: Progress,
) -> pd.DataFrame:
    """Write requests.parquet, paths.parquet and observations.parquet; returns the shard rows.

    Shard rows hold token ids; they stay as shards until the run ends, for the decoding stages.
    """
    recorded, rest = plan_paths(config, requests)
    total = sum(job.budget for job in (*recorded, *rest))
    with progress.stage("observe", total) as stage:
        rows = [_observe_all(run, setting, recorded, exit_layers, (None, stage))]
        kept, again, checks = _judge(config, rows[0], recorded, requests, progress)
        side_by_side = (config.observe_batch, stage)
        rows = [kept, _observe_all(run, setting, (*rest, *again), exit_layers, side_by_side)]
    shards = pd.concat([r for r in rows if len(r)], ignore_index=True)
    shards = shards.sort_values("path_id", ignore_index=True)
    if checks:
        progress.note(_told(shards))
    if not run.stage_done(STAGE):
        facts = {
            "recorded_checks": checks,
            "output_window": output_window(config, shards, requests),
        }
        _write(run, config, requests, (shards, exit_layers), facts)
    return shards


def plan_paths(
    config: CalibrateConfig, requests: Sequence[PreparedRequest]
) -> tuple[list[PathJob], list[PathJob]]:
    """Split (request, temperature) pairs into those with usable recorded text and the rest.

    Raises:
        TraceError: only recorded text was asked for and there is none.
    """
    recorded, rest = [], []
    for request in requests:
        for temperature in temperatures_of(request, config.temperatures):
            written_at = request.temperature == temperature
            has_text = bool(request.completion_token_ids) and written_at
            if has_text and config.continuations != "regenerate":
                recorded.append(
                    PathJob(request=request, temperature=temperature, source="recorded")
                )
            elif config.continuations != "recorded":
                job = PathJob(request=request, temperature=temperature, source="regenerated")
                rest.append(job)
    if not recorded and not rest:
        raise TraceError(
            "no request has recorded text at one of the temperatures",
            where="--continuations recorded",
            hint="Use --continuations auto, or give the trace's own temperatures.",
        )
    return recorded, rest


def _observe_all(
    run: RunDir,
    setting: Setting,
    jobs: Sequence[PathJob],
    exit_layers: Sequence[int],
    rows_and_stage: tuple[int | None, Stage],
) -> pd.DataFrame:
    """Observe jobs in groups of like length, one shard a group; finished shards are read.

    The longest begin first: what remains at a group's end is then short.
    """
    rows, stage = rows_and_stage
    frames = []
    ordered = sorted(jobs, key=lambda job: (-job.budget, job.request.prompt_tokens, job.path_id))
    work = [job for job in ordered if job.budget > 0]
    empty = [empty_row(job) for job in ordered if job.budget == 0]
    size = 1 if rows is None else rows * SHARD_BATCHES
    for at in range(0, len(work), size):
        group = work[at : at + size]
        shard = run.shard_path(STAGE, [job.path_id + job.source for job in group])
        if not shard.exists():
            paths = observe(setting, group, exit_layers, stage.advance, rows)
            write_table(shard_frame(paths), shard)
        else:
            stage.advance(sum(job.budget for job in group))
        frames.append(read_table(shard))
    return pd.concat([*frames, pd.DataFrame(empty)], ignore_index=True)


def _judge(
    config: CalibrateConfig,
    rows: pd.DataFrame,
    recorded: Sequence[PathJob],
    requests: Sequence[PreparedRequest],
    progress: Progress,
) -> tuple[pd.DataFrame, list[PathJob], list[dict[str, Any]]]:
    """Keep recorded paths of buckets that pass the source test; the others are regenerated.

    Returns:
        Rows kept, what to regenerate, and the verdict of every bucket with its numbers.
    """
    if not len(rows):
        return rows, [], []
    tasks = pd.DataFrame([{"request_id": r.request_id, "task": r.task} for r in requests])
    checks = check_by_bucket(rows, tasks)
    known = checks.astype(object).where(checks.notna(), None)
    told = [{str(name): value for name, value in row.items()} for row in known.to_dict("records")]
    for check in told:
        if check["verdict"] != "recorded ok":
            progress.note(
                f"recorded text of {check['task']} at T={check['temperature']:g} "
                f"{'is kept as asked' if config.continuations == 'recorded' else 'is regenerated'}"
                f": {check['reason']}"
            )
    if config.continuations == "recorded":
        return rows, [], told
    good = checks.loc[checks["verdict"] == "recorded ok"]
    passed = set(zip(good["task"], good["temperature"], strict=True))
    again = [
        PathJob(request=job.request, temperature=job.temperature, source="regenerated")
        for job in recorded
        if (job.request.task, job.temperature) not in passed
    ]
    dropped = {job.path_id for job in again}
    return rows.loc[~rows["path_id"].isin(dropped)], again, told


def _told(shards: pd.DataFrame) -> str:
    counts = shards["source"].value_counts()
    return (
        f"{counts.get('recorded', 0)} paths are recorded text, "
        f"{counts.get('regenerated', 0)} are regenerated"
    )


def output_window(
    config: CalibrateConfig, shards: pd.DataFrame, requests: Sequence[PreparedRequest]
) -> dict[str, object]:
    """How far into the output this run looked (tokens), for statements about longer ones."""
    lengths = shards["completion_tokens"]
    return {
        "observed_tokens": int(lengths.max()) if len(lengths) else None,
        "median_tokens": float(lengths.median()) if len(lengths) else None,
        "default_max_tokens": config.default_max_tokens,
        "num_default_max_tokens": sum(r.stated_max_tokens is None for r in requests),
    }


def _write(
    run: RunDir,
    config: CalibrateConfig,
    requests: Sequence[PreparedRequest],
    shards_and_exits: tuple[pd.DataFrame, Sequence[int]],
    facts: Mapping[str, object],
) -> None:
    shards, exit_layers = shards_and_exits
    bands = [context_label(*context_band(r.prompt_tokens, config.context_edges)) for r in requests]
    write_table(requests_frame(requests, bands), run.artefact("requests.parquet"))
    write_table(paths_frame(shards), run.artefact("paths.parquet"))
    write_table(observations_frame(shards, exit_layers), run.artefact("observations.parquet"))
    names = ["requests.parquet", "paths.parquet", "observations.parquet"]
    counts = shards["source"].value_counts().to_dict()
    run.finish_stage(STAGE, names, paths=len(shards), sources=counts, **facts)
