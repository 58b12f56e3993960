"""One machine timed twice: how often `gate --baseline` calls the second run slower."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from report_runs import DEPTH, LAYERS, cost_rows, make_run
from scipy import stats

from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.analysis.costs import price
from selfspec_cli.analysis.run_walk import run_coins, usable_paths, walk_at_base
from selfspec_cli.gate import comparable, compare
from selfspec_cli.gate.compare import compare_sides
from selfspec_cli.gate.fail_on import baseline_checks
from selfspec_cli.gate.holm import FAMILY_LEVEL
from selfspec_cli.gate.pairing import CostError
from selfspec_cli.gate.side import load_side, pricing_jumps
from selfspec_cli.plan.rules import cell_of
from selfspec_cli.storage import RunDir

KINDS = ["full"] * DEPTH
BLOCKS = 10
PAIRS, MOST = 16, 1
"""1 failure of 16 pairs at 0.5 % each: more by chance in 0.3 % of seeds."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A run of one task, greedy, and a function that times its costs anew."""
    folder = make_run(
        tmp_path_factory.mktemp("twice") / "run", {"code": 0.95}, temperatures=(0.0,), tokens=24,
        confirm=False,
    )  # fmt: skip
    side = load_side(folder)
    assert side.paths["on"].any(), "nothing is enabled: nothing would be compared"
    layer, length = next(filter(None, map(cell_of, side.plan.rules)))
    coins = run_coins(RunDir.load(folder), [layer])

    def timed(rng, *, missing=0.05):
        """A run of these blocks, rounds taking `missing` more than their parts."""
        costs = price(_rows(rng, missing), KINDS)
        usable, _ = usable_paths(coins, costs)
        walk = walk_at_base(usable, [layer], [length], costs)
        seconds = walk.set_index("path_id").loc[side.paths["path_id"]]
        facts = side.plan.measured_on
        own = facts.costs.model_copy(update={"sha256": f"{rng.integers(2**62):x}"})
        plan = side.plan.model_copy(update={"measured_on": facts.model_copy(update={"costs": own})})
        on = side.paths["on"].to_numpy()
        ar = seconds["ar_seconds"].to_numpy()
        paths = side.paths.assign(ar=ar, seconds=np.where(on, seconds["seconds"], ar))
        inputs = replace(side.inputs, walk=walk, costs=costs)
        return replace(side, plan=plan, inputs=inputs, paths=paths)

    return timed


def _rows(rng, missing):
    """cost.csv of ten blocks with 0.5 % of noise a cell, whole rounds with 3 % a block."""
    cells = cost_rows(["greedy"]).query("block == 0")
    surface = CostSurface.from_rows(cells, layer_kinds=KINDS, law="greedy")
    rounds = pd.DataFrame(
        [
            {"part": "round", "law": "greedy", "exit_layer": layer, "positions": k + 1,
             "context": context, "batch": 1, "engine": "eager",
             "seconds": float(surface.round_seconds([layer], k, context)[0]) * (1 + missing)}
            for layer in LAYERS for k in (1, 2, 4) for context in (32, 1024)
        ]
    )  # fmt: skip
    blocks = []
    for block in range(BLOCKS):
        pace = np.exp(rng.normal(0.0, 0.03))
        one = pd.concat([cells, rounds.assign(seconds=rounds["seconds"] * pace)])
        noise = np.exp(rng.normal(0.0, 0.005, len(one)))
        blocks.append(one.assign(block=block, seconds=one["seconds"] * noise))
    return pd.concat(blocks, ignore_index=True)


def failures(machine, pairs, missing=(0.05, 0.05)):
    """Pairs that fail, and pairs of which the two runs price rounds otherwise."""
    rng = np.random.default_rng(4)
    failed = otherwise = 0
    for _ in range(pairs):
        base, new = (machine(rng, missing=share) for share in missing)
        failed += any(check.fails for check in baseline_checks(compare_sides(base, new)))
        otherwise += bool(comparable.priced_otherwise(base, new))
    return failed, otherwise


def test_one_machine_timed_twice_seldom_fails(machine):
    """Rounds take 5 % more than their parts, the very threshold of a correction."""
    failed, otherwise = failures(machine, PAIRS)
    assert otherwise >= PAIRS // 4, f"only {otherwise} pairs are priced otherwise"
    assert failed <= MOST, f"{failed} of {PAIRS} pairs failed"
    assert stats.binom.sf(MOST, PAIRS, FAMILY_LEVEL) < 0.005


def test_without_the_error_of_pricing_it_fails_often(machine, monkeypatch):
    """The broken twin: as if rounds 4 and 6 % beyond their parts were priced the same way."""
    monkeypatch.setattr(compare, "priced_otherwise", lambda base, new: ())
    failed, _ = failures(machine, 4, (0.04, 0.06))
    assert failed > MOST, f"{failed} of 4"


def test_a_way_of_pricing_counts_no_more_than_it_moves(machine):
    """Held-out rounds may be far off where no rule looks; what is not known stays not known."""
    error = CostError(log_sd=0.08, degrees=6.0)
    assert error.at_most(0.01) == CostError(log_sd=0.01, degrees=6.0)
    assert error.at_most(0.5) == error
    assert np.isnan(CostError(log_sd=np.nan, degrees=1.0).at_most(0.01).log_sd)
    rng = np.random.default_rng(6)
    plain, corrected = machine(rng, missing=0.0), machine(rng, missing=0.25)
    rows, bucket = plain.paths.assign(weight=1.0), np.zeros(len(plain.paths), dtype=np.int64)
    for side, moved in ((plain, 0.0), (corrected, np.log(1.25))):
        found = pricing_jumps(side, rows, bucket, ["greedy"])
        assert found == pytest.approx([moved, moved], abs=0.02), found
    assert not pricing_jumps(corrected, rows, bucket, []).any()


def test_rounds_that_really_became_slower_fail_although_priced_otherwise(machine):
    """2 % beyond their parts, then 25 %."""
    rng = np.random.default_rng(6)
    base, new = machine(rng, missing=0.02), machine(rng, missing=0.25)
    compared = compare_sides(base, new)
    told = [entry.text for entry in compared.other_differences]
    assert told == ["pricing of greedy rounds: parts | corrected"], told
    found = compared.total.speedup
    assert found.estimate == pytest.approx(1.0 / 1.25, abs=0.04)
    assert any(check.fails for check in baseline_checks(compared)), found
