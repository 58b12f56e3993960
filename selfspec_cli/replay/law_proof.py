"""Proof on the run's own model that sampled rounds commit the target's law (METHOD.md §6).

At temperature > 0 two texts may differ and both be right, so equality proves nothing; the law
does. At a few observed positions, p and q_L are computed over the full vocabulary, tokens are
drafted from q_L, accepted or replaced, and the committed tokens are compared with p by chi-square.
Draws are made all at once by the rule below; a share of them goes one by one through the
decoder's own `verify` with the same uniforms, and every one must come out the same.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats
from torch import Tensor

from selfspec_cli.engine.verify import Verdict, residual, verify
from selfspec_cli.replay.confirm import ConfirmPath
from selfspec_cli.replay.observe import forced_states
from selfspec_cli.replay.setting import Setting, derive_seed

POSITIONS = 6
DRAWS = 20_000  # a position
CHECKED = 100  # of those also go through `verify`, one by one
MIN_EXPECTED = 10.0  # of a chi-square bin; tokens expected less often share one
FALSE_ALARM = 1e-4  # that a lossless run fails, all positions together (Bonferroni)


@dataclass(frozen=True, slots=True, kw_only=True)
class LawPair:
    """Both laws at one observed position, full vocabulary."""

    target: Tensor
    """p, float32 [V]."""
    draft: Tensor
    """q_L, float32 [V]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LawProof:
    """What was tried and what came out; goes into the manifest."""

    positions: int
    draws: int
    """Draws a position."""
    checked: int
    """Draws that also went through `verify`, all positions together."""
    disagreements: int
    """Of those, how many `verify` decided otherwise than the rule that was tested."""
    smallest_p: float | None
    """Smallest chi-square p-value over positions; None without a position."""
    alarm_level: float | None
    """p-value below which a position fails: the false-alarm rate over the positions."""
    false_alarm: float = FALSE_ALARM
    """Chance that a lossless run fails, all positions together."""

    @property
    def passed(self) -> bool | None:
        """Whether every position passes; None where nothing was tried (no verdict)."""
        if self.smallest_p is None or self.alarm_level is None:
            return None
        return self.disagreements == 0 and self.smallest_p >= self.alarm_level

    def to_document(self) -> dict[str, object]:
        """Plain values for the manifest."""
        return asdict(self) | {"passed": self.passed}


def _accepts(drafted: Tensor, law: LawPair, uniforms: Tensor) -> Tensor:
    """Accept with probability min(1, p / q), bool [n]."""
    q, p = law.draft[drafted].double(), law.target[drafted].double()
    return uniforms * q < p


def _after_rejection(law: LawPair) -> Tensor:
    """Unnormalised law [V] of the token that replaces a rejected draft."""
    return residual(law.target, law.draft)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The rule under proof; the decoder's by default, a broken one in tests."""

    accepts: Callable[[Tensor, LawPair, Tensor], Tensor] = _accepts
    after_rejection: Callable[[LawPair], Tensor] = _after_rejection
    verify: Callable[[Tensor, Tensor, Tensor, Tensor], Verdict] = verify


@torch.inference_mode()
def observed_laws(
    setting: Setting, paths: Sequence[tuple[ConfirmPath, int]], count: int = POSITIONS
) -> Iterator[LawPair]:
    """Yield both laws at up to `count` observed positions, shortest prompts first.

    Args:
        setting: the run's model and choices.
        paths: observed paths at temperature > 0 with at least two tokens, each with the exit
            layer of a cell that is confirmed on it. With fewer paths than `count` each gives
            several positions, drawn by the run's seed.
        count: positions in all.
    """
    ordered = sorted(paths, key=lambda one: (one[0].request.prompt_tokens, one[0].path_id))[:count]
    for at, (path, exit_layer) in enumerate(ordered):
        share = count // len(ordered) + (at < count % len(ordered))
        yield from _laws_of(setting, path, exit_layer, share)


def _laws_of(setting: Setting, path: ConfirmPath, exit_layer: int, count: int) -> Iterator[LawPair]:
    """Both laws at `count` positions of a path (fewer if it is shorter), one forced pass."""
    drafted = len(path.tokens) - 1  # position 0 is prefill's
    rng = np.random.default_rng(derive_seed(setting.seed, path.path_id, "law proof"))
    wanted = {1 + int(t) for t in rng.choice(drafted, min(count, drafted), replace=False)}
    laws, view = setting.laws(path.request, path.temperature), setting.loaded.view
    tokens, start = path.tokens[: max(wanted) + 1], 0
    for states in forced_states(setting, path.request.prompt_token_ids, tokens, [exit_layer]):
        end = start + states.shape[1]
        for t in sorted(wanted & set(range(start, end))):
            inner, last = states[:, t - start].unbind()
            yield LawPair(
                target=laws.target.laws(view.head(last[None]), tokens[:t])[0],
                draft=laws.draft.laws(view.head(inner[None]), tokens[:t])[0],
            )
        start = end


