"""The answer first: one sentence, the time saved, and what to type next."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from selfspec_cli.plan.document import PlanDocument
from selfspec_cli.report.format import percent, percent_interval, plural, ratio_with_interval, shown
from selfspec_cli.report.rule_rows import by_traffic

Tone = Literal["on", "some", "off", "unknown"]
_TONES: Mapping[str, tuple[Tone, str]] = {
    "enable": ("on", "Enable"),
    "enable some": ("some", "Enable some"),
    "do not enable": ("off", "Do not enable"),
    "no verdict": ("unknown", "No verdict"),
}
NOT_DRAWN = "not drawn, beyond the limit"  # reason of the manifest for rows that --limit left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a reader takes away after five seconds."""

    tone: Tone
    word: str
    sentence: str
    saved: str
    """Share of plain decode time saved, with its interval."""
    saved_share: str
    """The share alone."""
    saved_ends: str
    """Its interval alone; empty where nothing is enabled."""
    saved_estimate: float | None
    """Fraction; negative where the plan costs time."""
    buckets: str
    token_share: str
    ceiling: str
    """Share saved with every request at its own best cell: no plan can reach it."""
    next_command: str


def make_verdict(plan: PlanDocument, manifest: Mapping[str, Any], run_name: str) -> Verdict:
    """Return the verdict of a plan.

    Args:
        plan: the plan document.
        manifest: of the run, for the command to run next.
        run_name: how the run is named in commands.
    """
    tone, word = _TONES[plan.verdict]
    total = plan.total
    change = total.decode_time_change
    return Verdict(
        tone=tone,
        word=word,
        sentence=_sentence(plan),
        saved=_saved(plan),
        saved_share=percent(_negated(change.estimate)),
        saved_ends=_saved_ends(plan),
        saved_estimate=_negated(change.estimate),
        buckets=f"{total.num_enabled} of {total.num_buckets}",
        token_share=percent(total.enabled_token_share),
        ceiling=percent(_negated(total.oracle_decode_time_change)),
        next_command=next_command(plan, manifest, run_name),
    )


def _sentence(plan: PlanDocument) -> str:
    total = plan.total
    buckets = plural(total.num_buckets, "bucket")
    if plan.verdict in ("enable", "enable some"):
        return (
            f"Enable speculation in {_where(plan)}, {percent(total.enabled_token_share)} of the "
            f"tokens: it saves {_saved(plan)} of the decode time of this log."
        )
    if plan.verdict == "no verdict":
        return f"No verdict: none of {buckets} has enough evidence, so speculation stays off."
    return f"Do not enable speculation: {_none_pays(plan)}{_best_single(plan)}."


def _where(plan: PlanDocument) -> str:
    buckets = plural(plan.total.num_buckets, "bucket")
    if plan.total.num_buckets == 1:
        return "the one bucket there is"
    return (
        f"all {buckets}" if plan.verdict == "enable" else f"{plan.total.num_enabled} of {buckets}"
    )


def _none_pays(plan: PlanDocument) -> str:
    margin = percent(plan.settings.margin)
    if plan.total.num_buckets == 1:
        return f"the one bucket there is does not surely gain {margin}"
    return f"none of {plan.total.num_buckets} buckets surely gains {margin}"


def _best_single(plan: PlanDocument) -> str:
    known = [cell for cell in plan.global_ if cell.speedup.estimate is not None]
    if not known:
        return ""
    best = max(known, key=lambda cell: cell.speedup.estimate or 0.0)
    speed = best.speedup
    told = ratio_with_interval(speed.estimate, speed.low, speed.high)
    return (
        f"; the best single setting, L={best.exit_layer} and k={best.draft_length} "
        f"at T={best.temperature:g}, runs at {told}"
    )


def _saved(plan: PlanDocument) -> str:
    ends = _saved_ends(plan)
    told = percent(_negated(plan.total.decode_time_change.estimate))
    return f"{told} ({ends})" if ends else told


def _saved_ends(plan: PlanDocument) -> str:
    change = plan.total.decode_time_change
    if change.low == change.high:  # 0 to 0 is no interval: nothing was enabled
        return ""
    return percent_interval(_negated(change.high), _negated(change.low))


def _negated(value: float | None) -> float | None:
    return None if value is None else 0.0 - value  # never -0


def next_command(plan: PlanDocument, manifest: Mapping[str, Any], run_name: str) -> str:
    """Return the command that helps most now.

    Without a verdict and with requests left in the traces: measure more of them. Where something is
    enabled: the gate, which asks all that a rollout needs. Otherwise: let the plan explain its
    largest bucket.
    """
    left = manifest.get("read", {}).get("skipped", {}).get(NOT_DRAWN)
    if plan.verdict == "no verdict" and left:
        return _more_requests(manifest, left)
    if plan.total.num_enabled:
        return shlex.join(["selfspec", "gate", run_name])
    first = next(iter(by_traffic(plan.rules)), None)
    command = ["selfspec", "plan", run_name]
    if first is not None and shown(first.task) == first.task:
        command += ["--explain", first.task]
    return shlex.join(command)


def _more_requests(manifest: Mapping[str, Any], left: Any) -> str:
    config = manifest.get("config", {})
    rows = int(left["rows"] if isinstance(left, Mapping) else left)
    limit = int(config.get("limit", 0))
    traces = [str(name) for name in config.get("traces", ())]
    command = ["selfspec", "calibrate", "-m", str(config.get("model", "")), "-t", *traces]
    return shlex.join([*command, "--limit", str(min(3 * limit, limit + rows)), "-o", "RUN"])
