"""One function from logits to laws, against the library's own processors and by hand."""

import pytest
import torch
from tiny import V
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from selfspec_cli.engine.laws import Processor
from selfspec_cli.errors import ModelError
from selfspec_cli.records import Sampling

PROMPT = (5, 6, 7, 5)
EOS = 2


def _logits(rows: int = 4, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(rows, V, generator=torch.Generator().manual_seed(seed))


def _library_laws(logits, s: Sampling, output: list[int]) -> torch.Tensor:
    chain = LogitsProcessorList()
    if s.repetition_penalty != 1.0:
        chain.append(RepetitionPenaltyLogitsProcessor(s.repetition_penalty))
    if s.min_tokens:
        chain.append(
            MinNewTokensLengthLogitsProcessor(len(PROMPT), s.min_tokens, EOS, device="cpu")
        )
    if s.temperature != 1.0:
        chain.append(TemperatureLogitsWarper(s.temperature))
    if s.top_k:
        chain.append(TopKLogitsWarper(s.top_k))
    if s.top_p < 1.0:
        chain.append(TopPLogitsWarper(s.top_p))
    ids = torch.tensor([[*PROMPT, *output]]).expand(len(logits), -1)
    return chain(ids, logits).softmax(dim=-1)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.3),
        Sampling(temperature=1.7, top_k=50),
        Sampling(top_k=1),
        Sampling(top_p=0.9),
        Sampling(top_p=0.05),
        Sampling(temperature=0.7, top_k=40, top_p=0.8),
        Sampling(repetition_penalty=1.3),
        Sampling(repetition_penalty=0.7, temperature=0.5),
        Sampling(min_tokens=8),
        Sampling(repetition_penalty=1.1, min_tokens=3, temperature=0.8, top_k=30, top_p=0.95),
    ],
    ids=str,
)
@pytest.mark.parametrize("output", [[], [9, 5, 200], [1] * 8])
def test_laws_are_those_of_the_library(sampling, output):
    processor = Processor(sampling, V, PROMPT, eos_ids=[EOS])
    logits = _logits()
    ours = torch.cat([processor.laws(row[None], output) for row in logits])
    error = float((ours - _library_laws(logits, sampling, output)).abs().max())
    assert error < 1e-6, f"laws differ by {error:.3g}"
    assert float((ours.sum(-1) - 1).abs().max()) < 1e-5


@pytest.mark.parametrize(("k", "expected"), [(-1, V), (0, V), (1, 1), (50, 50), (100_000, V)])
def test_top_k_off_and_beyond_the_vocabulary_keep_all(k, expected):
    law = Processor(Sampling(top_k=k), V).laws(_logits(1), [])[0]
    assert int((law > 0).sum()) == expected


@pytest.mark.parametrize("p", [0.0, 1e-9, 0.3])
def test_top_p_keeps_at_least_the_most_likely(p):
    logits = torch.zeros(1, V)
    logits[0, 17] = 5.0
    law = Processor(Sampling(top_p=p), V).laws(logits, [])[0]
    assert law[17] > 0
    assert int((law > 0).sum()) == 1


def test_top_p_by_hand():
    """Mass 0.5, 0.3, 0.15, 0.05: p = 0.8 is reached by two tokens, p = 0.81 by three."""
    logits = torch.tensor([[0.15, 0.5, 0.05, 0.3]]).log()
    for p, kept in ((0.5, [1]), (0.51, [1, 3]), (0.79, [1, 3]), (0.81, [0, 1, 3])):
        law = Processor(Sampling(top_p=p), 4).laws(logits, [])[0]
        assert law.nonzero().flatten().tolist() == kept, f"top_p = {p}: {law.tolist()}"
    assert law[0] == pytest.approx(0.15 / 0.95, abs=1e-6)


def test_presence_and_frequency_penalties_count_output_only():
    """Token 1 made three times and token 2 once; tokens of the prompt cost nothing."""
    logits = torch.tensor([[0.0, 4.0, 3.0, 2.0]])
    processor = Processor(
        Sampling(temperature=0.0, presence_penalty=0.5, frequency_penalty=0.25), 4, (3, 3, 3)
    )
    row = processor.processed(logits, [1, 1, 2, 1])[0]
    assert row.tolist() == pytest.approx([0.0, 4.0 - 3 * 0.25 - 0.5, 3.0 - 0.25 - 0.5, 2.0])


