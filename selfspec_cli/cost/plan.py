"""What a cost measurement times: checked before a model does any work."""

from collections.abc import Sequence
from dataclasses import dataclass

from selfspec_cli.errors import ConfigError
from selfspec_cli.records import Sampling

_GOLDEN, _PLASTIC = 0.6180339887498949, 1.3247179572447460  # roots of x² + x = 1, x³ = x + 1
PREFILL_BLOCKS = ((512, 3), (2048, 2))
"""Prompts of up to so many tokens are prefilled in the first so many blocks, longer ones in one:
a prefill takes as long as hundreds of steps, and its time varies little."""
MIN_BLOCKS = 10  # blocks are the unit of uncertainty; fewer say too little about it


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class WholeRound:
    """A whole round to time beside its parts."""

    exit_layer: int
    draft_length: int
    context: int
    """Tokens in the cache before the round; one of the plan's contexts."""


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
    """Tokens in the cache before a step, ascending."""
    laws: tuple[Sampling, ...]
    """One sampling for each law class in use; its class names the law in cost.csv."""
    rounds: tuple[WholeRound, ...] = ()
    """Timed for every law."""
    parts: bool = True
    """False times only plain steps and whole rounds: no parts, no prefill."""
    blocks: int = MIN_BLOCKS
    warmup: int = 1
    """Blocks run and thrown away first."""

    def __post_init__(self) -> None:
        _ascending("exit layers", self.exit_layers)
        _ascending("draft lengths", self.draft_lengths)
        _ascending("contexts", self.contexts)
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
            if one.exit_layer < 1 or not known:
                raise ConfigError(f"{one} lies outside the plan's k or contexts", where="rounds")

    @property
    def positions(self) -> tuple[int, ...]:
        """Positions a pass is timed at: 1 (a draft step), and k+1 (a verification)."""
        return tuple(sorted({1, *(k + 1 for k in self.draft_lengths)}))

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
        needed = self.contexts[-1] + self.max_draft + 2  # x_0, the drafts, the next token
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


def default_rounds(
    exit_layers: Sequence[int],
    draft_lengths: Sequence[int],
    contexts: Sequence[int],
    count: int = 12,
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
