"""Findings: what a run shows, why it probably is so, and what to do about it.

One pure function from the run's evidence; every threshold stands beside its rule with its reason.
A run that is well, at several batch sizes, gives none: silence is the expected answer, and no rule
fires on noise alone. What a run does not keep is not judged: runs of earlier versions hold no
counts of repeated n-grams, and no run holds text.
"""

from selfspec_cli.report import finding_acceptance as acceptance
from selfspec_cli.report import finding_batches as batches
from selfspec_cli.report import finding_costs as costs
from selfspec_cli.report import finding_decodes as decodes
from selfspec_cli.report import finding_memory as memory
from selfspec_cli.report import finding_output as output
from selfspec_cli.report import finding_production as production
from selfspec_cli.report import finding_repeats as repeats
from selfspec_cli.report import finding_shares as shares
from selfspec_cli.report import finding_traffic as traffic
from selfspec_cli.report.finding_types import Evidence, Finding

_CHECKS = (
    output.output_differs,
    output.law_differs,
    repeats.repeats_more,
    memory.device_short,
    costs.unstable,
    costs.not_additive,
    decodes.accepts_fewer,
    costs.prediction_off,
    decodes.pace_changed,
    production.accepts_less,
    traffic.traffic_accepts_less,
    acceptance.chance_level,
    acceptance.low_acceptance,
    costs.costly,
    shares.dearest_part,
    memory.above_plain,
    decodes.slow_tail,
    costs.not_bandwidth_bound,
    costs.fades_with_context,
    batches.fades_with_batch,
    acceptance.falls_with_temperature,
    acceptance.two_peaks,
    acceptance.longer_drafts,
    acceptance.partial_window,
    acceptance.thin,
    batches.one_batch,
)


def find(evidence: Evidence) -> tuple[Finding, ...]:
    """Return the findings of a run, those that void numbers first."""
    return tuple(finding for check in _CHECKS for finding in check(evidence))
