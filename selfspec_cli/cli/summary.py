"""What `calibrate` prints: one screen of tables, or one JSON document."""

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from selfspec_cli.analysis.confirmation import median_and_worst_error, summarise_confirm
from selfspec_cli.analysis.grid import rank_cells
from selfspec_cli.analysis.sweep_check import compare_sweep
from selfspec_cli.buckets import context_label
from selfspec_cli.calibrate.estimate import Estimate
from selfspec_cli.calibrate.run import Outcome
from selfspec_cli.cli.visible import visible
from selfspec_cli.trace import describe_skips

MAX_BUCKETS = 16  # rows shown of the bucket table; grid.csv has all


def print_outcome(outcome: Outcome) -> None:
    """Print the run on stdout: buckets, costs, predictions beside measurements."""
    console = Console(highlight=False)
    if _num_ranked(outcome):
        console.print(_bucket_table(outcome.grid))
    for line in _cost_lines(outcome):
        console.print(line, markup=False)
    if outcome.confirm is not None:
        console.print(_confirm_table(summarise_confirm(outcome.confirm)))
    if outcome.sweep is not None:
        compared = compare_sweep(outcome.sweep, outcome.walk)
        if len(compared):
            console.print(_sweep_table(compared))
    for line in _closing_lines(outcome):
        console.print(visible(line), markup=False)


def best_cells(grid: pd.DataFrame) -> pd.DataFrame:
    """The cell of highest predicted speedup in each bucket and roll-up."""
    ranked = rank_cells(grid)
    return ranked.loc[ranked["rank"] == 1].reset_index(drop=True)


def _bucket_table(grid: pd.DataFrame) -> Table:
    table = _table("Best predicted cell by bucket")
    for name in ("task", "context", "T", "n", "L", "k", "speedup (95 %)", "acc./tested"):
        table.add_column(name, justify="left" if name in ("task", "context") else "right")
    best = best_cells(grid)
    pooled = best["evidence"] == "all"
    shown = pd.concat([best.loc[pooled], best.loc[~pooled]]).head(MAX_BUCKETS)
    for row in shown.to_dict("records"):
        everything = row["evidence"] == "all"
        table.add_row(
            _safe("all tasks" if everything else row["task"]),
            "all" if everything else _band(row),
            f"{row['temperature']:g}",
            f"{row['num_requests']:.0f}",
            f"{row['exit_layer']:.0f}",
            f"{row['draft_length']:.0f}",
            _interval(row),
            _number(row["acceptance_rate_tested"]),
        )
    if len(best) > MAX_BUCKETS:
        table.caption = f"{len(best) - MAX_BUCKETS} more buckets in grid.csv"
    return table


def _table(title: str) -> Table:
    """A table without a frame: ten columns of numbers fit 80 characters."""
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)


def _band(row: Mapping[Hashable, Any]) -> str:
    high = row["context_max"]
    label = context_label(int(row["context_min"]), None if pd.isna(high) else int(high))
    return label.removesuffix(" tokens")


def _interval(row: Mapping[Hashable, Any]) -> str:
    low, high = row["predicted_speedup_low"], row["predicted_speedup_high"]
    if pd.isna(low):
        return f"{row['predicted_speedup']:.2f}"
    return f"{row['predicted_speedup']:.2f} ({low:.2f}-{high:.2f})"


def _number(value: Any) -> str:
    return "n/a" if pd.isna(value) else f"{value:.2f}"


def _safe(text: str) -> str:
    """A label on one line, control characters escaped, markup shown as text."""
    return escape(visible(text))


def _cost_lines(outcome: Outcome) -> list[str]:
    lines = []
    for law, fit in outcome.costs.fits.items():
        error = fit.cost_model_error
        says = {
            "parts": "parts add up to whole rounds",
            "corrected": "parts corrected by a scale and an offset fitted on other rounds",
            "whole_rounds": "parts do not add up; whole measured rounds are used where timed",
        }[fit.mode]
        shown = "not judged" if error is None else f"median error {error:.1%} on held-out rounds"
        unstable = " Timing is unstable: no verdict should rest on it."
        note = unstable if outcome.costs.surfaces[law].unstable else ""
        lines.append(f"cost, {law}: {says}, {shown}.{note}")
    return lines


def _confirm_table(summary: pd.DataFrame) -> Table:
    table = _table("Predicted and measured decode speedup")
    names = ("T", "L", "k", "paths", "tokens", "predicted", "measured", "error", "z", "exact")
    for name in names:
        table.add_column(name, justify="right")
    for row in summary.to_dict("records"):
        z, exact = row["rounds_z"], row["exact"]
        table.add_row(
            f"{row['temperature']:g}", f"{row['exit_layer']}", f"{row['draft_length']}",
            f"{row['num_paths']}", f"{row['num_tokens']}", f"{row['predicted_speedup']:.3f}",
            f"{row['measured_speedup']:.3f}", f"{row['error']:+.1%}",
            "n/a" if z is None or pd.isna(z) else f"{z:+.1f}",
            "by law" if exact is None or pd.isna(exact) else f"{exact:.0%}",
        )  # fmt: skip
    return table


def _sweep_table(compared: pd.DataFrame) -> Table:
    table = _table("Every cell decoded: the widest gaps to the walk")
    table.caption = "rounds per committed token, walked and decoded; decode speedup"
    names = ("T", "L", "k", "walked", "decoded", "z", "predicted", "measured")
    for name in names:
        table.add_column(name, justify="right")
    worst = compared.reindex(compared["rounds_z"].abs().sort_values(ascending=False).index)
    for row in worst.head(12).to_dict("records"):
        table.add_row(
            f"{row['temperature']:g}", f"{row['exit_layer']}", f"{row['draft_length']}",
            f"{row['walked_rounds_per_token']:.4f}", f"{row['decoded_rounds_per_token']:.4f}",
            _number(row["rounds_z"]), f"{row['predicted_speedup']:.3f}",
            f"{row['measured_speedup']:.3f}",
        )  # fmt: skip
    return table


