"""A cost.csv that another machine or engine wrote: does it hold what this run needs?"""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import pandas as pd

from selfspec_cli.analysis.costs import Costs, measured_laws, price
from selfspec_cli.errors import CostRangeError, SelfspecError
from selfspec_cli.storage import read_table

_COLUMNS = (
    "block", "part", "law", "exit_layer", "positions", "context", "batch", "engine", "seconds",
)  # fmt: skip
_LAYERS = "layers/"  # part names of layer chains, followed by the layers' kind


def load_cost_file(
    path: Path, layer_kinds: Sequence[str], laws: Collection[str], max_draft_length: int
) -> Costs:
    """Price a foreign cost.csv for the model of this run.

    Args:
        path: rows of cost.csv (`block, part, law, exit_layer, positions, ...`).
        layer_kinds: kind of each of the N layers of this run's model.
        laws: law classes that this run's requests use.
        max_draft_length: largest k of this run (tokens).

    Raises:
        StorageError: missing, torn, or without the columns of cost.csv.
        CostRangeError: a law, a layer kind or positions are missing, or the layers were timed on a
            model of another depth; the message names what lacks.
    """
    rows = read_table(path, _COLUMNS)
    _check_laws(rows, path, laws)
    _check_layers(rows, path, layer_kinds)
    try:
        costs = price(rows, layer_kinds)
    except SelfspecError as error:
        raise type(error)(error.what, where=str(path), hint=error.hint) from error
    for size, law in measured_laws(rows):
        longest = costs.by_batch[size][law].max_draft_length
        if longest < max_draft_length:
            raise CostRangeError(
                f"verification was timed for up to {longest} drafted tokens at batch {size}, "
                f"this run needs {max_draft_length}",
                where=str(path),
                hint=f"Measure with --draft-lengths 1-{max_draft_length}.",
            )
    return costs


def _check_laws(rows: pd.DataFrame, path: Path, laws: Collection[str]) -> None:
    """At the smallest batch size, where rules are decided; a larger one may lack a law."""
    steps = rows.loc[rows["part"] == "ar"]
    found = set(steps.loc[steps["batch"] == steps["batch"].min(), "law"].dropna())
    lacking = sorted(set(laws) - found)
    if lacking:
        raise CostRangeError(
            f"no plain step was timed for the law {', '.join(lacking)}, which this run uses",
            where=str(path),
            hint=f"Timed laws: {', '.join(sorted(found)) or 'none'}. Greedy is temperature 0.",
        )


def _check_layers(rows: pd.DataFrame, path: Path, layer_kinds: Sequence[str]) -> None:
    """Chains run over all layers of a kind, so their length tells another model apart."""
    for kind, count in sorted(Counter(layer_kinds).items()):
        lengths = rows.loc[rows["part"] == f"{_LAYERS}{kind}", "exit_layer"].dropna().unique()
        if len(lengths) == 0:
            raise CostRangeError(f"no layer of kind {kind} was timed", where=str(path))
        if set(lengths) != {count}:
            told = ", ".join(f"{length:g}" for length in sorted(lengths))
            raise CostRangeError(
                f"{told} layers of kind {kind} were timed, this run's model has {count}",
                where=str(path),
                hint="Costs of another model price nothing here.",
            )
