"""Scores computed straight from their definitions: the reference of score and of its speed.

One head, one law and one reduction an exit; every row's penalties are counted anew and top-p sorts
the whole vocabulary. Each is written as in METHOD.md, none of it shares code with the product.
"""

import torch


def plain_score(head, states, tokens, before, target, draft=None):
    """Scores as a dict of [E, n] or [n] tensors.

    Args:
        head: states [n, H] to logits [n, V].
        states: [E + 1, n, H], the full depth last.
        tokens, before: of the path, as in `score`.
        target, draft: law functions (logits [V], output so far) -> (law [V] or None, logits [V]).
    """
    draft = draft or target
    told = [[*before, *tokens[:i]] for i in range(len(tokens))]
    p, logits = laws_of(head(states[-1]), told, target)
    x = torch.tensor(tokens)[:, None]
    found = {"path_gap": logits.amax(-1) - logits.gather(1, x)[:, 0]}
    if p is not None:
        log_p = p.clamp(min=torch.finfo(p.dtype).tiny).log()
        px = p.gather(1, x)[:, 0]
        missing = torch.where(px > 0, 0.0, torch.nan)
        found["surprisal"] = missing - px.log()
        found["entropy"] = -(p * log_p).sum(-1)
        found["varentropy"] = ((p * log_p**2).sum(-1) - found["entropy"] ** 2).clamp(min=0)
    for state in states[:-1]:
        q, own = laws_of(head(state), told, draft)
        agree = own.argmax(-1) == logits.argmax(-1)
        given = beta = agree.float()
        if p is not None:
            given = missing + (q.gather(1, x)[:, 0] / px).clamp(max=1)
            beta = torch.minimum(p, q).sum(-1)
        for name, value in (
            ("is_argmax", agree), ("accept_given_path", given), ("accept_prob", beta),
        ):  # fmt: skip
            found.setdefault(name, []).append(value)
    return {n: torch.stack(v) if isinstance(v, list) else v for n, v in found.items()}


def laws_of(logits, told, law):
    """Laws [n, V], or None at temperature 0, and processed logits [n, V]."""
    pairs = [law(row, output) for row, output in zip(logits, told, strict=True)]
    rows = [one for one, _ in pairs]
    return (None if rows[0] is None else torch.stack(rows)), torch.stack([own for _, own in pairs])


def plain_law(sampling, prompt=(), eos_ids=(), *, truncate=True):
    """The law function of a request's sampling parameters."""

    def law(logits, output):
        row = penalised(logits.clone(), sampling, prompt, output)
        if len(output) < sampling.min_tokens:
            row[list(eos_ids)] = -torch.inf
        if sampling.temperature == 0.0:
            return None, row
        scaled = (row - row.max()) / max(sampling.temperature, 1e-30)
        if truncate:
            scaled = cut(scaled, sampling.top_k, sampling.top_p)
        return torch.softmax(scaled, dim=-1), row

    return law


def penalised(row, s, prompt, output):
    """Logit bias, repetition, frequency and presence penalties of one position, token by token."""
    for token, amount in s.logit_bias:
        row[token] += amount
    for token in {*prompt, *output} if s.repetition_penalty != 1.0 else ():
        by = s.repetition_penalty
        row[token] = row[token] * by if row[token] < 0 else row[token] / by
    for token in set(output) if s.frequency_penalty or s.presence_penalty else ():
        row[token] -= s.frequency_penalty * list(output).count(token) + s.presence_penalty
    return row


def cut(scaled, k, p):
    """Top-k, then top-p over a stable sort of the whole vocabulary."""
    if 0 < k < len(scaled):
        scaled = scaled.masked_fill(scaled < scaled.topk(k).values[-1], -torch.inf)
    if p >= 1.0:
        return scaled
    ordered, index = scaled.sort(descending=True, stable=True)
    law = torch.softmax(ordered, dim=-1)
    kept = (law.cumsum(-1) - law) < p
    kept[0] = True
    return torch.full_like(scaled, -torch.inf).scatter(0, index[kept], ordered[kept])
