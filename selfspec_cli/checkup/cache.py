"""Proof of the cache: its length after every round, who runs how often, and what is never read.

Calls are counted on the library's own layers, so a faster engine is counted by the layers that it
stands for; everything else runs on the engine that decodes.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import inf, isnan
from typing import Any

import torch
from torch import Tensor

from selfspec_cli.checkup.attempts import STOPPED, attempt, stopped
from selfspec_cli.checkup.records import Part
from selfspec_cli.checkup.subject import Subject
from selfspec_cli.engine.decoder import Decoder, Job
from selfspec_cli.engine.graphs import GraphView
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.policies import GreedyPolicy
from selfspec_cli.engine.verify import Verdict
from selfspec_cli.engine.view import LayerView
from selfspec_cli.errors import short_of_memory
from selfspec_cli.records import Round

PART = Part(name="cache", title="cache after every round", unit="change of a logit")
DRAFT_LENGTHS = (4, 1, 8)
SPOILT = 50.0  # written over what a round left behind; finite, since a hidden slot counts 0 times


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    subject: Subject
    exit_layer: int
    draft_length: int
    prompt: tuple[int, ...]

    @property
    def where(self) -> str:
        return f"L = {self.exit_layer}, k = {self.draft_length}, prompt of {len(self.prompt)}"

    def decoder(self, policy: GreedyPolicy, view: LayerView | None = None) -> Decoder:
        job = Job(prompt=self.prompt, budget=self.subject.budget)
        chosen = view or self.subject.view
        return Decoder(chosen, job, policy, max_draft=self.draft_length)

    def round(self, state: Decoder) -> Round:
        return state.round(self.exit_layer, self.draft_length)


class LayerCalls:
    """Counts the positions of every forward call of each of a model's own layers."""

    def __init__(self, view: LayerView) -> None:
        self._calls: dict[int, list[int]] = defaultdict(list)
        layers: Any = reduce(getattr, view.family.layers.split("."), view.model)
        self._hooks = [
            layer.register_forward_pre_hook(self._noted(at)) for at, layer in enumerate(layers)
        ]

    def _noted(self, index: int) -> Callable[[Any, Any], None]:
        def note(_: Any, arguments: Any) -> None:
            self._calls[index].append(int(arguments[0].shape[1]))

        return note

    def take(self) -> dict[int, list[int]]:
        """Calls since the last time, by layer."""
        taken, self._calls = dict(self._calls), defaultdict(list)
        return taken

    def __enter__(self) -> "LayerCalls":
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()


def prove_cache(subject: Subject, told: Callable[[], None]) -> Part:
    """Decode with every exit layer at some draft lengths and look at the cache after each round.

    Args:
        subject: model and cases.
        told: called after each case.
    """
    faults: list[str] = []
    changes: list[float] = []
    cases = _cases(subject)
    for case in cases:
        for work in (_counted, _short):
            attempt(case.where, faults, partial(work, case))
        attempt(case.where, faults, partial(_again, case, changes))
        told()
    faults.extend(_pointers(subject))
    worst = max(changes, default=None)
    if worst is not None and not worst <= subject.tolerance:  # NaN differs too
        faults.append(
            f"logits change by {worst:.3g} with what rolled-back positions hold "
            f"(tolerance {subject.tolerance:g})"
        )
    return replace(
        PART,
        cases=len(cases),
        value=worst,
        tolerance=subject.tolerance,
        faults=tuple(faults),
        text=f"{len(cases)} decodes: after every round each layer holds committed - 1 positions; "
        "layers below L ran once a drafted token + 1, the others once; rolled-back positions "
        "are not read; a cache one position short is refused",
    )


def num_cases(subject: Subject) -> int:
    """How many times `told` will be called."""
    return len(_cases(subject))


def _cases(subject: Subject) -> list[_Case]:
    made = []
    for at, exit_layer in enumerate(subject.exit_layers):
        few = DRAFT_LENGTHS[at % len(DRAFT_LENGTHS) :][:1]
        for k in DRAFT_LENGTHS if subject.small else few:
            lengths = subject.lengths_at(k)
            prompt = subject.prompts[lengths[(at + k) % len(lengths)]]
            made.append(
                _Case(subject=subject, exit_layer=exit_layer, draft_length=k, prompt=prompt)
            )
    return made


def _counted(case: _Case) -> list[str]:
    """Cache length and calls of every round, on the library's layers; ends with the first fault."""
    view = LayerView(case.subject.view.model, case.subject.view.family)
    state = case.decoder(case.subject.policy(), view)
    with LayerCalls(view) as calls:
        state.prefill()
        while state.finish is None:
            before = len(state.output)
            fault = _round_fault(case, state, calls)
            if fault:
                return [f"{case.where}, round at token {before}: {fault}"]
    return []


