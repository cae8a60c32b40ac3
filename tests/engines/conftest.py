"""A folder for compiled graphs, a network, and an exporter that describes its operators once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from tests.engines.nets import build
from tests.helpers.exporter import describe_operators_once


@pytest.fixture(autouse=True, scope="session")
def _operators_are_described_once() -> Iterator[None]:
    with describe_operators_once():
        yield


@pytest.fixture(autouse=True, scope="package")
def _kernels_are_compiled_once(pytestconfig: pytest.Config) -> Iterator[None]:
    """Keep what the compiler of ``torch.compile`` made for the next run; its names are hashes of code and options."""
    assert pytestconfig.cache is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(pytestconfig.cache.mkdir("torchinductor")))
        yield


@pytest.fixture(autouse=True, scope="package")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAMTOOL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(3)
    return build()
