"""The cost surface: hand-computed rounds over two layer kinds, its range, its blocks."""

import numpy as np
import pandas as pd
import pytest
from analysis_helpers import (
    ACCEPT_S,
    BLOCK_FACTORS,
    CONTEXTS,
    KINDS,
    ar_cost,
    cost_rows,
    make_surface,
)

from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.errors import CostRangeError, StorageError

SAMPLED = 1.5


def hand_round(layer, k, context):
    """Round of the helper's costs, written out by hand for N = 6, local and full alternating."""
    below_local, below_full = (layer + 1) // 2, layer // 2  # layers of each kind in [0, L)
    above_local, above_full = 3 - below_local, 3 - below_full

    def local(m):
        return 0.5 + 0.1 * m

    def full(m):
        return 1.0 + 0.2 * m + 0.001 * context

    def prep(m):
        return 0.001 * m + 0.0001 * context

    def head(m):
        return SAMPLED * (0.3 + 0.1 * m)

    entry = 0.01 + prep(1) + below_local * local(1) + below_full * full(1)
    draft = entry + head(1) + SAMPLED * 0.05
    m = k + 1
    verify = entry + prep(m) + above_local * local(m) + above_full * full(m) + head(m)
    return draft, verify, k * draft + verify + ACCEPT_S


