"""What a round costs and leaves behind: layer calls, cache pointers, memory, counts."""

import copy

import pytest
import torch
from layer_calls import CallCounter
from tiny import NAMES, N, damped_view, greedy_policy, prompts, tiny_view, view_of

from selfspec_cli.engine import decoder as decoder_module
from selfspec_cli.engine.decoder import Decoder, Job, decode_plain, decode_speculative
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.policies import SampledPolicy, make_policy
from selfspec_cli.records import Sampling

PROMPT = prompts(range(12, 13))[0]


class RunsDraftLayersAgain(Decoder):
    """Twin: verifies with a whole pass over the drafted tokens, as two separate models would."""

    def round(self, exit_layer, draft_length):
        made = super().round(exit_layer, draft_length)
        ids = torch.tensor([self.output[-2:]])
        scratch = self.view.new_cache(capacity=2)
        self.view.run(self.view.embed(ids, scratch), scratch, 0, exit_layer)
        return made


def _rounds_as_priced(kind, view, exit_layer, k) -> list[str]:
    """Rounds whose calls are not: [0, L) k'+1 times with one position, [L, N) once with k'+1."""
    job = Job(prompt=PROMPT, budget=32)
    state = kind(view, job, greedy_policy(view), max_draft=k)
    wrong = []
    with CallCounter(view) as counter:
        state.prefill()
        assert counter.take() == {layer: [len(PROMPT)] for layer in range(N)}
        while state.finish is None:
            made = state.round(exit_layer, k)
            drafted = made.num_drafted
            early, late = [1] * (drafted + 1), [drafted + 1]
            expected = {layer: early if layer < exit_layer else late for layer in range(N)}
            if (calls := counter.take()) != expected:
                wrong.append(f"k' = {drafted}: {calls}")
    return wrong


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("exit_layer", "k"), [(1, 3), (3, 1), (3, 8), (5, 4), (6, 4)])
def test_round_calls_each_layer_as_often_as_it_is_priced(name, exit_layer, k):
    wrong = _rounds_as_priced(Decoder, damped_view(name), exit_layer, k)
    assert not wrong, f"{name}, L={exit_layer}, k={k}: {wrong[:2]}"


def test_a_decoder_that_runs_draft_layers_again_is_caught():
    assert _rounds_as_priced(RunsDraftLayersAgain, damped_view("llama"), 3, 4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("exit_layer", "k"), [(2, 8), (3, 4), (6, 3)])
def test_one_cache_whose_pointers_all_stand_before_the_last_token(name, exit_layer, k):
    view = damped_view(name)
    state = Decoder(view, Job(prompt=PROMPT, budget=48), greedy_policy(view), max_draft=k)
    state.prefill()
    at = [t.data_ptr() for t in (*state.cache.keys, *state.cache.values)]
    size = state.cache.allocated_bytes()
    while state.finish is None:
        before = len(PROMPT) + len(state.output) - 1
        made = state.round(exit_layer, k)
        held = len(PROMPT) + len(state.output) - 1
        assert made.context == before
        assert state.cache.lengths == [[held]] * N, f"{state.cache.lengths} != {held}"
        assert held - before == made.num_committed
    assert [t.data_ptr() for t in (*state.cache.keys, *state.cache.values)] == at, "copied"
    assert state.cache.allocated_bytes() == size


@pytest.mark.parametrize("name", NAMES)
def test_cache_after_rounds_holds_what_plain_decoding_holds(name):
    view = damped_view(name)
    job = Job(prompt=PROMPT, budget=40)
    plain = decode_plain(view, job, greedy_policy(view))
    state, _ = decode_speculative(view, job, greedy_policy(view), 3, 5)
    held = len(PROMPT) + 39
    for layer in range(N):
        gap = state.cache.keys[layer][:, :, :held] - plain.cache.keys[layer][:, :, :held]
        assert float(gap.abs().max()) < 1e-3, f"layer {layer}: keys {float(gap.abs().max()):.3g}"


def test_rejection_of_all_drafts_right_after_a_prompt_of_one_token():
    """A10: the smallest cache there is, rolled back to one position."""
    view = tiny_view("llama")
    state = Decoder(view, Job(prompt=(10,), budget=20), greedy_policy(view), max_draft=8)
    state.prefill()
    made = state.round(1, 8)
    assert (made.num_accepted, made.num_committed, made.context) == (0, 1, 1)
    assert state.cache.lengths == [[2]] * N


