"""Proof at temperature 0: every way of decoding commits the plain decoder's tokens.

Rounds at several exits and draft lengths, and the library's own `generate`, are held against plain
decoding of the same prompt. Where the plain decoder's two best logits nearly
tie, rounding may choose the other token (`engine.exactness`): such an output is listed; any other
difference is a fault.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from selfspec_cli.checkup.attempts import attempt
from selfspec_cli.checkup.records import Listed, Part, with_differences
from selfspec_cli.checkup.subject import DRAFT_LENGTHS, Subject
from selfspec_cli.engine.decoder import Decoder, Job, decode_plain, decode_speculative
from selfspec_cli.engine.exactness import Difference, compare_outputs, plain_gap
from selfspec_cli.records import Round

GAP = "widest top-2 gap of a difference"
GREEDY = Part(name="greedy", title="greedy: rounds = plain", unit=GAP)
LIBRARY = Part(name="library", title="greedy: plain = library", unit=GAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    exit_layer: int
    draft_length: int
    length: int
    """Of the prompt."""
    budget: int
    eos: int | None = None

    @property
    def where(self) -> str:
        eos = "" if self.eos is None else f", EOS {self.eos}"
        return (
            f"L = {self.exit_layer}, k = {self.draft_length}, prompt of {self.length}, "
            f"budget {self.budget}{eos}"
        )


@dataclass(slots=True)
class _Seen:
    """What a part found so far."""

    listed: list[Listed] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0

    def count(self, rounds: Sequence[Round]) -> None:
        self.drafted += sum(made.num_drafted for made in rounds)
        self.accepted += sum(made.num_accepted for made in rounds)


def plain_outputs(subject: Subject) -> dict[int, tuple[int, ...]]:
    """Greedy tokens of plain decoding for every prompt, by its length."""
    return {
        length: tuple(_plain(subject, prompt, subject.budget).output)
        for length, prompt in subject.prompts.items()
    }


def _plain(subject: Subject, prompt: tuple[int, ...], budget: int) -> Decoder:
    return decode_plain(subject.view, Job(prompt=prompt, budget=budget), subject.policy())


def prove_greedy(
    subject: Subject, plain: Mapping[int, tuple[int, ...]], told: Callable[[], None]
) -> Part:
    """Rounds at every exit and draft length against plain decoding.

    Args:
        subject: model and cases.
        plain: of `plain_outputs`.
        told: called after each case.
    """
    seen, cases = _Seen(), greedy_cases(subject, plain)
    for case in cases:
        attempt(case.where, seen.faults, partial(_rounds, subject, case, plain, seen))
        told()
    part = replace(
        GREEDY,
        cases=len(cases),
        tolerance=subject.tolerance,
        faults=tuple(seen.faults),
        text=f"{len(cases)} decodes at L = {', '.join(map(str, subject.exit_layers))} and k = "
        f"{DRAFT_LENGTHS[0]}-{DRAFT_LENGTHS[-1]}, prompts of 1 to {max(subject.prompts)} tokens, "
        f"budgets of 1 and 2, EOS inside a round; {seen.accepted} of {seen.drafted} drafted "
        "tokens accepted" + ("" if seen.faults or seen.listed else ", every one at L = N"),
    )
    return with_differences(part, seen.listed)


def greedy_cases(subject: Subject, plain: Mapping[int, tuple[int, ...]]) -> list[_Case]:
    """Every (L, k), its prompts in rotation; budgets of 1 and 2; an EOS inside a round."""
    budget, cases = subject.budget, []
    for at, exit_layer in enumerate(subject.exit_layers):
        for k in DRAFT_LENGTHS:
            lengths = subject.lengths_at(k)
            for turn in range(subject.prompts_per_cell):
                length = lengths[(at * subject.prompts_per_cell + turn + k) % len(lengths)]
                cases.append(
                    _Case(exit_layer=exit_layer, draft_length=k, length=length, budget=budget)
                )
    longest = max(subject.prompts)
    for exit_layer in (subject.middle, subject.num_layers):
        cell = {"exit_layer": exit_layer, "draft_length": DRAFT_LENGTHS[-1], "length": longest}
        cases += [_Case(**cell, budget=few) for few in (1, 2)]
        cases += [_Case(**cell, budget=budget, eos=eos) for eos in _ends(plain[longest])]
    return cases


def _ends(tokens: Sequence[int]) -> list[int]:
    """Tokens that end the output inside its first round of 8 drafts: an early and a late one."""
    firsts = [token for at, token in enumerate(tokens[:8]) if token not in tokens[:at] and at > 0]
    return sorted({firsts[0], firsts[-1]}) if firsts else []


def _rounds(
    subject: Subject, case: _Case, plain: Mapping[int, tuple[int, ...]], seen: _Seen
) -> Iterator[str]:
    """Decode one case in rounds; yields what is wrong, and lists where the tokens part."""
    prompt = subject.prompts[case.length]
    eos_ids = frozenset() if case.eos is None else frozenset({case.eos})
    job = Job(prompt=prompt, budget=case.budget, eos_ids=eos_ids)
    cell = case.exit_layer, case.draft_length
    state, rounds = decode_speculative(subject.view, job, subject.policy(), *cell)
    seen.count(rounds)
    expected = plain[case.length][: case.budget]
    if case.eos is not None:
        expected = expected[: expected.index(case.eos) + 1]
    found = parting(subject, prompt, expected, state.output)
    if found is not None:
        seen.listed.append(Listed(where=case.where, difference=found))
        return
    yield from _counts(case, state, rounds)
    if case.exit_layer == subject.num_layers and case.eos is None:
        yield from _all_accepted(subject, case, state.output, rounds, seen)


def parting(
    subject: Subject, prompt: tuple[int, ...], plain: Sequence[int], other: Sequence[int]
) -> Difference | None:
    """First difference from plain decoding of `prompt`, with the plain decoder's gap there.

    Args:
        subject: model and its processing.
        prompt: of both outputs.
        plain: tokens of plain decoding.
        other: tokens of another way.
    """

    def gap(position: int) -> float:
        return plain_gap(subject.view, prompt, plain, position, subject.processor)

    return compare_outputs(plain, other, gap, subject.view.dtype)


def _counts(case: _Case, state: Decoder, rounds: Sequence[Round]) -> Iterator[str]:
    """The rounds' counts add up to the output, and nothing is drafted that cannot be used."""
    committed = sum(made.num_committed for made in rounds)
    if committed != len(state.output) - 1:
        yield (
            f"{case.where}: rounds count {committed} committed tokens, the output has "
            f"{len(state.output) - 1} after the first"
        )
    expected = "length" if case.eos is None else "eos"
    if state.finish != expected:
        yield f"{case.where}: ended by {state.finish}, not {expected}"
    if case.budget == 1 and rounds:
        yield f"{case.where}: {len(rounds)} rounds were made after the only token"


