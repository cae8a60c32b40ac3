"""Torch's exporter, which describes its operators once for all exports of a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest


@contextmanager
def describe_operators_once() -> Iterator[None]:
    """Keep what every export finds out anew, the same for all models.

    Each parses the source of a thousand operators, and looks a hundred times for the operators of torch that are made
    of others.
    """
    import torch._export.utils as utilities
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    describe = cache(ONNXRegistry.from_torchlib)

    def copy_description(*args: Any, **options: Any) -> ONNXRegistry:
        registry, described = ONNXRegistry(), describe(*args, **options)
        vars(registry).update(vars(described))
        registry.functions = {name: [*known] for name, known in described.functions.items()}
        return registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(copy_description))
        patch.setattr(utilities, "_materialize_cpp_cia_ops", cache(utilities._materialize_cpp_cia_ops))
        yield
