"""Where the numbers come from: rows read, text observed, machine, libraries, hashes."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from selfspec_cli.analysis.observations import OUTPUT_BANDS
from selfspec_cli.report.format import count, known, number, percent, plural, shown
from selfspec_cli.report.tables import RunTables


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Trace rows left out for one reason."""

    reason: str
    rows: int
    lines: tuple[str, ...]
    """Up to three `file:line`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    """What became of the traces."""

    read: int | None
    used: int | None
    skipped: tuple[Skipped, ...]
    recorded: int
    """Paths whose text is the log's own."""
    regenerated: int
    source_reasons: tuple[str, ...]
    """Why recorded text was not used, one sentence a bucket."""
    window: str
    task_labels: bool

    @property
    def read_sentence(self) -> str:
        """Rows read = used + left out, in one sentence."""
        if self.read is None:
            return "The run does not say how many rows were read."
        skipped = sum(entry.rows for entry in self.skipped)
        return f"Read {count(self.read)} rows = {count(self.used)} used + {count(skipped)} left out"

    @property
    def source_sentence(self) -> str:
        """How many paths are recorded and regenerated."""
        return (
            f"{plural(self.recorded + self.regenerated, 'path')} observed: "
            f"{count(self.recorded)} recorded, {count(self.regenerated)} regenerated"
        )


def input_facts(tables: RunTables) -> InputFacts:
    """Collect what the manifest, the paths and the plan say of the traces."""
    read = tables.manifest.get("read", {})
    sources = _sources(tables)
    return InputFacts(
        read=read.get("read"),
        used=read.get("used"),
        skipped=tuple(_skipped(reason, entry) for reason, entry in read.get("skipped", {}).items()),
        recorded=sources.get("recorded", 0),
        regenerated=sources.get("regenerated", 0),
        source_reasons=_source_reasons(tables),
        window=_window(tables),
        task_labels=tables.plan.traces.task_labels,
    )


def _skipped(reason: str, entry: Any) -> Skipped:
    """Runs before schema details name a bare number of rows."""
    if not isinstance(entry, Mapping):
        return Skipped(reason=shown(reason), rows=int(entry), lines=())
    lines = tuple(shown(line) for line in entry.get("lines", ())[:3])
    return Skipped(reason=shown(reason), rows=int(entry["rows"]), lines=lines)


def _sources(tables: RunTables) -> Mapping[str, int]:
    if tables.plan.traces.sources:
        return tables.plan.traces.sources
    sources: Mapping[str, int] = tables.stage("observe").get("sources", {})
    return sources


def _source_reasons(tables: RunTables) -> tuple[str, ...]:
    """Buckets whose recorded text did not pass the test, as the run wrote them down."""
    checks = tables.stage("observe").get("recorded_checks", ())
    return tuple(
        f"{shown(check['task'])} at T={check['temperature']:g}: {shown(check['reason'])}"
        for check in checks
        if check["reason"]
    )


def _window(tables: RunTables) -> str:
    window = tables.plan.traces.output_window
    last = OUTPUT_BANDS[-1][0]
    told = (
        f"Outputs were observed up to {count(window.observed_tokens)} tokens "
        f"(median {number(window.median_tokens, 0)})."
    )
    if window.num_default_max_tokens:
        told += (
            f" {plural(window.num_default_max_tokens, 'request')} stated no max_tokens and got "
            f"{window.default_max_tokens}."
        )
    if window.observed_tokens is not None and window.observed_tokens < last:
        told += f" Nothing is known of positions from {last} on."
    return told


def provenance(tables: RunTables) -> tuple[tuple[str, str], ...]:
    """Return (what, value) pairs: everything needed to say what was measured and by what."""
    plan, manifest = tables.plan, tables.manifest
    costs = plan.measured_on.costs
    pairs = [
        ("Model", shown(plan.model.id)),
        ("Layers, number format", f"{plan.model.num_layers}, {shown(plan.model.dtype)}"),
        ("Model revision", _short(plan.model.revision)),
        ("Tokenizer", _short(plan.model.tokenizer_hash)),
        ("Device", _device(plan.measured_on.device)),
        ("Engine", shown(plan.measured_on.engine)),
        ("Costs", f"{shown(costs.source)}, {_short(costs.sha256)}"),
        ("Cost model", _cost_model(tables)),
        ("Libraries", _named(plan.measured_on.libraries)),
        (
            "Traces",
            f"{count(plan.traces.num_requests)} requests, {_short(plan.traces.fingerprint)}",
        ),
        ("Date", shown(plan.traces.date)),
        ("Seeds", _named(manifest.get("seeds", {}))),
        ("Exit layers", _numbers(plan.settings.exit_layers)),
        ("Observed beyond the range", _numbers(plan.settings.exit_layers_beyond)),
        ("Draft lengths", _numbers(plan.settings.draft_lengths)),
        ("Sampling calibrated", f"top_p {plan.laws.top_p}, top_k {plan.laws.top_k}"),
        ("Thresholds", _thresholds(tables)),
        ("Self-check", _self_check(manifest)),
        ("Measurement hash", _short(plan.measurement_hash)),
        ("Analysis hash", _short(plan.analysis_hash)),
        ("Command", _command(manifest)),
    ]
    return tuple((name, value) for name, value in pairs if value)


def _short(digest: str | None) -> str:
    return shown(digest)[:16] if digest else "not known"


def _named(facts: Mapping[str, Any]) -> str:
    told = [f"{shown(key)} {shown(value)}" for key, value in facts.items() if value is not None]
    return ", ".join(told)


def _numbers(values: list[int]) -> str:
    return ", ".join(str(value) for value in values)


def _device(device: Mapping[str, Any]) -> str:
    names = [device.get("gpu"), device.get("processor"), device.get("kind")]
    told = [shown(name) for name in names if name]
    if known(device.get("cores")):
        told.append(plural(int(device["cores"]), "core"))
    if known(device.get("memory_bytes")):
        told.append(f"{device['memory_bytes'] / 2**30:.0f} GiB")
    return ", ".join(told)


def _cost_model(tables: RunTables) -> str:
    costs = tables.plan.measured_on.costs
    return "; ".join(
        f"{law}: {mode.replace('_', ' ')}, median error "
        f"{percent(costs.cost_model_error.get(law), 1)} on held-out rounds"
        for law, mode in costs.mode.items()
    )


def _thresholds(tables: RunTables) -> str:
    settings = tables.plan.settings
    return (
        f"margin {percent(settings.margin)}, at least {settings.min_requests} requests, "
        f"slow share at most {percent(settings.max_slow_share)}"
    )


def _self_check(manifest: Mapping[str, Any]) -> str:
    error = manifest.get("self_check_error")
    return f"layer view against the model's own forward pass: {error:.1e}" if known(error) else ""


def _command(manifest: Mapping[str, Any]) -> str:
    argv = [shown(part) for part in manifest.get("argv", ())]
    return shlex.join(["selfspec", *argv]) if argv else ""
