"""report.md: verdict, rules and findings as Markdown, for issues and reviews."""

import re
from collections.abc import Iterable, Sequence

from selfspec_cli.plan.batch_text import other_best
from selfspec_cli.plan.document import AtBatch, Rule
from selfspec_cli.report.format import (
    NOT_KNOWN,
    milliseconds,
    number,
    percent,
    ratio,
    ratio_with_interval,
    shown,
)
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
        "## Batch size",
        "",
        plain(view.batches),
        "",
        *_batches(view),
        *_decoded(view),
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


def _batches(view: ReportView) -> list[str]:
    """Speedups by batch size, and plain decoding; nothing below two sizes."""
    sizes = view.plan.batch_sizes
    if len(sizes) < 2:
        return []
    head = ["bucket", "pays up to", *(f"batch {size}" for size in sizes)]
    rows = [
        [
            plain(row.label),
            "off" if row.rule.max_batch is None else str(row.rule.max_batch),
            *(_at_batch(row.rule, entry) for entry in row.rule.by_batch),
        ]
        for row in view.rules
        if row.rule.by_batch
    ]
    plain_rows = [
        [str(f.batch_size), milliseconds(f.ar_step_s), number(f.tokens_per_s, 1)]
        for f in view.plan.batches
    ]
    return [
        *_table(head, rows),
        "",
        *_table(["batch", "plain step", "plain tokens/s"], plain_rows),
        "",
    ]


def _decoded(view: ReportView) -> list[str]:
    """Batches decoded for real; nothing where there were none."""
    head = ["decoded in batches", "batch", "cell", "predicted", "measured", "error", "output"]
    rows = [
        [
            plain(found.schedule),
            str(found.batch_size),
            found.cell,
            ratio(found.predicted_speedup),
            ratio(found.measured_speedup),
            found.signed_error,
            found.output,
        ]
        for found in view.decoded_batches
    ]
    return [*_table(head, rows), ""] if rows else []


def _at_batch(rule: Rule, entry: AtBatch) -> str:
    """A rule at one batch size: refilled, static, and a cell that would be better there."""
    found = entry.speedup
    parts = [ratio_with_interval(found.estimate, found.low, found.high)]
    if entry.check == "no_verdict":
        parts.append("no verdict")
    if entry.static_speedup is not None:
        parts.append(f"static {ratio(entry.static_speedup)}")
    if entry.waiting_share is not None:
        parts.append(f"waiting {percent(entry.waiting_share)}")
    if entry.grouping_gain is not None:
        parts.append(f"grouping {ratio(entry.grouping_gain)}")
    best = other_best(rule, entry)
    if best is not None:
        cell = f"L={best.exit_layer}, k={best.draft_length}"
        parts.append(f"best {cell}: {ratio(best.speedup.estimate)}")
    return "; ".join(parts)


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
