"""The parts of a round of several rows, built from the batch decoder's own functions.

    draft_step(L) = embed + prep(1) + layers[0, L)(1) + head(1) + draw
    verify(L, k)  = embed + prep(1) + layers[0, L)(1) + prep(k+1) + layers[L, N)(k+1) + head(k+1)
    round(L, k)   = k · draft_step(L) + verify(L, k) + accept(k+1)

as for one row, each part for all rows at once. One line is drawn elsewhere: a batch turns logits
into tokens row by row and in one go, so laws belong to `draw` and `accept`, and `head` is norm and
head alone, the same under every law.

Rows are a few tokens apart (`RAGGED`), the longest at the context: masks and writes into the cache
are those of real rows, no two of which are alike.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from selfspec_cli.cost.parts import Scene, Task, layers_by_kind
from selfspec_cli.cost.plan import RAGGED, ROUND_TURNS, CostPlan
from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.decoder import Job
from selfspec_cli.engine.kv_cache import KVCache
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.policies import Policy, make_policy
from selfspec_cli.engine.row_policies import propose_rows, settle_rows
from selfspec_cli.records import Sampling


def batch_tasks(plan: CostPlan, scenes: Sequence[Scene], batch: int) -> Iterator[Task]:
    """Everything that one block times at one batch size.

    Args:
        plan: what to time.
        scenes: filled rows, one a context of the plan, ascending; the longest that this batch size
            needs fills the rows.
        batch: rows, at least 2.
    """
    contexts = plan.contexts_at(batch)
    chosen = [scene for scene in scenes if scene.context in contexts]
    if not chosen:
        return
    room = _filled_rows(chosen[-1], batch)
    rows = [BatchScene(scene, room) for scene in chosen]
    for one in rows:
        for sampling in plan.laws:
            yield from one.decoder_tasks(sampling)
    if not plan.parts:
        return
    yield rows[0].embed_task()
    yield from rows[0].head_tasks()
    for one in rows:
        yield from one.pass_tasks()
    for sampling in plan.laws:
        # Penalties count the tokens before a position, so only their work grows with the context.
        for one in rows if sampling.penalised else rows[:1]:
            context = one.context if sampling.penalised and len(rows) > 1 else None
            yield from BatchLawParts(one, sampling).tasks(context)


def _filled_rows(scene: Scene, batch: int) -> KVCache:
    """Copy a filled row into every row of a new cache; shorter contexts are its first tokens."""
    room = scene.view.new_cache(rows=batch, capacity=scene.plan.capacity_at(scene.context))
    room.reserve(scene.cache)
    for own, filled in zip(
        (*room.keys, *room.values), (*scene.cache.keys, *scene.cache.values), strict=True
    ):
        if own is not None and filled is not None:
            own[:, :, : scene.context] = filled[:, :, : scene.context]
    return room


class BatchScene:
    """Rows filled to one context, give or take a few tokens.

    Args:
        alone: a filled row of this context.
        room: rows filled to this context or beyond; their memory is shared, pointers are not. So a
            shorter context's rounds write into a longer one's prompt: other tokens, no other cost.
    """

    def __init__(self, alone: Scene, room: KVCache) -> None:
        self.alone, self.view, self.plan = alone, alone.view, alone.plan
        self.context, self.batch = alone.context, room.rows
        self.lengths = [max(1, self.context - row % RAGGED) for row in range(self.batch)]
        self.cache = self.view.new_cache(rows=self.batch, capacity=room.capacity)
        self.cache.keys, self.cache.values = room.keys, room.values
        self.cache.activate(self.lengths)
        m = self.plan.positions[-1]
        self.embedded = alone.embedded.repeat(self.batch, 1, 1)  # [B, m_max, H]
        self.deep = alone.deep[:m].repeat(self.batch, 1, 1)
        self.early = alone.early[:1].repeat(self.batch, 1)  # [B, H]

    def restore(self) -> None:
        """Set every layer's pointers back."""
        self.cache.activate(self.lengths)

    def decoder(self, sampling: Sampling, cache: KVCache | None = None) -> BatchDecoder:
        """Return a decoder of these rows, each after its x_0, over the filled cache or another."""
        k = self.plan.max_draft
        jobs = [Job(prompt=self.alone.prompt[:length], budget=k + 2) for length in self.lengths]
        policies = [self._policy(sampling, job, row) for row, job in enumerate(jobs)]
        decoder = BatchDecoder(self.view, jobs, policies, max_draft=k)
        decoder.cache = cache or self.cache
        decoder.outputs = [[self.alone.first] for _ in jobs]
        decoder.rewind(1)
        return decoder

    def _policy(self, sampling: Sampling, job: Job, row: int) -> Policy:
        target = Processor(sampling, self.view.vocab_size, job.prompt)
        seed = self.alone.seed + row
        return make_policy(target, seed, max_draft=self.plan.max_draft, device=self.view.device)

    def decoder_tasks(self, sampling: Sampling) -> Iterator[Task]:
        """A plain step and the whole rounds, rounds taking turns."""
        decoder = self.decoder(sampling)
        restore = partial(decoder.rewind, 1)
        law, context, batch = sampling.law_class, self.context, self.batch
        yield Task(
            part="ar", law=law, positions=1, context=context, batch=batch, step=decoder.step,
            restore=restore,
        )  # fmt: skip
        own = [one for one in self.plan.rounds if one.batch == batch]
        for number, one in enumerate(own):
            if one.context == context:
                yield Task(
                    part="round",
                    law=law,
                    exit_layer=one.exit_layer,
                    positions=one.draft_length + 1,
                    context=context,
                    batch=batch,
                    step=partial(decoder.round, one.exit_layer, one.draft_length),
                    restore=restore,
                    turn=(number % ROUND_TURNS, ROUND_TURNS),
                )

    def embed_task(self) -> Task:
        """Tokens' way into layer 0 and exit states' way into the buffer, once a shallow pass."""
        tokens, kept = list(self.alone.prompt[:1]) * self.batch, self.embedded.clone()

        def step() -> None:
            ids = torch.tensor(tokens, device=self.view.device)[:, None]
            self.view.embed(ids, self.cache)
            kept[:, 0] = self.early

        return Task(part="embed", positions=1, batch=self.batch, step=step)

    def head_tasks(self) -> Iterator[Task]:
        """Norm and head at m positions of every row."""
        for m in self.plan.positions_at(self.batch):
            step = partial(self.view.head, self.deep[:, :m].contiguous())
            yield Task(part="head", positions=m, batch=self.batch, step=step)

    def pass_tasks(self) -> Iterator[Task]:
        """Masks and rotary tables, and a chain through all layers of each kind, by positions."""
        for m in self.plan.positions_at(self.batch):
            hidden = self.embedded[:, :m]
            prepare = partial(self.view.prepare, hidden, self.lengths)
            yield Task(
                part="prep", positions=m, context=self.context, batch=self.batch, step=prepare
            )
            for kind, indices in layers_by_kind(self.view).items():
                self.view.ready(self.cache, indices, m)
                yield Task(
                    part=f"layers/{kind}",
                    exit_layer=len(indices),
                    positions=m,
                    context=self.context,
                    batch=self.batch,
                    step=partial(self.view.chain, hidden, self.cache, indices, prepare()),
                    restore=self.restore,
                )


