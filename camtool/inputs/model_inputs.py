"""Arguments of the model: calls with several inputs, and which of the inputs is the image to explain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, combinations
from numbers import Integral
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from camtool.arguments.message_parts import suggest_names
from camtool.errors import CamtoolError, ForwardError, ImageError, LayerError, TargetError
from camtool.hooks import tracing
from camtool.hooks.model_passes import run_model
from camtool.hooks.state.guard import guard
from camtool.hooks.structures import nested_tensors
from camtool.hooks.structures.caches import remember_for_model
from camtool.inputs import image_files
from camtool.inputs.formats.file_image import FileImage
from camtool.layers.selection import depends_on_image, find_layers
from camtool.outputs.class_scores import UserScore, find_logits

# Scores of an image alone and in a batch differ by less, relative to the largest, also in half precision.
_BATCH_ERROR = 1e-2

# The position or the name of an argument.
Key: TypeAlias = int | str


class Inputs:
    """Several arguments for a model, and which of them is the image to explain.

        camtool.explain(model, camtool.Inputs(left, right, image=1))
        camtool.explain(model, {"pixel_values": images, "mask": masks})

    A dictionary stands for keyword arguments alone. If the image is a batch ``(N, C, H, W)``, every tensor whose first
    axis has length N is split along with the images; anything else (a number, a text, a table of constants) is passed
    unchanged. If the image is a single one ``(C, H, W)``, every tensor but a scalar gets a batch axis too. Two texts
    beside two images may be shared or a pair with each: the model is run on single images to find out, unless they
    are named in ``shared``. A PIL image, an array of uint8 and
    the path of an image file are prepared like any image, and so is the argument that ``image`` names.

    Attributes:
        entries: The arguments by position and by name.
        image: The position or the name of the image. ``None`` for the only one; if there are several, for the first
            that the layer depends on at the explained call. If it is given and ``call_index`` is not, the explained
            call of a layer that ran several times is the last that depends on this image.
        shared: Position or name, or several, of arguments that are the same for all images. They are passed unchanged.

    Raises:
        CamtoolError: There is no argument, or ``image`` or ``shared`` names one that does not exist.
    """

    def __init__(self, *args: Any, image: Key | None = None, shared: Key | Sequence[Key] = (), **keywords: Any) -> None:
        entries: dict[Key, Any] = dict(enumerate(args))
        entries.update(keywords)
        _check_keywords(entries, image)
        self._set_entries(entries, image, shared)

    @classmethod
    def from_user(cls, img: Inputs | Mapping[str, Any], image: Key | None = None) -> Inputs:
        """Return inputs or a dictionary as inputs; ``image`` overrides theirs.

        Raises:
            CamtoolError: A dictionary has a key that is no name, or ``image`` is none of the entries.
        """
        if isinstance(img, Inputs):
            entries: dict[Any, Any] = img.entries
            own_image, shared = img.image, img.shared
        else:
            entries, own_image, shared = dict(img), None, ()
            unnamed = [key for key in img if not isinstance(key, str)]
            if unnamed:
                raise CamtoolError(f"img has the key {unnamed[0]!r}; give names of arguments, or camtool.Inputs(...).")
        # The constructor would take an argument of the model that is called "image" for the key of the image.
        inputs = cls.__new__(cls)
        inputs._set_entries(dict(entries), own_image if image is None else image, shared)
        return inputs

    def replace_entries(self, entries: Mapping[Key, Any]) -> Inputs:
        """Return the same inputs with other values of the entries."""
        inputs = Inputs.__new__(Inputs)
        inputs._set_entries(dict(entries), self.image, self.shared)
        return inputs

    def _set_entries(self, entries: dict[Key, Any], image: Key | None, shared: Key | Sequence[Key]) -> None:
        self.entries, self.image = entries, image
        self.shared: tuple[Key, ...] = (shared,) if isinstance(shared, (int, Integral, str)) else tuple(shared)
        if not entries:
            raise CamtoolError("img holds no arguments; give the model's inputs, by position or by name.")
        _check_no_patches(entries)
        named = [("image", key) for key in (image,) if key is not None] + [("shared", key) for key in self.shared]
        for argument, key in named:
            if key not in entries:
                hint = suggest_names(str(key), map(str, entries))
                raise CamtoolError(f"{argument}={key!r} is none of the inputs: {_format_keys(entries)}.{hint}")

    def find_image_candidates(self) -> list[Key]:
        """Return the keys of the entries that may be the image.

        That is the entry that the user named; else image files, PIL images and arrays of uint8; else the floating
        tensors with the most axes, of which only those with three channels count if there are any: a mask has one.

        Raises:
            ImageError: There is none.
        """
        if self.image is not None:
            return [self.image]
        own = {key: value for key, value in self.entries.items() if key not in self.shared}
        unprepared = [key for key, value in own.items() if is_unprepared_image(value)]
        candidates = unprepared or _find_largest_tensors(own)
        if not candidates:
            raise ImageError(
                f"img: none of {_format_keys(self.entries)} is an image, which is a floating tensor (N, C, H, W), a "
                "PIL image, a uint8 array or a path; name another with image=."
            )
        return candidates


def _find_largest_tensors(entries: Mapping[Key, Any]) -> list[Key]:
    """Return the keys of floating tensors with the most axes, at least two; if some have three channels, of these."""
    found = ((key, nested_tensors.find_main_tensor(value)) for key, value in entries.items())
    tensors = [(key, tensor) for key, tensor in found if tensor is not None]
    most = max((tensor.ndim for _, tensor in tensors), default=0)
    if most < 2:
        return []
    largest = [(key, tensor) for key, tensor in tensors if tensor.ndim == most]
    channel_axis = 1 if most > 3 else 0
    return [key for key, tensor in largest if tensor.shape[channel_axis] == 3] or [key for key, _ in largest]


def is_unprepared_image(value: object) -> bool:
    """Check whether an argument is an image that has to be read and transformed; a text is one if it ends as a file."""
    if isinstance(value, np.ndarray):
        return value.dtype == np.uint8 and value.ndim in (2, 3)
    is_file = isinstance(value, (str, PathLike)) and image_files.has_image_suffix(value)
    return is_file or isinstance(value, (Image.Image, FileImage))


def find_shared_entries(model: nn.Module, entries: Mapping[Key, Any], image: Key) -> tuple[Key, ...]:
    """Return the keys of inputs that all images share, although they have as many rows as there are images.

    Two images beside two texts are no pairs, and only the model knows. So the first and the last image run alone, with
    their row and with all rows: what gives the same scores as all images at once is how the model takes the input. The
    answer is cached for the model.

    Args:
        model: Any module.
        entries: The inputs of a batch.
        image: The key of the image.

    Raises:
        ImageError: Neither gives the same scores.
    """
    count = len(nested_tensors.find_tensors(entries[image])[0])
    others = {key: nested_tensors.find_tensors(value) for key, value in entries.items() if key != image}
    doubtful = [key for key, own in others.items() if any(tensor.ndim and len(tensor) == count for tensor in own)]
    if count < 2 or not doubtful:
        return ()
    question = "shared", image, count, nested_tensors.describe_shapes(entries)
    return remember_for_model(model, question, lambda: _try_shared(model, entries, count, doubtful))


def _try_shared(model: nn.Module, entries: Mapping[Key, Any], count: int, doubtful: Sequence[Key]) -> tuple[Key, ...]:
    choices = chain.from_iterable(combinations(doubtful, size) for size in range(len(doubtful) + 1))
    alone = {chosen: _score_alone(model, entries, count, 0, chosen) for chosen in choices}
    possible = [chosen for chosen, scores in alone.items() if scores is not None]
    if possible in ([], [()]):
        return ()
    whole = _score(model, entries)
    if whole is None or len(whole) != count:
        return ()
    for chosen in possible:
        last = _score_alone(model, entries, count, count - 1, chosen)
        if _is_close(alone[chosen], whole[:1]) and _is_close(last, whole[-1:]):
            return chosen
    raise ImageError(
        f"img: it is not certain which of {_format_keys({key: entries[key] for key in doubtful})} have a row for each "
        f"of the {count} images: an image alone has other scores than in the batch. Name what all images share, "
        f"camtool.Inputs(..., shared=[{doubtful[0]!r}]), or give one image at a time."
    )


def _score_alone(
    model: nn.Module, entries: Mapping[Key, Any], count: int, index: int, shared: Sequence[Key]
) -> Tensor | None:
    """Return the scores ``(1, ...)`` of one image with its row of all inputs but some; ``None`` if there are none."""

    def select(tensor: Tensor) -> Tensor:
        return tensor[index : index + 1] if tensor.ndim and len(tensor) == count else tensor

    alone = {key: arg if key in shared else nested_tensors.map_tensors(arg, select) for key, arg in entries.items()}
    scores = _score(model, alone)
    return scores if scores is not None and len(scores) == 1 else None


def _score(model: nn.Module, inputs: nested_tensors.ModelInputs) -> Tensor | None:
    # The model may fail on rows that do not fit, or return detections.
    with suppress(ForwardError, TargetError), guard(model), torch.no_grad():
        return find_logits(run_model(model, inputs))
    return None


def _is_close(alone: Tensor | None, row: Tensor) -> bool:
    if alone is None or alone.shape != row.shape:
        return False
    return torch.allclose(alone.float(), row.float(), rtol=_BATCH_ERROR, atol=_BATCH_ERROR * float(row.abs().max()))


def select_image_input(
    model: nn.Module,
    candidates: Mapping[Key, nested_tensors.ModelInputs],
    layers: Sequence[str] | None,
    call_index: int | None,
    score: UserScore | None = None,
) -> tuple[Key, int]:
    """Return the first of several images that a layer depends on, and the index of the call that does.

    The answer is cached for the model, as :mod:`camtool.hooks.structures.caches` describes.

    Args:
        model: Any module.
        candidates: Key of an image → what the model is called with, that image first.
        layers: Dotted names; ``None`` for the best layer for each image.
        call_index: The call of the layers; ``None`` for the last that depends on an image.
        score: The score that the best layer must influence, see :func:`camtool.layers.survey.find_candidates`.

    Raises:
        LayerError: The layers depend on none of the images at the call, or they do not fit.
    """
    shapes = tuple((key, _get_image_shape(inputs)) for key, inputs in candidates.items())
    asked, score_key = None if layers is None else tuple(layers), None if score is None else score.key
    question = "image", shapes, asked, call_index, score_key

    def try_candidates() -> tuple[Key, int]:
        """Run a forward pass for each call and candidate until the layers depend on one."""
        first, inputs = next(iter(candidates.items()))
        calls = _iterate_calls(model, inputs, layers) if call_index is None else (call_index,)
        for call in calls:
            for key, candidate in candidates.items():
                if depends_on_image(model, candidate, layers, call_index=call, score=score):
                    return key, call
        # If the layers do not fit at all, this raises an error that says why.
        last = -1 if call_index is None else call_index
        names = [layer.name for layer in find_layers(model, inputs, layers, call_index=last, score=score)]
        when = "" if call_index is None else f" at call_index={call_index}"
        raise LayerError(
            f"layer {' + '.join(names)} does not depend on input {first!r}{when}; name the layer that sees it with "
            "layer=, another of its calls with call_index=, or another input with image=."
        )

    return remember_for_model(model, question, try_candidates)


def _iterate_calls(model: nn.Module, inputs: nested_tensors.ModelInputs, layers: Sequence[str] | None) -> range:
    """Return the call indices of some layers, or of any, from the last (-1) back to the first."""
    names = Counter(call.name for call in tracing.trace(model, inputs) if layers is None or call.name in layers)
    return range(-1, -max(names.values(), default=1) - 1, -1)


def _get_image_shape(inputs: nested_tensors.ModelInputs) -> tuple[int, ...] | None:
    tensor = nested_tensors.find_main_tensor(inputs)
    return None if tensor is None else tuple(tensor.shape[1:])


def _check_no_patches(entries: Mapping[Key, Any]) -> None:
    """Check that the image is no list of patches, as processors of NaFlex models such as SigLIP 2 return it.

    Raises:
        ImageError: It is one, so there are no pixels to draw a map on.
    """
    patches = entries.get("pixel_values")
    if "spatial_shapes" in entries and isinstance(patches, Tensor) and patches.ndim < 4:
        raise ImageError(
            f"img: pixel_values has shape {tuple(patches.shape)} and comes with spatial_shapes: the processor of a "
            "NaFlex model, e.g. SigLIP 2, has cut the image into a list of patches. Wrap the model in a module that "
            "takes images (N, 3, H, W) and makes this list itself, see docs/inputs-and-targets.md."
        )


def _check_keywords(entries: Mapping[Key, Any], image: object) -> None:
    """Check that ``image`` is the key of an input, and that ``picture``, its former name, is not such a key.

    Raises:
        CamtoolError: An image came as ``image``, or a key as ``picture``.
    """
    if image is not None and not isinstance(image, (Integral, str)):
        raise CamtoolError(
            f"image= names the input to explain by its position or name; {type(image).__name__} came. To pass an "
            "argument that the model calls 'image', give a dictionary: {'image': ..., ...}."
        )
    former = entries.get("picture")
    if isinstance(former, (Integral, str)) and former in entries:
        raise CamtoolError(f"picture= is called image= here: camtool.Inputs(..., image={former!r}).")


def _format_keys(keys: Iterable[object]) -> str:
    return ", ".join(map(repr, keys))
