"""Several rows at once: parts add up to rounds, rows are ragged, and nothing is left changed."""

import pandas as pd
import pytest
from cost_helpers import (
    GREEDY,
    PENALISED,
    SAMPLED,
    ChargingView,
    Till,
    charge_laws,
    tiny_plan,
    tiny_view,
)

from selfspec_cli.analysis.cost_fit import fit_correction
from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.cost.build import build_tasks
from selfspec_cli.cost.clock import Clock
from selfspec_cli.cost.measure import block_order, measure_costs, time_block
from selfspec_cli.cost.parts import Task
from selfspec_cli.cost.plan import CostPlan, WholeRound
from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.decoder import Decoder, Job
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.policies import make_policy
from selfspec_cli.engine.view import FULL, SLIDING

LAWS = (GREEDY, SAMPLED, PENALISED)
ROWS = 3
CELL = ["part", "law", "exit_layer", "positions", "context"]
ROUNDS = tuple(
    WholeRound(exit_layer=layer, draft_length=k, context=context, batch=ROWS)
    for layer, k, context in ((2, 1, 16), (5, 3, 16), (3, 3, 64))
)
READINGS_S = 30e-9  # a reading of the clock takes 1 ns, and each of up to 20 parts takes one


def batch_plan(*laws: object, **changes: object) -> CostPlan:
    return tiny_plan(*laws, batch_sizes=(1, ROWS), rounds=ROUNDS, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Three laws at 1 and 3 rows on the model whose calls have prices; measured once."""
    till = Till()
    with pytest.MonkeyPatch.context() as patch:
        charge_laws(till, patch)
        view = ChargingView(till)
        view.engine = "compiled"  # type: ignore[attr-defined]
        return measure_costs(view, batch_plan(*LAWS), till.clock(), 0)


def surface_of(frame: pd.DataFrame, law: str) -> CostSurface:
    kinds = (SLIDING, FULL, FULL, SLIDING, FULL, SLIDING)
    return CostSurface.from_rows(frame, layer_kinds=kinds, law=law, batch=ROWS)


def expected_cells() -> set[tuple]:
    """Every part of three rows that the contract names, written out independently of the code."""
    laws = [law.law_class for law in LAWS]
    cells: set[tuple] = {("embed", "", None, 1, None)}
    cells |= {("head", "", None, m, None) for m in (1, 2, 4)}
    for context in (16, 64):
        cells |= {("ar", law, None, 1, context) for law in laws}
        for m in (1, 2, 4):
            cells.add(("prep", "", None, m, context))
            cells |= {(f"layers/{kind}", "", 3, m, context) for kind in (FULL, SLIDING)}
    for law in laws:
        for context in (16, 64) if law == "penalised" else (None,):
            cells.add(("draw", law, None, 1, context))
            cells |= {("accept", law, None, m, context) for m in (1, 2, 4)}
    return cells


def test_every_part_is_timed_once_a_block_and_rounds_take_turns(frame: pd.DataFrame) -> None:
    own = frame[frame["batch"] == ROWS]
    assert set(frame["batch"]) == {1, ROWS}
    assert set(frame["engine"]) == {"compiled"}, "the view's own kernels are named"
    assert set(frame.loc[frame["part"] == "prefill", "batch"]) == {1}, "prompts run one by one"
    cells = own[CELL].astype(object).where(own[CELL].notna(), None)
    for block in range(10):
        found = [tuple(row) for row in cells[own["block"] == block].itertuples(index=False)]
        assert len(found) == len(set(found)), f"block {block}"
        parts = {cell for cell in found if cell[0] != "round"}
        assert parts == expected_cells(), parts ^ expected_cells()
        rounds = [cell for cell in found if cell[0] == "round"]
        want = 2 if block // 2 % 2 == 0 else 1
        assert len(rounds) == want * len(LAWS), f"block {block}: {len(rounds)} rounds"


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.law_class)
def test_parts_of_a_batch_add_up_to_its_rounds(frame: pd.DataFrame, law: object) -> None:
    """Each call has a fixed price, so whatever a round does that no part does would show."""
    surface = surface_of(frame, law.law_class)  # type: ignore[attr-defined]
    fit = fit_correction(surface, frame)
    assert surface.between_seconds < READINGS_S, f"{surface.between_seconds} s in no part"
    assert len(fit.rounds) == 3
    for one in fit.rounds:
        assert one.parts_s == pytest.approx(one.measured_s, abs=READINGS_S), (
            f"L={one.exit_layer} k={one.draft_length} context={one.context}: "
            f"{one.parts_s * 1e3:.6f} ms as parts, {one.measured_s * 1e3:.6f} ms whole"
        )


@pytest.mark.parametrize(
    "part", ["embed", "prep", f"layers/{FULL}", f"layers/{SLIDING}", "head", "draw", "accept"]
)
def test_a_part_left_out_of_a_batch_is_missed(frame: pd.DataFrame, part: str) -> None:
    """Broken twins: free of charge, each part leaves a gap between parts and plain steps."""
    cut = frame.copy()
    cut.loc[(cut["part"] == part) & (cut["batch"] == ROWS), "seconds"] = 1e-15
    between = surface_of(cut, "sampled").between_seconds
    assert between > 1e-4, f"without {part} only {between * 1e3:.6f} ms of a step are missing"


def decoders_of(tasks: list[Task], law: str) -> dict[int, BatchDecoder]:
    """The decoders behind the plain steps of three rows, by context."""
    return {
        task.context: task.step.__self__  # type: ignore[attr-defined, misc]
        for task in tasks
        if (task.part, task.law, task.batch) == ("ar", law, ROWS)
    }


def test_measuring_leaves_every_row_as_it_was() -> None:
    """Plain steps after all the timing give each row the tokens of a decoder of its own.

    Only at the shortest context: where memory is shared, what its rounds wrote lies in the prompts
    of longer ones, which changes tokens there and no cost.
    """
    view = tiny_view()
    tasks = build_tasks(view, batch_plan(GREEDY, SAMPLED), seed=0)
    for block in range(4):
        order = [i for i in block_order(len(tasks), block, 0) if tasks[i].timed_in(block)]
        time_block(tasks, [2] * len(tasks), Clock(), order)
    for context, timed in decoders_of(tasks, "greedy").items():
        held = [context, context - 1, context - 2]
        assert timed.cache.lengths == [held] * view.num_layers, "rows a token apart"
        assert [len(output) for output in timed.outputs] == [1] * ROWS
        if context != 16:
            continue
        timed.step()
        timed.step()
        for row, job in enumerate(timed.jobs):
            first, *rest = timed.outputs[row]
            policy = make_policy(Processor(GREEDY, view.vocab_size), 0)
            fresh = Decoder(view, Job(prompt=job.prompt, budget=5), policy)
            fresh.prefill()
            fresh.output[0] = first  # the rows share the x_0 of the longest
            fresh.ar_step()
            fresh.ar_step()
            assert rest == fresh.output[1:], f"context {context}, row {row}"


def test_rows_of_a_short_context_still_hold_a_token() -> None:
    plan = tiny_plan(GREEDY, contexts=(2, 16), batch_sizes=(6,), rounds=())
    decoder = build_tasks(tiny_view(), plan, 0)[2].step.__self__  # type: ignore[attr-defined]
    assert decoder.cache.lengths[0] == [2, 1, 1, 1, 2, 1]


def test_caches_of_one_batch_size_share_their_memory() -> None:
    """Three contexts take the memory of the longest, not the sum."""
    plan = tiny_plan(GREEDY, SAMPLED, batch_sizes=(ROWS,), rounds=())
    tasks = build_tasks(tiny_view(), plan, 0)
    found = {law: decoders_of(tasks, law) for law in ("greedy", "sampled")}
    buffers = {one.cache.keys[0].data_ptr() for own in found.values() for one in own.values()}
    assert len(buffers) == 1, f"{len(buffers)} buffers"
    kept = found["greedy"][16].cache.allocated_bytes()
    assert kept == 6 * ROWS * (64 + 3 + 2) * 2 * 2 * 16 * 4, f"{kept} bytes"


def test_a_larger_base_needs_no_single_rows() -> None:
    """Batch sizes 3 alone: rounds of three rows, prompts one by one, and no step of one row."""
    tasks = build_tasks(tiny_view(), tiny_plan(GREEDY, batch_sizes=(ROWS,), rounds=ROUNDS), 0)
    assert {task.batch for task in tasks if task.part != "prefill"} == {ROWS}
    assert [task.context for task in tasks if task.part == "prefill"] == [16, 64]
