"""Equal, a numeric tie, or a fault: what a difference of greedy outputs is called."""

import copy

import pytest
import torch
from tiny import NAMES, damped_view, greedy_policy, prompts, tiny_view, view_of

from selfspec_cli.engine.decoder import Job, decode_plain, decode_speculative
from selfspec_cli.engine.exactness import TIE_TOLERANCE, compare_outputs, plain_gap

PROMPTS = prompts(range(4, 12))
BUDGET = 40


def _never_asked(position: int) -> float:
    raise AssertionError(f"the gap at {position} was asked for")


def test_equal_outputs_have_no_difference_and_cost_no_forward():
    assert compare_outputs([1, 2, 3], [1, 2, 3], _never_asked, torch.float32) is None
    assert compare_outputs([], [], _never_asked, torch.float32) is None


@pytest.mark.parametrize(
    ("gap", "dtype", "is_tie"),
    [
        (9e-5, torch.float32, True),
        (1e-4, torch.float32, False),
        (2e-2, torch.float16, True),
        (7e-2, torch.float16, False),
        (0.25, torch.bfloat16, True),
        (0.6, torch.bfloat16, False),
        (0.0, torch.float32, True),
    ],
)
def test_gap_below_the_tolerance_is_a_tie(gap, dtype, is_tie):
    found = compare_outputs([5, 6, 7], [5, 9, 7], {1: gap}.__getitem__, dtype)
    assert (found.position, found.plain_token, found.speculative_token) == (1, 6, 9)
    assert (found.top2_gap, found.is_tie) == (gap, is_tie)
    assert found.tolerance == TIE_TOLERANCE[dtype]


@pytest.mark.parametrize(("plain", "speculative"), [([1, 2], [1, 2, 3]), ([1, 2, 3], [1, 2])])
def test_another_length_is_never_a_tie(plain, speculative):
    found = compare_outputs(plain, speculative, _never_asked, torch.bfloat16)
    assert found.position == 2
    assert {found.plain_token, found.speculative_token} == {3, None}
    assert not found.is_tie


def test_message_gives_position_tokens_gap_and_verdict():
    found = compare_outputs([5, 6], [5, 9], lambda _: 0.03, torch.float32)
    for part in ("position 1", "plain 6", "speculative 9", "0.03", "not a tie", "0.0001"):
        assert part in str(found)


@pytest.mark.parametrize("name", NAMES)
def test_plain_gap_is_that_of_the_librarys_logits(name):
    view = tiny_view(name)
    prompt = PROMPTS[3]
    policy = greedy_policy(view, prompt)
    plain = decode_plain(view, Job(prompt=prompt, budget=12), policy).output
    for position in (0, 1, 11):
        ids = torch.tensor([[*prompt, *plain[:position]]])
        with torch.inference_mode():
            best, second = view.model(input_ids=ids).logits[0, -1].topk(2).values
        gap = plain_gap(view, prompt, plain, position, policy.target)
        assert gap == pytest.approx(float(best - second), abs=1e-4)


def test_plain_gap_is_of_processed_logits():
    view = tiny_view("llama")
    policy = greedy_policy(view, PROMPTS[0], logit_bias=((9, 50.0),))
    assert plain_gap(view, PROMPTS[0], [9, 9], 1, policy.target) > 30


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a06_low_precision_differences_are_listed_and_are_ties(dtype):
    """Every differing row comes with position, both tokens and a gap, and rounding explains it."""
    listed, rows = [], 0
    for name in NAMES:
        view = view_of(copy.deepcopy(tiny_view(name).model).to(dtype))
        for prompt in PROMPTS[:: 2 if dtype == torch.bfloat16 else 4]:
            job = Job(prompt=prompt, budget=BUDGET)
            policy = greedy_policy(view, prompt)
            plain = decode_plain(view, job, policy).output
            output = decode_speculative(view, job, policy, 3, 8)[0].output
            rows += 1
            found = compare_outputs(plain, output, _gap_at(view, prompt, plain, policy), dtype)
            if found is not None:
                listed.append((name, str(found), found.is_tie))
    faults = [entry for entry in listed if not entry[2]]
    assert not faults, f"{len(faults)} of {rows} rows: {faults[:3]}"
    if dtype == torch.bfloat16:
        assert listed, f"no row of {rows} differs, so this test shows nothing"


def _gap_at(view, prompt, plain, policy):
    return lambda position: plain_gap(view, prompt, plain, position, policy.target)


def test_a_fault_of_the_decoder_is_no_tie():
    """Twin: the draft's own text instead of the target's. Its differences have wide gaps."""
    view = damped_view("llama")
    faults = 0
    for prompt in PROMPTS:
        policy = greedy_policy(view, prompt)
        plain = decode_plain(view, Job(prompt=prompt, budget=BUDGET), policy).output
        unverified = _draft_alone(view, prompt)
        gap_at = _gap_at(view, prompt, plain, policy)
        found = compare_outputs(plain, unverified, gap_at, torch.float32)
        faults += found is not None and not found.is_tie
    assert faults >= 6, f"only {faults} of {len(PROMPTS)} unverified drafts are called faults"


def _draft_alone(view, prompt) -> list[int]:
    text = list(prompt)
    with torch.inference_mode():
        for _ in range(BUDGET):
            cache = view.new_cache(capacity=len(text))
            states = view.run(view.embed(torch.tensor([text]), cache), cache, 0, 3)
            text.append(int(view.head(states[0, -1]).argmax()))
    return text[len(prompt) :]
