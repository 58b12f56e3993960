"""Helpers of the trace tests: small files, and a byte-level tokenizer made here."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

BOS, EOS = 0, 1


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes rows (mappings or raw lines) to a file, one a line."""

    def write(*rows: object, name: str = "trace.jsonl") -> Path:
        lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        path = tmp_path / name
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return path

    return write


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., object]:
    """Return a function that builds a byte-level tokenizer which puts BOS before raw text."""
    from transformers import PreTrainedTokenizerFast

    def make(chat_template: str | None = None) -> PreTrainedTokenizerFast:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        specials = ["<bos>", "<eos>", "<pad>", "<turn>"]
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

    return make
