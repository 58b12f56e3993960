"""A tiny model, and a clock that only moves when it is charged."""

from collections.abc import Callable
from functools import wraps

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from selfspec_cli.cost import parts
from selfspec_cli.cost.clock import Clock
from selfspec_cli.cost.plan import CostPlan, WholeRound
from selfspec_cli.engine import policies, row_policies
from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.decoder import Decoder
from selfspec_cli.engine.families import family_of
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.view import FULL, SLIDING, LayerView
from selfspec_cli.records import Sampling

N, V, MAX_POSITIONS = 6, 264, 160
SAMPLED, GREEDY = Sampling(temperature=0.7), Sampling(temperature=0.0)
TRUNCATED = Sampling(temperature=0.7, top_p=0.9, top_k=20)
PENALISED = Sampling(temperature=0.7, repetition_penalty=1.2, presence_penalty=0.1)
GREEDY_PENALISED = Sampling(temperature=0.0, repetition_penalty=1.2)
ROUNDS = (
    WholeRound(exit_layer=2, draft_length=1, context=16),
    WholeRound(exit_layer=5, draft_length=3, context=16),
    WholeRound(exit_layer=3, draft_length=3, context=64),
)


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=N,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


def tiny_view() -> LayerView:
    return LayerView(tiny_model(), family_of("llama"))


def tiny_plan(*laws: Sampling, **changes: object) -> CostPlan:
    settings: dict[str, object] = {
        "exit_layers": (2, 3, 5),
        "draft_lengths": (1, 3),
        "contexts": (16, 64),
        "laws": laws or (SAMPLED,),
        "rounds": ROUNDS,
    }
    return CostPlan(**{**settings, **changes})  # type: ignore[arg-type]


class Till:
    """Time that passes only when something is charged (ns).

    Prices are well above 0.1 ms: the cheaper a part, the more often a sample repeats it.
    """

    def __init__(self) -> None:
        self.now_ns = 0

    def charge(self, ns: int) -> None:
        self.now_ns += ns

    def clock(self, synchronise: Callable[[], None] | None = None) -> Clock:
        """A clock of this time; a reading takes 1 ns, since nothing real takes none."""
        return Clock(synchronise, self._read)

    def _read(self) -> int:
        self.now_ns += 1
        return self.now_ns

    def charging(self, ns: Callable[..., int] | int, call: Callable) -> Callable:
        """`call`, with a price by its arguments."""

        @wraps(call)
        def charged(*args: object, **kwargs: object) -> object:
            self.charge(ns if isinstance(ns, int) else ns(*args, **kwargs))
            return call(*args, **kwargs)

        return charged


LAYER_NS = {FULL: 700_000, SLIDING: 300_000}


class ChargingView(LayerView):
    """The tiny model with a price on every call; two kinds of layers that differ only in price."""

    def __init__(self, till: Till) -> None:
        super().__init__(tiny_model(), family_of("llama"))
        self.layer_kinds = (SLIDING, FULL, FULL, SLIDING, FULL, SLIDING)
        self.till = till
        self.calls: dict[str, int] = {}

    def _price(self, name: str, ns: int) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        self.till.charge(ns)

    def embed(self, token_ids, cache):  # type: ignore[no-untyped-def]
        self._price("embed", 310_000 * token_ids.numel())
        return super().embed(token_ids, cache)

    def prepare(self, hidden, starts):  # type: ignore[no-untyped-def]
        positions = hidden.shape[0] * hidden.shape[1]
        self._price("prepare", 530_000 + 70_000 * positions + 40_000 * (starts[0] // 16))
        return super().prepare(hidden, starts)

    def chain(self, hidden, cache, indices, prepared, tap=None):  # type: ignore[no-untyped-def]
        m = hidden.shape[0] * hidden.shape[1]
        for index in indices:
            # A round's own tokens must not move the price: contexts are priced in steps of 16.
            context = cache.lengths[index][0] // 16
            self._price("layer", LAYER_NS[self.layer_kinds[index]] * m + 90_000 * context)
        return super().chain(hidden, cache, indices, prepared, tap)

    def head(self, hidden):  # type: ignore[no-untyped-def]
        self._price("head", 1_900_000 + 210_000 * (hidden.numel() // self.hidden_size))
        return super().head(hidden)


def charge_laws(till: Till, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put prices on processing, drawing, settling, committing and rolling back, wherever called."""
    rows = 150_000
    for name in ("laws", "greedy"):
        call = till.charging(lambda _, logits, *__: rows * len(logits), getattr(Processor, name))
        monkeypatch.setattr(Processor, name, call)
    for module in (parts, policies):
        monkeypatch.setattr(module, "draw", till.charging(410_000, module.draw))
        for name in ("verify", "verify_greedy"):
            call = till.charging(lambda drafts, *_: 170_000 * len(drafts), getattr(module, name))
            monkeypatch.setattr(module, name, call)
    argmax = till.charging(
        lambda _, logits: rows * (logits.numel() // logits.shape[-1]), row_policies._argmax
    )
    monkeypatch.setattr(row_policies, "_argmax", argmax)
    commit = till.charging(lambda _, rows, tokens: 110_000 * len(tokens), BatchDecoder.commit)
    monkeypatch.setattr(BatchDecoder, "commit", commit)
    monkeypatch.setattr(Decoder, "commit", till.charging(230_000, Decoder.commit))
    monkeypatch.setattr(Decoder, "_roll_back", till.charging(200_000, Decoder._roll_back))
