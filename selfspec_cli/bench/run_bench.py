"""`selfspec bench RUN|PLAN -t TRACES`: from a plan and traces to bench.csv and bench.json."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from selfspec_cli.bench.arms import EARLY_EXIT, RIVALS
from selfspec_cli.bench.choose import Chosen, Limits, cells_of, choose_items
from selfspec_cli.bench.estimate import Estimate, growth_of, planned_s, within_budget
from selfspec_cli.bench.measure import Bench, Found
from selfspec_cli.bench.measure_batch import Batch, batch_of
from selfspec_cli.bench.memory import Memory, weight_bytes
from selfspec_cli.bench.probe import probe, probe_steps
from selfspec_cli.bench.results import BenchRun, bench_rows, difference_document
from selfspec_cli.bench.rivals import Rivals
from selfspec_cli.bench.subject import Subject, check_model, check_tokenizer, unknown_place
from selfspec_cli.bench.turns import Done, Window, take_turns, turns_of
from selfspec_cli.calibrate.inputs import Inputs, load_inputs, load_options
from selfspec_cli.calibrate.progress import Progress, compile_notes
from selfspec_cli.cost.clock import Clock
from selfspec_cli.cost.memory import free_bytes
from selfspec_cli.engine.load import (
    LoadedModel,
    LoadOptions,
    load_model,
    load_tokenizer,
    read_config,
    resolve_folder,
)
from selfspec_cli.errors import ModelError, TraceError
from selfspec_cli.provenance import collect, model_fingerprint, trace_fingerprint
from selfspec_cli.replay.setting import Setting
from selfspec_cli.storage import SCHEMA_VERSION, file_sha256
from selfspec_cli.storage.place import without_folders

COPY_ROOM = 1.5  # free memory a second copy of the weights needs, times their size


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchWish:
    """What a bench is asked to do, beyond whose plan and which traces."""

    limits: Limits
    model_asked: bool
    """Whether the model was given by hand."""
    price_per_hour: float | None = None
    """Of the machine, in any currency; kept for the summary."""
    argv: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """Everything settled and loaded."""

    inputs: Inputs
    chosen: Chosen
    batches: tuple[Batch, ...]
    bench: Bench
    window: Window
    fingerprint: dict[str, object]
    notes: tuple[str, ...]


def run_bench(subject: Subject, wish: BenchWish, progress: Progress) -> BenchRun:
    """Decode requests of the traces with every arm.

    A signal (Ctrl-C, SIGTERM) ends the decoding; the requests that every arm decoded by then are
    returned with it. Before the first one it is raised.

    Args:
        subject: the plan and how requests are read.
        wish: how much, and in which batches.
        progress: told of every stage.

    Raises:
        SelfspecError: the model is not the plan's, or a trace or the model cannot be used.
    """
    ready = _prepare(subject, wish, progress)
    engine = ready.bench.setting.loaded.notices
    for note in ready.notes:
        (progress.notice if note in engine else progress.note)(note)
    done = _measure(ready, wish.limits, progress)
    notes = (*ready.notes, *_after(ready, done.found))
    table = bench_rows(row for one in done.found for row in one.rows)
    differences = [pair for one in done.found for pair in one.differences]
    document = _document(subject, wish, ready) | {
        **done.taken.to_document(),
        "notes": list(notes),
        "differences": [difference_document(*pair) for pair in differences],
    }
    return BenchRun(
        table=table,
        notes=notes,
        document=without_folders(document),
        taken=done.taken,
        signal=done.signal,
    )


def _prepare(subject: Subject, wish: BenchWish, progress: Progress) -> _Ready:
    config, where = subject.config, str(subject.plan_path)
    options = replace(load_options(config), rows=max(wish.limits.batch_sizes))
    try:
        model_config = read_config(options)
    except ModelError as error:
        raise unknown_place(error, subject, asked=wish.model_asked) from error
    fingerprint = model_fingerprint(resolve_folder(options.model))
    check_model(subject.plan, fingerprint, where)
    check_tokenizer(subject.plan, config.tokenizer, where)
    tokenizer = load_tokenizer(options)
    inputs = load_inputs(config, tokenizer, model_config)
    chosen = choose_items(subject, inputs.requests, wish.limits)
    if not chosen.items:
        raise TraceError("no request allows two output tokens", where=", ".join(config.traces))
    progress.note("loading and checking the model")
    bench, notes = _load(options, tokenizer, chosen, (subject, wish), progress)
    begin_ns = bench.clock.read_ns()
    progress.note("warming up and timing one request with every arm")
    estimate = _estimate(subject, bench, chosen, wish.limits)
    kept = within_budget(chosen, estimate, wish.limits)
    batches, few = _batches(subject, kept, wish.limits)
    window = _window(begin_ns, estimate, (kept, batches), wish.limits)
    progress.note(f"decoding should take about {window.planned_s:.3g} s")
    return _Ready(
        inputs=inputs,
        chosen=kept,
        batches=batches,
        bench=bench,
        window=window,
        fingerprint=fingerprint,
        notes=(*inputs.notes, *kept.notes, *few, *notes, *_without_library(bench, kept)),
    )


def _estimate(subject: Subject, bench: Bench, chosen: Chosen, limits: Limits) -> Estimate:
    """Warm up and time what the run has no measurement of."""
    begin_ns, growth = bench.clock.read_ns(), growth_of(subject)
    paces = probe(bench, chosen.items, subject.plan.measured_on.costs.ar_step_s)
    sizes = [size for size in limits.batch_sizes if size > 1 and size not in growth.steps]
    steps = probe_steps(bench, subject.decider, chosen, sizes, paces.plain.token_s)
    return Estimate(
        paces=paces,
        growth=replace(growth, steps={**growth.steps, **steps}),
        setup_s=(bench.clock.read_ns() - begin_ns) * 1e-9,
        supports=bench.library_decodes,
    )


def _window(
    begin_ns: int,
    estimate: Estimate,
    work: tuple[Chosen, tuple[Batch, ...]],
    limits: Limits,
) -> Window:
    chosen, batches = work
    repeat_s = planned_s(
        estimate,
        chosen.items if 1 in limits.batch_sizes else (),
        [(batch.batch_size, batch.items) for batch in batches],
    )
    return Window(
        begin_ns=begin_ns,
        budget_s=limits.budget_s,
        planned_s=estimate.setup_s + limits.repeats * repeat_s,
    )


def _batches(
    subject: Subject, chosen: Chosen, limits: Limits
) -> tuple[tuple[Batch, ...], tuple[str, ...]]:
    """Batches above 1 of every bucket that fills them, and a note of those that do not."""
    made, notes = [], []
    for size in (size for size in limits.batch_sizes if size > 1):
        for bucket, items in chosen.by_bucket().items():
            batch = batch_of(subject.decider, items, size)
            if batch is None:
                notes.append(f"{bucket.label}: {len(items)} requests do not fill a batch of {size}")
            else:
                made.append(batch)
    return tuple(made), tuple(notes)


def _load(
    options: LoadOptions,
    tokenizer: Any,
    chosen: Chosen,
    asked: tuple[Subject, BenchWish],
    progress: Progress,
) -> tuple[Bench, tuple[str, ...]]:
    subject, wish = asked
    layers = sorted({cell.exit_layer for cell in cells_of(chosen.items)}) or None
    loaded = load_model(options, tokenizer, layers, compile_notes(progress))
    rivals = _rivals(options, loaded, layers, chosen, wish.limits)
    second_copy = rivals is not None and rivals.loaded is not loaded
    ballast = weight_bytes(loaded.view) if second_copy else 0
    setting = Setting(
        loaded=loaded,
        draft_truncation=subject.config.draft_truncation,
        seed=wish.limits.seed,
    )
    bench = Bench(
        setting=setting,
        clock=Clock.for_device(loaded.view.device),
        memory=Memory(loaded.view, ballast),
        rivals=rivals,
    )
    return bench, (*loaded.notices, *_changed(subject, loaded, rivals))


def _rivals(
    options: LoadOptions,
    loaded: LoadedModel,
    layers: Sequence[int] | None,
    chosen: Chosen,
    limits: Limits,
) -> Rivals | None:
    """The library's arms: batch 1 only, and greedy requests unless all are asked for.

    Our faster engines change the model's layers, so a second copy stays as the library made it.
    """
    sampled = limits.rivals == "all"
    some = sampled or any(item.bucket.temperature == 0 for item in chosen.items)
    if limits.rivals == "none" or not some or 1 not in limits.batch_sizes:
        return None
    if loaded.view.engine == "eager":
        return Rivals(loaded, sampled=sampled)
    if not _room_for_copy(loaded):
        return None
    own = load_model(replace(options, engine="eager"), loaded.tokenizer, layers)
    return Rivals(own, weight_bytes(loaded.view), sampled=sampled)


def _room_for_copy(loaded: LoadedModel) -> bool:
    """Whether a second copy of the weights, and some room to run it, fit beside ours."""
    return free_bytes(loaded.view.device) > COPY_ROOM * weight_bytes(loaded.view)


def _changed(subject: Subject, loaded: LoadedModel, rivals: Rivals | None) -> list[str]:
    """Notes of what is not as the plan was measured, and of arms there is no memory for."""
    plan, notes = subject.plan, []
    here = {"dtype": str(loaded.view.dtype).removeprefix("torch."), "engine": loaded.view.engine}
    there = {"dtype": plan.model.dtype, "engine": plan.measured_on.engine}
    for key, value in there.items():
        if value != here[key]:
            notes.append(f"the plan was measured with {key} {value}, this is {here[key]}")
    if loaded.view.engine != "eager" and rivals is None and not _room_for_copy(loaded):
        notes.append(
            "the library's own arms are left out: no memory for the second copy of the weights "
            "that they take beside a compiled engine; --engine eager shares one"
        )
    return notes


def _without_library(bench: Bench, chosen: Chosen) -> list[str]:
    """A note of the requests that the library's arms do not decode."""
    without = sum(not bench.library_decodes(item) for item in chosen.items)
    if bench.rivals is None or not without:
        return []
    zero = "" if bench.rivals.sampled else "temperature 0 unless --rivals all, "
    return [
        f"{without} of {len(chosen.items)} requests are not decoded with the library's own arms "
        f"({', '.join(RIVALS)}): those take {zero}no penalties, no stop strings"
    ]


