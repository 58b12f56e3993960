"""Print, as Markdown, how predictions compare with measurements in finished runs.

usage: python tests/benchmarks/evidence_table.py RUN [RUN ...]
"""

import sys
from pathlib import Path

import pandas as pd

from selfspec_cli.analysis.confirmation import median_and_worst_error, summarise_confirm
from selfspec_cli.storage import read_document, read_table


def facts(run: Path) -> dict[str, object]:
    """One row of the table."""
    summary = summarise_confirm(read_table(run / "confirm.csv"))
    median, worst = median_and_worst_error(summary)
    observed = read_table(run / "observations.parquet", ["exit_layer", "accept_given_path"])
    by_layer = observed.groupby("exit_layer")["accept_given_path"].mean()
    fits = read_document(run / "cost_fit.json")
    greedy = read_table(run / "confirm.csv")
    greedy = greedy.loc[greedy["temperature"] == 0.0, "exact"].astype(bool)
    cost = ", ".join(
        f"{law} {fit['cost_model_error']:.1%} ({fit['mode']})" for law, fit in fits.items()
    )
    return {
        "run": run.name,
        "mean acceptance, L=15": f"{by_layer.get(15, float('nan')):.2f}",
        "mean acceptance, all exits": f"{by_layer.mean():.2f}",
        "cells": len(summary),
        "L": summary["exit_layer"].nunique(),
        "k": summary["draft_length"].nunique(),
        "median error": f"{median:.1%}",
        "worst": f"{worst:.1%}",
        "signed errors": " ".join(f"{error:+.1%}" for error in summary["error"]),
        "cost alone, median": f"{summary['coin_error'].abs().median():.1%}",
        "largest |z| of rounds": f"{summary['rounds_z'].abs().max():.1f}",
        "greedy decodes equal": f"{int(greedy.sum())} of {len(greedy)}",
        "cost_model_error": cost,
    }


def main(runs: list[str]) -> None:
    table = pd.DataFrame([facts(Path(run)) for run in runs]).set_index("run").T
    print("| | " + " | ".join(table.columns) + " |")
    print("|---|" + "---|" * len(table.columns))
    for name, row in table.iterrows():
        print(f"| {name} | " + " | ".join(str(value) for value in row) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
