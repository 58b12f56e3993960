import subprocess
import sys

import pytest

from selfspec_cli.quantities import QUANTITIES, quantity

GRID_COLUMNS = (
    "context_min",
    "context_max",
    "temperature",
    "batch_size",
    "exit_layer",
    "draft_length",
    "num_requests",
    "num_tokens",
    "block_efficiency",
    "acceptance_rate_tested",
    "acceptance_rate_drafted",
    "draft_cost_ratio",
    "verify_cost_ratio",
    "overhead_ratio",
    "predicted_speedup",
    "predicted_speedup_low",
    "predicted_speedup_high",
    "predicted_request_speedup",
    "closed_form_speedup",
    "predicted_slow_share",
    "predicted_p99_ratio",
)


@pytest.mark.parametrize("name", GRID_COLUMNS)
def test_every_number_of_the_grid_is_explained(name):
    entry = quantity(name)
    assert entry.definition.endswith("."), f"{name}: {entry.definition!r}"


@pytest.mark.parametrize("entry", QUANTITIES.values(), ids=lambda entry: entry.name)
def test_names_follow_the_suffix_rules(entry):
    suffixes = {"_s": "s", "_tokens": "tokens", "_bytes": "bytes"}
    for suffix, unit in suffixes.items():
        if entry.name.endswith(suffix):
            assert entry.unit == unit, f"{entry.name} is in {entry.unit}, its suffix says {unit}"
    if entry.name.endswith("_ratio"):
        assert entry.unit == "ratio", f"{entry.name} is in {entry.unit}"
        assert entry.denominator, f"{entry.name} does not say what it is a ratio to"


def test_no_rate_hides_its_denominator():
    rates = [entry for entry in QUANTITIES.values() if "rate" in entry.name.split("_")]
    assert len(rates) >= 2, f"{len(rates)} rates in the registry"
    for entry in rates:
        last = entry.name.rsplit("_", 1)[1]
        assert entry.denominator.startswith(last), f"{entry.name} is over {entry.denominator!r}"
    assert "acceptance_rate" not in QUANTITIES


def test_unknown_name_lists_the_nearest():
    with pytest.raises(KeyError, match="acceptance_rate_drafted"):
        quantity("acceptance_rate_draftd")


def test_registry_cannot_be_changed():
    with pytest.raises(TypeError):
        QUANTITIES["made_up"] = quantity("seconds")


def test_registry_needs_only_the_standard_library():
    code = (
        "import sys, selfspec_cli.quantities, selfspec_cli.buckets\n"
        "found = {'torch', 'pandas', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(str(sorted(found)) if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"imported on the way: {done.stderr}"
