"""Fixtures of the tests of evidence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.evidence.small_models import MODELS


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def model_and_layer(request: pytest.FixtureRequest) -> tuple[nn.Module, str]:
    make, layer = request.param
    return make(), layer


@pytest.fixture
def backward_passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with every backward pass, by the number of tensors that it differentiates."""
    ran: list[int] = []
    real = torch.autograd.grad

    def count_and_run(outputs: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        ran.append(len(inputs))
        return real(outputs, inputs, *args, **options)

    monkeypatch.setattr(torch.autograd, "grad", count_and_run)
    return ran
