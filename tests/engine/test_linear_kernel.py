"""The linear door gives the layer's own products, by every kernel behind it."""

import builtins
import functools
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from selfspec_cli.engine import linear_kernel, matrix_kernel
from selfspec_cli.engine.linear_kernel import MAX_POSITIONS, KernelLinear, fits
from selfspec_cli.engine.matrix_kernel import ROWS_NARROW, ROWS_WIDE, build_kernel

SHAPES = [(577, 64), (5, 63), (96, 1537)]  # N odd and below a block, K odd
RELATIVE = 1e-5  # of |x| |w|: what float32 sums of 1,537 products may differ by in another order


def layer(n: int, k: int, *, bias: bool = False, seed: int = 0) -> nn.Linear:
    made = nn.Linear(k, n, bias=bias)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return made.requires_grad_(False)


def states(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative_error(got: torch.Tensor, x: torch.Tensor, linear: nn.Linear) -> float:
    """Against float64, in units of |x| |w| of each product."""
    wide = linear.double()
    want = wide(x.double())
    scale = x.double().norm(dim=-1, keepdim=True) * wide.weight.norm(dim=-1)
    linear.float()
    return float(((got - want).abs() / scale).max()) if got.numel() else 0.0


@functools.cache
def variant(rows: int):
    return build_kernel(rows)


def by_kernel(kernel, x: torch.Tensor, linear: nn.Linear) -> torch.Tensor:
    y = np.full((len(x), len(linear.weight)), np.nan, dtype=np.float32)
    bias = torch.zeros(len(linear.weight)) if linear.bias is None else linear.bias
    kernel(x.numpy(), linear.weight.numpy(), bias.numpy(), y)
    return torch.from_numpy(y)


@pytest.mark.parametrize("rows", [ROWS_WIDE, ROWS_NARROW])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [False, True])
def test_each_variant_multiplies_any_number_of_positions(rows, shape, bias):
    """Both block heights, whichever this processor would take; 1 to 40 positions."""
    linear = layer(*shape, bias=bias)
    for m in range(1, 41):
        x = states(m, shape[1], seed=m)
        error = relative_error(by_kernel(variant(rows), x, linear), x, linear)
        assert error < RELATIVE, f"{m} positions, {shape}: off by {error:.3g} of |x| |w|"


def test_a_kernel_that_leaves_out_the_last_rows_is_caught(monkeypatch):
    """The twin runs whole blocks only; 577 = 96 · 6 + 1 rows."""
    rest = "range(block * {R}, rows)"
    assert rest in matrix_kernel._LINEAR
    monkeypatch.setattr(
        matrix_kernel, "_LINEAR", matrix_kernel._LINEAR.replace(rest, "range(rows, rows)")
    )
    monkeypatch.setattr(matrix_kernel, "_parallel", lambda function: function)  # nor kept on disk
    linear, x = layer(577, 64), states(3, 64)
    error = relative_error(by_kernel(build_kernel(ROWS_WIDE), x, linear), x, linear)
    assert not error < RELATIVE, f"off by {error:.3g} only"


@pytest.mark.parametrize("m", [1, 7, MAX_POSITIONS, MAX_POSITIONS + 1, 200])
@pytest.mark.parametrize("bias", [False, True])
def test_the_door_gives_the_layers_products(m, bias, monkeypatch):
    """Few positions by the kernel, more by oneDNN; both within rounding of the layer's own."""
    asked = []
    real = linear_kernel.onednn_product
    monkeypatch.setattr(
        linear_kernel, "onednn_product", lambda *a: asked.append(len(a[0])) or real(*a)
    )
    linear = layer(577, 63, bias=bias)
    x = states(m, 63)
    with torch.inference_mode():
        error = relative_error(KernelLinear(linear)(x), x, linear)
    assert error < RELATIVE, f"{m} positions: off by {error:.3g} of |x| |w|"
    assert asked == ([m] if m > MAX_POSITIONS else []), f"oneDNN was asked with {asked} positions"


@pytest.mark.parametrize("shape", [(0, 63), (2, 0, 63), (3, 5, 63), (1, 1, 63), (63,)])
def test_any_number_of_dimensions_and_none_of_positions(shape):
    linear = layer(96, 63, bias=True)
    x = states(*shape)
    with torch.inference_mode():
        got, want = KernelLinear(linear)(x), linear(x)
    assert got.shape == want.shape
    assert relative_error(got, x, linear) < RELATIVE


