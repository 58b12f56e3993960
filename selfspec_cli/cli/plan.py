"""`selfspec plan`: the rules again from a run's files; no model, no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfspec_cli.errors import ConfigError, SelfspecError

if TYPE_CHECKING:
    from selfspec_cli.plan.document import PlanDocument
    from selfspec_cli.plan.settings import PlanSettings
    from selfspec_cli.storage import RunDir


def plan(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a calibration.")],
    *,
    cost: Annotated[
        Path | None, typer.Option("--cost", help="cost.csv measured on another machine or engine.")
    ] = None,
    margin: Annotated[
        float | None, typer.Option(help="Enable where the lower bound is at least 1 + this.")
    ] = None,
    min_requests: Annotated[
        int | None, typer.Option(help="Requests a bucket needs to rest on its own.")
    ] = None,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="TASK", help="Every number of a task.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="plan.yaml to write; else it is printed.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Plan again from a finished run: other costs, margins or minimums.

    Example: selfspec plan reports/demo --margin 0.1 --explain code -o plan.yaml

    Reads the run's files; writes nothing but -o. Exit codes: 0 done, 2 usage or input error.
    """
    from selfspec_cli.storage import RunDir

    source = RunDir.load(run)  # what can be refused at once is, before anything slow is imported
    if out is not None:
        _check_out(out)
    from selfspec_cli.plan.settings import PlanSettings

    settings = PlanSettings.of_run(source, margin=margin, min_requests=min_requests)
    from selfspec_cli.plan.explain import explain_task
    from selfspec_cli.plan.files import plan_data, write_plan

    document = _planned(source, cost, settings)
    paragraphs = [] if explain is None else explain_task(document, explain)
    if out is not None:
        write_plan(document, out)
        _record(source, out, document)
    if as_json:
        typer.echo(json.dumps(plan_data(document), allow_nan=False))
        return
    from selfspec_cli.cli.plan_output import print_plan

    print_plan(document, paragraphs, str(out) if out is not None else None)


def _planned(run: RunDir, cost: Path | None, settings: PlanSettings) -> PlanDocument:
    from selfspec_cli.plan.confirming import MeasuredCell, apply_confirmation
    from selfspec_cli.plan.inputs import load_plan_inputs
    from selfspec_cli.plan.planner import basis_of, draft_plan

    basis = basis_of(load_plan_inputs(run, cost), settings)
    draft = draft_plan(basis)
    measured = MeasuredCell.of_run(run)
    # What this machine measured says nothing of the machine whose costs were given.
    return apply_confirmation(draft, measured if cost is None else [], basis)


def _check_out(out: Path) -> None:
    """Refuse, before anything is computed, a place that cannot hold the plan or holds another file.

    Raises:
        ConfigError: unknown suffix, a missing folder, or a file that is no plan.
    """
    if out.suffix not in (".yaml", ".yml", ".json"):
        raise ConfigError("a plan is a .yaml or .json file", where=f"-o {out}")
    if not out.absolute().parent.is_dir():
        raise ConfigError("the folder does not exist", where=f"-o {out}", hint="Create it first.")
    if out.exists() and not _is_plan(out):
        raise ConfigError(
            "exists and holds no plan; it is left alone", where=f"-o {out}", hint="Give another -o."
        )


def _is_plan(path: Path) -> bool:
    from selfspec_cli.storage import read_document

    try:
        found = read_document(path)
    except SelfspecError:
        return False
    return isinstance(found, dict) and "rules" in found and "schema_version" in found


def _record(run: RunDir, out: Path, document: PlanDocument) -> None:
    """Tell the manifest where the run's own plan was replaced: its hash stands there."""
    from selfspec_cli.plan.files import PLAN_FILE

    own = run.artefact(PLAN_FILE)
    if own.exists() and out.resolve() == own.resolve():
        run.finish_stage("plan", [PLAN_FILE], verdict=document.verdict, rules=len(document.rules))
