"""The compiled engine on a GPU: passes over few positions are recorded once and replayed.

A decode step launches hundreds of small kernels, and launching takes longer than running them. A
CUDA graph launches them all at once, but it repeats exactly what was recorded: the same shapes at
the same addresses, and any number that Python knew then. So a recorded pass reads what changes,
states and write pointers, from buffers of its own, writes keys and values at slots worked out on
the device, and reads the cache up to a span, a multiple of `SPAN`, whose end a mask hides.

Untested on GPU: tests record with a tracer on a CPU, which repeats as faithfully.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from selfspec_cli.engine.attention import additive
from selfspec_cli.engine.families import Family
from selfspec_cli.engine.kv_cache import KVCache
from selfspec_cli.engine.layer_programs import CacheWindow
from selfspec_cli.engine.view import LayerView, Prepared

SPAN = 256
"""Positions; the cache is read up to a multiple of it, so that one graph serves many contexts."""
MAX_POSITIONS = 32  # of a row in a recorded pass
MAX_TOTAL = 512  # rows × positions; beyond, running takes longer than launching
WARM_UPS = 2  # calls before a capture: libraries choose kernels and take workspace in the first
PassFunction = Callable[[Tensor, Tensor], Sequence[Tensor]]
"""From states [B, m, H] and write pointers int64 [B] to the states after each layer."""


class GraphNotice(UserWarning):
    """Says once that the rest of a run is decoded with the eager engine."""


class Recorder(Protocol):
    """Records a function of tensors so that it can be run again without Python."""

    def record(
        self, run: PassFunction, inputs: tuple[Tensor, Tensor]
    ) -> Callable[[], Sequence[Tensor]]:
        """Return what runs `run` again over whatever `inputs` then hold.

        Its results lie in the same memory every time: they hold until it is called again.

        Raises:
            RuntimeError: the function cannot be recorded here, or memory is short.
        """


class CudaRecorder:
    """Records CUDA graphs; all of them share one pool of memory, since one runs at a time.

    Args:
        device: of the model.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def record(
        self, run: PassFunction, inputs: tuple[Tensor, Tensor]
    ) -> Callable[[], Sequence[Tensor]]:
        """As `Recorder.record`, after a few calls beside the main stream, as capturing asks for."""
        with torch.cuda.device(self._device):
            usual = torch.cuda.current_stream()
            try:
                graph, outputs = self._capture(run, inputs, usual)
            finally:
                torch.cuda.set_stream(usual)  # a capture that fails leaves its own in place

        def replay() -> Sequence[Tensor]:
            with torch.cuda.device(self._device):
                graph.replay()
            return outputs

        return replay

    def _capture(
        self, run: PassFunction, inputs: tuple[Tensor, Tensor], usual: torch.cuda.Stream
    ) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]:
        self._stream.wait_stream(usual)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                run(*inputs)
        usual.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            outputs = tuple(run(*inputs))
        return graph, outputs


class Shape(NamedTuple):
    """What a recorded pass is fixed to."""

    layers: tuple[int, ...]
    buffer: int
    """Identity of the first layer's keys, which the recorded pass holds."""
    rows: int
    positions: int
    span: int
    """Positions of the cache it reads."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded pass and the memory it reads and writes."""

    hidden: Tensor
    """Input [B, m, H]."""
    starts: Tensor
    """Write pointers, int64 [B]."""
    replay: Callable[[], Sequence[Tensor]]
    buffers: tuple[tuple[Tensor, Tensor], ...]
    lends: bool
    """Whether it also serves passes of fewer positions, whose last ones are then made up."""

    def __call__(self, hidden: Tensor, starts: Sequence[int]) -> list[Tensor]:
        """States after each layer for [B, m' <= m, H]; valid until the next replay."""
        m = hidden.shape[1]
        self.hidden[:, :m].copy_(hidden)
        self.starts.copy_(torch.tensor(starts))
        return [state[:, :m] for state in self.replay()]


