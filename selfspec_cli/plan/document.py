"""plan.yaml as a document: every field, its unit and its meaning; the JSON Schema comes for free.

Missing is null: an undefined number is never 0. Fractions lie in [0, 1], times are seconds.
"""

from typing import Literal

from pydantic import ConfigDict, Field

from selfspec_cli.plan.decide_check import SCHEMA_VERSION
from selfspec_cli.plan.document_origin import MeasuredOn, ModelFacts, Part, TraceFacts

Evidence = Literal["own", "parent", "all", "none"]
Check = Literal["pass", "fail", "no_verdict"]


class Interval(Part):
    """A value with its 95 % interval."""

    estimate: float | None = None
    low: float | None = None
    high: float | None = None


class Law(Part):
    """Sampling parameters of calibrated requests, all of them together."""

    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0


class Laws(Part):
    """Sampling parameters that were calibrated, each for itself; a rule's `laws` decide."""

    top_p: list[float]
    top_k: list[int]
    penalties: list[dict[str, float]] = Field(
        description="Each: repetition_penalty, presence_penalty, frequency_penalty, min_tokens."
    )


class Settings(Part):
    """The thresholds in force."""

    margin: float
    min_requests: int
    max_slow_share: float
    context_edges: list[int]
    exit_layers: list[int] = Field(description="Exit layers a rule may use.")
    exit_layers_beyond: list[int] = Field(
        default_factory=list, description="Observed beyond the range, for the edge warning only."
    )
    draft_lengths: list[int]


class Default(Part):
    """What holds where no rule does."""

    enabled: Literal[False] = False
    reason: str = "not calibrated"


class Drafter(Part):
    """Who drafts."""

    kind: str = "early_exit"
    exit_layer: int | None = None
    adapter: str | None = None
    vocabulary: int | None = None
    temperature: float | None = Field(default=None, description="null: the request's own.")
    ngram: int | None = None


class Draft(Part):
    """How many tokens are drafted."""

    policy: Literal["fixed", "window"] = "fixed"
    length: int | None = None


class GainAt(Part):
    """What the best cell of all layers would bring if acceptance rose to a value (closed form)."""

    acceptance: float
    exit_layer: int
    draft_length: int
    speedup: float


class BreakEven(Part):
    """Acceptance needed and had at one exit layer."""

    exit_layer: int
    needed: float | None = Field(description="Smallest tested acceptance at which some k gives 1.")
    observed: float | None = Field(description="Tested acceptance of this bucket at its best k.")


class Guard(Part):
    """A condition that argues against speculation, with its number."""

    name: Literal["short_outputs", "request_speedup", "not_bandwidth_bound"]
    value: float | None
    limit: float
    text: str


class Textbook(Part):
    """The formula of the textbook at the rule's cell, and what is left of it."""

    formula_speedup: float | None = Field(description="(1-α^(k+1)) / ((1-α)(kL/N+1)).")
    discounted_speedup: float | None = Field(description="0.8 × formula, the folk discount.")
    discount: float | None = Field(
        description="Measured where confirmed, else predicted, speedup ÷ formula."
    )


class BestAtBatch(Part):
    """The cell that a batch size would choose for itself."""

    exit_layer: int
    draft_length: int
    speedup: Interval = Field(
        description="Best lower bound of all cells at this batch size, on the requests that chose "
        "it: in-sample, never evidence."
    )


class AtBatch(Part):
    """A rule at one measured batch size, decode only."""

    batch_size: int = Field(ge=1)
    check: Check = Field(description="Whether the rule would hold here; the smaller ones count.")
    speedup: Interval = Field(
        description="Continuous refill: the cross-fitted choices of the smallest measured batch "
        "size, priced at this one; the evidence."
    )
    static_speedup: float | None = Field(
        default=None,
        description="Static batches of the rule's cell, none refilled, on the bucket's own "
        "requests; null at 1, and where the smaller sizes that they shrink through are not timed.",
    )
    waiting_share: float | None = Field(
        default=None,
        description="Of static batches: row time lost to waiting for the longest row.",
    )
    grouping_gain: float | None = Field(
        default=None,
        description="Of static batches: time a token at random ÷ with requests of like acceptance "
        "in one batch.",
    )
    best: BestAtBatch | None = None
    reason: str = Field(description="What follows `at batch N`, with the numbers.")


