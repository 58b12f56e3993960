"""Pricing walk rows again from their stored sums."""

import numpy as np
import pandas as pd
import pytest
from analysis_helpers import cost_rows, make_path, make_surface, random_paths

from selfspec_cli.analysis.reprice import reprice
from selfspec_cli.analysis.walk import walk
from selfspec_cli.errors import CostRangeError


def test_reprice_equals_the_walk_where_costs_are_linear():
    """The helper's costs are linear in the context, so mean contexts lose nothing."""
    paths, surface = random_paths(12), make_surface()
    rows = cost_rows()
    other = make_surface(rows.assign(seconds=rows["seconds"] * (1 + (rows["part"] == "head"))))
    priced = walk(paths, [2, 3, 4, 5], [1, 4, 8], other)
    again = reprice(walk(paths, [2, 3, 4, 5], [1, 4, 8], surface), other)
    assert np.allclose(again["seconds"], priced["seconds"], rtol=1e-10)
    assert np.allclose(again["ar_seconds"], priced["ar_seconds"], rtol=1e-10)


def test_reprice_single_token_path_costs_nothing():
    again = reprice(walk([make_path([0.0])], [2], [3]), make_surface())
    assert again[["seconds", "ar_seconds"]].to_numpy().tolist() == [[0.0, 0.0]]


def test_reprice_outside_the_range_is_refused():
    with pytest.raises(CostRangeError, match="16 to 512"):
        reprice(walk([make_path(np.ones(5), prompt=900)], [2], [3]), make_surface())


def test_reprice_reads_lists_back_from_arrays():
    """Parquet gives lists back as arrays."""
    rows, surface = walk(random_paths(3), [2, 3, 4, 5], [2]), make_surface()
    arrays = rows.assign(
        rounds_by_drafted=rows["rounds_by_drafted"].map(np.asarray),
        context_by_drafted=rows["context_by_drafted"].map(np.asarray),
    )
    assert np.array_equal(reprice(arrays, surface)["seconds"], reprice(rows, surface)["seconds"])


def test_reprice_takes_the_prefill_of_the_other_costs():
    rows = cost_rows()
    spans = [("prefill", "", c, c, c / 100, b, 1, "eager") for c in (16, 512) for b in (0, 1)]
    names = ["part", "law", "positions", "context", "seconds", "block", "batch", "engine"]
    other = make_surface(pd.concat([rows, pd.DataFrame(spans, columns=names)]))
    walked = walk(random_paths(12), [2, 3, 4, 5], [1], make_surface())
    assert walked["prefill_seconds"].isna().all()
    again = reprice(walked, other)
    assert np.allclose(again["prefill_seconds"], again["prompt_tokens"] / 100)
    assert reprice(again, make_surface())["prefill_seconds"].isna().all()
