"""Scores of all exits at once against the same computed one law at a time."""

import functools

import numpy as np
import pytest
import torch
from checkpoints import random_model
from plain_score import plain_law, plain_score
from replay_helpers import view_of

from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.linear_kernel import KernelLinear
from selfspec_cli.records import Sampling
from selfspec_cli.replay import exit_heads
from selfspec_cli.replay.exit_heads import has_top
from selfspec_cli.replay.score import score
from selfspec_cli.replay.setting import Laws

VOCAB = 2000  # more than top-p looks at first
EXITS, POSITIONS = 5, 70  # positions beyond one chunk
PROMPT, EOS = (5, 9, 11, 5), (2,)
SAMPLINGS = {
    "plain": {},
    "top-k": {"top_k": 30},
    "top-p": {"top_p": 0.9},
    "flat top-p": {"top_p": 0.97, "temperature": 6.0},
    "both": {"top_p": 0.8, "top_k": 50},
    "repetition": {"repetition_penalty": 1.3},
    "below 1": {"repetition_penalty": 0.8},
    "counts": {"frequency_penalty": 0.4, "presence_penalty": 0.2},
    "bans": {"min_tokens": 40, "logit_bias": ((7, 2.0), (9, -100.0))},
    "all": {
        "top_p": 0.9, "top_k": 60, "repetition_penalty": 1.2, "frequency_penalty": 0.3,
        "presence_penalty": -0.2, "min_tokens": 12, "logit_bias": ((7, 2.0),),
    },
}  # fmt: skip


@functools.cache
def view(family="llama", **config):
    return view_of(random_model(family, vocab_size=VOCAB, **config))


def stretch(view, exits=EXITS, positions=POSITIONS):
    """States [exits + 1, positions, H], exits nearer to the full depth the deeper; and a path."""
    generator = torch.Generator().manual_seed(4)
    shape = (exits + 1, positions, view.hidden_size)
    noise = torch.randn(shape, generator=generator)
    far = torch.linspace(1.5, 0.0, exits + 1)[:, None, None]
    states = (torch.randn(shape[1:], generator=generator) + far * noise).to(view.dtype)
    tokens = torch.randint(3, 40, (positions,), generator=generator)  # repeats itself
    best = view.head(states[-1]).argmax(-1)
    return states, torch.where(torch.arange(positions) % 3 == 0, tokens, best).tolist()


def laws_for(sampling, truncation="same"):
    """The product's laws, and the reference's target and draft law."""
    common = (sampling, VOCAB, PROMPT)
    target = Processor(*common, eos_ids=EOS)
    draft = Processor(*common, eos_ids=EOS, truncate=truncation == "same")
    plain = [plain_law(sampling, PROMPT, EOS, truncate=t) for t in (True, truncation == "same")]
    return Laws(target=target, draft=draft), *plain


@torch.inference_mode()
def compare(view, sampling, truncation="same"):
    """Largest difference of each score, relative above 1, over a stretch with 3 tokens before."""
    states, tokens = stretch(view)
    laws, *plain = laws_for(sampling, truncation)
    got = score(view, states, tokens, [8, 9, 8], laws)
    want = plain_score(view.head, states, tokens, [8, 9, 8], *plain)
    worst = {}
    for name, values in want.items():
        if name == "path_gap":
            continue
        x, y = getattr(got, name).astype(np.float64), values.numpy().astype(np.float64)
        assert np.array_equal(np.isnan(x), np.isnan(y)), f"{name}: missing elsewhere"
        gap = np.abs(x - y) / np.maximum(1.0, np.abs(y))
        worst[name] = float(np.nanmax(gap, initial=0.0))
    assert 0.1 < got.is_argmax.mean() < 0.9, f"{got.is_argmax.mean()} agree: nothing is shown"
    return worst


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
@pytest.mark.parametrize("kind", SAMPLINGS)
def test_scores_are_those_of_one_law_at_a_time(kind, temperature):
    """r and beta within 1e-5, nats within 3e-5 relative, agreement everywhere."""
    worst = compare(view(), Sampling(**{"temperature": temperature, **SAMPLINGS[kind]}))
    assert worst.pop("is_argmax") == 0.0, "an exit's argmax is another"
    for name, gap in worst.items():
        bound = 1e-5 if name.startswith("accept") else 3e-5
        assert gap <= bound, f"{name} differs by {gap:.3g}"


