"""What a plan says of its origin: model, machine, traffic, costs. Pure reading of run files."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from selfspec_cli.analysis.costs import Costs
from selfspec_cli.config.hashes import document_hash
from selfspec_cli.plan.document_origin import (
    OWN_COSTS,
    CostSource,
    MeasuredOn,
    ModelFacts,
    OutputWindow,
    TraceFacts,
)
from selfspec_cli.records import UNLABELLED
from selfspec_cli.storage import RunDir, file_sha256, read_table


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The head of a plan document."""

    model: ModelFacts
    measured_on: MeasuredOn
    traces: TraceFacts
    measurement_hash: str
    ar_step_by_batch: Mapping[int, float | None]
    """Seconds of a plain step of the whole batch at the median prompt; None where not timed."""


def run_facts(run: RunDir, costs: Costs, cost_path: Path, *, own: bool) -> RunFacts:
    """Read what the plan states of its origin.

    Args:
        run: the run.
        costs: priced surfaces in use.
        cost_path: the cost.csv they came from.
        own: whether that is the run's own file.

    Raises:
        StorageError: an artefact is missing or torn.
    """
    manifest = run.manifest
    requests = read_table(run.artefact("requests.parquet"))
    engine = _engine(read_table(run.artefact("cost.csv")))
    provenance = manifest.get("provenance") or {}
    return RunFacts(
        model=_model(manifest),
        measured_on=MeasuredOn(
            device=provenance.get("device") or {},
            libraries=provenance.get("libraries") or {},
            engine=engine or "unknown",
            costs=_cost_source(manifest, costs, cost_path, requests, own=own),
        ),
        traces=_traces(run, manifest, requests),
        measurement_hash=run.measurement_hash,
        ar_step_by_batch=_steps(costs, requests),
    )


def model_revision(fingerprint: Mapping[str, Any]) -> str | None:
    """Return the hash of config and weights that a plan names its model by.

    Args:
        fingerprint: of `provenance.model_fingerprint`; empty gives None.
    """
    content = {
        "config": fingerprint.get("config_sha256"),
        "weights": fingerprint.get("weights") or [],
    }
    return document_hash(content) if fingerprint else None


def _model(manifest: Mapping[str, Any]) -> ModelFacts:
    found = (manifest.get("provenance") or {}).get("model") or {}
    return ModelFacts(
        id=str(found.get("name") or "unknown"),
        revision=model_revision(found),
        num_layers=len(manifest["stages"]["cost"]["layer_kinds"]),
        dtype=str(manifest.get("dtype") or "unknown"),
        tokenizer_hash=found.get("tokenizer_sha256"),
        tokenizer_override=(manifest.get("config") or {}).get("tokenizer"),
    )


def _engine(rows: pd.DataFrame) -> str | None:
    engines = sorted(set(rows["engine"].dropna()))
    return ", ".join(engines) or None


def _cost_source(
    manifest: Mapping[str, Any],
    costs: Costs,
    path: Path,
    requests: pd.DataFrame,
    *,
    own: bool,
) -> CostSource:
    law, context = _typical(costs, requests)
    step = None if law is None else float(costs.surfaces[law].ar_seconds(context))
    floor = _floor(manifest, context) if own else None
    return CostSource(
        source=OWN_COSTS if own else path.name,
        sha256=file_sha256(path),
        engine=_engine(read_table(path)),
        mode={law: fit.mode for law, fit in costs.fits.items()},
        cost_model_error={law: fit.cost_model_error for law, fit in costs.fits.items()},
        ar_step_s=step,
        bandwidth_floor_s=floor,
        floor_ratio=None if floor is None or step is None else step / floor,
    )


def _typical(costs: Costs, requests: pd.DataFrame) -> tuple[str | None, float]:
    """A law and the median prompt length, moved into what was timed: for display only."""
    median = float(requests["prompt_tokens"].median()) if len(requests) else 0.0
    for law in sorted(costs.surfaces):
        low, high = costs.surfaces[law].context_range
        return law, float(np.clip(median, low, high))
    return None, median


def _steps(costs: Costs, requests: pd.DataFrame) -> dict[int, float | None]:
    """Plain step by batch size, all of one law and at one context, so that they compare."""
    law, context = _typical(costs, requests)
    found: dict[int, float | None] = {}
    for size, surfaces in costs.by_batch.items():
        surface = None if law is None else surfaces.get(law)
        low, high = (1.0, 0.0) if surface is None else surface.context_range
        inside = surface is not None and low <= context <= high
        found[size] = float(surface.ar_seconds(context)) if surface and inside else None
    return found


def _floor(manifest: Mapping[str, Any], context: float) -> float | None:
    """Bandwidth floor of a plain step (s), linear between the timed contexts like the cache."""
    floors = (manifest["stages"]["cost"].get("bandwidth") or {}).get("floor_s") or {}
    known = sorted((float(at), float(value)) for at, value in floors.items() if value is not None)
    if not known:
        return None
    contexts, seconds = zip(*known, strict=True)
    return float(np.interp(context, contexts, seconds))


def _traces(run: RunDir, manifest: Mapping[str, Any], requests: pd.DataFrame) -> TraceFacts:
    paths = read_table(run.artefact("paths.parquet"))
    config = manifest.get("config") or {}
    lengths = paths["completion_tokens"]
    tasks = set(requests["task"])
    return TraceFacts(
        fingerprint=str(manifest["measurement"].get("traces", "")),
        num_requests=len(requests),
        date=_date(run, manifest),
        task_labels=bool(tasks - {UNLABELLED}),
        output_window=OutputWindow(
            observed_tokens=int(lengths.max()) if len(lengths) else None,
            median_tokens=float(lengths.median()) if len(lengths) else None,
            default_max_tokens=int(config.get("default_max_tokens", 128)),
            num_default_max_tokens=_num_defaulted(requests),
        ),
        sources={str(name): int(n) for name, n in paths["source"].value_counts().items()},
    )


def _num_defaulted(requests: pd.DataFrame) -> int | None:
    """Requests that stated no max_tokens; None where the run did not keep what they stated."""
    if "stated_max_tokens" not in requests:
        return None
    return int(requests["stated_max_tokens"].isna().sum())


def _date(run: RunDir, manifest: Mapping[str, Any]) -> str:
    begun = manifest.get("template_time")  # when the run began, as its chat templates saw it
    if begun:
        return str(begun)[:10]
    written = run.artefact("observations.parquet").stat().st_mtime
    return datetime.fromtimestamp(written, UTC).date().isoformat()
