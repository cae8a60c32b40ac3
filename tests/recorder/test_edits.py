"""Common edits as functions; ``test_editing.py`` applies them to models."""

from __future__ import annotations

import pytest
import torch

from camtool.errors import CamtoolError
from camtool.recorder.edits import add_noise, clip, replace, scale, zero


@pytest.mark.parametrize("edit", [scale(2), clip(-1, 1), zero(), replace(3.0), replace(torch.ones(2)), add_noise(1, 0)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_edits_keep_dtype_and_graph_and_do_not_write_to_their_argument(edit, dtype) -> None:
    x = torch.tensor([[1.0, -2.0]], dtype=dtype, requires_grad=True)
    edited = edit(x)
    assert (edited.dtype, edited.shape, edited.requires_grad) == (dtype, x.shape, True)
    assert x.tolist() == [[1, -2]]


def test_nan_and_infinity_are_replaced() -> None:
    x = torch.tensor([float("nan"), float("inf")], requires_grad=True)
    zeroed = zero()(x)
    zeroed.sum().backward()
    assert zeroed.tolist() == x.grad.tolist() == [0, 0]


def test_noise_is_the_same_for_every_dtype_and_has_its_standard_deviation() -> None:
    x = torch.zeros(10_000)
    noise = add_noise(3, 1)(x)
    assert noise.std().item() == pytest.approx(3, rel=0.02)
    assert noise.mean().item() == pytest.approx(0, abs=0.1)
    torch.testing.assert_close(add_noise(3, 1)(x.double()).float(), noise)
    with torch.device("meta"):  # whatever the device that torch makes tensors on
        assert torch.equal(add_noise(3, 1)(x), noise)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: clip(), "clip needs a bound"),
        (lambda: clip(2, 1), "low is 2 and high is 1; low must not be greater than high"),
        (lambda: add_noise(-1, 0), "std is -1"),
        (lambda: replace(torch.ones(3))(torch.ones(2)), r"value of shape \(3,\) does not fit a tensor of shape \(2,\)"),
    ],
)
def test_invalid_edits_raise_an_error(make, message) -> None:
    with pytest.raises(CamtoolError, match=message):
        make()