def prove_law(
    pairs: Sequence[LawPair],
    seed: int,
    *,
    draws: int = DRAWS,
    rule: Rule | None = None,
) -> LawProof:
    """Draw rounds of one draft at every position and compare what they commit with p.

    A lossless rule fails with probability 1e-4 over all positions (Bonferroni). Seconds: 20,000
    draws over a vocabulary of 49,000 take about 20 ms.

    Args:
        pairs: laws of the positions.
        seed: of the draws.
        draws: a position.
        rule: what is proved, the decoder's own unless a test breaks it.
    """
    rule = rule or Rule()
    smallest, disagreements, checked = None, 0, 0
    generator = torch.Generator().manual_seed(seed)
    for pair in pairs:
        uniforms = torch.rand(3, draws, generator=generator, dtype=torch.float64)
        uniforms = uniforms.to(pair.target.device)
        drafted = _draws(pair.draft, uniforms[0])
        committed = _committed(rule, pair, drafted, uniforms)
        counts = torch.bincount(committed, minlength=pair.target.shape[0])
        p_value = chi_square_p(counts.cpu().numpy(), pair.target.double().cpu().numpy())
        smallest = p_value if smallest is None else min(smallest, p_value)
        some = min(CHECKED, draws)
        again = _one_by_one(rule, pair, drafted[:some], uniforms[:, :some])
        disagreements += int((again != committed[:some].cpu()).sum())
        checked += some
    return LawProof(
        positions=len(pairs),
        draws=draws,
        checked=checked,
        disagreements=disagreements,
        smallest_p=smallest,
        alarm_level=FALSE_ALARM / len(pairs) if pairs else None,
    )


def _draws(law: Tensor, uniforms: Tensor) -> Tensor:
    """Tokens [n] at quantiles of an unnormalised law [V], as `engine.verify.draw` does for one."""
    cdf = torch.cumsum(law, dim=-1, dtype=torch.float64)
    tokens = torch.searchsorted(cdf, uniforms * cdf[-1], right=True)
    return tokens.clamp(max=int(law.nonzero()[-1]))


def _committed(rule: Rule, pair: LawPair, drafted: Tensor, uniforms: Tensor) -> Tensor:
    """Tokens [n] that rounds of one draft commit at the drafted position."""
    replacements = _draws(rule.after_rejection(pair), uniforms[2])
    return torch.where(rule.accepts(drafted, pair, uniforms[1]), drafted, replacements)


def _one_by_one(rule: Rule, pair: LawPair, drafted: Tensor, uniforms: Tensor) -> Tensor:
    """The same tokens by the decoder's own verification, with the same uniforms."""
    targets = torch.stack([pair.target, pair.target])  # the bonus position's law plays no part
    tokens = []
    for at in range(len(drafted)):
        one = drafted[at : at + 1]
        verdict = rule.verify(one, pair.draft[None], targets, uniforms[1:, at])
        tokens.append(int(one[0]) if verdict.num_accepted else verdict.next_token)
    return torch.tensor(tokens)


def chi_square_p(counts: npt.ArrayLike, law: npt.ArrayLike) -> float:
    """Return the p-value of token counts [V] against a law [V].

    Tokens expected at least `MIN_EXPECTED` times have a bin of their own, the rest share one. Where
    the rest is expected less often than that, a chi-square is no test of it: its count is then
    judged by the exact binomial tail, the others by chi-square among themselves, and the smaller
    p-value counts twice. A token without probability gives 0; a law of one token alone is tested by
    that only.
    """
    observed = np.asarray(counts, dtype=np.float64)
    p = np.asarray(law, dtype=np.float64)
    if observed[p <= 0].sum() > 0:
        return 0.0
    total = observed.sum()
    expected = total * p / p.sum()
    own = expected >= MIN_EXPECTED
    rest, rest_expected = observed[~own].sum(), expected[~own].sum()
    if rest_expected >= MIN_EXPECTED:
        return _chi_square([rest, *observed[own]], [rest_expected, *expected[own]])
    if rest_expected == 0:
        return _chi_square(observed[own], expected[own])
    tail = float(stats.binomtest(int(rest), int(total), rest_expected / total).pvalue)
    if rest == total:
        return tail
    scale = (total - rest) / expected[own].sum()
    return min(1.0, 2 * min(tail, _chi_square(observed[own], scale * expected[own])))


def _chi_square(observed: npt.ArrayLike, expected: npt.ArrayLike) -> float:
    o, e = np.asarray(observed), np.asarray(expected)
    return float(stats.chi2.sf(((o - e) ** 2 / e).sum(), len(e) - 1)) if len(e) > 1 else 1.0
