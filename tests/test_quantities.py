import subprocess
import sys

import pytest

from selfspec_cli.analysis import grid, walk
from selfspec_cli.cost import measure
from selfspec_cli.quantities import QUANTITIES, quantity
from selfspec_cli.storage.tables import TEXT_COLUMNS


def columns():
    written = {"grid.csv": grid.COLUMNS, "walk.parquet": walk.COLUMNS, "cost.csv": measure.COLUMNS}
    return [(file, name) for file, names in written.items() for name in names]


@pytest.mark.parametrize(("file", "name"), columns())
def test_every_column_is_a_label_or_an_explained_quantity(file, name):
    if name not in TEXT_COLUMNS:
        assert quantity(name).definition.endswith("."), f"{file}, {name}"


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
