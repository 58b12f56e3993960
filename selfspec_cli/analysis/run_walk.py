"""Walk a run's observed paths from its files, under any costs. No torch."""

from collections.abc import Sequence

import pandas as pd

from selfspec_cli.analysis.batching import at_batch
from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.analysis.costs import Costs
from selfspec_cli.analysis.observations import build_paths
from selfspec_cli.analysis.walk import PathCoins, split_walkable, walk
from selfspec_cli.storage import RunDir, read_table

ZERO_PROB, BEYOND = "a_token_has_probability_0", "contexts_beyond_those_timed"


def run_coins(run: RunDir, exit_layers: Sequence[int]) -> list[PathCoins]:
    """Return the coins of every observed path of a run, rows in the order of `exit_layers`.

    Raises:
        StorageError: an artefact is missing or torn.
    """
    return build_paths(
        read_table(run.artefact("observations.parquet")),
        read_table(run.artefact("paths.parquet")),
        read_table(run.artefact("requests.parquet")),
        exit_layers,
    )


def walk_paths(
    run: RunDir, costs: Costs, exit_layers: Sequence[int], draft_lengths: Sequence[int]
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Walk the run's observed paths; returns the table and how many paths were left out, why."""
    priced, left_out = usable_paths(run_coins(run, exit_layers), costs)
    return walk_at_base(priced, exit_layers, draft_lengths, costs), left_out


def walk_at_base(
    paths: Sequence[PathCoins],
    exit_layers: Sequence[int],
    draft_lengths: Sequence[int],
    costs: Costs,
) -> pd.DataFrame:
    """Return the walk table of usable paths at the base batch size, a request's share of a batch.

    Raises:
        ShapeError: coins do not have one row an exit layer.
        CostRangeError: a context, L, k or law lies outside what was measured.
    """
    base = costs.batch_sizes[0]
    table = walk(paths, exit_layers, draft_lengths, costs.surfaces)
    return table if base == 1 else at_batch(table, costs.surfaces, base)


def usable_paths(
    coins: Sequence[PathCoins], costs: Costs
) -> tuple[list[PathCoins], dict[str, int]]:
    """Return the paths that can be walked and priced, and how many cannot, by reason."""
    walkable, dropped = split_walkable(coins)
    priced, beyond = split_priced(walkable, costs)
    return priced, {ZERO_PROB: len(dropped), BEYOND: len(beyond)}


def split_priced(
    paths: Sequence[PathCoins], costs: Costs
) -> tuple[list[PathCoins], list[PathCoins]]:
    """Separate paths whose every context was timed; costs are never extrapolated."""
    inside: list[PathCoins] = []
    outside: list[PathCoins] = []
    for path in paths:
        priced = _covers(costs.surfaces[path.law_class], path)
        (inside if priced else outside).append(path)
    return inside, outside


def _covers(surface: CostSurface, path: PathCoins) -> bool:
    """Whether the path's prompt, and every context of its rounds, lies within what was timed."""
    low, high = surface.context_range
    last = path.prompt_tokens + max(path.num_tokens - 2, 0)
    if surface.prefill is not None:
        prompts = surface.prefill[0]
        if not prompts[0] <= path.prompt_tokens <= prompts[-1]:
            return False
    return low <= path.prompt_tokens and last <= high
