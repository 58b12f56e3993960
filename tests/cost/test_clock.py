"""Samples include the device's work, and nothing else's."""

import gc

import pytest
import torch
from cost_helpers import Till

from selfspec_cli.cost.clock import Clock

MS = 1_000_000


class Device:
    """A device with a queue: a launch returns at once, the work ends later (B05)."""

    def __init__(self, till: Till) -> None:
        self.till, self.busy_until, self.events = till, 0, []

    def launch(self, ns: int = 20 * MS) -> None:
        self.events.append("launch")
        self.busy_until = max(self.busy_until, self.till.now_ns) + ns

    def synchronise(self) -> None:
        self.events.append("wait")
        self.till.now_ns = max(self.till.now_ns, self.busy_until)

    def read(self) -> int:
        self.events.append("read")
        return self.till.now_ns


def test_the_work_a_step_queued_is_timed() -> None:
    device = Device(Till())
    seconds = Clock(device.synchronise, device.read).span(device.launch)
    assert seconds >= 0.020, f"a 20 ms step was timed as {seconds * 1e3:.2f} ms"
    assert device.events == ["wait", "read", "launch", "wait", "read"], device.events


def test_a_clock_that_does_not_wait_sees_nothing() -> None:
    """Broken twin: only the launch is timed, the mistake of B05."""
    device = Device(Till())
    assert Clock(None, device.read).span(device.launch) == 0.0


def test_work_queued_before_a_sample_is_not_timed() -> None:
    device = Device(Till())
    device.launch(50 * MS)
    seconds = Clock(device.synchronise, device.read).span(device.launch)
    assert seconds == pytest.approx(0.020), f"{seconds * 1e3:.1f} ms of 20 ms"


def test_repeats_are_one_span_with_one_wait() -> None:
    device = Device(Till())
    seconds = Clock(device.synchronise, device.read).span(device.launch, repeats=3)
    assert seconds == pytest.approx(0.060), f"3 × 20 ms gave {seconds * 1e3:.1f} ms"
    assert device.events.count("wait") == 2, device.events


def test_a_cpu_has_nothing_to_wait_for() -> None:
    assert Clock.for_device(torch.device("cpu")).synchronise is None


@pytest.mark.parametrize("running", [True, False])
def test_the_collector_rests_during_a_sample_and_is_as_before_after(running: bool) -> None:
    seen: list[bool] = []

    def fails() -> None:
        seen.append(gc.isenabled())
        raise RuntimeError("step failed")

    before = gc.isenabled()
    try:
        (gc.enable if running else gc.disable)()
        with pytest.raises(RuntimeError, match="step failed"):
            Clock().span(fails)
        assert seen == [False], "the collector could run inside a sample"
        assert gc.isenabled() is running, f"collector is {gc.isenabled()}, was {running}"
    finally:
        (gc.enable if before else gc.disable)()
