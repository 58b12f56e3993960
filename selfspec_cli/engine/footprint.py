"""Bytes that a model takes to serve, from its modules and its configuration alone."""

from typing import Any

from selfspec_cli.engine.view import LayerView

_LOGIT_BYTES = 4  # verification compares laws in float32


def footprint(view: LayerView) -> dict[str, int]:
    """Return what memory grows with, for the manifest.

    Keys and values are counted for every layer and position: a sliding window keeps them too
    (`engine.kv_cache`).

    Args:
        view: of a loaded model.

    Returns:
        weights_bytes, kv_bytes_per_token (all layers of one row) and logits_bytes_per_position.
    """
    config: Any = view.config
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    width = int(getattr(config, "head_dim", None) or view.hidden_size // heads)
    return {
        "weights_bytes": sum(p.numel() * p.element_size() for p in view.model.parameters()),
        "kv_bytes_per_token": 2 * view.num_layers * kv_heads * width * view.dtype.itemsize,
        "logits_bytes_per_position": _LOGIT_BYTES * view.vocab_size,
    }
