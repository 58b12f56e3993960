"""Real sampled rounds in half precision: honest ones pass, each broken twin is named.

Honest rounds fail with probability 1e-4 for an unknown seed; seeds are fixed.
"""

import pytest
import torch
from checkpoints import random_model

from selfspec_cli.checkup.placed import judge_places, place
from selfspec_cli.checkup.rounds import BONUS, COMMITTED, IN_ORDER, REPLACED, real_rounds
from selfspec_cli.checkup.subject import make_subject
from selfspec_cli.engine import policies
from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.families import family_of
from selfspec_cli.engine.verify import Verdict, draw, residual, verify
from selfspec_cli.engine.view import LayerView


def rounds_in(dtype=torch.bfloat16):
    model = random_model("llama", gain=8.0, num_hidden_layers=2).to(dtype)
    return real_rounds(make_subject(LayerView(model, family_of("llama")), seed=0), lambda: None)


def said(made) -> str:
    return "\n".join([*(one.fault for one in made.tested if one.fault), *made.faults])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_honest_rounds_follow_the_laws_of_their_own_passes(dtype):
    made = rounds_in(dtype)
    assert said(made) == ""
    kinds = [one.what.partition(" (")[0] for one in made.tested]
    assert kinds == [COMMITTED, REPLACED, IN_ORDER, BONUS], "every kind of token must be tested"
    assert made.num_rounds == 2592
    assert made.error < 0.06, f"logits off by {made.error} of their range"


def _after_rejection(replacement):
    """A verdict whose replacement is `replacement(p, q, uniforms)` instead."""

    def twin(tokens, draft, target, uniforms):
        verdict = verify(tokens, draft, target, uniforms)
        a = verdict.num_accepted
        if verdict.kind == "bonus":
            return verdict
        return Verdict(a, replacement(target[a], draft[a], uniforms[a:]), verdict.kind)

    return twin


def _from_target(p, _q, uniforms):
    return draw(p, float(uniforms[-1]))


def _retempered(p, q, uniforms):
    return draw(residual(p, q).pow(1 / 0.7), float(uniforms[-1]))


def _same_uniform(p, q, uniforms):
    return draw(residual(p, q), float(uniforms[0]))


def _accepts_all(tokens, _draft, target, uniforms):
    return Verdict(len(tokens), draw(target[-1], float(uniforms[-1])), "bonus")


def _law_of_the_last_draft(tokens, draft, target, uniforms):
    return verify(tokens, draft, torch.cat([target[:-1], target[-2:-1]]), uniforms)


TWINS = {
    "replaces from p": (_after_rejection(_from_target), REPLACED),
    "residual at another temperature": (_after_rejection(_retempered), REPLACED),
    "one uniform twice": (_after_rejection(_same_uniform), IN_ORDER),
    "accepts every draft": (_accepts_all, COMMITTED),
    "bonus from the last draft's law": (_law_of_the_last_draft, BONUS),
}


@pytest.mark.parametrize("twin", TWINS)
def test_a_broken_verdict_is_named_in_bfloat16(monkeypatch, twin):
    broken, named = TWINS[twin]
    monkeypatch.setattr(policies, "verify", broken)
    made = rounds_in()
    assert f"{named} (" in said(made), said(made)
    assert made.faults == (), "the logits are the model's"


@pytest.mark.parametrize("off", [-1, 1])
def test_a_rollback_off_by_one_is_named_in_bfloat16(monkeypatch, off):
    """Tokens still follow the laws of the passes at hand; those are no longer the model's."""
    real = BatchDecoder.commit

    def twin(self, running, tokens):
        counts = real(self, running, tokens)
        self.cache.lengths = [[n + off for n in lengths] for lengths in self.cache.lengths]
        return counts

    monkeypatch.setattr(BatchDecoder, "commit", twin)
    made = rounds_in()
    assert "differ from those of plain passes by" in said(made)
    assert made.error > 0.06, made.error


def test_a_token_without_probability_is_enough():
    law = torch.tensor([0.5, 0.5, 0.0])
    assert place(law, 2, law, 0.5) is None
    found = judge_places("tokens", [0.5, None], 1e-5)
    assert "1 tokens have no probability there" in found.fault


def test_places_are_uniform_for_honest_tokens_and_not_for_others():
    """False alarm 1e-6; the twin draws 2,000 tokens at another temperature."""
    generator = torch.Generator().manual_seed(3)
    law = torch.softmax(torch.randn(50, generator=generator), dim=-1)
    found = {}
    for name, drawn_from in {"honest": law, "twin": law.pow(0.7)}.items():
        tokens = torch.multinomial(drawn_from, 2000, replacement=True, generator=generator)
        spread = torch.rand(2000, generator=generator, dtype=torch.float64)
        places = [place(law, int(t), law, float(u)) for t, u in zip(tokens, spread, strict=True)]
        found[name] = judge_places(name, places, 1e-6).smallest_p
    assert found["honest"] > 1e-6 > found["twin"], found


def test_too_few_tokens_are_not_judged():
    assert judge_places("tokens", [0.1] * 19, 1e-5) is None
    assert judge_places("tokens", [0.1] * 20, 1e-2).fault
