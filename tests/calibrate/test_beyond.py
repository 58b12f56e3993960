"""A range given as a share is observed a little beyond; what is chosen stays inside it."""

import pytest
from calibrate_helpers import command, manifest
from checkpoints import random_model, run_cli, save_checkpoint, trace_rows, write_trace

from selfspec_cli.errors import EXIT_NO_EVIDENCE, EXIT_OK
from selfspec_cli.storage import read_table

DONE = (EXIT_OK, EXIT_NO_EVIDENCE)  # these few requests are no evidence
CONFIG = """
exit_layers: {layers}
draft_lengths: 1
temperatures: 0.7
confirm: {{cells: 6, requests: 2, min_tokens: 2}}
"""


@pytest.fixture(scope="module")
def deep_checkpoint(tmp_path_factory):
    model = random_model(num_hidden_layers=8)
    return save_checkpoint(model, tmp_path_factory.mktemp("deep") / "gpt2")


def calibrated(checkpoint, folder, layers):
    trace = write_trace(folder / "t.jsonl", trace_rows(4, max_tokens=6))
    text = CONFIG.format(layers=layers)
    assert run_cli(*command(checkpoint, trace, folder, config_text=text)) in DONE
    return folder / "run"


def layers_of(run, name):
    return sorted(set(read_table(run / name)["exit_layer"]))


def test_layers_beyond_a_share_are_priced_but_never_confirmed(deep_checkpoint, tmp_path):
    """40 % to 60 % of 8 layers is layer 4; 2, 3, 5 and 6 are looked at for the edge warning."""
    run = calibrated(deep_checkpoint, tmp_path, "40%-60%")
    for name in ("observations.parquet", "walk.parquet", "grid.csv"):
        assert layers_of(run, name) == [2, 3, 4, 5, 6], name
    assert layers_of(run, "confirm.csv") == [4]
    assert manifest(run)["exit_layers_beyond"] == [2, 3, 5, 6]
    assert manifest(run)["measurement"]["exit_layers"] == [4]


def test_a_named_layer_is_all_there_is(deep_checkpoint, tmp_path):
    run = calibrated(deep_checkpoint, tmp_path, "4")
    for name in ("observations.parquet", "walk.parquet", "grid.csv", "confirm.csv"):
        assert layers_of(run, name) == [4], name
    assert manifest(run)["exit_layers_beyond"] == []
