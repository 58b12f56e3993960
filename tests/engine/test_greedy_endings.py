"""Where greedy output ends inside a round: EOS, budgets and stop strings cut tokens and counts."""

import itertools

import pytest
from greedy_sweep import CELLS, broken_counts
from tiny import NAMES, N, damped_view, greedy_policy, library_greedy, prompts, tiny_view

from selfspec_cli.engine.decoder import Decoder, Job, decode_plain, decode_speculative
from selfspec_cli.errors import ModelError

PROMPT = prompts(range(12, 13))[0]


def _plain(view, budget=24, **job):
    job = Job(prompt=PROMPT, budget=budget, **job)
    return decode_plain(view, job, greedy_policy(view))


@pytest.mark.parametrize(
    ("name", "step"),
    [("gpt2", 1), ("llama", 3)]
    + [(name, 23) for name in ("qwen2", "gemma3", "mistral", "phi3", "granite")],
)
def test_a01_output_ends_right_after_the_first_eos(name, step):
    """Every token of the free output plays EOS once; exits and draft lengths rotate over them."""
    view = damped_view(name)  # drafts are accepted often, so EOS falls into the middle of rounds
    free = _plain(view).output
    inside = 0
    for i, eos in enumerate(sorted(set(free))):
        expected = free[: free.index(eos) + 1]
        assert library_greedy(view.model, PROMPT, 24, eos_token_id=eos) == expected
        job = Job(prompt=PROMPT, budget=24, eos_ids=frozenset({eos}))
        for exit_layer, k in CELLS[i % step :: step]:
            state, rounds = decode_speculative(view, job, greedy_policy(view), exit_layer, k)
            where = f"EOS {eos}, L={exit_layer}, k={k}"
            assert state.output == expected, f"{where}: {state.output} != {expected}"
            assert state.finish == "eos", where
            assert not broken_counts(rounds, state.output), where
            if rounds and rounds[-1].num_committed == rounds[-1].num_accepted:
                inside += 1
                assert rounds[-1].num_tested == rounds[-1].num_accepted, f"{where}: {rounds[-1]}"
    assert inside >= 10, f"only {inside} runs ended on an accepted EOS"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", [1, 2, 3, 5, 24])
def test_a03_never_more_tokens_than_the_budget(name, budget):
    view = tiny_view(name)
    expected = _plain(view, 24).output[:budget]
    for exit_layer in range(1, N + 1):
        job = Job(prompt=PROMPT, budget=budget)
        state, rounds = decode_speculative(view, job, greedy_policy(view), exit_layer, 8)
        assert state.output == expected, f"L={exit_layer}: {len(state.output)} of {budget} tokens"
        assert state.finish == "length"
        assert not broken_counts(rounds, state.output)
        drafted = [made.num_drafted for made in rounds]
        assert all(n <= budget - 2 for n in drafted), f"drafts {drafted} past budget {budget}"
        if budget == 1:
            assert rounds == [], "a budget of one token is met by the prefill alone"


def test_last_round_shortens_its_draft_to_the_budget():
    """10 tokens at L = N, k = 8: x_0, then 8 drafts would overrun by none; 9 committed."""
    view = tiny_view("llama")
    for budget, drafted in ((10, [8]), (9, [7]), (3, [1]), (2, [0]), (12, [8, 1]), (11, [8, 0])):
        _, rounds = decode_speculative(
            view, Job(prompt=PROMPT, budget=budget), greedy_policy(view), N, 8
        )
        made = [r.num_drafted for r in rounds]
        assert made == drafted, f"budget {budget}: drafted {made}, expected {drafted}"


def test_budget_of_zero_makes_nothing():
    for state in (
        _plain(tiny_view("llama"), 0),
        decode_speculative(
            tiny_view("llama"),
            Job(prompt=PROMPT, budget=0),
            greedy_policy(tiny_view("llama")),
            3,
            4,
        )[0],
    ):
        assert (state.output, state.finish) == ([], "length")


def test_several_eos_ids_end_at_whichever_comes_first():
    view = tiny_view("llama")
    free = _plain(view).output
    state = _plain(view, eos_ids=frozenset({free[9], free[4]}))
    assert state.output == free[: min(free.index(free[4]), free.index(free[9])) + 1]


@pytest.mark.parametrize("last", [2, 5, 6, 7, 11])
def test_stop_string_cuts_inside_a_round(last):
    """A stop sequence ends with output token `last`; full-depth drafts accept past it."""
    view = tiny_view("llama")
    free = _plain(view).output
    stop = free[last - 1 : last + 1]
    first = next(i for i in range(1, 24) if free[i - 1 : i + 1] == stop)
    asked = []

    def stopped(output):
        asked.append(len(output))
        return list(output[-2:]) == stop

    expected = free[: first + 1]
    assert _plain(view, stopped=stopped).output == expected
    for exit_layer, k in itertools.product((3, N), (1, 4, 8)):
        asked.clear()
        job = Job(prompt=PROMPT, budget=24, stopped=stopped)
        state, rounds = decode_speculative(view, job, greedy_policy(view), exit_layer, k)
        assert (state.output, state.finish) == (expected, "stop"), f"L={exit_layer} k={k}"
        assert not broken_counts(rounds, state.output)
        assert asked == list(range(1, len(expected) + 1)), "asked once a committed token"


def test_eos_wins_over_stop_and_length_at_the_same_token():
    view = tiny_view("llama")
    free = _plain(view).output
    eos = next(token for i, token in enumerate(free) if token not in free[:i] and i == 4)
    job = {"eos_ids": frozenset({eos}), "stopped": lambda output: output[-1] == eos}
    assert _plain(view, 5, **job).finish == "eos"


@pytest.mark.parametrize("exit_layer", [0, 7, -1])
def test_a26_exit_layer_outside_the_model_is_an_input_error(exit_layer):
    view = tiny_view("llama")
    with pytest.raises(ModelError, match=r"exit layer -?\d is outside 1\.\.6") as refused:
        decode_speculative(view, Job(prompt=PROMPT, budget=4), greedy_policy(view), exit_layer, 2)
    assert refused.value.exit_code == 2
    assert view.model.config.num_hidden_layers == N


def test_draft_length_below_one_is_an_input_error():
    view = tiny_view("llama")
    with pytest.raises(ModelError, match="draft length 0 is below 1"):
        decode_speculative(view, Job(prompt=PROMPT, budget=4), greedy_policy(view), 3, 0)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_request_beyond_the_models_positions_is_refused_before_any_forward(name):
    view = tiny_view(name)
    fits = Job(prompt=prompts(range(150, 151))[0], budget=10)
    assert len(decode_plain(view, fits, greedy_policy(view)).output) == 10
    with pytest.raises(ModelError, match="150 and 11 output tokens exceed the model's 160"):
        Decoder(view, Job(prompt=fits.prompt, budget=11), greedy_policy(view))


def test_empty_prompt_is_refused():
    with pytest.raises(ModelError, match="zero tokens"):
        Decoder(tiny_view("llama"), Job(prompt=(), budget=4), greedy_policy(tiny_view("llama")))
