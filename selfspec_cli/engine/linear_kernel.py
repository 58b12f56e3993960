"""The one door to our own matrix product: `KernelLinear`, in place of a linear layer on a CPU.

Few positions go to the kernel (`matrix_kernel`), more to oneDNN; where there is no kernel, all do.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from selfspec_cli.engine.matrix_kernel import Kernel, block_rows, build_kernel
from selfspec_cli.engine.projection import onednn_available, onednn_product

MAX_POSITIONS = 32  # from here on oneDNN's product is as fast


@functools.cache
def _made() -> tuple[Kernel | None, str]:
    try:
        return build_kernel(block_rows()), ""
    except Exception as error:  # noqa: BLE001 - missing, or whatever another release may raise
        return None, str(error).strip().partition("\n")[0] or type(error).__name__


def kernel() -> Kernel | None:
    """`build_kernel` for this processor, made once a process; None where that fails."""
    return _made()[0]


def why_no_kernel() -> str:
    """Why there is none, for people; empty where there is one."""
    return _made()[1]


def _apply(
    x: Tensor, weight: Tensor, bias: Tensor, arrays: tuple[Any, Any] | None = None
) -> Tensor:
    """Multiply x [..., K] with weight [N, K] and add bias [N]; `arrays` are both as numpy's."""
    flat = x.reshape(-1, weight.shape[1]).contiguous()
    product = kernel() if flat.shape[0] <= MAX_POSITIONS else None
    if product is None:
        library = onednn_product if onednn_available() else nn.functional.linear
        y = library(flat, weight, bias)
    else:
        y = torch.empty(flat.shape[0], weight.shape[0])
        product(flat.numpy(), *(arrays or (weight.numpy(), bias.numpy())), y.numpy())
    return y.view(*x.shape[:-1], weight.shape[0])


# Known to torch by a name of its own, so that compiled layers call it as one opaque step.
_OPERATORS = torch.library.Library("selfspec", "DEF")
_OPERATORS.define("linear(Tensor x, Tensor weight, Tensor bias) -> Tensor")
_OPERATORS.impl("linear", _apply, "CPU")


@torch.library.register_fake("selfspec::linear")
def _shape_of_linear(x: Tensor, weight: Tensor, _bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


class KernelLinear(nn.Module):
    """Takes the place of a float32 linear layer on a CPU and shares its weights.

    Attributes:
        weight: [N, K], the replaced layer's own.
        bias: [N], zeros where that had none.
    """

    bias: Tensor

    def __init__(self, replaced: nn.Linear) -> None:
        super().__init__()
        self.weight = replaced.weight
        own = replaced.bias
        self.register_buffer("bias", torch.zeros(len(self.weight)) if own is None else own.detach())
        # Kept: making them costs as much as a small product.
        self._arrays = (self.weight.detach().numpy(), self.bias.numpy())

    def forward(self, x: Tensor) -> Tensor:
        """Apply to [..., K]."""
        if isinstance(x, FakeTensor):  # being traced
            traced: Tensor = torch.ops.selfspec.linear(x, self.weight, self.bias)
            return traced
        return _apply(x, self.weight.detach(), self.bias, self._arrays)


def fits(module: nn.Module) -> bool:
    """Whether the kernel can take a module's place."""
    if type(module) is not nn.Linear:
        return False
    hooked = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    weight = module.weight
    return (
        not hooked
        and weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and weight.is_contiguous()
    )
