"""Compiled decoder layers: one program serves every layer of a kind, weights are its inputs.

A layer is traced once with the library's own code (no graph of ours), for one or for many rows and
for one or for many positions; all other sizes stay open. Compiling takes seconds a program and is
kept on disk by the compiler's own cache. Nothing here guards a call: `LayerPrograms.call` picks
the program by the shapes it was traced for, and what it cannot serve is left to the eager layer.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from selfspec_cli.engine.demo import cache_folder
from selfspec_cli.errors import ModelError

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
OPTIONS = {"size_asserts": False, "alignment_asserts": False, "compile_threads": 1}
"""Shapes are checked by `LayerPrograms`; checking them again costs 15 µs a layer. One program is
compiled at a time, and worker processes would stay behind beside the timings."""
# Sizes a program is traced with: all different, or the compiler would take two for one.
_TRACE_ROWS, _TRACE_BUFFER_ROWS, _TRACE_POSITIONS, _TRACE_SPAN, _TRACE_CAPACITY = 3, 5, 7, 83, 101


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What one pass gives to each of its layers of a kind."""

    slots: Tensor
    """Where each row writes, int64 [B, m]."""
    span: Tensor
    """Any tensor as long as the cache is read, [S]; its length is what counts."""
    rotary: tuple[Tensor, Tensor] | None
    """cos and sin [B, m, D], None for families without."""
    mask: Tensor | None
    """Added to the scores, [B, 1, m, S]; None where nothing is hidden."""

    def tensors(self) -> list[Tensor]:
        """Those that are there, in a fixed order."""
        return [
            self.slots,
            self.span,
            *(self.rotary or ()),
            *([] if self.mask is None else [self.mask]),
        ]


