"""A linear layer over many rows, by the faster of the two matrix products a CPU build offers.

PyTorch gives float32 products to its BLAS. On the processors this was measured on, oneDNN, which
ships with PyTorch too, took a third of its time from 16 rows on, over the same weights, unpacked.
"""

from typing import Any

import torch
from torch import Tensor, nn

MIN_ROWS = 16  # below, one token's or one round's rows: kernels are the engine's choice


def project(linear: nn.Module, states: Tensor) -> Tensor:
    """`linear(states)`: [..., H] to [..., V], equal to it within float32 rounding."""
    rows = states.numel() // max(1, states.shape[-1])
    if rows < MIN_ROWS or not _by_onednn(linear, states):
        return linear(states)
    plain: Any = linear  # known to be a linear layer by now
    product = onednn_product(states.reshape(rows, -1), plain.weight, plain.bias)
    return product.view(*states.shape[:-1], -1)


def onednn_product(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return states [m, H] times weight [V, H] transposed, plus bias [V], as float32 [m, V]."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
    return product


def onednn_available() -> bool:
    """Whether this build of PyTorch offers it."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _by_onednn(linear: nn.Module, states: Tensor) -> bool:
    """Whether a plain float32 linear layer on a CPU is asked, without gradients or hooks."""
    return (
        type(linear) is nn.Linear
        and linear.weight.device.type == "cpu"
        and linear.weight.dtype == states.dtype == torch.float32
        and not (linear._forward_hooks or linear._forward_pre_hooks or "forward" in vars(linear))
        and not torch.is_grad_enabled()
        and onednn_available()
    )
