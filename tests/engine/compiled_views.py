"""Views of the compiled engine over tiny models, made once a process, and what they ran."""

import copy
import functools

import pytest
import torch
from tiny import NAMES, damped_view, view_of

from selfspec_cli.engine.compiled import CompiledView
from selfspec_cli.engine.engines import choose_engine
from selfspec_cli.engine.view import LayerView

COMPILED_ROWS = {"llama": 3}
"""Families whose programs are compiled in every run of the tests, and for how many rows; compiling
takes 3-7 s a program, once a machine. The others are compiled with `-m slow`."""
TRACED = ("gemma2", "gpt2")
"""Families whose programs are traced and run operation by operation in every run of the tests: two
kinds of layers over the library's own attention; no rotary tables."""
ENGINES = [
    pytest.param(name, engine, id=f"{name}-{engine}", marks=() if usual else pytest.mark.slow)
    for engine, some in (("compiled", COMPILED_ROWS), ("traced", TRACED))
    for name, usual in ((name, name in some) for name in NAMES)
]


def as_traced(graph, _inputs, **_options):
    """In place of the compiler: the traced program, run operation by operation."""
    return graph


@functools.cache
def fast_view(name: str, engine: str) -> CompiledView:
    """The damped twin of a tiny model; shared by all tests."""
    view = view_of(copy.deepcopy(damped_view(name).model))
    rows = COMPILED_ROWS.get(name, 3)
    if engine == "compiled":
        return made_by(view, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch._inductor, "standalone_compile", as_traced)
        return made_by(view, 3)


def made_by(view: LayerView, rows: int) -> CompiledView:
    told = []
    chosen = choose_engine(view, "compiled", rows=rows, told=lambda: told.append(1))
    assert chosen.view.engine == "compiled", chosen.notices
    assert isinstance(chosen.view, CompiledView)
    made = len(chosen.view._programs._programs)
    assert len(told) == made, f"{len(told)} told of {made} programs"
    return chosen.view


def serves_rows(name: str, engine: str) -> bool:
    """Whether programs for several rows were made."""
    return engine == "traced" or COMPILED_ROWS.get(name, 3) > 1
