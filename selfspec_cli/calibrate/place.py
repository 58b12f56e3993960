"""Checks that need no torch, made before anything slow is imported or loaded."""

from pathlib import Path

from selfspec_cli.config import CalibrateConfig, resolve_draft_lengths, resolve_trace
from selfspec_cli.errors import ConfigError, TraceError
from selfspec_cli.storage import RunDir


def check_places(config: CalibrateConfig, *, fresh: bool = False) -> None:
    """Refuse an unusable output folder or a missing trace at once.

    Whose run an existing folder holds is asked later, when the measurement is known.

    Raises:
        RunDirError: the folder's parent is missing, it is a file, full of something else, or
            cannot be written.
        ConfigError: the tokenizer's folder is missing.
        TraceError: a trace file is missing.
    """
    resolve_draft_lengths(config.draft_lengths)
    path = Path(config.out)
    if fresh or not (path / "manifest.json").exists():
        RunDir.open(path, "", fresh=fresh)
    if config.tokenizer is not None and not Path(config.tokenizer).is_dir():
        raise ConfigError("no such folder", where=f"--tokenizer {config.tokenizer}")
    for name in config.traces:
        trace = resolve_trace(name)
        if not trace.exists():
            raise TraceError("no such trace file", where=f"-t {name}")
