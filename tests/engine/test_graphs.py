"""Replayed passes give what the layers give, and nothing is recorded while a clock runs.

On a CPU passes are recorded by `TracedRecorder`, which keeps a number that Python read as a CUDA
graph would. What needs a GPU is marked `device`.
"""

import gc
import warnings

import pytest
import torch
from batch_rounds import alone, together
from test_limits import longrope
from tiny import COMMON, CONFIGS, NAMES, build, damp, greedy_policy, prompts, view_of
from traced_recorder import FailingRecorder, TracedRecorder

from selfspec_cli.cost.bandwidth import position_bytes
from selfspec_cli.cost.build import build_tasks
from selfspec_cli.cost.clock import Clock
from selfspec_cli.cost.measure import time_block, warm_up
from selfspec_cli.cost.plan import CostPlan, WholeRound
from selfspec_cli.engine import batch as batch_module
from selfspec_cli.engine import decoder as decoder_module
from selfspec_cli.engine import engines
from selfspec_cli.engine.attention import use_packed_attention
from selfspec_cli.engine.decoder import Decoder, Job, decode_plain, decode_speculative
from selfspec_cli.engine.engines import by_graphs, choose_engine
from selfspec_cli.engine.families import family_of
from selfspec_cli.engine.graphs import CudaRecorder, GraphNotice, GraphView
from selfspec_cli.engine.view import LayerView
from selfspec_cli.errors import ModelError
from selfspec_cli.records import Sampling
from selfspec_cli.replay.batched import BatchRun, decode_batched
from selfspec_cli.replay.decode import Cell, decode

LAYERS = 3
SPAN = 32  # the prompts below cross a multiple of it while they decode
PROMPT = prompts(range(14, 15))[0]
JOB = Job(prompt=PROMPT, budget=26)
FAMILIES = ("llama", "qwen2", "gemma3", "gpt2", "gpt_neox_parallel")
RAGGED = [
    Job(prompt=prompt, budget=budget)
    for prompt, budget in zip(
        (prompts(range(n, n + 1))[0] for n in (5, 20, 1, 11)), (12, 18, 10, 3), strict=True
    )
]


def model_of(name: str) -> torch.nn.Module:
    """A damped model whose layers are of both kinds where the family has two."""
    settings = {**COMMON, **CONFIGS[name], "num_hidden_layers": LAYERS}
    if "max_window_layers" in settings:
        settings["max_window_layers"] = 1
    return damp(build(**settings), 2, 0.3)


def packed_model(name: str) -> torch.nn.Module:
    """With the attention that a GPU gets."""
    model = model_of(name)
    use_packed_attention(model.config)
    return model


def graphs_of(model, recorder=None, kind=GraphView) -> GraphView:
    family = family_of(model.config.model_type)
    return kind(model, family, recorder or TracedRecorder(), span=SPAN)


def plain(view, job=JOB) -> list[int]:
    return decode_plain(view, job, greedy_policy(view)).output


def greedy(view, jobs):
    return lambda: [greedy_policy(view) for _ in jobs]


class RemembersStarts(GraphView):
    """Twin: write pointers are Python numbers, as `KVCache.update` has them."""

    def chain(self, hidden, cache, indices, prepared, tap=None):
        self.known = list(cache.lengths[indices[0]])
        return super().chain(hidden, cache, indices, prepared, tap)

    def _slots(self, starts, m):
        return super()._slots(torch.tensor(self.known), m)


class ReadsWholeSpan(GraphView):
    """Twin: trusts that nothing lies beyond the pointer, as a cache of just that length would."""

    def _hidden_part(self, kind, slots, span):
        return torch.zeros(*slots.shape[:1], 1, slots.shape[1], span)


class NumbersInPython(GraphView):
    """Twin: asks the device where to write."""

    def _slots(self, starts, m):
        return torch.tensor([[int(s) + i for i in range(m)] for s in starts])


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_text_is_that_of_the_layers(name):
    model = packed_model(name)
    view, replayed = view_of(model), graphs_of(model)
    want = plain(view)
    assert plain(replayed) == want, f"{name}: plain decoding differs"
    got, _ = decode_speculative(replayed, JOB, greedy_policy(view), 2, 4)
    assert got.output == want, f"{name}: rounds differ"
    assert replayed.failure is None
    assert len(replayed._recorder.sizes) >= 4, f"only {replayed._recorder.sizes} was recorded"