@pytest.mark.parametrize("kind", ["top-p", "both", "all"])
def test_an_untruncated_draft_law_is_so_beside_a_truncated_target(kind):
    sampling = Sampling(**{"temperature": 0.7, **SAMPLINGS[kind]})
    worst = compare(view(), sampling, "none")
    assert max(worst.values()) <= 3e-5, worst
    states, tokens = stretch(view())
    none, same = (
        score(view(), states, tokens, [], laws_for(sampling, how)[0]) for how in ("none", "same")
    )
    fell = int((none.accept_prob < same.accept_prob - 1e-3).sum())
    assert fell > 50, f"beta fell at {fell} positions only: the option does nothing"


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_models_whose_head_is_more_than_a_matrix(temperature):
    """A softcap, a divisor, a bias, the compiled engine's kernel, no linear layer at all."""
    heads = [view("gemma2", final_logit_softcapping=3.0), view("granite", logits_scaling=0.5)]
    for kind in ("bias", "kernel", "other"):
        changed = view_of(random_model("llama", vocab_size=VOCAB, seed=2))
        plain, changed._head = changed._head, torch.nn.Linear(changed.hidden_size, VOCAB)
        changed._head.weight.data.copy_(plain.weight)
        changed._head.bias.data.normal_(std=2.0, generator=torch.Generator().manual_seed(3))
        if kind == "kernel":
            changed._head = KernelLinear(changed._head)
        if kind == "other":
            changed._head = torch.nn.Sequential(changed._head)
        heads.append(changed)
    for one in heads:
        worst = compare(one, Sampling(temperature=temperature))
        assert max(worst.values()) <= 3e-5, f"{one._head}: {worst}"
    asked = torch.zeros(1, 1, changed.hidden_size), torch.zeros(1, 1, dtype=torch.long)
    assert [one.head_of(*asked) is None for one in heads] == [False] * 4 + [True]


def test_half_precision_is_scored_in_float32():
    """bfloat16 logits, upcast: as the reference does it, up to one rounding of a product."""
    model = random_model("llama", vocab_size=VOCAB, gain=4.0).to(torch.bfloat16)
    worst = compare(view_of(model), Sampling(temperature=0.7))
    assert worst["accept_prob"] < 0.01, worst
    assert worst["entropy"] < 0.01, worst


def test_no_exit_and_one_position():
    """Only the target is scored; and a stretch of a single token."""
    states, tokens = stretch(view())
    for temperature in (0.0, 0.7):
        laws, *_ = laws_for(Sampling(temperature=temperature))
        with torch.inference_mode():
            none = score(view(), states[-1:], tokens, [], laws)
            one = score(view(), states[:, :1], tokens[:1], [], laws)
        assert none.accept_prob.shape == (0, POSITIONS)
        assert one.accept_prob.shape == (EXITS, 1)
        assert none.path_is_argmax.sum() >= POSITIONS // 2


def test_ties_go_to_the_lowest_id():
    """Logits of few values tie everywhere; taking ties for agreement would differ often."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randint(0, 4, (6, 50, 30), generator=generator).float()
    top = torch.randint(0, 30, (50,), generator=generator)
    top[:25] = logits[0, :25].argmax(-1)
    kept = logits.clone()
    want = logits.argmax(-1) == top
    assert torch.equal(has_top(logits, top), want)
    assert torch.equal(logits, kept), "the logits were not restored"
    generous = logits.gather(-1, top.expand(6, 50)[..., None])[..., 0] == logits.amax(-1)
    differ = int((generous != want).sum())
    assert differ > 20, f"ties decide {differ} of 300 only"


class Counting:
    """A view that counts the rows its head is asked for."""

    def __init__(self, view):
        self._view, self.rows = view, 0

    def __getattr__(self, name):
        return getattr(self._view, name)

    def head(self, hidden):
        self.rows += hidden.shape[:-1].numel()
        return self._view.head(hidden)


def test_runners_up_settle_most_disagreements(monkeypatch):
    """Exits that prefer a runner-up skip their head; a twin that takes less for more is wrong."""
    states, tokens = stretch(view())
    laws, law, _ = laws_for(Sampling(temperature=0.0))
    want = plain_score(view().head, states, tokens, [], law)["is_argmax"].numpy()
    counting = Counting(view())
    got = score(counting, states, tokens, [], laws)
    assert np.array_equal(got.is_argmax, want)
    asked = counting.rows - POSITIONS  # the target's aside
    spared = EXITS * POSITIONS - asked
    assert spared >= 0.7 * (~want).sum(), f"{spared} heads of {(~want).sum()} were spared"
    assert asked >= want.sum(), f"agreement of {want.sum()} rows from {asked} heads"
    monkeypatch.setattr(exit_heads, "slack_of", lambda view: -2.0)
    twin = score(view(), states, tokens, [], laws)
    assert (twin.is_argmax != want).sum() > 5, "a runner-up that loses would go unseen"