class CacheWindow:
    """Stands for the KV cache inside a traced layer: no pointers, only tensors.

    A written slot is the position itself, so what lies beyond a row's pointer stays invisible by
    its mask, exactly as in `KVCache`.
    """

    is_compileable = False  # read by the library's mask and attention code

    def __init__(self, keys: Tensor, values: Tensor, slots: Tensor, span: int) -> None:
        self.keys, self.values, self.slots, self.span = keys, values, slots, span

    def update(self, key: Tensor, value: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write [B, heads, m, D] at the slots; return all rows' keys and values up to the span."""
        rows = key.shape[0]
        if rows == 1:
            self.keys.index_copy_(2, self.slots[0], key)
            self.values.index_copy_(2, self.slots[0], value)
        else:
            row = torch.arange(rows, device=key.device)[:, None]
            self.keys.transpose(1, 2)[row, self.slots] = key.transpose(1, 2)
            self.values.transpose(1, 2)[row, self.slots] = value.transpose(1, 2)
        return self.keys[:rows, :, : self.span], self.values[:rows, :, : self.span]


Program = Callable[..., Any]


class LayerPrograms:
    """Programs of a model's layers by (kind, many rows, many positions, masked).

    Args:
        layers: decoder layers.
        kinds: kind of each layer; layers of a kind differ in their weights only.
        cache_argument: name under which a layer takes the cache.
        told: called before each program is compiled.

    Raises:
        ModelError: layers of a kind hold differently named or shaped weights.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        kinds: Sequence[str],
        cache_argument: str,
        told: Callable[[], None] = lambda: None,
    ) -> None:
        self._argument, self._told = cache_argument, told
        self._template = {kind: layers[kinds.index(kind)] for kind in set(kinds)}
        self._names = {kind: tuple(_state(layer)) for kind, layer in self._template.items()}
        self._states = [
            _ordered(layer, self._names[kind], self._template[kind])
            for layer, kind in zip(layers, kinds, strict=True)
        ]
        self._kinds = tuple(kinds)
        self._programs: dict[tuple[object, ...], Program] = {}
        self._sealed = False

    def seal(self) -> None:
        """Compile nothing from here on: what was not tried is left to the eager layers."""
        self._sealed = True

    def of(self, kind: str, hidden: Tensor, keys: Tensor, one: Pass) -> Program | None:
        """Return the program for a pass over [B, m, H]; None where there is none and none is made.

        Args:
            kind: of the layers.
            hidden: what goes into the first of them.
            keys: of one of them, [rows, heads, S', D].
            one: what the pass gives to layers of the kind.
        """
        key = (kind, hidden.shape[0] > 1, hidden.shape[1] > 1, one.mask is not None)
        if key not in self._programs and not self._sealed:
            self._programs[key] = self._compile(kind, hidden, keys, one)
        return self._programs.get(key)

    def call(self, program: Program, index: int, *tensors: Tensor) -> Tensor:
        """Run layer `index`; `tensors` are states, keys, values and those of its `Pass`."""
        output = program(*tensors, *self._states[index])
        found: Tensor = output[0] if isinstance(output, list | tuple) else output
        return found

    def _compile(self, kind: str, hidden: Tensor, keys: Tensor, one: Pass) -> Program:
        self._told()
        inputs = _trace_inputs(hidden, keys, one, self._states[self._kinds.index(kind)])
        template, names, argument = self._template[kind], self._names[kind], self._argument
        has_rotary, has_mask = one.rotary is not None, one.mask is not None

        def layer(hidden: Tensor, keys: Tensor, values: Tensor, *rest: Tensor) -> Tensor:
            slots, span, *more = rest
            arguments: dict[str, Any] = {"use_cache": True, "attention_mask": None}
            if has_rotary:
                arguments["position_embeddings"] = (more.pop(0), more.pop(0))
            if has_mask:
                arguments["attention_mask"] = more.pop(0)
            arguments[argument] = CacheWindow(keys, values, slots, span.shape[0])
            state = dict(zip(names, more, strict=True))
            output: Tensor = functional_call(template, state, (hidden,), arguments)
            return output

        _keep_programs()
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            # A compiler's first use imports packages that warn of each other (setuptools of
            # distutils): no news to the user, and no failure where warnings are made errors.
            graph = make_fx(layer, tracing_mode="symbolic")(*inputs)
            _check_open(inputs)
            program: Program = torch._inductor.standalone_compile(
                graph,
                list(inputs),
                dynamic_shapes="from_graph",
                options={"config_patches": OPTIONS},
            )
        return program


def _keep_programs() -> None:
    """Let the compiler keep programs in the user's cache folder, unless told where.

    Its own choice, a temporary folder that a restart empties, stands in the variable as soon as
    its modules are imported.
    """
    own = default_cache_dir()
    if os.environ.get(CACHE_VARIABLE, own) == own:
        os.environ[CACHE_VARIABLE] = str(cache_folder() / "compiled")


def _state(layer: nn.Module) -> dict[str, Tensor]:
    return {**dict(layer.named_parameters()), **dict(layer.named_buffers())}


def _ordered(layer: nn.Module, names: Sequence[str], template: nn.Module) -> list[Tensor]:
    own, like = _state(layer), _state(template)
    if tuple(own) != tuple(names) or any(own[n].shape != like[n].shape for n in names):
        raise ModelError("layers of one kind hold different weights")
    return [own[name].detach() for name in names]


def _trace_inputs(hidden: Tensor, keys: Tensor, one: Pass, state: Sequence[Tensor]) -> list[Tensor]:
    """Fake tensors with open sizes for rows, positions, span and capacity; weights are fixed."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    many_rows, many = hidden.shape[0] > 1, hidden.shape[1] > 1
    rows, m = _TRACE_ROWS if many_rows else 1, _TRACE_POSITIONS if many else 1
    held = _TRACE_BUFFER_ROWS if many_rows else 1
    cache = (held, keys.shape[1], _TRACE_CAPACITY, keys.shape[3])
    shapes: list[tuple[Tensor, tuple[int, ...], tuple[int, ...]]] = [
        (hidden, (rows, m, hidden.shape[2]), (0, 1)),
        (keys, cache, (0, 2)),
        (keys, cache, (0, 2)),
        (one.slots, (rows, m), (0, 1)),
        (one.span, (_TRACE_SPAN,), (0,)),
    ]
    shapes += [(t, (rows, m, t.shape[2]), (0, 1)) for t in one.rotary or ()]
    if one.mask is not None:
        shapes.append((one.mask, (rows, 1, m, _TRACE_SPAN), (0, 2, 3)))
    return [_open(mode, *shape) for shape in shapes] + [
        mode.from_tensor(t, static_shapes=True) for t in state
    ]


def _check_open(inputs: Sequence[Tensor]) -> None:
    """Refuse a trace that holds for the sizes it was made with only.

    Raises:
        ModelError: the layer's code fixed an open size.
    """
    for at, tensor in enumerate(inputs):
        for size in tensor.shape:
            if isinstance(size, torch.SymInt) and size.node.expr.is_number:
                raise ModelError(f"layers fix a size of input {at} to {size.node.expr}")


def _open(
    mode: FakeTensorMode, like: Tensor, shape: tuple[int, ...], open_sizes: tuple[int, ...]
) -> Tensor:
    sizes = [
        DimDynamic.DYNAMIC if at in open_sizes and size > 1 else DimDynamic.STATIC
        for at, size in enumerate(shape)
    ]
    real = torch.empty(shape, dtype=like.dtype, device=like.device)
    fake: Tensor = mode.from_tensor(
        real, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes)
    )
    return fake
