"""Chunks: sizes within the memory budget."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor

from camtool.errors import MethodError
from camtool.hooks import chunks
from camtool.hooks.chunks import compute_chunk_size, iterate_chunks


@pytest.mark.parametrize(("count", "size"), [(0, 3), (1, 3), (3, 3), (7, 3), (7, 1), (7, 99)])
def test_chunks_cover_the_range_once_and_in_order(count: int, size: int) -> None:
    parts = list(iterate_chunks(count, size))
    assert [index for part in parts for index in range(count)[part]] == list(range(count))
    assert [part.stop - part.start for part in parts[:-1]] == [size] * (len(parts) - 1)
    assert all(0 < part.stop - part.start <= size for part in parts)


@pytest.mark.parametrize("size", [0, -2])
def test_a_chunk_size_below_1_raises_an_error(size: int) -> None:
    with pytest.raises(MethodError, match=rf"chunk must be 1 or more, got {size}; leave it out"):
        next(iterate_chunks(3, size))


def test_the_chunk_size_shrinks_with_the_size_of_a_variant_and_is_at_least_1() -> None:
    like, wide = torch.empty(0), torch.empty(0, dtype=torch.float64)
    assert compute_chunk_size(1024, like) == 2 * compute_chunk_size(2048, like) == 2 * compute_chunk_size(1024, wide)
    assert compute_chunk_size(1000, like) * 1000 * 4 * chunks._LIVE_COPIES <= chunks._BUDGETS["cpu"]
    assert compute_chunk_size(10**12, like) == 1
    assert compute_chunk_size(0, like) > 1


@pytest.mark.parametrize(("free", "budget"), [(2**40, 2**30), (2**28, 2**28)])
def test_a_gpu_with_little_free_memory_gets_smaller_chunks(
    monkeypatch: pytest.MonkeyPatch, free: int, budget: int
) -> None:
    numbers = {"mem_get_info": (free, 2**40), "memory_reserved": 2**29, "memory_allocated": 2**28}
    for name, number in numbers.items():
        monkeypatch.setattr(torch.cuda, name, lambda _, number=number: number)
    like = SimpleNamespace(device=torch.device("cuda"), is_cuda=True, element_size=lambda: 4)
    assert compute_chunk_size(1024, cast(Tensor, like)) == budget // (chunks._LIVE_COPIES * 1024 * 4)
