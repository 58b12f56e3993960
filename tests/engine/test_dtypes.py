"""A dtype that a device lacks is refused before anything runs in it, with the way out."""

import pytest
import torch
from tiny import COMMON, CONFIGS, build

from selfspec_cli.engine import load
from selfspec_cli.engine.dtypes import check_dtype
from selfspec_cli.engine.load import LoadOptions, load_model
from selfspec_cli.errors import EXIT_INPUT, ModelError

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", load.DTYPES.values())
def test_dtypes_of_the_command_line_run_on_a_cpu(dtype):
    check_dtype(dtype, CPU)


def test_a_missing_operator_is_named_with_dtype_and_device():
    with pytest.raises(ModelError, match="float8_e4m3fn is not supported on cpu") as refused:
        check_dtype(torch.float8_e4m3fn, CPU)
    assert refused.value.exit_code == EXIT_INPUT
    assert "--dtype float32" in str(refused.value)
    assert "Float8_e4m3fn" in refused.value.what, "what torch says is left out"


def test_a_model_is_refused_before_it_runs(tmp_path, monkeypatch):
    """The family entry is right; what does not run is the dtype, and that is what is said."""
    model = build(**{**COMMON, **CONFIGS["llama"]})
    model.save_pretrained(tmp_path)
    # The library loads no such weights on a CPU, so they are made here.
    monkeypatch.setattr(load, "_load_weights", lambda *_: model.to(torch.float8_e4m3fn))
    with pytest.raises(ModelError, match="float8_e4m3fn") as refused:
        load_model(LoadOptions(model=str(tmp_path), device="cpu"), tokenizer=object())
    assert refused.value.exit_code == EXIT_INPUT


@pytest.mark.device
def test_dtypes_of_a_gpu_run_or_are_refused():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    device = torch.device("cuda")
    check_dtype(torch.float16, device)
    if native:
        check_dtype(torch.bfloat16, device)
    else:
        with pytest.raises(ModelError, match="no bfloat16 arithmetic"):
            check_dtype(torch.bfloat16, device)
