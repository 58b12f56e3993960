"""The bandwidth floor: no decode step can be faster than reading what it must read once."""

import psutil
import torch

from selfspec_cli.cost.clock import Stopwatch
from selfspec_cli.engine.view import SLIDING, LayerView

BUFFER_BYTES = 1 << 29  # far larger than any cache, so that memory is what is read
_MEMORY_SHARE = 4  # never more than a quarter of the free memory
_TRIES = 5
_ROW = 4096  # width of the buffer as a matrix


@torch.inference_mode()
def read_bandwidth(
    device: torch.device, clock: Stopwatch, *, num_bytes: int = BUFFER_BYTES
) -> float:
    """Measure how fast this device reads memory with all its threads (bytes a second).

    The best of several tries of a sum and of a matrix-vector product (the shape of a decode step):
    a ceiling is wanted, and neither kernel is the faster one everywhere.

    Args:
        device: where the model runs.
        clock: of that device.
        num_bytes: size of the buffer that is read; made smaller where memory is short.
    """
    if device.type == "cpu":
        num_bytes = min(num_bytes, psutil.virtual_memory().available // _MEMORY_SHARE)
    rows = max(1, num_bytes // (4 * _ROW))
    matrix = torch.ones(rows, _ROW, device=device)  # written: pages of zeros may share one page
    vector = torch.ones(_ROW, device=device)
    kernels = (matrix.sum, lambda: torch.mv(matrix, vector))
    best = min(clock.span(kernel) for _ in range(_TRIES) for kernel in kernels)
    return matrix.numel() * matrix.element_size() / best


@torch.inference_mode()
def position_bytes(view: LayerView) -> tuple[int, ...]:
    """Bytes of the keys and values of one cached token, by layer."""
    probe = view.new_cache(capacity=1)
    token = torch.zeros(1, 1, dtype=torch.long, device=view.device)
    view.run(view.embed(token, probe), probe, 0, view.num_layers)
    found = []
    for key, value in zip(probe.keys, probe.values, strict=True):
        if key is None or value is None:
            raise RuntimeError("a layer ran without writing to its cache")
        found.append((key.nbytes + value.nbytes) // key.shape[2])  # a view may make more room
    return tuple(found)


def kv_bytes(view: LayerView, context: int) -> int:
    """Bytes of keys and values one decode step of one row reads at `context` cached tokens.

    A layer with a sliding window reads at most its window.
    """
    window = view.window
    return sum(
        size * (context if kind != SLIDING or window is None else min(context, window))
        for kind, size in zip(view.layer_kinds, position_bytes(view), strict=True)
    )


def bandwidth_floor_seconds(
    view: LayerView, context: int, bandwidth: float, batch: int = 1
) -> float:
    """Return the least seconds of one plain step of `batch` rows at `context` tokens each.

    Weights (`LayerView.step_bytes`) and caches (`kv_bytes`) are read once each at `bandwidth`
    (bytes a second), and nothing else takes any time.
    """
    return (view.step_bytes() + batch * kv_bytes(view, context)) / bandwidth
