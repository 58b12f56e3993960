"""Which keys define a measurement, which only its analysis, and a stable hash of each."""

import hashlib
import json
from collections.abc import Mapping

from selfspec_cli.config.ranges import resolve_draft_lengths
from selfspec_cli.config.settings import CalibrateConfig
from selfspec_cli.storage.documents import plain_data

ANALYSIS_KEYS = frozenset({"context_edges", "plan"})
"""Keys that change what is computed from a run's files, not what was measured."""
RESOLVED_KEYS = frozenset({"exit_layers_beyond"})
"""Keys of the measurement that no configuration has: they follow from it and the model."""
PLACE_KEYS = frozenset({"out"})
"""Keys that only say where a run lies."""


def measurement_document(
    config: CalibrateConfig, facts: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return the keys and values that define the measurement.

    Args:
        config: the calibration.
        facts: what the config's words stand for once files were read, under the same keys:
            `traces` their content hashes, `model` its fingerprint, `exit_layers` the layers,
            `exit_layers_beyond` those observed outside them, `device`, `dtype`, `engine` as
            resolved. A moved trace is then the same measurement, a changed one is not.

    Raises:
        KeyError: a fact under a key that defines no measurement.
    """
    document = {
        key: value
        for key, value in config.model_dump(mode="json").items()
        if key not in ANALYSIS_KEYS | PLACE_KEYS
    }
    document["draft_lengths"] = list(resolve_draft_lengths(config.draft_lengths))
    unknown = sorted(set(facts or {}) - set(document) - RESOLVED_KEYS)
    if unknown:
        raise KeyError(f"facts under keys that define no measurement: {unknown}")
    return {**document, **(facts or {})}


def measurement_hash(config: CalibrateConfig, facts: Mapping[str, object] | None = None) -> str:
    """Return the SHA-256 (hex) of `measurement_document`; two runs share files iff it is equal."""
    return document_hash(measurement_document(config, facts))


def analysis_document(config: CalibrateConfig) -> dict[str, object]:
    """Return the keys and values that change only the analysis of a run's files."""
    return {
        key: value for key, value in config.model_dump(mode="json").items() if key in ANALYSIS_KEYS
    }


def analysis_hash(config: CalibrateConfig) -> str:
    """Return the SHA-256 (hex) of `analysis_document`."""
    return document_hash(analysis_document(config))


def document_hash(document: Mapping[str, object]) -> str:
    """Return the SHA-256 (hex) of a document's canonical JSON: sorted keys, no spaces."""
    text = json.dumps(plain_data(document), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
