"""Sampled tokens against exact laws: chi-square over pooled cells, and a toy to draw them from.

The toy is a model whose law at a position depends on the class of the token before it, so a fault
at one token also shows in the law of the next. The laws are made by the engine's own processing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.verify import Verdict, draw, residual, verify
from selfspec_cli.records import Sampling

V = 200
CLASSES = 4
K = 2  # drafts a round
MIN_EXPECTED = 5.0  # of a cell of a chi-square


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    """p-value of counts against expected counts; cells are pooled up to `MIN_EXPECTED`.

    A count where nothing is expected gives 0: a law has no such token.
    """
    observed, expected = np.ravel(observed), np.ravel(expected)
    if observed[expected <= 0].sum() > 0:
        return 0.0
    order = np.argsort(-expected, kind="stable")
    order = order[expected[order] > 0]
    cells = np.empty(len(order), dtype=int)
    cell, held = 0, 0.0
    for at, index in enumerate(order):
        cells[at] = cell
        held += expected[index]
        if held >= MIN_EXPECTED:
            cell, held = cell + 1, 0.0
    last = max(cell - 1, 0)
    cells[cells > last] = last  # what is left joins the last full cell
    o = np.bincount(cells, observed[order], minlength=last + 1)
    e = np.bincount(cells, expected[order], minlength=last + 1)
    return float(stats.chi2.sf(((o - e) ** 2 / e).sum(), last)) if last else 1.0


def binomial(count: int, trials: int, share: float) -> float:
    """Two-sided p-value of a count."""
    return float(stats.binomtest(count, trials, min(1.0, max(0.0, share))).pvalue)


@dataclass(frozen=True, kw_only=True)
class Toy:
    """Laws [position, class of the token before, V] of target and draft."""

    p: Tensor
    q: Tensor


def make_toy(sampling: Sampling, *, truncate_draft: bool = True, seed: int = 11) -> Toy:
    """Three positions; q differs from p as an early exit does, by noise on the logits."""
    generator = torch.Generator().manual_seed(seed)
    target = 1.6 * torch.randn(K + 1, CLASSES, V, generator=generator)
    draft = 0.9 * target + 0.9 * torch.randn(K + 1, CLASSES, V, generator=generator)
    processing = Processor(sampling, V), Processor(sampling, V, truncate=truncate_draft)
    laws = [
        proc.laws(logits.reshape(-1, V), []).reshape(K + 1, CLASSES, V)
        for proc, logits in zip(processing, (target, draft), strict=True)
    ]
    return Toy(p=laws[0], q=laws[1])


def _keep_all(_law: Tensor, _token: int) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How a round drafts and verifies; the product's by default, a broken twin's otherwise."""

    propose: Callable[[Tensor, float], int] = draw
    keep: Callable[[Tensor, int], bool] = _keep_all
    """Whether a drawn token stays in the draft; the product keeps each."""
    verify: Callable[[Tensor, Tensor, Tensor, Tensor], Verdict] = verify


@dataclass
class Sample:
    """Counts over simulated texts of two tokens, and of the first round's end."""

    first: np.ndarray
    second: np.ndarray
    """[class of the first token, second token]"""
    recovered: np.ndarray
    after_rejection: np.ndarray
    """[class, token]: second token where the first was recovered."""
    bonus: np.ndarray
    """[class of the last draft, bonus token] after full acceptance."""
    accepted_first: int = 0
    n: int = 0


def simulate(toy: Toy, rule: Rule, n: int, seed: int) -> Sample:
    """Draw n texts of two tokens by rounds of the rule."""
    sample = Sample(
        *(np.zeros(shape) for shape in ((V,), (CLASSES, V), (V,)) + 2 * ((CLASSES, V),))
    )
    uniforms = np.random.default_rng(seed).random((n, 2, 2 * K + 1))
    for one in uniforms:
        text, verdict, drafted = _text(toy, rule, one)
        sample.n += 1
        sample.first[text[0]] += 1
        sample.second[text[0] % CLASSES, text[1]] += 1
        sample.accepted_first += verdict.num_accepted >= 1
        if verdict.num_accepted == 0 and drafted:
            sample.recovered[text[0]] += 1
            sample.after_rejection[text[0] % CLASSES, text[1]] += 1
        if verdict.num_accepted == K:
            sample.bonus[text[1] % CLASSES, text[2]] += 1
    return sample


def _text(toy: Toy, rule: Rule, uniforms: np.ndarray) -> tuple[list[int], Verdict, int]:
    text: list[int] = []
    verdict, drafted = _round(toy, rule, 0, 0, uniforms[0])
    text += [*drafted[: verdict.num_accepted], verdict.next_token]
    if len(text) < 2:
        second, more = _round(toy, rule, 1, text[0] % CLASSES, uniforms[1])
        text += [*more[: second.num_accepted], second.next_token]
    return text, verdict, len(drafted)


def _round(toy: Toy, rule: Rule, start: int, before: int, u: np.ndarray):
    drafted, q, p, state = [], [], [toy.p[start, before]], before
    for i in range(min(K, K - start)):
        law = toy.q[start + i, state]
        token = rule.propose(law, u[i])
        if not rule.keep(law, token):
            break
        drafted.append(token)
        state = token % CLASSES
        q.append(law)
        p.append(toy.p[start + i + 1, state])
    k = len(drafted)
    laws = torch.stack(q) if q else torch.empty(0, V)
    coins = torch.from_numpy(u[K : K + k + 1])
    return rule.verify(
        torch.tensor(drafted, dtype=torch.long), laws, torch.stack(p), coins
    ), drafted


def check(toy: Toy, sample: Sample) -> dict[str, float]:
    """p-values of a sample against the exact laws of lossless decoding."""
    p, q = toy.p.double().numpy(), toy.q.double().numpy()
    kept = np.minimum(p, q)
    rest = residual(toy.p[0, 0].double(), toy.q[0, 0].double()).numpy()
    n = sample.n
    return {
        "first": chi_square(sample.first, n * p[0, 0]),
        "second": chi_square(sample.second, n * _by_class(p[0, 0])[:, None] * p[1]),
        "recovered": _given(sample.recovered, rest),
        "after rejection": _given(sample.after_rejection, _by_class(rest)[:, None] * p[1]),
        "bonus": _given(sample.bonus, (_by_class(kept[0, 0]) @ _last(kept[1]))[:, None] * p[2]),
        "accepted": binomial(sample.accepted_first, n, kept[0, 0].sum()),
    }


def _by_class(law: np.ndarray) -> np.ndarray:
    return np.array([law[c::CLASSES].sum() for c in range(CLASSES)])


def _last(kept: np.ndarray) -> np.ndarray:
    """[class before, class of the accepted draft]."""
    return np.stack([_by_class(row) for row in kept])


def _given(observed: np.ndarray, weights: np.ndarray) -> float:
    """Chi-square of counts against weights, given their total."""
    return chi_square(observed, observed.sum() * weights / weights.sum())
