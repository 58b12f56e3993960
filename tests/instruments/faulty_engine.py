"""A test double: the real engine with one fault, on a clock of its own. Never part of a product.

Time is virtual, so that a fault in it is exactly as large as it says and a busy machine adds none:
layers, heads and embeddings run for real and move the clock by what they would take on a machine
that is bound by memory. Each fault is a function of a `Faulty`; the run itself is `calibrate`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from selfspec_cli.calibrate import confirm_stage, cost_stage
from selfspec_cli.cost import measure
from selfspec_cli.cost.clock import Clock
from selfspec_cli.engine.decoder import Decoder
from selfspec_cli.engine.policies import SampledPolicy
from selfspec_cli.engine.view import LayerView
from selfspec_cli.replay import score

N = 4  # layers of the model under test
LAYER_S, HEAD_S, SMALL_S = 1e-3, 2e-4, 1e-5
MORE_POSITIONS = 0.02  # of a layer, for each position beyond the first
PER_TOKEN_S = 1e-7  # of a layer, for each token in the cache
READ_S = 2e-7  # of reading the clock, so that no sample takes nothing
FLOOR_S = 3e-3  # of a plain step: what its bytes would take


def chain_seconds(layers: int, positions: int, context: int) -> float:
    """Further positions cost a fiftieth of the first."""
    return layers * (LAYER_S * (1 + MORE_POSITIONS * (positions - 1)) + PER_TOKEN_S * context)


class VirtualTime:
    """What work has taken, in nanoseconds; `pace` stretches all of it."""

    def __init__(self) -> None:
        self.now_ns, self.pace = 0.0, 1.0

    def take(self, seconds: float) -> None:
        """Let work take a time."""
        self.now_ns += 1e9 * seconds * self.pace

    def read_ns(self) -> int:
        """What a clock shows."""
        self.take(READ_S)
        return int(self.now_ns)


class Faulty:
    """The engine under test; `patch` is pytest's monkeypatch, which puts everything back.

    Attributes:
        time: what every clock of the program shows.
        layer_seconds: what a chain of layers takes, by its layers, positions and context.
        head_seconds: what the head takes.
    """

    def __init__(self, patch: Any) -> None:
        self.patch, self.time = patch, VirtualTime()
        self.layer_seconds: Callable[[int, int, int], float] = chain_seconds
        self.head_seconds = HEAD_S
        clock = Clock(None, self.time.read_ns)
        patch.setattr(Clock, "for_device", classmethod(lambda _cls, _device: clock))
        patch.setattr(measure, "MIN_SAMPLE_S", 0.0)  # nothing to average out: one call a sample
        patch.setattr(cost_stage, "bandwidth_facts", self._bandwidth)
        self._tell_time()

    @staticmethod
    def _bandwidth(view: LayerView, plan: Any) -> dict[str, object]:
        floors = {str(context): FLOOR_S for context in plan.contexts}
        return {"read_bytes_per_s": view.step_bytes() / FLOOR_S, "floor_s": floors}

    def _tell_time(self) -> None:
        real_chain, real_head, real_embed = LayerView.chain, LayerView.head, LayerView.embed

        def chain(view: LayerView, hidden: Any, cache: Any, indices: Any, *more: Any) -> Any:
            positions, context = hidden.shape[0] * hidden.shape[1], max(cache.lengths[indices[0]])
            self.time.take(self.layer_seconds(len(indices), positions, context))
            return real_chain(view, hidden, cache, indices, *more)

        def head(view: LayerView, hidden: torch.Tensor) -> torch.Tensor:
            self.time.take(self.head_seconds)
            return real_head(view, hidden)

        def embed(view: LayerView, token_ids: torch.Tensor, cache: Any) -> torch.Tensor:
            self.time.take(SMALL_S)
            return real_embed(view, token_ids, cache)

        for name, timed in (("chain", chain), ("head", head), ("embed", embed)):
            self.patch.setattr(LayerView, name, timed)


def none(engine: Faulty) -> None:
    """A sound engine."""


def exits_skip_the_norm(engine: Faulty) -> None:
    """Exit states go to the head without the final norm, in observing and in drafting."""

    def without_norm(real: Callable[..., Any], view_of: Callable[..., LayerView]) -> Any:
        def call(*given: Any) -> Any:
            view = view_of(given[0])
            norm, view._norm = view._norm, nn.Identity()
            try:
                return real(*given)
            finally:
                view._norm = norm

        return call

    engine.patch.setattr(score, "greedy", without_norm(score.greedy, lambda view: view))
    draft = without_norm(Decoder._draft, lambda state: state.view)
    engine.patch.setattr(Decoder, "_draft", draft)


def rollback_off_by_one(engine: Faulty) -> None:
    """One refused token stays in the cache of every layer after a round."""
    real_round, real_back = Decoder.round, Decoder._roll_back

    def back(state: Decoder) -> None:
        held = len(state.job.prompt) + len(state.output) - 1
        state.cache.rollback([min(held + 1, *(own[0] for own in state.cache.lengths))])

    def faulty_round(state: Decoder, *cell: int) -> Any:
        state._roll_back = back.__get__(state)
        try:
            return real_round(state, *cell)
        finally:
            state._roll_back = real_back.__get__(state)

    engine.patch.setattr(Decoder, "round", faulty_round)


def drafts_start_one_token_early(engine: Faulty) -> None:
    """The draft begins after the token before the last one, so each draft comes one too late."""
    real = Decoder._draft

    def draft(state: Decoder, exit_layer: int, k: int) -> list[int]:
        return [state.output[-1], *real(state, exit_layer, k)[:-1]]

    engine.patch.setattr(Decoder, "_draft", draft)


def head_outweighs_the_layers(engine: Faulty) -> None:
    """The head takes ten times as long as all layers, and every draft step needs it."""
    engine.head_seconds = 10 * N * LAYER_S


def slow_verification(engine: Faulty) -> None:
    """Several positions at once take as long as one after the other."""

    def seconds(layers: int, positions: int, context: int) -> float:
        return positions * chain_seconds(layers, 1, context)

    engine.layer_seconds = seconds


def slow_rounds(engine: Faulty) -> None:
    """Every round waits as long as three plain steps for something outside the model."""
    real = Decoder.round

    def slow(state: Decoder, *cell: int) -> Any:
        engine.time.take(3 * N * LAYER_S)
        return real(state, *cell)

    engine.patch.setattr(Decoder, "round", slow)


def slow_draft_steps(engine: Faulty) -> None:
    """Each draft step of a round waits, which no chain of layers timed alone shows."""
    real = Decoder._draft

    def slow(state: Decoder, exit_layer: int, k: int) -> Any:
        engine.time.take(0.8 * k * N * LAYER_S)
        return real(state, exit_layer, k)

    engine.patch.setattr(Decoder, "_draft", slow)


def slower_when_decoding(engine: Faulty) -> None:
    """The machine loses a third of its pace after costs were timed."""
    real = confirm_stage.confirm_path

    def slowed(*given: Any) -> Any:
        engine.time.pace = 1.5
        return real(*given)

    engine.patch.setattr(confirm_stage, "confirm_path", slowed)


def drafts_are_the_likeliest_tokens(engine: Faulty) -> None:
    """Sampled drafts are the likeliest token, verified as though they were drawn from q."""
    real = SampledPolicy.propose

    def likeliest(policy: SampledPolicy, *given: Any) -> int:
        real(policy, *given)
        return int(policy._laws[len(given[-1])].argmax())

    engine.patch.setattr(SampledPolicy, "propose", likeliest)
