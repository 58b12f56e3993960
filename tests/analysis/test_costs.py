"""cost.csv to surfaces by batch size and law; files of one batch size read as ever."""

import pandas as pd
import pytest
from analysis_helpers import KINDS, cost_rows

from selfspec_cli.analysis.costs import at_pace_of, price
from selfspec_cli.errors import CostRangeError

GROWTH = {1: 1.0, 4: 1.8, 8: 3.0}  # how much longer a batch takes than one row


def batch_rows(batch, laws=("greedy", "sampled")):
    rows = cost_rows(laws)
    return rows.assign(batch=batch, seconds=rows["seconds"] * GROWTH[batch])


def all_rows():
    """Three batch sizes; prompts were run one by one and timed at batch 1 only."""
    prefill = pd.DataFrame(
        {"block": 0, "part": "prefill", "law": "", "positions": [16, 512], "context": [16, 512],
         "batch": 1, "engine": "eager", "seconds": [2.0, 30.0]}
    )  # fmt: skip
    return pd.concat([*map(batch_rows, GROWTH), prefill], ignore_index=True)


def round_cells(surface, change, batch):
    """Whole rounds in three blocks, `change` applied to their sum of parts."""
    return pd.DataFrame(
        [
            {"block": block, "part": "round", "law": surface.law, "exit_layer": layer,
             "positions": k + 1, "context": context, "batch": batch, "engine": "eager",
             "seconds": change(float(surface.round_seconds([layer], k, context)[0]))}
            for block in range(3)
            for layer in (2, 3, 5)
            for k, context in ((1, 16), (8, 512))
        ]
    )  # fmt: skip


def test_every_batch_size_has_surfaces_of_its_own():
    costs = price(all_rows(), KINDS)
    assert costs.batch_sizes == (1, 4, 8)
    assert costs.surfaces is costs.by_batch[1]
    for batch, growth in GROWTH.items():
        for law in ("greedy", "sampled"):
            surface = costs.by_batch[batch][law]
            assert (surface.batch, surface.law) == (batch, law)
            ratio = float(surface.ar_seconds(128) / costs.surfaces[law].ar_seconds(128))
            assert ratio == pytest.approx(growth), f"batch {batch}: {ratio:.3f} × one row"
    assert list(costs.of_law("greedy")) == [1, 4, 8]


def test_the_base_is_the_smallest_size_that_was_measured():
    rows = all_rows()
    costs = price(rows[(rows["batch"] != 1) | (rows["part"] == "prefill")], KINDS)
    assert costs.batch_sizes == (4, 8)
    assert costs.surfaces["greedy"].batch == 4
    assert float(costs.surfaces["greedy"].prefill_seconds(16)) == 2.0, "prompts run one by one"


def test_prompts_cost_the_same_in_every_batch():
    costs = price(all_rows(), KINDS)
    found = [float(costs.by_batch[batch]["sampled"].prefill_seconds(264)) for batch in GROWTH]
    assert found == [16.0] * 3, found


def test_a_file_of_one_batch_size_reads_as_before():
    rows = cost_rows()
    costs = price(rows, KINDS)
    assert costs.batch_sizes == (1,)
    assert set(costs.surfaces) == {"greedy", "sampled"}
    assert set(costs.fit_document()) == {"greedy", "sampled"}, "no key for other sizes"


def test_each_batch_size_is_corrected_by_its_own_rounds():
    """Rounds take 1.3 × their parts at batch 4 alone."""
    plain = price(all_rows(), KINDS)
    rounds = [
        round_cells(plain.by_batch[batch]["greedy"], lambda s, f=factor: f * s, batch)
        for batch, factor in ((1, 1.0), (4, 1.3))
    ]
    costs = price(pd.concat([all_rows(), *rounds], ignore_index=True), KINDS)
    assert costs.fits["greedy"].mode == "parts"
    assert costs.fits_by_batch[4]["greedy"].mode == "corrected"
    assert costs.by_batch[4]["greedy"].scale == pytest.approx(1.3, rel=1e-6)
    assert costs.by_batch[8]["greedy"].scale == 1.0
    assert len(costs.fits_by_batch[4]["greedy"].rounds) == 6
    document = costs.fit_document()
    assert document["by_batch"]["4"]["greedy"]["mode"] == "corrected"
    assert document["greedy"]["mode"] == "parts"


def test_pace_is_taken_from_plain_steps_of_the_same_batch():
    """The second visit runs at half pace for one row and as before for eight."""
    rows = pd.concat([batch_rows(1), batch_rows(8)], ignore_index=True)
    plain = rows[(rows["part"] == "ar") & (rows["law"] == "greedy")]
    slow = plain["batch"].map({1: 2.0, 8: 1.0})
    again = plain.assign(seconds=plain["seconds"] * slow)
    rounds = again[again["context"] == 16].assign(part="round", seconds=10.0)
    found = at_pace_of(rows, pd.concat([again, rounds])).groupby("batch")["seconds"].mean()
    assert found.to_dict() == pytest.approx({1: 5.0, 8: 10.0})


def test_without_plain_steps_nothing_can_be_priced():
    rows = cost_rows()
    with pytest.raises(CostRangeError, match="no plain step was timed"):
        price(rows[rows["part"] != "ar"], KINDS)
