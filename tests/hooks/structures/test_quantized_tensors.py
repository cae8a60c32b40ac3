"""Quantized tensors: their real values, and back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from camtool.hooks.observation import run_with_hooks
from camtool.hooks.structures.nested_tensors import find_main_tensor, quantize_like, replace_main_tensor

pytestmark = pytest.mark.filterwarnings("ignore:.*quantiz")

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def make_quantized(axes: int = 4, *, last: bool = False, kind: torch.dtype = torch.quint8) -> Tensor:
    values = torch.rand(2, 3, *[4, 5, 6][: axes - 2], generator=torch.Generator().manual_seed(0)) - 0.5
    values = values.contiguous(memory_format=FORMATS[axes]) if last else values
    return torch.quantize_per_tensor(values, 0.01, 60 if kind == torch.quint8 else 0, kind)


@pytest.mark.parametrize("kind", [torch.quint8, torch.qint8])
@pytest.mark.parametrize(("axes", "last"), [(2, False), (3, False), (4, False), (4, True), (5, False), (5, True)])
def test_real_values_come_back_exactly_and_in_their_memory_format(axes: int, last: bool, kind: torch.dtype) -> None:
    old = make_quantized(axes, last=last, kind=kind)
    new = quantize_like(old.dequantize().contiguous(), old)
    assert torch.equal(new.int_repr(), old.int_repr())
    assert (new.dtype, new.q_scale(), new.q_zero_point()) == (kind, old.q_scale(), old.q_zero_point())
    assert new.stride() == old.stride()


def test_values_are_rounded_to_steps_and_clipped_to_the_range() -> None:
    old = make_quantized()  # 0.01 * (0 - 60) to 0.01 * (255 - 60)
    new = quantize_like(torch.tensor([-7.0, -0.6, 0.004, 0.006, 1.95, 7.0]), old)
    assert new.int_repr().tolist() == [0, 0, 60, 61, 255, 255]


def test_more_variants_than_the_original_has_keep_its_memory_format() -> None:
    old = make_quantized(last=True)
    variants = old.dequantize()[:1].contiguous().repeat(7, 1, 1, 1)
    assert quantize_like(variants, old).is_contiguous(memory_format=torch.channels_last)
    assert not quantize_like(variants, make_quantized()).is_contiguous(memory_format=torch.channels_last)


def test_other_tensors_are_not_converted() -> None:
    observation = run_with_hooks(nn.Sequential(nn.Identity()), ["0"], torch.ones(2, 3, dtype=torch.float64))
    assert observation.calls["0"][0].dtype == torch.float64


def test_a_quantized_tensor_is_the_main_tensor_and_its_substitute_is_quantized() -> None:
    old, other = make_quantized(), torch.ones(2)
    structure = {"count": torch.tensor([1, 2]), "maps": (old, other)}
    assert find_main_tensor(structure) is old
    new = replace_main_tensor(structure, torch.zeros(1, 3, 4, 5, requires_grad=True))
    assert new["maps"][1] is other
    assert new["maps"][0].is_quantized
    assert not new["maps"][0].dequantize().any()
    assert replace_main_tensor(structure, old.clone())["maps"][0].q_scale() == old.q_scale()
    assert replace_main_tensor([other], old.dequantize())[0].is_floating_point()
