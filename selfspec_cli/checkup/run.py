"""Prove a model's decoding on this machine: its layers, engine, cache, greedy tokens and law."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from selfspec_cli.calibrate.progress import Progress, Silent, compile_notes
from selfspec_cli.checkup import cache, greedy, law, layers, rows
from selfspec_cli.checkup.attempts import attempt
from selfspec_cli.checkup.records import CheckupReport, Part
from selfspec_cli.checkup.subject import Subject, library_outputs, make_subject
from selfspec_cli.cost.clock import Clock
from selfspec_cli.engine.load import LoadedModel, LoadOptions, read_config, resolve_device
from selfspec_cli.engine.view import LayerView
from selfspec_cli.errors import ModelError, short_of_memory

Told = Callable[[], None]
Outputs = Mapping[int, tuple[int, ...]]
AFTER_LAYERS = (layers.ENGINE, cache.PART, greedy.GREEDY, greedy.LIBRARY, rows.PART, law.PART)


def run(options: LoadOptions, told: Progress | None = None, *, seed: int = 0) -> CheckupReport:
    """Prove a model on this machine, in its dtype and with its engine.

    Args:
        options: which model, device, dtype and engine.
        told: hears of stages and notices.
        seed: of prompts and draws.

    Raises:
        ModelError: the model cannot be loaded or held here, or has too few positions.
        FamilyError: its family is not supported.
    """
    try:
        return _run(replace(options, rows=rows.ROWS), _Bench(told=told or Silent()), seed)
    except (MemoryError, RuntimeError) as error:
        if not short_of_memory(error):
            raise
        raise ModelError(
            f"too little memory on the device: {(str(error).splitlines() or [''])[0]}",
            where=f"-m {options.model}",
            hint="Use a smaller --dtype or another --device.",
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """Times parts and tells of them."""

    told: Progress

    def part(
        self, empty: Part, total: float, work: Callable[[Told], Part], device: torch.device
    ) -> Part:
        """Do one part; an error of the engine that it does not catch itself is its fault."""
        faults: list[str] = []
        made: list[Part] = []
        with self.told.stage(empty.title, total) as stage:

            def work_once() -> tuple[str, ...]:
                made.append(work(stage.advance))
                return ()

            seconds = Clock.for_device(device).span(lambda: attempt(empty.name, faults, work_once))
        part = made[0] if made else replace(empty, cases=1, faults=tuple(faults))
        return replace(part, seconds=seconds)


def _run(options: LoadOptions, bench: _Bench, seed: int) -> CheckupReport:
    config = read_config(options)  # an unsupported family is told before any weight is read
    kept: list[LoadedModel] = []

    def check(_: Told) -> Part:
        loaded, part = layers.prove_layers(options)
        kept.extend([loaded] if loaded else [])
        return part

    device = resolve_device(options.device)
    first = bench.part(layers.SELF_CHECK, 1.0, check, device)
    if not kept:
        refusal = "not tried: the layers are not the model's"
        others = [replace(part, refusal=refusal) for part in AFTER_LAYERS]
        return _report(options, config, device, seed, (first, *others))
    view = kept[0].view
    subject = make_subject(view, seed)
    library = _library(subject, bench)
    engine, chosen, notices = _engine(view, options, bench)
    for notice in (*kept[0].notices, *notices):
        bench.told.notice(notice)
    parts = (first, engine, *_decoding(replace(subject, view=chosen), library, bench))
    report = _report(options, config, view.device, seed, parts)
    return replace(
        report, engine=chosen.engine, notices=(*kept[0].notices, *notices), dtype=_name(view.dtype)
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _report(
    options: LoadOptions, config: Any, device: torch.device, seed: int, parts: tuple[Part, ...]
) -> CheckupReport:
    on_gpu = device.type == "cuda"
    name = f" {torch.cuda.get_device_name(device)}" if on_gpu else ""
    return CheckupReport(
        model=options.model,
        family=str(config.model_type),
        num_layers=int(config.num_hidden_layers),
        dtype=options.dtype,
        device=f"{device}{name}",
        on_gpu=on_gpu,
        engine="",
        notices=(),
        seed=seed,
        parts=parts,
    )


def _engine(
    view: LayerView, options: LoadOptions, bench: _Bench
) -> tuple[Part, LayerView, tuple[str, ...]]:
    """The engine's part, its view, its notices; the library's layers where it cannot be made."""
    kept: list[tuple[LayerView, tuple[str, ...]]] = []

    def choose(_: Told) -> Part:
        chosen, part = layers.prove_engine(view, options, compile_notes(bench.told))
        kept.append((chosen.view, chosen.notices))
        return part

    part = bench.part(layers.ENGINE, 1.0, choose, view.device)
    chosen, notices = kept[0] if kept else (view, ())
    return part, chosen, notices


def _library(subject: Subject, bench: _Bench) -> Outputs | str:
    """The library's own outputs, or why it made none. Asked before an engine changes the model."""
    try:
        with bench.told.stage("transformers' own greedy tokens", len(subject.prompts)) as stage:
            return library_outputs(subject, stage.advance)
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
        if short_of_memory(error):
            raise
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return f"transformers cannot generate with this model: {first}"


def _decoding(subject: Subject, library: Outputs | str, bench: _Bench) -> tuple[Part, ...]:
    """Cache, greedy tokens, batch and law."""
    device = subject.view.device

    def part(empty: Part, total: float, work: Callable[[Told], Part]) -> Part:
        return bench.part(empty, total, work, device)

    cached = part(
        cache.PART, cache.num_cases(subject), lambda told: cache.prove_cache(subject, told)
    )
    plain, faults = _plain(subject)
    if faults:
        broken = replace(greedy.GREEDY, cases=1, faults=faults)
        untried = (greedy.LIBRARY, rows.PART, law.PART)
        refused = [replace(one, refusal="not tried: plain decoding stops") for one in untried]
        return (cached, broken, *refused)
    cases, cells = len(greedy.greedy_cases(subject, plain)), len(rows.batch_cells(subject))
    return (
        cached,
        part(greedy.GREEDY, cases, lambda told: greedy.prove_greedy(subject, plain, told)),
        _against_library(subject, plain, library, bench),
        part(rows.PART, cells, lambda told: rows.prove_batch(subject, plain, told)),
        part(law.PART, law.law_steps(subject), lambda told: law.prove_sampling(subject, told)),
    )


def _plain(subject: Subject) -> tuple[Outputs, tuple[str, ...]]:
    """Outputs of plain decoding, and why there are none."""
    plain: dict[int, tuple[int, ...]] = {}
    faults: list[str] = []

    def work() -> tuple[str, ...]:
        plain.update(greedy.plain_outputs(subject))
        return ()

    attempt("plain decoding", faults, work)
    return plain, tuple(faults)


def _against_library(
    subject: Subject, plain: Outputs, library: Outputs | str, bench: _Bench
) -> Part:
    if isinstance(library, str):
        return replace(greedy.LIBRARY, refusal=library)

    def compare(_: Told) -> Part:
        return greedy.prove_library(subject, plain, library)

    return bench.part(greedy.LIBRARY, 1.0, compare, subject.view.device)
