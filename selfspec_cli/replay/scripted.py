"""Decode an observed path again, every pass for real, with its coins drawn beforehand.

Speculative and plain decoding must commit the same tokens to be compared in time. At temperature
> 0 that is arranged by METHOD.md §6: whether the draft at position t is accepted is a coin of
probability r_t; an accepted draft is set to x_t, a rejected one is drawn from max(0, q - p). This
is the joint law of real rejection sampling given its output, so rounds and work are those of a
real decode. All processing, draws and the verdict run as they always do; only their outcome is
replaced.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfspec_cli.engine.policies import SampledPolicy
from selfspec_cli.engine.verify import Verdict, draw, residual
from selfspec_cli.engine.view import LayerView
from selfspec_cli.replay.observe import forced_states
from selfspec_cli.replay.setting import Laws, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What an observed path fixes in advance."""

    tokens: tuple[int, ...]
    """The path, n output tokens."""
    accepted: tuple[bool, ...]
    """[n]: whether a draft tested at position t is accepted. All False for plain decoding."""
    target_laws: Tensor | None = None
    """float32 [n, V]: p along the path, to draw rejected drafts; None for plain decoding."""


class ScriptedPolicy(SampledPolicy):
    """A sampled policy whose outcomes follow a script; its work is unchanged."""

    def __init__(
        self, laws: Laws, script: Script, seed: int, *, max_draft: int, view: LayerView
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        super().__init__(
            laws.target, generator, max_draft=max_draft, draft=laws.draft, device=view.device
        )
        self.script = script

    def choose(self, logits: Tensor, output: Sequence[int]) -> int:
        """Draw as ever, then give the path's token."""
        super().choose(logits, output)
        return self.script.tokens[len(output)]

    def propose(self, logits: Tensor, output: Sequence[int], drafted: Sequence[int]) -> int:
        """Draw as ever, then give x_t where the coin accepts, a rejected draft where it does not.

        After a rejection, and beyond the path's end, the draft runs freely.
        """
        free = super().propose(logits, output, drafted)
        t = len(output) + len(drafted)
        tokens = self.script.tokens
        on_path = t < len(tokens) and list(drafted) == list(tokens[len(output) : t])
        if not on_path:
            return free
        if self.script.accepted[t]:
            return tokens[t]
        laws = self.script.target_laws
        if laws is None:
            raise ValueError("a script without target laws cannot draft")
        law = self._laws[len(drafted)]
        return draw(residual(law, laws[t]), float(self.uniforms(1)))

    def settle(self, logits: Tensor, output: Sequence[int], drafted: Sequence[int]) -> Verdict:
        """Verify as ever, then give the verdict the coins gave."""
        real = super().settle(logits, output, drafted)
        s, tokens = len(output), self.script.tokens
        within = min(len(drafted), len(tokens) - s)
        a = next((i for i in range(within) if not self.script.accepted[s + i]), within)
        if s + a >= len(tokens):  # every draft up to the path's end: the rest is cut there
            return Verdict(len(drafted), real.next_token, "bonus")
        return Verdict(a, tokens[s + a], "recovered" if a < len(drafted) else "bonus")


@torch.inference_mode()
def path_laws(setting: Setting, prompt: Sequence[int], tokens: Sequence[int], laws: Laws) -> Tensor:
    """Return p along a path, float32 [n, V]; one teacher-forced pass, outside any timing."""
    view, rows, done = setting.loaded.view, [], 0
    for states in forced_states(setting, prompt, tokens, ()):
        n = states.shape[1]
        new = tokens[done : done + n]
        rows.append(laws.target.laws(view.head(states[-1]), tokens[:done], new[:-1]))
        done += n
    return torch.cat(rows)


def draw_coins(accept_given_path: Sequence[float], seed: int) -> tuple[bool, ...]:
    """Toss every position's coin once; a position is tested at most once, so once is enough.

    Args:
        accept_given_path: r_t [n]; entry 0 is never tested and may be missing.
        seed: of the tosses.
    """
    generator = torch.Generator().manual_seed(seed)
    tosses = torch.rand(len(accept_given_path), generator=generator, dtype=torch.float64)
    return tuple(bool(u < r) for u, r in zip(tosses.tolist(), accept_given_path, strict=True))
