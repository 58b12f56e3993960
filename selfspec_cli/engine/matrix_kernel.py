"""The one kernel of our own: a matrix product for few positions on a CPU, in float32, by numba.

A decode step multiplies every weight with one position, a verification with a few. Library
products are made for hundreds of positions. Here a block of weight rows is read once and
multiplied into all positions, a few at a time, with every partial sum in a register.
"""

from collections.abc import Callable
from typing import Any

import torch

POSITIONS = 4  # multiplied into a block of weight rows at once
ROWS_WIDE, ROWS_NARROW = 6, 3  # weight rows a block: 6 x 4 sums need 32 vector registers, else 16

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
def linear{R}(x, w, bias, y):
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
_SIGNATURE = "void(float32[:, ::1], float32[:, ::1], float32[::1], float32[:, ::1])"
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


def build_kernel(rows: int) -> Kernel:
    """Compile the kernel for blocks of `rows` weight rows; kept on disk, then a load takes 0.1 s.

    Returns:
        `run(x, w, bias, y)`, which writes y = x wᵀ + bias, on as many threads as torch uses; all
        float32 and C-contiguous: x [m, K], w [N, K], bias [N], y [m, N].

    Raises:
        ImportError: numba is not installed, or not for this NumPy.
    """
    import numba
    import numpy as np

    # What is kept on disk is read back as a part of the module it names.
    scope: dict[str, Any] = {"__name__": __name__, "f4": np.float32, "prange": numba.prange}
    for r, g in [(1, 1), *((rows, g) for g in range(1, POSITIONS + 1))]:
        name = f"dot{r}_{g}"
        _define(_dot_source(r, g), scope)
        # `fastmath` lets sums be reordered, which a vector register needs.
        scope[name] = numba.njit(fastmath=True, inline="never")(scope[name])
    calls = (f"if rest == {g}: dot{rows}_{g}(x, w, bias, y, p, n)" for g in range(1, POSITIONS))
    _define(_LINEAR.format(R=rows, G=POSITIONS, rests=("\n" + " " * 12).join(calls)), scope)
    threads = torch.get_num_threads()
    compiled = _parallel(scope[f"linear{rows}"])
    numba.get_num_threads()  # starts numba's threads, after which OpenMP, and so torch, ...
    torch.set_num_threads(threads)  # ... would use every core whatever it was told
    most = numba.config.NUMBA_NUM_THREADS

    def run(x: Any, w: Any, bias: Any, y: Any) -> None:
        numba.set_num_threads(min(torch.get_num_threads(), most))  # a third of a microsecond
        compiled(x, w, bias, y)

    return run


def _define(source: str, scope: dict[str, Any]) -> None:
    # Named after this file, so that what is kept on disk is forgotten when the file changes.
    exec(compile(source, __file__, "exec"), scope)


def _parallel(function: Any) -> Any:
    import numba

    options = {"parallel": True, "fastmath": True}
    try:
        return numba.njit(_SIGNATURE, cache=True, **options)(function)
    except Exception:  # noqa: BLE001 - no place to keep it, or what is kept cannot be read
        return numba.njit(_SIGNATURE, **options)(function)


def block_rows() -> int:
    """Weight rows a block on this processor: as many as its vector registers can sum.

    Raises:
        ImportError: numba's compiler is not installed.
    """
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    return ROWS_NARROW if "sse2" in features and not features.get("avx512f") else ROWS_WIDE
