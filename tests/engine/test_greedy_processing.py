"""Penalties, minimum length, bias and masks reach the draft, the verification and the baseline."""

import pytest
import torch
from tiny import NAMES, N, V, damped_view, greedy_policy, library_greedy, tiny_view

from selfspec_cli.engine.decoder import Job, decode_plain, decode_speculative
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.policies import GreedyPolicy
from selfspec_cli.records import Sampling

BUDGET = 24
PROMPT = (104, 101, 108, 108, 111, 32) * 3
CELLS = [(1, 8), (2, 3), (3, 1), (3, 8), (4, 4), (5, 2), (6, 8)]


def _check(view, job, policy, expected):
    plain = decode_plain(view, job, policy).output
    assert plain == expected, f"plain {plain} != expected {expected}"
    for exit_layer, k in CELLS:
        state, rounds = decode_speculative(view, job, policy, exit_layer, k)
        assert state.output == plain, f"L={exit_layer} k={k}: {state.output} != {plain}"
        if exit_layer == N:
            short = [made for made in rounds[:-1] if made.num_accepted < made.num_drafted]
            assert not short, f"draft and target laws differ at full depth: {short}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_a34_repetition_penalty_is_the_librarys(name, penalty):
    view = tiny_view(name)
    expected = library_greedy(view.model, PROMPT, BUDGET, repetition_penalty=penalty)
    policy = greedy_policy(view, PROMPT, repetition_penalty=penalty)
    _check(view, Job(prompt=PROMPT, budget=BUDGET), policy, expected)


@pytest.mark.parametrize("name", NAMES)
def test_a34_penalties_of_output_tokens(name):
    view = damped_view(name)
    policy = greedy_policy(view, PROMPT, presence_penalty=0.6, frequency_penalty=0.3)
    job = Job(prompt=PROMPT, budget=BUDGET)
    free = decode_plain(view, job, greedy_policy(view)).output
    plain = decode_plain(view, job, policy).output
    assert len(set(plain)) > len(set(free)), "the penalties changed nothing"
    _check(view, job, policy, plain)


@pytest.mark.parametrize("name", NAMES)
def test_a36_minimum_length_holds_back_eos(name):
    view = tiny_view(name)
    eos = library_greedy(view.model, PROMPT, 1)[0]
    job = Job(prompt=PROMPT, budget=BUDGET, eos_ids=frozenset({eos}))
    processor = Processor(
        Sampling(temperature=0.0, min_tokens=8), view.vocab_size, PROMPT, eos_ids=[eos]
    )
    expected = library_greedy(view.model, PROMPT, BUDGET, eos_token_id=eos, min_new_tokens=8)
    assert eos not in expected[:8]
    _check(view, job, GreedyPolicy(processor), expected)


@pytest.mark.parametrize("name", NAMES)
def test_a36_logit_bias_forbids_a_token(name):
    view = tiny_view(name)
    free = library_greedy(view.model, PROMPT, BUDGET)
    banned = max(set(free), key=free.count)
    expected = library_greedy(view.model, PROMPT, BUDGET, bad_words_ids=[[banned]])
    policy = greedy_policy(view, PROMPT, logit_bias=((banned, -100.0),))
    assert banned not in expected
    _check(view, Job(prompt=PROMPT, budget=BUDGET), policy, expected)


@pytest.mark.parametrize("name", NAMES)
def test_a43_padding_rows_of_the_vocabulary_are_ordinary_tokens(name):
    """Row 261 of 264 has no token; draft, verification and baseline must treat it alike."""
    view = tiny_view(name)
    policy = greedy_policy(view, PROMPT, logit_bias=((261, 100.0),))
    _check(view, Job(prompt=PROMPT, budget=BUDGET), policy, [261] * BUDGET)


def test_token_mask_holds_in_every_round():
    """Even ids at even positions, odd ones at odd positions, whatever was drafted."""

    def parity(output):
        return torch.arange(V) % 2 == len(output) % 2

    view = damped_view("qwen3")
    target = Processor(Sampling(temperature=0.0), V, PROMPT, token_mask=parity)
    job = Job(prompt=PROMPT, budget=BUDGET)
    plain = decode_plain(view, job, GreedyPolicy(target)).output
    assert [token % 2 for token in plain] == [0, 1] * (BUDGET // 2)
    _check(view, job, GreedyPolicy(target), plain)


def test_draft_that_ignores_the_penalties_is_still_lossless():
    view = damped_view("llama")
    target = greedy_policy(view, PROMPT, repetition_penalty=1.5).target
    job = Job(prompt=PROMPT, budget=BUDGET)
    plain = decode_plain(view, job, GreedyPolicy(target)).output
    bare = GreedyPolicy(target, draft=Processor(Sampling(temperature=0.0), V))
    for exit_layer, k in CELLS:
        assert decode_speculative(view, job, bare, exit_layer, k)[0].output == plain
