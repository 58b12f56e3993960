"""The thresholds a plan is made with, from a run's configuration and flags on top."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from selfspec_cli.config.hashes import document_hash
from selfspec_cli.config.settings import CalibrateConfig, PlanConfig
from selfspec_cli.errors import ConfigError
from selfspec_cli.storage import RunDir

DEFAULT_EDGES = (0, 512, 2048, 8192)  # of context bands, prompt tokens
_FLAGS = {"margin": "--margin", "min_requests": "--min-requests"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """When a rule is enabled; see `config.settings.PlanConfig` for each."""

    margin: float = 0.05
    min_requests: int = 20
    max_slow_share: float = 0.10
    context_edges: tuple[int, ...] = DEFAULT_EDGES

    @property
    def threshold(self) -> float:
        """Lower bound of the speedup that enables."""
        return 1.0 + self.margin

    @property
    def analysis_hash(self) -> str:
        """Hash of the analysis keys, as `config.analysis_hash` gives it for the same values."""
        plan = {
            "margin": self.margin,
            "min_requests": self.min_requests,
            "max_slow_share": self.max_slow_share,
        }
        return document_hash({"context_edges": list(self.context_edges), "plan": plan})

    @classmethod
    def of_config(cls, config: CalibrateConfig) -> "PlanSettings":
        """Return the settings of a calibration."""
        return cls(context_edges=tuple(config.context_edges), **config.plan.model_dump())

    @classmethod
    def of_run(cls, run: RunDir, **flags: float | int | None) -> "PlanSettings":
        """Return the settings a run was made with, with flags on top.

        Args:
            run: the run.
            flags: margin, min_requests; None means the flag was not given.

        Raises:
            ConfigError: a flag's value is out of range.
        """
        config: Mapping[str, Any] = run.manifest.get("config") or {}
        given = {key: value for key, value in flags.items() if value is not None}
        try:
            plan = PlanConfig.model_validate({**(config.get("plan") or {}), **given})
        except ValidationError as error:
            raise _refused(error) from error
        edges = config.get("context_edges") or DEFAULT_EDGES
        return cls(context_edges=tuple(int(edge) for edge in edges), **plan.model_dump())


def _refused(error: ValidationError) -> ConfigError:
    detail = error.errors()[0]
    key = str(detail["loc"][0])
    said = detail["msg"].removeprefix("Value error, ")
    return ConfigError(
        f"{said[0].lower()}{said[1:]} (got {detail['input']!r})",
        where=_FLAGS.get(key, f"plan.{key}"),
        hint=PlanConfig.model_fields[key].description or "",
    )
