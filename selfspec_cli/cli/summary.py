"""What `calibrate` prints: the report's summary, or one JSON document."""

from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from selfspec_cli.analysis.confirmation import summarise_confirm
from selfspec_cli.analysis.grid import base_batch, rank_cells
from selfspec_cli.analysis.sweep_check import compare_sweep
from selfspec_cli.calibrate.estimate import Estimate
from selfspec_cli.calibrate.run import Outcome
from selfspec_cli.cli.visible import visible
from selfspec_cli.report.terminal import print_summary
from selfspec_cli.report.view import ReportView, build_view
from selfspec_cli.report.write import REPORT, is_current, write_files


def print_outcome(outcome: Outcome) -> None:
    """Write the report and print its summary on stdout, one screen that ends in the answer."""
    view, notice = _report(outcome)
    console = Console(highlight=False)
    if outcome.sweep is not None:
        compared = compare_sweep(outcome.sweep, outcome.walk)
        if len(compared):
            console.print(_sweep_table(compared))
        console.print(visible(_sweep_line(outcome.sweep)), markup=False)
    if notice:
        console.print(notice, markup=False)
    print_summary(view, console)


def _report(outcome: Outcome) -> tuple[ReportView, str]:
    """The run's view, its report written unless it shows this plan; what a user should know."""
    path = outcome.run.path
    view = build_view(path)
    return view, "" if is_current(path) else write_files(view, path, ("html", "csv")).notice


def _sweep_line(sweep: pd.DataFrame) -> str:
    cells = sweep.drop_duplicates(["exit_layer", "draft_length", "temperature"])
    greedy = sweep.loc[sweep["temperature"] == 0.0, "exact"]
    equal = int(greedy.eq(True).sum())
    return (
        f"{len(cells)} cells decoded in full; {equal} of {len(greedy)} greedy decodes equal plain "
        "decoding."
    )


def best_cells(grid: pd.DataFrame) -> pd.DataFrame:
    """The cell of highest predicted speedup in each bucket and roll-up, at the base batch size."""
    ranked = rank_cells(base_batch(grid))
    return ranked.loc[ranked["rank"] == 1].reset_index(drop=True)


def _sweep_table(compared: pd.DataFrame) -> Table:
    table = Table(
        title="Every cell decoded: the widest gaps to the walk",
        title_justify="left", box=SIMPLE_HEAD, pad_edge=False,
    )  # fmt: skip
    table.caption = "rounds per committed token, walked and decoded; decode speedup"
    names = ("T", "L", "k", "walked", "decoded", "z", "predicted", "measured")
    for name in names:
        table.add_column(name, justify="right")
    worst = compared.reindex(compared["rounds_z"].abs().sort_values(ascending=False).index)
    for row in worst.head(12).to_dict("records"):
        table.add_row(
            f"{row['temperature']:g}", f"{row['exit_layer']}", f"{row['draft_length']}",
            f"{row['walked_rounds_per_token']:.4f}", f"{row['decoded_rounds_per_token']:.4f}",
            "n/a" if pd.isna(row["rounds_z"]) else f"{row['rounds_z']:.2f}",
            f"{row['predicted_speedup']:.3f}", f"{row['measured_speedup']:.3f}",
        )  # fmt: skip
    return table


def _num_ranked(outcome: Outcome) -> int:
    """(L, k, T) cells with a predicted speedup over all traffic."""
    grid = base_batch(outcome.grid)
    pooled = grid.loc[grid["evidence"] == "all", "predicted_speedup"]
    return int(pooled.notna().sum())


def outcome_document(outcome: Outcome) -> dict[str, Any]:
    """Write the report and return the outcome as one JSON document."""
    stages = outcome.run.manifest["stages"]
    _, notice = _report(outcome)
    document: dict[str, Any] = {
        "schema_version": outcome.run.manifest["schema_version"],
        "run": outcome.run.path.name,
        "report": REPORT,
        "notice": notice or None,
        "verdict": outcome.plan.verdict,
        "total": outcome.plan.total.model_dump(mode="json"),
        "rules": len(outcome.plan.rules),
        "enabled": outcome.plan.total.num_enabled,
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
