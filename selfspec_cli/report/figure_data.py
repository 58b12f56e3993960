"""What each figure shows, as a table: pictures, CSV files and HTML tables are made from these."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from selfspec_cli.analysis.accepted_lengths import AcceptedLengths, accepted_lengths
from selfspec_cli.analysis.confirmation import CONFIRM_KEYS, summarise_confirm
from selfspec_cli.analysis.cost_curves import cost_curves, plain_steps
from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.analysis.intervals import ratio_interval
from selfspec_cli.analysis.observations import acceptance_table
from selfspec_cli.analysis.sweep_check import compare_sweep
from selfspec_cli.plan.document import PlanDocument, Rule
from selfspec_cli.report.rule_rows import by_traffic, rule_label
from selfspec_cli.report.tables import RunTables

_CELL = ["temperature", "exit_layer", "draft_length"]


def speedup_map(grid: pd.DataFrame, plan: PlanDocument) -> pd.DataFrame:
    """Return predicted speedup by (temperature, L, k) over all traffic, from grid.csv's roll-ups.

    `chosen` marks the best single cell of the plan at that temperature.
    """
    pooled = grid.loc[grid["evidence"] == "all"]
    best = {(c.temperature, c.exit_layer, c.draft_length) for c in plan.global_}
    chosen = [cell in best for cell in pooled[_CELL].itertuples(index=False, name=None)]
    names = [
        *_CELL, "num_requests", "predicted_speedup", "predicted_speedup_low",
        "predicted_speedup_high",
    ]  # fmt: skip
    table = pooled[names].assign(chosen=chosen)
    return table.loc[table["predicted_speedup"].notna()].reset_index(drop=True)


def acceptance(tables: RunTables) -> pd.DataFrame:
    """Return mean acceptance over all traffic by temperature, exit layer and output band.

    Columns temperature, exit_layer, output_from, output_to, num_positions, accept_prob_mean, low,
    high (95 % over groups); empty without observations.
    """
    if tables.observations is None or tables.requests is None:
        return pd.DataFrame()
    pooled = tables.requests[["request_id", "group_id"]].assign(task="")
    table = acceptance_table(tables.observations, pooled)
    table = table.rename(columns={"accept_prob_low": "low", "accept_prob_high": "high"})
    return table[
        ["temperature", "exit_layer", "output_from", "output_to", "num_positions",
         "accept_prob_mean", "low", "high"]
    ]  # fmt: skip


def acceptance_by_layer(acceptance: pd.DataFrame, plan: PlanDocument) -> pd.DataFrame:
    """Return acceptance of the whole output by temperature and exit layer.

    `needed` is the break-even acceptance of the largest bucket at that temperature, `needed_in` its
    label; both missing where the plan has none.
    """
    if acceptance.empty:
        return acceptance
    whole = (acceptance["output_from"] == 1) & acceptance["output_to"].isna()
    table = acceptance.loc[whole].drop(columns=["output_from", "output_to"])
    needed = _needed(plan)
    keys = list(table[["temperature", "exit_layer"]].itertuples(index=False, name=None))
    return table.assign(
        needed=pd.array([needed.get(key, (None, ""))[0] for key in keys], dtype="Float64"),
        needed_in=[needed.get(key, (None, ""))[1] for key in keys],
    ).reset_index(drop=True)


def _needed(plan: PlanDocument) -> Mapping[tuple[float, int], tuple[float | None, str]]:
    found: dict[tuple[float, int], tuple[float | None, str]] = {}
    for rule in reversed(by_traffic(plan.rules)):  # the largest is written last and stays
        for entry in rule.break_even_by_layer:
            found[rule.temperature_min, entry.exit_layer] = (entry.needed, rule_label(rule))
    return found


def acceptance_by_position(acceptance: pd.DataFrame, plan: PlanDocument) -> pd.DataFrame:
    """Return acceptance by output band at the plan's best single exit layer of a temperature.

    Without such a layer (a temperature the plan has no cell for) the deepest observed one is read.
    """
    if acceptance.empty:
        return acceptance
    best = {cell.temperature: cell.exit_layer for cell in plan.global_}
    deepest = int(acceptance["exit_layer"].max())
    wanted = acceptance["temperature"].map(lambda degrees: best.get(degrees, deepest))
    whole = (acceptance["output_from"] == 1) & acceptance["output_to"].isna()
    return acceptance.loc[(acceptance["exit_layer"] == wanted) & ~whole].reset_index(drop=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPoint:
    """Where the cost curves are read."""

    law: str
    context: float
    """Tokens in the cache."""


def cost_point(tables: RunTables) -> CostPoint | None:
    """Return the law most rounds are priced with, and the median prompt of its paths."""
    if tables.costs is None or not tables.costs.surfaces:
        return None
    walk = tables.walk
    if walk is None or walk.empty:
        law = sorted(tables.costs.surfaces)[0]
        low, high = tables.costs.surfaces[law].context_range
        return CostPoint(law=law, context=(low + high) / 2)
    laws = walk["law"].value_counts()
    law = str(laws.index[0])
    prompt = float(walk.loc[walk["law"] == law, "prompt_tokens"].median())
    low, high = tables.costs.surfaces[law].context_range
    return CostPoint(law=law, context=min(max(prompt, low), high))


def cost_table(tables: RunTables, point: CostPoint | None) -> pd.DataFrame:
    """Return c(L), v(L, k) and the plain step, each beside what the textbook or the floor says.

    Columns quantity, law, exit_layer, draft_length, context (tokens), value, low, high, reference:
    L/N for c, 1 for v, the bandwidth floor (s) for the plain step (ar_step_s).
    """
    if tables.costs is None or point is None:
        return pd.DataFrame()
    surface, settings = tables.costs.surfaces[point.law], tables.plan.settings
    layers = sorted({*settings.exit_layers, *settings.exit_layers_beyond})
    lengths = [k for k in settings.draft_lengths if k <= surface.max_draft_length]
    curves = cost_curves(
        surface, layers, _spread(lengths), point.context, seed=int(tables.config.get("seed", 0))
    )
    is_draft = curves["quantity"] == "draft_cost_ratio"
    curves["reference"] = np.where(is_draft, curves["exit_layer"] / surface.num_layers, 1.0)
    curves["context"] = point.context
    steps = _steps(tables, surface)
    table = pd.concat([curves, steps], ignore_index=True).assign(law=point.law)
    return table[
        ["quantity", "law", "exit_layer", "draft_length", "context", "value", "low", "high",
         "reference"]
    ]  # fmt: skip


def _steps(tables: RunTables, surface: CostSurface) -> pd.DataFrame:
    """Plain steps by context, with the floor where the run measured it."""
    floors = tables.stage("cost").get("bandwidth", {}).get("floor_s", {})
    by_context = {float(context): seconds for context, seconds in floors.items()}
    steps = plain_steps(surface).rename(columns={"ar_step_s": "value"})
    known = [by_context.get(float(context)) for context in steps["context"]]
    return steps.assign(quantity="ar_step_s", reference=pd.array(known, dtype="Float64"))


def _spread(lengths: Sequence[int]) -> list[int]:
    """At most four draft lengths: one line each can still be told apart."""
    if len(lengths) <= 4:
        return list(lengths)
    places = np.linspace(0, len(lengths) - 1, 4).round().astype(int)
    return [lengths[place] for place in places]


def predicted_measured(tables: RunTables) -> pd.DataFrame:
    """Return predicted and measured decode speedup of every cell that was decoded for real.

    Both intervals are over the decoded groups: they share prompts, so they move together.
    """
    if tables.confirm is None or tables.confirm.empty:
        return _from_sweep(tables)
    summary = summarise_confirm(tables.confirm)
    predicted = [
        ratio_interval(cell["predicted_ar_seconds"], cell["predicted_seconds"], cell["group_id"])
        for _, cell in tables.confirm.groupby(CONFIRM_KEYS, sort=True, dropna=False)
    ]
    names = [
        *CONFIRM_KEYS, "role", "num_groups", "num_tokens", "predicted_speedup",
        "predicted_speedup_low", "predicted_speedup_high", "measured_speedup",
        "measured_speedup_low", "measured_speedup_high", "error",
    ]  # fmt: skip
    ends = np.array([[found.low, found.high] for found in predicted], dtype=np.float64)
    return summary.assign(predicted_speedup_low=ends[:, 0], predicted_speedup_high=ends[:, 1])[
        names
    ]


def _from_sweep(tables: RunTables) -> pd.DataFrame:
    """A run that decoded every cell (`--sweep decode`) has no confirmation of its own."""
    if tables.sweep is None or tables.walk is None:
        return pd.DataFrame()
    names = [*_CELL, "predicted_speedup", "measured_speedup"]
    compared = compare_sweep(tables.sweep, tables.walk)
    return compared[names].dropna().reset_index(drop=True) if len(compared) else pd.DataFrame()


def rule_lengths(tables: RunTables) -> list[tuple[Rule, AcceptedLengths]]:
    """Return the accepted lengths of each rule's cell, the largest bucket first.

    Rules without a cell, or whose bucket was not walked, are left out.
    """
    if tables.walk is None or tables.requests is None:
        return []
    rows = tables.walk.merge(tables.requests[["request_id", "task"]], on="request_id", how="left")
    found = []
    for rule in by_traffic(tables.plan.rules):
        lengths = accepted_lengths(rows_of(rule, rows))
        if lengths is not None:
            found.append((rule, lengths))
    return found


def rows_of(rule: Rule, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the walk rows of a rule's bucket at its own cell.

    Args:
        rule: of the plan.
        rows: walk.parquet with the task of each request.
    """
    top = np.inf if rule.context_max is None else rule.context_max
    inside = (
        (rows["task"] == rule.task)
        & (rows["prompt_tokens"] >= rule.context_min)
        & (rows["prompt_tokens"] < top)
        & (rows["temperature"] == rule.temperature_min)  # the measured end of its range
        & (rows["exit_layer"] == rule.drafter.exit_layer)
        & (rows["draft_length"] == rule.draft.length)
    )
    return rows.loc[inside]


def lengths_table(found: Sequence[tuple[Rule, AcceptedLengths]]) -> pd.DataFrame:
    """Return shares of rounds by accepted length, one row a (rule, length).

    `constant` is what one constant acceptance would give, `two_peaks` the warning of the whole
    histogram.
    """
    rows: list[dict[str, Any]] = []
    for rule, lengths in found:
        head = {
            "task": rule.task,
            "context_min": rule.context_min,
            "context_max": rule.context_max,
            "temperature": rule.temperature_min,
            "exit_layer": rule.drafter.exit_layer,
            "draft_length": rule.draft.length,
            "num_requests": lengths.num_groups,
            "two_peaks": lengths.two_peaks,
        }
        rows += [
            {
                **head,
                "accepted": accepted,
                "share": float(lengths.share[accepted]),
                "low": float(lengths.low[accepted]),
                "high": float(lengths.high[accepted]),
                "constant": float(lengths.constant[accepted]),
            }
            for accepted in range(len(lengths.share))
        ]
    table = pd.DataFrame(rows)
    return table.astype({"context_max": "Int64"}) if len(table) else table
