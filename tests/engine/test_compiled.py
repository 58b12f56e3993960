"""The compiled engine: same states, same tokens, same rounds as the library's own layers.

Greedy tokens are compared bit for bit in float32; near-ties of these models' logits are far wider
than rounding, so a difference is an error.
"""

import pytest
import torch
from batch_rounds import alone, together
from compiled_views import ENGINES, fast_view, serves_rows
from greedy_sweep import broken_counts, outcome
from layer_calls import CallCounter
from test_batch_rounds import RAGGED, endings, greedy, mixed
from tiny import N, damped_view, greedy_policy, prompts

from selfspec_cli.engine import compiled
from selfspec_cli.engine.decoder import Job, decode_plain, decode_speculative
from selfspec_cli.engine.kv_cache import KVCache
from selfspec_cli.engine.layer_programs import LayerPrograms

PROMPTS = prompts(range(1, 25))
CELLS = [(1, 1), (1, 4), (2, 8), (3, 2), (3, 5), (5, 3), (6, 4)]
BUDGET = 40  # crosses every window
TOLERANCE = 2e-5  # of the largest state of a depth; rounding in another order


def states(view, pieces, rows=1) -> list[torch.Tensor]:
    """States after each layer, of pieces [rows, m] of token ids one after the other."""
    cache = view.new_cache(rows=rows, capacity=sum(p.shape[1] for p in pieces))
    found = [[] for _ in range(N)]
    with torch.inference_mode():
        for piece in pieces:
            hidden = view.embed(piece, cache)
            view.run(hidden, cache, 0, N, lambda depth, h: found[depth - 1].append(h.clone()))
    return [torch.cat(parts, dim=1) for parts in found]


def tokens(rows: int, n: int, seed: int = 5) -> torch.Tensor:
    return torch.randint(3, 260, (rows, n), generator=torch.Generator().manual_seed(seed))


def worst(got, want) -> float:
    """Largest difference at any depth, in units of that depth's largest state."""
    return max(float((g - w).abs().max() / w.abs().max()) for g, w in zip(got, want, strict=True))


@pytest.mark.parametrize(("name", "engine"), ENGINES)
@pytest.mark.parametrize("rows", [1, 3])
def test_states_at_every_depth(name, engine, rows):
    """Passes of every length, from an empty cache up to one that is full."""
    ids = tokens(rows, 47)
    pieces = ids.split([1, 2, 1, 5, 9, 1, 1, 3, 2, 17, 4, 1], dim=1)
    got, want = (
        states(view, pieces, rows) for view in (fast_view(name, engine), damped_view(name))
    )
    assert worst(got, want) < TOLERANCE, f"differ by {worst(got, want):.3g} of the largest"


@pytest.mark.parametrize(("name", "engine"), ENGINES)
def test_plain_greedy_tokens_are_those_of_the_eager_engine(name, engine):
    for prompt in PROMPTS[::5]:
        job = Job(prompt=prompt, budget=BUDGET)
        got, want = (
            decode_plain(view, job, greedy_policy(view)).output
            for view in (fast_view(name, engine), damped_view(name))
        )
        assert got == want, f"prompt of {len(prompt)}: {got} != {want}"


@pytest.mark.parametrize(("name", "engine"), ENGINES)
def test_speculative_tokens_are_those_of_plain_decoding(name, engine):
    view, ends = fast_view(name, engine), set()
    for at, cell in enumerate(CELLS):
        job = Job(prompt=PROMPTS[(7 * at + 1) % 24], budget=BUDGET)
        plain = decode_plain(damped_view(name), job, greedy_policy(view)).output
        state, rounds = decode_speculative(view, job, greedy_policy(view), *cell)
        assert state.output == plain, f"{cell}: {state.output} != {plain}"
        assert not broken_counts(rounds, state.output)
        ends.update(map(outcome, rounds))
    assert ends == {"none", "some", "all"}, f"rounds accept only {ends}"


@pytest.mark.parametrize(("name", "engine"), ENGINES)
@pytest.mark.parametrize("cell", [None, (3, 8)])
def test_ragged_rows_are_each_as_if_alone(name, engine, cell):
    view = fast_view(name, engine)
    apart = alone(damped_view(name), RAGGED, greedy(view, RAGGED), cell)
    wrong = together(view, RAGGED, greedy(view, RAGGED), cell).differences(apart)
    assert not wrong, f"{cell}: {wrong}"


@pytest.mark.parametrize(("name", "engine"), ENGINES)
@pytest.mark.parametrize("cell", [None, (1, 5)])
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_leave_and_are_refilled_leave_the_others_alone(name, engine, cell, rows):
    """Also prompts of one token into a cache that others have written to."""
    view = fast_view(name, engine)
    jobs = endings(damped_view(name))
    apart = alone(damped_view(name), jobs, greedy(view, jobs), cell)
    wrong = together(view, jobs, greedy(view, jobs), cell, rows=rows).differences(apart)
    assert not wrong, f"{cell} on {rows} rows: {wrong}"


