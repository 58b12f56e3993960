"""Rules of a gate: every check, its limits, and what a failure or no verdict means."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _integral(value: Any) -> Any:
    """Let 1e3 be 1000 where a count is meant; the strict type judges everything else."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[int, BeforeValidator(_integral)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class CheckRule(BaseModel):
    """What all checks have."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False
    )

    enabled: bool = Field(default=True, description="true or false")
    on_fail: Literal["fail", "warn"] = Field(
        default="fail", description="fail ends with exit code 1, warn only shows it"
    )
    on_no_verdict: Literal["stop", "note"] = Field(
        default="stop", description="stop ends with exit code 3, note only shows it"
    )


class SpeedupRule(CheckRule):
    """Decode time: how much faster, at the lower end of the interval."""

    min_speedup: float = Field(
        default=1.05,
        gt=0.0,
        le=1000.0,
        description="least lower bound of the speedup, 1 + margin: above 0, at most 1000",
    )


class MeasuredSpeedupRule(CheckRule):
    """Really decoded cells: must not contradict a gain."""

    on_no_verdict: Literal["stop", "note"] = "note"
    min_speedup: float = Field(
        default=1.0, gt=0.0, le=1000.0, description="least measured speedup, above 0, at most 1000"
    )


class AcceptanceFloorRule(CheckRule):
    """Tested acceptance of early-exit rules."""

    on_fail: Literal["fail", "warn"] = "warn"
    min_acceptance: Share = Field(default=0.6, description="least tested acceptance, 0 to 1")


class SlowShareRule(CheckRule):
    """Requests that take over 1.05 times as long."""

    max_share: Share = Field(default=0.10, description="largest share of slow requests, 0 to 1")


class RequestP99Rule(CheckRule):
    """Tail of request time, from 300 requests on."""

    on_no_verdict: Literal["stop", "note"] = "note"
    max_ratio: float = Field(
        default=1.05, gt=0.0, le=1000.0, description="largest P99 over plain P99, above 0"
    )


class MemoryRule(CheckRule):
    """Weights, KV cache and speculation buffers on the device."""

    on_fail: Literal["fail", "warn"] = "warn"
    on_no_verdict: Literal["stop", "note"] = "note"
    max_share: Share = Field(default=0.95, description="largest share of device memory, 0 to 1")
    concurrency: Count | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="P99 of requests running at once; null: the plan's largest batch size",
    )
    context_tokens: Count | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description="P99 of prompt and output tokens; null: as in the run's requests",
    )


class PredictionErrorRule(CheckRule):
    """How well the confirmed cells were predicted."""

    on_no_verdict: Literal["stop", "note"] = "note"
    max_median: float = Field(
        default=0.10, ge=0.0, le=10.0, description="largest median error, 0 to 10"
    )
    max_worst: float = Field(default=0.25, ge=0.0, le=10.0, description="largest error, 0 to 10")


class RegretRule(CheckRule):
    """What the chosen cells cost against the best ones decoded beside them."""

    on_no_verdict: Literal["stop", "note"] = "note"
    max_regret: float = Field(
        default=0.05, ge=0.0, le=10.0, description="largest share of time lost, 0 to 10"
    )


class EnoughRequestsRule(CheckRule):
    """Groups of requests behind each rule."""

    min_requests: Count = Field(
        default=20, ge=1, le=1_000_000_000, description="least groups of requests, at least 1"
    )


class AgeRule(CheckRule):
    """How old the measurement is."""

    max_days: float = Field(
        default=90.0, ge=0.0, le=36500.0, description="oldest measurement, days, 0 to 36500"
    )


class DriftRule(CheckRule):
    """Traffic of today against the traffic that was calibrated."""

    on_no_verdict: Literal["stop", "note"] = "note"
    max_mix_distance: Share = Field(
        default=0.20, description="largest total variation of the bucket mix, 0 to 1"
    )
    max_length_distance: Share = Field(
        default=0.20, description="largest Kolmogorov-Smirnov distance of prompt lengths, 0 to 1"
    )


class GateRules(BaseModel):
    """Every check of `selfspec gate`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)

    nothing_enabled: Literal["no_verdict", "pass"] = Field(
        default="no_verdict",
        description="outcome where the plan enables no rule: no_verdict (exit code 3) or pass",
    )
    speedup: SpeedupRule = SpeedupRule()
    measured_speedup: MeasuredSpeedupRule = MeasuredSpeedupRule()
    acceptance_break_even: CheckRule = CheckRule()
    acceptance_floor: AcceptanceFloorRule = AcceptanceFloorRule()
    slow_share: SlowShareRule = SlowShareRule()
    request_p99: RequestP99Rule = RequestP99Rule()
    memory: MemoryRule = MemoryRule()
    exactness: CheckRule = CheckRule()
    prediction_error: PredictionErrorRule = PredictionErrorRule()
    regret: RegretRule = RegretRule()
    enough_requests: EnoughRequestsRule = EnoughRequestsRule()
    fingerprints: CheckRule = CheckRule()
    age: AgeRule = AgeRule()
    drift: DriftRule = DriftRule()

    def rule(self, name: str) -> CheckRule:
        """Return the rule of a check.

        Raises:
            AttributeError: unknown check.
        """
        found: CheckRule = getattr(self, name)
        return found

    def replaced(self, name: str, values: Mapping[str, object]) -> "GateRules":
        """Return the rules with values of one check replaced.

        Raises:
            pydantic.ValidationError: a value out of its range.
        """
        section = {**self.rule(name).model_dump(), **values}
        return GateRules.model_validate({**self.model_dump(), name: section})
