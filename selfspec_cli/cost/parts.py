"""The parts of a round as things to time, built from the decoder's own functions.

    draft_step(L) = embed + prep(1) + layers[0, L)(1) + head(1) + draw
    verify(L, k)  = embed + prep(1) + layers[0, L)(1) + prep(k+1) + layers[L, N)(k+1) + head(k+1)
    round(L, k)   = k · draft_step(L) + verify(L, k) + accept(k+1)
    plain step    = draft_step(N) + accept(1)

Timed one by one the parts of a plain step fall a little short of it; what is missing is added to
every draft step and verification (`analysis.cost_nodes`). Beside them stands `prefill`: what of a
request comes before its first round, the prompt and x_0.
Each part is a call on real weights with the cache filled to a context; whatever it moves (cache
pointers, committed tokens) is put back before the next call. This module has the parts of one row;
`batch_parts` those of several.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from selfspec_cli.analysis.cost_parts import PREFILL_PART
from selfspec_cli.cost.plan import CostPlan, prefill_blocks
from selfspec_cli.engine.decoder import Decoder, Job
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.policies import SampledPolicy, make_policy
from selfspec_cli.engine.verify import Verdict, draw, verify, verify_greedy
from selfspec_cli.engine.view import LayerView
from selfspec_cli.records import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to time, under its names in cost.csv."""

    part: str
    law: str = ""
    """Law class; empty where the part does not depend on it."""
    exit_layer: int | None = None
    """L of a whole round; number of layers of a chain."""
    positions: int | None = None
    context: int | None = None
    """Tokens in the cache before the step; None where the part does not depend on it."""
    step: Callable[[], object]
    restore: Callable[[], None] | None = None
    """Puts back what the step moved; never timed. None where it moves nothing."""
    blocks: int | None = None
    """Timed in the first so many blocks only, and not warmed up; None: in every block."""
    batch: int = 1
    """Rows that take part."""
    turn: tuple[int, int] = (0, 1)
    """(i, n): timed in every n-th pair of blocks, from the i-th on. A pair has both orders."""

    def timed_in(self, block: int) -> bool:
        """Whether block number `block` times this."""
        turn, every = self.turn
        return (self.blocks is None or block < self.blocks) and block // 2 % every == turn

    def warmed_in(self, warmup: int) -> bool:
        """Whether block number `warmup` of those thrown away runs this.

        Several rows run once: the machine is warm by then, their kernels are not.
        """
        return self.blocks is None and (warmup == 0 or self.batch == 1)


