"""The wired decoder at temperature > 0: rounds on a tiny model follow the library's exact laws.

False alarm: 1e-6 for all honest cases together (Bonferroni over their p-values); seeds are fixed.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from law_check import binomial, chi_square
from tiny import COMMON, CONFIGS, V, build, damp, prompts, view_of

from selfspec_cli.engine.decoder import Decoder, Job
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.policies import SampledPolicy
from selfspec_cli.engine.selfcheck import truncated_model
from selfspec_cli.engine.verify import Verdict, draw, verify
from selfspec_cli.records import Sampling

PROMPT = prompts(range(6, 7))[0]
FIRST = 77  # the committed token that every text starts with
EXIT = 1  # of three layers
TEXTS = 2400
TWIN_TEXTS = 1000
BINS = 50

WHOLE = Sampling(temperature=0.7)
CUT = Sampling(temperature=0.7, top_p=0.8)
CASES = {
    "k = 1": (WHOLE, True, 1),
    "k = 3, top-p of both": (CUT, True, 3),
    "k = 1, top-p of the target only": (CUT, False, 1),
}
CHECKS = 6
ALPHA = 1e-6 / (CHECKS * len(CASES))


@dataclass(frozen=True)
class Exact:
    """Laws after FIRST and after FIRST and each token, from the library's own forward."""

    p: np.ndarray
    """[V]"""
    q: np.ndarray
    p_next: np.ndarray
    """[V, V]"""


def _view():
    model = build(**{**COMMON, **CONFIGS["llama"], "num_hidden_layers": 3})
    return view_of(damp(model, EXIT, 0.5))


def _laws(model, texts: list[list[int]], processor: Processor) -> np.ndarray:
    """Laws [n, V] after the prompt and each text, by the library without any cache."""
    ids = torch.tensor([[*PROMPT, *text] for text in texts])
    with torch.inference_mode():
        logits = model(input_ids=ids, use_cache=False).logits[:, -1].float()
    return processor.laws(logits, []).double().numpy()


def _exact(view, target: Processor, draft: Processor) -> Exact:
    return Exact(
        p=_laws(view.model, [[FIRST]], target)[0],
        q=_laws(truncated_model(view, EXIT), [[FIRST]], draft)[0],
        p_next=_laws(view.model, [[FIRST, token] for token in range(V)], target),
    )


def _policy(kind, sampling: Sampling, both: bool, k: int) -> SampledPolicy:
    target = Processor(sampling, V, PROMPT)
    draft = Processor(sampling, V, PROMPT, truncate=both)
    return kind(target, torch.Generator().manual_seed(9), max_draft=k, draft=draft)


@dataclass
class Drawn:
    """Texts of at least three tokens after FIRST, and whether the first round rejected at once."""

    texts: list[list[int]]
    accepted: list[int]


def _texts(view, policy, k: int, n: int, kind=Decoder) -> Drawn:
    drawn = Drawn([], [])
    state = kind(view, Job(prompt=PROMPT, budget=12), policy, max_draft=k)
    state.prefill()
    for _ in range(n):
        state.output[:] = [FIRST]
        state.rewind(1)
        drawn.accepted.append(state.round(EXIT, k).num_accepted)
        while len(state.output) < 4:
            state.round(EXIT, k)
        drawn.texts.append(state.output[:])
    return drawn


def _check(view, policy, k: int, drawn: Drawn) -> dict[str, float]:
    exact = _exact(view, policy.target, policy.draft)
    first, second = (np.array([text[at] for text in drawn.texts]) for at in (1, 2))
    accepted = np.array(drawn.accepted)
    kept, rest = np.minimum(exact.p, exact.q), np.clip(exact.p - exact.q, 0, None)
    n = len(first)
    rejected = accepted == 0
    return {
        "first": chi_square(np.bincount(first, minlength=V), n * exact.p),
        "second": _pairs(first, second, n * exact.p[:, None] * exact.p_next),
        "recovered": _given(first[rejected], rest),
        "after rejection": _pairs_given(first[rejected], second[rejected], rest, exact.p_next),
        "third": _uniformity(view, policy.target, drawn, accepted == k),
        "accepted": binomial(int((~rejected).sum()), n, kept.sum()),
    }


def _pairs(first, second, expected) -> float:
    counts = np.zeros((V, V))
    np.add.at(counts, (first, second), 1)
    return chi_square(counts, expected)


def _given(tokens, weights) -> float:
    return chi_square(np.bincount(tokens, minlength=V), len(tokens) * weights / weights.sum())


def _pairs_given(first, second, weights, p_next) -> float:
    return _pairs(first, second, len(first) * (weights / weights.sum())[:, None] * p_next)


