"""Between two measured temperatures: a rule reaches to the next one if both enable one cell."""

from collections.abc import Sequence
from itertools import pairwise

from selfspec_cli.plan.document import Rule
from selfspec_cli.plan.rules import cell_of

Place = tuple[str, int, float]
"""(task, smallest prompt of the band, measured temperature)."""


def extend_temperatures(rules: Sequence[Rule]) -> list[Rule]:
    """Return the rules with `temperature_max` set; `temperature_min` is the measured temperature.

    A rule holds at its measured temperature, and up to the next one measured anywhere in this plan
    if the same task and band enables the same cell there under the same laws. Any other stretch
    between two measurements is calibrated by nobody.
    """
    measured = sorted({rule.temperature_min for rule in rules})
    following = dict(pairwise(measured))
    by_place = {_place(rule, rule.temperature_min): rule for rule in rules}
    return [_extended(rule, by_place, following) for rule in rules]


def _extended(rule: Rule, by_place: dict[Place, Rule], following: dict[float, float]) -> Rule:
    own = rule.temperature_min
    above = following.get(own)
    other = None if above is None else by_place.get(_place(rule, above))
    top = own if other is None or above is None or not _agree(rule, other) else above
    return rule.model_copy(update={"temperature_max": top})


def _agree(one: Rule, other: Rule) -> bool:
    on = one.enabled and other.enabled
    # In the open band a rule holds up to its longest prompt; between two, up to the shorter one's.
    covered = one.context_max is not None or (
        (one.prompt_tokens_max or 0) <= (other.prompt_tokens_max or 0)
    )
    return on and covered and cell_of(one) == cell_of(other) and one.laws == other.laws


def _place(rule: Rule, temperature: float) -> Place:
    return rule.task, rule.context_min, temperature
