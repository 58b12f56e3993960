"""Peak memory of an arm: measured on an accelerator, reckoned on a CPU.

A process' own peak says nothing of one arm among many, so on a CPU weights and the whole cache are
added up: what an arm needs at least, without what single passes take.
"""

from collections.abc import Callable
from typing import TypeVar

import torch

from selfspec_cli.cost.bandwidth import position_bytes
from selfspec_cli.engine.view import LayerView

_Made = TypeVar("_Made")


class Memory:
    """Weighs what our arms take.

    Args:
        view: the model that they decode with.
        ballast_bytes: memory of a second copy of the weights, which no arm of ours needs.
    """

    def __init__(self, view: LayerView, ballast_bytes: int = 0) -> None:
        self._device, self._ballast = view.device, ballast_bytes
        self.weight_bytes = weight_bytes(view)
        self._position_bytes = sum(position_bytes(view))

    def reckoned(self, rows: int, positions: int) -> int:
        """Bytes of the weights and of a cache of `rows` with `positions` tokens each."""
        return self.weight_bytes + rows * positions * self._position_bytes

    def watch(self, call: Callable[[], _Made], reckoned: int | None) -> tuple[_Made, int | None]:
        """Call; returns the result and the peak bytes meanwhile, measured if the device can say.

        Args:
            call: what is weighed.
            reckoned: taken where nothing can be measured; None is unknown.
        """
        if self._device.type != "cuda":
            return call(), reckoned
        torch.cuda.reset_peak_memory_stats(self._device)
        made = call()
        return made, torch.cuda.max_memory_allocated(self._device) - self._ballast


def weight_bytes(view: LayerView) -> int:
    """Bytes of a model's parameters, shared ones once."""
    return sum(one.nbytes for one in view.model.parameters())