@pytest.mark.parametrize("twin", [RemembersStarts, ReadsWholeSpan])
def test_a_number_kept_in_a_recording_gives_other_text(twin):
    model = packed_model("llama")
    got = plain(graphs_of(model, kind=twin))
    wrong = sum(a != b for a, b in zip(got, plain(view_of(model)), strict=True))
    assert wrong > 5, f"{twin.__name__}: {wrong} of {len(got)} tokens differ"


@pytest.mark.parametrize(("name", "cell"), [("llama", None), ("llama", (2, 4)), ("gemma3", (2, 4))])
def test_ragged_rows_are_each_as_if_alone(name, cell):
    """Three rows for four jobs: rows end, one is refilled, later passes have fewer rows."""
    model = packed_model(name)
    view, replayed = view_of(model), graphs_of(model)
    apart = alone(view, RAGGED, greedy(view, RAGGED), cell)
    wrong = together(replayed, RAGGED, greedy(view, RAGGED), cell, rows=3).differences(apart)
    assert not wrong, f"{name} {cell}: {wrong}"
    counts = {rows for rows, _ in replayed._recorder.sizes}
    assert 3 in counts, f"only passes of {counts} rows were recorded"
    assert len(counts) > 1, f"only passes of {counts} rows were recorded"


def test_one_recording_serves_draft_lengths_and_contexts():
    """[0, 2) at one position, whatever k; shortened drafts ride on the longest that was readied."""
    view = graphs_of(packed_model("llama"))
    recorder = view._recorder
    short = Job(prompt=PROMPT[:4], budget=18)  # stays within one span
    state = Decoder(view, short, greedy_policy(view), max_draft=8)
    state.prefill()
    state.ready(2, 8)
    assert sorted(recorder.sizes) == [(1, 1), (1, 1), (1, 9)]
    for k in (8, 5, 2):
        state.rewind(1)
        while state.finish is None:
            state.round(2, k)
        assert state.output == plain(view_of(view.model), short)
    assert len(recorder.sizes) == 3, f"recorded again: {recorder.sizes[3:]}"


def test_shortened_drafts_stay_before_the_switch_of_rotary_factors():
    """Made-up positions beyond it would turn the real ones by other factors."""
    model = longrope()
    view, replayed = view_of(model), graphs_of(model)
    job = Job(prompt=PROMPT[:8], budget=view.max_positions - 8)
    state = Decoder(replayed, job, greedy_policy(view), max_draft=8)
    state.prefill()
    state.ready(2, 8)
    while state.finish is None:
        state.round(2, 8)
    assert state.output == plain(view, job)


def test_states_that_a_caller_keeps_are_not_written_over():
    """Each tap's and each pass's result is the caller's own."""
    view, kept = graphs_of(packed_model("llama")), []
    cache = view.new_cache(capacity=20)
    with torch.inference_mode():
        view.run(view.embed(torch.tensor([PROMPT]), cache), cache, 0, LAYERS)
        for token in (5, 6):
            hidden = view.embed(torch.tensor([[token]]), cache)
            out = view.run(hidden, cache, 0, LAYERS, lambda _, h: kept.append((h, h.clone())))
            kept.append((out, out.clone()))
    changed = sum(not torch.equal(state, before) for state, before in kept)
    assert changed == 0, f"{changed} of {len(kept)} kept states were written over"
    assert view._recorder.sizes == [(1, 1)]


@pytest.mark.parametrize("rows", [1, 3])
def test_pieces_of_prompts_are_not_recorded(rows, monkeypatch):
    """They run once; three rows' prompts run in rows lent by the batch."""
    view = graphs_of(packed_model("llama"))
    monkeypatch.setattr(decoder_module, "PREFILL_CHUNK", 8)
    monkeypatch.setattr(batch_module, "PREFILL_CHUNK", 8)
    jobs = [Job(prompt=PROMPT[:n], budget=9) for n in (14, 12, 9)]
    if rows == 1:
        Decoder(view, jobs[0], greedy_policy(view)).prefill()
    else:
        batch_module.BatchDecoder(view, jobs, greedy(view, jobs)()).prefill()
    assert view._recorder.sizes == []


