"""What findings are drawn from, and what they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from selfspec_cli.analysis.accepted_lengths import AcceptedLengths
from selfspec_cli.plan.document import PlanDocument, Rule
from selfspec_cli.report.format import percent, plural, ratio_with_interval
from selfspec_cli.report.rule_rows import by_traffic
from selfspec_cli.report.second_trace import TrafficComparison

GOOD_ACCEPTANCE = 0.6  # the popular "α >= 0.6"; information, the break-even decides


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How steady and how additive the timings of one law are."""

    law: str
    ar_spread: float
    """Standard deviation over blocks ÷ mean of a plain step."""
    round_spread: float
    unstable: bool
    cost_model_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the device holds, and what the model takes of it (bytes)."""

    device_bytes: float
    weight_bytes: float
    token_bytes: float
    """Keys and values of one cached token of one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Production:
    """What a server counted of its own speculation."""

    source: str
    """Name of the file."""
    rounds: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """What findings are drawn from; frames as `figure_data` makes them.

    What a run never wrote is an empty frame, an empty mapping or None, and no finding is drawn.
    """

    plan: PlanDocument
    by_layer: pd.DataFrame
    measured: pd.DataFrame
    lengths: Sequence[tuple[Rule, AcceptedLengths]]
    timings: Sequence[Timing]
    self_check_error: float | None
    grid: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Roll-ups of grid.csv by temperature: all traffic at every cell."""
    decodes: pd.DataFrame = field(default_factory=pd.DataFrame)
    """confirm.csv, all columns, and `source` of each path (recorded, regenerated)."""
    batch_decodes: pd.DataFrame = field(default_factory=pd.DataFrame)
    """confirm_batch.csv, all columns."""
    law_proof: Mapping[str, Any] = field(default_factory=dict)
    """Stage confirm's `exactness`: the test of the sampled law."""
    cells: Sequence[tuple[Rule, pd.DataFrame]] = ()
    """Each rule with the walk rows of its bucket at its own cell, the largest bucket first."""
    bench: pd.DataFrame = field(default_factory=pd.DataFrame)
    """bench.csv, where the run's folder has one."""
    memory: Memory | None = None
    production: Production | None = None
    traffic: TrafficComparison | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding, in the order a person asks."""

    code: str
    """Stable name, for machines."""
    symptom: str
    evidence: str
    cause: str
    remedy: str


def judged_off(evidence: Evidence) -> list[Rule]:
    """Return rules that are off although they have a speedup, the largest first."""
    return [
        rule
        for rule in by_traffic(evidence.plan.rules)
        if not rule.enabled and rule.speedup.estimate is not None
    ]


def scope(rules: Sequence[Rule]) -> str:
    """Return how many buckets these are, and their share of the plain decode time."""
    shares = [rule.time_share for rule in rules if rule.time_share is not None]
    part = f", {percent(sum(shares))} of the plain decode time" if shares else ""
    return f"{plural(len(rules), 'bucket')}{part}"


def speed(rule: Rule) -> str:
    """Return the evidence of a rule as text."""
    found = rule.speedup
    return ratio_with_interval(found.estimate, found.low, found.high)
