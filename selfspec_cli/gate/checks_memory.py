"""Does it fit? Weights, KV cache at peak concurrency, and what speculation keeps beside them."""

from dataclasses import dataclass

import numpy as np

from selfspec_cli.gate.evidence import GateEvidence
from selfspec_cli.gate.rules import MemoryRule
from selfspec_cli.gate.verdict import Check, Outcome
from selfspec_cli.report.format import percent

NAME = "memory"
_GIB = 2.0**30
_LESS = (
    "Give up in this order: draft length, batch size, context; or use a smaller dtype or a larger "
    "device."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes by what takes them."""

    weights: float
    cache: float
    """Keys and values of prompts and outputs of all requests at once."""
    buffers: float
    """Drafted positions: their keys and values, and their logits."""

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.cache + self.buffers


def memory_checks(evidence: GateEvidence, rule: MemoryRule) -> list[Check]:
    """Return the memory that speculation needs at peak against the device's.

    Args:
        evidence: of the run.
        rule: limit, requests at once, tokens of a request.
    """
    if not evidence.enabled:
        return []
    at_once, told_at_once = _concurrency(evidence, rule)
    context = rule.context_tokens or _context(evidence)
    device = _device_bytes(evidence)
    found = None if context is None else _footprint(evidence, at_once, context)
    if found is None or device is None:
        missing = "the device's memory" if found is not None else "the bytes of weights and cache"
        if context is None:
            missing = "the length of requests"
        return [
            Check(
                name=NAME,
                outcome="no_verdict",
                limit=rule.max_share,
                text=f"the run does not say {missing}",
                next_step="Calibrate again with this version, which records it.",
            )
        ]
    share = found.total / device
    outcome: Outcome = "pass" if share <= rule.max_share + 1e-9 else "fail"
    return [
        Check(
            name=NAME,
            outcome=outcome,
            value=share,
            limit=rule.max_share,
            text=f"{percent(share)} of {device / _GIB:.1f} GiB with {told_at_once} of "
            f"{context} tokens, at most {percent(rule.max_share)}: {_parts(found)}",
            next_step="" if outcome == "pass" else _LESS,
        )
    ]


def _parts(found: Footprint) -> str:
    parts = (("weights", found.weights), ("KV cache", found.cache), ("drafts", found.buffers))
    return ", ".join(f"{name} {size / _GIB:.2f}" for name, size in parts) + " GiB"


def _concurrency(evidence: GateEvidence, rule: MemoryRule) -> tuple[int, str]:
    if rule.concurrency is not None:
        return rule.concurrency, f"{rule.concurrency} requests at once"
    largest = max((one.max_batch or 1) for one in evidence.enabled)
    return largest, f"{largest} at once (the plan's largest batch; give --concurrency)"


def _context(evidence: GateEvidence) -> int | None:
    """P99 of prompt and output budget, tokens."""
    if evidence.requests is None:
        return None
    lengths = (evidence.requests["prompt_tokens"] + evidence.requests["max_tokens"]).dropna()
    return int(np.ceil(np.quantile(lengths, 0.99))) if len(lengths) else None


def _device_bytes(evidence: GateEvidence) -> float | None:
    device = evidence.plan.measured_on.device
    key = "memory_bytes" if device.get("kind") == "cpu" else "gpu_memory_bytes"
    return _positive(device.get(key))


def _footprint(evidence: GateEvidence, at_once: int, context: int) -> Footprint | None:
    facts = evidence.facts("footprint")
    weights = _positive(facts.get("weights_bytes"))
    per_token = _positive(facts.get("kv_bytes_per_token"))
    logits = _positive(facts.get("logits_bytes_per_position"))
    if weights is None or per_token is None or logits is None:
        return None
    drafted = 1 + max((rule.draft.length or 0) for rule in evidence.enabled)
    return Footprint(
        weights=weights,
        cache=at_once * context * per_token,
        buffers=at_once * drafted * (per_token + logits),
    )


def _positive(value: object) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return float(value) if number else None  # type: ignore[arg-type]
