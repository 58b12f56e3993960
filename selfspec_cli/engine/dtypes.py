"""Whether a device can run a decoder in a dtype, tried out before a model runs in it."""

import torch
from torch import nn

from selfspec_cli.errors import ModelError

_SIZE = 16  # rows and columns of the products tried: what most kernels ask for at least


def check_dtype(dtype: torch.dtype, device: torch.device) -> None:
    """Run what every decoder runs once: a product, softmax, attention with and without a mask.

    Args:
        dtype: of the model's states.
        device: where they are.

    Raises:
        ModelError: an operator is missing, or the device only imitates the dtype, whose costs
            would say nothing about the model; the message names dtype, device and the way out.
    """
    reason = _missing(dtype, device)
    if reason is not None:
        name = str(dtype).removeprefix("torch.")
        others = [other for other in ("float32", "float16") if other != name]
        if device.type != "cuda":
            others = others[:1]
        raise ModelError(
            f"{name} is not supported on {device}: {reason}",
            where="--dtype",
            hint=f"Use --dtype {' or '.join(others)}, or another --device.",
        )


def _missing(dtype: torch.dtype, device: torch.device) -> str | None:
    """Why a dtype cannot be used, None where it can."""
    if device.type == "cuda" and dtype == torch.bfloat16:
        with torch.cuda.device(device):
            if not torch.cuda.is_bf16_supported(including_emulation=False):
                return "this GPU has no bfloat16 arithmetic"
    try:
        finite = _tried(dtype, device)
    except (RuntimeError, TypeError) as error:  # NotImplementedError is a RuntimeError
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return None if finite else "a product of ones is not finite"


@torch.inference_mode()
def _tried(dtype: torch.dtype, device: torch.device) -> bool:
    ones = torch.ones(1, 2, _SIZE, _SIZE, dtype=torch.float32, device=device).to(dtype)
    product = nn.functional.linear(ones, ones[0, 0])
    attended = nn.functional.scaled_dot_product_attention(
        torch.softmax(product, dim=-1), ones, ones, attn_mask=torch.zeros_like(ones)
    )
    causal = nn.functional.scaled_dot_product_attention(attended, ones, ones, is_causal=True)
    return bool(causal.float().isfinite().all())
