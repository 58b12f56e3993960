"""Stage cost_rounds: where parts do not add up, the cells that matter are timed whole.

Only reached when the sum of parts misses held-out rounds by more than 5 % even after its
correction (METHOD.md §4). Then each bucket's five best cells are timed as whole rounds, and the
walk is priced with those. All at the base batch size, where rules are decided.
"""

from dataclasses import replace

import pandas as pd

from selfspec_cli.analysis.costs import Costs
from selfspec_cli.analysis.grid import BUCKET_KEYS, build_grid, rank_cells
from selfspec_cli.analysis.run_walk import walk_paths
from selfspec_cli.calibrate.cost_stage import time_blocks
from selfspec_cli.calibrate.progress import Progress
from selfspec_cli.config import CalibrateConfig
from selfspec_cli.cost.plan import CostPlan, WholeRound, ends_and_middle
from selfspec_cli.engine.view import LayerView
from selfspec_cli.storage import RunDir, read_table, write_table

STAGE = "cost_rounds"
ARTEFACT = "cost_rounds.csv"
BEST_OF_BUCKET = 5
MAX_CELLS = 16  # timed whole, by how many buckets want them; each costs seconds a block


def misses(costs: Costs) -> bool:
    """Whether some law's parts do not add up at the base batch size, even corrected."""
    return any(fit.mode == "whole_rounds" for fit in costs.fits.values())


def run_finalists(
    run: RunDir,
    config: CalibrateConfig,
    view: LayerView,
    plan: CostPlan,
    costs: Costs,
    progress: Progress,
) -> pd.DataFrame:
    """Write cost_rounds.csv: plain steps and whole rounds of the finalists, in blocks of their own.

    Returns:
        Its rows.
    """
    if not run.stage_done(STAGE):
        progress.note("parts do not add up to rounds: the best cells are timed whole")
        rounds = _rounds(run, config, plan, costs)
        only = replace(plan, batch_sizes=costs.batch_sizes[:1], rounds=rounds, parts=False)
        write_table(time_blocks(run, STAGE, config, view, only, progress), run.artefact(ARTEFACT))
        run.finish_stage(STAGE, [ARTEFACT], rounds=len(rounds))
        run.clear_shards(STAGE)
    return read_table(run.artefact(ARTEFACT))


def _rounds(
    run: RunDir, config: CalibrateConfig, plan: CostPlan, costs: Costs
) -> tuple[WholeRound, ...]:
    table, _ = walk_paths(run, costs, plan.exit_layers, plan.draft_lengths)
    requests = read_table(run.artefact("requests.parquet"))
    grid = build_grid(table, requests, costs.surfaces, config.context_edges, seed=config.seed)
    cells = finalists(grid)
    base = costs.batch_sizes[0]
    contexts = ends_and_middle(plan.contexts_at(base))
    return tuple(
        WholeRound(exit_layer=layer, draft_length=k, context=context, batch=base)
        for layer, k in cells
        for context in contexts
    )


def finalists(grid: pd.DataFrame) -> list[tuple[int, int]]:
    """(L, k) among some bucket's five best, those wanted by most buckets first."""
    ranked = rank_cells(grid)
    best = ranked.loc[ranked["rank"] <= BEST_OF_BUCKET]
    wanted = best.groupby(["exit_layer", "draft_length"])[BUCKET_KEYS[0]].size()
    order = wanted.reset_index(name="buckets").sort_values(
        ["buckets", "draft_length", "exit_layer"], ascending=[False, True, True]
    )
    pairs = order[["exit_layer", "draft_length"]].head(MAX_CELLS).to_numpy(dtype=int).tolist()
    return [(layer, k) for layer, k in pairs]
