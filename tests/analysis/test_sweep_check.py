"""Full replay beside the walk: the right rows are paired, and the figures add up by hand."""

import math
from statistics import NormalDist

import pandas as pd
import pytest

from selfspec_cli.analysis.sweep_check import compare_sweep


def walk_rows():
    rows = [
        (request, temperature, k, committed, rounds)
        for request, committed in (("a", 10.0), ("b", 30.0), ("one token", 0.0))
        for temperature in (0.0, 0.7)
        for k, rounds in ((1, committed * 0.75), (2, committed * 0.5))
    ]
    names = ["request_id", "temperature", "draft_length", "committed", "rounds"]
    table = pd.DataFrame(rows, columns=names).assign(exit_layer=3)
    return table.assign(ar_seconds=table["committed"] * 0.1, seconds=table["rounds"] * 0.25)


def sweep_rows():
    table = walk_rows()
    return table.assign(
        rounds=table["rounds"] + (table["temperature"] > 0) * (table["committed"] > 0),
        ar_committed=table["committed"],
        ar_seconds=table["committed"] * 0.2,
        seconds=table["committed"] * 0.16,
    )


def test_each_cell_is_compared_with_its_own_prediction():
    table = compare_sweep(sweep_rows(), walk_rows()).set_index(["temperature", "draft_length"])
    assert len(table) == 4
    for (temperature, k), row in table.iterrows():
        per_token = {1: 0.75, 2: 0.5}[k]
        assert row["num_requests"] == 2, "an output of one token has no rounds to compare"
        assert row["walked_rounds_per_token"] == pytest.approx(per_token)
        extra = 2 / 40 if temperature else 0.0
        assert row["decoded_rounds_per_token"] == pytest.approx(per_token + extra)
        assert row["predicted_speedup"] == pytest.approx(0.1 / (0.25 * per_token))
        assert row["measured_speedup"] == pytest.approx(0.2 / 0.16)
        if temperature == 0:
            assert row["rounds_z"] == 0.0


def test_z_of_a_cell_by_hand():
    """One round more on paths of 10 and 30 tokens: residuals 0.5 and -0.5 over a mean of 20."""
    table = compare_sweep(sweep_rows(), walk_rows()).set_index(["temperature", "draft_length"])
    # decoded 0.8 a token: (8.5 - 8)/20 and (23.5 - 24)/20; the walk's residuals are 0. Their
    # standard error is 0.025, and the difference 0.05: t = 2 with one degree of freedom.
    as_rare = NormalDist().inv_cdf(0.5 + math.atan(2.0) / math.pi)
    assert table.loc[(0.7, 1), "rounds_z"] == pytest.approx(as_rare)


def test_requests_the_walk_left_out_do_not_count():
    walk = walk_rows()
    table = compare_sweep(sweep_rows(), walk.loc[walk["request_id"] != "b"])
    assert table["num_requests"].tolist() == [1] * 4
    assert table["rounds_z"].dropna().eq(0.0).all(), "one request has no spread, so no z"
