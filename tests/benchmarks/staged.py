"""Long benchmarks in short sittings: a calibration and decodes that go on where they stopped.

A sitting works for a given time and ends with code 75 while something is left; the same command
goes on. So a machine has to be quiet for a minute or two at a time only.
"""

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from selfspec_cli.calibrate.confirm_stage import confirm_paths
from selfspec_cli.calibrate.run import Outcome, Prepared, calibrate, load, prepare_run
from selfspec_cli.config import CalibrateConfig
from selfspec_cli.engine.load import quiet_library
from selfspec_cli.replay.confirm import ConfirmPath
from selfspec_cli.replay.setting import Setting
from selfspec_cli.storage import RunDir, read_table, write_table

UNFINISHED = 75  # EX_TEMPFAIL
LEFT_FOR_A_SHARD = 10.0  # seconds that no new shard is begun before the end


class TimeUp(BaseException):
    """This sitting is over. No Exception: nothing on the way may take it for a failure."""


@dataclass(frozen=True, slots=True)
class Sitting:
    """Until when this process works, seconds of the monotonic clock."""

    until: float

    def check(self) -> None:
        """Raises TimeUp where no time is left for another shard."""
        if time.monotonic() > self.until - LEFT_FOR_A_SHARD:
            raise TimeUp


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A finished calibration with its model, ready to decode; without one, only to be read."""

    prepared: Prepared
    outcome: Outcome
    loaded: Setting | None

    @property
    def setting(self) -> Setting:
        """Raises TimeUp where no model was loaded: nothing may be decoded."""
        if self.loaded is None:
            raise TimeUp
        return self.loaded

    @property
    def run(self) -> RunDir:
        """The run directory."""
        return self.prepared.run

    def paths(self) -> list[ConfirmPath]:
        """Every observed path with something to draft, in order of its id."""
        shards = pd.concat([read_table(one) for one in self.run.finished_shards("observe")])
        usable = set(self.outcome.walk.loc[self.outcome.walk["committed"] > 0, "path_id"])
        wanted = [one for one in sorted(shards["path_id"]) if one in usable]
        layers = self.prepared.observed_layers
        return confirm_paths(shards, self.prepared.inputs.requests, wanted, layers)

    def table(
        self, key: object, make: Callable[[], pd.DataFrame], sitting: Sitting
    ) -> pd.DataFrame:
        """A shard of the benchmark: read where it is there, else made and kept."""
        shard = self.run.shard_path("benchmark", key)
        if not shard.exists():
            if self.loaded is None:
                raise TimeUp
            sitting.check()
            write_table(make(), shard)
        return read_table(shard)


class Lines:
    """Progress as lines on stderr."""

    def stage(self, name: str, total: float) -> AbstractContextManager["Lines"]:
        self.note(f"{name}: {total:g}")
        return nullcontext(self)

    def advance(self, amount: float = 1) -> None:
        """Say nothing."""

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    notice = note


def calibrated(config: CalibrateConfig, *, so_far: bool = False) -> Stage:
    """Calibrate, or go on, or read what is finished; then load the model.

    Observed token ids must be kept (`include_text`): the benchmarks decode those paths again.

    Args:
        config: the calibration.
        so_far: only read a finished calibration, without its model.
    """
    quiet_library()
    prepared = prepare_run(config)
    if so_far and prepared.run.manifest.get("status") != "done":
        raise TimeUp
    outcome = calibrate(prepared, Lines())
    if so_far:
        return Stage(prepared=prepared, outcome=outcome, loaded=None)
    loaded = load(prepared, Lines())
    setting = Setting(loaded=loaded, draft_truncation=config.draft_truncation, seed=config.seed)
    return Stage(prepared=prepared, outcome=outcome, loaded=setting)


def sit(seconds: float, work: Callable[[Sitting], None]) -> None:
    """Do `work` for about so long; exit with 75 while it is not done."""

    def over(*_: object) -> None:
        raise TimeUp

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        work(Sitting(time.monotonic() + seconds))
    except TimeUp:
        print("not done yet: run the same command again", file=sys.stderr)
        sys.exit(UNFINISHED)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def write_json(path: Path | None, run: RunDir, document: Mapping[str, Any]) -> None:
    """Write a result file, if one is wanted, with what the run says its times depend on."""
    if path is None:
        return
    facts = run.manifest["provenance"]
    kept = {name: facts[name] for name in ("device", "libraries", "platform")}
    head = {**kept, "engine": run.manifest["engine"]}
    text = json.dumps({**head, **document}, indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
