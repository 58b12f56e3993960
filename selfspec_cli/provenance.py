"""Fingerprints of the model, the traces, the machine and the libraries behind a run.

Nothing here names a folder, a host or a user: run files travel. torch is never imported; what it
knows about accelerators is asked only where it is loaded already.
"""

import hashlib
import json
import os
import platform
import struct
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from selfspec_cli.storage import file_sha256

LIBRARIES = (
    "selfspec", "torch", "transformers", "tokenizers", "safetensors", "accelerate", "numpy",
    "scipy", "pandas", "pyarrow",
)  # fmt: skip
"""Distributions whose version may move a number."""
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")
_TOKENIZER = (
    "tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "tokenizer_config.json",
    "special_tokens_map.json", "chat_template.jinja",
)  # fmt: skip
_UNSTABLE_CONFIG = ("_name_or_path", "transformers_version")  # say who wrote it, not what it is
_SAMPLE_BYTES = 4096  # read at the start of every tensor: enough that rescaling one shows
_SAMPLES = 256  # places sampled in a weights file whose tensors are not listed in a header


def collect(
    *, traces: Iterable[Path] = (), model: Mapping[str, object] | None = None, device: str = "cpu"
) -> dict[str, object]:
    """Return the whole provenance of a run, ready for the manifest.

    Args:
        traces: files the requests came from.
        model: result of `model_fingerprint`, if a model took part.
        device: `cpu` or `cuda`, where it ran.

    Raises:
        StorageError: a trace is missing or unreadable.
    """
    return {
        "device": device_fingerprint(device),
        "libraries": library_fingerprint(),
        "platform": platform_fingerprint(),
        "traces": trace_fingerprint(traces),
        "model": dict(model) if model is not None else None,
    }


def device_fingerprint(device: str = "cpu") -> dict[str, object]:
    """Return what timing depends on: processor, cores, memory, accelerator, threads.

    Returns:
        kind, processor (model name), cores (physical), threads (logical, usable by this process),
        memory_bytes, and, where torch is loaded: torch_threads, gpu, gpu_memory_bytes. Unknown
        is None.
    """
    import psutil

    facts: dict[str, object] = {
        "kind": device,
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=False),
        "threads": _usable_threads(),
        "memory_bytes": psutil.virtual_memory().total,
    }
    torch = sys.modules.get("torch")
    return facts if torch is None else {**facts, **_torch_facts(torch, device)}


def library_fingerprint() -> dict[str, object]:
    """Return the version of every library that may move a number; None if not installed."""
    return {name: _version(name) for name in LIBRARIES}


def platform_fingerprint() -> dict[str, object]:
    """Return the interpreter and the operating system, without the host's name."""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "machine": platform.machine(),
    }


def trace_fingerprint(paths: Iterable[Path]) -> dict[str, object]:
    """Return name, size and SHA-256 of each trace file, and one hash over all contents.

    The combined hash ignores names and folders: a moved trace is the same trace.

    Raises:
        StorageError: a file is missing or unreadable.
    """
    files = [
        {"name": path.name, "bytes": path.stat().st_size if path.exists() else 0,
         "sha256": file_sha256(path)}
        for path in paths
    ]  # fmt: skip
    combined = hashlib.sha256("\n".join(str(file["sha256"]) for file in files).encode())
    return {"files": files, "sha256": combined.hexdigest()}


def model_fingerprint(model: str | Path) -> dict[str, object]:
    """Return what identifies a model, in milliseconds even for large checkpoints.

    Weights are not hashed whole: of a safetensors file the header and the first bytes of every
    tensor are, of other formats bytes at evenly spread places. That tells checkpoints apart whose
    shapes agree, for example one with rescaled layers.

    Args:
        model: folder of a checkpoint, or a hub id (then only its name is known here).

    Returns:
        name (last part only), config_sha256, tokenizer_sha256, weights: list of
        {name, bytes, sampled_sha256}. Missing parts are None or empty.

    Raises:
        StorageError: a file of the folder is unreadable.
    """
    folder = Path(model)
    name = folder.name or str(model)
    if not folder.is_dir():
        return {
            "name": str(model) if not folder.is_absolute() else name,
            "config_sha256": None, "tokenizer_sha256": None, "weights": [],
        }  # fmt: skip
    weights = sorted(path for path in folder.iterdir() if path.suffix in _WEIGHTS)
    return {
        "name": name,
        "config_sha256": _config_hash(folder / "config.json"),
        "tokenizer_sha256": _tokenizer_hash(folder),
        "weights": [_weights_fingerprint(path) for path in weights],
    }


def differences(
    first: Mapping[str, object], second: Mapping[str, object], prefix: str = ""
) -> list[tuple[str, object, object]]:
    """Return (dotted key, value in first, value in second) wherever two fingerprints differ.

    A key that one side lacks counts as None there. Sorted by key.
    """
    found: list[tuple[str, object, object]] = []
    for key in sorted({*first, *second}):
        one, two = first.get(key), second.get(key)
        if isinstance(one, Mapping) and isinstance(two, Mapping):
            found.extend(differences(one, two, f"{prefix}{key}."))
        elif one != two:
            found.append((prefix + key, one, two))
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model") and value.strip():
            return value.strip()
    return platform.processor() or None


def _usable_threads() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _torch_facts(torch: Any, device: str) -> dict[str, object]:
    facts: dict[str, object] = {"torch_threads": torch.get_num_threads()}
    if device.startswith("cuda") and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.device(device))
        facts |= {"gpu": properties.name, "gpu_memory_bytes": properties.total_memory}
    return facts


def _config_hash(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_bytes())
    except ValueError:
        return file_sha256(path)
    kept = {key: value for key, value in config.items() if key not in _UNSTABLE_CONFIG}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _tokenizer_hash(folder: Path) -> str | None:
    present = [folder / name for name in _TOKENIZER if (folder / name).is_file()]
    if not present:
        return None
    lines = "\n".join(f"{path.name} {file_sha256(path)}" for path in present)
    return hashlib.sha256(lines.encode()).hexdigest()


def _weights_fingerprint(path: Path) -> dict[str, object]:
    size = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for start, length in _samples(path, size):
            file.seek(start)
            digest.update(file.read(length))
    return {"name": path.name, "bytes": size, "sampled_sha256": digest.hexdigest()}


def _samples(path: Path, size: int) -> list[tuple[int, int]]:
    """Return (start, length) of the byte ranges that stand for a weights file, in file order."""
    header = _safetensors_header(path, size)
    if header is None:
        step = max(size // _SAMPLES, 1)
        return [(start, _SAMPLE_BYTES) for start in range(0, size, step)]
    length, tensors = header
    data = 8 + length
    ranges = [(0, data)]
    for begin, end in sorted(tensors):
        ranges.append((data + begin, min(end - begin, _SAMPLE_BYTES)))
    return ranges


def _safetensors_header(path: Path, size: int) -> tuple[int, list[tuple[int, int]]] | None:
    """Return the header's length and each tensor's (begin, end), or None if it is not one."""
    if path.suffix != ".safetensors" or size < 8:
        return None
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > size - 8:
            return None
        try:
            entries = json.loads(file.read(length))
        except ValueError:
            return None
    offsets = (entry["data_offsets"] for key, entry in entries.items() if key != "__metadata__")
    return length, [(int(begin), int(end)) for begin, end in offsets]
