"""A byte tokenizer and a tiny GGUF file with random weights."""

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def byte_tokenizer(template: str | None = None) -> PreTrainedTokenizerFast:
    """256 bytes after four special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    vocabulary = {token: i for i, token in enumerate([*special, *alphabet])}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = template
    return tokenizer


def write_gguf(path, layers: int = 3, width: int = 32, inner: int = 64) -> None:
    gguf = pytest.importorskip("gguf", reason="package gguf (extra 'demo') is not installed")
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(layers)
    writer.add_context_length(128)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(261)
    vocabulary = byte_tokenizer().get_vocab()
    tokens = [*sorted(vocabulary, key=vocabulary.get), "ab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 4 + [1] * 257)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    generator = np.random.default_rng(0)
    shapes = {"token_embd": (261, width), "output": (261, width), "output_norm": (width,)}
    for i in range(layers):
        shapes |= {
            f"blk.{i}.{part}": shape
            for part, shape in {
                "attn_q": (width, width),
                "attn_k": (width // 2, width),
                "attn_v": (width // 2, width),
                "attn_output": (width, width),
                "ffn_gate": (inner, width),
                "ffn_up": (inner, width),
                "ffn_down": (width, inner),
                "attn_norm": (width,),
                "ffn_norm": (width,),
            }.items()
        }
    for name, shape in shapes.items():
        scale = 0.3 if len(shape) == 2 else 1.0
        weight = scale * generator.standard_normal(shape) + (len(shape) == 1)
        writer.add_tensor(f"{name}.weight", weight.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
