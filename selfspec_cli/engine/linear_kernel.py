"""One linear kernel for few positions on a CPU, in float32, behind one door (`KernelLinear`).

A decode step multiplies every weight with one position, a verification with a few. Library
products are made for hundreds of positions. Here a block of weight rows is read once and
multiplied into all positions, a few at a time, with every partial sum in a register.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from selfspec_cli.engine.projection import onednn_available, onednn_product

POSITIONS = 4  # multiplied into a block of weight rows at once
ROWS_WIDE, ROWS_NARROW = 6, 3  # weight rows a block: 6 x 4 sums need 32 vector registers, else 16
MAX_POSITIONS = 32  # from here on oneDNN's product is as fast

_DOT = """
def dot{R}_{G}(x, w, bias, y, p, n):
    {zeros}
    for k in range(w.shape[1]):
        {weights}
        {positions}
        {sums}
    {stores}
"""
_LINEAR = """
def linear(x, w, bias, y):
    rows, positions = w.shape[0], x.shape[0]
    for block in prange((rows + {R} - 1) // {R}):
        n = block * {R}
        if n + {R} <= rows:
            p = 0
            while p + {G} <= positions:
                dot{R}_{G}(x, w, bias, y, p, n)
                p += {G}
            rest = positions - p
            {rests}
        else:
            for n in range(block * {R}, rows):
                for p in range(positions):
                    dot1_1(x, w, bias, y, p, n)
"""
Kernel = Callable[..., None]


def _dot_source(rows: int, positions: int) -> str:
    pairs = [(r, g) for r in range(rows) for g in range(positions)]
    return _DOT.format(
        R=rows,
        G=positions,
        zeros="; ".join(f"s{r}_{g} = f4(0)" for r, g in pairs),
        weights="; ".join(f"w{r} = w[n + {r}, k]" for r in range(rows)),
        positions="; ".join(f"x{g} = x[p + {g}, k]" for g in range(positions)),
        sums="; ".join(f"s{r}_{g} += w{r} * x{g}" for r, g in pairs),
        stores="; ".join(f"y[p + {g}, n + {r}] = s{r}_{g} + bias[n + {r}]" for r, g in pairs),
    )


@functools.cache
def kernel() -> Kernel | None:
    """Compile the kernel for this CPU (about three seconds, once a process).

    `kernel()(x, w, bias, y)` writes y = x wᵀ + bias; all float32 and C-contiguous: x [m, K],
    w [N, K], bias [N], y [m, N]. None where numba is not installed.
    """
    try:
        import llvmlite.binding as llvm
        import numba
        import numpy as np
    except ImportError:
        return None
    features = llvm.get_host_cpu_features()
    rows = ROWS_NARROW if "sse2" in features and not features.get("avx512f") else ROWS_WIDE
    scope: dict[str, Any] = {"f4": np.float32, "prange": numba.prange}
    for r, g in [(1, 1), *((rows, g) for g in range(1, POSITIONS + 1))]:
        exec(_dot_source(r, g), scope)
        # `fastmath` lets sums be reordered, which a vector register needs.
        scope[f"dot{r}_{g}"] = numba.njit(fastmath=True, inline="never")(scope[f"dot{r}_{g}"])
    calls = (f"if rest == {g}: dot{rows}_{g}(x, w, bias, y, p, n)" for g in range(1, POSITIONS))
    source = _LINEAR.format(R=rows, G=POSITIONS, rests=("\n" + " " * 12).join(calls))
    exec(source, scope)
    numba.set_num_threads(min(torch.get_num_threads(), numba.get_num_threads()))
    signature = "void(float32[:, ::1], float32[:, ::1], float32[::1], float32[:, ::1])"
    compiled: Kernel = numba.njit(signature, parallel=True, fastmath=True)(scope["linear"])
    return compiled


def _apply(
    x: Tensor, weight: Tensor, bias: Tensor, arrays: tuple[Any, Any] | None = None
) -> Tensor:
    """Multiply x [..., K] with weight [N, K] and add bias [N]; `arrays` are both as numpy's."""
    flat = x.reshape(-1, weight.shape[1]).contiguous()
    product = kernel() if flat.shape[0] <= MAX_POSITIONS else None
    if product is None:
        library = onednn_product if onednn_available() else nn.functional.linear
        return library(flat, weight, bias).view(*x.shape[:-1], -1)
    y = torch.empty(flat.shape[0], weight.shape[0])
    product(flat.numpy(), *(arrays or (weight.numpy(), bias.numpy())), y.numpy())
    return y.view(*x.shape[:-1], -1)


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
    weight = module.weight
    return weight.dtype == torch.float32 and weight.device.type == "cpu" and weight.is_contiguous()
