"""Every exit layer and draft length of a model against its own plain decoding and the library."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tiny import N, greedy_policy, library_greedy

from selfspec_cli.engine.decoder import Job, decode_plain, decode_speculative
from selfspec_cli.engine.view import LayerView
from selfspec_cli.records import Round

DRAFT_LENGTHS = range(1, 9)
CELLS = [(exit_layer, k) for exit_layer in range(1, N + 1) for k in DRAFT_LENGTHS]


@dataclass
class Sweep:
    """What went wrong in a sweep, and how its rounds ended."""

    wrong: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    runs: int = 0


def outcome(made: Round) -> str:
    if made.num_accepted == 0:
        return "none"
    return "all" if made.num_accepted == made.num_drafted else "some"


def broken_counts(rounds: Sequence[Round], output: Sequence[int]) -> str:
    """Which inequality of the counts does not hold, or nothing."""
    for made in rounds:
        if not made.num_accepted <= made.num_tested <= made.num_drafted:
            return f"accepted <= tested <= drafted fails: {made}"
        if made.num_committed > made.num_accepted + 1:
            return f"committed > accepted + 1: {made}"
    total = sum(made.num_committed for made in rounds)
    return "" if total == len(output) - 1 else f"{total} committed, {len(output)} tokens out"


def references(view: LayerView, prompt: tuple[int, ...], budget: int) -> tuple[list, list]:
    """Plain decoding's and the library's greedy tokens."""
    job = Job(prompt=prompt, budget=budget)
    plain = decode_plain(view, job, greedy_policy(view)).output
    return plain, library_greedy(view.model, prompt, budget)


def sweep(
    view: LayerView,
    prompts: Sequence[tuple[int, ...]],
    *,
    budget: int,
    offset: int = 0,
    cells: Sequence[tuple[int, int]] = CELLS,
    prompts_per_cell: int = 1,
) -> Sweep:
    """All (L, k) of `cells`, each over `prompts_per_cell` prompts that rotate from cell to cell."""
    found = Sweep()
    expected = {}
    for prompt in prompts:
        plain, library = references(view, prompt, budget)
        expected[prompt] = plain
        if plain != library:
            found.wrong.append(f"prompt of {len(prompt)}: plain {plain} != generate {library}")
    at = offset
    for exit_layer, k in cells:
        for _ in range(prompts_per_cell):
            _one(view, prompts[at % len(prompts)], (exit_layer, k), expected, found)
            at += 1
    return found


def _one(view, prompt, cell, expected, found: Sweep) -> None:
    plain = expected[prompt]
    state, rounds = decode_speculative(
        view, Job(prompt=prompt, budget=len(plain)), greedy_policy(view), *cell
    )
    found.runs += 1
    found.outcomes.update(map(outcome, rounds))
    where = f"L, k = {cell}, prompt of {len(prompt)}"
    if state.output != plain:
        found.wrong.append(f"{where}: {state.output} != {plain}")
    if broken := broken_counts(rounds, state.output):
        found.wrong.append(f"{where}: {broken}")
