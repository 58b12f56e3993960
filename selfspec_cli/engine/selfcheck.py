"""Check at load that the layer-range view is the model, at every exit layer.

Two comparisons, over a prompt longer than any sliding window and three single steps after it:
all N layers against the library's own `forward`, and each exit L against the library's `forward`
of the same checkpoint cut to L layers. An entry of the family table that is wrong in any flag
fails here, before anything is measured.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from selfspec_cli.engine.view import LayerView
from selfspec_cli.errors import ModelError, SelfCheckError

PROMPT_TOKENS = 12  # where no sliding window asks for more
STEPS = 3
RELATIVE_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 6e-2, torch.float16: 1e-2}
"""Of the largest |logit|: other kernels for other shapes round differently, a wrong flag does not
stay within this (each flag has a test)."""


@torch.inference_mode()
def check_view(view: LayerView, exit_layers: Sequence[int] | None = None) -> float:
    """Compare the view with the library at each exit layer; returns the largest relative error.

    Args:
        view: the view to check.
        exit_layers: exits to check; default all of 1..N.

    Raises:
        SelfCheckError: an exit's logits differ, and the message names the exit, the position and
            the error; or the layers cannot be run as the family entry says.
    """
    tokens = check_tokens(view)
    exits = sorted(exit_layers or range(1, view.num_layers + 1), reverse=True)
    try:
        states = states_by_depth(view, tokens)
        return max(_check_exit(view, at, tokens, states[at]) for at in exits)
    except (TypeError, ValueError, IndexError, RuntimeError, AttributeError) as error:
        first_line = str(error).partition("\n")[0]
        raise SelfCheckError(
            f"the model does not run as the family entry says: {first_line}",
            where=view.family.model_type,
        ) from error


def check_tokens(view: LayerView) -> Tensor:
    """Random token ids [1, n] of a prompt longer than any sliding window, and the steps after."""
    # The window of the config, not of the layer kinds: an entry that forgets them must fail too.
    n = max(PROMPT_TOKENS, int(view.window or 0) + 4) + STEPS
    if view.max_positions is not None:
        n = min(n, view.max_positions)
    generator = torch.Generator().manual_seed(0)
    top = min(view.vocab_size, int(view.config.vocab_size))
    return torch.randint(0, top, (1, n), generator=generator).to(view.device)


def states_by_depth(view: LayerView, tokens: Tensor) -> dict[int, Tensor]:
    """State [n, H] after each number of layers, from one cached pass and three single steps."""
    cache = view.new_cache(capacity=tokens.shape[1])
    prompt = tokens.shape[1] - STEPS
    pieces = [tokens[:, :prompt], *tokens[:, prompt:].split(1, dim=1)]
    found: dict[int, list[Tensor]] = {depth: [] for depth in range(1, view.num_layers + 1)}
    for piece in pieces:
        hidden = view.embed(piece, cache)
        view.run(hidden, cache, 0, view.num_layers, lambda depth, h: found[depth].append(h[0]))
    return {depth: torch.cat(parts) for depth, parts in found.items()}


def _check_exit(view: LayerView, exit_layer: int, tokens: Tensor, states: Tensor) -> float:
    ours = view.head(states)
    library = truncated_model(view, exit_layer)(input_ids=tokens, use_cache=False).logits[0].float()
    if not bool(ours.isfinite().all() and library.isfinite().all()):
        raise SelfCheckError(f"logits at exit layer {exit_layer} are not finite")
    scale = float(library.abs().max()) or 1.0
    errors = (ours - library).abs().amax(dim=-1) / scale  # [n]
    worst = int(errors.argmax())
    tolerance = RELATIVE_TOLERANCE.get(view.dtype, 6e-2)
    if float(errors[worst]) > tolerance:
        raise SelfCheckError(
            f"logits at exit layer {exit_layer} of {view.num_layers} differ from the library's by "
            f"{float(errors[worst]):.3g} of their range at position {worst} (tolerance "
            f"{tolerance:g})",
            where=view.family.model_type,
            hint="The family entry does not describe this checkpoint; nothing was measured.",
        )
    return float(errors[worst])


def truncated_model(view: LayerView, num_layers: int) -> nn.Module:
    """Return the same checkpoint as a model of `num_layers` layers, sharing all weights.

    The library's classes run unchanged: only the layer list and the layer count differ, on a
    shallow copy, so the loaded model is never touched.
    """
    head, _, leaf = view.family.layers.rpartition(".")
    config = copy.deepcopy(view.config)
    for name in ("num_hidden_layers", "n_layer"):
        if name in vars(config) or hasattr(config, name):
            setattr(config, name, num_layers)
    if getattr(config, "layer_types", None):
        config.layer_types = list(config.layer_types)[:num_layers]
    root = _shallow(view.model, config)
    backbone = _shallow(_descend(view.model, head), config)
    backbone._modules[leaf] = nn.ModuleList(
        list(_descend(view.model, view.family.layers))[:num_layers]
    )
    if "." in head or not head:
        raise ModelError(f"family path '{view.family.layers}' is not backbone.layers")
    root._modules[head] = backbone
    return root


def _shallow(module: nn.Module, config: Any) -> nn.Module:
    clone = copy.copy(module)
    clone._modules = dict(module._modules)
    clone.config = config
    return clone


def _descend(module: nn.Module, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module
