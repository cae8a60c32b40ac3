"""Torch divides no operation around an engine among threads if the layer is small.

Threads of torch wait in a loop after such an operation, and keep the cores from the engine for longer than a small
model runs. The time itself is measured in ``python -m benchmarks engines``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import camtool
from camtool.evidence.evidence import gather_evidence
from camtool.evidence.forward_pass import run_forward_pass
from camtool.layers.selection import find_layers
from camtool.targets import ClassScore

_GRAIN = 32_768
"""The number of elements from which on torch divides an operation, ``at::internal::GRAIN_SIZE``."""

_COPIES_NOTHING = ("detach", "view", "unbind", "unsqueeze", "select", "alias", "lift_fresh", "slice", "as_strided")


class _LargeOperations(TorchDispatchMode):
    """Collects the names of operations on large tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        largest = max((each.numel() for each in tree_leaves((args, result)) if isinstance(each, Tensor)), default=0)
        name = function._schema.name.partition("::")[2]
        if largest >= _GRAIN and name not in _COPIES_NOTHING:
            self.names.append(name)
        return result


def _build_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)]
    return nn.Sequential(*layers).eval()


def test_an_explanation_by_an_engine_has_no_large_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMTOOL_CACHE", str(tmp_path))
    image = torch.randn(1, 3, 224, 224)
    explainer = camtool.Explainer(_build_model(), engine="onnxruntime", layer="1")
    for _ in range(2):  # the first calls compile and compare
        explainer(image, [1])
    with _LargeOperations() as operations:
        explainer(image, [1])
    assert operations.names == []
    with _LargeOperations() as operations:  # what is counted
        image.amax()
    assert operations.names == ["amax"]


@pytest.mark.parametrize(("rows", "nonzero"), [(1, 0), (1, 49_999), (1, None), (3, 20_000), (3, None)])
def test_zero_gradients_are_found_wherever_the_values_are(rows: int, nonzero: int | None) -> None:
    weight = torch.zeros(50_000)
    if nonzero is not None:
        weight[nonzero] = 1

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 50, 1)

        def forward(self, x: Tensor) -> Tensor:
            score = self.conv(x).flatten(1) @ weight
            return torch.stack([score, -score], 1)

    model, images = Net().eval(), torch.randn(rows, 1, 20, 50)
    forward_pass = run_forward_pass(model, images, find_layers(model, images, ["conv"]))
    evidence = gather_evidence(forward_pass, [ClassScore(0)] * rows)[0]
    assert evidence.has_zero_gradient == [nonzero is None] * rows
