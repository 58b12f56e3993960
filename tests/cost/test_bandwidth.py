"""The floor counts each byte a step must read, once."""

import pytest
import torch
from cost_helpers import N, Till, V, tiny_view

from selfspec_cli.cost.bandwidth import bandwidth_floor_seconds, kv_bytes, read_bandwidth
from selfspec_cli.cost.clock import Clock
from selfspec_cli.engine.view import FULL, SLIDING

CPU = torch.device("cpu")


def test_bandwidth_is_bytes_over_the_fastest_try() -> None:
    """Tries take 9, 8, .. 1 ms and 10 ms; 64 MiB in the fastest is 67.1 GB/s."""
    till, spans = Till(), iter([9, 8, 7, 6, 5, 4, 3, 2, 1, 10])

    class Scripted(Clock):
        def span(self, step, repeats=1):  # type: ignore[no-untyped-def]
            step()
            return next(spans) * 1e-3

    found = read_bandwidth(CPU, Scripted(None, till.clock().read_ns), num_bytes=1 << 26)
    assert found == pytest.approx((1 << 26) / 1e-3), f"{found / 1e9:.1f} GB/s"


def test_real_memory_is_read_at_a_believable_speed() -> None:
    found = read_bandwidth(CPU, Clock.for_device(CPU), num_bytes=1 << 27)
    assert 1e8 < found < 1e13, f"{found / 1e9:.2f} GB/s"


def test_cache_bytes_grow_with_the_context_up_to_a_window() -> None:
    view = tiny_view()
    position = 2 * 2 * 16 * 4  # keys and values, 2 heads of 16, float32
    assert kv_bytes(view, 50) == N * 50 * position
    assert kv_bytes(view, 0) == 0
    view.layer_kinds, view.window = (SLIDING, FULL) * 3, 32
    assert kv_bytes(view, 50) == (3 * 32 + 3 * 50) * position


def test_floor_is_weights_and_cache_over_bandwidth() -> None:
    """Weights written out: attention 64·64·2 + 64·32·2, MLP 3·64·96, two norms, head, norm."""
    view = tiny_view()
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96 + 2 * 64
    weights = 4 * (N * layer + V * 64 + 64)
    want = (weights + kv_bytes(view, 100)) / 1e9
    assert bandwidth_floor_seconds(view, 100, 1e9) == pytest.approx(want, rel=1e-12)
