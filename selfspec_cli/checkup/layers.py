"""Proof that the layers that decode are the model's own, and that a faster engine's are too."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from selfspec_cli.checkup.records import Part
from selfspec_cli.engine.engines import Chosen, choose_engine
from selfspec_cli.engine.load import LoadedModel, LoadOptions, load_model
from selfspec_cli.engine.proof import LOGITS, states_in_rows
from selfspec_cli.engine.selfcheck import RELATIVE_TOLERANCE, check_tokens
from selfspec_cli.engine.view import LayerView
from selfspec_cli.errors import SelfCheckError

SELF_CHECK = Part(
    name="self_check", title="layers = the model's", unit="error, of the logits' range"
)
ENGINE = Part(name="engine", title="engine = the layers", unit="error, of the states' range")
_NO_TEXT = object()  # in place of a tokenizer: everything here is token ids


def prove_layers(options: LoadOptions) -> tuple[LoadedModel | None, Part]:
    """Load the model and hold every exit of the layer view against the model's own forward.

    Args:
        options: which model; its layers are the library's own until an engine is chosen.

    Returns:
        The model, or None where the view does not reproduce it; and the part.

    Raises:
        ModelError: the model cannot be loaded here.
        FamilyError: its family is not supported.
    """
    try:
        loaded = load_model(replace(options, engine="eager"), tokenizer=_NO_TEXT)
    except SelfCheckError as error:
        return None, replace(SELF_CHECK, cases=1, faults=(str(error).replace("\n", " "),))
    view = loaded.view
    part = replace(
        SELF_CHECK,
        cases=view.num_layers,
        value=loaded.self_check_error,
        tolerance=_tolerance(view),
        text=f"logits at all {view.num_layers} exits against transformers' forward of the same "
        "checkpoint cut there, in one pass and in single steps",
    )
    return loaded, part


def prove_engine(
    view: LayerView, options: LoadOptions, told: Callable[[], None]
) -> tuple[Chosen, Part]:
    """Choose the engine that decodes, and compare its passes with the library's layers.

    Args:
        view: checked view of the library's layers; a faster engine changes its model in place.
        options: engine and rows as asked for.
        told: called before each layer program that is compiled.

    Raises:
        ModelError: the engine cannot be used where the model lies.
    """
    reference = _states(view)
    chosen = choose_engine(view, options.engine, rows=options.rows, told=told)
    made = chosen.view
    if made is view:
        text = "the library's own layers decode, as they are"
        return chosen, replace(ENGINE, cases=1, text=text)
    depth, error = _worst(reference, _states(made))
    tolerance = _tolerance(view)
    where = "the logits" if depth == LOGITS else f"depth {depth}"
    wrong = f"{made.engine} engine: {where} differ by {error:.3g} (tolerance {tolerance:g})"
    part = replace(
        ENGINE,
        cases=len(reference),
        value=error,
        tolerance=tolerance,
        faults=() if error <= tolerance else (wrong,),  # NaN differs too
        text=f"{made.engine} engine: states at every depth in ragged rows, passes of 1, 5 and 2 "
        "positions",
    )
    return chosen, part


@torch.inference_mode()
def _states(view: LayerView) -> Mapping[int, Tensor]:
    return states_in_rows(view, check_tokens(view))


def _worst(reference: Mapping[int, Tensor], found: Mapping[int, Tensor]) -> tuple[int, float]:
    """Depth of the largest relative difference, and that difference; NaN is the largest."""
    errors = {
        depth: float((found[depth] - expected).abs().max()) / (float(expected.abs().max()) or 1.0)
        for depth, expected in reference.items()
    }
    broken = [depth for depth, error in errors.items() if math.isnan(error)]
    depth = broken[0] if broken else max(errors, key=lambda at: errors[at])
    return depth, errors[depth]


def _tolerance(view: LayerView) -> float:
    return RELATIVE_TOLERANCE.get(view.dtype, 6e-2)
