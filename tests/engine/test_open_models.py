"""The open cases on the shared tiny checkpoints; skipped, with the reason, where they are absent.

Everything here is also shown on this folder's own models, which are always there.
"""

import copy
import functools

import pytest
import torch
from greedy_sweep import CELLS, broken_counts, sweep
from open_cases import QUICK, TABLE, encode, open_view, rows, tokenizer
from tiny import N, greedy_policy, library_greedy, prompts, view_of

from selfspec_cli.engine.decoder import Job, decode_plain, decode_speculative
from selfspec_cli.engine.exactness import compare_outputs, plain_gap
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.load import LoadOptions, load_model
from selfspec_cli.engine.policies import GreedyPolicy, make_policy
from selfspec_cli.engine.selfcheck import check_view, truncated_model
from selfspec_cli.errors import ModelError
from selfspec_cli.records import Sampling

PROMPTS = prompts(range(1, 22), seed=8)
SOME_CELLS = [(1, 8), (2, 3), (3, 1), (3, 8), (4, 4), (5, 2), (6, 8)]


@pytest.fixture(scope="module")
def view(shared):
    """Views of the shared checkpoints by name."""
    return functools.partial(open_view, shared)


@pytest.mark.parametrize("name", TABLE)
def test_a06_tokens_are_the_librarys_at_every_exit_and_draft_length(name, view):
    """Oracle O1: 48 cells over 21 prompts of 1 to 21 tokens, 64 tokens each.

    The sequential layout, which has no checkpoint of its own, gets every fourth cell; gemma3, so
    like gemma2, 24 tokens.
    """
    cells = CELLS[1::4] if name == "gpt_neox_sequential" else CELLS
    budget = 24 if name == "gemma3" else 64
    found = sweep(view(name), PROMPTS, budget=budget, offset=TABLE.index(name), cells=cells)
    assert not found.wrong, f"{len(found.wrong)} of {found.runs}: {found.wrong[:3]}"


@pytest.mark.parametrize("name", TABLE)
def test_a18_a24_a26_exit_logits_are_those_of_fewer_layers(name, view, shared):
    """Oracle O2 at every exit, max abs difference 1e-5."""
    opened = view(name)
    assert check_view(opened) < 1e-5
    ids = torch.tensor([encode(shared, QUICK)])
    for exit_layer in range(1, N + 1):
        cache = opened.new_cache(capacity=ids.shape[1])
        with torch.inference_mode():
            states = opened.run(opened.embed(ids, cache), cache, 0, exit_layer)
            library = truncated_model(opened, exit_layer)(input_ids=ids).logits
        error = float((opened.head(states) - library).abs().max())
        assert error <= 1e-5, f"L={exit_layer}: {error:.3g}"


@pytest.mark.parametrize(("name", "agreement"), [("llama", 0.529), ("qwen3", 0.324), ("gpt2", 0)])
def test_a18_head_without_norm_agrees_as_rarely_as_known(name, agreement, view, shared):
    opened = view(name)
    ids = torch.tensor([encode(shared, QUICK)])
    cache = opened.new_cache(capacity=ids.shape[1])
    with torch.inference_mode():
        states = opened.run(opened.embed(ids, cache), cache, 0, 3)
        bare = opened.model.get_output_embeddings()(states).argmax(-1)
        same = float((bare == opened.head(states).argmax(-1)).float().mean())
    assert same == pytest.approx(agreement, abs=1e-3)


def test_a20_softcap_of_the_open_gemma2(view, shared):
    opened = view("gemma2")
    ids = torch.tensor([encode(shared, QUICK)])
    cache = opened.new_cache(capacity=ids.shape[1])
    with torch.inference_mode():
        states = opened.run(opened.embed(ids, cache), cache, 0, 3)
        logits = opened.head(states)
        bare = opened.model.lm_head(opened.model.model.norm(states))
    assert float(logits.abs().max()) < 2.0
    assert float((bare - logits).abs().max()) == pytest.approx(1.103, abs=2e-3)


