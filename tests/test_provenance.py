import json
import platform
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from selfspec_cli.errors import StorageError
from selfspec_cli.provenance import (
    collect,
    device_fingerprint,
    differences,
    library_fingerprint,
    model_fingerprint,
    trace_fingerprint,
)


@pytest.fixture
def checkpoint(tmp_path):
    """Return a function that writes a small checkpoint whose last tensor is scaled."""

    def write(name, scale=1.0, **config):
        folder = tmp_path / name
        folder.mkdir()
        generator = np.random.default_rng(0)
        tensors = {
            f"layer.{i}": generator.normal(size=(64, 64)).astype(np.float32) for i in range(4)
        }
        tensors["layer.3"] *= np.float32(scale)
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 4, **config}))
        (folder / "tokenizer.json").write_text("{}")
        return folder

    return write


def without_name(fingerprint):
    return {key: value for key, value in fingerprint.items() if key != "name"}


def test_a_moved_checkpoint_is_the_same_model(checkpoint):
    first = checkpoint("a", _name_or_path="here", transformers_version="1")
    second = checkpoint("b", _name_or_path="there", transformers_version="2")
    one, two = (without_name(model_fingerprint(folder)) for folder in (first, second))
    assert one == two, differences(one, two)


def test_rescaled_weights_of_equal_shape_are_another_model(checkpoint):
    one = model_fingerprint(checkpoint("a"))
    two = model_fingerprint(checkpoint("b", scale=0.5))
    assert one["weights"][0]["bytes"] == two["weights"][0]["bytes"]
    assert one["weights"] != two["weights"], "a damped twin would resume the original's run"


def test_another_config_or_tokenizer_is_another_model(checkpoint):
    base = model_fingerprint(checkpoint("a"))
    other = checkpoint("b", rope_theta=5.0)
    (other / "tokenizer.json").write_text('{"changed": true}')
    changed = {key for key, _, _ in differences(base, model_fingerprint(other))}
    assert changed == {"name", "config_sha256", "tokenizer_sha256"}, changed


def test_weights_of_unknown_or_torn_format_are_sampled(tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"\xff" * 100_000)
    (folder / "old.bin").write_bytes(b"\x01" * 100_000)
    before = model_fingerprint(folder)
    (folder / "old.bin").write_bytes(b"\x01" * 50_000 + b"\x02" * 50_000)
    changed = {key for key, _, _ in differences(before, model_fingerprint(folder))}
    assert changed == {"weights"}, changed


def test_hub_id_keeps_its_owner_and_a_path_does_not(tmp_path):
    assert model_fingerprint("owner/name")["name"] == "owner/name"
    assert model_fingerprint(tmp_path / "absent")["name"] == "absent"


def test_trace_hash_follows_the_content_and_not_the_name(tmp_path):
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text("{}\n")
    second.write_text("{}\n")
    assert trace_fingerprint([first])["sha256"] == trace_fingerprint([second])["sha256"]
    second.write_text("{} \n")
    assert trace_fingerprint([first])["sha256"] != trace_fingerprint([second])["sha256"]


def test_missing_trace_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"absent\.jsonl: the file is missing"):
        trace_fingerprint([tmp_path / "absent.jsonl"])


def test_no_folder_and_no_host_name_leaves_the_machine(checkpoint, tmp_path):
    trace = tmp_path / "t.jsonl"
    trace.write_text("{}\n")
    whole = collect(traces=[trace], model=model_fingerprint(checkpoint("m")))
    text = json.dumps(whole)
    host = platform.node()
    assert str(tmp_path) not in text
    assert not host or f'"{host}"' not in text, f"host name {host!r} in the provenance"


def test_device_names_processor_cores_and_memory():
    facts = device_fingerprint()
    assert facts["threads"] >= 1
    assert facts["memory_bytes"] > 2**26, facts["memory_bytes"]
    assert facts["processor"] is None or facts["processor"].strip()


def test_libraries_are_read_without_importing_torch():
    code = (
        "import sys\nfrom selfspec_cli.provenance import collect\ncollect()\n"
        "sys.exit('torch was imported' if 'torch' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert library_fingerprint()["numpy"] == np.__version__


def test_differences_are_dotted_and_sorted_and_absent_is_none():
    one = {"libraries": {"torch": "2.13.0", "numpy": "2"}, "device": {"gpu": "x"}}
    two = {"libraries": {"torch": "2.12.0", "numpy": "2"}, "device": {}}
    assert differences(one, two) == [
        ("device.gpu", "x", None),
        ("libraries.torch", "2.13.0", "2.12.0"),
    ]
    assert differences(one, one) == []
