"""The argument ``batch_size``: no forward pass of any method has more rows than it says."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import camtool
from camtool.layers.layouts import Layer
from camtool.methods import METHODS, WRAPPERS
from camtool.targets import Detection
from tests.methods.test_all_methods import FEWER, IMAGES, suited
from tests.methods.test_drise import FEW, Queries

FEWER = {**FEWER, "opticam": {"steps": 3}}
"""Options as in the tests of all methods; Adam makes rounding larger at each step."""

BY_TEXT = [name for name, method in METHODS.items() if "text" in method.needs]


def explain(model: nn.Module, targets: list[Any], batch_size: int, **options: Any) -> tuple[list[Tensor], int]:
    """Return the maps of two images, and the most rows that any part of the model got or returned."""
    model, rows = copy.deepcopy(model).eval(), [0]  # a copy, of which no earlier call found anything out

    def count_rows(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        rows.extend(len(tensor) for tensor in (*inputs, output) if isinstance(tensor, Tensor))

    for module in model.children():
        module.register_forward_hook(count_rows)
    images = torch.rand(2, *IMAGES, generator=torch.Generator().manual_seed(1))
    results = camtool.explain(model, images, [targets, targets], batch_size=batch_size, **options)
    return [torch.from_numpy(result.raw) for of_image in results for result in of_image], max(rows)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "drise" and name not in BY_TEXT])
def test_no_pass_has_more_rows(name: str) -> None:
    torch.manual_seed(0)
    model, layer = suited(name)
    options = {"method": name, "layer": layer.name, **FEWER.get(name, {})}
    one_by_one, rows = explain(model, [0, 1], 1, **options)
    assert rows == 1
    maps, _ = explain(model, [0, 1], 32, **options)
    assert_close(one_by_one, maps, rtol=1e-3, atol=1e-5)
    assert explain(model, [0, 1], 3, **options)[1] <= 3


def test_no_pass_on_a_detector_has_more_rows() -> None:
    options = {"method": "drise", **FEW}
    one_by_one, rows = explain(Queries(), [Detection(0, confidence=0)], 1, **options)
    maps, together = explain(Queries(), [Detection(0, confidence=0)], 32, **options)
    assert rows == 1
    assert together == 32
    assert_close(one_by_one, maps, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("by", WRAPPERS)
def test_no_pass_of_a_wrapped_method_has_more_rows(by: str) -> None:
    torch.manual_seed(0)
    model, layer = suited("gradcam")
    if WRAPPERS[by].needs:  # of an operation behind the layer
        model, layer = nn.Sequential(model, nn.SiLU()), Layer(f"0.{layer.name}", layer.layout)
    options = {"method": f"{by}:gradcam", "layer": layer.name}
    one_by_one, rows = explain(model, [0, 1], 1, **options)
    assert rows == 1
    assert_close(one_by_one, explain(model, [0, 1], 32, **options)[0], rtol=1e-3, atol=1e-5)
