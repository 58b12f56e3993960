"""The library's own ways to decode one request: plainly, by prompt lookup, by early exit.

Run on the library's own layers at temperature 0. They are other programs than ours, so each ratio
is to be read against the library's own plain decoding, `generate`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from selfspec_cli.bench.arms import EARLY_EXIT, GENERATE, LOOKUP
from selfspec_cli.bench.memory import Memory
from selfspec_cli.cost.clock import Clock
from selfspec_cli.engine.load import LoadedModel
from selfspec_cli.records import PreparedRequest

LOOKUP_TOKENS = 10  # drafts of prompt lookup, as the library's documentation sets it


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalRun:
    """One request decoded by the library."""

    tokens: tuple[int, ...]
    """Output."""
    deliveries: tuple[tuple[int, int], ...]
    """(nanoseconds since the call, tokens handed over) each time that tokens came."""

    seconds: float
    """Of the whole call."""


class Rivals:
    """Runs the library's arms and remembers which of them this model does not support.

    Args:
        loaded: a model whose layers are the library's own (engine eager).
        ballast_bytes: memory of our copy of the weights where this is a second one, else 0.
    """

    def __init__(self, loaded: LoadedModel, ballast_bytes: int = 0) -> None:
        self.loaded = loaded
        self._memory = Memory(loaded.view, ballast_bytes)
        self.refused: dict[str, str] = {}
        """Why an arm was given up, by arm."""

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.loaded.view.device

    def supports(self, request: PreparedRequest, temperature: float) -> bool:
        """Whether a request is one that all its arms decode by the same law as ours."""
        return temperature == 0 and not request.sampling.penalised and not request.stop

    def run(
        self, arm: str, request: PreparedRequest, exit_layer: int | None, clock: Clock
    ) -> RivalRun | None:
        """Decode a request; None where this model does not support the arm (see `refused`).

        Args:
            arm: one of `arms.RIVALS`.
            request: decoded greedily, up to its own budget.
            exit_layer: of the early exit; the other arms do not read it.
            clock: of the device.
        """
        if arm in self.refused or (arm == EARLY_EXIT and exit_layer is None):
            return None
        config: Any = self.loaded.view.model.config
        layers = config.num_hidden_layers
        try:
            made = self._generate(request, self._settings(arm, request, exit_layer), clock)
        except Exception as error:  # noqa: BLE001 - families fail in ways of their own
            self.refused[arm] = f"{type(error).__name__}: {_first_line(error)}"
            return None
        finally:
            config.num_hidden_layers = layers  # the library leaves it cut where an exit fails
        return made

    def watch(self, call: Callable[[], RivalRun | None]) -> tuple[RivalRun | None, int | None]:
        """Call; returns the result and the peak bytes, None on a CPU: its caches are its own."""
        return self._memory.watch(call, None)

    def _settings(
        self, arm: str, request: PreparedRequest, exit_layer: int | None
    ) -> GenerationConfig:
        by_arm: dict[str, dict[str, Any]] = {
            GENERATE: {},
            LOOKUP: {"prompt_lookup_num_tokens": LOOKUP_TOKENS},
            EARLY_EXIT: {"assistant_early_exit": exit_layer},
        }
        eos = sorted(self.loaded.eos_ids)
        return GenerationConfig(
            max_new_tokens=request.max_tokens,
            do_sample=False,
            num_beams=1,
            repetition_penalty=1.0,
            eos_token_id=eos or None,
            pad_token_id=eos[0] if eos else 0,
            use_cache=True,
            **by_arm[arm],
        )

    def _generate(
        self, request: PreparedRequest, settings: GenerationConfig, clock: Clock
    ) -> RivalRun:
        ids = torch.tensor([request.prompt_token_ids], device=self.device)
        model: Any = self.loaded.view.model
        stamps = _Stamps(clock.read_ns)
        found: list[Any] = []

        def call() -> None:
            stamps.begin = clock.read_ns()
            mask = torch.ones_like(ids)
            found.append(
                model.generate(
                    ids, attention_mask=mask, generation_config=settings, streamer=stamps
                )
            )

        seconds = clock.span(call)
        output = tuple(int(token) for token in found[0][0, ids.shape[1] :])
        return RivalRun(tokens=output, deliveries=tuple(stamps.deliveries), seconds=seconds)


class _Stamps(BaseStreamer):
    """Notes when tokens come; the first thing a streamer is handed is the prompt."""

    def __init__(self, read_ns: Callable[[], int]) -> None:
        self._read_ns, self.begin = read_ns, 0
        self.deliveries: list[tuple[int, int]] = []
        self._prompt_seen = False

    def put(self, value: Any) -> None:
        """Take tokens."""
        if self._prompt_seen:
            self.deliveries.append((self._read_ns() - self.begin, int(value.numel())))
        self._prompt_seen = True

    def end(self) -> None:
        """Nothing is held back."""


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:160]
