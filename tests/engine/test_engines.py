"""Which engine a model is decoded with, and that a run goes on where a faster one cannot be had."""

import builtins
import copy
import json
import os
import subprocess
import sys
import warnings

import pytest
import torch
from compiled_views import as_traced
from tiny import N, greedy_policy, prompts, tiny_model, tiny_view, view_of

from selfspec_cli.engine import engines, linear_kernel
from selfspec_cli.engine.compiled import CompiledView, KernelView
from selfspec_cli.engine.decoder import Job, decode_plain, decode_speculative
from selfspec_cli.engine.engines import choose_engine
from selfspec_cli.engine.layer_programs import LayerPrograms
from selfspec_cli.engine.linear_kernel import KernelLinear
from selfspec_cli.engine.proof import check_states, runs
from selfspec_cli.engine.selfcheck import check_tokens
from selfspec_cli.errors import ModelError, SelfCheckError

JOB = Job(prompt=prompts(range(9, 10))[0], budget=24)


def fresh(name="llama"):
    return view_of(copy.deepcopy(tiny_model(name)))


def kinds_of(model) -> list[str]:
    """What could be left changed: module types by name, and the attention that is looked up."""
    modules = [f"{name}: {type(module).__name__}" for name, module in model.named_modules()]
    return [*modules, str(model.config._attn_implementation)]


def same_tokens(view, name="llama") -> None:
    """The view decodes what the library's layers of a fresh model do, plainly and in rounds."""
    want = decode_plain(tiny_view(name), JOB, greedy_policy(view)).output
    assert decode_plain(view, JOB, greedy_policy(view)).output == want
    assert decode_speculative(view, JOB, greedy_policy(view), 2, 3)[0].output == want


@pytest.fixture
def traced(monkeypatch):
    """Programs are traced and not compiled: what a compiler makes of them is not at stake here."""
    monkeypatch.setattr(torch._inductor, "standalone_compile", as_traced)