def _round_fault(case: _Case, state: Decoder, calls: LayerCalls) -> str:
    """Make one round; returns what is wrong with its calls or with the cache after it."""
    drafted = max(0, min(case.draft_length, case.subject.budget - len(state.output) - 1))
    calls.take()
    ended = ""
    try:
        case.round(state)
    except STOPPED as error:  # wrong calls are often what stops a decoder, and are told with it
        if short_of_memory(error):
            raise
        ended = stopped(error)
    wrong = _wrong_calls(calls.take(), case.exit_layer, state.view.num_layers, drafted)
    held = len(case.prompt) + len(state.output) - 1
    if not ended and any(lengths != [held] for lengths in state.cache.lengths):
        found = sorted({lengths[0] for lengths in state.cache.lengths})
        wrong.append(f"the cache holds {found} positions, committed - 1 is {held}")
    return "; ".join([*wrong[:1], *([ended] if ended else [])])


def _wrong_calls(
    calls: dict[int, list[int]], exit_layer: int, num_layers: int, drafted: int
) -> list[str]:
    wrong = []
    for layer in range(num_layers):
        below = layer < exit_layer or drafted == 0
        expected = [1] * (drafted + 1) if below else [drafted + 1]
        found = calls.get(layer, [])
        if found != expected:
            wrong.append(
                f"layer {layer} was called {len(found)} times with {sum(found)} positions, "
                f"{len(expected)} times with {sum(expected)} are right"
            )
    return wrong


class _Watching(GreedyPolicy):
    """Greedy, and keeps the logits of each verdict."""

    def __init__(self, target: Processor) -> None:
        super().__init__(target)
        self.seen: list[Tensor] = []

    def settle(self, logits: Tensor, output: Sequence[int], drafted: Sequence[int]) -> Verdict:
        """Keep the logits, then settle as ever."""
        self.seen.append(logits.clone())
        return super().settle(logits, output, drafted)


@torch.inference_mode()
def _again(case: _Case, changes: list[float]) -> list[str]:
    """Make the same rounds again from x_0, over a cache whose rolled-back positions are spoilt.

    The largest change of a verdict's logits is noted.
    """
    policy = _Watching(case.subject.processor)
    state = case.decoder(policy)
    state.prefill()
    first = _finish(case, state, policy, spoil=False)
    state.rewind(1)
    second = _finish(case, state, policy, spoil=True)
    if first.rounds != second.rounds or first.output != second.output:
        return [f"{case.where}: again from the first token {second.output}, before {first.output}"]
    pairs = zip(first.logits, second.logits, strict=True)
    gaps = [float((a - b).abs().max()) for a, b in pairs]
    changes.append(max((inf if isnan(gap) else gap for gap in gaps), default=0.0))
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    output: list[int]
    rounds: list[Round]
    logits: list[Tensor]


def _finish(case: _Case, state: Decoder, policy: _Watching, *, spoil: bool) -> _Run:
    policy.seen, rounds = [], []
    while state.finish is None:
        if spoil:
            _spoil(state)
        rounds.append(case.round(state))
    return _Run(output=list(state.output), rounds=rounds, logits=policy.seen)


def _spoil(state: Decoder) -> None:
    """Write over what the cache holds beyond prompt + output - 1."""
    held = len(state.job.prompt) + len(state.output) - 1
    for buffer in (*state.cache.keys, *state.cache.values):
        if buffer is not None:
            buffer[:, :, held:] = SPOILT


def _short(case: _Case) -> list[str]:
    """A cache one position short of what the output takes must be refused, not overrun."""
    state = case.decoder(case.subject.policy())
    needed = len(case.prompt) + case.subject.budget - 1
    state.cache = case.subject.view.new_cache(capacity=needed - 1)
    if isinstance(case.subject.view, GraphView):  # takes more room than it is asked for
        state.cache.capacity = needed - 1
    try:
        state.prefill()
        while state.finish is None:
            case.round(state)
    except IndexError:
        return []
    return [f"{case.where}: a cache of {needed - 1} positions held an output that takes {needed}"]


@torch.inference_mode()
def _pointers(subject: Subject) -> list[str]:
    """Roll a cache of 3 positions back to every length; beyond its ends it must refuse."""
    view, faults = subject.view, []
    ids = torch.tensor([list(subject.longest[:1]) * 3], device=view.device)
    for want in (-1, 0, 1, 2, 3, 4):
        cache = view.new_cache(capacity=4)
        view.run(view.embed(ids, cache), cache, 0, view.num_layers)
        expected = want if 0 <= want <= 3 else 3
        try:
            cache.rollback([want])
        except ValueError:
            if want == expected:
                faults.append(f"a cache of 3 positions refuses to roll back to {want}")
        held = sorted({lengths[0] for lengths in cache.lengths})
        if held != [expected]:
            faults.append(f"a cache of 3 positions rolled back to {want} holds {held}")
    return faults