def test_exhausted_budget_makes_the_round_a_plain_step():
    view = tiny_view("llama")
    state = Decoder(view, Job(prompt=PROMPT, budget=2), greedy_policy(view), max_draft=4)
    state.prefill()
    with CallCounter(view) as counter:
        made = state.round(3, 4)
        assert counter.take() == {layer: [1] for layer in range(N)}
    assert (made.num_drafted, made.num_tested, made.num_accepted) == (0, 0, 0)
    assert made.num_committed == 1


def test_rewind_repeats_a_round_from_the_same_state():
    view = damped_view("qwen3")
    state = Decoder(view, Job(prompt=PROMPT, budget=40), greedy_policy(view), max_draft=4)
    state.prefill()
    state.round(3, 4)
    held = len(state.output)
    first = state.round(3, 4)
    text = list(state.output)
    state.rewind(held)
    assert len(state.output) == held
    assert state.cache.lengths == [[len(PROMPT) + held - 1]] * N
    assert state.round(3, 4) == first
    assert state.output == text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [1, 5, 11, 12])
def test_prefill_in_chunks_is_prefill_in_one_piece(name, chunk, monkeypatch):
    view = tiny_view(name)
    job = Job(prompt=prompts(range(34, 35))[0], budget=16)
    whole = decode_plain(view, job, greedy_policy(view)).output
    monkeypatch.setattr(decoder_module, "PREFILL_CHUNK", chunk)
    assert decode_plain(view, job, greedy_policy(view)).output == whole


def _sampled(view, seed: int, *, k: int = 8, temperature: float = 0.7) -> SampledPolicy:
    target = Processor(Sampling(temperature=temperature), view.vocab_size, PROMPT)
    return make_policy(target, seed, max_draft=k)


def test_same_seed_same_text_and_another_seed_another():
    view = tiny_view("llama")
    job = Job(prompt=PROMPT, budget=24)
    texts = [
        decode_speculative(view, job, _sampled(view, seed), 3, 4)[0].output for seed in (5, 5, 6)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_request_draws_from_its_own_generator_only():
    view = tiny_view("llama")
    job = Job(prompt=PROMPT, budget=8)
    before = torch.get_rng_state()
    decode_speculative(view, job, _sampled(view, 5), 3, 4)
    assert torch.equal(torch.get_rng_state(), before), "the global generator was used"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_a32_full_depth_draft_at_any_temperature_is_accepted(name, temperature):
    """p and q differ by rounding only, so at most a rounding draw is rejected; no NaN anywhere."""
    view = tiny_view(name)
    job = Job(prompt=PROMPT, budget=61)
    state, rounds = decode_speculative(view, job, _sampled(view, 1, temperature=temperature), N, 4)
    rejected = sum(made.num_accepted < made.num_tested for made in rounds)
    assert rejected == 0, f"{rejected} of {len(rounds)} rounds rejected a draft equal to its target"
    assert len(rounds) == 12
    assert all(0 <= token < view.vocab_size for token in state.output)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_low_precision_decodes(dtype, temperature):
    view = view_of(copy.deepcopy(tiny_view("gemma2").model).to(dtype))
    target = Processor(Sampling(temperature=temperature), view.vocab_size, PROMPT)
    policy = make_policy(target, 3, max_draft=4)
    state, rounds = decode_speculative(view, Job(prompt=PROMPT, budget=24), policy, 3, 4)
    assert len(state.output) == 24
    assert state.cache.keys[0].dtype == dtype
    assert sum(made.num_committed for made in rounds) == 23


def _run_on(state: Decoder) -> None:
    while state.finish is None:
        state.round(3, 4)


def test_a26_model_is_as_it_was_after_an_exception():
    view = damped_view("llama")
    state = Decoder(view, Job(prompt=PROMPT, budget=24), greedy_policy(view), max_draft=4)
    state.prefill()
    weights = {key: t.clone() for key, t in view.model.state_dict().items()}
    state.job = Job(prompt=PROMPT, budget=200)  # a budget the cache was not made for
    with pytest.raises(IndexError, match="KV cache of 36 positions"):
        _run_on(state)
    assert view.model.config.num_hidden_layers == N
    assert all(torch.equal(t, weights[key]) for key, t in view.model.state_dict().items())
    again = decode_plain(view, Job(prompt=PROMPT, budget=24), greedy_policy(view)).output
    assert len(again) == 24