def test_a01_known_answer_and_every_eos(view, shared):
    opened = view("llama")
    prompt = encode(shared, QUICK)
    free = decode_plain(opened, Job(prompt=prompt, budget=24), greedy_policy(opened)).output
    assert free[:4] == [143, 255, 143, 255]
    for i, eos in enumerate(sorted(set(free))):
        expected = free[: free.index(eos) + 1]
        job = Job(prompt=prompt, budget=24, eos_ids=frozenset({eos}))
        for cell in CELLS if eos == 255 else CELLS[i % 3 :: 3]:
            state, rounds = decode_speculative(opened, job, greedy_policy(opened), *cell)
            assert state.output == expected, f"EOS {eos}, L, k = {cell}: {state.output}"
            assert not broken_counts(rounds, state.output)
        if eos == 255:
            assert expected == [143, 255]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a03_budgets_of_the_open_rows(name, view, shared):
    opened = view(name)
    for row in rows(shared, "A_eos_and_length.jsonl"):
        prompt, budget = encode(shared, row["prompt"]), row["max_tokens"]
        job = Job(prompt=prompt, budget=budget)
        plain = decode_plain(opened, job, greedy_policy(opened)).output
        assert len(plain) == budget
        for exit_layer in range(1, N + 1):
            state, rounds = decode_speculative(opened, job, greedy_policy(opened), exit_layer, 8)
            assert state.output == plain, f"{row['id']}, L={exit_layer}"
            assert budget > 1 or sum(made.num_drafted for made in rounds) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a06_open_rows_differ_only_by_listed_ties(dtype, view, shared):
    """float32: none. bfloat16: each with position, tokens and a gap under the tolerance."""
    opened = view_of(copy.deepcopy(view("llama").model).to(dtype))
    texts = [row["prompt"] for row in rows(shared, "control_10.jsonl") if "prompt" in row]
    texts += [row["prompt"] for row in rows(shared, "A_eos_and_length.jsonl")]
    listed = []
    for text in texts:
        prompt = encode(shared, text)
        policy = greedy_policy(opened, prompt)
        job = Job(prompt=prompt, budget=24)
        plain = decode_plain(opened, job, policy).output
        output = decode_speculative(opened, job, policy, 3, 8)[0].output
        gap_at = functools.partial(_gap, opened, prompt, plain, policy.target)
        found = compare_outputs(plain, output, gap_at, dtype)
        if found is not None:
            listed.append(found)
    assert len(texts) >= 10
    assert dtype != torch.float32 or not listed, [str(found) for found in listed]
    assert all(found.is_tie for found in listed), [str(found) for found in listed]


def _gap(opened, prompt, plain, target, position):
    return plain_gap(opened, prompt, plain, position, target)


@pytest.mark.parametrize(("name", "part"), [("llama", 0), ("gpt2", 1)])
def test_a08_prompt_of_the_one_token_ten(name, part, view):
    found = sweep(view(name), [(10,)], budget=32, cells=CELLS[part::2])
    assert not found.wrong, found.wrong[:3]


def test_a14_eight_rounds_for_forty_tokens(view, shared):
    opened = view("llama")
    job = Job(prompt=encode(shared, QUICK), budget=40)
    _, rounds = decode_speculative(opened, job, greedy_policy(opened), N, 4)
    assert [(made.num_accepted, made.num_committed) for made in rounds] == [(4, 5)] * 7 + [(3, 4)]


def _sampling(row: dict) -> Sampling:
    return Sampling(
        temperature=row["temperature"],
        repetition_penalty=row.get("repetition_penalty", 1.0),
        min_tokens=row.get("min_tokens", 0),
        logit_bias=tuple((int(i), float(b)) for i, b in row.get("logit_bias", {}).items()),
    )


