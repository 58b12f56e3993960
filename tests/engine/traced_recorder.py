"""Record a pass on a CPU as a CUDA graph would: same shapes, same memory, nothing asked of Python.

The function is run once under a tracer that notes every operation on tensors. Replaying repeats
these operations over the buffers as they are then; a number that Python read while the function ran
is a constant for ever, and asking a tensor for its value cannot be recorded, exactly as with CUDA.
"""

from torch.fx.experimental.proxy_tensor import make_fx


class TracedRecorder:
    """Attributes: `sizes`, the (rows, positions) of each record made."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []

    def record(self, run, inputs):
        self.sizes.append(tuple(inputs[0].shape[:2]))
        run(*inputs)  # the warm-up, which writes into the cache as a real one does
        graph = make_fx(lambda *given: tuple(run(*given)))(*inputs)
        outputs = tuple(state.clone() for state in graph(*inputs))

        def replay():
            for state, new in zip(outputs, graph(*inputs), strict=True):
                state.copy_(new)
            return outputs

        return replay


class FailingRecorder(TracedRecorder):
    """Records a few passes, then has no memory left."""

    def __init__(self, good: int = 0) -> None:
        super().__init__()
        self.good = good

    def record(self, run, inputs):
        if len(self.sizes) >= self.good:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")
        return super().record(run, inputs)
