"""Rounds of a ragged batch: each job's tokens and rounds are those it has alone."""

import pytest
import torch
from batch_rounds import alone, together
from layer_calls import CallCounter
from tiny import NAMES, N, damped_view, greedy_policy, prompts

from selfspec_cli.engine import batch as batch_module
from selfspec_cli.engine import row_policies
from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.decoder import Job, decode_plain
from selfspec_cli.engine.kv_cache import KVCache
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.policies import GreedyPolicy, make_policy
from selfspec_cli.engine.verify import Verdict
from selfspec_cli.records import Sampling

SHORT, LONG, ONE, MIDDLE = (prompts(range(n, n + 1))[0] for n in (5, 20, 1, 11))
RAGGED = [
    Job(prompt=SHORT, budget=21),
    Job(prompt=LONG, budget=30),
    Job(prompt=ONE, budget=17),
    Job(prompt=MIDDLE, budget=3),
]
SAMPLINGS = [
    Sampling(temperature=0.7),
    Sampling(temperature=0.0),
    Sampling(temperature=1.0, top_p=0.8, repetition_penalty=1.2),
    Sampling(temperature=0.0, repetition_penalty=1.4, presence_penalty=0.3),
    Sampling(temperature=0.4, top_k=20),
    Sampling(temperature=0.7, frequency_penalty=0.5, logit_bias=((9, 1.0),)),
]


def greedy(view, jobs):
    return lambda: [greedy_policy(view, job.prompt) for job in jobs]


def mixed(view, jobs, k, samplings=SAMPLINGS):
    """A law of its own for each job, from a seed of its own."""

    def policies():
        return [
            make_policy(Processor(s, view.vocab_size, job.prompt), 40 + at, max_draft=k)
            for at, (job, s) in enumerate(zip(jobs, samplings, strict=False))
        ]

    return policies


def endings(view) -> list[Job]:
    """Six jobs that end by EOS, stop string and budget, inside rounds and with x_0."""
    free = decode_plain(view, Job(prompt=SHORT, budget=24), greedy_policy(view)).output
    other = decode_plain(view, Job(prompt=MIDDLE, budget=24), greedy_policy(view)).output
    return [
        Job(prompt=SHORT, budget=30, eos_ids=frozenset({free[8]})),
        Job(prompt=LONG, budget=26),
        Job(prompt=MIDDLE, budget=1),
        Job(prompt=ONE, budget=30, stopped=lambda output: len(output) == 13),
        Job(prompt=SHORT, budget=30, eos_ids=frozenset({free[0]})),
        Job(prompt=MIDDLE, budget=30, eos_ids=frozenset({other[12]})),
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cell", [(1, 3), (3, 8), (6, 24)])
def test_greedy_rows_are_each_as_if_alone(name, cell):
    view = damped_view(name)
    apart = alone(view, RAGGED, greedy(view, RAGGED), cell)
    wrong = together(view, RAGGED, greedy(view, RAGGED), cell).differences(apart)
    assert not wrong, f"{name} {cell}: {wrong}"
    plain = alone(view, RAGGED, greedy(view, RAGGED), None)
    assert apart.outputs == plain.outputs


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "qwen2"])
@pytest.mark.parametrize("cell", [None, (1, 5), (3, 4)])
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_leave_and_are_refilled_leave_the_others_alone(name, cell, rows):
    view = damped_view(name)
    jobs = endings(view)
    apart = alone(view, jobs, greedy(view, jobs), cell)
    wrong = together(view, jobs, greedy(view, jobs), cell, rows=rows).differences(apart)
    assert not wrong, f"{name} {cell} on {rows} rows: {wrong}"
    assert apart.finishes == ["eos", "length", "length", "stop", "eos", "eos"]


def test_the_endings_above_do_cut_rounds_short():
    view = damped_view("llama")
    jobs = endings(view)
    rounds = alone(view, jobs, greedy(view, jobs), (3, 4)).rounds
    cut = [own[-1].num_committed <= own[-1].num_accepted for own in rounds if own]
    assert sum(cut) >= 2, f"{cut}: no round ends on an accepted token"


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
@pytest.mark.parametrize(("cell", "rows"), [(None, 2), ((2, 3), 2), ((3, 8), 6)])
def test_rows_of_any_law_draw_what_they_draw_alone(name, cell, rows):
    """T from 0 to 1, truncated and penalised, side by side; same uniforms, so same rounds."""
    view = damped_view(name)
    lengths = zip((SHORT, LONG, ONE, MIDDLE, SHORT, LONG), (19, 24, 12, 16, 2, 20), strict=True)
    jobs = [Job(prompt=prompt, budget=budget) for prompt, budget in lengths]
    policies = mixed(view, jobs, 8)
    apart = alone(view, jobs, policies, cell)
    wrong = together(view, jobs, policies, cell, rows=rows).differences(apart)
    assert not wrong, f"{name} {cell} on {rows} rows: {wrong}"


