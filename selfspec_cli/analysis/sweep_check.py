"""Full replay beside the walk: every decoded cell in standard errors of its prediction."""

import pandas as pd

from selfspec_cli.analysis.confirmation import CELL_KEYS, cell_key, rounds_z


def compare_sweep(sweep: pd.DataFrame, walk: pd.DataFrame) -> pd.DataFrame:
    """Compare decoded rounds per committed token with the walk's, cell by cell.

    Args:
        sweep: sweep.csv, one row a (cell, request).
        walk: walk.parquet of the same requests.

    Returns:
        temperature, exit_layer, draft_length, num_requests, walked_rounds_per_token,
        decoded_rounds_per_token, rounds_z (difference in standard errors over requests),
        predicted_speedup and measured_speedup (seconds per committed token, plain over
        speculative; decode only).
    """
    keys = ["request_id", *CELL_KEYS]
    columns = [*keys, "rounds", "committed", "ar_seconds", "seconds"]
    joined = sweep.merge(
        walk[columns], on=keys, suffixes=("", "_walk"), how="inner", validate="1:1"
    )
    joined = joined.loc[(joined["committed"] > 0) & (joined["committed_walk"] > 0)]
    rows = [_compare(cell) for _, cell in joined.groupby(CELL_KEYS, sort=True)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


COLUMNS = (
    *CELL_KEYS, "num_requests", "walked_rounds_per_token", "decoded_rounds_per_token", "rounds_z",
    "predicted_speedup", "measured_speedup",
)  # fmt: skip


def _compare(cell: pd.DataFrame) -> dict[str, object]:
    plain = cell["ar_seconds"].sum() / cell["ar_committed"].sum()
    speculative = cell["seconds"].sum() / cell["committed"].sum()
    return {
        **cell_key(cell),
        "num_requests": len(cell),
        "walked_rounds_per_token": cell["rounds_walk"].sum() / cell["committed_walk"].sum(),
        "decoded_rounds_per_token": cell["rounds"].sum() / cell["committed"].sum(),
        "rounds_z": rounds_z(
            cell["rounds_walk"], cell["committed_walk"], cell["rounds"], cell["committed"]
        ),
        "predicted_speedup": cell["ar_seconds_walk"].sum() / cell["seconds_walk"].sum(),
        "measured_speedup": plain / speculative,
    }
