"""What is benched: a plan, the run it may come from, and a model that must be the plan's own."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfspec_cli.config import CalibrateConfig, load_config
from selfspec_cli.errors import ConfigError, ModelError, PlanError
from selfspec_cli.plan.decide import Plan
from selfspec_cli.plan.document import PlanDocument
from selfspec_cli.plan.facts import model_revision
from selfspec_cli.plan.files import PLAN_FILE, plan_data, read_plan
from selfspec_cli.storage import RunDir
from selfspec_cli.storage.place import MANIFEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A plan and how the requests that test it are read and decoded."""

    plan: PlanDocument
    decider: Plan
    """The same plan, as a server asks it."""
    plan_path: Path
    run: Path | None
    """The run directory beside the plan; None for a plan alone."""
    config: CalibrateConfig
    """The run's own with what was asked for on top, or the defaults."""

    @property
    def temperatures(self) -> tuple[float, ...] | str:
        """Temperatures to decode at: the plan's, or `trace` where each request has its own."""
        if self.config.temperatures == "trace":
            return "trace"
        found = sorted({rule.temperature_min for rule in self.plan.rules})
        return tuple(found) or self.config.temperatures


def read_subject(target: Path, wishes: Mapping[str, Any]) -> Subject:
    """Read a run directory or a plan file; no model, no trace.

    Args:
        target: RUN or PLAN.
        wishes: keys of the calibration's config that were asked for (`traces`, `model` ...);
            None means not asked for.

    Raises:
        SelfspecError: neither a run nor a plan, a plan that cannot be read, a config that cannot
            be used, or no model is known.
    """
    if not target.exists():
        raise ConfigError("no such run or plan", where=str(target))
    path = target / PLAN_FILE if target.is_dir() else target
    if target.is_dir():
        RunDir.load(target)  # says what is wrong where it is no run
    plan = read_plan(path)
    run = path.parent if (path.parent / MANIFEST).is_file() else None
    return Subject(
        plan=plan,
        decider=Plan.of_document(plan_data(plan), str(path)),
        plan_path=path,
        run=run,
        config=_config(run, wishes),
    )


def _config(run: Path | None, wishes: Mapping[str, Any]) -> CalibrateConfig:
    """The run's config under the wishes; places of files are not kept in a run, their names are."""
    kept = {} if run is None else RunDir.load(run).manifest.get("config") or {}
    given = {key: value for key, value in wishes.items() if value is not None}
    values = {"out": "bench", **kept, **given}
    if "model" not in values:
        raise ConfigError("a plan alone names no model to load", where="-m", hint="Give -m MODEL.")
    return load_config(None, values)


def check_model(plan: PlanDocument, fingerprint: Mapping[str, Any], where: str) -> None:
    """Refuse another model or tokenizer than the plan was measured on.

    Args:
        plan: the plan.
        fingerprint: of `provenance.model_fingerprint`, of the model about to be loaded.
        where: the plan's file.

    Raises:
        PlanError: names the key that differs, and both values.
    """
    own = plan.model
    here = {"revision": model_revision(fingerprint)}
    there = {"revision": own.revision}
    if not fingerprint.get("weights"):  # a hub id: only its name tells it apart
        here["id"], there["id"] = str(fingerprint.get("name")), own.id
    here["tokenizer_hash"] = fingerprint.get("tokenizer_sha256")
    there["tokenizer_hash"] = own.tokenizer_hash
    for key, value in there.items():
        if value != here[key]:
            raise PlanError(
                f"the plan is of another model: {value} there, {here[key]} in -m "
                f"{fingerprint.get('name')}",
                where=f"{where}: model.{key}",
                hint="Give the plan's own model with -m, or calibrate this one.",
            )


def check_tokenizer(plan: PlanDocument, tokenizer: str | None, where: str) -> None:
    """Refuse a tokenizer override that is not the plan's.

    Raises:
        PlanError: one has another than the model's own, or both have different ones.
    """
    there, here = plan.model.tokenizer_override, None if tokenizer is None else Path(tokenizer).name
    if (None if there is None else Path(there).name) != here:
        raise PlanError(
            f"the plan was made with the tokenizer {there or 'of the model'}, this is "
            f"{here or 'the model own one'}",
            where=f"{where}: model.tokenizer_override",
            hint="Give the plan's tokenizer with --tokenizer.",
        )


def unknown_place(error: ModelError, subject: Subject, *, asked: bool) -> ModelError:
    """Say that a run keeps no folders, where its model is not found under the name it kept."""
    if asked:
        return error
    return ModelError(
        error.what,
        where=error.where,
        hint=f"A run keeps the model's name ({subject.config.model}), not its folder: give -m.",
    )
