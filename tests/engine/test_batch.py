"""Rows decoded side by side are each as if alone; nothing is padded."""

import pytest
import torch
from tiny import NAMES, N, greedy_policy, prompts, tiny_view

from selfspec_cli.engine import batch as batch_module
from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.decoder import Job, decode_plain
from selfspec_cli.engine.kv_cache import KVCache
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.policies import make_policy
from selfspec_cli.errors import ModelError
from selfspec_cli.records import Sampling

SHORT, LONG, ONE = (prompts(range(n, n + 1))[0] for n in (5, 20, 1))


def _together(view, jobs, policies=None) -> BatchDecoder:
    batch = BatchDecoder(view, jobs, policies or [greedy_policy(view, job.prompt) for job in jobs])
    batch.prefill()
    while batch.live:
        batch.step()
    return batch


@pytest.mark.parametrize("name", NAMES)
def test_a38_rows_of_different_lengths_are_each_as_if_alone(name):
    view = tiny_view(name)
    jobs = [Job(prompt=p, budget=n) for p, n in ((SHORT, 40), (LONG, 24), (ONE, 33))]
    alone = [decode_plain(view, job, greedy_policy(view)).output for job in jobs]
    batch = _together(view, jobs)
    assert batch.outputs == alone
    assert batch.finishes == ["length"] * 3


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_a40_rows_that_end_early_leave_the_others_alone(name):
    view = tiny_view(name)
    free = decode_plain(view, Job(prompt=SHORT, budget=12), greedy_policy(view)).output
    jobs = [
        Job(prompt=SHORT, budget=30, eos_ids=frozenset({free[3]})),
        Job(prompt=LONG, budget=30),
        Job(prompt=SHORT, budget=1),
        Job(prompt=LONG, budget=30, stopped=lambda output: len(output) == 7),
    ]
    alone = [decode_plain(view, job, greedy_policy(view)) for job in jobs]
    batch = _together(view, jobs)
    assert batch.outputs == [state.output for state in alone]
    assert (
        batch.finishes == [state.finish for state in alone] == ["eos", "length", "length", "stop"]
    )


def test_sampled_rows_draw_from_their_own_generators():
    """Same seeds, same texts, whatever else is in the batch."""
    view = tiny_view("llama")
    jobs = [Job(prompt=p, budget=20) for p in (SHORT, LONG)]

    def policies():
        target = Processor(Sampling(temperature=0.8), view.vocab_size)
        return [make_policy(target, seed) for seed in (1, 2)]

    alone = [
        decode_plain(view, job, policy).output for job, policy in zip(jobs, policies(), strict=True)
    ]
    assert _together(view, jobs, policies()).outputs == alone


def test_penalties_count_each_rows_own_tokens():
    view = tiny_view("qwen3")
    jobs = [Job(prompt=p, budget=20) for p in (SHORT, LONG)]
    policies = [greedy_policy(view, job.prompt, repetition_penalty=1.4) for job in jobs]
    alone = [decode_plain(view, job, p).output for job, p in zip(jobs, policies, strict=True)]
    assert _together(view, jobs, policies).outputs == alone


def test_taps_see_the_states_that_chose_each_token():
    """Head of the last depth's state = the committed greedy token, for every row and step."""
    view = tiny_view("llama")
    jobs = [Job(prompt=p, budget=6) for p in (SHORT, LONG)]
    batch = BatchDecoder(view, jobs, [greedy_policy(view) for _ in jobs])
    seen: dict[int, list[int]] = {0: [], 1: []}

    def note(row, state):
        with torch.inference_mode():
            seen[row].append(int(view.head(state.reshape(1, -1)).argmax()))

    batch.prefill(lambda row, depth, hidden: depth == N and note(row, hidden))
    while batch.live:
        by_row = batch.running

        def taps(depth, hidden, jobs=by_row):
            if depth == N:
                for job, state in zip(jobs, hidden, strict=True):
                    note(job, state)

        batch.step(taps)
    assert [seen[0], seen[1]] == batch.outputs


@pytest.mark.parametrize("chunk", [1, 4, 20])
def test_long_prompts_are_prefilled_in_chunks(chunk, monkeypatch):
    view = tiny_view("gemma2")
    jobs = [Job(prompt=p, budget=10) for p in (SHORT, LONG)]
    whole = _together(view, jobs).outputs
    monkeypatch.setattr(batch_module, "PREFILL_CHUNK", chunk)
    assert _together(view, jobs).outputs == whole


