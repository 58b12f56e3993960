"""The compiled engine on a CPU: fused layers, a linear kernel, attention without copied keys.

A pass over few positions runs each layer as one compiled program (`LayerPrograms`); a long prompt
and whatever no program serves runs the library's layers, over the same weights and cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn

from selfspec_cli.engine.attention import additive, use_packed_attention
from selfspec_cli.engine.families import Family
from selfspec_cli.engine.kv_cache import KVCache
from selfspec_cli.engine.layer_programs import LayerPrograms, Pass
from selfspec_cli.engine.linear_kernel import KernelLinear, fits, kernel
from selfspec_cli.engine.view import SLIDING, LayerView, Prepared

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
    """Put the linear kernel and packed attention into a model, in place; weights are shared."""
    attention = model.config._attn_implementation  # type: ignore[union-attr]
    done = Installation(model=model, replaced=[], attention=attention)  # type: ignore[arg-type]
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if fits(child)
    ]
    for parent, name, child in found:
        setattr(parent, name, KernelLinear(child))  # type: ignore[arg-type]
        done.replaced.append((parent, name, child))
    use_packed_attention(model.config)
    if found:
        kernel()  # compiled here and not inside a timed step
    return done


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
        rows, m = hidden.shape[:2]
        buffers = [(cache.keys[i], cache.values[i]) for i in indices]
        unwritten = any(keys is None for keys, _ in buffers)
        if rows * m > MAX_POSITIONS or not buffers or unwritten:
            return super().chain(hidden, cache, indices, prepared, tap)
        starts = cache.lengths[indices[0]]
        end = max(starts) + m
        if end > cache.capacity:
            raise IndexError(f"KV cache of {cache.capacity} positions asked to hold {end}")
        passes = self._passes(hidden, prepared, end)
        hidden = hidden.contiguous()
        written = [start + m for start in starts]
        for index, (keys, values) in zip(indices, buffers, strict=True):
            one = passes[self.layer_kinds[index]]
            hidden = self._programs.call(index, hidden, keys, values, one)  # type: ignore[arg-type]
            cache.lengths[index] = list(written)
            if tap is not None:
                tap(index + 1, hidden)
        return hidden

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