def test_jobs_of_one_prompt_start_from_one_run_of_it_in_rounds_too():
    view = damped_view("llama")
    jobs = [Job(prompt=LONG, budget=budget) for budget in (18, 9, 14)]
    policies = mixed(view, jobs, 3)
    apart = alone(view, jobs, policies, (3, 3))
    assert not together(view, jobs, policies, (3, 3)).differences(apart)


@pytest.mark.parametrize(("exit_layer", "k"), [(1, 3), (3, 8), (6, 4)])
def test_round_runs_each_layer_once_a_position_for_all_rows(exit_layer, k):
    """Layers [0, L) see k'+1 passes of one position, [L, N) one of k'+1; never more rows."""
    view = damped_view("qwen3")
    batch = BatchDecoder(view, RAGGED, greedy(view, RAGGED)(), max_draft=k)
    batch.prefill()
    with CallCounter(view) as counter:
        while batch.live:
            running = batch.running
            made = batch.round(exit_layer, k)
            longest = max(own.num_drafted for own in made.values())
            early, late = [1] * (longest + 1), [longest + 1]
            expected = {i: early if i < exit_layer else late for i in range(N)}
            assert counter.take() == expected, f"k' = {longest}, jobs {running}"
            assert counter.rows == {len(running)}
            assert list(made) == running
            counter.rows.clear()


def test_a_rejection_copies_nothing():
    """Buffers stay where they are, and what lies below every pointer is what it was."""
    view = damped_view("gemma2")
    jobs = [Job(prompt=p, budget=40) for p in (SHORT, LONG, MIDDLE)]
    batch = BatchDecoder(view, jobs, greedy(view, jobs)(), max_draft=6)
    batch.prefill()
    cache = batch.cache
    at = [t.data_ptr() for t in (*cache.keys, *cache.values)]
    size, rejected = cache.allocated_bytes(), 0
    for _ in range(4):
        held = [len(job.prompt) + len(out) - 1 for job, out in zip(jobs, batch.outputs)]  # noqa: B905
        before = [t.clone() for t in (*cache.keys, *cache.values)]
        made = batch.round(2, 6)
        rejected += sum(own.num_accepted < own.num_tested for own in made.values())
        for old, new in zip(before, (*cache.keys, *cache.values), strict=True):
            for row, length in enumerate(held):
                assert torch.equal(old[row, :, :length], new[row, :, :length]), f"row {row}"
        after = [n + made[row].num_committed for row, n in enumerate(held)]
        assert cache.lengths == [after] * N
    assert rejected > 3, f"only {rejected} rejections"
    assert [t.data_ptr() for t in (*cache.keys, *cache.values)] == at
    assert cache.allocated_bytes() == size


def test_one_row_is_copied_for_each_job_that_leaves_ahead_of_others(monkeypatch):
    view, copies = damped_view("llama"), []
    copy_row = KVCache.copy_row
    jobs = [Job(prompt=p, budget=n) for p, n in ((SHORT, 6), (LONG, 14), (MIDDLE, 10), (ONE, 30))]
    apart = alone(view, jobs, greedy(view, jobs), (3, 2))
    monkeypatch.setattr(
        KVCache, "copy_row", lambda *a: (copies.append(a[1:3]) if a[2] else None, copy_row(*a))
    )
    assert not together(view, jobs, greedy(view, jobs), (3, 2)).differences(apart)
    moved = [(source, target) for source, (target,) in copies]
    assert len(moved) <= 3, f"{moved}: more copies than jobs that left"
    assert moved[0] == (3, 0), f"{moved}: the last row takes the first one's place"


def test_no_pass_goes_beyond_the_models_positions(monkeypatch):
    """160 positions. One row ends at the last of them while another could draft 8 more."""
    view = damped_view("gpt2")
    ends = []
    prepare = view.prepare
    monkeypatch.setattr(
        view, "prepare", lambda h, s: ends.append(max(s) + h.shape[1]) or prepare(h, s)
    )
    long = prompts(range(140, 141))[0]
    jobs = [Job(prompt=long, budget=20), Job(prompt=SHORT, budget=60)]
    policies = greedy(view, jobs)
    batched = together(view, jobs, policies, (3, 8))
    assert batched.outputs == alone(view, jobs, policies, None).outputs
    assert max(ends) <= 160, f"a pass reached position {max(ends)} of 160"


def test_a_longer_draft_than_planned_is_refused():
    view = damped_view("llama")
    batch = BatchDecoder(view, RAGGED, greedy(view, RAGGED)(), max_draft=2)
    batch.prefill()
    with pytest.raises(ValueError, match="drafts of 3 where at most 2"):
        batch.round(3, 3)