def test_repetition_penalty_counts_prompt_and_output():
    logits = torch.tensor([[2.0, -2.0, 2.0, 2.0]])
    row = Processor(Sampling(repetition_penalty=2.0), 4, (0,)).processed(logits, [1, 1])[0]
    assert row.tolist() == [1.0, -4.0, 2.0, 2.0], "positive is divided, negative multiplied"


def test_each_row_is_penalised_with_the_drafts_before_it():
    """Row i of a verification counts the committed output and the first i drafts."""
    processor = Processor(Sampling(temperature=0.0, frequency_penalty=1.0), V, PROMPT)
    logits = _logits(1).expand(4, -1)
    rows = processor.processed(logits, [8], [9, 9, 10])
    alone = [
        processor.processed(logits[:1], out)[0] for out in ([8], [8, 9], [8, 9, 9], [8, 9, 9, 10])
    ]
    assert torch.equal(rows, torch.stack(alone))
    draft = processor.processed(logits[:1], [8], [9, 9])
    assert torch.equal(draft[0], alone[2]), "a draft's row counts all drafts before it"


def test_min_tokens_forbids_eos_until_then():
    processor = Processor(Sampling(min_tokens=2), V, eos_ids=[EOS, 4])
    for output, forbidden in (([], True), ([9], True), ([9, 9], False)):
        law = processor.laws(_logits(1), output)[0]
        assert bool((law[[EOS, 4]] == 0).all()) == forbidden, f"after {len(output)} tokens"


def test_an_eos_id_outside_the_vocabulary_forbids_no_token():
    """Counted from the end, -1 would be the last token."""
    outside = [-1, V, V + 7]
    law = Processor(Sampling(min_tokens=5), V, eos_ids=outside).laws(_logits(1), [])
    assert float(law[0, -1]) > 0, "the last token was taken for the EOS -1"
    assert torch.equal(law, Processor(Sampling(), V).laws(_logits(1), []))


def test_min_tokens_without_any_eos_changes_nothing():
    law = Processor(Sampling(min_tokens=5), V).laws(_logits(1), [])
    assert torch.equal(law, Processor(Sampling(), V).laws(_logits(1), []))


def test_logit_bias_adds_before_everything_else():
    processor = Processor(Sampling(temperature=0.0, logit_bias=((3, 100.0), (4, -100.0))), V)
    assert processor.greedy(_logits(3), []).tolist() == [3, 3, 3]


def test_token_mask_sees_the_output_and_its_tokens_are_the_only_ones():
    def even_then_odd(output):
        mask = torch.zeros(V, dtype=torch.bool)
        mask[len(output) % 2 :: 2] = True
        return mask

    processor = Processor(Sampling(), V, token_mask=even_then_odd)
    laws = processor.laws(_logits(3), [], [6, 7])
    for row, parity in zip(laws, (0, 1, 0), strict=True):
        assert set((row.nonzero().flatten() % 2).tolist()) == {parity}


def test_mask_that_allows_nothing_is_an_error_that_names_the_position():
    processor = Processor(Sampling(), V, token_mask=lambda _: torch.zeros(V, dtype=torch.bool))
    with pytest.raises(ModelError, match="output position 2"):
        processor.laws(_logits(1), [5, 6])


def test_mask_may_abstain():
    processor = Processor(Sampling(), V, token_mask=lambda _: None)
    assert torch.equal(
        processor.laws(_logits(1), []), Processor(Sampling(), V).laws(_logits(1), [])
    )


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-50, 1e-300, 5e-324])
def test_tiny_temperature_is_the_argmax_and_never_nan(temperature):
    logits = _logits()
    law = Processor(Sampling(temperature=temperature), V).laws(logits, [])
    assert bool(law.isfinite().all()), f"T = {temperature}: {law}"
    assert torch.equal(law.argmax(-1), logits.argmax(-1))
    assert float(law.amax(-1).min()) > 0.9


def test_greedy_takes_the_lowest_id_of_a_tie():
    logits = torch.zeros(1, V)
    logits[0, [40, 7, 200]] = 1.0
    assert Processor(Sampling(temperature=0.0), V).greedy(logits, []).tolist() == [7]


def test_draft_law_may_leave_truncation_out():
    whole = Processor(Sampling(top_p=0.5, top_k=5), V, truncate=False).laws(_logits(1), [])
    assert torch.equal(whole, Processor(Sampling(), V).laws(_logits(1), []))


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(repetition_penalty=1.5), Sampling(top_k=3)]
)
def test_logits_given_are_left_as_they_were(sampling):
    logits = _logits()
    before = logits.clone()
    Processor(sampling, V, PROMPT).laws(logits, [], [1, 2, 3])
    assert torch.equal(logits, before)
