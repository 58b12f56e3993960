"""Figures of the report: each a table, a caption, a text for who cannot see it, or a reason."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from selfspec_cli.analysis.accepted_lengths import AcceptedLengths
from selfspec_cli.plan.batch_text import batches_sentence
from selfspec_cli.plan.document import PlanDocument, Rule
from selfspec_cli.report.batch_data import batch_table
from selfspec_cli.report.figure_data import (
    CostPoint,
    acceptance_by_layer,
    acceptance_by_position,
    cost_point,
    cost_table,
    lengths_table,
    predicted_measured,
    speedup_map,
)
from selfspec_cli.report.format import milliseconds, number, percent, plural, ratio, shown
from selfspec_cli.report.rule_rows import rule_label
from selfspec_cli.report.tables import RunTables

MAP, LAYERS, POSITIONS = "speedup_map", "acceptance_by_layer", "acceptance_by_position"
COSTS, MEASURED, LENGTHS = "cost_curves", "predicted_measured", "accepted_lengths"
BATCHES = "speedup_by_batch"
_INTERVALS = "Bars are 95 % intervals over requests."


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FigureView:
    """One figure; `absent` says in a sentence why there is none, and is empty otherwise."""

    name: str
    """Stem of its files, never from data."""
    title: str
    caption: str
    alt: str
    table: pd.DataFrame
    absent: str = ""


def make_figures(
    tables: RunTables,
    grid: pd.DataFrame,
    accepted: pd.DataFrame,
    lengths: Sequence[tuple[Rule, AcceptedLengths]],
) -> tuple[FigureView, ...]:
    """Return all figures of a run, in reading order.

    Args:
        tables: the run's files.
        grid: grid.csv, computed again (`build_grid`).
        accepted: of `figure_data.acceptance`.
        lengths: of `figure_data.rule_lengths`.
    """
    return (
        _batches(batch_table(tables.plan), tables.plan),
        _map(speedup_map(grid, tables.plan)),
        _layers(acceptance_by_layer(accepted, tables.plan)),
        _positions(acceptance_by_position(accepted, tables.plan)),
        _costs(tables, cost_point(tables)),
        _measured(predicted_measured(tables), tables),
        _lengths(lengths_table(lengths), lengths),
    )


def _map(table: pd.DataFrame) -> FigureView:
    title = "Predicted speedup of every exit layer and draft length"
    if table.empty:
        return _absent(MAP, title, "No cell could be priced, so there is no map of speedups.")
    told = "; ".join(
        f"T={row['temperature']:g}: L={row['exit_layer']}, k={row['draft_length']} at "
        f"{ratio(row['predicted_speedup'])}"
        for row in table.loc[table["chosen"]].to_dict("records")
    )
    return FigureView(
        name=MAP,
        title=title,
        caption="All requests at one temperature, decoding only. Blue cells are faster than plain "
        "decoding, orange ones slower; colours end at half and at twice the speed. The frame marks "
        "the best single setting, chosen by its lower bound.",
        alt=f"Heat map over exit layer L and draft length k. Best single setting: {told or 'none'}."
        f" Range of all cells: {ratio(table['predicted_speedup'].min())} to "
        f"{ratio(table['predicted_speedup'].max())}.",
        table=table,
    )


def _layers(table: pd.DataFrame) -> FigureView:
    title = "Acceptance by exit layer"
    if table.empty:
        return _absent(LAYERS, title, "No observations: acceptance by layer is unknown.")
    needed = table.loc[table["needed"].notna(), "needed_in"].unique()
    dashed = (
        f" Dashed: the acceptance needed to break even, in {shown('; '.join(needed), 120)}."
        if len(needed)
        else ""
    )
    return FigureView(
        name=LAYERS,
        title=title,
        caption="Mean probability that a drafted token is accepted, over all positions of all "
        f"requests. {_INTERVALS}{dashed}",
        alt=f"Lines by temperature. {_ends_by_temperature(table, 'exit_layer', 'at layer')}",
        table=table,
    )


def _positions(table: pd.DataFrame) -> FigureView:
    title = "Acceptance along the output"
    if table.empty:
        return _absent(POSITIONS, title, "No observations: acceptance by position is unknown.")
    layers = ", ".join(
        f"L={layer} at T={degrees:g}"
        for degrees, layer in table[["temperature", "exit_layer"]]
        .drop_duplicates()
        .itertuples(index=False)
    )
    return FigureView(
        name=POSITIONS,
        title=title,
        caption=f"Mean acceptance of output tokens 1-32, 33-128 and beyond, at {layers}. "
        f"{_INTERVALS} A place without a mark was not observed.",
        alt=f"Points by stretch of the output. "
        f"{_ends_by_temperature(table, 'output_from', 'from token')}",
        table=table,
    )


def _ends_by_temperature(table: pd.DataFrame, along: str, word: str) -> str:
    told = []
    for degrees, rows in table.groupby("temperature", sort=True):
        ordered = rows.sort_values(along)
        first, last = ordered.iloc[0], ordered.iloc[-1]
        told.append(
            f"T={degrees:g}: {percent(first['accept_prob_mean'])} {word} {first[along]:g}, "
            f"{percent(last['accept_prob_mean'])} {word} {last[along]:g}."
        )
    return " ".join(told)


def _costs(tables: RunTables, point: CostPoint | None) -> FigureView:
    title = "What drafting and verifying cost"
    table = cost_table(tables, point)
    if table.empty or point is None:
        return _absent(COSTS, title, "The run has no timings, so there are no cost curves.")
    draft = table.loc[table["quantity"] == "draft_cost_ratio"].sort_values("exit_layer")
    verify = table.loc[table["quantity"] == "verify_cost_ratio"]
    steps = table.loc[table["quantity"] == "ar_step_s"]
    floor = (
        " Right: the plain step beside the time its bytes need at the measured read bandwidth."
        if steps["reference"].notna().any()
        else " Right: the plain step by context; the bandwidth floor was not measured in this run."
    )
    return FigureView(
        name=COSTS,
        title=title,
        caption=f"Left: c(L), one drafted token in plain steps, against L/N. Middle: v(L, k), one "
        f"verification, usually assumed to be 1. Both at {point.context:.0f} tokens of context, "
        f"{point.law} law.{floor} Bars are 95 % intervals over timing blocks.",
        alt=f"c is {number(draft['value'].iloc[0])} at L={draft['exit_layer'].iloc[0]:.0f} (L/N "
        f"{number(draft['reference'].iloc[0])}) and {number(draft['value'].iloc[-1])} at "
        f"L={draft['exit_layer'].iloc[-1]:.0f} (L/N {number(draft['reference'].iloc[-1])}). v runs "
        f"from {number(verify['value'].min())} to {number(verify['value'].max())}. A plain step "
        f"takes {milliseconds(steps['value'].min())} to {milliseconds(steps['value'].max())}.",
        table=table,
    )


def _measured(table: pd.DataFrame, tables: RunTables) -> FigureView:
    title = "Predicted and measured speedup"
    if table.empty:
        why = (
            "Nothing was decoded for real in this run: no prediction was put to the test."
            if tables.confirm is None
            else "No decoded path was long enough to compare."
        )
        return _absent(MEASURED, title, why)
    gap = (table["predicted_speedup"] / table["measured_speedup"] - 1).abs()
    return FigureView(
        name=MEASURED,
        title=title,
        caption=f"{plural(len(table), 'cell')} decoded for real. On the diagonal, prediction and "
        "measurement agree. Bars are 95 % intervals over the decoded requests, which both share.",
        alt=f"Scatter around the diagonal: median gap {percent(gap.median(), 1)}, largest "
        f"{percent(gap.max(), 1)}.",
        table=table,
    )


def _lengths(table: pd.DataFrame, found: Sequence[tuple[Rule, AcceptedLengths]]) -> FigureView:
    title = "Accepted tokens per round"
    if table.empty:
        return _absent(LENGTHS, title, "No round was walked, so there are no accepted lengths.")
    peaked = [rule_label(rule) for rule, lengths in found if lengths.two_peaks]
    warning = (
        f"Two peaks in {plural(len(peaked), 'bucket')}: {shown('; '.join(peaked[:3]), 160)}."
        if peaked
        else "No bucket has two peaks beyond what constant acceptance gives."
    )
    rule, lengths = found[0]
    return FigureView(
        name=LENGTHS,
        title=title,
        caption="Share of rounds that accept a tokens, at the cell of each rule, in the largest "
        f"buckets. Lines: what one constant acceptance would give. {_INTERVALS} {warning}",
        alt=f"Histograms. {rule_label(rule)}: {percent(float(lengths.share[0]))} of the rounds "
        f"accept nothing, {percent(float(lengths.share[-1]))} accept all {len(lengths.share) - 1}."
        f" {warning}",
        table=table,
    )


def _batches(table: pd.DataFrame, plan: PlanDocument) -> FigureView:
    title = "Speedup by batch size"
    if table.empty or table["speedup"].isna().all():
        why = f"{batches_sentence(plan)}."
        return _absent(BATCHES, title, f"{why[0].upper()}{why[1:]}")
    told = [
        f"batch {size}: {ratio(rows['speedup'].min())} to {ratio(rows['speedup'].max())}"
        for size, rows in table.groupby("batch_size", sort=True)
    ]
    return FigureView(
        name=BATCHES,
        title=title,
        caption="The largest buckets at their rules' cells, decoding only, against plain decoding "
        "of the same batch. Solid: continuous refill, the evidence, with 95 % intervals over "
        "requests and timing blocks. Dashed: static batches, which last as long as their longest "
        "row. Below the line at 1, speculation takes time that the batch would have used.",
        alt=f"Lines by bucket. Speedups of all buckets at {'; '.join(told)}.",
        table=table,
    )


def _absent(name: str, title: str, why: str) -> FigureView:
    return FigureView(name=name, title=title, caption="", alt="", table=pd.DataFrame(), absent=why)
