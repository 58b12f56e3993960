"""The longest context that is decoded: stated positions, or where rotary factors switch.

A model of the kind with a switch ("longrope") turns all positions of a pass by other factors once
the pass reaches beyond the switch. Inside it everything is exact; across it nothing is decoded.
"""

import functools
import json

import pytest
import torch
from greedy_sweep import CELLS, broken_counts
from tiny import (
    COMMON,
    GATED,
    N,
    build,
    greedy_policy,
    library_greedy,
    prompts,
    tiny_model,
    view_of,
)
from tiny_files import byte_tokenizer
from transformers import AutoConfig

from selfspec_cli.engine import decoder as decoder_module
from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.decoder import Job, decode_plain, decode_speculative
from selfspec_cli.engine.limits import (
    check_fits,
    context_limit,
    limit_notice,
    limit_reason,
    rotary_switch,
)
from selfspec_cli.engine.load import LoadOptions, load_model
from selfspec_cli.engine.selfcheck import check_view
from selfspec_cli.errors import EXIT_INPUT, ModelError

SWITCH, POSITIONS = 20, 80
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4],
    "long_factor": [3.0, 5.0, 9.0, 17.0, 33.0],
    "original_max_position_embeddings": SWITCH,
    "factor": POSITIONS / SWITCH,
}
PHI3 = {
    "model_type": "phi3",
    **COMMON,
    **GATED,
    "max_position_embeddings": POSITIONS,
    "original_max_position_embeddings": SWITCH,
    "rope_parameters": LONGROPE,
}
NAMED = "20 positions before its rotary factors switch"


@functools.cache
def longrope():
    return build(**{**PHI3, "tie_word_embeddings": False})


def config(model_type="llama", **settings):
    return AutoConfig.for_model(model_type, **{"max_position_embeddings": POSITIONS, **settings})


@pytest.mark.parametrize(
    ("made", "limit"),
    [
        (config(), POSITIONS),
        (config("gpt2"), POSITIONS),
        (config("phi3"), POSITIONS),
        (config(rope_parameters={"rope_type": "dynamic", "factor": 2.0}), POSITIONS),
    ],
    ids=["stated", "by another name", "phi3 without a switch", "other factors beyond only"],
)
def test_limit_is_the_stated_positions(made, limit):
    assert context_limit(made) == limit
    assert rotary_switch(made) is None
    assert limit_reason(made) == "positions"
    assert limit_notice(made) is None


def test_limit_is_the_switch_where_there_is_one():
    made = longrope().config
    assert (context_limit(made), rotary_switch(made)) == (SWITCH, SWITCH)
    notice = limit_notice(made)
    assert f"switch beyond {SWITCH} tokens" in notice
    assert f"{POSITIONS} positions" in notice


def test_switch_of_one_kind_of_layers_counts():
    """Where tables differ by kind of layer, the earliest switch of any of them is the limit."""
    by_kind = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {**LONGROPE, "rope_theta": 1e6},
    }
    made = config("gemma3_text", num_hidden_layers=6, head_dim=10, rope_parameters=by_kind)
    assert context_limit(made) == SWITCH


def test_switch_beyond_all_positions_says_nothing():
    made = config("phi3", rope_parameters=None)
    made.rope_parameters = {**LONGROPE, "original_max_position_embeddings": POSITIONS}
    assert context_limit(made) == POSITIONS
    assert limit_notice(made) is None


def test_configuration_that_states_nothing_limits_nothing():
    assert context_limit(object()) is None
    check_fits(object(), 10**6, 10**6)