def test_pointers_hold_each_row_before_its_last_token():
    view = tiny_view("gpt2")
    jobs = [Job(prompt=SHORT, budget=9), Job(prompt=LONG, budget=4)]
    batch = BatchDecoder(view, jobs, [greedy_policy(view)] * 2)
    batch.prefill()
    batch.step()
    while len(batch.running) == 2:
        assert batch.cache.lengths == [[4 + len(batch.outputs[0]), 19 + len(batch.outputs[1])]] * N
        batch.step()
    batch.step()
    assert batch.running == [0]
    assert batch.cache.lengths == [[4 + len(batch.outputs[0])]] * N


def test_row_beyond_the_models_positions_is_refused_as_one_alone_is():
    """160 positions: the second row needs 161. No pass is run."""
    view = tiny_view("gpt2")
    jobs = [Job(prompt=SHORT, budget=9), Job(prompt=LONG, budget=141)]
    with pytest.raises(ModelError, match=r"prompt of 20 and 141 output .* model's 160 positions"):
        BatchDecoder(view, jobs, [greedy_policy(view)] * 2)
    with pytest.raises(ModelError, match="zero tokens"):
        BatchDecoder(view, [jobs[0], Job(prompt=(), budget=1)], [greedy_policy(view)] * 2)
    assert BatchDecoder(view, [Job(prompt=LONG, budget=140)], [greedy_policy(view)]).live == [0]


def test_row_without_budget_makes_nothing():
    view = tiny_view("llama")
    batch = _together(view, [Job(prompt=SHORT, budget=0), Job(prompt=LONG, budget=4)])
    assert batch.outputs[0] == []
    assert batch.finishes == ["length", "length"]
    assert (
        batch.outputs[1]
        == decode_plain(view, Job(prompt=LONG, budget=4), greedy_policy(view)).output
    )


def _temperatures(view, jobs):
    """One request at three temperatures, penalties included: laws must not touch shared logits."""
    samplings = [
        Sampling(temperature=0.7, repetition_penalty=1.5),
        Sampling(temperature=0.0),
        Sampling(temperature=1.0),
    ]
    return [
        make_policy(Processor(sampling, view.vocab_size, job.prompt), 3)
        for job, sampling in zip(jobs, samplings, strict=False)
    ]


def _seen(view, jobs) -> tuple[BatchDecoder, list[torch.Tensor]]:
    batch, seen = BatchDecoder(view, jobs, _temperatures(view, jobs)), []
    batch.prefill(lambda row, depth, hidden: seen.append(hidden.clone()))
    while batch.live:
        batch.step(lambda depth, hidden: seen.append(hidden.clone()))
    return batch, seen


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_rows_of_one_prompt_share_its_run_to_the_last_bit(name, monkeypatch):
    view = tiny_view(name)
    jobs = [Job(prompt=LONG, budget=budget) for budget in (9, 12, 5)]
    shared, shared_states = _seen(view, jobs)
    monkeypatch.setattr(
        BatchDecoder, "_rows_by_prompt", lambda self: _Apart(self.jobs), raising=True
    )
    apart, apart_states = _seen(view, jobs)
    assert shared.outputs == apart.outputs
    assert len({tuple(output[:5]) for output in shared.outputs}) == 3, "laws too alike to tell"
    for layer in range(N):
        assert torch.equal(shared.cache.keys[layer], apart.cache.keys[layer]), f"layer {layer}"
        assert torch.equal(shared.cache.values[layer], apart.cache.values[layer])
    steps = zip(shared_states[3 * N :], apart_states[3 * N :], strict=True)
    assert all(torch.equal(a, b) for a, b in steps), "states while decoding"


class _Apart:
    """Every row's prompt by itself, as if no two were alike."""

    def __init__(self, jobs) -> None:
        self.jobs = jobs

    def items(self):
        return [(job.prompt, [row]) for row, job in enumerate(self.jobs)]

    def values(self):
        return [rows for _, rows in self.items()]


def test_a_shared_prompt_is_run_once(monkeypatch):
    view, chunks = tiny_view("llama"), []
    run = view.run
    monkeypatch.setattr(view, "run", lambda h, *a: chunks.append(h.shape[1]) or run(h, *a))
    jobs = [Job(prompt=p, budget=2) for p in (LONG, SHORT, LONG, LONG)]
    BatchDecoder(view, jobs, [greedy_policy(view) for _ in jobs]).prefill()
    assert sorted(chunks) == [1, 5, 20], "a probe of one position, then each prompt once"


def test_rows_that_get_no_copy_of_the_prompt_go_astray(monkeypatch):
    """Broken twin: without its keys and values a row attends to nothing."""
    view = tiny_view("llama")
    jobs = [Job(prompt=LONG, budget=12) for _ in range(2)]
    whole = _together(view, jobs).outputs
    monkeypatch.setattr(KVCache, "copy_row", lambda *_: None)
    broken = _together(view, jobs).outputs
    assert broken[0] == whole[0]
    assert broken[1] != whole[1]
