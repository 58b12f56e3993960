"""Which keys two runs must share to be compared, and which only make their timings foreign."""

from collections.abc import Mapping
from typing import Any

from selfspec_cli.analysis.cost_fit import CostFit
from selfspec_cli.gate.side import Side
from selfspec_cli.plan.document_origin import OWN_COSTS
from selfspec_cli.report.differing import Difference, differing, refuse_different

_MEASUREMENT = (
    "temperatures", "task_from", "limit", "max_tokens", "default_max_tokens", "continuations",
    "acceptance", "draft_truncation", "tokenizer", "chat_template",
)  # fmt: skip
"""Keys of the measurement that say which requests were read, and what counts as accepted."""
_TIMING_LIBRARIES = ("torch", "transformers")
_NOT_TIMING = ("memory_bytes",)  # of the device: a resized machine computes as fast


UNSTEADY = "unstable timing"
_STEADY = "steady"


def check_comparable(base: Side, new: Side) -> None:
    """Refuse two runs that did not read the same requests the same way.

    Raises:
        ComparisonError: names the first key that differs, with both values, and counts the rest.
    """
    refuse_different(
        differing(_must_agree(base), _must_agree(new)),
        where=f"{base.path} and {new.path}",
        hint="Calibrate both on the same traces with the same options.",
    )


def foreign_timing(base: Side, new: Side) -> tuple[Difference, ...]:
    """Return the keys for which seconds of the two runs do not compare; empty if they do.

    Unsteady timing of either run is one of them: it switches that run's rules off, which would
    look like a loss.
    """
    found = differing(_timing(base), _timing(new))
    pace = Difference(key=UNSTEADY, base=_steadiness(base), new=_steadiness(new))
    return found if pace.base == pace.new == _STEADY else (*found, pace)


def _steadiness(side: Side) -> str:
    laws = sorted(law for law, costs in side.inputs.costs.surfaces.items() if costs.unstable)
    return f"unstable ({', '.join(laws)})" if laws else _STEADY


def priced_otherwise(base: Side, new: Side) -> tuple[str, ...]:
    """Return the laws whose rounds the two runs do not price the same way, sorted."""
    old, now = base.inputs.costs.fits, new.inputs.costs.fits
    return tuple(law for law in sorted({*old, *now}) if _pricing(old, law) != _pricing(now, law))


def _pricing(fits: Mapping[str, CostFit], law: str) -> str:
    return fits[law].mode if law in fits else "not timed"


def other_differences(base: Side, new: Side) -> tuple[Difference, ...]:
    """Return what differs besides, and may well be what the comparison is about."""
    old, now = base.inputs.costs.fits, new.inputs.costs.fits
    pricing = [
        Difference(key=f"pricing of {law} rounds", base=_pricing(old, law), new=_pricing(now, law))
        for law in priced_otherwise(base, new)
    ]
    return (*differing(_other(base), _other(new)), *pricing)


def _must_agree(side: Side) -> dict[str, Any]:
    measurement, model = side.manifest.get("measurement") or {}, _provenance(side, "model")
    traces = measurement.get("traces") or _provenance(side, "traces").get("sha256")
    return {
        "traces": traces,
        "num_layers": side.plan.model.num_layers,
        "tokenizer_sha256": model.get("tokenizer_sha256"),
        **{key: measurement.get(key) for key in _MEASUREMENT},
        "batch_sizes (the smallest)": min(side.plan.batch_sizes),
    }


def _timing(side: Side) -> dict[str, Any]:
    device, libraries = _provenance(side, "device"), _provenance(side, "libraries")
    costs = side.plan.measured_on.costs.source
    return {
        "device": {key: value for key, value in device.items() if key not in _NOT_TIMING},
        "libraries": {name: libraries.get(name) for name in _TIMING_LIBRARIES},
        "engine": side.manifest.get("engine") or side.plan.measured_on.engine,
        "dtype": side.plan.model.dtype,
        "costs": None if costs == OWN_COSTS else f"{costs} {side.cost_sha256}",
    }


def _other(side: Side) -> dict[str, Any]:
    measurement, libraries = side.manifest.get("measurement") or {}, _provenance(side, "libraries")
    model = _provenance(side, "model")
    kept = {name: value for name, value in libraries.items() if name not in _TIMING_LIBRARIES}
    return {
        "model": {"name": model.get("name"), "config": model.get("config_sha256"),
                  "weights": model.get("weights")},
        "libraries": kept,
        "settings": side.plan.settings.model_dump(mode="json"),
        "seed": measurement.get("seed"),
        "batch_sizes": side.plan.batch_sizes,
    }  # fmt: skip


def _provenance(side: Side, part: str) -> Mapping[str, Any]:
    found = (side.manifest.get("provenance") or {}).get(part)
    return found if isinstance(found, Mapping) else {}
