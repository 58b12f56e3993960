"""YAML and flags become one validated, frozen config; wrong keys and values are explained."""

from selfspec_cli.config.hashes import (
    analysis_document,
    analysis_hash,
    measurement_document,
    measurement_hash,
)
from selfspec_cli.config.load import load_config
from selfspec_cli.config.ranges import (
    beyond_exit_layers,
    parse_batch_sizes,
    parse_temperatures,
    resolve_draft_lengths,
    resolve_exit_layers,
)
from selfspec_cli.config.resources import preset_names, preset_path, resolve_trace, sample_names
from selfspec_cli.config.settings import CalibrateConfig, ConfirmConfig, CostConfig

__all__ = [
    "CalibrateConfig",
    "ConfirmConfig",
    "CostConfig",
    "analysis_document",
    "analysis_hash",
    "beyond_exit_layers",
    "load_config",
    "measurement_document",
    "measurement_hash",
    "parse_batch_sizes",
    "parse_temperatures",
    "preset_names",
    "preset_path",
    "resolve_draft_lengths",
    "resolve_exit_layers",
    "resolve_trace",
    "sample_names",
]
