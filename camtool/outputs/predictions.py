"""Predictions image by image: split a batch's output, and bring an output to one row per image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from camtool.arguments.message_parts import format_count
from camtool.errors import TargetError
from camtool.hooks.structures.nested_tensors import map_tensors
from camtool.outputs.anchors import find_best_rows
from camtool.outputs.class_count import find_class_count
from camtool.outputs.class_scores import find_logits, is_score_table
from camtool.outputs.detections import Detections, count_query_logits, find_detection_dicts, find_detections

# The model's output for one image: class scores ``(K,)``, score planes ``(K, *size)``, or detections.
Prediction: TypeAlias = Tensor | Detections


_BAG_ADVICE = (
    " If they are one bag, wrap it so that it takes one image and the others, runs its layers on one after the other, "
    "self.layers(image) and self.layers(others), and pass camtool.Inputs(image, others, shared=[1], image=0)."
)


def get_predictions(output: Any, model: nn.Module | None = None) -> Sequence[Prediction]:
    """Return the prediction for each image, without a graph.

    Args:
        output: The model's whole output.
        model: The model. The number of classes that it declares helps to read detections.

    Raises:
        TargetError: The output holds nothing that could be explained.
    """
    if is_score_table(output):
        return output.detach()  # type: ignore[return-value]  # a tensor is a sequence of its rows
    detached = map_tensors(output, Tensor.detach)
    classes = None if model is None else find_class_count(model, count_query_logits(output))
    detections = find_detections(detached, classes)
    return find_logits(detached) if detections is None else detections  # type: ignore[return-value]


def to_batch(output: Any, image_count: int) -> Any:
    """Bring an output to one entry per image.

    A model that squeezes its output drops the axis of a single image. Some models return a list with one mapping per
    image; these become one mapping of stacked tensors.

    Raises:
        TargetError: The output is about another number of images, or holds no scores.
    """
    if is_score_table(output) and len(output) == image_count and output.numel():
        return output
    output = _restore_batch(output, image_count)
    scores = find_logits(output) if find_detections(output) is None else None
    is_complete = count_images(output) == image_count and (scores is None or scores.numel() > 0)
    if not is_complete:
        returned = f"detections in {count_images(output)}" if scores is None else f"scores {tuple(scores.shape)}"
        raise TargetError(
            f"the model returned {returned} for {format_count(image_count, 'image')}; wrap it so that it returns "
            f"scores (N, K), one row per image.{_BAG_ADVICE if count_images(output) == 1 else ''}"
        )
    return output


def _restore_batch(output: Any, image_count: int) -> Any:
    # Only a tensor can be repaired: in other structures it is not clear which tensors have lost their axis.
    if image_count == 1 and isinstance(output, Tensor):
        output = _restore_batch_axis(output)
    if _is_mapping_for_each(output, image_count):
        with torch.enable_grad():  # the tensors may be on a graph while gradients are switched off
            output = _stack_mappings(output)
    return output


def _restore_batch_axis(output: Tensor) -> Tensor:
    """Return the output for one image with the batch axis that the model may have squeezed.

    Raises:
        TargetError: The batch is the second axis.
    """
    if _has_batch_second(output):
        raise TargetError(
            f"the model returned {tuple(output.shape)} for 1 image, which has the batch behind the time steps, "
            "(T, N, K) as for CTC; wrap it so that it returns scores (N, K, T): output.permute(1, 2, 0)."
        )
    has_axis = output.ndim > 0 and len(output) == 1
    return output if has_axis else output[None]


def count_images(output: Any) -> int:
    """Return the number of images that an output is about."""
    detections = find_detections(output)
    return len(find_logits(output)) if detections is None else len(detections)


def get_image_output(output: Any, index: int, *, keep_batch: bool = False) -> Any:
    """Return one image's part of a batch's output, in the same structure.

    A tensor that does not have one entry per image, e.g. a temperature or the embeddings of texts, is returned whole.

    Args:
        output: The model's whole output.
        index: The image.
        keep_batch: Keep the batch axis, with a length of 1.
    """
    by_image: Sequence[Any] | None = find_detection_dicts(output)
    if by_image is None and find_best_rows(output) is output:
        by_image = output  # a tensor of rows for each image
    if by_image is not None:
        return [by_image[index]] if keep_batch else by_image[index]
    image_count = count_images(output)

    def select(tensor: Tensor) -> Tensor:
        if tensor.ndim == 0 or len(tensor) != image_count:
            return tensor
        return tensor[index : index + 1] if keep_batch else tensor[index]

    return map_tensors(output, select)


def split_images(output: Any, images: Sequence[int]) -> list[Any]:
    """Return the part of the output of each of some images, with a batch axis of length 1."""
    is_plain = isinstance(output, Tensor) and output.ndim > 1 and find_best_rows(output) is not output
    if is_plain and list(images) == list(range(len(output))):
        # The backward pass of a split is one concatenation, that of slices a tensor of the whole batch for each.
        return list(output.split(1))
    return [get_image_output(output, index, keep_batch=True) for index in images]


def _has_batch_second(output: Tensor) -> bool:
    """Check that an output for one image is ``(T, 1, K)``, and not scores of one image without the batch axis."""
    is_sequence = output.ndim == 3 and output.shape[1] == 1 and len(output) > 1 and output.shape[2] > 1
    return is_sequence and find_detections(output) is None


def _is_mapping_for_each(output: Any, image_count: int) -> bool:
    """Return True if an output is a list of mappings with equal keys, one per image, and not from a detector."""
    if not isinstance(output, list) or len(output) != image_count or find_detections(output) is not None:
        return False
    return all(isinstance(mapping, Mapping) and mapping.keys() == output[0].keys() for mapping in output)


def _stack_mappings(output: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
    """Return one mapping whose tensors have an axis for the images.

    Raises:
        TargetError: The tensors of one key differ in shape.
    """
    stacked: dict[Any, Any] = {}
    # Values that are not tensors, e.g. names, stay lists with one entry per image.
    for key, first in output[0].items():
        values = [mapping[key] for mapping in output]
        if not isinstance(first, Tensor):
            stacked[key] = values
        elif len({value.shape for value in values}) == 1:
            stacked[key] = torch.stack(values)
        else:
            raise TargetError(
                f"the model returned a mapping for each image, with {key!r} in several shapes; pass batch_size=1."
            )
    return stacked
