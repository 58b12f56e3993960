import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec_cli.buckets import BucketKey, bucket_of, context_band, context_label

EDGES = (0, 512, 2048, 8192)


@pytest.mark.parametrize(
    ("tokens", "band"),
    [
        (0, (0, 512)),
        (1, (0, 512)),
        (511, (0, 512)),
        (512, (512, 2048)),
        (2047, (512, 2048)),
        (8191, (2048, 8192)),
        (8192, (8192, None)),
        (10**9, (8192, None)),
    ],
)
def test_band_holds_its_lower_edge_and_not_its_upper(tokens, band):
    assert context_band(tokens, EDGES) == band, f"{tokens} tokens"


@given(
    tokens=st.integers(0, 10**7),
    edges=st.sets(st.integers(1, 10**6), max_size=8).map(lambda edges: (0, *sorted(edges))),
)
def test_every_prompt_falls_into_the_one_band_that_holds_it(tokens, edges):
    bands = list(zip(edges, (*edges[1:], None), strict=True))
    holding = [(low, high) for low, high in bands if low <= tokens and (not high or tokens < high)]
    assert [context_band(tokens, edges)] == holding, f"{tokens} tokens, edges {edges}"


def test_prompt_below_the_first_edge_is_an_error():
    with pytest.raises(ValueError, match=r"-1 tokens .* \(0, 512"):
        context_band(-1, EDGES)


def test_label_says_both_ends_included():
    assert context_label(512, 2048) == "512-2047 tokens"
    assert context_label(8192, None) == "8192+ tokens"


def test_label_shows_control_characters_and_keeps_other_scripts():
    key = bucket_of(task="résumé\x1b[31m 中文\n", prompt_tokens=3, temperature=0.7, edges=EDGES)
    assert key.label == "résumé\\x1b[31m 中文\\n, 0-511 tokens, T=0.7"
    assert key.task == "résumé\x1b[31m 中文\n", "the key itself must keep the exact label"


def test_buckets_sort_by_task_context_and_temperature_with_the_open_band_last():
    keys = [
        BucketKey(task=task, context_min=low, context_max=high, temperature=temperature)
        for task in ("chat", "code")
        for low, high in ((0, 512), (512, 2048), (512, None))
        for temperature in (0.0, 0.7)
    ]
    assert sorted([*keys[5:], *keys[:5]]) == keys


def test_labels_that_differ_only_in_case_or_length_stay_apart():
    labels = ["A", "a", "../../escape", "a/b", "con", ".", "NUL", "x" * 300, "x" * 299]
    keys = {bucket_of(task=task, prompt_tokens=1, temperature=0.0, edges=EDGES) for task in labels}
    assert len(keys) == len(labels), f"{len(keys)} buckets for {len(labels)} labels"
