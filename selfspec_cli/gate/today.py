"""The machine, the libraries, the model and the date of the gate, beside those of the plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from selfspec_cli.config.hashes import document_hash
from selfspec_cli.errors import ConfigError
from selfspec_cli.gate.evidence import GateEvidence
from selfspec_cli.plan.document_origin import OWN_COSTS
from selfspec_cli.provenance import device_fingerprint, library_fingerprint, model_fingerprint

_GPUS = Path("/proc/driver/nvidia/gpus")
_MEMORY_TOLERANCE = 0.02  # a kernel keeps a little more or less for itself after each boot
_DEVICE = ("processor", "cores", "threads")


@dataclass(frozen=True, slots=True, kw_only=True)
class Today:
    """What a plan is compared with."""

    day: date
    device: Mapping[str, object]
    libraries: Mapping[str, object]
    gpus: tuple[str, ...] = ()
    """Names of the accelerators that the driver knows."""
    model: Mapping[str, object] | None = None
    """`model_fingerprint` of today's model; None where there is none to look at."""


def today(evidence: GateEvidence, model: Path | None) -> Today:
    """Collect today's facts; torch is not imported.

    Args:
        evidence: of the run, which names its device and its model.
        model: folder of today's model; None: the run's, if it lies there.

    Raises:
        ConfigError: `model` is no folder of a model.
        StorageError: a file of the model is unreadable.
    """
    if model is not None and not (model / "config.json").is_file():
        raise ConfigError("no folder with a config.json", where=f"-m {model}")
    named = evidence.facts("config").get("model")
    own = Path(named) if isinstance(named, str) else None
    folder = model or (own if own is not None and (own / "config.json").is_file() else None)
    return Today(
        day=datetime.now(UTC).date(),
        device=device_fingerprint(str(evidence.plan.measured_on.device.get("kind"))),
        libraries=library_fingerprint(),
        gpus=_gpu_names(),
        model=None if folder is None else model_fingerprint(folder),
    )


def _gpu_names() -> tuple[str, ...]:
    """Names as the driver lists them, which needs no library."""
    names = []
    for file in sorted(_GPUS.glob("*/information")):
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model")]
    return tuple(names)


def device_differences(evidence: GateEvidence, now: Today) -> str:
    """Return how today's machine differs from the plan's, as text; empty where it does not.

    Args:
        evidence: of the run.
        now: today's facts.
    """
    measured = evidence.plan.measured_on
    if measured.costs.source != OWN_COSTS:
        return f"priced with {measured.costs.source}, whose machine is not known"
    then = measured.device
    found = [
        f"{key} {then.get(key)} there, {now.device.get(key)} here"
        for key in _DEVICE
        if then.get(key) is not None and then.get(key) != now.device.get(key)
    ]
    if _memory_differs(then.get("memory_bytes"), now.device.get("memory_bytes")):
        found.append(
            f"memory_bytes {then.get('memory_bytes')} there, {now.device.get('memory_bytes')} here"
        )
    gpu = then.get("gpu")
    if gpu is not None and gpu not in now.gpus:
        found.append(f"gpu {gpu} there, {', '.join(now.gpus) or 'none'} here")
    return "; ".join(found)


def _memory_differs(then: object, now: object) -> bool:
    if not isinstance(then, int | float) or not isinstance(now, int | float):
        return then is not None
    return abs(then - now) > _MEMORY_TOLERANCE * then


def library_differences(evidence: GateEvidence, now: Today) -> list[str]:
    """Return each library whose version differs; one not known to the plan says nothing.

    Args:
        evidence: of the run.
        now: today's facts.
    """
    return [
        f"{name} {version} there, {now.libraries.get(name) or 'not installed'} here"
        for name, version in sorted(evidence.plan.measured_on.libraries.items())
        if version is not None and version != now.libraries.get(name)
    ]


def model_revision(model: Mapping[str, object]) -> str:
    """Return the hash of a model's config and weights, as a plan names it.

    Args:
        model: result of `model_fingerprint`.
    """
    return document_hash({"config": model.get("config_sha256"), "weights": model.get("weights")})