@pytest.mark.parametrize(("name", "engine"), ENGINES)
def test_sampled_rounds_are_those_of_the_eager_engine(name, engine):
    """Same uniforms, so same drafts, coins and residual draws, at T from 0 to 1 side by side.

    No false alarms: a coin within rounding of its threshold would be one; the seeds are fixed.
    """
    view, cell = fast_view(name, engine), (3, 4)
    jobs = [Job(prompt=PROMPTS[at], budget=20) for at in (4, 19, 0, 10, 4, 19)]
    policies = mixed(view, jobs, 4)
    apart = alone(damped_view(name), jobs, policies, cell)
    for label, made in (
        ("alone", alone(view, jobs, policies, cell)),
        ("on four rows", together(view, jobs, policies, cell, rows=4)),
    ):
        assert not made.differences(apart), f"{label}: {made.differences(apart)}"


@pytest.mark.parametrize(("name", "engine"), ENGINES)
def test_long_passes_run_the_librarys_layers_over_the_same_cache(name, engine, monkeypatch):
    """Beyond MAX_POSITIONS: here drafts run programs and verification does not."""
    view, job = fast_view(name, engine), Job(prompt=PROMPTS[12], budget=BUDGET)
    monkeypatch.setattr(compiled, "MAX_POSITIONS", 4)  # of this decode, not of what others share
    plain = decode_plain(damped_view(name), job, greedy_policy(view)).output
    with CallCounter(view) as counter:
        state, rounds = decode_speculative(view, job, greedy_policy(view), 3, 8)
        calls = counter.take()
    assert state.output == plain
    long = [made.num_drafted + 1 for made in rounds if made.num_drafted >= 4]
    assert calls == {i: [13] if i < 3 else [13, *long] for i in range(N)}


@pytest.mark.parametrize(("name", "engine"), ENGINES)
def test_passes_run_programs_and_none_is_made_after_loading(name, engine, monkeypatch):
    """Else these tests compare the library with itself, and a compilation falls into a timing.

    Rows that no program was made for, as fewer were announced, run the library's layers.
    """
    view = fast_view(name, engine)
    monkeypatch.setattr(LayerPrograms, "_compile", None)
    job = Job(prompt=PROMPTS[12], budget=BUDGET)
    with CallCounter(view) as counter:
        decode_speculative(view, job, greedy_policy(view), 2, 3)
        assert counter.take() == {i: [13] for i in range(N)}, "only the prompt's first pass"
        together(view, RAGGED, greedy(view, RAGGED), (2, 3))
        kinds = set(counter.rows)
    assert (max(kinds) == 1) == serves_rows(name, engine), f"the library ran passes of {kinds} rows"


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("m", [1, 3])
def test_a_full_cache_raises_as_the_eager_engines_does(name, m):
    view = fast_view(name, "traced")
    cache = view.new_cache(capacity=7)
    with torch.inference_mode():
        view.run(view.embed(tokens(1, 8 - m), cache), cache, 0, N)
        before = [list(own) for own in cache.lengths]
        with pytest.raises(IndexError, match=r"KV cache of 7 positions asked to hold 8"):
            view.run(view.embed(tokens(1, m), cache), cache, 0, N)
    assert cache.lengths == before


def test_what_lies_beyond_a_pointer_is_not_seen():
    """A cache full of other text gives the same states after a rollback as a fresh one.

    Up to rounding: the two prompts are passes of other lengths.
    """
    view, ids = fast_view("llama", "traced"), tokens(1, 30)
    found = []
    for longer in (30, 12):
        cache = view.new_cache(capacity=30)
        with torch.inference_mode():
            view.run(view.embed(ids[:, :longer], cache), cache, 0, N)
            cache.rollback([11])
            found.append(view.run(view.embed(ids[:, 11:15], cache), cache, 0, N))
    scale = float(found[1].abs().max())
    assert float((found[0] - found[1]).abs().max()) <= 1e-4 * scale


class PointersBehind(KVCache):
    """Twin: keeps the pointers of the pass before."""

    def rollback(self, lengths):
        super().rollback([n - 1 for n in lengths])


def test_a_stale_pointer_changes_the_text(monkeypatch):
    """The comparisons above would see a cache that is a position off."""
    view, job = fast_view("llama", "traced"), Job(prompt=PROMPTS[12], budget=BUDGET)
    plain = decode_plain(view, job, greedy_policy(view)).output
    monkeypatch.setattr(view, "new_cache", lambda **sizes: PointersBehind(N, **sizes))
    try:
        broken, _ = decode_speculative(view, job, greedy_policy(view), 3, 4)
    except (RuntimeError, ValueError):
        return  # the decoder's own check saw it
    assert broken.output != plain
