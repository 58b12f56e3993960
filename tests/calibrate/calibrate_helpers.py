"""Command lines, signals and comparisons of run directories."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from selfspec_cli.storage import read_table

REPO = Path(__file__).resolve().parent.parent.parent
CONFIG = """
exit_layers: 1-3
draft_lengths: 1,2
observe_batch: 2
confirm: {cells: 12, requests: 4, min_tokens: 8}
"""
LIGHT = """
exit_layers: 2
draft_lengths: 1
temperatures: 0.7
observe_batch: 1
confirm: {cells: 0}
"""
FINISHED = (0, 3)  # 3: a plan was written, but these few requests are no evidence
TIMED = {
    "seconds", "ar_seconds", "prefill_seconds", "priced_seconds", "predicted_seconds",
    "predicted_ar_seconds", "draft_cost_ratio", "verify_cost_ratio", "overhead_ratio",
    "predicted_speedup", "predicted_speedup_low", "predicted_speedup_high",
    "predicted_request_speedup", "closed_form_speedup", "predicted_slow_share",
    "predicted_p99_ratio",
}  # fmt: skip
"""Columns that hold times or what was computed from them; no two runs agree there."""
TABLES = (
    "requests.parquet", "paths.parquet", "observations.parquet", "walk.parquet", "cost.csv",
    "grid.csv", "acceptance.csv", "confirm.csv", "sweep.csv",
)  # fmt: skip


def command(
    model: Path, trace: Path, folder: Path, *more: object, config_text: str = CONFIG
) -> list[str]:
    """Arguments of a calibration into `folder`/run, with the config above."""
    config = folder / "config.yaml"
    config.write_text(config_text, encoding="utf-8")
    base = ("calibrate", "-c", config, "-m", model, "-t", trace, "-o", folder / "run", "-q")
    return [str(part) for part in (*base, *more)]


def start(argv: list[str]) -> subprocess.Popen:
    """Start the program in an interpreter of its own."""
    # A job that a shell put in the background ignores Ctrl-C, and so would what it starts.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from selfspec_cli.cli.app import main; main()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, *argv],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stop_after_shards(
    argv: list[str], run: Path, stage: str, count: int, number: signal.Signals
) -> tuple[int, str]:
    """Start a run, send a signal once `count` shards of a stage exist; (exit code, stderr)."""
    process = start(argv)
    deadline = time.monotonic() + 120
    while len(shards(run, stage)) < count:
        assert process.poll() is None, f"ended before the signal: {process.communicate()}"
        assert time.monotonic() < deadline, f"{count} shards of {stage} never came"
        time.sleep(0.005)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    return process.returncode, stderr


def shards(run: Path, stage: str) -> list[Path]:
    """Finished shards of a stage."""
    return sorted(p for p in run.glob(f"shards/{stage}/*") if not p.name.startswith("."))


def manifest(run: Path) -> dict:
    return json.loads((run / "manifest.json").read_text(encoding="utf-8"))


def untimed(run: Path, name: str) -> pd.DataFrame:
    """A table of a run without its times."""
    table = read_table(run / name)
    return table.drop(columns=[column for column in table.columns if column in TIMED])


def sorted_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Rows in an order of their own: cells are decoded best first, and best depends on times."""
    keys = [name for name in table.columns if not isinstance(table[name].iloc[0], np.ndarray)]
    return table.sort_values(keys, ignore_index=True)


def shared_decodes(one: pd.DataFrame, other: pd.DataFrame) -> list[pd.DataFrame]:
    """Decodes of the cells that both runs confirmed. Which cells those are follows from times;
    on which paths does not, as all buckets are confirmed here."""
    assert set(one["path_id"]) == set(other["path_id"]), "other paths were confirmed"
    keys = ["path_id", "exit_layer", "draft_length", "repeat"]
    both = one[keys].merge(other[keys])
    return [
        both.merge(table.drop(columns="role"), on=keys).sort_values(keys, ignore_index=True)
        for table in (one, other)
    ]


def assert_same_numbers(one: Path, other: Path) -> None:
    """Compare every table of two runs but for times."""
    compared = 0
    for name in TABLES:
        assert (one / name).exists() == (other / name).exists(), name
        if (one / name).exists():
            tables = [sorted_rows(untimed(run, name)) for run in (one, other)]
            if name == "confirm.csv":
                tables = shared_decodes(*tables)
            pd.testing.assert_frame_equal(*tables, obj=name)
            compared += 1
    assert compared >= 7, f"only {compared} tables compared"


def assert_whole(run: Path) -> None:
    """Every file of a run can be read whole, and nothing temporary is left."""
    for path in run.rglob("*"):
        assert not path.name.endswith(".tmp"), path
        if path.suffix in (".csv", ".parquet"):
            read_table(path)
        elif path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