@pytest.mark.parametrize("row_id", ["rep-1.3", "rep-0.7", "min-tokens", "bad-words"])
def test_a34_a36_penalty_rows(row_id, view, shared):
    """O1 under the row's processing, against `generate`; at L = N every draft is accepted."""
    opened = view("llama")
    row = next(row for row in rows(shared, "A_penalties.jsonl") if row["id"] == row_id)
    prompt, budget = encode(shared, row["prompt"]), row["max_tokens"]
    eos = library_greedy(opened.model, prompt, 1)[0] if row_id == "min-tokens" else None
    library = {
        "rep-1.3": {"repetition_penalty": 1.3},
        "rep-0.7": {"repetition_penalty": 0.7},
        "min-tokens": {"min_new_tokens": 8, "eos_token_id": eos},
        "bad-words": {"sequence_bias": {(40,): -100.0}},
    }[row_id]
    expected = library_greedy(opened.model, prompt, budget, **library)
    ends = [] if eos is None else [eos]
    policy = GreedyPolicy(Processor(_sampling(row), opened.vocab_size, prompt, eos_ids=ends))
    job = Job(prompt=prompt, budget=budget, eos_ids=frozenset(ends))
    assert decode_plain(opened, job, policy).output == expected
    for cell in SOME_CELLS:
        state, rounds = decode_speculative(opened, job, policy, *cell)
        assert state.output == expected, f"{row_id}, L, k = {cell}"
        if cell[0] == N:
            assert all(made.num_accepted == made.num_tested for made in rounds)


@pytest.mark.parametrize("name", TABLE)
def test_a43_padding_rows_decode_alike_in_all_paths(name, view, shared):
    opened = view(name)
    prompt = encode(shared, QUICK)
    policy = greedy_policy(opened, prompt, logit_bias=((261, 100.0),))
    job = Job(prompt=prompt, budget=8)
    assert decode_plain(opened, job, policy).output == [261] * 8
    assert decode_speculative(opened, job, policy, 3, 3)[0].output == [261] * 8
    assert opened.vocab_size == 264
    assert len(tokenizer(shared)) == 260
    assert tokenizer(shared).decode([261]) == ""


def test_a32_full_depth_draft_at_low_temperature(view, shared):
    opened = view("llama")
    prompt = encode(shared, QUICK)
    policy = make_policy(
        Processor(Sampling(temperature=0.05), opened.vocab_size, prompt), 4, max_draft=4
    )
    _, rounds = decode_speculative(opened, Job(prompt=prompt, budget=61), policy, N, 4)
    assert all(made.num_accepted == made.num_tested for made in rounds)


def test_a16_longrope_is_exact_up_to_its_switch_and_refused_beyond(view):
    """Switch at 16 tokens: prompts of 8 to 15 filled up to it, every exit and draft length.

    With 20 tokens, which cross it, each prompt is refused before any pass, naming the switch.
    """
    opened = view("phi3_longrope")
    assert check_view(opened) < 1e-5
    for prompt in prompts(range(8, 16), seed=16):
        job = Job(prompt=prompt, budget=16 - len(prompt))
        plain = decode_plain(opened, job, greedy_policy(opened)).output
        assert plain == library_greedy(opened.model, prompt, job.budget)
        for cell in CELLS:
            output = decode_speculative(opened, job, greedy_policy(opened), *cell)[0].output
            assert output == plain, f"prompt of {len(prompt)}, L, k = {cell}"
        with pytest.raises(ModelError, match="16 positions before its rotary factors switch"):
            decode_plain(opened, Job(prompt=prompt, budget=20), greedy_policy(opened))


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a22_embedded_states_of_the_open_models(name, dtype, view, shared):
    """Bit for bit the library's; in bfloat16 the rounded scale shows in the bits."""
    model = copy.deepcopy(view(name).model).to(dtype)
    ids = torch.tensor([encode(shared, QUICK)])
    opened = view_of(model)
    with torch.inference_mode():
        ours = opened.embed(ids, opened.new_cache(capacity=ids.shape[1]))
        library = model(input_ids=ids, output_hidden_states=True).hidden_states[0]
    assert torch.equal(ours, library), f"{float((ours - library).abs().max()):.3g} off"


@pytest.mark.parametrize("name", TABLE)
def test_saved_checkpoint_with_tied_weights_loads(name, view, tmp_path):
    """Tied heads are not in the file; that is not a missing weight."""
    view(name).model.save_pretrained(tmp_path)
    loaded = load_model(LoadOptions(model=str(tmp_path), device="cpu"), tokenizer=object())
    assert loaded.self_check_error < 1e-5
