"""Make a damped twin of a checkpoint: a test instrument, never a product claim.

The output projections of attention and MLP in every layer from L0 on are scaled by epsilon, so
the late layers add little and an exit at L0 agrees with the whole model the more, the smaller
epsilon is. Every cost stays that of the real model; only acceptance changes. It lets "enable" be
tried with real costs where training-free exits of the real checkpoint are poor.

usage: python tests/instruments/damped_twin.py MODEL OUT --from-layer 15 --epsilon 0.1
"""

import argparse
import shutil
from pathlib import Path

import torch
import transformers

from selfspec_cli.engine.load import resolve_folder

PROJECTIONS = ("self_attn.o_proj", "mlp.down_proj", "attn.c_proj", "mlp.c_proj",
               "attention.dense", "mlp.dense_4h_to_h")  # fmt: skip
LAYER_LISTS = (".layers.", ".h.")


def layer_of(name: str) -> int | None:
    """Index of the layer a parameter belongs to, None outside the layers."""
    for mark in LAYER_LISTS:
        if mark in name:
            return int(name.split(mark)[1].split(".")[0])
    return None


@torch.no_grad()
def damp(model: torch.nn.Module, from_layer: int, epsilon: float) -> int:
    """Scale the output projections of layers >= from_layer; returns how many tensors."""
    scaled = 0
    for name, parameter in model.named_parameters():
        layer = layer_of(name)
        if layer is not None and layer >= from_layer and any(p in name for p in PROJECTIONS):
            parameter.mul_(epsilon)
            scaled += 1
    return scaled


def save_twin(model: str, out: Path, from_layer: int, epsilon: float) -> None:
    """Write the twin of `model` (demo, folder) to `out`, tokenizer files included."""
    source = Path(resolve_folder(model))
    twin = transformers.AutoModelForCausalLM.from_pretrained(source)
    if damp(twin, from_layer, epsilon) == 0:
        raise SystemExit(f"no output projection found from layer {from_layer} on")
    twin.save_pretrained(out)
    for file in source.iterdir():
        if not (out / file.name).exists() and file.suffix in (".json", ".jinja", ".model", ".txt"):
            shutil.copy(file, out / file.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--from-layer", type=int, required=True)
    parser.add_argument("--epsilon", type=float, required=True)
    given = parser.parse_args()
    save_twin(given.model, given.out, given.from_layer, given.epsilon)


if __name__ == "__main__":
    main()
