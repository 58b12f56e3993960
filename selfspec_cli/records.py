"""Frozen records that cross a stage border. Standard library only; no torch, no pandas."""

from dataclasses import dataclass, field
from typing import Literal

Finish = Literal["eos", "length", "stop", "unknown"]
PathSource = Literal["recorded", "regenerated"]
Script = Literal["latin", "han", "mixed", "other"]
EARLY_EXIT = "early_exit"  # canonical drafter name
UNLABELLED = "unlabelled"  # task of a request without a label


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a request turns logits into a law. Defaults are "off".

    `presence_penalty`, `frequency_penalty` count output tokens only; `repetition_penalty` counts
    prompt and output (the conventions of vLLM and transformers). `min_tokens` forbids EOS before
    that many output tokens. `top_k` 0 means no filter.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, amount added to its logit) pairs, sorted by id."""

    @property
    def truncated(self) -> bool:
        """Whether top-k or top-p cut the law."""
        return self.top_p < 1.0 or self.top_k > 0

    @property
    def penalised(self) -> bool:
        """Whether the law depends on which tokens came before, beyond the model itself."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.min_tokens > 0
            or bool(self.logit_bias)
        )

    @property
    def law_class(self) -> Literal["greedy", "sampled", "truncated", "penalised"]:
        """Class of sampling work, for the cost surface (METHOD.md §4)."""
        if self.penalised:
            return "penalised"
        if self.temperature == 0.0:
            return "greedy"
        return "truncated" if self.truncated else "sampled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a trace, as read; exactly one of the three prompt forms is set."""

    request_id: str
    task: str | None
    prompt: str | None = None
    messages: tuple[dict[str, object], ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    completion: str | None = None
    completion_token_ids: tuple[int, ...] | None = None
    logged_completion_tokens: int | None = None
    """Output tokens as the server counted them; None where the trace does not say."""
    finish: Finish = "unknown"
    temperature: float | None = None
    """None where the trace does not say; `Sampling.temperature` is then chosen by the sweep."""
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    tools: tuple[dict[str, object], ...] | None = None
    group_id: str = ""
    """Requests of one conversation, or with the same prompt, share a group."""
    source: str = ""
    """`file:line`, for messages to people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A request as the model will see it: token ids, a budget, a bucket."""

    request_id: str
    group_id: str
    task: str
    prompt_token_ids: tuple[int, ...]
    completion_token_ids: tuple[int, ...] | None
    finish: Finish
    temperature: float | None
    sampling: Sampling
    max_tokens: int
    """Budget of output tokens after caps and the documented default."""
    stop: tuple[str, ...]
    content_hash: str
    source: str
    stated_max_tokens: int | None = None
    """Budget as the trace states it (tokens), before caps; None where it does not."""
    script: Script | None = None
    """Writing of the prompt; None for prompts given as token ids."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt in tokens, template included."""
        return len(self.prompt_token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A trace row that was left out, and why."""

    reason: str
    """Short and countable, for example `not UTF-8`; details go to `detail`."""
    source: str
    """`file:line`."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class GridPoint:
    """One swept setting: exit layer L, draft length k, temperature T."""

    exit_layer: int
    draft_length: int
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Counts of one round; see GLOSSARY.md for each denominator.

    Invariant: num_accepted <= num_tested <= num_drafted, num_committed <= num_accepted + 1.
    """

    num_drafted: int
    num_tested: int
    num_accepted: int
    num_committed: int
    context: int
    """Tokens in the cache before the round, prompt + committed output - 1 (tokens)."""
