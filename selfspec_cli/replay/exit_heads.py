"""The exits' side of a score: laws of all exits over a stretch of one path, made and reduced.

The heads of the exits cost more than all else in an observation. So several exits share a matrix
product where that helps, each law is made once, in place, and reduced before the next is made. At
temperature 0, where only agreement is asked, an exit that gives one of the target's runners-up more
than the target's own choice disagrees, whatever the rest of its vocabulary says.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from selfspec_cli.engine.edits import Edits
from selfspec_cli.engine.exactness import TIE_TOLERANCE
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.view import LayerView

LOGIT_BYTES = {"cpu": 30 << 20}  # of logits made at once: what caches hold and malloc keeps (32 MB)
DEVICE_LOGIT_BYTES = 256 << 20  # elsewhere, where few launches count
RUNNERS_UP = 64  # of the target's choice, tried before an exit's whole vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The full model's side of n positions."""

    law: Tensor
    """p, float32 [n, V]; at temperature 0 the processed logits."""
    top: Tensor
    """int64 [n]: its most likely tokens."""
    tokens: Tensor
    """int64 [n]: the path's."""


def slack_of(view: LayerView) -> float:
    """Logits this close may be ordered either way by two kernels."""
    return TIE_TOLERANCE.get(view.dtype, TIE_TOLERANCE[torch.bfloat16])


def sampled(
    view: LayerView, states: Tensor, target: Target, draft: Processor, edits: Edits | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of E exits at temperature > 0.

    Args:
        view: the model.
        states: [E, n, H].
        target: of the same positions.
        draft: processing of the draft law.
        edits: what the request's processing does at these positions.

    Returns:
        r = min(1, q(x)/p(x)), undefined where p(x) = 0; beta = sum of min(p, q); whether the most
        likely tokens agree. All [E, n].
    """
    shape, device = states.shape[:2], states.device
    given, prob = torch.empty(shape, device=device), torch.empty(shape, device=device)
    agree = torch.empty(shape, dtype=torch.bool, device=device)
    x = target.tokens[:, None]
    own = target.law.gather(-1, x)[:, 0]
    for which, logits in _by_exits(view, states, edits):
        agree[which] = has_top(logits, target.top)
        q = draft.law_of(logits, overwrite=True)
        given[which] = (q.gather(-1, x.expand(len(q), -1, -1))[..., 0] / own).clamp(max=1.0)
        prob[which] = torch.minimum(target.law, q, out=q).sum(dim=-1)
    return given, prob, agree


def greedy(view: LayerView, states: Tensor, target: Target, edits: Edits | None) -> Tensor:
    """Whether the argmax of E exits [E, n, H] is the target's, bool [E, n]."""
    agree = torch.zeros(states.shape[:2], dtype=torch.bool, device=states.device)
    if edits is not None:
        for which, logits in _by_exits(view, states, edits):
            agree[which] = has_top(logits, target.top)
        return agree
    is_open = ~_beaten(view, states, target)
    rows, top = states[is_open], target.top.expand_as(agree)[is_open]
    size = max(1, _logit_bytes(states.device) // (4 * view.vocab_size))
    found = [
        has_top(view.head(some), own)
        for some, own in zip(rows.split(size), top.split(size), strict=True)
    ]
    agree[is_open] = torch.cat(found)
    return agree


def has_top(logits: Tensor, top: Tensor) -> Tensor:
    """Whether `top` [..., n] is the argmax of logits [..., n, V]; ties go to the lowest id.

    Taking one maximum without that token is many times faster than an argmax. `logits` are changed
    and restored.
    """
    index = top.expand(logits.shape[:-1])[..., None]
    own = logits.gather(-1, index)
    rest = logits.scatter_(-1, index, -torch.inf).amax(dim=-1)
    logits.scatter_(-1, index, own)
    own = own[..., 0]
    best, tied = own > rest, own == rest
    if bool(tied.any()):
        best[tied] = logits[tied].argmax(dim=-1) == index[..., 0][tied]
    return best


def _beaten(view: LayerView, states: Tensor, target: Target) -> Tensor:
    """Where an exit certainly prefers another token than the target's choice, bool [E, n]."""
    runners = target.law.topk(min(RUNNERS_UP, view.vocab_size), sorted=False).indices  # [n, K]
    logits = view.head_of(states, torch.cat([target.top[:, None], runners], dim=-1))
    if logits is None:
        return torch.zeros(states.shape[:2], dtype=torch.bool, device=states.device)
    return (logits[..., 1:] > logits[..., :1] + slack_of(view)).any(dim=-1).T


def _by_exits(
    view: LayerView, states: Tensor, edits: Edits | None
) -> Iterator[tuple[slice, Tensor]]:
    """Processed logits [g, n, V] of as many exits at a time as fit; the reader may spoil them."""
    num_exits, n, _ = states.shape
    size = max(1, _logit_bytes(states.device) // (4 * n * view.vocab_size))
    for at in range(0, num_exits, size):
        which = slice(at, min(at + size, num_exits))
        logits = view.head(states[which].flatten(0, 1)).unflatten(0, (-1, n))
        yield which, logits if edits is None else edits.apply(logits)


def _logit_bytes(device: torch.device) -> int:
    return LOGIT_BYTES.get(device.type, DEVICE_LOGIT_BYTES)
