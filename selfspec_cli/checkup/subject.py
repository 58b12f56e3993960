"""What is decoded to prove a decoder: exit layers, prompts of the lengths that break caches."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from selfspec_cli.engine.exactness import TIE_TOLERANCE
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.policies import GreedyPolicy
from selfspec_cli.engine.view import LayerView
from selfspec_cli.errors import ModelError
from selfspec_cli.records import Sampling

DRAFT_LENGTHS = range(1, 9)
DEPTHS = (0.3, 0.5, 0.8)  # of N; the last layer, where the draft is the target, comes besides
LONG_PROMPT = 40  # tokens
MIN_BUDGET = 4  # tokens; fewer hold no round that rejects and goes on
SMALL_BYTES = 16 << 20
"""Weights a step reads, below which a pass takes a millisecond or so and more cases are tried."""

GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model under proof and the cases it is tried with."""

    view: LayerView
    exit_layers: tuple[int, ...]
    """Ascending; the last is N."""
    prompts: Mapping[int, tuple[int, ...]]
    """Random token ids by their number."""
    budget: int
    """Output tokens of a case."""
    small: bool
    """Whether a pass is so short that more cases are tried."""
    seed: int

    @property
    def prompts_per_cell(self) -> int:
        """Prompts decoded at each (L, k)."""
        return 2 if self.small else 1

    @property
    def num_layers(self) -> int:
        """N."""
        return self.view.num_layers

    @property
    def middle(self) -> int:
        """The exit layer that stands for all where one is enough; below N."""
        return self.exit_layers[(len(self.exit_layers) - 1) // 2]

    @property
    def longest(self) -> tuple[int, ...]:
        """The longest prompt."""
        return self.prompts[max(self.prompts)]

    @property
    def tolerance(self) -> float:
        """Gap of the two best logits that rounding may turn (logits)."""
        return TIE_TOLERANCE.get(self.view.dtype, TIE_TOLERANCE[torch.bfloat16])

    @property
    def processor(self) -> Processor:
        """Greedy processing without penalties."""
        return Processor(GREEDY, self.view.vocab_size)

    def policy(self) -> GreedyPolicy:
        """Greedy tokens."""
        return GreedyPolicy(self.processor)

    def lengths_at(self, draft_length: int) -> tuple[int, ...]:
        """Prompt lengths tried at k: 1, 2, around k, and a long one, as far as they fit."""
        near = {1, 2, draft_length - 1, draft_length, draft_length + 1, max(self.prompts)}
        return tuple(sorted(near & set(self.prompts)))


def make_subject(view: LayerView, seed: int) -> Subject:
    """Choose the cases of a model; the same for the same model and seed.

    Args:
        view: checked view of the model.
        seed: of the prompts' tokens.

    Raises:
        ModelError: the model has too few positions for any case.
    """
    small = view.step_bytes() < SMALL_BYTES
    budget = 16 if small else 9
    room = LONG_PROMPT + budget if view.max_positions is None else view.max_positions
    budget = min(budget, room // 2)
    if budget < MIN_BUDGET:
        raise ModelError(
            f"the model has {room} positions, too few to decode a round in", where="verify"
        )
    longest = min(LONG_PROMPT, room - budget)
    lengths = sorted({n for n in range(1, DRAFT_LENGTHS[-1] + 2) if n <= longest} | {longest})
    return Subject(
        view=view,
        exit_layers=exit_layers_of(view.num_layers),
        prompts={n: _prompt(view, n, seed) for n in lengths},
        budget=budget,
        small=small,
        seed=seed,
    )


def exit_layers_of(num_layers: int) -> tuple[int, ...]:
    """Exits near 30, 50 and 80 % of the depth, and N itself."""
    inner = {min(num_layers - 1, max(1, round(share * num_layers))) for share in DEPTHS}
    return (*sorted(inner), num_layers)


def _prompt(view: LayerView, length: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(1_000 * seed + length)
    top = min(view.vocab_size, int(view.config.vocab_size))
    return tuple(torch.randint(0, top, (length,), generator=generator).tolist())


def library_outputs(subject: Subject, told: Callable[[], None]) -> dict[int, tuple[int, ...]]:
    """Greedy tokens of the library's own `generate` for every prompt, by its length.

    Args:
        subject: its model's modules must still be the library's.
        told: called after each prompt.
    """
    found = {}
    with _bare_generation(subject.view.model), torch.inference_mode():
        for length, prompt in subject.prompts.items():
            ids = torch.tensor([prompt], device=subject.view.device)
            mask = torch.ones_like(ids)
            generate: Any = subject.view.model.generate
            made = generate(ids, attention_mask=mask, max_new_tokens=subject.budget)
            found[length] = tuple(made[0, length:].tolist())
            told()
    return found


@contextmanager
def _bare_generation(model: Any) -> Iterator[None]:
    """Greedy without EOS and without the checkpoint's own penalties, as both sides decode here."""
    own = model.generation_config
    model.generation_config = transformers.GenerationConfig(do_sample=False, pad_token_id=0)
    try:
        yield
    finally:
        model.generation_config = own
