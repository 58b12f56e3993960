"""Temperature 0: speculative = plain = the library's greedy tokens, bit for bit in float32."""

import functools
from collections import Counter

import pytest
from greedy_sweep import CELLS, DRAFT_LENGTHS, broken_counts, sweep
from tiny import NAMES, N, damped_view, greedy_policy, prompts, tiny_view

from selfspec_cli.engine.decoder import Decoder, Job, decode_plain, decode_speculative
from selfspec_cli.engine.policies import GreedyPolicy

BUDGET = 64
SHORT_BUDGET = 20  # crosses every window here too; for families made like one of the long ones
LONG = ("llama", "gemma2", "gpt2", "gpt_neox_parallel")
PROMPTS = prompts(range(1, 25))  # one of each length; contains 1, 2, k and k+1 of every k
EPSILONS = (1.0, 0.3)  # the model itself, and with damped upper layers: more drafts are accepted
VARIANTS = [(name, epsilon) for name in NAMES for epsilon in EPSILONS]


def _view(name: str, epsilon: float):
    return tiny_view(name) if epsilon == 1.0 else damped_view(name, 3, epsilon)


@functools.cache
def _swept(name: str, epsilon: float):
    """All 48 cells of a model, a third of its damped twin's, over rotating prompts.

    Over the variants a cell meets eight prompts, and a prompt twelve cells or more.
    """
    at = VARIANTS.index((name, epsilon))
    third = slice(at // 2 % 3, None, 3)
    cells, texts = (CELLS, PROMPTS) if epsilon == 1.0 else (CELLS[third], PROMPTS[third])
    budget = BUDGET if name in LONG else SHORT_BUDGET
    return sweep(_view(name, epsilon), texts, budget=budget, offset=5 * at, cells=cells)


@pytest.mark.parametrize(("name", "epsilon"), VARIANTS)
def test_a06_speculative_plain_and_library_tokens_are_equal(name, epsilon):
    found = _swept(name, epsilon)
    assert found.runs == (48 if epsilon == 1.0 else 16)
    assert not found.wrong, f"{len(found.wrong)} of {found.runs} runs: {found.wrong[:3]}"


def test_rounds_with_none_some_and_all_drafts_accepted_all_occur():
    total = sum((_swept(*variant).outcomes for variant in VARIANTS), Counter())
    shares = {name: total[name] / total.total() for name in ("none", "some", "all")}
    assert min(shares.values()) >= 0.05, f"shares over {total.total()} rounds: {shares}"


def test_texts_vary_enough_to_tell_tokens_apart():
    """A model that repeats one token would pass whatever the cache held."""
    distinct = {}
    for name in NAMES:
        made = decode_plain(
            tiny_view(name), Job(prompt=PROMPTS[9], budget=BUDGET), greedy_policy(tiny_view(name))
        )
        distinct[name] = len(set(made.output))
    assert min(distinct.values()) >= 5, f"distinct tokens of {BUDGET}: {distinct}"


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a08_prompt_of_one_token(name):
    view = tiny_view(name)
    found = sweep(view, [(10,)], budget=32)
    assert not found.wrong, found.wrong[:3]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("k", DRAFT_LENGTHS)
def test_a08_prompts_about_the_draft_length(name, k):
    view = tiny_view(name)
    for length in {1, 2, max(k - 1, 1), k, k + 1}:
        job = Job(prompt=PROMPTS[length - 1], budget=32)
        plain = decode_plain(view, job, greedy_policy(view)).output
        exit_layer = 1 + (length + k) % N
        state, rounds = decode_speculative(view, job, greedy_policy(view), exit_layer, k)
        assert state.output == plain, f"L={exit_layer} k={k} prompt of {length}"
        assert not broken_counts(rounds, state.output)


@pytest.mark.parametrize("name", NAMES)
def test_a14_full_depth_draft_is_always_accepted(name):
    """40 tokens at k = 4: x_0, seven rounds of five, one of four. Fewer accepted = stale cache."""
    view = tiny_view(name)
    job = Job(prompt=PROMPTS[11], budget=40)
    _, rounds = decode_speculative(view, job, greedy_policy(view), N, 4)
    accepted = [(made.num_accepted, made.num_drafted, made.num_committed) for made in rounds]
    assert accepted == [(4, 4, 5)] * 7 + [(3, 3, 4)], f"(accepted, drafted, committed): {accepted}"


def test_a14_with_sampled_penalised_laws_at_full_depth():
    """The draft's law is processed as the target's is, so at L = N each draft equals it."""
    view = tiny_view("llama")
    job = Job(prompt=PROMPTS[11], budget=40)
    policy = greedy_policy(view, job.prompt, repetition_penalty=1.3, frequency_penalty=0.4)
    state, rounds = decode_speculative(view, job, policy, N, 4)
    assert [made.num_accepted for made in rounds] == [4] * 7 + [3]
    assert state.output == decode_plain(view, job, policy).output


class _StaleRollback(Decoder):
    """Twin: keeps `EXTRA` more (or fewer) positions than were committed after each round."""

    EXTRA = 0

    def _roll_back(self) -> None:
        super()._roll_back()
        for layer in range(self.view.num_layers):
            self.cache.lengths[layer] = [n + self.EXTRA for n in self.cache.lengths[layer]]


class OnePositionTooMany(_StaleRollback):
    EXTRA = 1


class OnePositionTooFew(_StaleRollback):
    EXTRA = -1


class NoBonusLaw(GreedyPolicy):
    """Twin: verification reads one law too few, so the last draft is never tested."""

    def settle(self, logits, output, drafted):
        return super().settle(logits[:-1], output, drafted[:-1])


def _decode(kind, view, job, policy, exit_layer, k):
    state = kind(view, job, policy, max_draft=k)
    state.prefill()
    rounds = []
    while state.finish is None:
        rounds.append(state.round(exit_layer, k))
    return state.output, rounds


@pytest.mark.parametrize("twin", [OnePositionTooMany, OnePositionTooFew])
@pytest.mark.parametrize("name", NAMES)
def test_rollback_off_by_one_is_caught(twin, name):
    view = damped_view(name, 3, 0.3)
    job = Job(prompt=PROMPTS[11], budget=48)
    plain = decode_plain(view, job, greedy_policy(view)).output
    same, _ = _decode(Decoder, view, job, greedy_policy(view), 3, 4)
    assert same == plain
    try:
        broken, _ = _decode(twin, view, job, greedy_policy(view), 3, 4)
    except ValueError:
        pass  # the cache itself saw that a slot would hold nothing
    else:
        assert broken != plain, "a cache off by one gave the right text: this test sees nothing"


def test_one_law_too_few_is_caught():
    view = tiny_view("llama")
    job = Job(prompt=PROMPTS[11], budget=40)
    policy = greedy_policy(view)
    _, rounds = _decode(Decoder, view, job, NoBonusLaw(policy.target), N, 4)
    assert len(rounds) > 8, "40 tokens took as few rounds as with a bonus law"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_cell_meets_every_prompt(name):
    found = sweep(tiny_view(name), PROMPTS, budget=BUDGET, prompts_per_cell=len(PROMPTS))
    assert found.runs == len(CELLS) * len(PROMPTS)
    assert not found.wrong, f"{len(found.wrong)} of {found.runs} runs: {found.wrong[:3]}"
