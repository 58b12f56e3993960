"""Attention of the compiled steps: query heads that share keys are packed, keys are not copied.

The library repeats keys and values for every query head that shares them as soon as there is a
mask, so verification and ragged batches would pay a copy of the whole cache that no server pays.
Registered with the library's own attention interface; no family's code is touched.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

PACKED = "selfspec_packed"
"""Name under which the library finds it, as `config._attn_implementation`."""


def packed_attention(  # noqa: PLR0913, PLR0917 - the library's signature
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention over shared keys.

    Args:
        module: the attention layer.
        query: [B, heads, m, D].
        key: [B, key heads, S, D].
        value: [B, key heads, S, D].
        attention_mask: [B, 1, m, S], bool (True: visible) or added to the scores; None where
            nothing is hidden or plain causal order is meant.
        dropout: as the library passes it.
        scaling: of the scores.
        is_causal: as the library passes it.
        more: other arguments of the library's function, passed through.

    Returns:
        [B, m, heads, D], and no weights.
    """
    rows, heads, m, width = query.shape
    shared = heads // key.shape[1]
    if shared == 1 or m == 1 or attention_mask is None or more.get("position_bias") is not None:
        return sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            is_causal=is_causal,
            **more,
        )
    # Heads that share keys lie side by side: [B, key heads, shared, m, D] in memory.
    packed = query.reshape(rows, key.shape[1], shared * m, width)
    output = nn.functional.scaled_dot_product_attention(
        packed, key, value, attn_mask=attention_mask.repeat(1, 1, shared, 1), scale=scaling
    )
    return output.reshape(rows, heads, m, width).transpose(1, 2).contiguous(), None


def use_packed_attention(config: Any) -> bool:
    """Let a model's layers use packed attention if they use the library's `sdpa`; tells whether."""
    if config._attn_implementation != "sdpa":
        return False
    AttentionInterface.register(PACKED, packed_attention)
    AttentionMaskInterface.register(PACKED, sdpa_mask)
    config._attn_implementation = PACKED
    return True


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a bool mask as one that is added to the scores; made once a pass, not once a layer."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
