"""Plans that cannot be measured are refused before a model works; default rounds are spread."""

import pytest
from cost_helpers import GREEDY, ROUNDS, SAMPLED, tiny_plan

from selfspec_cli.cost.plan import (
    BASE_ROUNDS,
    BATCH_ROUNDS,
    WholeRound,
    default_rounds,
    ends_and_middle,
    with_default_rounds,
)
from selfspec_cli.errors import ConfigError
from selfspec_cli.records import Sampling


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"contexts": ()}, "contexts"),
        ({"contexts": (64, 16)}, "contexts"),
        ({"contexts": (0, 16)}, "contexts"),
        ({"draft_lengths": (0, 1, 3)}, "draft lengths"),
        ({"draft_lengths": (3, 3)}, "draft lengths"),
        ({"exit_layers": ()}, "exit layers"),
        ({"laws": ()}, "law"),
        ({"laws": (SAMPLED, Sampling(temperature=1.0))}, "sampled"),
        ({"blocks": 9}, "9 blocks"),
        ({"warmup": 0}, "0 to warm up"),
        ({"rounds": (WholeRound(exit_layer=2, draft_length=2, context=16),)}, "draft_length=2"),
        ({"rounds": (WholeRound(exit_layer=2, draft_length=1, context=20),)}, "context=20"),
        ({"batch_sizes": ()}, "batch_sizes"),
        ({"batch_sizes": (4, 1)}, "batch_sizes"),
        ({"batch_sizes": (0, 4)}, "batch_sizes"),
        (
            {"rounds": (WholeRound(exit_layer=2, draft_length=1, context=16, batch=4),)},
            "batch sizes",
        ),
        ({"rounds": (WholeRound(exit_layer=0, draft_length=1, context=16),)}, "exit_layer=0"),
    ],
)
def test_a_plan_that_cannot_be_measured_is_refused(changes: dict, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        tiny_plan(**changes)


def test_contexts_and_exit_layers_must_fit_the_model() -> None:
    plan = tiny_plan(SAMPLED, GREEDY)
    plan.check(6, 69)  # 64 tokens, x_0, 3 drafts, the next token
    with pytest.raises(ConfigError, match="exceed the model's 68 positions") as caught:
        plan.check(6, 68)
    assert "at most 63" in str(caught.value)
    with pytest.raises(ConfigError, match=r"exit layer 5 is outside 1\.\.4"):
        plan.check(4, None)


def test_positions_are_one_and_each_k_plus_one() -> None:
    assert tiny_plan().positions == (1, 2, 4)


def test_default_rounds_cover_every_axis() -> None:
    layers, lengths, contexts = range(9, 25), range(1, 9), (128, 512, 1024)
    rounds = default_rounds(layers, lengths, contexts)
    assert len(set(rounds)) == 12
    assert rounds == default_rounds(layers, lengths, contexts), "must not change between runs"
    for name, values, want in (
        ("exit_layer", layers, 8),
        ("draft_length", lengths, 5),
        ("context", contexts, 3),
    ):
        found = sorted({getattr(one, name) for one in rounds})
        assert len(found) >= want, f"{name} takes only {found}"
        third = (values[-1] - values[0]) / 3
        assert found[0] <= values[0] + third, f"{name} starts at {found[0]}"
        assert found[-1] >= values[-1] - third, f"{name} ends at {found[-1]}"


def test_default_rounds_of_a_small_grid_are_all_of_it() -> None:
    assert len(default_rounds((2, 3), (1, 2), (16,))) == 4
    assert len(default_rounds((2, 3), (1, 2), (16,), count=3)) == 3


def test_rounds_are_values() -> None:
    assert sorted(ROUNDS)[0] == WholeRound(exit_layer=2, draft_length=1, context=16)


def test_several_rows_are_timed_at_fewer_contexts_and_positions() -> None:
    plan = tiny_plan(
        contexts=(16, 32, 64, 128),
        draft_lengths=tuple(range(1, 9)),
        batch_sizes=(1, 4),
        rounds=(),
    )
    assert plan.contexts_at(1) == (16, 32, 64, 128)
    assert plan.contexts_at(4) == (16, 64, 128), "the ends decide what can be priced"
    assert plan.positions_at(1) == tuple(range(1, 10))
    assert plan.positions_at(4) == (1, 2, 3, 5, 9)
    assert tiny_plan(draft_lengths=(3, 6), rounds=()).positions_at(8) == (1, 4, 7)


def test_most_rounds_are_timed_at_the_base() -> None:
    layers, lengths = tuple(range(1, 6)), tuple(range(1, 9))
    for sizes in ((1, 4, 8), (4, 8)):
        plan = tiny_plan(exit_layers=layers, draft_lengths=lengths, batch_sizes=sizes, rounds=())
        counts = [
            sum(one.batch == batch for one in with_default_rounds(plan).rounds) for batch in sizes
        ]
        assert counts == [BASE_ROUNDS, *[BATCH_ROUNDS] * (len(sizes) - 1)], counts


@pytest.mark.parametrize(
    ("values", "want"), [((), ()), ((3,), (3,)), ((1, 2), (1, 2)), ((1, 2, 3, 4, 5), (1, 3, 5))]
)
def test_ends_and_middle(values: tuple, want: tuple) -> None:
    assert ends_and_middle(values) == want