class Scene:
    """A row's cache filled to one context, and hidden states as a decoder would have them there.

    Attributes:
        embedded: embedded tokens [1, m_max, H], the layers' input.
        early, deep: states [m_max, H] at half depth and after the last layer, the head's input.
    """

    def __init__(self, view: LayerView, plan: CostPlan, context: int, seed: int) -> None:
        self.view, self.plan, self.context = view, plan, context
        m = plan.positions[-1]
        tokens = random_tokens(view, plan, seed)[: context + m]
        self.prompt: tuple[int, ...] = tuple(tokens[:context].tolist())
        self.seed = seed
        self._filled = self._new_decoder(plan.laws[0])
        self._filled.prefill()
        self.cache = self._filled.cache
        seen: dict[int, Tensor] = {}
        self.embedded = view.embed(tokens[None, context:].to(view.device), self.cache)
        view.run(self.embedded, self.cache, 0, view.num_layers, seen.__setitem__)
        self.early, self.deep = seen[max(1, view.num_layers // 2)][0], seen[view.num_layers][0]
        self.restore()

    @property
    def first(self) -> int:
        """Token x_0 that follows the prompt."""
        return self._filled.output[0]

    def restore(self) -> None:
        """Set every layer's pointer back to the context."""
        self.cache.rollback([self.context])

    def decoder(self, sampling: Sampling) -> Decoder:
        """Return a decoder at this context under another law; it shares the filled cache."""
        decoder = self._new_decoder(sampling)
        decoder.cache, decoder.output = self.cache, list(self._filled.output)
        return decoder

    def _new_decoder(self, sampling: Sampling) -> Decoder:
        k = self.plan.max_draft
        target = Processor(sampling, self.view.vocab_size, self.prompt)
        policy = make_policy(target, self.seed, max_draft=k, device=self.view.device)
        job = Job(prompt=self.prompt, budget=k + 2)  # x_0, and all that a round can commit
        return Decoder(self.view, job, policy, max_draft=k)


def random_tokens(view: LayerView, plan: CostPlan, seed: int) -> Tensor:
    """Tokens of the longest context and one pass, int64; shorter contexts are prefixes of it."""
    count = plan.contexts[-1] + plan.positions[-1]
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, view.vocab_size, (count,), generator=generator)


def embed_task(scene: Scene) -> Task:
    """A token's way into layer 0 and its exit state's way into the buffer, once a shallow pass."""
    view, cache, token = scene.view, scene.cache, scene.prompt[0]
    kept, state = scene.embedded.clone(), scene.early[:1]

    def step() -> None:
        view.embed(torch.tensor([[token]], device=view.device), cache)
        kept[:, 0] = state

    return Task(part="embed", positions=1, step=step)


def prefill_task(scene: Scene) -> Task:
    """The decoder's own prefill of a prompt as long as the context.

    It fills the scene's cache with what that holds already. The scene was made by the same call, so
    memory and kernels are warm. One law stands for all: drawing x_0 is one draw in a whole prompt.
    """
    decoder = scene.decoder(scene.plan.laws[0])

    def step() -> None:
        scene.cache.rollback([0])
        decoder.output.clear()
        decoder.prefill()

    m = scene.context
    blocks = prefill_blocks(m)
    return Task(part=PREFILL_PART, positions=m, context=m, step=step, blocks=blocks)


def pass_tasks(scene: Scene) -> Iterator[Task]:
    """Masks and rotary tables, and a chain through all layers of each kind, by positions."""
    view, cache = scene.view, scene.cache
    kinds = layers_by_kind(view)
    for m in scene.plan.positions:
        hidden = scene.embedded[:, :m]
        prepare = partial(view.prepare, hidden, [scene.context])
        yield Task(part="prep", positions=m, context=scene.context, step=prepare)
        for kind, indices in kinds.items():
            view.ready(cache, indices, m)
            # All distinct layers in turn: a single one in a loop would sit in the cache.
            yield Task(
                part=f"layers/{kind}",
                exit_layer=len(indices),
                positions=m,
                context=scene.context,
                step=partial(view.chain, hidden, cache, indices, prepare()),
                restore=scene.restore,
            )


def layers_by_kind(view: LayerView) -> dict[str, list[int]]:
    """Numbers of the layers of each kind."""
    return {
        kind: [i for i, one in enumerate(view.layer_kinds) if one == kind]
        for kind in sorted(set(view.layer_kinds))
    }


def decoder_tasks(scene: Scene, sampling: Sampling) -> Iterator[Task]:
    """A plain step and the whole rounds of one row at this context."""
    decoder = scene.decoder(sampling)
    restore = partial(decoder.rewind, 1)
    law, context = sampling.law_class, scene.context
    yield Task(
        part="ar", law=law, positions=1, context=context, step=decoder.ar_step, restore=restore
    )
    for one in scene.plan.rounds:
        if (one.context, one.batch) == (context, 1):
            yield Task(
                part="round",
                law=law,
                exit_layer=one.exit_layer,
                positions=one.draft_length + 1,
                context=context,
                step=partial(decoder.round, one.exit_layer, one.draft_length),
                restore=restore,
            )


class LawParts:
    """Head, draw and accept under one law, on logits of the model itself."""

    def __init__(self, scene: Scene, sampling: Sampling) -> None:
        self.scene, self.view = scene, scene.view
        self.decoder = scene.decoder(sampling)
        self.sampling, self.policy = sampling, self.decoder.policy
        self.processor = Processor(sampling, scene.view.vocab_size, scene.prompt)
        m = scene.plan.positions[-1]
        self.drafted: list[int] = [0] * (m - 1)  # the head only needs to know how many
        self.target = self.head(m)
        self.draft = self._processed(scene.early)
        laws = isinstance(self.policy, SampledPolicy)
        rows = self.draft[: m - 1]
        self.drafted = [draw(row, 0.5) for row in rows] if laws else rows.tolist()
        self.kept = torch.empty_like(self.draft)

    def tasks(self, context: int | None) -> Iterator[Task]:
        """Return the tasks, named with `context` if the law's work depends on it."""
        law = self.sampling.law_class
        yield Task(part="draw", law=law, positions=1, context=context, step=self.draw)
        for m in self.scene.plan.positions:
            yield Task(
                part="head", law=law, positions=m, context=context, step=partial(self.head, m)
            )
            yield Task(
                part="accept",
                law=law,
                positions=m,
                context=context,
                step=partial(self.accept, m),
                restore=partial(self.decoder.rewind, 1) if m == 1 else None,
            )

    def head(self, m: int) -> Tensor:
        """Norm, head and processing at m positions: laws [m, V], or their argmax [m] at T = 0."""
        return self._processed(self.scene.deep[:m])

    def _processed(self, hidden: Tensor) -> Tensor:
        logits = self.view.head(hidden)
        process = (
            self.processor.laws if isinstance(self.policy, SampledPolicy) else self.processor.greedy
        )
        return process(logits, self.decoder.output, self.drafted[: len(hidden) - 1])

    def draw(self) -> int:
        """Pick the drafted token from its law [V] and keep that law; at T = 0 only read it."""
        if not isinstance(self.policy, SampledPolicy):
            return int(self.draft[0])
        kept = self.kept[0]
        kept.copy_(self.draft[0])
        return draw(kept, float(self.policy.uniforms(1)))

    def accept(self, m: int) -> None:
        """Settle m - 1 drafts, commit, roll back. Without drafts there is one token to commit."""
        # The decoder's own commit: a copy of it here would be timed instead.
        if m == 1:
            self.decoder.commit(self.decoder.output[:1])
            return
        drafted = self.drafted[: m - 1]
        verdict = self._verdict(drafted)
        self.decoder.commit([*drafted[: verdict.num_accepted], verdict.next_token])
        self.decoder.rewind(1)

    def _verdict(self, drafted: list[int]) -> Verdict:
        k = len(drafted)
        tokens = torch.tensor(drafted, device=self.view.device)
        if not isinstance(self.policy, SampledPolicy):
            return verify_greedy(tokens, self.target[: k + 1])
        uniforms = self.policy.uniforms(k + 1)
        return verify(tokens, self.draft[:k], self.target[: k + 1], uniforms)