class Rule(Part):
    """One bucket: on with (L, k), or off with a reason.

    `drafter` and `draft` name the best cell found even where the rule is off.
    """

    task: str
    context_min: int
    context_max: int | None = Field(description="First length beyond the band; null: open.")
    temperature_min: float
    temperature_max: float
    max_batch: int | None = Field(
        default=None,
        description="Largest measured batch size up to which the rule holds at every measured one; "
        "null where it is off.",
    )
    by_batch: list[AtBatch] = Field(
        default_factory=list, description="Every measured batch size, ascending, also where off."
    )
    prompt_tokens_max: int | None = Field(
        default=None, description="Longest prompt of this bucket; an open band ends there."
    )
    laws: list[Law] = Field(
        default_factory=list, description="Calibrated in this bucket; any other law is off."
    )
    enabled: bool
    drafter: Drafter
    draft: Draft
    speedup: Interval = Field(description="Cross-fitted, decode only: the evidence.")
    in_sample_speedup: float | None = Field(
        default=None, description="Of the written cell on its own requests; never evidence."
    )
    median_request_speedup: float | None = Field(
        default=None, description="Median over requests of their own ratio, decode only."
    )
    request_speedup: float | None = Field(default=None, description="Prefill on both sides.")
    measured_speedup: Interval = Field(default_factory=Interval)
    confirmed: bool = False
    acceptance_rate_tested: float | None = None
    break_even_acceptance: float | None = None
    break_even_by_layer: list[BreakEven] = Field(default_factory=list)
    gain_at: list[GainAt] = Field(default_factory=list)
    textbook: Textbook | None = None
    slow_share: float | None = None
    slow_share_high: float | None = Field(
        default=None, description="Clopper-Pearson 95 % upper limit over requests."
    )
    request_p99_ratio: float | None = Field(
        default=None, description="P99 of request time ÷ P99 of plain; null below 300 requests."
    )
    gap_p99_s: float | None = Field(
        default=None, description="P99 of the inter-token gap, seconds: a round's own time."
    )
    oracle_speedup: float | None = Field(
        default=None, description="Each request at its own best cell (or off): the ceiling."
    )
    runner_up: str | None = Field(default=None, description="Second cell, as `L=12, k=3: 1.04`.")
    runner_up_cell: list[int] | None = Field(default=None, description="The same as [L, k].")
    num_requests: int = Field(description="Groups of requests in the bucket.")
    evidence_requests: int | None = Field(
        default=None, description="Groups that `speedup` rests on: the bucket's or its parent's."
    )
    effective_requests: float | None = Field(
        default=None, description="How many equal ones those are worth: (Σ AR)²/Σ AR²."
    )
    num_tokens: int
    token_share: float | None = Field(default=None, description="Share of the log's tokens.")
    time_share: float | None = Field(default=None, description="Share of plain decode time.")
    evidence: Evidence
    requests_missing: int = Field(
        default=0, description="More groups needed until the bucket can rest on its own."
    )
    window: Literal["full", "partial"] = "full"
    guards: list[Guard] = Field(default_factory=list)
    reason: str = Field(description="One sentence with the numbers.")


class GlobalCell(Part):
    """The best single (L, k) for all traffic at one temperature."""

    temperature: float
    exit_layer: int
    draft_length: int
    speedup: Interval = Field(description="Cross-fitted over all requests at this temperature.")
    enabled_alone: bool = Field(description="Whether one setting for all would pass the rule.")


class Total(Part):
    """Traffic-weighted effect of the plan on this log."""

    decode_time_change: Interval = Field(description="-0.12: decode takes 12 % less time.")
    num_buckets: int
    num_enabled: int
    enabled_token_share: float | None = None
    oracle_decode_time_change: float | None = Field(
        default=None, description="With each request at its own best cell or off."
    )
    sentence: str


class BatchFacts(Part):
    """Plain decoding at one measured batch size, and the prompts that its costs cover."""

    batch_size: int = Field(ge=1)
    ar_step_s: float | None = Field(
        description="Plain step of the whole batch at the median prompt; null where not timed."
    )
    tokens_per_s: float | None = Field(description="Of the whole batch, plain: rows ÷ ar_step_s.")
    prompt_tokens_min: int | None = Field(description="Shortest prompt priced; below it: off.")
    prompt_tokens_max: int | None = Field(description="Longest prompt priced; above it: off.")


class PlanDocument(Part):
    """plan.yaml."""

    schema_version: Literal[2] = SCHEMA_VERSION
    model: ModelFacts
    measured_on: MeasuredOn
    traces: TraceFacts
    laws: Laws
    batch_sizes: list[int] = Field(
        default_factory=lambda: [1],
        description="Measured, ascending. Rules are decided at the first.",
    )
    batches: list[BatchFacts] = Field(
        default_factory=list, description="One a measured batch size, in the same order."
    )
    settings: Settings
    verdict: Literal["enable", "enable some", "do not enable", "no verdict"]
    total: Total
    default: Default = Field(default_factory=Default)
    global_: list[GlobalCell] = Field(default_factory=list, alias="global")
    rules: list[Rule]
    warnings: list[str] = Field(
        default_factory=list, description="Edge of range, unstable timing, partial window ..."
    )
    origins: dict[str, str] = Field(
        default_factory=dict, description="Where each kind of number comes from."
    )
    measurement_hash: str
    analysis_hash: str

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True
    )
