"""Acceptance of this run against that of a second trace (`doctor --traffic`)."""

from collections.abc import Iterator

from selfspec_cli.report.finding_types import Evidence, Finding
from selfspec_cli.report.format import percent, percent_interval, plural, shown
from selfspec_cli.report.second_trace import FALSE_ALARM, Rate, TrafficRow

_LISTED = 3  # rows named
_WORDS = {"above": "above", "not_above": "not above", "no_verdict": "no verdict"}


def traffic_accepts_less(evidence: Evidence) -> Iterator[Finding]:
    """Rows whose tested acceptance is surely above that of the second trace."""
    if evidence.traffic is None:
        return
    above = [row for row in evidence.traffic.rows if row.outcome == "above"]
    if above:
        told = "; ".join(row_text(row) for row in above[:_LISTED])
        more = f"; and {plural(len(above) - _LISTED, 'more')}" if len(above) > _LISTED else ""
        yield Finding(
            code="traffic_accepts_less",
            symptom="The second trace accepts fewer drafts than this run does at the plan's cells.",
            evidence=f"{shown(evidence.traffic.source, 60)}: {told}{more}. False alarm "
            f"{FALSE_ALARM:g} over all rows.",
            cause="The text of the same kinds of requests has become harder to draft, or the log "
            "was no fair sample of them.",
            remedy="Calibrate on the second trace and serve that plan; `selfspec gate RUN "
            "--traffic RUN` says whether its mix has drifted too.",
        )


def row_text(row: TrafficRow) -> str:
    """Return one row of the comparison in words.

    Args:
        row: of the second trace.
    """
    place = "all" if row.task is None else f"{shown(row.task, 40)}, T={row.temperature:g}"
    reason = f" ({row.reason})" if row.reason else ""
    left = row.num_buckets - row.num_paired
    unpaired = f"; {plural(left, 'bucket')} without a partner" if left and row.num_paired else ""
    if row.offline is None or row.second is None or row.difference is None:
        return f"{place}: {_WORDS[row.outcome]}{reason}"
    ends = f"{100 * (row.low or 0.0):.0f} to {100 * (row.high or 0.0):.0f}"
    return (
        f"{place}: {_rate(row.offline)} here, {_rate(row.second)} there, "
        f"{100 * row.difference:+.0f} points ({ends}): {_WORDS[row.outcome]}{reason}{unpaired}"
    )


def _rate(rate: Rate) -> str:
    ends = percent_interval(rate.low, rate.high)
    return f"{percent(rate.estimate)} ({ends}; {plural(rate.num_groups, 'request')})"