def _closing_lines(outcome: Outcome) -> list[str]:
    inputs, stages = outcome.inputs, outcome.run.manifest["stages"]
    lines = [
        f"{_num_ranked(outcome)} cells ranked with 0 speculative decodes, on "
        f"{stages['walk']['paths']} observed paths of {len(inputs.requests)} requests."
    ]
    if left_out := {reason: n for reason, n in _not_walked(outcome).items() if n}:
        told = "; ".join(f"{n}: {reason.replace('_', ' ')}" for reason, n in left_out.items())
        lines.append(f"Paths not walked, {told}.")
    if outcome.confirm is not None:
        median, worst = median_and_worst_error(summarise_confirm(outcome.confirm))
        lines.append(
            f"Predicted against measured: median error {median:.1%}, worst {worst:.1%}. "
            + _exactness(outcome.confirm)
        )
    if outcome.sweep is not None:
        cells = outcome.sweep.drop_duplicates(["exit_layer", "draft_length", "temperature"])
        lines.append(f"{len(cells)} cells decoded in full. {_exactness(outcome.sweep)}")
    used = len(inputs.requests)
    skips = describe_skips(inputs.skips)
    left = f", {inputs.num_left_out} beyond the limit" if inputs.num_left_out else ""
    skipped = f", skipped: {skips}" if skips else ", none skipped"
    lines.append(f"Read {inputs.num_read} rows, used {used}{left}{skipped}.")
    lines.append(f"{_verdict(outcome)} Files: {outcome.run.path}")
    return lines


def _not_walked(outcome: Outcome) -> Mapping[str, int]:
    """Paths left out of the walk, by reason."""
    counts: Mapping[str, int] = outcome.run.manifest["stages"]["walk"]["not_walked"]
    return counts


def _num_ranked(outcome: Outcome) -> int:
    """(L, k, T) cells with a predicted speedup over all traffic."""
    pooled = outcome.grid.loc[outcome.grid["evidence"] == "all", "predicted_speedup"]
    return int(pooled.notna().sum())


def _exactness(table: pd.DataFrame) -> str:
    greedy = table.loc[table["temperature"] == 0.0]
    if not len(greedy):
        return "No greedy decode to compare."
    equal = int(greedy["exact"].eq(True).sum())
    ties = int(greedy["is_tie"].eq(True).sum())
    if equal == len(greedy):
        return f"Lossless: all {equal} greedy decodes equal plain decoding."
    return f"{equal} of {len(greedy)} greedy decodes equal plain decoding, {ties} numeric ties."


def _verdict(outcome: Outcome) -> str:
    best = best_cells(outcome.grid.loc[outcome.grid["evidence"] == "all"])
    if best.empty:
        short = outcome.walk["committed"].sum() == 0 and not any(_not_walked(outcome).values())
        why = " Too few drafted tokens: no output goes beyond its first token." if short else ""
        return f"No cell could be priced.{why}"
    said = [
        f"T={row['temperature']:g}: L={row['exit_layer']:.0f}, k={row['draft_length']:.0f} at "
        f"{row['predicted_speedup']:.2f}x"
        for row in best.to_dict("records")
    ]
    pays = (best["predicted_speedup_low"].fillna(0) > 1).any()
    head = (
        "Best over all traffic, " if pays else "Speculation does not pay over all traffic; best, "
    )
    return head + "; ".join(said) + "."


def outcome_document(outcome: Outcome) -> dict[str, Any]:
    """The same as one JSON document."""
    stages = outcome.run.manifest["stages"]
    document: dict[str, Any] = {
        "schema_version": outcome.run.manifest["schema_version"],
        "run": outcome.run.path.name,
        "cells": _num_ranked(outcome),
        "speculative_decodes_to_rank": 0,
        "paths": stages["walk"]["paths"],
        "read": outcome.run.manifest["read"],
        "best": _records(best_cells(outcome.grid)),
        "cost_model_error": {law: fit.cost_model_error for law, fit in outcome.costs.fits.items()},
        "cost_mode": {law: fit.mode for law, fit in outcome.costs.fits.items()},
    }
    if outcome.confirm is not None:
        document["confirm"] = _records(summarise_confirm(outcome.confirm))
    if outcome.sweep is not None:
        document["sweep"] = _records(compare_sweep(outcome.sweep, outcome.walk))
    return document


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    plain = frame.astype(object).where(frame.notna(), None)
    return [
        {str(key): value.item() if hasattr(value, "item") else value for key, value in row.items()}
        for row in plain.to_dict("records")
    ]


def print_estimate(found: Estimate) -> None:
    """Print a dry run on stdout."""
    console = Console(highlight=False)
    for line in (
        f"{found.num_requests} requests, {found.num_paths} paths, {found.num_cells} cells",
        f"{found.prompt_tokens} prompt tokens, at most {found.output_tokens} output tokens",
        "minutes: "
        + ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in found.seconds.items())
        + f", together {found.minutes:.1f}",
        f"peak memory: {found.peak_memory_bytes / 2**30:.1f} GiB",
        "first request as the model will see it:",
        visible(found.first_request, keep="\n"),
    ):
        console.print(line, markup=False)
