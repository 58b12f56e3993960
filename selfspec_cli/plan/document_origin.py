"""Head of plan.yaml: the model, the machine, the costs and the traffic that a plan came from."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

OWN_COSTS = "this run"
"""`source` of costs that the run measured itself."""


class Part(BaseModel):
    """Part of a plan document: no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelFacts(Part):
    """The model the plan was measured on."""

    id: str
    revision: str | None = Field(default=None, description="Hash of config and weights.")
    num_layers: int
    dtype: str
    tokenizer_hash: str | None = Field(default=None, description="Of the model's own tokenizer.")
    tokenizer_override: str | None = Field(
        default=None, description="Tokenizer used in place of the model's own; it wins."
    )


class CostSource(Part):
    """Whose seconds the plan is priced with."""

    source: str = Field(description="`this run`, or the name of the cost file given.")
    sha256: str | None = None
    engine: str | None = None
    mode: dict[str, str] = Field(
        default_factory=dict, description="By law class: parts, corrected or whole_rounds."
    )
    cost_model_error: dict[str, float | None] = Field(
        default_factory=dict, description="By law class: median error on held-out rounds."
    )
    ar_step_s: float | None = Field(default=None, description="Plain step at the median context.")
    bandwidth_floor_s: float | None = Field(
        default=None, description="Bytes read by a step ÷ measured read bandwidth."
    )
    floor_ratio: float | None = Field(default=None, description="ar_step_s ÷ bandwidth_floor_s.")


class MeasuredOn(Part):
    """Machine, libraries and engine of the measurement."""

    device: dict[str, Any]
    libraries: dict[str, str | None]
    engine: str
    costs: CostSource


class OutputWindow(Part):
    """How far into the output acceptance was observed."""

    observed_tokens: int | None = Field(description="Longest observed output, tokens.")
    median_tokens: float | None = None
    default_max_tokens: int
    num_default_max_tokens: int | None = Field(
        default=None, description="Requests that stated no max_tokens and got the default."
    )


class TraceFacts(Part):
    """The traffic the plan speaks of."""

    fingerprint: str
    num_requests: int
    date: str = Field(description="Day of the measurement, ISO 8601.")
    task_labels: bool = Field(description="False: no task labels were found, one bucket.")
    output_window: OutputWindow
    sources: dict[str, int] = Field(
        default_factory=dict, description="Paths by source: recorded, regenerated."
    )
    prompt_tokens_min: int | None = Field(
        default=None, description="Shortest prompt that was observed and priced; below it: off."
    )
    prompt_tokens_max: int | None = Field(
        default=None, description="Longest prompt that was observed and priced; above it: off."
    )
