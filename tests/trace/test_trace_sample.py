"""Stratified sampling: proportions, determinism, independence of row order."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfspec_cli.errors import TraceError
from selfspec_cli.records import PreparedRequest, Sampling
from selfspec_cli.trace.sample import allocate, sample_requests


def make(number: int, task: str = "a", prompt_tokens: int = 3) -> PreparedRequest:
    return PreparedRequest(
        request_id=f"r{number}",
        group_id="",
        task=task,
        prompt_token_ids=(number,) * prompt_tokens,
        completion_token_ids=None,
        finish="unknown",
        temperature=None,
        sampling=Sampling(),
        max_tokens=4,
        stop=(),
        content_hash=f"hash of {number}",
        source="",
    )


TRACE = [
    *(make(n, "chat") for n in range(60)),
    *(make(n, "code") for n in range(60, 90)),
    *(make(n, "code", prompt_tokens=600) for n in range(90, 100)),
    make(100, "rare"),
]


def ids(requests: tuple[PreparedRequest, ...]) -> list[str]:
    return [request.request_id for request in requests]


def test_sample_is_proportional_with_at_least_one_of_each():
    got = sample_requests(TRACE, 20, seed=1)
    chosen = {(c.task, c.context_min): c.num_chosen for c in got.strata}
    assert chosen == {("chat", 0): 11, ("code", 0): 6, ("code", 512): 2, ("rare", 0): 1}
    assert (len(got.requests), got.num_left_out) == (20, 81)
    assert Counter(request.task for request in got.requests) == {"chat": 11, "code": 8, "rare": 1}


def test_sample_without_or_beyond_a_limit_is_the_whole_trace_in_order():
    for limit in (None, 101, 5000):
        assert ids(sample_requests(TRACE, limit, seed=0).requests) == ids(tuple(TRACE))


@settings(deadline=None, max_examples=50)
@given(st.permutations(range(len(TRACE))), st.integers(0, 3))
def test_sample_does_not_depend_on_row_order(order, seed):
    shuffled = [TRACE[index] for index in order]
    first = sample_requests(TRACE, 20, seed=seed).requests
    again = sample_requests(shuffled, 20, seed=seed).requests
    assert set(ids(first)) == set(ids(again))


def test_sample_changes_with_the_seed():
    draws = {tuple(ids(sample_requests(TRACE, 20, seed=seed).requests)) for seed in range(5)}
    assert len(draws) == 5, f"{len(draws)} different draws of 5 seeds"


def test_sample_draws_every_request_about_equally_often():
    """400 seeds, 20 of 60: each request has 133 ± 9.4 draws.

    The bound is 5 standard deviations: for 60 requests the false-alarm probability is about 3e-5.
    """
    trace = TRACE[:60]
    seen = Counter(
        name for seed in range(400) for name in ids(sample_requests(trace, 20, seed).requests)
    )
    worst = max(abs(seen[request.request_id] - 400 / 3) for request in trace)
    assert worst < 5 * 9.43, f"largest deviation {worst:.1f} draws"


def test_sample_spreads_exact_repeats():
    """50 repeats and 50 others, 40 drawn: a hash of the content alone would take all or none."""
    same = [replace(make(n), content_hash="same") for n in range(50)]
    trace = [*same, *(make(n) for n in range(50, 100))]
    drawn = ids(sample_requests(trace, 40, seed=0).requests)
    repeats = sum(int(name[1:]) < 50 for name in drawn)
    assert 8 <= repeats <= 32, f"{repeats} repeats of 40 (20 ± 3.2 expected)"


@pytest.mark.parametrize("limit", [0, -1])
def test_sample_of_no_requests_is_an_input_error(limit):
    with pytest.raises(TraceError, match="cannot draw"):
        sample_requests(TRACE, limit, seed=0)


def test_sample_of_an_empty_trace_is_empty():
    assert sample_requests([], 5, seed=0).requests == ()


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(st.tuples(st.text(max_size=2), st.just(0)), st.integers(1, 40), min_size=1),
    st.integers(1, 400),
)
def test_allocate_fills_the_limit_and_never_exceeds_a_stratum(sizes, limit):
    shares = allocate(sizes, limit)
    total = sum(sizes.values())
    assert sum(shares.values()) == min(limit, total), f"{shares} for {limit} of {sizes}"
    for stratum, share in shares.items():
        assert share <= sizes[stratum]
        if limit >= len(sizes):
            assert share >= 1
            exact = limit * sizes[stratum] / total
            assert share <= max(1, exact + 1), f"{share} where {exact:.2f} is due"


def test_allocate_with_fewer_places_than_strata_takes_the_largest():
    sizes = {("a", 0): 1, ("b", 0): 9, ("c", 0): 5}
    assert allocate(sizes, 2) == {("a", 0): 0, ("b", 0): 1, ("c", 0): 1}
