"""The only place that reads a clock to measure: monotonic, and told to wait for the device."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch


class Stopwatch(Protocol):
    """What measuring needs of a clock; tests bring a scripted one."""

    def span(self, step: Callable[[], object], repeats: int = 1) -> float:
        """Seconds that `repeats` calls of `step` take together, their device work included."""


@dataclass(frozen=True, slots=True)
class Clock:
    """A stopwatch over a monotonic clock.

    A device works through a queue: a call returns long before its work is done. So the device is
    waited for before the first reading of a sample and before the last. On a CPU there is nothing
    to wait for and nothing is called.

    Attributes:
        synchronise: waits until the device is idle; None on a CPU.
        read_ns: monotonic time (nanoseconds).
    """

    synchronise: Callable[[], None] | None = None
    read_ns: Callable[[], int] = time.perf_counter_ns

    @classmethod
    def for_device(cls, device: torch.device) -> "Clock":
        """Return the clock of a device."""
        return cls(_synchroniser(device))

    def span(self, step: Callable[[], object], repeats: int = 1) -> float:
        """Seconds that `repeats` calls of `step` take together, their device work included."""
        with collector_paused():
            self._wait()
            begin = self.read_ns()
            for _ in range(repeats):
                step()
            self._wait()
            end = self.read_ns()
        return (end - begin) * 1e-9

    def _wait(self) -> None:
        if self.synchronise is not None:
            self.synchronise()


def _synchroniser(device: torch.device) -> Callable[[], None] | None:
    if device.type == "cpu":
        return None
    if device.type == "mps":
        return torch.mps.synchronize
    return partial(torch.get_device_module(device).synchronize, device)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep Python's garbage collector out of a sample; it may run between samples."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
