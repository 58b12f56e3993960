"""`selfspec calibrate`: the stages in order, over one run directory."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from selfspec_cli.analysis.costs import Costs, price
from selfspec_cli.calibrate.batch_confirm_cells import STAGE as BATCH_STAGE
from selfspec_cli.calibrate.batch_confirm_cells import due as batches_due
from selfspec_cli.calibrate.batch_confirm_stage import run_confirm_batch
from selfspec_cli.calibrate.confirm_cells import rule_cells
from selfspec_cli.calibrate.confirm_stage import Subject, run_confirm
from selfspec_cli.calibrate.cost_stage import cost_plan, run_cost
from selfspec_cli.calibrate.finalist_stage import ARTEFACT, STAGE, misses, run_finalists
from selfspec_cli.calibrate.inputs import Inputs, load_inputs, load_options, template_time
from selfspec_cli.calibrate.observe_stage import run_observe
from selfspec_cli.calibrate.plan_stage import STAGE as PLAN_STAGE
from selfspec_cli.calibrate.plan_stage import draft_plan, finish_plan, is_own
from selfspec_cli.calibrate.progress import Progress, compile_notes
from selfspec_cli.calibrate.sweep_stage import run_sweep, sweep_points
from selfspec_cli.calibrate.walk_stage import run_walk
from selfspec_cli.config import (
    CalibrateConfig,
    analysis_hash,
    beyond_exit_layers,
    measurement_document,
    resolve_draft_lengths,
    resolve_exit_layers,
)
from selfspec_cli.config.hashes import document_hash
from selfspec_cli.engine.footprint import footprint
from selfspec_cli.engine.load import (
    LoadedModel,
    LoadOptions,
    load_model,
    load_tokenizer,
    read_config,
    resolve_device,
    resolve_folder,
)
from selfspec_cli.errors import RunDirError
from selfspec_cli.plan.document import PlanDocument
from selfspec_cli.plan.files import PLAN_FILE, read_plan
from selfspec_cli.provenance import collect, model_fingerprint, trace_fingerprint
from selfspec_cli.replay.setting import Setting
from selfspec_cli.storage import RunDir, read_table
from selfspec_cli.trace import skip_document


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything settled before weights are loaded."""

    config: CalibrateConfig
    options: LoadOptions
    tokenizer: Any
    inputs: Inputs
    now: datetime
    """What chat templates take for the present: when this run began."""
    exit_layers: tuple[int, ...]
    """The range: what a rule may use."""
    beyond: tuple[int, ...]
    """Layers outside the range that are observed too, for the warning at its edges."""
    draft_lengths: tuple[int, ...]
    run: RunDir
    measurement: dict[str, object]

    @property
    def observed_layers(self) -> tuple[int, ...]:
        """The range and what is observed beyond it, ascending."""
        return tuple(sorted({*self.exit_layers, *self.beyond}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a calibration found, for the terminal."""

    run: RunDir
    inputs: Inputs
    costs: Costs
    walk: pd.DataFrame
    grid: pd.DataFrame
    """Rows of grid.csv at the exit layers of the range."""
    plan: PlanDocument
    confirm: pd.DataFrame | None
    sweep: pd.DataFrame | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tables:
    walk: pd.DataFrame
    grid: pd.DataFrame
    confirm: pd.DataFrame | None = None
    sweep: pd.DataFrame | None = None


def prepare_run(config: CalibrateConfig, *, fresh: bool = False) -> Prepared:
    """Settle everything that can fail before weights are loaded; writes nothing.

    Raises:
        SelfspecError: a trace, the configuration, the model's configuration or the output folder
            cannot be used.
    """
    options = load_options(config)
    model_config = read_config(options)
    num_layers = int(model_config.num_hidden_layers)
    exit_layers = resolve_exit_layers(config.exit_layers, num_layers)
    # A sweep decodes cells one by one: layers that no rule may use are not worth that.
    walked = config.sweep == "walk"
    beyond = beyond_exit_layers(config.exit_layers, num_layers) if walked else ()
    draft_lengths = resolve_draft_lengths(config.draft_lengths)
    if config.sweep == "decode":
        sweep_points(config, exit_layers)
    tokenizer = load_tokenizer(options)
    now = template_time(config, fresh=fresh)
    inputs = load_inputs(config, tokenizer, model_config, now=now)
    facts = {
        "model": model_fingerprint(resolve_folder(options.model)),
        "traces": trace_fingerprint(inputs.trace_paths)["sha256"],
        "exit_layers": list(exit_layers),
        "exit_layers_beyond": list(beyond),
        "device": str(resolve_device(config.device)),
    }
    measurement = measurement_document(config, facts)
    run = RunDir.open(
        Path(config.out), document_hash(measurement), measurement=measurement, fresh=fresh
    )
    return Prepared(
        config=config,
        options=options,
        tokenizer=tokenizer,
        inputs=inputs,
        now=now,
        exit_layers=exit_layers,
        beyond=beyond,
        draft_lengths=draft_lengths,
        run=run,
        measurement=measurement,
    )


def calibrate(prepared: Prepared, progress: Progress, argv: Sequence[str] = ()) -> Outcome:
    """Run every stage that is not complete yet; a complete run is only read.

    Raises:
        SelfspecError: the model fails its self-check, or output differed from plain decoding.
    """
    run = prepared.run
    if _decoded(prepared):
        progress.note("this measurement is complete; nothing is decoded again")
        return _from_files(prepared, progress)
    progress.note("loading and checking the model")
    loaded = load(prepared, progress)
    _check_engine(run, loaded)
    for notice in prepared.inputs.notes:
        progress.note(notice)
    _begin(prepared, loaded, argv)
    with _status(run):
        outcome = _stages(prepared, loaded, progress)
        if not prepared.config.include_text:  # shards hold token ids, and are not needed any more
            for stage in ("observe", "confirm", BATCH_STAGE, "sweep"):
                run.clear_shards(stage)
    return outcome


def load(prepared: Prepared, progress: Progress) -> LoadedModel:
    """Load and check the model, telling of every layer program that is compiled, and its notices.

    Raises:
        SelfspecError: the model cannot be loaded or fails its self-check.
    """
    told = compile_notes(progress)
    loaded = load_model(prepared.options, prepared.tokenizer, prepared.observed_layers, told)
    for notice in loaded.notices:
        progress.notice(notice)
    return loaded


def _check_engine(run: RunDir, loaded: LoadedModel) -> None:
    """Refuse to go on with other kernels than those that the run was timed with."""
    before = run.manifest.get("engine")
    if run.resumed and before is not None and before != loaded.view.engine:
        raise RunDirError(
            f"was begun with the {before} engine, and this is the {loaded.view.engine} one",
            where=str(run.path),
            hint="Give another -o, or --fresh to measure again.",
        )


def _last_stage(config: CalibrateConfig) -> str:
    if config.sweep == "decode":
        return "sweep"
    return "confirm" if config.confirm.cells > 0 else "walk"


def _decoded(prepared: Prepared) -> bool:
    """Whether nothing is left to decode or to time."""
    run = prepared.run
    stages = {"observe", "cost", _last_stage(prepared.config)} - {"walk"}
    if batches_due(prepared.config):
        stages.add(BATCH_STAGE)
    # A run that ended in an error, or before its shards were cleared, has all stages but no end.
    ended = run.resumed and run.manifest.get("status") == "done"
    return ended and all(run.stage_done(stage) for stage in stages)


def _from_files(prepared: Prepared, progress: Progress) -> Outcome:
    """Read a run; tables that were computed for other analysis keys are computed again."""
    run, config = prepared.run, prepared.config
    costs = price(
        read_table(run.artefact("cost.csv")),
        run.manifest["stages"]["cost"]["layer_kinds"],
        read_table(run.artefact(ARTEFACT)) if run.stage_done(STAGE) else None,
    )
    _forget_other_analysis(prepared)
    planned = run.stage_done("walk") and run.stage_done(PLAN_STAGE)
    walk, grid = run_walk(run, config, costs, prepared.observed_layers, progress)
    last = _last_stage(config)
    written = last != "walk" and run.artefact(f"{last}.csv").exists()
    table = read_table(run.artefact(f"{last}.csv")) if written else None
    tables = _Tables(walk=walk, grid=grid, **{last: table} if last != "walk" else {})
    plan = read_plan(run.artefact(PLAN_FILE)) if planned else None
    # `selfspec plan -o` may have put a plan of other thresholds or costs in its place.
    if plan is None or not is_own(plan, config):
        plan = finish_plan(run, *draft_plan(run, config), tables.confirm)
    return _outcome(prepared, costs, tables, plan)


def _outcome(prepared: Prepared, costs: Costs, tables: _Tables, plan: PlanDocument) -> Outcome:
    return Outcome(
        run=prepared.run,
        inputs=prepared.inputs,
        costs=costs,
        walk=tables.walk,
        grid=_in_range(prepared, tables.grid),
        plan=plan,
        confirm=tables.confirm,
        sweep=tables.sweep,
    )


def _in_range(prepared: Prepared, grid: pd.DataFrame) -> pd.DataFrame:
    inside = grid["exit_layer"].isin(prepared.exit_layers)
    return grid.loc[inside].reset_index(drop=True)


def _forget_other_analysis(prepared: Prepared) -> None:
    """Mark the walk's tables stale if the analysis keys have changed since."""
    run, wanted = prepared.run, analysis_hash(prepared.config)
    if run.manifest.get("analysis_hash") != wanted:
        for stage in ("walk", PLAN_STAGE):
            run.set_stage(stage, "stale")
        run.update(analysis_hash=wanted, config=prepared.config.model_dump(mode="json"))


def _stages(prepared: Prepared, loaded: LoadedModel, progress: Progress) -> Outcome:
    config, run = prepared.config, prepared.run
    layers, requests = prepared.exit_layers, prepared.inputs.requests
    observed = prepared.observed_layers
    setting = Setting(loaded=loaded, draft_truncation=config.draft_truncation, seed=config.seed)
    shards = run_observe(run, config, setting, requests, observed, progress)
    timing = cost_plan(config, loaded.view, requests, layers)
    costs = run_cost(run, config, loaded.view, timing, progress)
    if misses(costs):
        extra = run_finalists(run, config, loaded.view, timing, costs, progress)
        costs = price(read_table(run.artefact("cost.csv")), loaded.view.layer_kinds, extra)
    walk, grid = run_walk(run, config, costs, observed, progress)
    drafted = draft_plan(run, config)
    confirm = sweep = None
    if config.sweep == "decode":
        sweep = run_sweep(run, config, setting, requests, layers, progress)
    elif config.confirm.cells > 0:
        subject = Subject(
            rules=rule_cells(drafted[1]),
            shards=shards,
            requests=requests,
            exit_layers=observed,
        )
        confirm = run_confirm(run, config, setting, costs, subject, progress)
        if batches_due(config):
            run_confirm_batch(run, config, setting, costs, subject, progress)
    tables = _Tables(walk=walk, grid=grid, confirm=confirm, sweep=sweep)
    return _outcome(prepared, costs, tables, finish_plan(run, *drafted, confirm))


def _begin(prepared: Prepared, loaded: LoadedModel, argv: Sequence[str]) -> None:
    run, inputs, config = prepared.run, prepared.inputs, prepared.config
    if run.resumed:
        _forget_other_analysis(prepared)
    device = loaded.view.device.type
    fingerprint = model_fingerprint(resolve_folder(prepared.options.model))
    run.begin(
        argv=argv,
        measurement=prepared.measurement,
        config=config.model_dump(mode="json"),
        analysis_hash=analysis_hash(config),
        exit_layers_beyond=list(prepared.beyond),
        template_time=prepared.now.isoformat(),
        provenance=collect(traces=inputs.trace_paths, model=fingerprint, device=device),
        seeds={"run": config.seed},
        self_check_error=loaded.self_check_error,
        dtype=str(loaded.view.dtype).removeprefix("torch."),
        engine=loaded.view.engine,
        footprint=footprint(loaded.view),
        eos_token_ids=sorted(loaded.eos_ids),
        notices=list(loaded.notices),
    )
    skipped = skip_document(inputs.skips, inputs.num_left_out)
    run.record_read(read=inputs.num_read, skipped=skipped, notes=inputs.notes)


@contextlib.contextmanager
def _status(run: RunDir) -> Iterator[None]:
    """Record in the manifest whether the run ended or was interrupted; shards always stay."""
    run.update(status="running")
    try:
        yield
    except BaseException:
        run.update(status="incomplete")
        raise
    run.update(status="done")
