"""A layer-range view of a Hugging Face causal LM: embed, layers [a, b), norm + head.

No forward code of any family is rewritten: the layers are the model's own modules, called with
masks from the library's mask functions and tables from its rotary module.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    causal_mask_function,
    sliding_window_causal_mask_function,
)

from selfspec_cli.engine.attention import PACKED
from selfspec_cli.engine.families import Family
from selfspec_cli.engine.kv_cache import KVCache
from selfspec_cli.engine.limits import context_limit
from selfspec_cli.engine.linear_kernel import KernelLinear
from selfspec_cli.engine.projection import project
from selfspec_cli.errors import ModelError

FULL, SLIDING = "full_attention", "sliding_attention"


def _find(root: Any, path: str) -> Any:
    try:
        return reduce(getattr, path.split("."), root)
    except AttributeError:
        raise ModelError(f"{type(root).__name__} has no attribute '{path}'") from None


def _find_if(root: Any, path: str) -> Any:
    return _find(root, path) if path else None


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the layers of one pass share."""

    shared: dict[str, Any]
    """Keyword arguments of every layer: positions, rotary tables."""
    by_kind: dict[str, dict[str, Any]]
    """Those of the layers of one kind: the mask (None where nothing is hidden or the kernel is
    causal by itself), and rotary tables where kinds differ in them."""


