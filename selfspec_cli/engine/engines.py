"""Choose and prove the engine a model is decoded with: eager, or compiled where that works here.

The compiled engine is never trusted: at load its states at every depth are compared with those of
the library's own layers, alone and in ragged rows, before anything is measured. Where it cannot be
made or differs, the run goes on with the eager one and says so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from selfspec_cli.engine.compiled import CompiledView, install
from selfspec_cli.engine.selfcheck import RELATIVE_TOLERANCE, check_tokens, states_by_depth
from selfspec_cli.engine.view import LayerView
from selfspec_cli.errors import ModelError, SelfCheckError

Engine = Literal["auto", "compiled", "eager"]
ENGINES: tuple[Engine, ...] = ("auto", "compiled", "eager")
AUTO_MIN_BYTES = 64 << 20
"""Weights a step reads, below which `auto` stays eager: compiling takes longer than it saves."""
_ROWS, _POSITIONS = 3, 5  # of the ragged check


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
    if view.device.type != "cpu":
        return _eager(view, f"compiled steps are not made for {view.device.type} devices yet")
    return _compiled(view, rows, told)


def _eager(view: LayerView, reason: str) -> Chosen:
    return Chosen(view=view, notices=(f"decoding with the eager engine: {reason}",))


@torch.inference_mode()
def _compiled(view: LayerView, rows: int, told: Callable[[], None]) -> Chosen:
    tokens = check_tokens(view)
    reference = states_by_depth(view, tokens)
    batch = _ragged_states(view, tokens) if rows > 1 else None
    done = install(view.model)
    try:
        compiled = CompiledView(view.model, view.family, told)
        _check(reference, states_by_depth(compiled, tokens), view.dtype, "alone")
        if batch is not None:
            _check(batch, _ragged_states(compiled, tokens), view.dtype, "in ragged rows")
    except Exception as error:  # noqa: BLE001 - whatever a compiler or its machine may raise
        done.undo()
        return _eager(view, f"compiled steps cannot be used here ({_first_line(error)})")
    return Chosen(view=compiled)


def _check(
    reference: dict[int, Tensor], states: dict[int, Tensor], dtype: torch.dtype, how: str
) -> None:
    """Compare states at every depth.

    Raises:
        SelfCheckError: they differ by more than rounding, at the depth it names.
    """
    tolerance = RELATIVE_TOLERANCE.get(dtype, 6e-2)
    for depth, expected in reference.items():
        scale = float(expected.abs().max()) or 1.0
        error = float((states[depth] - expected).abs().max()) / scale
        if not error <= tolerance:  # NaN fails too
            raise SelfCheckError(
                f"compiled layers {how} differ at depth {depth} by {error:.3g} of the range "
                f"(tolerance {tolerance:g})"
            )


def _ragged_states(view: LayerView, tokens: Tensor) -> dict[int, Tensor]:
    """States by depth of rows at different positions: one step, then several positions."""
    need = 1 + _POSITIONS
    lengths = [max(1, tokens.shape[1] - need - row) for row in range(_ROWS)]
    cache = view.new_cache(rows=_ROWS, capacity=tokens.shape[1])
    probe = view.new_cache(capacity=1)
    view.run(view.embed(tokens[:, :1], probe), probe, 0, view.num_layers)
    cache.reserve(probe)
    for row, length in enumerate(lengths):
        alone = cache.row(row)
        view.run(view.embed(tokens[:, :length], alone), alone, 0, view.num_layers)
    cache.activate(lengths)
    found: dict[int, list[Tensor]] = {depth: [] for depth in range(1, view.num_layers + 1)}
    for ahead, m in ((0, 1), (1, _POSITIONS)):
        ids = torch.cat([tokens[:, n + ahead : n + ahead + m] for n in lengths])
        hidden = view.embed(ids, cache)
        view.run(hidden, cache, 0, view.num_layers, lambda depth, h: found[depth].append(h))
    return {depth: torch.cat(parts, dim=1) for depth, parts in found.items()}


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