class GraphView(LayerView):
    """A view whose passes over few positions are replayed.

    Passes live as long as the cache they were recorded over. One position, or several above the
    first layers (a verification), are recorded at their first use; several positions from layer 0
    on are a prompt, which runs once, unless `ready` was called for them.

    Args:
        model: the model, on one device.
        family: its table entry.
        recorder: of that device.
        span: multiple that the read part of the cache is rounded up to.

    Attributes:
        failure: why nothing is recorded any more, None as long as all goes well.
    """

    engine = "compiled"

    def __init__(
        self, model: nn.Module, family: Family, recorder: Recorder, *, span: int = SPAN
    ) -> None:
        super().__init__(model, family)
        self._recorder, self._span = recorder, span
        self._passes: WeakKeyDictionary[KVCache, dict[Shape, Recorded]] = WeakKeyDictionary()
        self.failure: str | None = None

    def new_cache(self, *, rows: int = 1, capacity: int) -> KVCache:
        """As `LayerView.new_cache`, with room for the made-up positions of a shortened draft."""
        room = _rounded_up(capacity + MAX_POSITIONS, self._span)
        return super().new_cache(rows=rows, capacity=room)

    def prepare(self, hidden: Tensor, starts: Sequence[int]) -> Prepared:
        """As `LayerView.prepare`; nothing for a pass that prepares itself on the device."""
        rows, m = hidden.shape[:2]
        if self._serves(rows, m, starts):
            return Prepared({}, {})
        return super().prepare(hidden, starts)

    def chain(
        self,
        hidden: Tensor,
        cache: KVCache,
        indices: Sequence[int],
        prepared: Prepared,
        tap: Callable[[int, Tensor], None] | None = None,
    ) -> Tensor:
        """As `LayerView.chain`, and with the same result within float rounding."""
        if not indices:
            return hidden
        m = hidden.shape[1]
        starts = cache.lengths[indices[0]]
        with torch.inference_mode():
            one = self._find(cache, tuple(indices), starts, m)
            if one is None:
                if not prepared.by_kind:
                    prepared = super().prepare(hidden, starts)
                return super().chain(hidden, cache, indices, prepared, tap)
            states = one(hidden, starts)
            for index, state in zip(indices, states, strict=True):
                cache.lengths[index] = [start + m for start in starts]
                if tap is not None:
                    tap(index + 1, state.clone())  # the next replay writes over it
            return states[-1].clone()

    @torch.inference_mode()
    def ready(
        self, cache: KVCache, indices: Sequence[int], positions: int, end: int | None = None
    ) -> None:
        """Record passes of `positions`, from where the cache stands until it holds `end` tokens.

        They then serve passes of fewer positions too, above those of one.
        """
        layers = tuple(indices)
        if not layers:
            return
        starts = cache.lengths[layers[0]]
        first = max(starts) + positions
        last = min(max(first, (end or first) + positions), _room(cache, layers))
        for reach in range(_rounded_up(first, self._span), last + self._span, self._span):
            if not self._can(cache, layers, starts, positions):
                return
            shape = self._shape(cache, layers, (len(starts), positions), reach)
            if shape not in self._passes.get(cache, {}):
                self._record(cache, shape, lends=positions > 1)

    def _serves(self, rows: int, m: int, starts: Sequence[int]) -> bool:
        """Whether passes like this are replayed where they can be."""
        few = m <= MAX_POSITIONS and rows * m <= MAX_TOTAL
        return self.failure is None and few and min(starts) > 0

    def _can(self, cache: KVCache, layers: Sequence[int], starts: Sequence[int], m: int) -> bool:
        """Whether one can be over this cache."""
        if not self._serves(len(starts), m, starts) or max(starts) + m > _room(cache, layers):
            return False
        # A row lent by a batch lives for one prompt.
        first = cache.keys[layers[0]]
        return first is not None and first.untyped_storage().nbytes() == first.nbytes

    def _shape(
        self, cache: KVCache, layers: tuple[int, ...], size: tuple[int, int], end: int
    ) -> Shape:
        span = min(_rounded_up(end, self._span), _room(cache, layers))
        return Shape(layers, id(cache.keys[layers[0]]), *size, span)

    def _find(
        self, cache: KVCache, layers: tuple[int, ...], starts: Sequence[int], m: int
    ) -> Recorded | None:
        """Return what serves this pass, recorded now if need be; None leaves it to the layers."""
        if not self._can(cache, layers, starts, m):
            return None
        passes, rows, reach = self._passes.setdefault(cache, {}), len(starts), max(starts)
        shape = self._shape(cache, layers, (rows, m), reach + m)
        if shape in passes:
            return passes[shape]
        room = _room(cache, layers)
        most = min(MAX_POSITIONS, room - reach, (self.max_positions or room) - reach)
        for longer in range(m + 1, most + 1 if m > 1 else 0):
            other = passes.get(self._shape(cache, layers, (rows, longer), reach + longer))
            if other is not None and other.lends:
                return other
        if m > 1 and layers[0] == 0:
            return None
        return self._record(cache, shape, lends=False)

    def _record(self, cache: KVCache, shape: Shape, *, lends: bool) -> Recorded | None:
        """Record one pass; what it writes meanwhile lies beyond the pointers, so it is not seen."""
        buffers = tuple(
            (keys, values)
            for keys, values in ((cache.keys[i], cache.values[i]) for i in shape.layers)
            if keys is not None and values is not None
        )
        hidden = torch.zeros(
            shape.rows, shape.positions, self.hidden_size, dtype=self.dtype, device=self.device
        )
        starts = torch.tensor(cache.lengths[shape.layers[0]], device=self.device)
        try:
            replay = self._recorder.record(self._pass(shape, buffers), (hidden, starts))
        except RuntimeError as error:
            self._give_up(error)
            return None
        one = Recorded(hidden, starts, replay, buffers, lends)
        self._passes.setdefault(cache, {})[shape] = one
        return one

    def _give_up(self, error: RuntimeError) -> None:
        self.failure = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        self.engine = "eager"
        self._passes.clear()
        warnings.warn(
            f"decoding with the eager engine from here on: a pass cannot be recorded "
            f"({self.failure})",
            GraphNotice,
            stacklevel=2,
        )

    def _pass(self, shape: Shape, buffers: Sequence[tuple[Tensor, Tensor]]) -> PassFunction:
        """Return the pass to record: everything that changes is a tensor it is given."""

        def run(hidden: Tensor, starts: Tensor) -> list[Tensor]:
            slots = self._slots(starts, shape.positions)
            masks = {kind: self._hidden_part(kind, slots, shape.span) for kind in kinds}
            prepared = self._prepared(hidden, slots, masks)
            states = []
            for index, (keys, values) in zip(shape.layers, buffers, strict=True):
                own = keys[: shape.rows], values[: shape.rows]  # of the rows that run
                window = CacheWindow(*own, slots, shape.span)
                hidden = self._layers[index](
                    hidden,
                    **prepared.shared,
                    **prepared.by_kind[self.layer_kinds[index]],
                    **{self.family.cache_argument: window},
                )
                states.append(hidden)
            return states

        kinds = {self.layer_kinds[index] for index in shape.layers}
        return run

    def _slots(self, starts: Tensor, m: int) -> Tensor:
        return starts[:, None] + torch.arange(m, device=starts.device)  # [B, m]

    def _hidden_part(self, kind: str, slots: Tensor, span: int) -> Tensor:
        """What is added to the scores, [B, 1, m, span]; it hides what lies beyond each position."""
        columns = torch.arange(span, device=slots.device)[None, None, None, :]
        visible = self._visible(kind)(0, 0, slots[:, None, :, None], columns)
        return additive(visible, self.dtype)


def _room(cache: KVCache, layers: Sequence[int]) -> int:
    """Positions that the buffers of a cache hold, which may be another cache's; 0 without any."""
    if any(cache.keys[index] is None for index in layers):
        return 0
    first = cache.keys[layers[0]]
    return 0 if first is None else min(cache.capacity, first.shape[2])


def _rounded_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
