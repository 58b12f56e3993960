"""What lands in cost.csv: every part, plain step and round once a block, and sums that add up."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from cost_helpers import (
    GREEDY,
    GREEDY_PENALISED,
    PENALISED,
    ROUNDS,
    SAMPLED,
    TRUNCATED,
    ChargingView,
    Till,
    charge_laws,
    tiny_plan,
    tiny_view,
)

from selfspec_cli.analysis.cost_fit import CostFit, fit_correction
from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.cost import plan as plan_module
from selfspec_cli.cost.build import build_tasks
from selfspec_cli.cost.clock import Clock
from selfspec_cli.cost.measure import COLUMNS, block_order, iter_blocks, measure_costs, time_block
from selfspec_cli.cost.plan import prefill_blocks
from selfspec_cli.engine import decoder as decoder_module
from selfspec_cli.engine.decoder import Decoder, Job
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.policies import make_policy
from selfspec_cli.engine.view import FULL, SLIDING
from selfspec_cli.errors import ConfigError
from selfspec_cli.records import Sampling
from selfspec_cli.storage import read_table, write_table

LAWS = (GREEDY, SAMPLED, TRUNCATED, PENALISED)
READINGS_S = 30e-9  # a reading of the clock takes 1 ns, and each of up to 20 parts takes one
CELL = ["part", "law", "exit_layer", "positions", "context"]


@dataclass(frozen=True)
class Measured:
    frame: pd.DataFrame
    kinds: tuple[str, ...]
    told: list[tuple[int, int]]

    def surface(self, law: Sampling, frame: pd.DataFrame | None = None) -> CostSurface:
        rows = self.frame if frame is None else frame
        return CostSurface.from_rows(rows, layer_kinds=self.kinds, law=law.law_class)

    def fit(self, law: Sampling, frame: pd.DataFrame | None = None) -> CostFit:
        rows = self.frame if frame is None else frame
        return fit_correction(self.surface(law, rows), rows)


@pytest.fixture
def till() -> Till:
    return Till()


@pytest.fixture
def charged(till: Till, monkeypatch: pytest.MonkeyPatch) -> ChargingView:
    charge_laws(till, monkeypatch)
    return ChargingView(till)


@pytest.fixture(scope="module")
def measured() -> Measured:
    """Every law on the model whose calls have prices; measured once for this module."""
    till, told = Till(), []
    with pytest.MonkeyPatch.context() as patch:
        charge_laws(till, patch)
        view = ChargingView(till)
        plan = tiny_plan(*LAWS)
        frame = measure_costs(view, plan, till.clock(), 0, lambda *at: told.append(at))
    return Measured(frame, view.layer_kinds, told)


def expected_cells(laws: list[str], kinds: dict[str, int]) -> set[tuple]:
    """Every cell the contract names, written out independently of the code."""
    cells: set[tuple] = {("embed", "", None, 1, None)}
    for context in (16, 64):
        for m in (1, 2, 4):
            cells.add(("prep", "", None, m, context))
            cells |= {(f"layers/{kind}", "", n, m, context) for kind, n in kinds.items()}
        cells.add(("prefill", "", None, context, context))
        cells |= {("ar", law, None, 1, context) for law in laws}
    for law in laws:
        for context in (16, 64) if law == "penalised" else (None,):
            cells.add(("draw", law, None, 1, context))
            cells |= {
                (part, law, None, m, context) for part in ("head", "accept") for m in (1, 2, 4)
            }
        cells |= {("round", law, r.exit_layer, r.draft_length + 1, r.context) for r in ROUNDS}
    return cells


def test_every_cell_is_timed_once_in_every_block(measured: Measured) -> None:
    frame = measured.frame
    assert tuple(frame.columns) == COLUMNS
    assert (frame["seconds"] > 0).all()
    assert set(frame["engine"]) == {"eager"}
    assert set(frame["batch"]) == {1}
    cells = frame[CELL].astype(object).where(frame[CELL].notna(), None)
    every = expected_cells([law.law_class for law in LAWS], {FULL: 3, SLIDING: 3})
    prefills = {cell for cell in every if cell[0] == "prefill"}
    for block in range(10):
        want = every if block < 3 else every - prefills
        found = [tuple(row) for row in cells[frame["block"] == block].itertuples(index=False)]
        assert len(found) == len(set(found)) == len(want), f"block {block}: {len(found)} rows"
        assert set(found) == want, set(found) ^ want
    total = 11 * len(every - prefills) + 3 * len(prefills)  # prefill has no block to warm up
    assert measured.told[-1] == (total, total), "progress must end at its total"


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.law_class)
def test_parts_add_up_to_rounds_to_a_few_nanoseconds(measured: Measured, law: Sampling) -> None:
    """Each call has a fixed price, so whatever a round does that no part does would show."""
    check_sums(measured.fit(law))
    between = measured.surface(law).between_seconds
    assert between < READINGS_S, f"a plain step has {between * 1e3:.6f} ms that no part has"


def check_sums(fit: CostFit) -> None:
    assert len(fit.rounds) == 3
    for one in fit.rounds:
        assert one.parts_s == pytest.approx(one.measured_s, abs=READINGS_S), (
            f"L={one.exit_layer} k={one.draft_length} context={one.context}: "
            f"{one.parts_s * 1e3:.6f} ms as parts, {one.measured_s * 1e3:.6f} ms whole"
        )


def test_greedy_with_penalties_is_a_penalised_law(charged: ChargingView, till: Till) -> None:
    frame = measure_costs(charged, tiny_plan(GREEDY_PENALISED), till.clock(), 0)
    check_sums(Measured(frame, charged.layer_kinds, []).fit(GREEDY_PENALISED))


@pytest.mark.parametrize(
    "part", ["embed", "prep", f"layers/{FULL}", f"layers/{SLIDING}", "head", "draw", "accept"]
)
def test_a_part_left_out_is_missed(measured: Measured, part: str) -> None:
    """Broken twins: free of charge, each part leaves a gap between parts and plain steps."""
    frame = measured.frame.copy()
    frame.loc[frame["part"] == part, "seconds"] = 1e-15
    between = measured.surface(SAMPLED, frame).between_seconds
    assert between > 1e-4, f"without {part} only {between * 1e3:.6f} ms of a step are missing"


def test_a_decoder_that_repeats_the_first_layers_is_seen(
    charged: ChargingView, till: Till, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken twin: a verification that runs layers [0, L) again costs more than its parts."""
    run = charged.run

    def wasteful(hidden, cache, start, stop, tap=None):  # type: ignore[no-untyped-def]
        if start > 0:
            till.charge(700_000 * start * hidden.shape[1])
        return run(hidden, cache, start, stop, tap)

    monkeypatch.setattr(charged, "run", wasteful)
    frame = measure_costs(charged, tiny_plan(), till.clock(), 0)
    fit = Measured(frame, charged.layer_kinds, []).fit(SAMPLED)
    assert all(one.parts_error < -0.01 for one in fit.rounds), fit.rounds


