"""The compiled engine on a CPU: fused layers, a linear kernel, attention without copied keys.

A pass over few positions runs each layer as one compiled program (`LayerPrograms`); a long prompt
and whatever no program serves runs the library's layers, over the same weights and cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from selfspec_cli.engine.attention import additive, use_packed_attention
from selfspec_cli.engine.families import Family
from selfspec_cli.engine.kv_cache import KVCache
from selfspec_cli.engine.layer_programs import LayerPrograms, Pass, Program
from selfspec_cli.engine.linear_kernel import KernelLinear, fits, kernel, why_no_kernel
from selfspec_cli.engine.view import SLIDING, LayerView, Prepared
from selfspec_cli.errors import ModelError

MAX_POSITIONS = 160
"""Rows × positions that programs serve; beyond, the library's own kernels are as fast."""


@dataclass(slots=True)
class Installation:
    """What was changed in a model for the compiled engine, so that it can be taken back."""

    model: nn.Module
    replaced: list[tuple[nn.Module, str, nn.Module]]
    attention: str

    def undo(self) -> None:
        """Put the model's own modules and attention back."""
        for parent, name, module in self.replaced:
            setattr(parent, name, module)
        config = self.model.config
        config._attn_implementation = self.attention  # type: ignore[union-attr]


def install(model: nn.Module) -> Installation:
    """Put the linear kernel and packed attention into a model, in place; weights are shared.

    Where it fails the model is as before.
    """
    config: Any = model.config
    done = Installation(model=model, replaced=[], attention=config._attn_implementation)
    kernel()  # compiled here and not inside a timed step
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if fits(child)
    ]
    try:
        for parent, name, child in found:
            setattr(parent, name, KernelLinear(child))  # type: ignore[arg-type]
            done.replaced.append((parent, name, child))
        use_packed_attention(config)
    except BaseException:
        done.undo()
        raise
    return done


def uses_linear_kernel(model: nn.Module) -> bool:
    """Whether any of a model's layers asks our matrix product."""
    return any(isinstance(module, KernelLinear) for module in model.modules())


class KernelView(LayerView):
    """A view of the library's layers over the linear kernel and packed attention.

    Args:
        model: prepared by `install`.
        family: its table entry.

    Raises:
        ModelError: there is no kernel here, or no layer it could serve.
    """

    engine = "linear_kernel"

    def __init__(self, model: nn.Module, family: Family) -> None:
        if kernel() is None:
            raise ModelError(why_no_kernel())
        if not uses_linear_kernel(model):
            raise ModelError("the model has no float32 linear layers")
        super().__init__(model, family)


class CompiledView(LayerView):
    """A view whose passes over few positions run compiled layers.

    Args:
        model: prepared by `install`.
        family: its table entry.
        told: called once a program that is compiled, before it is.
    """

    engine = "compiled"

    def __init__(
        self, model: nn.Module, family: Family, told: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(model, family)
        self._programs = LayerPrograms(self._layers, self.layer_kinds, family.cache_argument, told)
        self._positions_read = torch.arange(1, device=self.device)

    def chain(
        self,
        hidden: Tensor,
        cache: KVCache,
        indices: Sequence[int],
        prepared: Prepared,
        tap: Callable[[int, Tensor], None] | None = None,
    ) -> Tensor:
        """As `LayerView.chain`, and with the same result within float rounding."""
        served = self._served(hidden, cache, indices, prepared)
        if not served:
            return super().chain(hidden, cache, indices, prepared, tap)
        hidden, (rows, m) = hidden.contiguous(), hidden.shape[:2]
        one_of_many = rows == 1 < cache.rows  # a program for one row takes a buffer of one row
        written = [start + m for start in cache.lengths[indices[0]]]
        for index in indices:
            program, shared = served[self.layer_kinds[index]]
            own: Any = (cache.keys[index], cache.values[index])
            if one_of_many:
                own = (own[0][:1], own[1][:1])
            hidden = self._programs.call(program, index, hidden, *own, *shared)
            cache.lengths[index] = list(written)
            if tap is not None:
                tap(index + 1, hidden)
        return hidden

    def _served(
        self, hidden: Tensor, cache: KVCache, indices: Sequence[int], prepared: Prepared
    ) -> dict[str, tuple[Program, list[Tensor]]]:
        """Program and shared inputs by kind; empty where the library's layers run the pass.

        Raises:
            IndexError: the cache is too short, as `KVCache.update` says it.
        """
        rows, m = hidden.shape[:2]
        buffers = {self.layer_kinds[i]: cache.keys[i] for i in indices}
        unwritten = any(cache.keys[i] is None for i in indices)
        if rows * m > MAX_POSITIONS or unwritten or not buffers:
            return {}
        end = max(cache.lengths[indices[0]]) + m
        if end > cache.capacity:
            raise IndexError(f"KV cache of {cache.capacity} positions asked to hold {end}")
        passes = self._passes(hidden, prepared, end)
        found = {}
        for kind, keys in buffers.items():
            program = self._programs.of(kind, hidden, keys, passes[kind])  # type: ignore[arg-type]
            if program is None:
                return {}
            found[kind] = (program, passes[kind].tensors())
        return found

    def seal(self) -> None:
        """Compile nothing from here on, so that no compilation falls into a timing.

        Passes of a shape that was not run until now are those of the library's layers.
        """
        self._programs.seal()

    def _needs_no_mask(self, kind: str, starts: Sequence[int], m: int) -> bool:
        """A mask wherever there may be one: with and without would be two programs."""
        rows = len(starts)
        if rows * m <= MAX_POSITIONS and (rows > 1 or m > 1 or kind == SLIDING):
            return False
        return super()._needs_no_mask(kind, starts, m)

    def _passes(self, hidden: Tensor, prepared: Prepared, end: int) -> MappingProxyType[str, Pass]:
        """What the layers of each kind share in this pass; masks are made additive once."""
        if end > len(self._positions_read):
            self._positions_read = torch.arange(2 * end, device=self.device)
        found = {}
        for kind, own in prepared.by_kind.items():
            arguments = {**prepared.shared, **own}
            mask = arguments["attention_mask"]
            if mask is not None and mask.dtype == torch.bool:
                mask = additive(mask, hidden.dtype)
            found[kind] = Pass(
                slots=arguments["position_ids"],
                span=self._positions_read[:end],
                rotary=arguments.get("position_embeddings"),
                mask=mask,
            )
        return MappingProxyType(found)
