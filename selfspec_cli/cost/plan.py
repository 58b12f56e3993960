"""What a cost measurement times: checked before a model does any work."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from selfspec_cli.errors import ConfigError
from selfspec_cli.records import Sampling

_GOLDEN, _PLASTIC = 0.6180339887498949, 1.3247179572447460  # roots of x² + x = 1, x³ = x + 1
PREFILL_BLOCKS = ((512, 3), (2048, 2))
"""Prompts of up to so many tokens are prefilled in the first so many blocks, longer ones in one:
a prefill takes as long as hundreds of steps, and its time varies little."""
MIN_BLOCKS = 10  # blocks are the unit of uncertainty; fewer say too little about it
BASE_ROUNDS, BATCH_ROUNDS = 12, 6
"""Whole rounds timed at the base batch size, where rules are decided, and at each larger one."""
ROUND_TURNS = 2
"""Whole rounds of several rows take longest, so each is timed in every second pair of blocks."""
RAGGED = 4  # rows of a batch are up to so many tokens apart, as no two of a real one are alike


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class WholeRound:
    """A whole round to time beside its parts."""

    exit_layer: int
    draft_length: int
    context: int
    """Tokens in the cache before the round; one of the plan's contexts."""
    batch: int = 1
    """Rows that take part; one of the plan's batch sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPlan:
    """Everything a cost measurement times.

    Raises:
        ConfigError: something is empty, below its least value, or there twice.
    """

    exit_layers: tuple[int, ...]
    """Exit layers L to price. Parts price every L; the plan says which ones matter."""
    draft_lengths: tuple[int, ...]
    """Draft lengths k; passes are timed at 1 and at k+1 positions."""
    contexts: tuple[int, ...]
    """Tokens in the cache before a step, ascending; of the longest row in a batch."""
    laws: tuple[Sampling, ...]
    """One sampling for each law class in use; its class names the law in cost.csv."""
    batch_sizes: tuple[int, ...] = (1,)
    """Rows of a step or round, ascending; the first is the base."""
    max_batch_tokens: int | None = None
    """Most tokens that the cache of one batch of several rows may hold; None: any number. What
    needs more is left out (`left_out`)."""
    rounds: tuple[WholeRound, ...] = ()
    """Timed for every law, where the cache may be as large as they need."""
    parts: bool = True
    """False times only plain steps and whole rounds: no parts, no prefill."""
    blocks: int = MIN_BLOCKS
    warmup: int = 1
    """Blocks run and thrown away first."""

    def __post_init__(self) -> None:
        _ascending("exit layers", self.exit_layers)
        _ascending("draft lengths", self.draft_lengths)
        _ascending("contexts", self.contexts)
        _ascending("batch_sizes", self.batch_sizes)
        classes = [law.law_class for law in self.laws]
        if not classes or len(set(classes)) < len(classes):
            raise ConfigError(f"one sampling a law class is timed, got {classes}", where="laws")
        if self.blocks < MIN_BLOCKS or self.warmup < 1:
            raise ConfigError(
                f"{self.blocks} blocks after {self.warmup} to warm up are too few",
                where="cost",
                hint=f"Use at least {MIN_BLOCKS} blocks and 1 to warm up.",
            )
        for one in self.rounds:
            known = one.draft_length in self.draft_lengths and one.context in self.contexts
            if one.exit_layer < 1 or not known or one.batch not in self.batch_sizes:
                raise ConfigError(
                    f"{one} lies outside the plan's k, contexts or batch sizes", where="rounds"
                )

    @property
    def positions(self) -> tuple[int, ...]:
        """Positions a pass of one row is timed at: 1 (a draft step), and k+1 (a verification)."""
        return tuple(sorted({1, *(k + 1 for k in self.draft_lengths)}))

    def positions_at(self, batch: int) -> tuple[int, ...]:
        """Positions a pass of `batch` rows is timed at: of several rows where k doubles."""
        if batch == 1:
            return self.positions
        kept = [1]
        for m in self.positions[1:]:
            if m - 1 >= 2 * (kept[-1] - 1) or m == self.positions[-1]:
                kept.append(m)
        return tuple(kept)

    def contexts_at(self, batch: int) -> tuple[int, ...]:
        """Contexts timed with `batch` rows: of several rows the ends and the middle of what fits.

        Costs bend slowly in the context, and a step of many rows takes long. Empty where not even
        the shortest fits.
        """
        if batch == 1:
            return self.contexts
        return ends_and_middle([c for c in self.contexts if self._fits(batch, c)])

    def left_out(self) -> dict[int, tuple[int, ...]]:
        """Return the contexts whose caches would be too large, by batch size."""
        missing = {
            batch: tuple(c for c in self.contexts if not self._fits(batch, c))
            for batch in self.batch_sizes
        }
        return {batch: contexts for batch, contexts in missing.items() if contexts}

    def batch_tokens(self) -> int:
        """Return the tokens that the caches of all batches of several rows hold together."""
        return sum(
            batch * self.capacity_at(contexts[-1])
            for batch in self.batch_sizes
            if batch > 1 and (contexts := self.contexts_at(batch))
        )

    def capacity_at(self, context: int) -> int:
        """Cache positions of a row that starts a round at `context` tokens."""
        return context + self.max_draft + 2  # x_0, the drafts, the next token

    def _fits(self, batch: int, context: int) -> bool:
        limit = self.max_batch_tokens
        return batch == 1 or limit is None or batch * self.capacity_at(context) <= limit

    @property
    def max_draft(self) -> int:
        """Longest draft (tokens)."""
        return self.draft_lengths[-1]

    def check(self, num_layers: int, max_positions: int | None) -> None:
        """Compare the plan with a model.

        Args:
            num_layers: N.
            max_positions: longest sequence the model allows (tokens), None if it does not say.

        Raises:
            ConfigError: a context with a round after it does not fit the model, or an exit layer
                is outside 1..N.
        """
        needed = self.capacity_at(self.contexts[-1])
        if max_positions is not None and needed > max_positions:
            raise ConfigError(
                f"a context of {self.contexts[-1]} tokens and a round of {self.max_draft} drafts "
                f"exceed the model's {max_positions} positions",
                where="contexts",
                hint=f"Time contexts of at most {max_positions - self.max_draft - 2} tokens.",
            )
        deepest = max([*self.exit_layers, *(one.exit_layer for one in self.rounds)])
        if deepest > num_layers:
            raise ConfigError(
                f"exit layer {deepest} is outside 1..{num_layers}", where="exit_layers"
            )


def prefill_blocks(prompt_tokens: int) -> int:
    """Return in how many blocks the prefill of a prompt is timed."""
    return next((blocks for most, blocks in PREFILL_BLOCKS if prompt_tokens <= most), 1)


def _ascending(name: str, values: Sequence[int]) -> None:
    if not values or values[0] < 1 or list(values) != sorted(set(values)):
        raise ConfigError(
            f"{name} {list(values)} are not ascending whole numbers of at least 1", where=name
        )


def ends_and_middle(values: Sequence[int]) -> tuple[int, ...]:
    """Return the first, the middle and the last of ascending values, each once."""
    if not values:
        return ()
    return tuple(sorted({values[0], values[len(values) // 2], values[-1]}))


def with_default_rounds(plan: CostPlan) -> CostPlan:
    """Return the plan with whole rounds at every batch size, most at the base."""
    rounds = [
        replace(one, batch=batch)
        for batch in plan.batch_sizes
        for one in default_rounds(
            plan.exit_layers,
            plan.draft_lengths,
            plan.contexts_at(batch),
            BASE_ROUNDS if batch == plan.batch_sizes[0] else BATCH_ROUNDS,
        )
    ]
    return replace(plan, rounds=tuple(rounds))


def default_rounds(
    exit_layers: Sequence[int],
    draft_lengths: Sequence[int],
    contexts: Sequence[int],
    count: int = BASE_ROUNDS,
) -> tuple[WholeRound, ...]:
    """Return `count` whole rounds spread evenly over L, k and context, all of them if fewer.

    Deterministic: L walks through its range while k and the context jump by irrational shares of
    theirs, so no two of the three rise together.
    """
    axes = (exit_layers, draft_lengths, contexts)
    wanted = min(count, len(exit_layers) * len(draft_lengths) * len(contexts))
    chosen: dict[WholeRound, None] = {}
    step = 0
    while len(chosen) < wanted:
        shares = ((step + 0.5) / wanted, step * _GOLDEN, 0.5 + step / _PLASTIC)
        layer, k, context = (
            axis[int(share % 1.0 * len(axis))] for axis, share in zip(axes, shares, strict=True)
        )
        chosen[WholeRound(exit_layer=layer, draft_length=k, context=context)] = None
        step += 1
    return tuple(chosen)