@pytest.mark.parametrize("layer", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("context", [16, 70, 128, 300, 512])
def test_round_seconds_by_hand(layer, k, context):
    found = make_surface().round_seconds([layer], k, context)
    expected = hand_round(layer, k, context)[2]
    assert found[0] == pytest.approx(expected, rel=1e-12), (found, expected)


def test_round_seconds_golden_number():
    """L = 3, k = 2, context 128, added up on paper.

    entry 0.01 + (0.001 + 0.0128) + 2 * 0.6 + 1 * 1.328 = 2.5518
    draft entry + 1.5 * 0.4 + 0.075 = 3.2268
    verify entry + (0.003 + 0.0128) + 1 * 0.8 + 2 * 1.728 + 1.5 * 0.6 = 7.7236
    round 2 * 3.2268 + 7.7236 + 0.02 = 14.1972
    """
    found = float(make_surface().round_seconds([3], 2, 128)[0])
    assert found == pytest.approx(14.1972, abs=1e-9), found


def test_round_without_drafts_is_a_plain_step_and_bookkeeping():
    surface = make_surface()
    found = surface.round_seconds([1, 4], 0, 128)
    assert np.allclose(found, ar_cost(128) + ACCEPT_S, rtol=1e-12), found


def with_prefill(rows, blocks=3):
    """Prompts of 16, 128 and 512 tokens take 0.1, 1 and 5 s, timed in few blocks."""
    return pd.concat(
        [
            rows,
            pd.DataFrame(
                [
                    {
                        "block": block, "part": "prefill", "law": "", "positions": context,
                        "context": context, "seconds": seconds * BLOCK_FACTORS[block],
                        "batch": 1, "engine": "eager",
                    }
                    for block in range(blocks)
                    for context, seconds in ((16, 0.1), (128, 1.0), (512, 5.0))
                ]
            ),
        ],
        ignore_index=True,
    )  # fmt: skip


def test_prefill_lies_on_the_line_between_timed_prompts():
    surface = make_surface(with_prefill(cost_rows()))
    found = surface.prefill_seconds([[16, 72], [128, 320]])
    assert found == pytest.approx(np.array([[0.1, 0.55], [1.0, 3.0]])), found


@pytest.mark.parametrize("prompt", [15, 513])
def test_prefill_is_never_extrapolated(prompt):
    with pytest.raises(CostRangeError, match="prefill was measured at contexts of 16 to 512"):
        make_surface(with_prefill(cost_rows())).prefill_seconds([20, prompt])


def test_prefill_of_an_older_file_is_missing_not_zero():
    assert make_surface().prefill_seconds(20) is None


def test_prefill_is_no_part_of_a_round():
    """Timed in one block of three, it must neither drop blocks nor change a price."""
    surface, plain = make_surface(with_prefill(cost_rows(), blocks=1)), make_surface()
    assert surface.samples.blocks == plain.samples.blocks == (0, 1, 2)
    assert np.array_equal(surface.round_seconds([3], 2, 128), plain.round_seconds([3], 2, 128))
    assert surface.relative_spread() == plain.relative_spread()
    other = surface.corrected(2.0, 0.1).resample(np.random.default_rng(0))
    assert other.prefill_seconds(512) == pytest.approx(5.0), "corrections are of rounds alone"


def test_prefill_time_must_be_a_time():
    rows = with_prefill(cost_rows())
    rows.loc[rows["part"] == "prefill", "seconds"] = 0.0
    with pytest.raises(StorageError, match="not a positive number"):
        make_surface(rows)


def test_kind_counts_matter():
    """Broken twin: an average layer for every layer misprices exits that split kinds unevenly."""
    rows = cost_rows()
    mean = {
        name: rows.loc[rows["part"] == name, "seconds"].mean()
        for name in ("layers/local", "layers/full")
    }
    even = rows.copy()
    for name in mean:
        chosen = even["part"] == name
        even.loc[chosen, "seconds"] *= np.mean(list(mean.values())) / mean[name]
    kinds = ("local",) * 3 + ("full",) * 3
    right = CostSurface.from_rows(rows, layer_kinds=kinds, law="sampled")
    twin = CostSurface.from_rows(even, layer_kinds=kinds, law="sampled")
    one, two = (float(s.round_seconds([3], 4, 128)[0]) for s in (right, twin))
    assert abs(two / one - 1) > 0.05, f"by kind {one:.3f} s, averaged {two:.3f} s"


def test_round_seconds_vectorised_equals_scalar():
    surface, rng = make_surface(), np.random.default_rng(0)
    drafted, contexts = rng.integers(0, 9, size=(4, 5)), rng.uniform(16, 512, size=(4, 1))
    found = surface.round_seconds([1, 3, 6], drafted, contexts)
    assert found.shape == (3, 4, 5)
    for e, layer in enumerate([1, 3, 6]):
        for i in range(4):
            for j in range(5):
                one = surface.round_seconds([layer], drafted[i, j], contexts[i, 0])[0]
                assert found[e, i, j] == one


def test_ratios_add_up_to_the_round():
    surface = make_surface()
    draft, verify, whole = hand_round(3, 4, 128)
    c = surface.draft_cost_ratio(3, 128)
    v = surface.verify_cost_ratio(3, 4, 128)
    o = surface.overhead_ratio(3, 4, 128)
    assert c == pytest.approx(draft / ar_cost(128), rel=1e-12)
    assert v == pytest.approx(verify / ar_cost(128), rel=1e-12)
    assert 4 * c + v + o == pytest.approx(whole / ar_cost(128), rel=1e-12)
    assert o == pytest.approx(ACCEPT_S / ar_cost(128), rel=1e-9)


@pytest.mark.parametrize("context", [15, 513, 10_000])
def test_context_outside_the_range_names_the_range(context):
    with pytest.raises(CostRangeError, match="16 to 512 tokens") as caught:
        make_surface().round_seconds([3], 2, context)
    assert f"{context}" in str(caught.value)
    with pytest.raises(CostRangeError):
        make_surface().ar_seconds([100, context])


def test_draft_length_beyond_measured_positions_is_refused():
    with pytest.raises(CostRangeError, match="0 to 8 drafted"):
        make_surface().round_seconds([3], 9, 128)


@pytest.mark.parametrize("layer", [0, 7])
def test_exit_layer_outside_the_model_is_refused(layer):
    with pytest.raises(CostRangeError, match="6 layers"):
        make_surface().round_seconds([layer], 2, 128)


def test_unmeasured_law_and_batch_are_refused():
    with pytest.raises(CostRangeError, match="truncated law at batch size 1"):
        CostSurface.from_rows(cost_rows(), layer_kinds=KINDS, law="truncated")
    with pytest.raises(CostRangeError, match="batch size 4"):
        CostSurface.from_rows(cost_rows(), layer_kinds=KINDS, law="sampled", batch=4)


def test_several_engines_need_a_choice():
    rows = pd.concat([cost_rows(), cost_rows().assign(engine="compiled")])
    with pytest.raises(StorageError, match="compiled, eager"):
        make_surface(rows)
    CostSurface.from_rows(rows, layer_kinds=KINDS, law="sampled", engine="compiled")


def test_missing_part_and_missing_column_are_named():
    rows = cost_rows()
    with pytest.raises(StorageError, match="layers/full was not timed"):
        make_surface(rows.loc[rows["part"] != "layers/full"])
    with pytest.raises(StorageError, match="seconds"):
        make_surface(rows.drop(columns="seconds"))


def test_gap_in_positions_is_interpolated_not_extrapolated():
    """The helper's parts are linear in positions, so dropping m = 4 changes nothing."""
    rows = cost_rows()
    gap = make_surface(rows.loc[rows["positions"] != 4])
    assert float(gap.round_seconds([3], 3, 128)[0]) == pytest.approx(
        float(make_surface().round_seconds([3], 3, 128)[0]), rel=1e-12
    )
    assert make_surface(rows.loc[rows["positions"] < 6]).max_draft_length == 4


def test_incomplete_block_is_left_out_and_counted():
    rows = cost_rows()
    torn = rows.loc[~((rows["block"] == 2) & (rows["part"] == "head"))]
    surface = make_surface(torn)
    assert surface.samples.num_dropped_blocks == 1
    assert surface.samples.blocks == (0, 1)
    # The blocks kept run at 1.0 and 1.1 of the helper's costs.
    assert float(surface.ar_seconds(128)) == pytest.approx(1.05 * ar_cost(128), rel=1e-12)


def test_no_complete_block_is_an_error():
    rows = cost_rows()
    odd = rows.loc[(rows["part"] != "head") | ((rows["positions"] + rows["block"]) % 2 == 0)]
    with pytest.raises(StorageError, match="no block timed every part"):
        make_surface(odd)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_time_that_is_not_a_time_is_refused(bad):
    rows = cost_rows()
    rows.loc[3, "seconds"] = bad
    with pytest.raises(StorageError, match="positive"):
        make_surface(rows)


def test_resample_draws_whole_blocks():
    """Blocks that are slow as a whole leave every ratio alone: the speedup has no uncertainty."""
    surface, rng = make_surface(), np.random.default_rng(1)
    ratios, plain = [], []
    for _ in range(30):
        drawn = surface.resample(rng)
        plain.append(float(drawn.ar_seconds(128)))
        ratios.append(float(drawn.round_seconds([3], 4, 128)[0]) / plain[-1])
    assert np.std(ratios) < 1e-12, f"ratio varies by {np.std(ratios):.2e}"
    assert np.std(plain) > 0.01 * np.mean(plain), "resampling changed nothing"


def test_twin_resampling_parts_apart_overstates_the_ratio_error():
    """Broken twin: drawing blocks per part gives the ratio a spread it does not have."""
    rows, rng = cost_rows(), np.random.default_rng(1)
    ratios = []
    for _ in range(30):
        shuffled = rows.copy()
        factors = {part: rng.choice([1.0, 1.1, 0.9], 3).mean() for part in rows["part"].unique()}
        shuffled["seconds"] *= rows["part"].map(factors)
        drawn = make_surface(shuffled)
        ratios.append(float(drawn.round_seconds([3], 4, 128)[0] / drawn.ar_seconds(128)))
    assert np.std(ratios) > 0.01, f"twin spread {np.std(ratios):.4f}"


def with_cold_steps(between):
    """Rows where a plain step takes `between` seconds more than its parts, timed warm."""
    rows = cost_rows()
    plain = rows["part"] == "ar"
    factor = rows["block"].map(dict(enumerate(BLOCK_FACTORS)))
    whole = rows["context"].map(ar_cost) + ACCEPT_S + between
    return rows.assign(seconds=rows["seconds"].where(~plain, whole * factor))


def test_what_a_step_has_beyond_its_parts_is_in_each_pass_of_a_round():
    """A draft step through all layers is a plain step; k drafts and a verification carry it k + 1
    times. Without it every round would be too cheap beside the plain step."""
    surface = make_surface(with_cold_steps(0.3))
    assert surface.between_seconds == pytest.approx(0.3, rel=1e-9)
    assert surface.draft_cost_ratio(6, 128) * surface.ar_seconds(128) == pytest.approx(
        ar_cost(128) + 0.3, rel=1e-9
    )
    draft, verify, _ = hand_round(3, 4, 128)
    found = float(surface.round_seconds([3], 4, 128)[0])
    assert found == pytest.approx(4 * (draft + 0.3) + verify + 0.3 + ACCEPT_S, rel=1e-9), found
    whole = surface.with_whole_rounds(whole_rounds([(3, 4, 128)]))
    assert whole.between_seconds == surface.between_seconds


def test_parts_that_exceed_the_step_are_noise_and_take_nothing_away():
    surface = make_surface(with_cold_steps(-0.5))
    assert surface.between_seconds == 0.0
    found = float(surface.round_seconds([3], 4, 128)[0])
    assert found == pytest.approx(hand_round(3, 4, 128)[2], rel=1e-12), found


def test_one_slow_context_does_not_reach_the_rounds_of_the_others():
    rows = with_cold_steps(0.3)
    rows.loc[(rows["part"] == "ar") & (rows["context"] == 512), "seconds"] *= 3
    assert make_surface(rows).between_seconds == pytest.approx(0.3, rel=1e-9)


def test_relative_spread_and_unstable():
    """Blocks at 1.0, 1.1 and 0.9 spread by exactly 10 %; wider ones are called unstable."""
    assert make_surface().relative_spread()["ar"] == pytest.approx(0.1, rel=1e-9)
    assert make_surface().relative_spread()["round"] == pytest.approx(0.1, rel=1e-9)
    wide = make_surface(cost_rows(factors=(1.0, 1.2, 0.8)))
    assert wide.unstable
    assert not make_surface(cost_rows(factors=(1.0, 1.02, 0.98))).unstable


def test_one_bad_context_among_several_is_not_an_unstable_run():
    """The worst of many contexts passes 10 % by chance; it is shown, and the median decides."""
    rows = cost_rows(factors=(1.0, 1.02, 0.98))
    hit = (rows["part"] == "ar") & (rows["context"] == 128) & (rows["block"] == 0)
    rows.loc[hit, "seconds"] *= 1.6
    surface = make_surface(rows)
    spread = surface.relative_spread()
    assert spread["ar_worst"] > 0.10, spread
    assert not surface.unstable


def test_relative_spread_of_one_block_is_missing_and_not_called_unstable():
    one = make_surface(cost_rows(factors=(1.0,)))
    assert np.isnan(one.relative_spread()["ar"])
    assert not one.unstable


def whole_rounds(cells, factor=1.0, offset=0.0):
    """Measured rounds: exact sums of parts times factor plus offset."""
    rows = [
        {"exit_layer": layer, "positions": k + 1, "context": context,
         "seconds": factor * hand_round(layer, k, context)[2] + offset}
        for layer, k, context in cells
    ]  # fmt: skip
    frame = pd.DataFrame(rows).assign(block=0, part="round", law="sampled", batch=1)
    return frame.assign(engine="eager")


def test_whole_rounds_replace_only_their_own_cells():
    surface = make_surface()
    measured = whole_rounds([(3, 4, 16), (3, 4, 128)], factor=2.0)
    whole = surface.with_whole_rounds(measured)
    for context in (16, 70, 128):
        expected = 2 * hand_round(3, 4, context)[2]
        assert float(whole.round_seconds([3], 4, context)[0]) == pytest.approx(expected, rel=1e-9)
    for layer, k, context in [(3, 4, 512), (3, 3, 128), (4, 4, 128)]:
        one, two = (float(s.round_seconds([layer], k, context)[0]) for s in (surface, whole))
        assert one == pytest.approx(two, rel=1e-12), (layer, k, context)


def test_whole_round_between_knots_keeps_its_own_context():
    whole = make_surface().with_whole_rounds(whole_rounds([(2, 2, 200)], factor=3.0))
    found = float(whole.round_seconds([2], 2, 200)[0])
    assert found == pytest.approx(3 * hand_round(2, 2, 200)[2], rel=1e-12)
    assert CONTEXTS[-1] == whole.context_range[1]


def test_whole_rounds_bring_their_own_uncertainty():
    """Cells that were timed whole move by their own error when blocks are drawn again.

    Their errors are shared by no other cell, so a planner that chose among many cells would take
    the luckiest one for a gain. The twin, which keeps them fixed, shows no spread at all.
    """
    cells = [(3, 4, 16), (3, 4, 128)]
    rows = pd.concat(
        [whole_rounds(cells, factor=f).assign(block=b) for b, f in enumerate((0.9, 1.0, 1.1))]
    )
    surface = make_surface(cost_rows(factors=(1.0, 1.0, 1.0))).with_whole_rounds(rows)
    rng = np.random.default_rng(0)
    drawn = [float(surface.resample(rng).round_seconds([3], 4, 128)[0]) for _ in range(300)]
    spread = np.std(drawn) / np.mean(drawn)
    assert spread == pytest.approx(0.1 / np.sqrt(3), rel=0.15), spread  # 300 draws: sd within 4 %
    once = make_surface().with_whole_rounds(whole_rounds(cells))
    assert np.isnan(once.resample(rng).round_seconds([3], 4, 128)).all(), "timed once: unknown"
