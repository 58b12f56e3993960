"""Sampled rounds follow the target's law; each broken rule is seen by the same check.

False alarm: 1e-6 for this file's honest rules together (Bonferroni over their p-values); seeds are
fixed, so a run is repeatable.
"""

import numpy as np
import pytest
import torch
from law_check import CLASSES, K, Rule, V, binomial, check, chi_square, make_toy, simulate

from selfspec_cli.engine.verify import Verdict, draw, residual, verify
from selfspec_cli.records import Sampling

N = 24_000
LAWS = {
    "whole": (Sampling(temperature=0.8), True),
    "top-p of both": (Sampling(temperature=0.8, top_p=0.8), True),
    "top-p of the target only": (Sampling(temperature=0.8, top_p=0.8), False),
}
CHECKS = 6
ALPHA = 1e-6 / (CHECKS * len(LAWS))


def _toy(name: str):
    sampling, both = LAWS[name]
    return make_toy(sampling, truncate_draft=both)


@pytest.mark.parametrize("name", LAWS)
def test_sampled_rounds_follow_the_target(name):
    """First and second token, after a rejection, after full acceptance, and Σ min(p, q).

    False alarm 1e-6 over the three cases. At 150 pooled cells an error of about 0.03 in total
    variation of the first token is seen: n times its chi-square distance is then above 100.
    """
    toy = _toy(name)
    sample = simulate(toy, Rule(), N, seed=2)
    found = check(toy, sample)
    assert len(found) == CHECKS
    assert min(found.values()) > ALPHA, f"{name}: p-values {found}"
    assert sample.recovered.sum() > 1000, f"{sample.recovered.sum()} rejections"
    assert sample.bonus.sum() > 1000, f"{sample.bonus.sum()} full acceptances"


def test_truncated_draft_outside_the_targets_support_is_really_drawn():
    """Else the target-only case would be the case of both."""
    toy = _toy("top-p of the target only")
    outside = float(toy.q[0, 0][toy.p[0, 0] == 0].sum())
    assert outside > 0.05, f"mass of q where p is 0: {outside:.3f}"
    assert int((toy.p[0, 0] > 0).sum()) < V


def _resample_from_target(tokens, q, p, u):
    verdict = verify(tokens, q, p, u)
    if verdict.kind == "bonus":
        return verdict
    return Verdict(verdict.num_accepted, draw(p[verdict.num_accepted], float(u[-1])), verdict.kind)


def _replace(make):
    """A rule that draws the replacement after a rejection from make(p, q) instead."""

    def rule(tokens, q, p, u):
        verdict = verify(tokens, q, p, u)
        if verdict.kind == "bonus":
            return verdict
        at = verdict.num_accepted
        return Verdict(at, draw(make(p[at], q[at]), float(u[-1])), verdict.kind)

    return rule


def _only_log_q(tokens, q, p, u):
    """Keeps log q(x) of each draft alone; with no law left the replacement comes from p."""
    log_q = [float(law[token].log()) for law, token in zip(q, tokens, strict=True)]
    for i, token in enumerate(tokens.tolist()):
        if np.log(max(float(u[i]), 1e-300)) >= float(p[i, token].log()) - log_q[i]:
            return Verdict(i, draw(p[i], float(u[-1])), "recovered")
    return Verdict(len(tokens), draw(p[-1], float(u[-1])), "bonus")


def _equality(tokens, _q, p, u):
    for i, token in enumerate(tokens.tolist()):
        wanted = draw(p[i], float(u[i]))
        if wanted != token:
            return Verdict(i, wanted, "recovered")
    return Verdict(len(tokens), draw(p[-1], float(u[-1])), "bonus")


def _one_law_too_few(tokens, q, p, u):
    """Reads k target laws, so the token after full acceptance comes from the last draft's law."""
    short = torch.cat([p[:-1], p[-2:-1]]) if len(tokens) else p
    return verify(tokens, q, short, u)


def _reused_uniform(tokens, q, p, u):
    verdict = verify(tokens, q, p, u)
    if verdict.kind == "bonus":
        return verdict
    at = verdict.num_accepted
    return Verdict(at, draw(residual(p[at], q[at]), float(u[at])), verdict.kind)


def _swapped(tokens, q, p, u):
    """p and q change places in the ratio and the residual."""
    k = len(tokens)
    for i, token in enumerate(tokens.tolist()):
        if float(u[i]) * float(p[i, token]) >= float(q[i, token]):
            return Verdict(i, draw(residual(q[i], p[i]), float(u[-1])), "recovered")
    return Verdict(k, draw(p[-1], float(u[-1])), "bonus")


def _argmax(law, _uniform):
    return int(law.argmax())


def _strong(law, token):
    return float(law[token]) >= 0.01


TWINS = {
    "resample from p": (Rule(verify=_resample_from_target), "recovered"),
    "residual without clamp": (Rule(verify=_replace(lambda p, q: (p - q).abs())), "recovered"),
    "residual re-tempered": (
        Rule(verify=_replace(lambda p, q: residual(p, q).pow(1 / 0.7))),
        "recovered",
    ),
    "argmax draft with soft q": (Rule(propose=_argmax), "first"),
    "equality acceptance": (Rule(verify=_equality), "accepted"),
    "no bonus law": (Rule(verify=_one_law_too_few), "bonus"),
    "only log q(x) kept": (Rule(verify=_only_log_q), "recovered"),
    "weak draws dropped": (Rule(keep=_strong), "first"),
    "uniforms used twice": (Rule(verify=_reused_uniform), "recovered"),
    "p and q swapped": (Rule(verify=_swapped), "first"),
}


@pytest.mark.parametrize("twin", TWINS)
def test_broken_rule_is_caught(twin):
    """The same check at the same alarm rate, on fewer texts: each fault is large."""
    rule, where = TWINS[twin]
    toy = _toy("whole")
    found = check(toy, simulate(toy, rule, N // 5, seed=2))
    assert found[where] < ALPHA, f"{twin} passed '{where}': p-values {found}"


def test_pooling_never_tests_a_cell_expected_below_five():
    """Uniform p-values need large cells; 1000 draws over 200 tokens of a steep law."""
    law = np.exp(-np.arange(V) / 10.0)
    law /= law.sum()
    counts = np.random.default_rng(0).multinomial(1000, law, size=200)
    values = np.array([chi_square(row, 1000 * law) for row in counts])
    low = int((values < 0.05).sum())
    assert 1 <= low <= 25, f"{low} of 200 honest samples below 0.05; about 10 expected"


def test_token_without_probability_fails_at_once():
    assert chi_square(np.array([50, 50, 1]), np.array([50.0, 51.0, 0.0])) == 0.0
    assert binomial(10, 10, 0.0) < 1e-100 or binomial(10, 10, 0.0) == 0.0


def test_toy_depends_on_the_token_before():
    toy = _toy("whole")
    assert toy.p.shape == (K + 1, CLASSES, V)
    assert float((toy.p[1, 0] - toy.p[1, 1]).abs().sum()) > 0.5