def test_refill_counts_the_prompts_it_runs():
    """Two rows: job 2 ends with its x_0, so its row goes to job 3 at once."""
    view = damped_view("llama")
    jobs = [Job(prompt=p, budget=n) for p, n in ((SHORT, 3), (LONG, 9), (ONE, 1), (MIDDLE, 4))]
    batch = BatchDecoder(view, jobs, greedy(view, jobs)(), rows=2)
    batch.prefill()
    assert (batch.live, batch.num_waiting, batch.refill()) == ([0, 1], 2, 0)
    batch.step()
    batch.step()
    assert (batch.live, batch.refill()) == ([1], 2)
    assert (batch.live, batch.running, batch.num_waiting) == ([1, 3], [3, 1], 0)


def test_rewind_repeats_a_round_even_where_a_job_ended_in_it():
    view = damped_view("qwen3")
    jobs = [Job(prompt=SHORT, budget=6), Job(prompt=LONG, budget=30)]
    batch = BatchDecoder(view, jobs, greedy(view, jobs)(), max_draft=5)
    batch.prefill()
    first = batch.round(5, 5)
    texts = [list(output) for output in batch.outputs]
    batch.rewind(1)
    assert [len(output) for output in batch.outputs] == [1, 1]
    assert batch.live == [0, 1]
    assert batch.cache.lengths == [[5, 20]] * N
    assert batch.round(5, 5) == first
    assert batch.outputs == texts


def test_rewind_is_refused_once_a_row_was_taken():
    view = damped_view("llama")
    jobs = [Job(prompt=SHORT, budget=2), Job(prompt=LONG, budget=9)]
    batch = BatchDecoder(view, jobs, greedy(view, jobs)())
    batch.prefill()
    batch.step()
    batch.rewind(1)
    batch.step()
    batch.step()  # the second row has moved into the first
    with pytest.raises(ValueError, match=r"rows hold \[1, None\]"):
        batch.rewind(1)
    waiting = BatchDecoder(view, jobs, greedy(view, jobs)(), rows=1)
    waiting.prefill()
    with pytest.raises(ValueError, match=r"rows hold \[0\]"):
        waiting.rewind(1)


class PointerOff(BatchDecoder):
    """Twin: one row's pointer stands one further than what it holds."""

    def commit(self, running, tokens):
        counts = super().commit(running, tokens)
        if len(running) > 1:
            for lengths in self.cache.lengths:
                lengths[1] += 1
        return counts


class PointerLeftBehind(BatchDecoder):
    """Twin: a row that moves finds the pointer of the row it moved into."""

    def _gather(self):
        before, moved = list(self.cache.lengths[0]), self._seats.moves()
        running = super()._gather()
        for lengths in self.cache.lengths:
            for _, target in moved:
                lengths[target] = before[target]
        return running


class ContentLeftBehind(BatchDecoder):
    """Twin: a row that moves leaves its keys and values behind."""

    def _gather(self):
        for source, target in self._seats.moves():
            self._seats.move(source, target)
        return super()._gather()


def _anothers_length(monkeypatch):
    """Twin: rows accept as much as their neighbour did."""
    settle = row_policies.settle_rows

    def turned(policies, logits, outputs, drafted):
        verdicts = settle(policies, logits, outputs, drafted)
        kept = [v.num_accepted for v in verdicts]
        return [
            Verdict(min(a, len(own)), v.next_token, v.kind)
            for a, own, v in zip(kept[1:] + kept[:1], drafted, verdicts, strict=True)
        ]

    monkeypatch.setattr(batch_module, "settle_rows", turned)


@pytest.mark.parametrize("kind", [PointerOff, PointerLeftBehind, ContentLeftBehind, "length"])
def test_batches_that_confuse_their_rows_are_caught(kind, monkeypatch):
    view = damped_view("llama")
    apart = alone(view, RAGGED, greedy(view, RAGGED), (3, 4))
    if kind == "length":
        _anothers_length(monkeypatch)
        kind = BatchDecoder
    try:
        wrong = together(view, RAGGED, greedy(view, RAGGED), (3, 4), kind=kind).outputs
    except ValueError as error:  # a pointer that is too low is noticed when rows are rolled back
        wrong = str(error)
    assert wrong != apart.outputs, "the twin gives the same tokens"


def test_a_shared_argmax_for_rows_with_penalties_is_caught(monkeypatch):
    view = damped_view("qwen3")
    jobs = [Job(prompt=p, budget=20) for p in (SHORT, LONG)]
    policies = mixed(view, jobs, 4, [Sampling(temperature=0.0, repetition_penalty=1.4)] * 2)
    apart = alone(view, jobs, policies, (3, 4))
    assert not together(view, jobs, policies, (3, 4)).differences(apart)
    monkeypatch.setattr(row_policies, "takes_argmax", lambda p: isinstance(p, GreedyPolicy))
    assert together(view, jobs, policies, (3, 4)).outputs != apart.outputs
