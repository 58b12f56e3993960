"""A calibrated run of a tiny model to bench, and the bench's files."""

import json
from pathlib import Path

import pandas as pd
from checkpoints import run_cli

from selfspec_cli.plan.facts import model_revision
from selfspec_cli.plan.files import read_plan, write_plan
from selfspec_cli.provenance import model_fingerprint
from selfspec_cli.storage import read_table

CONFIG = """
exit_layers: 1,2
draft_lengths: 2
observe_batch: 8
confirm: {cells: 0}
"""
TOKENS = 24  # of every output
OWN = ("ar", "plan", "forced")
RIVALS = ("generate", "prompt_lookup", "early_exit_hf")


def calibrated(model: Path, trace: Path, folder: Path) -> Path:
    """A run in which nothing pays: too few requests are no evidence."""
    config = folder / "config.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    run = folder / "run"
    assert run_cli("calibrate", "-c", config, "-m", model, "-t", trace, "-o", run, "-q") in (0, 3)
    return run


def bench(target: Path, model: Path, trace: Path, *more: object) -> int:
    """Run `selfspec bench` quietly; returns the exit code."""
    return run_cli("bench", target, "-m", model, "-t", trace, "-q", *more)


def rows(folder: Path) -> pd.DataFrame:
    return read_table(folder / "bench.csv")


def document(folder: Path) -> dict:
    return json.loads((folder / "bench.json").read_text(encoding="utf-8"))


def of_model(run: Path, path: Path, model: Path) -> Path:
    """A copy of the run's plan that claims to be of another model."""
    plan, found = read_plan(run / "plan.yaml"), model_fingerprint(model)
    facts = {"revision": model_revision(found), "tokenizer_hash": found["tokenizer_sha256"]}
    own = plan.model.model_copy(update=facts)
    write_plan(plan.model_copy(update={"model": own}), path)
    return path


def switched_on(run: Path, path: Path, cell: tuple[int, int]) -> Path:
    """A copy of the run's plan in which every rule is on with one cell."""
    plan = read_plan(run / "plan.yaml")
    on = [
        rule.model_copy(
            update={
                "enabled": True,
                "max_batch": 1,
                "by_batch": [one.model_copy(update={"check": "pass"}) for one in rule.by_batch],
                "drafter": rule.drafter.model_copy(update={"exit_layer": cell[0]}),
                "draft": rule.draft.model_copy(update={"length": cell[1]}),
            }
        )
        for rule in plan.rules
    ]
    write_plan(plan.model_copy(update={"rules": on}), path)
    return path