class BatchLawParts:
    """Draw and accept of all rows under one law, on logits of the model itself."""

    def __init__(self, scene: BatchScene, sampling: Sampling) -> None:
        self.scene, self.view, self.law = scene, scene.view, sampling.law_class
        capacity = scene.plan.capacity_at(scene.context)
        # Pointers of its own: accepting rolls back from the end of a verification.
        cache = self.view.new_cache(rows=scene.batch, capacity=capacity)
        self.decoder = scene.decoder(sampling, cache)
        self.policies, self.outputs = self.decoder.policies, self.decoder.outputs
        self.draft: Tensor = self.view.head(scene.early)  # [B, V]
        self.target: Tensor = self.view.head(scene.deep)  # [B, m_max, V]
        self.drafted: list[list[int]] = [[] for _ in self.policies]
        for _ in range(scene.plan.max_draft):
            self._propose(self.drafted, scene.plan.max_draft)
        self.verified()

    def tasks(self, context: int | None) -> Iterator[Task]:
        """Return the tasks, named with `context` if the law's work depends on it."""
        law, batch = self.law, self.scene.batch
        yield Task(part="draw", law=law, positions=1, context=context, batch=batch, step=self.draw)
        for m in self.scene.plan.positions_at(batch):
            yield Task(
                part="accept",
                law=law,
                positions=m,
                context=context,
                batch=batch,
                step=partial(self.accept, m),
                restore=self.verified,
            )

    def draw(self) -> None:
        """Turn every row's draft logits into its draft."""
        self._propose([[] for _ in self.policies], 1)

    def _propose(self, drafted: list[list[int]], most: int) -> None:
        propose_rows(self.policies, self.draft, self.outputs, drafted, [most] * len(drafted))

    def accept(self, m: int) -> None:
        """Settle m - 1 drafts a row, commit, roll back; without drafts commit one token a row."""
        if m == 1:
            first = [output[:1] for output in self.outputs]
            self.decoder.commit(self.decoder.running, first)
            return
        drafted = [own[: m - 1] for own in self.drafted]
        verdicts = settle_rows(self.policies, self.target[:, :m], self.outputs, drafted)
        tokens = [
            [*own[: v.num_accepted], v.next_token] for own, v in zip(drafted, verdicts, strict=True)
        ]
        # The decoder's own commit: a copy of it here would be timed instead.
        self.decoder.commit(self.decoder.running, tokens)

    def verified(self) -> None:
        """Put every row where a verification leaves it: drafts written, nothing committed."""
        self.decoder.rewind(1)
        longest = self.scene.plan.positions[-1]
        self.decoder.cache.activate([length + longest for length in self.scene.lengths])