def test_recordings_die_with_their_cache():
    view = graphs_of(packed_model("llama"))
    plain(view, Job(prompt=PROMPT, budget=4))
    gc.collect()
    assert len(view._recorder.sizes) == 1
    assert len(view._passes) == 0, f"{len(view._passes)} caches are still held"


def test_a_cached_token_takes_what_it_takes_in_any_view():
    """Although a cache for replaying has room for more tokens than asked for."""
    model = packed_model("llama")
    assert position_bytes(graphs_of(model)) == position_bytes(view_of(model))


class NotesRecordings:
    """A clock that counts what is recorded while it runs."""

    def __init__(self, recorder) -> None:
        self.recorder, self.inside, self.spans = recorder, 0, 0

    def span(self, step, repeats=1):
        before = len(self.recorder.sizes)
        seconds = Clock().span(step, repeats)
        self.inside += len(self.recorder.sizes) - before
        self.spans += 1
        return seconds


@pytest.mark.parametrize("cell", [None, Cell(2, 4)])
def test_nothing_is_recorded_inside_a_timed_decode(cell):
    view = graphs_of(packed_model("llama"))
    clock = NotesRecordings(view._recorder)
    state = Decoder(view, JOB, greedy_policy(view), max_draft=4)
    state.prefill()
    made = decode(state, greedy_policy(view), cell, clock)
    assert list(made.tokens) == plain(view_of(view.model))
    assert clock.inside == 0, f"{clock.inside} recordings inside a timing"
    assert len(view._recorder.sizes) >= 2


def test_a_decode_that_is_not_readied_records_inside():
    """Twin of the above: without `ready` the first passes record."""
    view = graphs_of(packed_model("llama"))
    clock = NotesRecordings(view._recorder)
    state = Decoder(view, JOB, greedy_policy(view))
    state.prefill()
    state.ready = lambda *_: None
    decode(state, greedy_policy(view), None, clock)
    assert clock.inside > 0


@pytest.mark.parametrize("schedule", ["static", "refill"])
def test_nothing_is_recorded_inside_timed_batches(schedule):
    view = graphs_of(packed_model("llama"))
    clock = NotesRecordings(view._recorder)
    run = BatchRun(batch_size=2, schedule=schedule, cell=Cell(2, 2))
    made = decode_batched(view, RAGGED, greedy(view, RAGGED)(), run, clock)
    alone_view = view_of(view.model)
    for job, tokens in zip(RAGGED, made.tokens, strict=True):
        assert list(tokens) == plain(alone_view, job)
    assert clock.inside == 0, f"{clock.inside} recordings inside {clock.spans} timings"


def test_nothing_is_recorded_while_costs_are_timed():
    view = graphs_of(packed_model("llama"))
    plan = CostPlan(
        exit_layers=(2,),
        draft_lengths=(1, 3),
        contexts=(20,),
        laws=(Sampling(temperature=0.0),),
        batch_sizes=(1, 2),
        rounds=(
            WholeRound(exit_layer=2, draft_length=3, context=20),
            WholeRound(exit_layer=2, draft_length=3, context=20, batch=2),
        ),
    )
    with torch.inference_mode():
        tasks = build_tasks(view, plan, 0)
        warm_up(tasks, 1, Clock())
        before = list(view._recorder.sizes)
        time_block(tasks, [1] * len(tasks), Clock(), range(len(tasks)))
    assert view._recorder.sizes == before, f"recorded late: {view._recorder.sizes[len(before) :]}"
    assert {(1, 4), (2, 4), (1, 2), (2, 2)} <= set(before), f"recorded: {before}"


