"""A folder for compiled graphs, a network, and an exporter that describes its operators once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from tests.engines.nets import build


@pytest.fixture(autouse=True, scope="session")
def _operators_are_described_once() -> Iterator[None]:
    """Each export of torch parses the source of a thousand operators again, two fifths of its time."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    describe = cache(ONNXRegistry.from_torchlib)

    def copy_description(*args: Any, **options: Any) -> ONNXRegistry:
        registry, described = ONNXRegistry(), describe(*args, **options)
        vars(registry).update(vars(described))
        registry.functions = {name: [*known] for name, known in described.functions.items()}
        return registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(copy_description))
        yield


@pytest.fixture(autouse=True, scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAMTOOL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(3)
    return build()
