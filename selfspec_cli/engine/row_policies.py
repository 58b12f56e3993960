"""Tokens of several rows at once, each chosen by its own policy from its own logits.

Greedy rows whose logits are used as they are, the common case of a large batch, share one argmax;
any other row is asked by itself, with the slice of logits it would see alone.
"""

from collections.abc import Sequence

from torch import Tensor

from selfspec_cli.engine.policies import GreedyPolicy, Policy
from selfspec_cli.engine.verify import Verdict


def choose_rows(
    policies: Sequence[Policy], logits: Tensor, outputs: Sequence[Sequence[int]]
) -> list[int]:
    """Next token of each row in plain decoding, from target logits [n, V]."""
    best = _argmax(policies, logits)
    return [
        best[at] if takes_argmax(policy) else policy.choose(logits[at : at + 1], outputs[at])
        for at, policy in enumerate(policies)
    ]


def propose_rows(
    policies: Sequence[Policy],
    logits: Tensor,
    outputs: Sequence[Sequence[int]],
    drafted: Sequence[list[int]],
    lengths: Sequence[int],
) -> None:
    """Append one draft from logits [n, V] to each row of `drafted` that is shorter than it may."""
    best = _argmax(policies, logits)
    for at, (policy, own) in enumerate(zip(policies, drafted, strict=True)):
        if len(own) >= lengths[at]:
            continue
        if takes_argmax(policy):
            own.append(best[at])
        else:
            own.append(policy.propose(logits[at : at + 1], outputs[at], own))


def settle_rows(
    policies: Sequence[Policy],
    logits: Tensor,
    outputs: Sequence[Sequence[int]],
    drafted: Sequence[Sequence[int]],
) -> list[Verdict]:
    """Verdict on each row's k_row drafts from the first k_row + 1 of its target logits.

    Args:
        policies: one a row, n.
        logits: [n, k + 1, V], k the most any row drafted.
        outputs: committed tokens of each row.
        drafted: drafts of each row; a row without any takes its token of plain decoding.
    """
    best = _argmax(policies, logits)
    verdicts = []
    for at, (policy, own) in enumerate(zip(policies, drafted, strict=True)):
        if takes_argmax(policy):
            verdicts.append(_greedy(own, best[at]))
        elif own:
            verdicts.append(policy.settle(logits[at, : len(own) + 1], outputs[at], own))
        else:
            verdicts.append(Verdict(0, policy.choose(logits[at, :1], outputs[at]), "bonus"))
    return verdicts


def takes_argmax(policy: Policy) -> bool:
    """Whether drafts and tokens are the argmax of logits as the head gives them."""
    return type(policy) is GreedyPolicy and policy.target.unchanged and policy.draft.unchanged


def _argmax(policies: Sequence[Policy], logits: Tensor) -> list:
    """Argmax of logits [..., V] as nested lists; nothing where no row needs it."""
    return logits.argmax(dim=-1).tolist() if any(map(takes_argmax, policies)) else []


def _greedy(drafted: Sequence[int], target: Sequence[int]) -> Verdict:
    """`verify_greedy` on lists: a tensor operation a row would cost more than the comparison."""
    k = len(drafted)
    a = next((i for i in range(k) if drafted[i] != target[i]), k)
    return Verdict(a, target[a], "recovered" if a < k else "bonus")