def test_layers_are_counted_by_kind(measured: Measured) -> None:
    frame = measured.frame
    chains = frame[frame["part"].str.startswith("layers/") & (frame["context"] == 16)]
    means = chains.groupby(["part", "positions"])["seconds"].mean()
    for kind, price in ((FULL, 700), (SLIDING, 300)):
        want = 3 * (4 * price + 90) * 1e-6
        assert means[f"layers/{kind}", 4] == pytest.approx(want, abs=READINGS_S), kind


@pytest.mark.parametrize("chunk", [512, 10])
def test_prefill_costs_what_a_real_decoder_pays_for_its_prompt(
    charged: ChargingView, till: Till, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks, the head at the last position alone, the draw of x_0 and its commit."""
    monkeypatch.setattr(decoder_module, "PREFILL_CHUNK", chunk)
    clock, frame = till.clock(), measure_costs(charged, tiny_plan(rounds=()), till.clock(), 0)
    timed = frame[frame["part"] == "prefill"].groupby("context")["seconds"]
    assert list(timed.groups) == [16, 64]
    for context, seconds in timed:
        assert len(seconds) == 3, f"{len(seconds)} samples at {context} tokens"
        policy = make_policy(Processor(SAMPLED, charged.vocab_size), 0)
        fresh = Decoder(charged, Job(prompt=(5,) * int(context), budget=2), policy)
        # The rollback that makes room for the prompt is timed too: it moves pointers only.
        real = clock.span(fresh.prefill)
        assert seconds.mean() == pytest.approx(real, abs=READINGS_S), f"context {context}"


def test_long_prompts_are_prefilled_less_often(charged: ChargingView, till: Till) -> None:
    assert [prefill_blocks(n) for n in (1, 512, 513, 2048, 2049, 8000)] == [3, 3, 2, 2, 1, 1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module, "PREFILL_BLOCKS", ((16, 2), (20, 5)))
        frame = measure_costs(charged, tiny_plan(rounds=()), till.clock(), 0)
    counts = frame[frame["part"] == "prefill"].groupby("context")["block"].agg(list).to_dict()
    assert counts == {16: [0, 1], 64: [0]}


def test_blocks_can_be_resumed(charged: ChargingView, till: Till) -> None:
    plan, clock = tiny_plan(rounds=()), till.clock()
    whole = measure_costs(charged, plan, clock, 3)
    rest = list(iter_blocks(charged, plan, clock, 3, start_block=8))
    assert [set(frame["block"]) for frame in rest] == [{8}, {9}]
    pd.testing.assert_frame_equal(
        whole[whole["block"] >= 8].reset_index(drop=True), pd.concat(rest, ignore_index=True)
    )


def test_rows_survive_the_file(measured: Measured, tmp_path: Path) -> None:
    write_table(measured.frame, tmp_path / "cost.csv")
    assert ".0,eager," not in (tmp_path / "cost.csv").read_text(encoding="utf-8")
    again = read_table(tmp_path / "cost.csv")
    assert measured.fit(SAMPLED, again) == measured.fit(SAMPLED)


def test_a_context_beyond_the_model_is_refused() -> None:
    view = tiny_view()
    plan = tiny_plan(contexts=(16, 156), rounds=())
    with pytest.raises(ConfigError, match="156 tokens and a round of 3 drafts exceed"):
        measure_costs(view, plan, Clock(), 0)


def test_measuring_leaves_every_state_as_it_was() -> None:
    """A plain step after all the timing gives the token of a decoder that was never timed."""
    view, plan = tiny_view(), tiny_plan(GREEDY, SAMPLED)
    tasks = build_tasks(view, plan, seed=0)
    for block in range(2):
        time_block(tasks, [2] * len(tasks), Clock(), block_order(len(tasks), block, 0))
    for task in tasks:
        if task.part != "ar" or task.law != "greedy":
            continue
        timed = task.step.__self__  # type: ignore[attr-defined]
        assert timed.cache.lengths == [[task.context]] * view.num_layers
        assert len(timed.output) == 1
        policy = make_policy(Processor(GREEDY, view.vocab_size), 0)
        fresh = Decoder(view, Job(prompt=timed.job.prompt, budget=5), policy)
        fresh.prefill()
        for decoder in (timed, fresh):
            decoder.ar_step()
        assert timed.output == fresh.output, f"context {task.context}"


def test_real_time_is_measured_for_every_law() -> None:
    """With the real clock: positive times, and a head at 4 positions is not free."""
    view = tiny_view()
    frame = measure_costs(view, tiny_plan(GREEDY, PENALISED), Clock.for_device(view.device), 0)
    assert (frame["seconds"] > 0).all()
    rounds = frame[frame["part"] == "round"].groupby(["law", "exit_layer"])["seconds"].median()
    plain = frame[frame["part"] == "ar"].groupby("law")["seconds"].median()
    for (law, exit_layer), seconds in rounds.items():
        assert seconds > plain[law], f"{law} L={exit_layer}: a round in {seconds:.2e} s"