@pytest.mark.parametrize("good", [0, 1, 3])
def test_a_failed_recording_leaves_the_layers_with_one_notice(good):
    model = packed_model("llama")
    view = graphs_of(model, FailingRecorder(good))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        got, _ = decode_speculative(view, JOB, greedy_policy(view), 2, 4)
    assert got.output == plain(view_of(model))
    notices = [str(one.message) for one in seen if one.category is GraphNotice]
    assert len(notices) == 1, f"{len(notices)} notices"
    assert "operation not permitted" in notices[0]
    assert "more" not in notices[0]
    assert view.engine == "eager"


def test_asking_a_tensor_for_its_value_cannot_be_recorded():
    model = packed_model("llama")
    view = graphs_of(model, kind=NumbersInPython)
    with pytest.warns(GraphNotice, match="cannot be recorded"):
        assert plain(view) == plain(view_of(model))


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_proved_graphs_are_chosen(name):
    view = view_of(model_of(name))
    chosen = by_graphs(view, TracedRecorder())
    assert isinstance(chosen.view, GraphView)
    assert chosen.notices == ()
    assert chosen.view.engine == "compiled"
    assert {(1, 1), (1, 5), (3, 1), (3, 5)} <= set(chosen.view._recorder.sizes)


def refused(view: LayerView, recorder) -> str:
    """The one notice with which the eager engine stays, as it was."""
    attention = view.config._attn_implementation
    chosen = by_graphs(view, recorder)
    assert type(chosen.view) is LayerView
    assert view.config._attn_implementation == attention
    assert len(chosen.notices) == 1, f"{len(chosen.notices)} notices"
    return chosen.notices[0]


def test_graphs_that_differ_are_refused_with_the_depth(monkeypatch):
    monkeypatch.setattr(engines, "GraphView", RemembersStarts)
    notice = refused(view_of(model_of("llama")), TracedRecorder())
    assert "differ in depth 1" in notice


@pytest.mark.parametrize("good", [0, 2])
def test_graphs_that_cannot_be_recorded_are_refused(good):
    notice = refused(view_of(model_of("llama")), FailingRecorder(good))
    assert "decoding with the eager engine" in notice
    assert "operation not permitted" in notice


def test_rotary_tables_that_follow_the_length_are_refused():
    """`dynamic` tables are made by Python from the longest position."""
    scaled = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = build(**{**COMMON, **CONFIGS["llama"], "rope_parameters": scaled})
    assert "cannot be recorded" in refused(view_of(model), TracedRecorder())


def test_other_attention_is_refused():
    view = view_of(model_of("llama"))
    view.config._attn_implementation = "flash_attention_2"
    assert "flash_attention_2" in refused(view, TracedRecorder())


def over_two_devices() -> LayerView:
    view = view_of(model_of("llama"))
    view.model.lm_head.to("meta")  # where accelerate leaves what it offloads
    return view


def test_compiled_steps_over_several_devices_are_refused_with_exit_code_2():
    with pytest.raises(ModelError, match="the model lies on cpu, meta") as error:
        choose_engine(over_two_devices(), "compiled")
    assert error.value.exit_code == 2
    assert "--engine eager" in str(error.value)


def test_auto_is_eager_over_several_devices_with_one_notice(monkeypatch):
    monkeypatch.setattr(engines, "AUTO_MIN_BYTES", 0)
    view = over_two_devices()
    chosen = choose_engine(view, "auto")
    assert chosen.view is view
    assert chosen.notices == ("decoding with the eager engine: the model lies on cpu, meta",)


@pytest.mark.device
@pytest.mark.parametrize("name", NAMES)
def test_cuda_graphs_give_the_text_of_the_layers(name):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    view = view_of(model_of(name).to("cuda"))
    want, apart = plain(view), alone(view, RAGGED, greedy(view, RAGGED), (2, 4))
    replayed = by_graphs(view, CudaRecorder(view.device)).view
    assert isinstance(replayed, GraphView), f"{name}: steps were not recorded"
    assert plain(replayed) == want
    assert decode_speculative(replayed, JOB, greedy_policy(view), 2, 4)[0].output == want
    assert not together(replayed, RAGGED, greedy(view, RAGGED), (2, 4), rows=3).differences(apart)