class LayerView:
    """Run any range of a model's layers over a shared KV cache.

    Attributes:
        num_layers: N.
        vocab_size: rows of the output head, padding rows included.
        layer_kinds: one mask kind a layer (`full_attention` or `sliding_attention`).
        engine: whose kernels run, as cost.csv names it.
    """

    engine = "eager"

    def __init__(self, model: nn.Module, family: Family) -> None:
        self.model, self.family = model, family
        config: Any = model.config
        self.config = config
        self._embed = _find(model, family.embed)
        self._position_embed = _find_if(model, family.position_embed)
        self._rotary = _find_if(model, family.rotary)
        layers = _find(model, family.layers)
        if not isinstance(layers, nn.ModuleList):
            raise ModelError(f"'{family.layers}' of {type(model).__name__} is no list of layers")
        self._layers: Sequence[nn.Module] = list(layers)
        self._norm, self._head = _find(model, family.norm), _find(model, family.head)
        self._multiplier = _find_if(config, family.embed_multiplier)
        self._divisor = _find_if(config, family.logit_divisor)
        self._softcap = _find_if(config, family.logit_softcap)
        self.num_layers = len(self._layers)
        self.vocab_size = int(_find(model, f"{family.head}.weight").shape[0])
        self.hidden_size = int(config.hidden_size)
        self.window = getattr(self.config, "sliding_window", None)
        self.layer_kinds = self._kinds()
        self._mask_interface = ALL_MASK_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        self._sdpa = self.config._attn_implementation in ("sdpa", PACKED)

    def _kinds(self) -> tuple[str, ...]:
        types = getattr(self.config, "layer_types", None) if self.family.mixed_attention else None
        local = self.family.windowed and self.window is not None
        kinds = tuple(types) if types else (SLIDING if local else FULL,) * self.num_layers
        unknown = set(kinds) - {FULL, SLIDING}
        if unknown or len(kinds) != self.num_layers:
            raise ModelError(
                f"attention kinds {sorted(set(kinds))} over {len(kinds)} of {self.num_layers} "
                "layers are not supported"
            )
        return kinds

    @property
    def device(self) -> torch.device:
        """Device of the embedding, where token ids go in."""
        return self._embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the hidden states."""
        return self._embed.weight.dtype

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that is decoded (tokens), None if the configuration does not say."""
        return context_limit(self.config)

    def new_cache(self, *, rows: int = 1, capacity: int) -> KVCache:
        """Return an empty cache for this model."""
        return KVCache(self.num_layers, rows=rows, capacity=capacity)

    def embed(self, token_ids: Tensor, cache: KVCache) -> Tensor:
        """Embed token ids [B, m] that follow what layer 0 holds; returns [B, m, H]."""
        hidden = self._embed(token_ids)
        if self._multiplier is not None:
            hidden = hidden * self._multiplier
        if self._position_embed is not None:
            positions = self._positions(cache.lengths[0], token_ids.shape[1])
            hidden = hidden + self._position_embed(positions)
        return hidden

    def run(
        self,
        hidden: Tensor,
        cache: KVCache,
        start: int,
        stop: int,
        tap: Callable[[int, Tensor], None] | None = None,
    ) -> Tensor:
        """Run layers [start, stop) over hidden states [B, m, H] that follow layer `start`'s cache.

        `tap(depth, hidden)` is called after each layer with the number of layers run so far.
        """
        if start == stop:
            return hidden
        prepared = self.prepare(hidden, cache.lengths[start])
        return self.chain(hidden, cache, range(start, stop), prepared, tap)

    def chain(
        self,
        hidden: Tensor,
        cache: KVCache,
        indices: Sequence[int],
        prepared: Prepared,
        tap: Callable[[int, Tensor], None] | None = None,
    ) -> Tensor:
        """Run the layers of `indices` in turn with what `prepare` made for their positions."""
        for index in indices:
            hidden = self._layers[index](
                hidden,
                **prepared.shared,
                **prepared.by_kind[self.layer_kinds[index]],
                **{self.family.cache_argument: cache},
            )
            if tap is not None:
                tap(index + 1, hidden)
        return hidden

    def prepare(self, hidden: Tensor, starts: Sequence[int]) -> Prepared:
        """Masks by kind and the arguments all layers share, for [B, m, H] written at `starts`."""
        masks = {kind: self._mask(kind, starts, hidden) for kind in set(self.layer_kinds)}
        return self._prepared(hidden, self._positions(starts, hidden.shape[1]), masks)

    def ready(
        self, cache: KVCache, indices: Sequence[int], positions: int, end: int | None = None
    ) -> None:
        """Get ready for passes of layers `indices` over `positions` of every row; here, nothing.

        Called before a clock runs, so that no preparation falls into a timing.

        Args:
            cache: of these passes; the rows that run now have pointers.
            indices: layers, ascending.
            positions: of one pass; passes of fewer may follow.
            end: tokens that the longest row holds at last; those of one pass from now on if None.
        """

    def _prepared(
        self, hidden: Tensor, positions: Tensor, masks: Mapping[str, Tensor | None]
    ) -> Prepared:
        """Arguments of the layers for hidden states [B, m, H] at positions [B, m]."""
        shared: dict[str, Any] = {"position_ids": positions, "use_cache": True}
        by_kind: dict[str, dict[str, Any]] = {
            kind: {"attention_mask": mask} for kind, mask in masks.items()
        }
        if self._rotary is not None and self.family.rotary_by_kind:
            for kind, arguments in by_kind.items():
                arguments["position_embeddings"] = self._rotary(hidden, positions, kind)
        elif self._rotary is not None:
            shared["position_embeddings"] = self._rotary(hidden, position_ids=positions)
        return Prepared(shared, by_kind)

    def _positions(self, starts: Sequence[int], m: int) -> Tensor:
        begin = torch.tensor(starts, device=self.device)[:, None]  # [B, 1]
        return begin + torch.arange(m, device=self.device)  # [B, m]

    def _mask(self, kind: str, starts: Sequence[int], hidden: Tensor) -> Tensor | None:
        m, end = hidden.shape[1], max(starts) + hidden.shape[1]
        local = kind == SLIDING and self.window is not None and end > self.window
        if not local and self._needs_no_mask(kind, starts, m):
            return None
        visible = self._visible(kind)
        positions = self._positions(starts, m)
        return self._mask_interface(
            batch_size=len(starts),
            q_length=m,
            kv_length=end,
            mask_function=lambda b, h, q, kv: visible(b, h, positions[b, q], kv),
            allow_is_causal_skip=False,
            dtype=hidden.dtype,
            device=hidden.device,
            config=self.config,
        )

    def _visible(self, kind: str) -> Callable[[Any, Any, Any, Any], Any]:
        """Which cached positions a position sees: the library's function of (_, _, own, cached)."""
        if kind == SLIDING and self.window is not None:
            visible: Callable[..., Any] = sliding_window_causal_mask_function(self.window)
            return visible
        return causal_mask_function

    def _needs_no_mask(self, kind: str, starts: Sequence[int], m: int) -> bool:  # noqa: ARG002
        """Whether there is nothing to hide, or plain causal order, which sdpa keeps by itself."""
        level = min(starts) == max(starts)
        return level and (m == 1 or (self._sdpa and starts[0] == 0))

    def head(self, hidden: Tensor) -> Tensor:
        """Final norm, head, divisor and softcap: [..., H] to float32 logits [..., V]."""
        return self._finished(project(self._head, self._norm(hidden)))

    def head_of(self, hidden: Tensor, tokens: Tensor) -> Tensor | None:
        """Logits of a few tokens a position only, equal to those of `head` within rounding.

        Args:
            hidden: [E, n, H].
            tokens: int64 [n, K].

        Returns:
            float32 [n, E, K], or None where the head is no plain linear layer.
        """
        if (
            type(self._head) not in (nn.Linear, KernelLinear)
            or self._head.weight.device != hidden.device
        ):
            return None
        rows = self._head.weight[tokens]  # [n, K, H]
        logits = self._norm(hidden).transpose(0, 1) @ rows.mT
        if self._head.bias is not None:
            logits = logits + self._head.bias[tokens][:, None]
        return self._finished(logits)

    def _finished(self, logits: Tensor) -> Tensor:
        if self._divisor is not None:
            logits = logits / self._divisor
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits.float()

    def step_bytes(self) -> int:
        """Weight bytes one decode step reads: all layers, the final norm, the head."""
        modules = [*self._layers, self._norm, self._head]
        return sum(p.numel() * p.element_size() for mod in modules for p in mod.parameters())