def _measure(ready: _Ready, limits: Limits, progress: Progress) -> Done:
    """Take every turn that the time allows."""
    turns = turns_of(ready.chosen, ready.batches, limits)
    total = sum(len(turn.items) for turn in turns)
    with progress.stage("decoding with every arm", total) as stage:
        return take_turns(
            ready.bench, turns, ready.window, lambda turn: stage.advance(len(turn.items))
        )


def _after(ready: _Ready, found: Sequence[Found]) -> list[str]:
    """Notes of what only decoding could tell."""
    notes = []
    rivals = ready.bench.rivals
    if rivals is not None:
        notes += [f"{arm} is left out: {why}" for arm, why in rivals.refused.items()]
        if EARLY_EXIT not in rivals.refused and any(i.forced is None for i in ready.chosen.items):
            notes.append(f"{EARLY_EXIT} is left out where the plan names no exit layer")
    ties = sum(other.is_tie for one in found for _, other in one.differences)
    if ties:
        notes.append(f"{ties} greedy decodes differ from plain decoding by a numeric tie")
    return notes


def _document(subject: Subject, wish: BenchWish, ready: _Ready) -> dict[str, Any]:
    limits, view = wish.limits, ready.bench.setting.loaded.view
    traces = ready.inputs.trace_paths
    return {
        "schema_version": SCHEMA_VERSION,
        "argv": list(wish.argv),
        "seed": limits.seed,
        "provenance": collect(traces=traces, model=ready.fingerprint, device=view.device.type),
        "plan": {
            "file": subject.plan_path.name,
            "sha256": file_sha256(subject.plan_path),
            "measurement_hash": subject.plan.measurement_hash,
            "analysis_hash": subject.plan.analysis_hash,
        },
        "traces": trace_fingerprint(traces)["sha256"],
        "engine": view.engine,
        "dtype": str(view.dtype).removeprefix("torch."),
        "batch_sizes": list(limits.batch_sizes),
        "repeats": limits.repeats,
        "requests_per_bucket": limits.requests,
        "budget_s": limits.budget_s,
        "num_requests": len(ready.chosen.items),
        "num_left_out": ready.chosen.num_left_out,
        "price_per_hour": wish.price_per_hour,
        "sampled": "at temperature > 0 arms decode freely: time per committed token compares",
        "peak_memory": "measured" if view.device.type == "cuda" else "weights + cache, reckoned",
    }
