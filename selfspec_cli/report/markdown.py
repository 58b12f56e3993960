"""report.md: verdict, rules and findings as Markdown, for issues and reviews."""

import re
from collections.abc import Iterable, Sequence

from selfspec_cli.report.format import NOT_KNOWN, percent, ratio, ratio_with_interval, shown
from selfspec_cli.report.rule_rows import RuleRow
from selfspec_cli.report.view import ReportView

_HEAD = (
    "bucket", "rule", "L", "k", "speedup (95 %)", "measured", "accepted", "needed", "slow", "n",
    "evidence", "reason",
)  # fmt: skip


def render_markdown(view: ReportView) -> str:
    """Return report.md; nothing of the data can become markup."""
    inputs = view.inputs
    lines = [
        f"# selfspec report: {plain(view.name)}",
        "",
        f"**{view.verdict.word}.** {plain(view.verdict.sentence)}",
        "",
        f"Decode time saved: {view.verdict.saved}. Buckets enabled: {view.verdict.buckets}. "
        f"Next: {plain(view.verdict.next_command)}",
        "",
        *_table(_HEAD, (_row(row) for row in view.rules)),
        "",
        "## Findings",
        "",
        *(
            f"- **{plain(found.symptom)}** {plain(found.evidence)} Cause: {plain(found.cause)} "
            f"Remedy: {plain(found.remedy)}"
            for found in view.findings
        ),
        *([] if view.findings else ["None."]),
        "",
        "## Traffic",
        "",
        plain(f"{inputs.read_sentence}. {inputs.source_sentence}. {inputs.window}"),
        "",
        *(f"- {plain(warning)}" for warning in view.plan.warnings),
        "",
        "## Provenance",
        "",
        *(f"- {plain(name)}: {plain(value)}" for name, value in view.provenance),
    ]
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Return text in which Markdown and HTML see no markup, on one line."""
    safe = shown(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", safe)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _row(row: RuleRow) -> list[str]:
    rule, measured = row.rule, row.rule.measured_speedup
    layer, length = rule.drafter.exit_layer, rule.draft.length
    return [
        plain(row.label),
        "on" if rule.enabled else "off",
        NOT_KNOWN if layer is None else str(layer),
        NOT_KNOWN if length is None else str(length),
        ratio_with_interval(rule.speedup.estimate, rule.speedup.low, rule.speedup.high),
        ratio(measured.estimate),
        percent(rule.acceptance_rate_tested),
        percent(rule.break_even_acceptance),
        percent(rule.slow_share),
        str(rule.num_requests),
        row.evidence,
        plain(rule.reason),
    ]
