"""The library's own ways to decode one request: plainly, by prompt lookup, by early exit.

Run on the library's own layers. They are other programs than ours, so each ratio is to be read
against the library's own plain decoding, `generate`. Above temperature 0 they sample by the same
temperature, top-k and top-p and write texts of their own, so times a token compare. They are asked
for there only on request: an early exit that is rarely right takes most of a bench's time.
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
class RivalJob:
    """What the library is to decode."""

    arm: str
    """One of `arms.RIVALS`."""
    request: PreparedRequest
    """Decoded up to its own budget."""
    temperature: float
    exit_layer: int | None
    """Of the early exit; the other arms do not read it."""
    seed: int
    """Of the coins; not read at temperature 0."""


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
        sampled: whether to decode above temperature 0 too.
    """

    def __init__(
        self, loaded: LoadedModel, ballast_bytes: int = 0, *, sampled: bool = False
    ) -> None:
        self.loaded, self.sampled = loaded, sampled
        self._memory = Memory(loaded.view, ballast_bytes)
        self.refused: dict[str, str] = {}
        """Why an arm was given up, by arm."""

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.loaded.view.device

    def supports(self, request: PreparedRequest, temperature: float) -> bool:
        """Whether a request is one that all its arms decode by the same law as ours."""
        at = temperature == 0 or self.sampled
        return at and not request.sampling.penalised and not request.stop

    def run(self, job: RivalJob, clock: Clock) -> RivalRun | None:
        """Decode a request; None where this model does not support the arm (see `refused`).

        Args:
            job: the request and the arm.
            clock: of the device.
        """
        if job.arm in self.refused or (job.arm == EARLY_EXIT and job.exit_layer is None):
            return None
        config: Any = self.loaded.view.model.config
        layers = config.num_hidden_layers
        try:
            made = self._generate(job, clock)
        except Exception as error:  # noqa: BLE001 - families fail in ways of their own
            self.refused[job.arm] = f"{type(error).__name__}: {_first_line(error)}"
            return None
        finally:
            config.num_hidden_layers = layers  # the library leaves it cut where an exit fails
        return made

    def watch(self, call: Callable[[], RivalRun | None]) -> tuple[RivalRun | None, int | None]:
        """Call; returns the result and the peak bytes, None on a CPU: its caches are its own."""
        return self._memory.watch(call, None)

    def _settings(self, job: RivalJob) -> GenerationConfig:
        by_arm: dict[str, dict[str, Any]] = {
            GENERATE: {},
            LOOKUP: {"prompt_lookup_num_tokens": LOOKUP_TOKENS},
            EARLY_EXIT: {"assistant_early_exit": job.exit_layer},
        }
        eos = sorted(self.loaded.eos_ids)
        return GenerationConfig(
            max_new_tokens=job.request.max_tokens,
            **_law(job),
            num_beams=1,
            repetition_penalty=1.0,
            eos_token_id=eos or None,
            pad_token_id=eos[0] if eos else 0,
            use_cache=True,
            **by_arm[job.arm],
        )

    def _generate(self, job: RivalJob, clock: Clock) -> RivalRun:
        ids = torch.tensor([job.request.prompt_token_ids], device=self.device)
        settings = self._settings(job)
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

        devices = [] if self.device.type == "cpu" else [self.device]
        with torch.random.fork_rng(devices):  # the library draws from the process' own generator
            torch.manual_seed(job.seed)
            seconds = clock.span(call)
        output = tuple(int(token) for token in found[0][0, ids.shape[1] :])
        return RivalRun(tokens=output, deliveries=tuple(stamps.deliveries), seconds=seconds)


def _law(job: RivalJob) -> dict[str, Any]:
    """The library's settings of the law that our arms decode by."""
    if job.temperature == 0:
        return {"do_sample": False}
    sampling = job.request.sampling
    return {
        "do_sample": True,
        "temperature": job.temperature,
        "top_k": sampling.top_k,  # 0 is off for the library too, which has 50 of its own otherwise
        "top_p": sampling.top_p,
    }


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
