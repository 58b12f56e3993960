"""The shared tiny checkpoints and request rows, read where they are."""

import functools
import importlib.util
import io
import json
from pathlib import Path

import transformers
from tiny import view_of
from torch import nn

TABLE = ("llama", "qwen3", "gemma2", "gpt2", "gemma3", "gpt_neox_parallel", "gpt_neox_sequential")
"""Open models without a limit of their own; the last is the one before it with its flag false."""
QUICK = "the quick brown fox jumps over it"


def inputs(shared: Path) -> Path:
    return shared / "cases" / "inputs"


def rows(shared: Path, name: str) -> list[dict]:
    text = (inputs(shared) / "open" / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@functools.cache
def tokenizer(shared: Path):
    return transformers.AutoTokenizer.from_pretrained(inputs(shared) / "tokenizer")


def encode(shared: Path, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(shared)(text).input_ids)


@functools.cache
def open_model(shared: Path, name: str) -> nn.Module:
    """Build a checkpoint from its open configuration, without an EOS of its own."""
    spec = importlib.util.spec_from_file_location("build_tiny", inputs(shared) / "build_tiny.py")
    builder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(builder)
    source = name.replace("sequential", "parallel")
    config = json.loads(
        (inputs(shared) / "open" / "models" / f"{source}.json").read_text(encoding="utf-8")
    )
    if source != name:
        config["use_parallel_residual"] = False
    # The builder leaves its file open, which warns; give it one that need not be closed.
    builder.open = lambda *_, **__: io.StringIO(json.dumps(config))
    model = builder.build(name)
    model.requires_grad_(False)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def open_view(shared: Path, name: str):
    return view_of(open_model(shared, name))
