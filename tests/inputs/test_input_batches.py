"""Batches of prepared inputs: one tensor of several, without a copy if they are the entries of one already."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from camtool.geometry.crop_and_resize import Geometry
from camtool.inputs.prepared_inputs import InputBatch, PreparedInput
from camtool.rendering.views import Photo

BATCH = torch.rand(5, 3, 6, 4, generator=torch.Generator().manual_seed(0))


def make_batch(tensors: list[Tensor]) -> Tensor:
    """Return the input of the model for some prepared tensors."""
    view = Photo(torch.zeros(6, 4, 3, dtype=torch.uint8).numpy(), Geometry.whole(6, 4))
    inputs = InputBatch.from_prepared([PreparedInput(each, view) for each in tensors]).inputs
    assert isinstance(inputs, Tensor)
    return inputs


@pytest.mark.parametrize(
    "select",
    [
        lambda batch: batch,
        lambda batch: batch[1:4],
        lambda batch: batch[::2],
        lambda batch: batch.to(memory_format=torch.channels_last),
        lambda batch: batch[..., :2],
    ],
    ids=["whole", "part", "every second", "channels last", "a crop"],
)
def test_the_entries_of_a_batch_are_not_copied(select: Callable[[Tensor], Tensor]) -> None:
    batch = select(BATCH)
    found = make_batch(list(batch))
    assert torch.equal(found, batch)
    assert found.data_ptr() == batch.data_ptr()
    assert found.stride() == batch.stride()


@pytest.mark.parametrize(
    "select",
    [
        lambda batch: [batch[1], batch[0], batch[2]],
        lambda batch: [batch[0], batch[1], batch[3]],
        lambda batch: [batch[0], batch[0], batch[0]],
        lambda batch: [batch[0], batch[1], batch[2].clone()],
        lambda batch: list(batch[:1].expand(3, 3, 6, 4)),
        lambda batch: list(batch.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)),
    ],
    ids=["other order", "a gap", "one thrice", "other memory", "expanded", "mixed in memory"],
)
def test_other_tensors_are_copied(select: Callable[[Tensor], list[Tensor]]) -> None:
    tensors = select(BATCH)
    found = make_batch(tensors)
    assert torch.equal(found, torch.stack(tensors))
    assert found.data_ptr() not in {each.data_ptr() for each in tensors}


def test_tensors_that_require_a_gradient_keep_their_graph() -> None:
    batch = BATCH.clone().requires_grad_()
    assert make_batch(list(batch)).requires_grad
