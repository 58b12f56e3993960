"""How much cache the timing of batches may take, and what does not fit into that."""

from dataclasses import replace

import psutil
import torch

from selfspec_cli.cost.bandwidth import position_bytes
from selfspec_cli.cost.plan import CostPlan
from selfspec_cli.engine.view import LayerView
from selfspec_cli.errors import ConfigError

CACHE_SHARE = 4  # the caches of all batches together take at most a quarter of the free memory


def fit_memory(view: LayerView, plan: CostPlan) -> CostPlan:
    """Return the plan with as large caches as the free memory allows.

    The cache of each batch size holds its longest context; a quarter of the free memory is shared
    out evenly among the batch sizes above 1.

    Args:
        view: the model, on its device.
        plan: what to time.

    Raises:
        ConfigError: the base batch size does not fit even at the shortest context.
    """
    many = [batch for batch in plan.batch_sizes if batch > 1]
    if not many:
        return plan
    share = free_bytes(view.device) // CACHE_SHARE // len(many)
    fitted = replace(plan, max_batch_tokens=share // sum(position_bytes(view)))
    base = plan.batch_sizes[0]
    if not fitted.contexts_at(base):
        raise ConfigError(
            f"{base} rows of {plan.contexts[0]} tokens exceed a quarter of the free memory",
            where="batch_sizes",
            hint="Name smaller batch sizes.",
        )
    return fitted


def free_bytes(device: torch.device) -> int:
    """Free memory of a device; that of the machine where the device does not tell."""
    module = torch.get_device_module(device)
    if device.type != "cpu" and hasattr(module, "mem_get_info"):
        return int(module.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def left_out_notices(plan: CostPlan) -> tuple[str, ...]:
    """Say which contexts of which batch sizes are not timed for want of memory."""
    return tuple(
        f"batch size {batch} is not timed at contexts of {', '.join(map(str, contexts))} tokens: "
        "the cache would take more than its share of a quarter of the free memory"
        for batch, contexts in plan.left_out().items()
    )
