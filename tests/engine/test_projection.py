"""The other matrix product gives the layer's own result, and only where it may."""

import pytest
import torch

from selfspec_cli.engine import projection
from selfspec_cli.engine.projection import MIN_ROWS, project


def layer(bias=False, dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Linear(96, 1000, bias=bias).to(dtype)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(0,), (1,), (MIN_ROWS - 1,), (MIN_ROWS,), (3, 40), (200,)])
def test_products_are_those_of_the_layer(shape, bias):
    """Within float32 rounding of sums of 96 products, at any number of rows and dimensions."""
    linear = layer(bias)
    states = torch.randn(*shape, 96, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        got, want = project(linear, states), linear(states)
    assert got.shape == want.shape
    worst = float((got - want).abs().max()) if got.numel() else 0.0
    assert worst < 1e-5, f"logits differ by {worst:.3g}"


def test_what_is_no_plain_linear_layer_is_asked_itself(monkeypatch):
    """Gradients, hooks, a replaced forward, other dtypes: the module is called."""
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", None)  # would fail if it were called
    states = torch.randn(MIN_ROWS, 96)
    project(layer(), states).sum().backward()
    with torch.inference_mode():
        hooked, replaced = layer(), layer()
        heard = []
        hooked.register_forward_hook(lambda *_: heard.append(1))
        project(hooked, states)
        replaced.forward = lambda x: x[:, :1] * 0 + 5
        assert project(replaced, states).unique().tolist() == [5.0]
        assert project(layer(dtype=torch.bfloat16), states.bfloat16()).dtype == torch.bfloat16
        assert heard == [1]
        with pytest.raises(TypeError):
            project(layer(), states)  # the twin: here the other product is used


def test_a_build_without_onednn_has_the_layer(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", None)
    with torch.inference_mode():
        assert not projection._by_onednn(layer(), torch.randn(MIN_ROWS, 96))
        assert project(layer(), torch.randn(MIN_ROWS, 96)).shape == (MIN_ROWS, 1000)
