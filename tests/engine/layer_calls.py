"""Count what a decode runs: forward calls of the library's own layers."""

from collections import defaultdict


class CallCounter:
    """Counts forward calls of each layer by their number of positions, and of rows."""

    def __init__(self, view) -> None:
        self.calls, self.rows = defaultdict(list), set()
        self._hooks = [
            layer.register_forward_pre_hook(self._noted(index))
            for index, layer in enumerate(view._layers)
        ]

    def _noted(self, index: int):
        def note(_, arguments):
            self.calls[index].append(arguments[0].shape[1])
            self.rows.add(arguments[0].shape[0])

        return note

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for hook in self._hooks:
            hook.remove()

    def take(self) -> dict[int, list[int]]:
        taken, self.calls = dict(self.calls), defaultdict(list)
        return taken
