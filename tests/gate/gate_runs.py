"""Runs for the gate: one that passes, and copies of it with something changed."""

import shutil
from datetime import date
from pathlib import Path

from report_runs import LAYERS, make_run

from selfspec_cli.gate.rules import GateRules
from selfspec_cli.gate.today import Today
from selfspec_cli.storage import (
    RunDir,
    file_sha256,
    read_document,
    read_table,
    write_document,
    write_table,
)

DAY = date(2026, 1, 31)
FOOTPRINT = {
    "weights_bytes": 2**30, "kv_bytes_per_token": 2**20, "logits_bytes_per_position": 2**18,
}  # fmt: skip
PROOF = {
    "positions": 6, "draws": 20000, "checked": 600, "disagreements": 0, "smallest_p": 0.01,
    "alarm_level": 1.7e-05, "false_alarm": 0.0001, "passed": True,
}  # fmt: skip
RULES = GateRules().replaced("enough_requests", {"min_requests": 10})
HERE = Today(
    day=DAY,
    device={"kind": "cpu", "processor": "Test", "cores": 2, "memory_bytes": 2**33},
    libraries={"torch": "2.0", "numpy": "2.0"},
)


def passing_run(folder: Path) -> Path:
    """A run whose one task gains at both temperatures, proved and dated."""
    make_run(folder, {"code": 0.95}, requests_per_task=14, tokens=24)
    _decode_the_plans_cells(RunDir.load(folder))
    run = RunDir.load(folder)
    confirm = {**run.manifest["stages"]["confirm"], "exactness": PROOF}
    run.update(
        stages={**run.manifest["stages"], "confirm": confirm},
        footprint=FOOTPRINT,
        template_time=f"{DAY.isoformat()}T00:00:00",
    )
    return change_plan(folder, lambda plan: plan["traces"].update(date=DAY.isoformat()))


def _decode_the_plans_cells(run: RunDir) -> None:
    """Let the quicker of the two decoded cells be the one that the plan chose."""
    table = read_table(run.artefact("confirm.csv"))
    rule = read_document(run.artefact("plan.yaml"))["rules"][0]
    quick = table["exit_layer"] == LAYERS[1]
    table.loc[quick, "exit_layer"] = rule["drafter"]["exit_layer"]
    table.loc[quick, "draft_length"] = rule["draft"]["length"]
    table["role"] = table["role"].mask(quick, "rule").mask(~quick, "spread")
    rewrite(run.path, "confirm.csv", table)


def rewrite(folder: Path, name: str, table) -> Path:
    """Write a table as the run itself would, its hash in the manifest."""
    run = RunDir.load(folder)
    write_table(table, run.artefact(name))
    artefacts = run.manifest["artefacts"]
    artefacts[name] = {"sha256": file_sha256(run.artefact(name)), "bytes": 1}
    run.update(artefacts=artefacts)
    return folder


def copy_of(run: Path, folder: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(run, folder / "run"))


def change_plan(run: Path, edit) -> Path:
    """Edit plan.yaml as plain values."""
    plan = read_document(run / "plan.yaml")
    edit(plan)
    write_document(plan, run / "plan.yaml")
    return run


def change_manifest(run: Path, edit) -> Path:
    """Edit manifest.json as plain values."""
    manifest = read_document(run / "manifest.json")
    edit(manifest)
    write_document(manifest, run / "manifest.json")
    return run


def without_rules(plan) -> None:
    """Turn every rule off, as a plan of a model that does not gain."""
    for rule in plan["rules"]:
        rule.update(enabled=False, max_batch=None)
    plan["total"].update(num_enabled=0)
    plan["verdict"] = "do not enable"
