"""Tiny checkpoints on disk, traces for them, and the program run in this process.

A checkpoint is a random model of one of the library's own classes with a byte-level tokenizer:
what the command line loads with `-m FOLDER`, in milliseconds and without a network.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

BOS, EOS = 0, 1
VOCAB = 264  # rows of the head; 260 real tokens and 4 rows of padding
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
SIZE = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
LLAMA = {"intermediate_size": 48, "num_key_value_heads": 1, "tie_word_embeddings": False}


def random_model(model_type: str = "gpt2", *, seed: int = 1, gain: float = 16.0, **config: object):
    """A random float32 model: matrices times `gain` (peaked laws), vectors with noise."""
    settings = {
        "vocab_size": VOCAB, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": 2,
        "max_position_embeddings": 256, **SIZE, **(LLAMA if model_type == "llama" else {}),
        **config,
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings))
    model = model.float().eval().requires_grad_(False)
    noise = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=noise))
        else:
            parameter.mul_(gain)
    return model


def byte_tokenizer(chat_template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """One token a byte, after four special ones; puts BOS before raw text."""
    specials = ["<bos>", "<eos>", "<pad>", "<turn>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: index for index, piece in enumerate(specials + alphabet)}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(piece, special=True) for piece in specials])
    core.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", BOS)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        chat_template=chat_template,
    )


def save_checkpoint(model: nn.Module, folder: Path) -> Path:
    """Write the model and the byte tokenizer to a folder."""
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def write_trace(path: Path, rows: Iterable[dict[str, object]]) -> Path:
    """Write a JSONL trace."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def trace_rows(count: int, **fields: object) -> list[dict[str, object]]:
    """Prompts of 5 to 60 bytes over two tasks, no two alike."""
    words = ("a", "tale", "of", "rivers", "bridges", "old", "maps", "and", "people", "drawing")
    rows = []
    for i in range(count):
        text = " ".join(words[(i * 5 + j * (i + 1)) % len(words)] for j in range(1 + i % 11))
        task = ("story", "code")[i % 2]
        rows.append({"id": f"r{i:03}", "task": task, "prompt": f"{i} {text}", **fields})
    return rows


def run_cli(*argv: object) -> int:
    """Run the program in this process; returns the exit code. Output goes to stdout and stderr."""
    from selfspec_cli.cli.app import _run

    return _run([str(part) for part in argv])
