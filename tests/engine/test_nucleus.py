"""Top-p without sorting the vocabulary keeps the tokens that sorting it keeps."""

import pytest
import torch

from selfspec_cli.engine import laws
from selfspec_cli.engine.laws import Processor
from selfspec_cli.records import Sampling

V = 12_000  # beyond both of the smaller sorts
ROWS = {
    "peaked": lambda noise: 6.0 * noise,
    "long": lambda noise: 1.5 * noise,  # thousands of tokens
    "flat": lambda noise: 0.1 * noise,  # nearly all tokens
    "tied": lambda noise: noise.round(),  # a few values, so that ties fill the border
    "one value": torch.zeros_like,
}


def logits_of(kind, rows=6):
    return ROWS[kind](torch.randn(rows, V, generator=torch.Generator().manual_seed(7)))


def sorted_law(logits, p):
    """The definition, over a stable sort of everything."""
    ordered, index = logits.sort(dim=-1, descending=True, stable=True)
    law = torch.softmax(ordered.double(), dim=-1)
    drop = law.cumsum(-1) - law >= p
    drop[:, 0] = False
    kept = ordered.masked_fill(drop, -torch.inf)
    return torch.softmax(torch.empty_like(logits).scatter(-1, index, kept), dim=-1)


@pytest.mark.parametrize("p", [0.0, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("kind", ROWS)
def test_the_kept_tokens_are_those_of_a_full_sort(kind, p):
    """All but the last token at the border, which a sum's rounding may move."""
    logits = logits_of(kind)
    got = Processor(Sampling(top_p=p), V).laws(logits, [])
    want = sorted_law(logits, p)
    moved = ((got > 0) != (want > 0)).sum(-1)
    assert int(moved.max()) <= 1, f"{moved.tolist()} tokens differ"
    if not moved.any():
        assert float((got - want).abs().max()) < 1e-6


def test_the_vocabulary_is_sorted_only_where_it_must_be(monkeypatch):
    """Peaked rows end in the first list; a flat row among them is the only one that goes on."""
    sizes = []
    real = laws._nucleus

    def spy(rows, law, p, size):
        sizes.append((len(rows), size))
        return real(rows, law, p, size)

    monkeypatch.setattr(laws, "_nucleus", spy)
    mixed = torch.cat([logits_of("peaked"), logits_of("flat", 1), logits_of("long", 2)])
    law = Processor(Sampling(top_p=0.9), V).laws(mixed, [])
    assert sizes == [(9, 512), (3, 8192), (1, V)], f"{sizes}: rows and how many tokens were sorted"
    assert torch.equal(law > 0, sorted_law(mixed, 0.9) > 0)


def test_a_list_that_is_cut_in_a_tie_is_not_trusted(monkeypatch):
    """All tokens tie: the first list holds any 512 of them, the kept ones are the lowest ids."""
    law = Processor(Sampling(top_p=0.01), V).laws(logits_of("one value", 1), [])[0]
    kept = law.nonzero().flatten().tolist()
    assert kept == list(range(len(kept))), "not the lowest ids"
    assert len(kept) == pytest.approx(0.01 * V, abs=1)
    monkeypatch.setattr(laws, "NUCLEUS", (512,))
    real = laws._nucleus
    monkeypatch.setattr(laws, "_nucleus", lambda *a: (real(*a)[0], torch.ones(1) > 0))
    tied = torch.zeros(1, V)
    tied[0, V // 2 :] = 1e-3  # the likelier half has the higher ids
    twin = Processor(Sampling(top_p=0.9), V).laws(tied, [])[0]
    assert int((twin > 0).sum()) == 512, "a twin that trusts every list keeps only what it lists"
