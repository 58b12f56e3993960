"""Choose and prove the engine a model is decoded with: eager, or a faster one that works here.

No other engine is trusted: at load its states at every depth are compared with those of the
library's own layers, alone and in ragged rows, before anything is measured. Where it cannot be
made or differs, the run goes on with the next one and says so. Their names, as cost.csv has them:
`compiled`; `linear_kernel`, the library's layers over our matrix product, where layers cannot be
compiled; `eager`, the library's layers as they are.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from selfspec_cli.engine.attention import use_packed_attention
from selfspec_cli.engine.compiled import (
    CompiledView,
    Installation,
    KernelView,
    install,
    uses_linear_kernel,
)
from selfspec_cli.engine.graphs import CudaRecorder, GraphNotice, GraphView, Recorder
from selfspec_cli.engine.linear_kernel import why_no_kernel
from selfspec_cli.engine.proof import ROWS, Runs, States, check_states, runs
from selfspec_cli.engine.selfcheck import check_tokens, states_by_depth
from selfspec_cli.engine.view import LayerView
from selfspec_cli.errors import ModelError

Engine = Literal["auto", "compiled", "eager"]
ENGINES: tuple[Engine, ...] = ("auto", "compiled", "eager")
AUTO_MIN_BYTES = 64 << 20
"""Weights a step reads, below which `auto` stays eager: compiling takes longer than it saves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The view to decode with."""

    view: LayerView
    notices: tuple[str, ...] = ()
    """Why it is another engine than asked for, for people."""


def choose_engine(
    view: LayerView,
    engine: Engine,
    *,
    rows: int = 1,
    told: Callable[[], None] = lambda: None,
) -> Chosen:
    """Return the view of the wanted engine, proved against the eager one, or the eager one.

    Args:
        view: checked view of the eager engine; its model is changed in place.
        engine: as asked for.
        rows: most rows that will be decoded side by side; programs for several are compiled now.
        told: called before each program is compiled.

    Raises:
        ModelError: compiled steps were asked for and the model lies on several devices.
    """
    if engine == "eager" or (engine == "auto" and view.step_bytes() < AUTO_MIN_BYTES):
        return Chosen(view=view)
    devices = sorted({str(p.device) for p in view.model.parameters()})
    if len(devices) > 1:
        if engine == "compiled":
            raise ModelError(
                f"compiled steps need one device; the model lies on {', '.join(devices)}",
                where="--engine compiled",
                hint="Use --engine eager, or a device that holds the model.",
            )
        return _eager(view, f"the model lies on {', '.join(devices)}")
    if view.device.type == "cuda":
        return by_graphs(view, CudaRecorder(view.device))
    if view.device.type != "cpu":
        return _eager(view, f"compiled steps are not made for {view.device.type} devices yet")
    return _on_cpu(view, rows, told)


def _eager(view: LayerView, reason: str) -> Chosen:
    return Chosen(view=view, notices=(f"decoding with the eager engine: {reason}",))


@torch.inference_mode()
def _on_cpu(view: LayerView, rows: int, told: Callable[[], None]) -> Chosen:
    """Compiled layers, else the library's layers over the linear kernel, else those as they are."""
    tokens = check_tokens(view)
    reference = {how: run(view, tokens) for how, run in runs(rows).items()}
    makers: tuple[Callable[[], LayerView], ...] = (
        lambda: CompiledView(view.model, view.family, told),
        lambda: KernelView(view.model, view.family),
    )
    refused: list[str] = []
    for make in makers:
        made = _proved(view, make, tokens, reference)
        if isinstance(made, LayerView):
            return Chosen(view=made, notices=_about(made, refused))
        refused.append(made)
    compiled, kernel = refused
    return _eager(
        view, f"compiled layers cannot be used here ({compiled}), nor the linear kernel ({kernel})"
    )


def _proved(
    view: LayerView,
    make: Callable[[], LayerView],
    tokens: Tensor,
    reference: Mapping[str, States],
) -> LayerView | str:
    """The made view, or why it cannot be used; the model is as before then."""
    done: Installation | None = None
    try:
        done = install(view.model)
        made = make()
        for how, expected in reference.items():
            check_states(expected, runs(ROWS)[how](made, tokens), view.dtype, how)
        if isinstance(made, CompiledView):
            made.seal()
    except Exception as error:  # noqa: BLE001 - whatever a compiler or its machine may raise
        if done is not None:
            done.undo()
        return _first_line(error)
    return made


def _about(view: LayerView, refused: Sequence[str]) -> tuple[str, ...]:
    """What is to be said of a fast engine; nothing where it is the fastest."""
    if refused:
        return (
            f"decoding with the library's layers over the linear kernel: compiled layers cannot be "
            f"used here ({refused[0]})",
        )
    reason = why_no_kernel()
    if reason and uses_linear_kernel(view.model):
        return (f"compiled layers use the library's matrix products, which are slower: {reason}",)
    return ()


@torch.inference_mode()
def by_graphs(view: LayerView, recorder: Recorder) -> Chosen:
    """Return a view whose steps are recorded and replayed, proved as `choose_engine` says.

    Args:
        view: checked view of the eager engine on one device; its model is changed in place.
        recorder: of that device.
    """
    tokens, attention = check_tokens(view), view.config._attn_implementation
    if attention not in ("sdpa", "eager"):
        return _eager(view, f"steps cannot be recorded with {attention} attention")
    tried: Runs = {"after a prompt": states_by_depth, **runs(ROWS)}
    reference = {how: run(view, tokens) for how, run in tried.items()}
    done = Installation(model=view.model, replaced=[], attention=attention)
    use_packed_attention(view.config)
    try:
        graphs = GraphView(view.model, view.family, recorder)
        with warnings.catch_warnings(action="ignore", category=GraphNotice):
            for how, run in tried.items():
                check_states(reference[how], run(graphs, tokens), view.dtype, how)
        if graphs.failure:
            raise RuntimeError(graphs.failure)
    except Exception as error:  # noqa: BLE001 - whatever a device or its driver may raise
        done.undo()
        return _eager(view, f"steps cannot be recorded here ({_first_line(error)})")
    return Chosen(view=graphs)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
