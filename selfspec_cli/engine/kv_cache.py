"""One key/value cache for drafting, verifying and plain decoding, with a write pointer per row.

Slot j of a row always holds the token at position j, so a rollback only moves a pointer: what lies
beyond it is never visible (masks are built from positions) and is overwritten by the next write.
Layers with a sliding window keep all positions too: what a round wrote beyond the window's edge may
be rolled back, and the positions it pushed out must then be there again.
Layers [0, L) run ahead of layers [L, N) while a round drafts, so pointers are kept per layer too.
Only the first rows may take part in a pass: those that have pointers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class KVCache:
    """Preallocated keys and values, [rows, heads, capacity, head_dim] a layer.

    Takes the place of the library's cache: attention modules call `update` and get the keys and
    values of everything up to and including the current pass. Buffers are made at a layer's first
    write, when its head count and width are known.

    Args:
        num_layers: decoder layers N.
        rows: batch rows B.
        capacity: positions per row; a write beyond it raises IndexError.

    Attributes:
        lengths: write pointers by layer, one for each active row (all rows until `activate`).
    """

    is_compileable = False  # read by the library's mask and attention code

    def __init__(self, num_layers: int, *, rows: int = 1, capacity: int) -> None:
        self.rows, self.capacity = rows, capacity
        self.lengths = [[0] * rows for _ in range(num_layers)]
        self.keys: list[Tensor | None] = [None] * num_layers
        self.values: list[Tensor | None] = [None] * num_layers
        self._ragged: tuple[tuple[object, ...], tuple[Tensor, Tensor]] | None = None

    @property
    def active(self) -> int:
        """How many of the first rows take part in a pass."""
        return len(self.lengths[0])

    def activate(self, lengths: Sequence[int]) -> None:
        """Let the first len(lengths) rows take part in passes, with these pointers in all layers.

        Raises:
            ValueError: more rows than there are, or a pointer outside the cache.
        """
        if len(lengths) > self.rows or any(not 0 <= n <= self.capacity for n in lengths):
            raise ValueError(
                f"pointers {list(lengths)} do not fit {self.rows} rows of {self.capacity} positions"
            )
        self.lengths = [list(lengths) for _ in self.lengths]

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Write [active, heads, m, dim] at each row's pointer; return all up to the longest row."""
        if self.keys[layer_idx] is None:
            self.keys[layer_idx] = self._allocate(key)
            self.values[layer_idx] = self._allocate(value)
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        assert keys is not None  # allocated just above
        assert values is not None
        starts, m = self.lengths[layer_idx], key.shape[2]
        active, end = len(starts), max(starts) + m
        if end > self.capacity:
            raise IndexError(f"KV cache of {self.capacity} positions asked to hold {end}")
        if min(starts) == max(starts):
            keys[:active, :, starts[0] : end] = key
            values[:active, :, starts[0] : end] = value
        else:
            index = self._slots(starts, m, key.device)
            keys.transpose(1, 2)[index] = key.transpose(1, 2)
            values.transpose(1, 2)[index] = value.transpose(1, 2)
        self.lengths[layer_idx] = [start + m for start in starts]
        return keys[:active, :, :end], values[:active, :, :end]

    def _slots(self, starts: Sequence[int], m: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Row and position [active, m] of each write; made once a pass, not once a layer."""
        wanted = (*starts, m, device)
        if self._ragged is None or self._ragged[0] != wanted:
            rows = torch.arange(len(starts))[:, None].to(device)
            slots = (torch.tensor(starts)[:, None] + torch.arange(m)).to(device)
            self._ragged = (wanted, (rows, slots))
        return self._ragged[1]

    def _allocate(self, like: Tensor) -> Tensor:
        # Zeros, not empty: a masked slot still enters attention as 0 · value, and 0 · NaN is NaN.
        return like.new_zeros(self.rows, like.shape[1], self.capacity, like.shape[3])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Longest active row of a layer (positions); the library asks for it by this name."""
        return max(self.lengths[layer_idx])

    def rollback(self, lengths: Sequence[int]) -> None:
        """Set every layer's pointers to `lengths` [active]; nothing is copied.

        Raises:
            ValueError: below 0, or a layer has written less than that, so a slot would hold
                nothing; no pointer has moved.
        """
        for layer, written in enumerate(self.lengths):
            if any(not 0 <= want <= have for want, have in zip(lengths, written, strict=True)):
                raise ValueError(
                    f"layer {layer} holds {written} positions, cannot roll back to {list(lengths)}"
                )
        self.lengths = [list(lengths) for _ in self.lengths]

    def row(self, index: int) -> "KVCache":
        """Return row `index` as a cache of its own over the same memory, empty of pointers.

        Used to fill the rows of a batch one by one without padding. Buffers must exist already
        (see `reserve`) to be shared.
        """
        view = KVCache(len(self.lengths), rows=1, capacity=self.capacity)
        for layer, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            if key is None or value is None:
                raise ValueError(f"layer {layer} has no buffer yet; call reserve() first")
            view.keys[layer] = key[index : index + 1]
            view.values[layer] = value[index : index + 1]
        return view

    def copy_row(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first `length` positions of row `source` into other rows; moves no pointer."""
        for buffer in (*self.keys, *self.values):
            for target in targets:
                if buffer is not None:
                    buffer[target, :, :length] = buffer[source, :, :length]

    def reserve(self, template: "KVCache") -> None:
        """Make all buffers now, with the shapes of another cache's layers."""
        for layer, (key, value) in enumerate(zip(template.keys, template.values, strict=True)):
            if key is None or value is None:
                raise ValueError(f"template layer {layer} was never written")
            self.keys[layer] = self._allocate(key)
            self.values[layer] = self._allocate(value)

    def allocated_bytes(self) -> int:
        """Memory held by keys and values."""
        held = [t for t in (*self.keys, *self.values) if t is not None]
        return sum(t.numel() * t.element_size() for t in held)