def _all_accepted(
    subject: Subject, case: _Case, output: Sequence[int], rounds: Sequence[Round], seen: _Seen
) -> Iterator[str]:
    """At L = N the draft is the target; a rejection shows caches that are out of step."""
    start = 1  # x_0 is prefill's
    for made in rounds:
        if made.num_accepted < made.num_drafted:
            at = start + made.num_accepted
            gap = plain_gap(
                subject.view, subject.prompts[case.length], output, at, subject.processor
            )
            told = f"{case.where}: {made.num_accepted} of {made.num_drafted} drafts accepted"
            rejected = Difference(
                position=at,
                plain_token=output[at],
                speculative_token=None,
                top2_gap=gap,
                tolerance=subject.tolerance,
            )
            if rejected.is_tie:
                seen.listed.append(Listed(where=told, difference=rejected))
            else:
                yield f"{told} at token {start} though draft and target are the same layers"
            return
        start += made.num_committed


def prove_library(
    subject: Subject,
    plain: Mapping[int, tuple[int, ...]],
    library: Mapping[int, tuple[int, ...]],
) -> Part:
    """Plain decoding against the library's own `generate`, prompt by prompt.

    Args:
        subject: model and cases.
        plain: of `plain_outputs`.
        library: of `subject.library_outputs`.
    """
    listed = []
    for length, prompt in subject.prompts.items():
        found = parting(subject, prompt, plain[length], library[length])
        if found is not None:
            where = f"plain decoding and generate, prompt of {length}"
            listed.append(Listed(where=where, difference=found))
    part = replace(
        LIBRARY,
        cases=len(plain),
        tolerance=subject.tolerance,
        text=f"{len(plain)} prompts, {subject.budget} tokens each, against the library's own "
        "generate",
    )
    return with_differences(part, listed)
