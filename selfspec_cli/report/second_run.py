"""Read a second run as traffic to hold a plan against: same model, same way of accepting."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from selfspec_cli.analysis.walk import COLUMNS as WALK_COLUMNS
from selfspec_cli.config.hashes import document_hash
from selfspec_cli.errors import StorageError
from selfspec_cli.report.differing import differing, refuse_different
from selfspec_cli.storage import RunDir, read_table

_MEASUREMENT = ("acceptance", "draft_truncation", "tokenizer", "chat_template")


def second_walk(path: Path, manifest: Mapping[str, Any], where: str = "--traffic") -> pd.DataFrame:
    """Return the walk rows of a second run with the task of each request; its plan is not read.

    Args:
        path: the second run's folder.
        manifest: of the run that has the plan.
        where: the option that named `path`, for messages.

    Raises:
        RunDirError: `path` holds no run.
        StorageError: it ended before its walk, or a file is missing or torn.
        ComparisonError: another model, tokenizer or kind of acceptance; names the first key that
            differs, with both values.
    """
    run = RunDir.load(path)
    refuse_different(
        differing(_identity(manifest), _identity(run.manifest)),
        where=f"{where} {path}",
        hint="Calibrate the second trace with the same model and the same options.",
    )
    for name in ("walk.parquet", "requests.parquet"):
        if not run.artefact(name).exists():
            raise StorageError(
                f"the second run has no {name}",
                where=f"{where} {path}",
                hint="It ended before its walk: run the same `selfspec calibrate` command again.",
            )
    tasks = read_table(run.artefact("requests.parquet"), ["request_id", "task"])
    walk = read_table(run.artefact("walk.parquet"), WALK_COLUMNS)
    return walk.merge(tasks, on="request_id", how="left")


def _identity(manifest: Mapping[str, Any]) -> dict[str, object]:
    """What decides which drafts are accepted, besides the traffic."""
    model = (manifest.get("provenance") or {}).get("model") or {}
    measurement = manifest.get("measurement") or {}
    weights = model.get("weights")
    return {
        "config_sha256": model.get("config_sha256"),
        "weights": None if weights is None else document_hash({"weights": weights}),
        "tokenizer_sha256": model.get("tokenizer_sha256"),
        "dtype": manifest.get("dtype"),
        **{key: measurement.get(key) for key in _MEASUREMENT},
    }