def test_a16_tokens_are_the_librarys_in_every_cell_up_to_the_switch():
    """Each prompt gets the whole rest, so the last position before the switch is always used."""
    view = view_of(longrope())
    assert check_view(view) < 1e-5
    texts = prompts(range(1, SWITCH))
    wrong = []
    plain = {}
    for prompt in texts:
        job = Job(prompt=prompt, budget=SWITCH - len(prompt))
        plain[prompt] = decode_plain(view, job, greedy_policy(view)).output
        library = library_greedy(view.model, prompt, job.budget)
        if plain[prompt] != library:
            wrong.append(f"prompt of {len(prompt)}: {plain[prompt]} != {library}")
    for i, cell in enumerate(CELLS):
        for prompt in texts[i % 6 :: 6]:
            job = Job(prompt=prompt, budget=SWITCH - len(prompt))
            state, rounds = decode_speculative(view, job, greedy_policy(view), *cell)
            if state.output != plain[prompt] or broken_counts(rounds, state.output):
                wrong.append(f"L, k = {cell}, prompt of {len(prompt)}: {state.output}")
    assert not wrong, f"{len(wrong)} wrong: {wrong[:3]}"


def test_a16_one_token_beyond_the_switch_is_refused_before_any_pass(monkeypatch):
    view = view_of(longrope())
    monkeypatch.setattr(view, "run", lambda *_, **__: pytest.fail("a pass was run"))
    (prompt,) = prompts(range(12, 13))
    job = Job(prompt=prompt, budget=SWITCH - 11)
    policy = greedy_policy(view)
    for decode in (
        lambda: decode_plain(view, job, policy),
        lambda: decode_speculative(view, job, policy, 3, 4),
        lambda: BatchDecoder(view, [job], [policy]),
    ):
        with pytest.raises(ModelError, match=NAMED) as refused:
            decode()
        assert refused.value.exit_code == EXIT_INPUT


def test_a16_decoding_across_the_switch_would_not_be_exact(monkeypatch):
    """Broken twin: without the limit, keys cached before the switch are turned wrongly after it."""
    monkeypatch.setattr(decoder_module, "check_fits", lambda *_: None)
    view = view_of(longrope())
    differing = 0
    for prompt in prompts(range(8, 16)):
        library = library_greedy(view.model, prompt, 24)
        output = decode_speculative(view, Job(prompt=prompt, budget=24), greedy_policy(view), 3, 4)[
            0
        ].output
        before = SWITCH - 4 - len(prompt)  # from there on a block of 4 drafts reaches across it
        assert output[:before] == library[:before], f"prompt of {len(prompt)} differs before"
        differing += output != library
    assert differing >= 4, f"{differing} of 8 texts differ: the limit is needless or unseen"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A longrope checkpoint with a byte tokenizer."""
    folder = tmp_path_factory.mktemp("longrope")
    longrope().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def test_loading_says_what_will_not_be_decoded(folder):
    loaded = load_model(LoadOptions(model=str(folder), device="cpu"))
    assert loaded.view.max_positions == SWITCH
    (notice,) = loaded.notices
    assert f"exceed {SWITCH} tokens are not decoded" in notice


def test_a16_trace_beyond_the_switch_is_refused_by_name(folder, tmp_path, capsys):
    """Prompts of 12 bytes with 20 output tokens cross it: exit 2, nothing measured."""
    from checkpoints import run_cli

    trace = tmp_path / "t.jsonl"
    rows = [{"id": f"r{i}", "prompt": f"{i} abcdefghij", "max_tokens": 20} for i in range(3)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    code = run_cli("calibrate", "-m", folder, "-t", trace, "-o", tmp_path / "run")
    told = capsys.readouterr().err
    assert code == EXIT_INPUT, told
    assert f"12 prompt + 20 output tokens against {NAMED} (longrope)" in told


def test_states_of_exits_know_no_other_table():
    """A short pass after a long one of the library's, which shares the rotary module, is short."""
    model = longrope()
    view = view_of(model)
    ids = torch.tensor(prompts(range(10, 11)))
    cache = view.new_cache(capacity=10)
    with torch.inference_mode():
        model(input_ids=torch.tensor(prompts(range(40, 41))))
        ours = view.head(view.run(view.embed(ids, cache), cache, 0, N))
        error = float((ours - model(input_ids=ids).logits).abs().max())
    assert error < 1e-4, f"{error:.3g}"


def test_table_of_this_folder_has_no_switch():
    """Else its sweeps of 160 positions would stop short."""
    assert context_limit(tiny_model("phi3").config) == COMMON["max_position_embeddings"]
