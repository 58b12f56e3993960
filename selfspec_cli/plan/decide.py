"""`Plan.load(path).decide(...)`: what a server asks for each request. Only stdlib and yaml.

    plan = Plan.load("plan.yaml")
    decision = plan.decide(task="code", context_tokens=812, temperature=0.0)
    if decision.enabled:
        use(decision.exit_layer, decision.draft_length)

Whatever was not calibrated is disabled, with the reason; nothing raises once a plan is loaded.
Plans of schema version 1, made before batch sizes were measured, are read too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import yaml

from selfspec_cli.errors import PlanError
from selfspec_cli.plan.decide_batch import beyond_batch, beyond_context
from selfspec_cli.plan.decide_check import LAW, Rule, check_plan, finite

MIN_OUTPUT_TOKENS = 20  # requests that allow fewer have too little to gain
_SAME = 1e-9  # two spellings of one temperature or penalty
_TRUNCATION = ("top_p", "top_k")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a request should be decoded speculatively, and how."""

    enabled: bool
    exit_layer: int | None
    """L (layers); None where disabled."""
    draft_length: int | None
    """k (tokens); None where disabled."""
    reason: str
    rule: Rule | None
    """The rule as the plan holds it; None where no rule speaks of such a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """One request, checked to be finite numbers."""

    task: object
    context_tokens: float
    temperature: float
    batch_size: float
    max_tokens: float | None
    law: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """A plan.yaml, ready to be asked."""

    document: Mapping[str, Any]
    """The whole plan, as read."""
    rules: tuple[Rule, ...]
    batch_sizes: tuple[int, ...]
    """Measured, ascending."""

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Plan":
        """Read a plan.

        Raises:
            PlanError: the file is missing or unreadable, not YAML, of another schema version, or a
                field that `decide` needs is missing or wrong.
        """
        place = str(path)
        try:
            data = yaml.safe_load(Path(path).read_bytes().decode("utf-8-sig"))
        except OSError as error:
            raise PlanError(f"cannot be read: {error.strerror or error}", where=place) from error
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            told = str(error).splitlines()[0] if str(error) else "unreadable"
            raise PlanError(f"not valid YAML: {told}", where=place) from error
        return cls.of_document(data, place)

    @classmethod
    def of_document(cls, data: object, where: str = "plan") -> "Plan":
        """Check a plan that was read already.

        Raises:
            PlanError: as `load`.
        """
        document = check_plan(data, where)
        sizes = tuple(document.get("batch_sizes", [1]))
        return cls(document=document, rules=tuple(document["rules"]), batch_sizes=sizes)

    def decide(  # noqa: PLR0913 - one parameter a property of the request
        self,
        *,
        task: str,
        context_tokens: int,
        temperature: float,
        batch_size: int = 1,
        top_p: float = 1.0,
        top_k: int = 0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        min_tokens: int = 0,
        max_tokens: int | None = None,
    ) -> Decision:
        """Decide on one request.

        Args:
            task: label, as the trace had it.
            context_tokens: length of the prompt, template included (tokens).
            temperature: 0 is greedy.
            batch_size: requests decoded together. Between two measured sizes a rule holds if it
                holds at the larger one.
            top_p: 1 is off.
            top_k: 0 is off.
            repetition_penalty: 1 is off.
            presence_penalty: 0 is off.
            frequency_penalty: 0 is off.
            min_tokens: output tokens before which EOS is forbidden.
            max_tokens: budget of output tokens; None if the request states none.

        Returns:
            The decision; disabled with a reason for whatever was not calibrated.
        """
        law = {
            "top_p": top_p,
            "top_k": top_k,
            "repetition_penalty": repetition_penalty,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "min_tokens": min_tokens,
        }
        ask = _Ask(
            task=task,
            context_tokens=context_tokens,
            temperature=temperature,
            batch_size=batch_size,
            max_tokens=max_tokens,
            law=law,
        )
        return self._refusal(ask) or self._by_rule(ask)

    def _refusal(self, ask: _Ask) -> Decision | None:
        """Reasons that no rule needs to be looked up for."""
        wrong = _not_numbers(ask)
        if wrong is not None:
            return _off(wrong)
        if ask.max_tokens is not None and ask.max_tokens < MIN_OUTPUT_TOKENS:
            return _off(
                f"max_tokens {ask.max_tokens:g} is below {MIN_OUTPUT_TOKENS}: too little to gain"
            )
        facts = self.document["traces"]
        low, high = facts.get("prompt_tokens_min"), facts.get("prompt_tokens_max")
        if low is None or high is None:
            return _off("no request was calibrated")
        if not low <= ask.context_tokens <= high:
            return _off(
                f"a context of {ask.context_tokens:g} tokens lies outside the {low} to {high} that "
                "were measured"
            )
        return None

    def _by_batch(self, ask: _Ask, rules: Iterable[Rule]) -> str | None:
        """Why these rules do not hold at the batch size asked for; None where they do."""
        told = beyond_context(self.document, self.batch_sizes, ask.batch_size, ask.context_tokens)
        if told is not None:
            return told
        found = [beyond_batch(rule, self.batch_sizes, ask.batch_size) for rule in rules]
        return next((text for text in found if text is not None), None)

    def _by_rule(self, ask: _Ask) -> Decision:
        named = [rule for rule in self.rules if rule["task"] == ask.task]
        if not named:
            return _off(f"the task {ask.task!r} was not observed")
        here = [rule for rule in named if _in_band(rule, ask.context_tokens)]
        if not here:
            told = f"at {ask.context_tokens:g} tokens of context"
            return _off(f"the task {ask.task!r} was not observed {told}")
        rule = _at_temperature(here, ask.temperature)
        if rule is None:
            return _off(_no_temperature(here, ask.temperature))
        if rule["enabled"]:
            both = [rule, *_neighbours(here, rule, ask.temperature)]
            refused = self._by_batch(ask, both)
            if refused is not None:
                return _off(refused, rule)
        return _apply(rule, ask)


def _apply(rule: Rule, ask: _Ask) -> Decision:
    """What a rule says of a request in its bucket and at its temperature."""
    if not rule["enabled"]:
        return _off(rule["reason"], rule)
    top = rule["prompt_tokens_max"]
    if rule["context_max"] is None and (top is None or ask.context_tokens > top):
        told = f"{ask.context_tokens:g} tokens of context exceed the longest observed here, {top}"
        return _off(told, rule)
    other = _other_law(rule["laws"], ask)
    if other is not None:
        return _off(other, rule)
    return Decision(
        enabled=True,
        exit_layer=rule["drafter"]["exit_layer"],
        draft_length=rule["draft"]["length"],
        reason=rule["reason"],
        rule=rule,
    )


def _off(reason: str, rule: Rule | None = None) -> Decision:
    return Decision(enabled=False, exit_layer=None, draft_length=None, reason=reason, rule=rule)


def _not_numbers(ask: _Ask) -> str | None:
    """Say which parameter is no finite number, or out of its own range; None if all are fine."""
    values: dict[str, Any] = {
        "context_tokens": ask.context_tokens,
        "temperature": ask.temperature,
        "batch_size": ask.batch_size,
        **ask.law,
    }
    if ask.max_tokens is not None:
        values["max_tokens"] = ask.max_tokens
    for name, value in values.items():
        if not finite(value):
            return f"{name} {value!r} is not a number"
    if ask.temperature < 0 or ask.batch_size < 1:
        return f"temperature {ask.temperature:g} or batch size {ask.batch_size:g} is out of range"
    return None


def _in_band(rule: Rule, context_tokens: float) -> bool:
    top = rule["context_max"]
    return rule["context_min"] <= context_tokens and (top is None or context_tokens < top)


def _at_temperature(rules: Sequence[Rule], temperature: float) -> Rule | None:
    """The rule measured at this temperature, else one that reaches over it."""
    for rule in rules:
        if abs(rule["temperature_min"] - temperature) <= _SAME:
            return rule
    for rule in rules:
        if rule["temperature_min"] < temperature < rule["temperature_max"]:
            return rule
    return None


def _neighbours(rules: Sequence[Rule], rule: Rule, temperature: float) -> list[Rule]:
    """Rules at the far end of the stretch that `rule` reaches over, if the request lies inside."""
    if abs(rule["temperature_min"] - temperature) <= _SAME:
        return []
    return [other for other in rules if other["temperature_min"] == rule["temperature_max"]]


def _no_temperature(rules: Sequence[Rule], temperature: float) -> str:
    measured = sorted({rule["temperature_min"] for rule in rules})
    told = ", ".join(f"{value:g}" for value in measured)
    if measured[0] < temperature < measured[-1]:
        return (
            f"temperature {temperature:g} was not measured (measured here: {told}), and its "
            "neighbours do not enable the same setting"
        )
    return f"temperature {temperature:g} lies outside those measured here: {told}"


def _other_law(laws: Sequence[Mapping[str, float]], ask: _Ask) -> str | None:
    """Say which sampling parameter was not calibrated; None if some calibrated law is the same."""
    skipped = _TRUNCATION if ask.temperature == 0 else ()  # the most likely token survives both
    names = [name for name in LAW if name not in skipped]
    differing = [
        [name for name in names if not abs(law.get(name, LAW[name]) - ask.law[name]) <= _SAME]
        for law in laws
    ]
    if not differing:
        return "no sampling parameters were calibrated here"
    fewest = min(differing, key=len)
    if not fewest:
        return None
    told = ", ".join(f"{name} {ask.law[name]:g}" for name in fewest)
    return f"{told} was not calibrated here"