@pytest.fixture
def no_numba(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **more):
        if name.partition(".")[0] in ("numba", "llvmlite"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    linear_kernel._made.cache_clear()
    yield
    linear_kernel._made.cache_clear()


def failing(error):
    def compiler(*_, **__):
        raise error

    return compiler


def falls_back(name="llama"):
    """Choose the compiled engine where it fails; checks what a run then goes on with."""
    view = fresh(name)
    before = kinds_of(view.model)
    chosen = choose_engine(view, "compiled", rows=2)
    assert len(chosen.notices) == 1, chosen.notices
    if chosen.view.engine == "eager":
        assert chosen.view is view
        assert kinds_of(view.model) == before
    same_tokens(chosen.view, name)
    return chosen


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory\nof many\nlines"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_where_compiling_fails_the_linear_kernel_is_kept(error, monkeypatch):
    monkeypatch.setattr(torch._inductor, "standalone_compile", failing(error))
    chosen = falls_back()
    assert (chosen.view.engine, type(chosen.view)) == ("linear_kernel", KernelView)
    (notice,) = chosen.notices
    assert "linear kernel: compiled layers cannot be used here (" in notice
    assert (str(error).partition("\n")[0] or "MemoryError") in notice
    assert "\n" not in notice


def test_a_compiler_that_warns_is_used_and_its_warnings_stay_with_it(monkeypatch):
    """Its first use imports setuptools, which warns where distutils came before it."""

    def compiler(graph, _inputs, **_options):
        warnings.warn("Distutils was imported before Setuptools", stacklevel=1)
        return graph

    monkeypatch.setattr(torch._inductor, "standalone_compile", compiler)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("error")  # as with python -W error
        chosen = choose_engine(fresh(), "compiled", rows=2)
    assert chosen.view.engine == "compiled", chosen.notices
    assert not seen
    assert not chosen.notices


def test_a_layer_that_cannot_be_traced(monkeypatch):
    """Its code asks for a value, which no program knows."""
    view = fresh()
    kind = type(view._layers[0])
    real = kind.forward

    def forward(self, hidden, *args, **more):
        return real(self, hidden if float(hidden.sum()) < 1e9 else -hidden, *args, **more)

    monkeypatch.setattr(kind, "forward", forward)
    chosen = falls_back()
    assert chosen.view.engine == "linear_kernel"


def test_a_layer_that_holds_for_one_size_only(monkeypatch, traced):
    """Its code compares a size with a number; what it does for others was never seen."""
    kind = type(fresh()._layers[0])
    real = kind.forward

    def forward(self, hidden, *args, **more):
        return real(self, -hidden if hidden.shape[1] == 7 else hidden, *args, **more)

    monkeypatch.setattr(kind, "forward", forward)
    chosen = falls_back()
    assert chosen.view.engine == "linear_kernel"
    assert "fix a size" in chosen.notices[0], chosen.notices


class Twins:
    """Twins of a compiler: the program they make computes something else."""

    @staticmethod
    def scaled(graph, _inputs, **_options):
        def program(*tensors):
            return graph(*tensors) * 1.001

        return program

    @staticmethod
    def one_slot_late(graph, _inputs, **_options):
        def program(hidden, keys, values, slots, *more):
            return graph(hidden, keys, values, (slots + 1).clamp(max=keys.shape[2] - 1), *more)

        return program

    @staticmethod
    def not_a_number(graph, _inputs, **_options):
        def program(*tensors):
            return graph(*tensors) * torch.nan

        return program

    @staticmethod
    def last_row_of_several(graph, _inputs, **_options):
        def program(hidden, *more):
            out = graph(hidden, *more)
            return torch.cat([out[:1], out[:1], out[2:]]) if len(out) > 1 else out

        return program

    @staticmethod
    def wrong_when_verifying(graph, _inputs, **_options):
        def program(hidden, *more):
            out = graph(hidden, *more)
            return out if out.shape[1] != 2 else out.flip(1)

        return program


TWINS = [("llama", name) for name in vars(Twins) if not name.startswith("_")]


@pytest.mark.parametrize(("name", "twin"), [*TWINS, ("gpt2", "scaled")])
def test_a_program_that_computes_something_else_is_refused(name, twin, monkeypatch):
    monkeypatch.setattr(torch._inductor, "standalone_compile", getattr(Twins, twin))
    chosen = falls_back(name)
    assert chosen.view.engine == "linear_kernel"
    assert "differ in depth" in chosen.notices[0], chosen.notices


def test_a_head_that_computes_something_else_is_refused(monkeypatch, traced):
    """Layers are right, logits are not: the kernel drops a row of the head only."""
    real = KernelLinear.forward

    def forward(self, x):
        y = real(self, x)
        return y if y.shape[-1] != tiny_view("llama").vocab_size else y * 1.01

    monkeypatch.setattr(KernelLinear, "forward", forward)
    chosen = falls_back()
    assert chosen.view.engine == "eager"
    assert chosen.notices[0].count("their logits") == 2, chosen.notices


def test_a_linear_kernel_that_computes_something_else_is_refused(monkeypatch, traced):
    def kernel():
        def product(x, w, bias, y):
            y[:] = x @ w.T * 1.01 + bias

        return product

    monkeypatch.setattr(linear_kernel, "kernel", kernel)
    chosen = falls_back()
    assert chosen.view.engine == "eager"
    (notice,) = chosen.notices
    assert notice.startswith(
        "decoding with the eager engine: compiled layers cannot be used here ("
    )
    assert "nor the linear kernel (" in notice


def test_without_numba_compiled_layers_use_the_librarys_products(no_numba, traced):
    chosen = falls_back()
    assert chosen.view.engine == "compiled"
    assert "slower: No module named" in chosen.notices[0], chosen.notices


def test_without_numba_and_compiler_the_eager_engine_decodes(no_numba, monkeypatch):
    monkeypatch.setattr(torch._inductor, "standalone_compile", failing(RuntimeError("no compiler")))
    chosen = falls_back()
    assert chosen.view.engine == "eager"
    assert "(no compiler), nor the linear kernel (No module named" in chosen.notices[0]


def test_an_installation_that_fails_half_way_is_taken_back(monkeypatch):
    count = [0]
    real = KernelLinear.__init__

    def half(self, replaced):
        count[0] += 1
        if count[0] % 9 == 0:
            raise MemoryError
        real(self, replaced)

    monkeypatch.setattr(KernelLinear, "__init__", half)
    chosen = falls_back()
    assert chosen.view.engine == "eager"
    assert chosen.notices[0].count("MemoryError") == 2


def test_a_model_without_float32_layers_has_no_linear_kernel(monkeypatch):
    view = view_of(copy.deepcopy(tiny_model("llama")).bfloat16())
    monkeypatch.setattr(torch._inductor, "standalone_compile", failing(RuntimeError("no compiler")))
    chosen = choose_engine(view, "compiled")
    assert chosen.view is view
    assert "nor the linear kernel (the model has no float32 linear layers)" in chosen.notices[0]


def test_bfloat16_layers_are_programs_too(traced):
    view = view_of(copy.deepcopy(tiny_model("llama")).bfloat16())
    chosen = choose_engine(view, "compiled", rows=3)
    assert (chosen.view.engine, chosen.notices) == ("compiled", ())


def test_eager_is_what_was_loaded():
    view = fresh()
    before = kinds_of(view.model)
    for engine in ("eager", "auto"):  # these models are too small for `auto`
        assert choose_engine(view, engine, rows=4).view is view
    assert kinds_of(view.model) == before


def test_auto_compiles_where_weights_are_large(monkeypatch, traced):
    monkeypatch.setattr(engines, "AUTO_MIN_BYTES", 1000)
    chosen = choose_engine(fresh(), "auto")
    assert isinstance(chosen.view, CompiledView)
    assert not chosen.notices


def test_several_devices(monkeypatch):
    """A part of the model elsewhere: refused if compiled was asked for, else a notice."""
    monkeypatch.setattr(engines, "AUTO_MIN_BYTES", 1000)
    view = fresh()
    view._layers[0].to("meta")
    chosen = choose_engine(view, "auto")
    assert chosen.view is view
    assert chosen.notices == ("decoding with the eager engine: the model lies on cpu, meta",)
    with pytest.raises(ModelError, match="one device; the model lies on cpu, meta") as caught:
        choose_engine(view, "compiled")
    assert caught.value.exit_code == 2


def test_layers_of_a_kind_with_other_weights_are_not_one_program():
    view = fresh()
    view._layers[3].extra = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(ModelError, match="different weights"):
        LayerPrograms(view._layers, view.layer_kinds, "past_key_values")


@pytest.mark.parametrize("rows", [1, 3])
def test_proof_runs_every_kind_of_pass(rows, traced):
    """One position and several, one row and as many as will be decoded; and no other."""
    chosen = choose_engine(fresh(), "compiled", rows=rows)
    made = {key[1:3] for key in chosen.view._programs._programs}
    alone = {(False, False), (False, True)}
    assert made == (alone if rows == 1 else alone | {(True, False), (True, True)})


def test_proof_names_where_states_differ():
    view = tiny_view("llama")
    tokens = check_tokens(view)
    with torch.inference_mode():
        for how, run in runs(2).items():
            states = run(view, tokens)
            assert set(states) == set(range(N + 1))
            check_states(states, run(view, tokens), torch.float32, how)
            other = {**states, 4: states[4] + 1e-2 * states[4].abs().max()}
            with pytest.raises(SelfCheckError, match=rf"{how} differ in depth 4 by 0\.01 of"):
                check_states(states, other, torch.float32, how)


SCRIPT = """
import json, sys
from selfspec_cli.engine.load import LoadOptions, load_model
told = []
loaded = load_model(LoadOptions(model=sys.argv[1], engine="compiled"), told=lambda: told.append(1))
print(json.dumps([loaded.view.engine, loaded.notices, len(told)]))
"""


def test_a_machine_without_a_compiler(tiny_checkpoint, tmp_path):
    """The real compiler's own complaint, in a process of its own that keeps no programs."""
    environment = {**os.environ, "CXX": "no-such-compiler"}
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tiny_checkpoint)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    engine, notices, told = json.loads(done.stdout)
    assert engine == "linear_kernel"
    assert told == 1, f"{told} programs were begun"
    assert len(notices) == 1, notices
    assert "compiler" in notices[0].lower(), notices
    assert "Traceback" not in done.stderr, done.stderr
