"""Prepared inputs, and batches of them for one forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from camtool.arguments.messages import format_count
from camtool.errors import ImageError
from camtool.geometry.crop_and_resize import Geometry
from camtool.hooks.private_torch import get_storage_id
from camtool.hooks.structures import nested_tensors
from camtool.outputs.class_scores import UserScore
from camtool.rendering.views import View
from camtool.warning_codes import MapWarning

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False, repr=False)
class PreparedInput:
    """One image, signal, volume or clip as the model receives it.

    Attributes:
        tensor: ``(C, *size)``, the model's input, on the model's device.
        view: The input as pixels, and the placement of maps on it.
        notes: What the user should know about the preparation, one sentence each.
        black: ``(C,)``, the value of a black pixel in ``tensor``; ``None`` if the normalization is unknown.
        white: ``(C,)``, the value of a white pixel.
        is_photo: True if the transform made ``tensor`` from ``photo``, and would make it again.
    """

    tensor: Tensor
    view: View
    notes: tuple[MapWarning, ...] = ()
    black: Tensor | None = None
    white: Tensor | None = None
    is_photo: bool = False

    def __repr__(self) -> str:
        noted = f", {format_count(len(self.notes), 'note')}" if self.notes else ""
        return f"<PreparedInput {tuple(self.tensor.shape)}{noted}>"

    @property
    def photo(self) -> NDArray[np.uint8]:
        """``(H, W, 3)`` uint8, the pixels of an image."""
        return self.view.photo

    @property
    def geometry(self) -> Geometry:
        """The crop and resize that made the tensor from the image.

        Raises:
            ImageError: The input is no image.
        """
        if self.view.geometry is None:
            raise ImageError(f"img: this function takes images; a {self.view.kind} came.")
        return self.view.geometry


@dataclass(frozen=True, eq=False)
class InputBatch:
    """Inputs for one forward pass.

    Attributes:
        items: One or more, of one data kind and one shape.
        inputs: What the model is called with: a tensor ``(N, C, *size)``, or a mapping whose first entry it is.
        call_index: The call of the layers that is explained; ``None`` if the user left it open.
        score: The score that the layers must influence; ``None`` for the model's top score.
    """

    items: Sequence[PreparedInput]
    inputs: nested_tensors.ModelInputs
    call_index: int | None = None
    score: UserScore | None = None

    @classmethod
    def from_prepared(
        cls, items: Sequence[PreparedInput], call_index: int | None = None, score: UserScore | None = None
    ) -> InputBatch:
        """Return a batch of inputs for a model that takes one tensor."""
        if len(items) == 1:
            return cls(items, items[0].tensor[None], call_index, score)  # a view: a single input is not copied
        return cls(items, _stack([item.tensor for item in items]), call_index, score)

    def split(self, size: int) -> Iterator[InputBatch]:
        """Yield batches of at most ``size`` items, in order."""
        for start in range(0, len(self.items), size):
            yield self.select(slice(start, start + size))

    def select(self, part: slice) -> InputBatch:
        """Return a part of the batch."""
        inputs = nested_tensors.map_batch(self.inputs, lambda tensor: tensor[part])
        return InputBatch(self.items[part], inputs, self.call_index, self.score)


def group_into_batches(items: Iterable[PreparedInput], size: int) -> Iterator[list[PreparedInput]]:
    """Yield runs of at most ``size`` inputs that one tensor can hold, in order."""
    run: list[PreparedInput] = []
    current: tuple[object, ...] = ()
    for item in items:
        # All items of a batch share one value of black in a forward pass, so all have it or none.
        of_item = item.tensor.shape, item.tensor.dtype, item.black is None
        if run and of_item != current:
            yield run
            run = []
        run.append(item)
        current = of_item
        if len(run) == size:
            yield run
            run = []
    if run:
        yield run


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    """Return two prepared inputs or more as a batch."""
    whole = _find_whole(tensors)
    if whole is not None:
        return whole
    if any(each.device.type != "cpu" or each.dtype == torch.bfloat16 or each.requires_grad for each in tensors):
        return torch.stack(list(tensors))
    # Numpy copies, as torch would use all cores: its threads go on to wait for work for some milliseconds, and would
    # take the cores from an engine. Torch makes the memory, which is aligned as its kernels like it.
    batch = torch.empty(len(tensors), *tensors[0].shape, dtype=tensors[0].dtype, device="cpu")
    np.stack([each.numpy() for each in tensors], out=batch.numpy())
    return batch


def _find_whole(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return the batch that tensors of one shape are the entries of, in order, so that it need not be copied."""
    first, second = tensors[0], tensors[1]
    step = second.storage_offset() - first.storage_offset()
    memory = get_storage_id(first)
    if memory is None or step < first.numel() or any(each.requires_grad for each in tensors):
        return None
    for place, each in enumerate(tensors):
        offset = first.storage_offset() + place * step
        if (get_storage_id(each), each.storage_offset(), each.stride()) != (memory, offset, first.stride()):
            return None
    return first.as_strided((len(tensors), *first.shape), (step, *first.stride()))
