"""Between measured batch sizes costs are straight lines, and nothing lies beyond them."""

from itertools import pairwise

import numpy as np
import pytest
from analysis_helpers import KINDS, cost_rows, make_surface

from selfspec_cli.analysis.batch_costs import BatchCosts
from selfspec_cli.analysis.cost_surface import CostSurface
from selfspec_cli.errors import CostRangeError

GROWTH = {1: 1.0, 4: 1.8, 8: 3.0}


def scaled(batch, contexts=None):
    rows = cost_rows().assign(batch=batch)
    if contexts is not None:
        rows = rows[rows["context"].isna() | rows["context"].isin(contexts)]
    rows["seconds"] *= GROWTH[batch]
    return CostSurface.from_rows(rows, layer_kinds=KINDS, law="sampled", batch=batch)


@pytest.fixture(scope="module")
def costs():
    return BatchCosts(surfaces={batch: scaled(batch) for batch in GROWTH})


@pytest.mark.parametrize(
    ("rows", "factor"), [(1, 1.0), (2, 1.0 + 0.8 / 3), (4, 1.8), (5, 2.1), (7, 2.7), (8, 3.0)]
)
def test_seconds_are_linear_in_rows_between_measured_sizes(costs, rows, factor):
    step = float(make_surface().ar_seconds(70))
    whole = float(make_surface().round_seconds([3], 4, 70)[0])
    assert costs.ar_seconds(70, rows) == pytest.approx(factor * step)
    assert costs.round_seconds(3, 4, 70, rows) == pytest.approx(factor * whole)


def test_arrays_broadcast_and_agree_with_single_calls(costs):
    drafted, contexts = np.array([[0, 1, 8], [2, 2, 2]]), np.array([16.0, 70.5, 512.0])
    rows = np.array([[8, 3, 1], [4, 5, 6]])
    found = costs.round_seconds(3, drafted, contexts, rows)
    assert found.shape == (2, 3)
    for at in np.ndindex(2, 3):
        one = costs.round_seconds(3, drafted[at], contexts[at[1]], rows[at])
        assert found[at] == pytest.approx(float(one), rel=1e-12), at
    steps = costs.ar_seconds(contexts, rows)
    assert all(a > b for a, b in pairwise(steps[0] / make_surface().ar_seconds(contexts)))


def test_nothing_is_extrapolated(costs):
    for rows in (9, 0, [2, 16]):
        with pytest.raises(CostRangeError, match="batches of 1 to 8 rows, asked for"):
            costs.ar_seconds(70, rows)
    with pytest.raises(CostRangeError, match="16 to 512 tokens"):
        costs.round_seconds(3, 4, 513, 2)
    with pytest.raises(CostRangeError, match="0 to 8 drafted"):
        costs.round_seconds(3, 9, 70, 2)


def test_one_row_is_out_of_range_unless_it_was_measured():
    costs = BatchCosts(surfaces={batch: scaled(batch) for batch in (4, 8)})
    assert costs.batch_sizes == (4, 8)
    with pytest.raises(CostRangeError, match="4 to 8 rows, asked for 3"):
        costs.round_seconds(3, 4, 70, [8, 3])


def test_a_size_that_does_not_count_need_not_have_been_timed_there():
    """Memory let batch 8 be timed up to 128 tokens only: 4 rows at 512 need no batch of 8."""
    costs = BatchCosts(surfaces={1: scaled(1), 4: scaled(4), 8: scaled(8, (16, 128))})
    assert costs.ar_seconds(512, 4) == pytest.approx(1.8 * float(make_surface().ar_seconds(512)))
    with pytest.raises(CostRangeError, match="16 to 128 tokens, asked for 512"):
        costs.ar_seconds(512, [4, 5])


def test_no_rows_cost_nothing(costs):
    assert costs.ar_seconds([], np.array([], dtype=int)).shape == (0,)
