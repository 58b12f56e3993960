"""Batches are timed as far as a quarter of the free memory reaches, and no further."""

import pytest
from cost_helpers import SAMPLED, tiny_plan, tiny_view

from selfspec_cli.cost import memory
from selfspec_cli.cost.bandwidth import kv_bytes, position_bytes
from selfspec_cli.cost.memory import fit_memory, free_bytes, left_out_notices
from selfspec_cli.cost.plan import with_default_rounds
from selfspec_cli.errors import ConfigError

TOKEN = 6 * 2 * 2 * 16 * 4  # layers, keys and values, heads, width, float32
CONTEXTS = (16, 32, 64, 128)
SLACK = 5  # x_0, three drafts, the next token


@pytest.fixture
def view():  # type: ignore[no-untyped-def]
    return tiny_view()


def fitted(view, monkeypatch, tokens, batch_sizes=(1, 4, 8)):  # type: ignore[no-untyped-def]
    """The plan where each of two batch sizes may hold so many tokens."""
    monkeypatch.setattr(memory, "free_bytes", lambda _: 4 * 2 * tokens * TOKEN)
    plan = tiny_plan(contexts=CONTEXTS, batch_sizes=batch_sizes, rounds=())
    return with_default_rounds(fit_memory(view, plan))


def test_bytes_of_a_token_are_those_of_the_cache(view) -> None:  # type: ignore[no-untyped-def]
    assert sum(position_bytes(view)) == TOKEN
    assert kv_bytes(view, 10) == 10 * TOKEN


def test_what_does_not_fit_is_left_out_and_named(view, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    plan = fitted(view, monkeypatch, 8 * (32 + SLACK))
    assert plan.max_batch_tokens == 8 * (32 + SLACK)
    assert plan.contexts_at(1) == CONTEXTS
    assert plan.contexts_at(4) == (16, 32, 64)
    assert plan.contexts_at(8) == (16, 32)
    told = left_out_notices(plan)
    assert len(told) == 2, told
    assert told[0].startswith("batch size 4 is not timed at contexts of 128 tokens")
    assert told[1].startswith("batch size 8 is not timed at contexts of 64, 128 tokens")
    assert {one.context for one in plan.rounds if one.batch == 8} == {16, 32}
    assert plan.batch_tokens() == 4 * (64 + SLACK) + 8 * (32 + SLACK)


def test_a_batch_without_any_context_is_not_timed(view, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    plan = fitted(view, monkeypatch, 7 * (16 + SLACK))
    assert plan.contexts_at(8) == ()
    assert {one.batch for one in plan.rounds} == {1, 4}
    assert "batch size 8 is not timed at contexts of 16, 32, 64, 128" in left_out_notices(plan)[1]


def test_a_base_that_does_not_fit_is_an_error(view, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match="4 rows of 16 tokens exceed a quarter"):
        fitted(view, monkeypatch, 3 * (16 + SLACK), (4, 8))


def test_one_row_is_never_limited(view, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(memory, "free_bytes", lambda _: 0)
    plan = tiny_plan(SAMPLED)
    assert fit_memory(view, plan) is plan
    assert left_out_notices(plan) == ()


def test_free_memory_is_asked_of_the_machine(view) -> None:  # type: ignore[no-untyped-def]
    assert 1 << 20 < free_bytes(view.device) < 1 << 50