def _uniformity(view, target: Processor, drawn: Drawn, full: np.ndarray) -> float:
    """Third tokens of texts whose first round was accepted whole, each against its own law.

    The distribution function at a token, spread evenly over the token's own mass, is uniform if
    the token follows its law. At k = 1 the third token opens the round after full acceptance.
    """
    texts = [text for text, is_full in zip(drawn.texts, full, strict=True) if is_full]
    laws = _laws(view.model, [text[:3] for text in texts], target)
    tokens = np.array([text[3] for text in texts])
    rows = np.arange(len(texts))
    if (laws[rows, tokens] == 0).any():
        return 0.0
    upto = laws.cumsum(axis=1)[rows, tokens]
    spread = np.random.default_rng(1).random(len(texts))
    values = upto - spread * laws[rows, tokens]
    counts = np.histogram(values, bins=BINS, range=(0, 1 + 1e-9))[0]
    return chi_square(counts, np.full(BINS, len(texts) / BINS))


@pytest.mark.parametrize("case", CASES)
def test_rounds_follow_the_librarys_laws(case):
    """First, second and third token, after a rejection, after full acceptance, and Σ min(p, q).

    False alarm 1e-6 over the cases; 2,400 texts see about 0.1 in total variation of one token.
    """
    sampling, both, k = CASES[case]
    view = _view()
    policy = _policy(SampledPolicy, sampling, both, k)
    drawn = _texts(view, policy, k, TEXTS)
    found = _check(view, policy, k, drawn)
    assert len(found) == CHECKS
    assert min(found.values()) > ALPHA, f"{case}: p-values {found}"
    full, rejected = drawn.accepted.count(k), drawn.accepted.count(0)
    assert min(full, rejected) > 300, f"{full} full acceptances, {rejected} rejections"


class ResamplesFromTarget(SampledPolicy):
    """Twin: the replacement after a rejection is drawn from p."""

    def settle(self, logits, output, drafted):
        verdict = super().settle(logits, output, drafted)
        if verdict.kind == "bonus":
            return verdict
        law = self.target.laws(logits, output, drafted)[verdict.num_accepted]
        return Verdict(verdict.num_accepted, draw(law, float(self.uniforms(1))), verdict.kind)


class DropsWeakDraws(SampledPolicy):
    """Twin: looks at a draft after drawing it, and drops it and what follows if q is small."""

    def settle(self, logits, output, drafted):
        q = [float(self._laws[i, token]) for i, token in enumerate(drafted)]
        k = next((i for i, value in enumerate(q) if value < 0.02), len(drafted))
        target = self.target.laws(logits[: k + 1], output, drafted[:k])
        tokens = torch.tensor(drafted[:k], dtype=torch.long)
        return verify(tokens, self._laws[:k], target, self.uniforms(k + 1))


class ArgmaxDraft(SampledPolicy):
    """Twin: drafts the most likely token but keeps the soft law as q."""

    def propose(self, logits, output, drafted):
        super().propose(logits, output, drafted)
        return int(self._laws[len(drafted)].argmax())


class AnotherLaw(SampledPolicy):
    """Twin: keeps the law before temperature, not the one the draft was drawn from."""

    def propose(self, logits, output, drafted):
        token = super().propose(logits, output, drafted)
        self._laws[len(drafted)] = torch.softmax(logits[0], dim=-1)
        return token


class OneTooMany(Decoder):
    """Twin: rolls back to one position more than was committed."""

    def _roll_back(self) -> None:
        super()._roll_back()
        self.cache.lengths = [[n + 1 for n in lengths] for lengths in self.cache.lengths]

    def rewind(self, num_output):
        del self.output[num_output:]
        self.finish = None
        Decoder._roll_back(self)


TWINS = {
    ResamplesFromTarget: "recovered",
    DropsWeakDraws: "first",
    ArgmaxDraft: "first",
    AnotherLaw: "recovered",
}


@pytest.mark.parametrize("twin", TWINS)
def test_broken_policy_is_caught(twin):
    view = _view()
    policy = _policy(twin, WHOLE, True, 1)
    found = _check(view, policy, 1, _texts(view, policy, 1, TWIN_TEXTS))
    assert found[TWINS[twin]] < ALPHA, f"{twin.__name__}: p-values {found}"


def test_rollback_off_by_one_is_caught_by_the_law_of_the_next_token():
    view = _view()
    policy = _policy(SampledPolicy, WHOLE, True, 1)
    found = _check(view, policy, 1, _texts(view, policy, 1, TWIN_TEXTS, OneTooMany))
    assert found["first"] > ALPHA, "the first round runs on a clean cache"
    assert found["after rejection"] < ALPHA, f"p-values {found}"
