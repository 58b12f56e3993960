"""Every key of a calibration, its default, its limits and its meaning."""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from selfspec_cli.config.ranges import (
    check_exit_layers,
    parse_batch_sizes,
    parse_temperatures,
    resolve_draft_lengths,
)
from selfspec_cli.errors import LossyRuleError

MIN_COST_BLOCKS = 10  # blocks are the unit of uncertainty; fewer give no interval (METHOD.md §4)


def _integral(value: Any) -> Any:
    """Let 1e3 be 1000 where a count is meant; everything else is for the strict type to judge."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _range_text(value: Any) -> Any:
    """Let a range be written as a number or a list too: 4, [1, 2, 4]."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list | tuple) and all(type(item) is int for item in value):
        return ",".join(map(str, value))
    return value


def _one_or_more(value: Any) -> Any:
    """Let one text stand for a list of one."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Count = Annotated[int, BeforeValidator(_integral)]
RangeText = Annotated[str, BeforeValidator(_range_text)]
Names = Annotated[tuple[str, ...], BeforeValidator(_one_or_more)]
Counts = Annotated[tuple[Count, ...], BeforeValidator(_tuple)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)


class CostConfig(_Section):
    """How the cost surface is measured (METHOD.md §4)."""

    blocks: Count = Field(
        default=MIN_COST_BLOCKS,
        ge=MIN_COST_BLOCKS,
        description="Interleaved timing blocks; each times every part and one plain step.",
    )
    contexts: Counts | Literal["auto"] = Field(
        default="auto",
        description="Context lengths to time at, tokens; auto spreads them over the trace's own.",
    )
    warmup: Count = Field(default=2, ge=1, description="Blocks run and thrown away first.")

    @field_validator("contexts")
    @classmethod
    def _ascending(cls, value: Any) -> Any:
        if value != "auto" and (not value or value[0] < 1 or list(value) != sorted(set(value))):
            raise ValueError("contexts must be ascending whole numbers of at least 1")
        return value


class ConfirmConfig(_Section):
    """How many of the finalists are decoded for real (METHOD.md §6)."""

    cells: Count = Field(
        default=8, ge=0, description="(bucket, L, k) cells to decode; 0 skips confirmation."
    )
    requests: Count = Field(default=8, ge=1, description="Requests a cell decodes.")
    budget_s: Count | Literal["auto"] = Field(
        default="auto",
        description="Seconds that confirmation may take; auto: the larger of 20 % of the run "
        "and 90. Cells that do not fit stay unconfirmed. Decoding in batches, where batch sizes "
        "above 1 are priced, gets half as much again.",
    )
    min_tokens: Count = Field(
        default=32,
        ge=2,
        description="Output tokens of a path to decode; shorter ones follow where these are few.",
    )
    repeats: Count = Field(default=1, ge=1, description="Times each cell is decoded.")


class PlanConfig(_Section):
    """When a rule is enabled (METHOD.md §5). Read by the analysis only."""

    margin: float = Field(
        default=0.05,
        ge=0.0,
        le=10.0,
        allow_inf_nan=False,
        description="A rule is enabled where the lower bound of its speedup is at least 1 + this.",
    )
    min_requests: Count = Field(
        default=20, ge=2, description="Groups of requests a bucket needs to rest on its own."
    )
    max_slow_share: float = Field(
        default=0.10,
        ge=0.0,
        le=1.0,
        allow_inf_nan=False,
        description="Largest share of (request, walk) pairs over 1.05 times their plain time.",
    )


class CalibrateConfig(_Section):
    """Everything `selfspec calibrate` may be told; the unit stands with each key."""

    model: str = Field(min_length=1, description="Local path, hub id, or demo.")
    traces: Names = Field(min_length=1, description="Trace files, or sample.")
    out: str = Field(min_length=1, description="Run directory; its parent must exist.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="Where the model runs; auto takes an accelerator if any."
    )
    device_map: str | None = Field(
        default=None,
        description="Placement for models that need several devices, as transformers takes it.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Number format of the weights; auto: the checkpoint's own."
    )
    engine: Literal["auto", "compiled", "eager"] = Field(
        default="auto",
        description="Kernels of the decoder; auto is compiled where that pays and works.",
    )
    seed: Count = Field(default=0, ge=0, description="Root of every random draw of the run.")
    exit_layers: RangeText = Field(
        default="30%-80%", description="Exit layers L to price: 30%-80%, 9-24, 9-24+3, 9,12,15."
    )
    draft_lengths: RangeText = Field(
        default="1-8", description="Draft lengths k to price, tokens: 1-8, 1-8+2, 1,2,4."
    )
    temperatures: tuple[float, ...] | Literal["trace"] = Field(
        default=(0.0, 0.7),
        description="Temperatures to observe at, or trace: each request at its own.",
    )
    batch_sizes: tuple[int, ...] = Field(
        default=(1,),
        description="Batch sizes to price, requests decoded together: 1 or 1,4,8; rules are "
        "decided at the first. Not the rows observed together, which change no number.",
    )
    task_from: str | None = Field(
        default=None,
        description="Where a request's task comes from: a field of the row, regex:PATTERN, file, "
        "or system-prompt; null: the row's own task or category.",
    )
    limit: Count = Field(default=300, ge=1, description="Most requests taken from the traces.")
    max_tokens: Count | None = Field(
        default=None, ge=1, description="Cap on output tokens a request, on top of its own budget."
    )
    default_max_tokens: Count = Field(
        default=128, ge=1, description="Output budget where a request states none, tokens."
    )
    continuations: Literal["auto", "recorded", "regenerate"] = Field(
        default="auto",
        description="Whose text is observed: recorded where it passes the test, else regenerated.",
    )
    sweep: Literal["walk", "decode"] = Field(
        default="walk", description="Price cells by the path walk, or decode every cell for real."
    )
    context_edges: Counts = Field(
        default=(0, 512, 2048, 8192),
        description="Edges of the context bands, prompt tokens; the last band is open.",
    )
    observe_batch: Count = Field(default=8, ge=1, description="Rows decoded together to observe.")
    acceptance: Literal["rejection"] = Field(
        default="rejection", description="Rule that accepts drafts; only the lossless one exists."
    )
    tokenizer: str | None = Field(
        default=None, description="Folder of another tokenizer than the model's own; it wins."
    )
    chat_template: str | None = Field(
        default=None, description="Template file used instead of the tokenizer's own."
    )
    draft_truncation: Literal["same", "none"] = Field(
        default="same", description="Whether top-k and top-p cut the draft law too; both lossless."
    )
    cost: CostConfig = Field(default_factory=CostConfig, description="Timing of the parts.")
    confirm: ConfirmConfig = Field(
        default_factory=ConfirmConfig, description="Real decoding of finalists."
    )
    plan: PlanConfig = Field(default_factory=PlanConfig, description="When a rule is enabled.")
    include_text: bool = Field(
        default=False, description="Keep prompts and outputs in the run's files."
    )

    @field_validator("task_from")
    @classmethod
    def _task_from(cls, value: str | None) -> str | None:
        if value is None or not value.startswith("regex:"):
            return value
        try:
            re.compile(value.removeprefix("regex:"))
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return value

    @field_validator("exit_layers")
    @classmethod
    def _exit_layers(cls, value: str) -> str:
        check_exit_layers(value)
        return value.replace(" ", "")

    @field_validator("draft_lengths")
    @classmethod
    def _draft_lengths(cls, value: str) -> str:
        resolve_draft_lengths(value)
        return value.replace(" ", "")

    @field_validator("temperatures", mode="before")
    @classmethod
    def _temperatures(cls, value: Any) -> Any:
        return parse_temperatures(value)

    @field_validator("batch_sizes", mode="before")
    @classmethod
    def _batch_sizes(cls, value: Any) -> Any:
        return parse_batch_sizes(value)

    @field_validator("acceptance", mode="before")
    @classmethod
    def _acceptance(cls, value: Any) -> Any:
        if value in ("argmax", "typical"):
            raise LossyRuleError(
                f"acceptance {value!r} changes what the model writes, so it is refused",
                where="acceptance",
                hint="Keeping a draft because it is the target's most likely (or a typical) token, "
                "while the request samples, makes likely tokens likelier than the target does: "
                "the text grows blander and its law is no longer the model's. Use rejection; "
                "at temperature 0 it is the argmax match already.",
            )
        return value

    @field_validator("context_edges")
    @classmethod
    def _context_edges(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or value[0] != 0 or list(value) != sorted(set(value)):
            raise ValueError("context_edges must start at 0 and ascend")
        return value