def test_states_that_are_not_contiguous():
    linear, x = layer(96, 64), states(64, 9, 2)
    for odd in (x.permute(1, 2, 0)[:, 1], x.permute(2, 1, 0)[:, ::2]):
        assert not odd.is_contiguous()
        with torch.inference_mode():
            error = relative_error(KernelLinear(linear)(odd), odd, linear)
        assert error < RELATIVE, f"{tuple(odd.shape)}: off by {error:.3g} of |x| |w|"


def test_weights_are_shared_and_not_copied():
    linear = layer(96, 64)
    door, x = KernelLinear(linear), states(2, 64)
    assert door.weight is linear.weight
    with torch.inference_mode():
        before = door(x).clone()
        linear.weight.mul_(2)
        assert torch.equal(door(x), 2 * before)


@pytest.fixture
def no_kernel(monkeypatch):
    """As where numba is not installed."""
    real = builtins.__import__

    def without(name, *args, **more):
        if name.partition(".")[0] in ("numba", "llvmlite"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    linear_kernel._made.cache_clear()
    yield
    linear_kernel._made.cache_clear()


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("m", [1, 5, 40])
def test_without_numba_the_library_multiplies(no_kernel, onednn, m, monkeypatch):
    monkeypatch.setattr(linear_kernel, "onednn_available", lambda: onednn)
    assert linear_kernel.kernel() is None
    assert "No module named" in linear_kernel.why_no_kernel()
    linear, x = layer(577, 63, bias=True), states(m, 63)
    with torch.inference_mode():
        error = relative_error(KernelLinear(linear)(x), x, linear)
    assert error < RELATIVE, f"{m} positions: off by {error:.3g} of |x| |w|"


def test_a_numba_that_cannot_compile_is_no_kernel(monkeypatch):
    """Another release may raise anything; the run goes on without."""

    def fails(rows):
        raise ValueError("LLVM ERROR\nand more")

    monkeypatch.setattr(linear_kernel, "build_kernel", fails)
    linear_kernel._made.cache_clear()
    try:
        assert (linear_kernel.kernel(), linear_kernel.why_no_kernel()) == (None, "LLVM ERROR")
    finally:
        linear_kernel._made.cache_clear()


def test_a_kept_kernel_that_cannot_be_read_is_compiled_again(monkeypatch):
    import numba

    def njit(*_, cache=False, **__):
        if cache:
            raise EOFError("Ran out of input")
        return lambda function: (function, "compiled")

    monkeypatch.setattr(numba, "njit", njit)
    assert matrix_kernel._parallel("source") == ("source", "compiled")


@pytest.mark.parametrize("threads", [2, 1])
def test_the_kernel_runs_on_as_many_threads_as_torch(threads):
    """Also when their number changes after it was compiled."""
    import numba

    linear, x = layer(577, 64), states(3, 64)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert relative_error(by_kernel(variant(ROWS_WIDE), x, linear), x, linear) < RELATIVE
        used = numba.get_num_threads()
    finally:
        torch.set_num_threads(before)
    assert used == min(threads, numba.config.NUMBA_NUM_THREADS)


def test_making_the_kernel_leaves_torch_its_threads():
    """Numba starts a thread a core and tells OpenMP so, which torch shares; once a process."""
    code = (
        "import torch\n"
        "from selfspec_cli.engine.linear_kernel import kernel\n"
        "torch.set_num_threads(3)\n"
        "run = kernel()\n"
        "x, w, b, y = (torch.zeros(*s).numpy() for s in ((1, 8), (9, 8), (9,), (1, 9)))\n"
        "run(x, w, b, y)\n"
        "print(torch.get_num_threads())\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "3", f"torch is left {done.stdout.strip()} of 3 threads"


def test_what_is_no_plain_float32_layer_keeps_its_own_product():
    class Other(nn.Linear):
        pass

    hooked, replaced = layer(8, 8), layer(8, 8)
    hooked.register_forward_hook(lambda *_: None)
    replaced.forward = lambda x: x
    strided = layer(8, 8)
    strided.weight = nn.Parameter(torch.randn(8, 8).T, requires_grad=False)
    others = (Other(8, 8), layer(8, 8).bfloat16(), hooked, replaced, strided, nn.Identity())
    assert [fits(module) for module in others] == [False] * len(others)
    assert fits(layer(8, 8))


def test_operator_in_a_graph_is_the_door():
    """What compiled layers call: same products, and shapes for a tracer."""
    linear, x = layer(96, 64, bias=True), states(2, 3, 64)
    door = KernelLinear(linear)
    with torch.inference_mode():
        got = torch.ops.selfspec.linear(x, door.weight, door.bias)
        assert torch.equal(got, door(x))
    meta = torch.ops.selfspec.linear(*(t.to("meta") for t in (x, door.weight, door.bias)))
    assert meta.shape == got.shape
