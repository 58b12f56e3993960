"""Everything a cost measurement times, at every batch size, as one list of tasks."""

from collections.abc import Iterator, Sequence

import torch

from selfspec_cli.cost.batch_parts import batch_tasks
from selfspec_cli.cost.parts import (
    LawParts,
    Scene,
    Task,
    decoder_tasks,
    embed_task,
    pass_tasks,
    prefill_task,
)
from selfspec_cli.cost.plan import CostPlan
from selfspec_cli.engine.view import LayerView


@torch.inference_mode()
def build_tasks(view: LayerView, plan: CostPlan, seed: int) -> list[Task]:
    """Return everything that one block times, each on a state of its own context and batch size.

    Args:
        view: the model.
        plan: what to time.
        seed: of the random tokens; costs do not depend on which tokens they are.

    Raises:
        ConfigError: the plan does not fit the model.
    """
    plan.check(view.num_layers, view.max_positions)
    scenes = [Scene(view, plan, context, seed) for context in plan.contexts]
    tasks = [prefill_task(scene) for scene in scenes] if plan.parts else []
    for batch in plan.batch_sizes:
        one = _row_tasks(plan, scenes) if batch == 1 else batch_tasks(plan, scenes, batch)
        tasks.extend(one)
    return tasks


def _row_tasks(plan: CostPlan, scenes: Sequence[Scene]) -> Iterator[Task]:
    """Tasks of one row, timed through the decoder of single requests."""
    for scene in scenes:
        for sampling in plan.laws:
            yield from decoder_tasks(scene, sampling)
    if not plan.parts:
        return
    yield embed_task(scenes[0])
    for scene in scenes:
        yield from pass_tasks(scene)
    for sampling in plan.laws:
        # Penalties count the tokens before a position, so only their work grows with the context.
        where = scenes if sampling.penalised else scenes[:1]
        for scene in where:
            yield from LawParts(scene, sampling).tasks(scene.context if len(where) > 1 else None)
