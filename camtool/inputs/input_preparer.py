"""Preparation: from the images that the user gave to the tensors that the model receives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from os import PathLike
from typing import Any, TypeAlias
from weakref import proxy

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from camtool.arguments.message_parts import add_article
from camtool.errors import CamtoolError, ImageError
from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.torchvision_transforms import read_geometry
from camtool.geometry.transform_output import unwrap_image
from camtool.hooks.model_passes import ASSUMED_SIZES
from camtool.hooks.structures import modules, nested_tensors
from camtool.hooks.structures.caches import cached_property
from camtool.inputs import accepted_inputs, image_files, prepared_inputs
from camtool.inputs.accepted_inputs import SHAPE_TEXTS, SPATIAL_AXES, DataKind
from camtool.inputs.formats.file_image import FileImage
from camtool.inputs.formats.reading_options import ReadingOptions
from camtool.inputs.model_inputs import Inputs, Key, find_shared_entries, is_unprepared_image, select_image_input
from camtool.inputs.prepared_inputs import InputBatch, PreparedInput, ValueRange, build_view, group_into_batches
from camtool.layers.image_tokens_in_text import TILED_IMAGE
from camtool.models import Preprocessing, Transform, declared_properties
from camtool.models.function_models import FunctionModel
from camtool.models.image_tiles import TILES
from camtool.models.preprocessing import build_assumed_transform
from camtool.models.vision_language import VisionLanguageModel
from camtool.outputs.class_scores import UserScore
from camtool.rendering.views import Photo
from camtool.warning_codes import MapWarning

# One image or a batch: a tensor, a prepared input, or any source of :func:`camtool.inputs.image_files.read_image`.
Source: TypeAlias = "image_files.ImageSource | Tensor | PreparedInput"

_ASSUMED_TRANSFORM = (
    "No transform was given, so {size} and the normalization of ImageNet were assumed. If the model was trained on "
    "images prepared otherwise, pass transform=, e.g. camtool.preprocessing(size=..., mean=..., std=...) (--size, "
    "--mean and --std, or --transform)."
)
_MADE_GRAY = MapWarning("The model takes one channel, so the image was converted to gray.", "made-gray")

# Geometries that a preparer keeps, one for each image size, as reading one may run the transform several times. Most
# folders of photos have few sizes; one of crops has too many to keep.
_GEOMETRIES = 8

# Most pixels to which a transform may scale a photo before it crops it.
_MOST_SCALED = 100_000_000

# Longer side that is kept of a longer photo, in lengths of the shorter one.
_KEPT_LENGTHS = 32

# Default transforms that a preparer keeps: one for RGB and one for gray, as a user may exchange the first layer.
_DEFAULT_TRANSFORMS = 2

_DEFAULT_READING = ReadingOptions()


class InputPreparer:
    """Prepares what the user gave as :class:`PreparedInput` and :class:`InputBatch`.

    Args:
        model: Decides on which device tensors are and, for images, their floating type.
        transform: From PIL image to tensor; ``None`` if the user gave none.
        device: The device of the tensors; by default the model's.
        kind: The data kind of the inputs; by default inferred from the model's convolutions and the inputs' shapes.
        reading: How files are read: bands, contrast, slice.

    Raises:
        CamtoolError: ``device`` is unknown, or is not the model's; or a reading option is wrong.
    """

    def __init__(
        self,
        model: nn.Module,
        transform: Transform | None,
        device: torch.device | str | None,
        *,
        kind: DataKind | None = None,
        reading: Mapping[str, Any] | ReadingOptions | None = None,
    ) -> None:
        self._reading = _DEFAULT_READING if reading is None else ReadingOptions.from_user(reading)
        # Some towers of vision-language models have 3-D convolutions, as they read videos too.
        own_kind: DataKind | None = "image" if isinstance(model, VisionLanguageModel) else None
        self._model, self._transform, self._kind = model, transform, own_kind if kind is None else kind
        self._device = accepted_inputs.choose_device(model, device)
        ASSUMED_SIZES.pop(model, None)  # of an earlier call
        self._build_assumed_transform = lru_cache(_DEFAULT_TRANSFORMS)(build_assumed_transform)
        this = proxy(self)  # a reference to itself would keep it, and the model, until the next garbage collection
        self._read_geometry = lru_cache(_GEOMETRIES)(lambda size: read_geometry(this._get_image_transform()[0], size))

    # ------------------------------------------------------------------------------------------------ single inputs

    def prepare(self, source: Source) -> PreparedInput:
        """Prepare one input.

        Args:
            source: An image in any form, or a tensor. A signal, a volume or a clip may be an array too. Floating
                tensors ``(C, h, w)`` without a transform are taken as the model's input, and so are signals, volumes
                and clips.

        Raises:
            ImageError: The source cannot be read, or the transform made no input of it.
            GeometryError: The transform is more than a crop and a resize.
        """
        kind = accepted_inputs.check_kind(self._model, source, self._kind)
        return self._prepare_kind(source, kind, is_prepared=False)

    def iterate_inputs(self, img: Any) -> Iterator[PreparedInput]:
        """Yield the inputs of a list or of a batch, each prepared when its turn comes; or the only one.

        Raises:
            ImageError: As :meth:`prepare`; or an entry of a list is a batch.
        """
        return self._iterate(img)[1]

    def is_batch(self, img: Any) -> bool:
        """Check whether a list came, or a tensor or an array with an axis for several inputs."""
        if isinstance(img, (list, tuple)):
            return True
        kind = accepted_inputs.check_kind(self._model, img, self._kind)
        return isinstance(img, (Tensor, np.ndarray)) and img.ndim == SPATIAL_AXES[kind] + 2

    def _iterate(self, img: Any) -> tuple[bool, Iterator[PreparedInput]]:
        """Return whether a list came, or a tensor or an array of several inputs; and the inputs."""
        if isinstance(img, (list, tuple)):
            return True, map(self._prepare_entry, img)
        # The kind is that of the whole batch: one of its inputs alone might be taken for another kind.
        kind = accepted_inputs.check_kind(self._model, img, self._kind)
        if not isinstance(img, (Tensor, np.ndarray)) or img.ndim != SPATIAL_AXES[kind] + 2:
            return False, iter([self._prepare_kind(img, kind, is_prepared=False)])
        is_prepared = isinstance(img, Tensor)
        return True, (self._prepare_kind(source, kind, is_prepared=is_prepared) for source in img)

    def _prepare_entry(self, source: Any) -> PreparedInput:
        """Prepare an entry of a list, which is one input.

        Raises:
            ImageError: The entry is a list or a batch.
        """
        if isinstance(source, (list, tuple)) or self.is_batch(source):
            given = f"a batch {tuple(source.shape)}" if hasattr(source, "shape") else "a list"
            raise ImageError(
                f"img: an entry of the list is {given}; each entry is one image. For a model with several inputs, give "
                "camtool.Inputs(first, second)."
            )
        return self.prepare(source)

    def _prepare_kind(self, source: Any, kind: DataKind, *, is_prepared: bool) -> PreparedInput:
        if isinstance(source, PreparedInput):
            return source
        if kind != "image":
            return self._prepare_tensor(self._to_tensor(source), kind)
        if isinstance(source, Tensor):
            is_floating_3d = source.ndim == 3 and source.is_floating_point()
            if is_prepared or (is_floating_3d and self._transform is None):
                return self._prepare_tensor(source, kind)
            source = prepared_inputs.to_image_array(source)
        return self._prepare_image(source)

    def _prepare_tensor(self, tensor: Tensor, kind: DataKind) -> PreparedInput:
        """Prepare a tensor that is the model's input already."""
        if tensor.ndim != SPATIAL_AXES[kind] + 1 or not tensor.is_floating_point():
            shape = SHAPE_TEXTS[SPATIAL_AXES[kind]]
            hint = "" if tensor.is_floating_point() else " Give images one by one, or tensor.float() as in training."
            raise ImageError(
                f"img: a prepared {kind} is a floating tensor {shape}; {tensor.dtype} {tuple(tensor.shape)} came.{hint}"
            )
        given, transform = self._to_model(tensor), self._transform
        is_detector = hasattr(self._model, "transform") and modules.find_detector_transform(self._model) is not None
        if transform is None and is_detector:
            # A detector normalizes by itself, so its input holds an image's own values.
            transform = declared_properties.find_transform(self._model)
        black, white = (None, None) if transform is None else prepared_inputs.find_black_and_white(given, transform)
        values = tensor.detach().cpu()  # once, as each copy waits for a GPU
        if isinstance(self._model, FunctionModel):
            self._model.check_image(values)
        value_range = ValueRange.of_tensor(values)
        notes = prepared_inputs.find_tensor_warnings(value_range, black, white, kind)
        return PreparedInput(given, build_view(values, value_range, kind, transform), tuple(notes), black, white)

    def read(self, source: image_files.ImageSource, *, max_side: int | None = None) -> Image.Image | FileImage:
        """Read an image with the user's reading options.

        Args:
            source: The image.
            max_side: As for :func:`camtool.inputs.image_files.read_image`; bands and volumes are not reduced.

        Returns:
            A plain photo; or the values of a file if the model takes all of its bands, or volumes.

        Raises:
            ImageError: It cannot be read, or the model takes no such image.
        """
        file_image = image_files.read_file_image(source, self._reading)
        if file_image is not None and prepared_inputs.choose_kind(self._model, file_image, self._kind) is not None:
            return file_image
        given = source if file_image is None else file_image
        return image_files.read_plain(given, self._reading, max_side)

    def _prepare_values(self, file_image: FileImage) -> PreparedInput:
        """Prepare the bands of a file, or its volume, as a tensor ``(C, *size)``."""
        kind = prepared_inputs.choose_kind(self._model, file_image, self._kind) or "image"
        # A model's own transform is one of photos, but the user's may be meant for volumes.
        transform = self._transform if file_image.is_volume else self.transform
        values, geometry, notes = prepared_inputs.transform_values(file_image, transform)
        tensor = values.to(self._device, accepted_inputs.get_dtype(self._model))
        if isinstance(self._model, FunctionModel):
            self._model.check_image(tensor)
        is_unit = bool(notes)
        black, white = (tensor.new_zeros(len(tensor)), tensor.new_ones(len(tensor))) if is_unit else (None, None)
        warnings = prepared_inputs.find_tensor_warnings(ValueRange.of_tensor(tensor), black, white, kind)
        notes = (*file_image.notes, *notes, *warnings)
        return PreparedInput(tensor, prepared_inputs.build_file_view(file_image, kind, geometry), notes, black, white)

    def _prepare_image(self, source: image_files.ImageSource) -> PreparedInput:
        """Read and transform an image."""
        image = self.read(source)
        if isinstance(image, FileImage):
            return self._prepare_values(image)
        transform, notes = self._get_image_transform()
        geometry = self._read_geometry((image.height, image.width))
        made = _check_transformed(transform(self._cut_middle(image, geometry)), transform)
        if isinstance(self._model, FunctionModel):
            self._model.check_image(made)
        value_range = ValueRange.of_tensor(made)  # before it is on a GPU, for which each look waits
        tensor = made.to(self._device, accepted_inputs.get_dtype(self._model))
        black, white = prepared_inputs.find_black_and_white(tensor, transform)
        of_range = prepared_inputs.find_range_warnings(value_range, black, white) if value_range.is_large else ()
        of_photo = *image_files.get_reading_notes(image), *prepared_inputs.find_image_warnings(image, geometry)
        notes = (*of_photo, *notes, *of_range)
        view = Photo(np.asarray(image), geometry, image_files.get_origin(image))
        return PreparedInput(tensor, view, notes, black, white, is_photo=True)

    def _cut_middle(self, image: Image.Image, geometry: Geometry) -> Image.Image:
        """Return a photo; of a very long one the middle, as the whole would be scaled to gigabytes and then cropped.

        Raises:
            ImageError: The model would see something else than of the whole photo.
        """
        top, left, bottom, right = geometry.box
        scaled = image.width * image.height * math.prod(geometry.size) / abs((bottom - top) * (right - left))
        if scaled <= _MOST_SCALED:
            return image
        shorter, longer = sorted(image.size)
        # By an even number, so that the middle of the photo stays the middle of a pixel, or an edge.
        cut = max(0, longer - _KEPT_LENGTHS * shorter) // 2
        left, top = (cut, 0) if longer == image.width else (0, cut)
        middle = image.crop((left, top, image.width - left, image.height - top))
        seen = self._read_geometry((middle.height, middle.width))
        box = np.add(seen.box, (top, left, top, left))
        if seen.size != geometry.size or not np.allclose(box, geometry.box, rtol=0, atol=shorter / 100):
            raise ImageError(
                f"the photo is {image.width} x {image.height} pixels, and its preparation would enlarge it "
                f"{geometry.compute_scale():.0f} times before it is cropped; cut it into parts."
            )
        return middle

    def _to_tensor(self, source: Tensor | NDArray[Any]) -> Tensor:
        """Return an array of any numbers as a tensor of the model's floating type."""
        if isinstance(source, Tensor):
            return source
        return torch.from_numpy(np.ascontiguousarray(source)).to(accepted_inputs.get_dtype(self._model))

    def _to_model(self, tensor: Tensor) -> Tensor:
        """Move a tensor to the model's device; a floating one also gets a floating type that the model has."""
        # A subclass that only carries metadata (MONAI, fastai) makes views, which in-place layers must not write to.
        # One that holds other tensors (DTensor) is kept.
        is_plain = type(tensor) is Tensor or hasattr(tensor, "__tensor_flatten__")
        given = (tensor if is_plain else tensor.as_subclass(Tensor)).to(self._device)
        first: torch.dtype | None = getattr(next(self._model.parameters(), None), "dtype", None)
        if not given.is_floating_point() or given.dtype == first:
            return given
        # Models of mixed precision have parameters of several types, and take inputs of any of them.
        dtypes = {parameter.dtype for parameter in self._model.parameters() if parameter.is_floating_point()}
        return given if not dtypes or given.dtype in dtypes else given.to(accepted_inputs.get_dtype(self._model))

    def to_model(self, batch: Tensor) -> Tensor:
        """Return a prepared batch of images ``(N, C, H, W)`` on the model's device and in a type that it takes.

        Raises:
            ImageError: It is no floating tensor of this shape.
        """
        if not isinstance(batch, Tensor) or batch.ndim != SPATIAL_AXES["image"] + 2 or not batch.is_floating_point():
            given = f"{batch.dtype} {tuple(batch.shape)}" if isinstance(batch, Tensor) else type(batch).__name__
            raise ImageError(f"images: a floating tensor (N, C, H, W), as the model gets it, is needed; {given} came.")
        return self._to_model(batch)

    @property
    def transform(self) -> Transform | None:
        """The transform of images, the user's or the model's own; None if neither is known."""
        return self._transform or self._own_transform

    # ----------------------------------------------------------------------------------------- the transform of images

    def _get_image_transform(self) -> tuple[Transform, tuple[MapWarning, ...]]:
        """Return the transform for images, the user's or the model's own, and notes on it for the user."""
        transform = self._transform or self._own_transform
        if transform is None:
            return self._assume_transform()
        return transform, transform.notes if isinstance(transform, Preprocessing) else ()

    @cached_property
    def _own_transform(self) -> Transform | None:
        return declared_properties.find_transform(self._model)

    def _assume_transform(self) -> tuple[Transform, tuple[MapWarning, ...]]:
        """Return the default transform for the channels that the model takes now; its first layer may be a new one."""
        if isinstance(self._model, FunctionModel):
            raise ImageError(
                f"img: a photo came, but how {self._model.name} takes photos is not known; pass transform=, e.g. "
                f"{self._model.example} (--size, --mean and --std), or a tensor as it takes it."
            )
        _check_takes_photos(self._model)
        size = declared_properties.read_input_size(self._model)
        is_gray = declared_properties.count_input_channels(self._model) == 1
        sides = "224 x 224" if size is None else f"{size[0]} x {size[1]}, on which the model runs,"
        text = _ASSUMED_TRANSFORM.format(size=f"a size of {sides}")
        notes = (MapWarning(text, "assumed-transform"), *([_MADE_GRAY] if is_gray else []))
        transform = self._build_assumed_transform(size, is_gray=is_gray)
        if size is None:
            ASSUMED_SIZES[self._model] = declared_properties.find_input_size(self._model), text
        return transform, notes

    # ------------------------------------------------------------------------------------------------------ batches

    def prepare_batches(
        self,
        img: Any,
        size: int,
        *,
        image: Key | None = None,
        layers: Sequence[str] | None = None,
        call_index: int | None = None,
        score: UserScore | None = None,
        needs_layers: bool = True,
    ) -> tuple[int | None, Iterator[InputBatch]]:
        """Prepare the ``img`` of :func:`camtool.explain` in batches.

        Args:
            img: One image, a list, a tensor, several inputs of a model, or a list of these.
            size: The largest number of items in a batch.
            image: The image among several inputs of a model, by position or name.
            layers: Dotted names; ``None`` for the best layer.
            call_index: The call of the layers that is explained; ``None`` if the user left it open.
            score: The score that the layers must influence; ``None`` for the model's top score.
            needs_layers: Whether a method reads layers, so that they decide which of several inputs is explained.

        Returns:
            The number of images, ``None`` if a single one came without the axis of a batch; and the batches, each
            prepared when its turn comes.
        """

        def prepare_several(inputs: Inputs | Mapping[str, Any]) -> tuple[InputBatch, bool]:
            inputs = self._join_to_images(Inputs.from_user(inputs), image)
            key, index = inputs.find_image_candidates()[0], call_index
            if needs_layers:
                key, index = self.select_image_input(inputs, layers, index, score)
            return self.prepare_inputs(inputs, key, index, score)

        def prepare_alone(entry: Any) -> InputBatch:
            if not isinstance(entry, (Inputs, Mapping)):
                return InputBatch.from_prepared([self._prepare_entry(entry)], call_index, score)
            batch, _ = prepare_several(entry)
            if len(batch.items) != 1:
                raise ImageError(f"img: an entry of the list holds {len(batch.items)} images; each entry is one image.")
            return batch

        if isinstance(img, (Inputs, Mapping)):
            batch, is_batch = prepare_several(img)
            return len(batch.items) if is_batch else None, batch.split(size)
        if isinstance(img, (list, tuple)) and any(isinstance(entry, (Inputs, Mapping)) for entry in img):
            return len(img), map(prepare_alone, img)
        if image is not None:
            raise CamtoolError(f"image={image!r} chooses among several inputs of a model; img is a single input.")
        is_batch, items = self._iterate(img)
        batches = (InputBatch.from_prepared(group, call_index, score) for group in group_into_batches(items, size))
        return len(img) if is_batch else None, batches

    def _join_to_images(self, inputs: Inputs, image: Key | None) -> Inputs:
        """Return the inputs with images ``(N, C, H, W)``; ``image`` overrides theirs."""
        if isinstance(self._model, VisionLanguageModel):
            inputs = inputs.replace_entries(self._model.join_to_images(inputs.entries))
            if TILED_IMAGE in inputs.entries and inputs.image is None:
                image = image or TILES  # and not the thumbnail where the layer does not fit the tiles
        return Inputs.from_user(inputs, image)

    def prepare_inputs(
        self, inputs: Inputs, image: Key, call_index: int | None = None, score: UserScore | None = None
    ) -> tuple[InputBatch, bool]:
        """Prepare several inputs of a model; return the batch, and whether the image had an axis for a batch.

        Args:
            inputs: The arguments of the model.
            image: The key of the image.
            call_index: The call of the layers that is explained.
            score: See :meth:`prepare_batches`.

        Raises:
            ImageError: There is no image at this key, or the other inputs have another batch size.
        """
        made = {key: self._prepare_argument(value, is_image=key == image) for key, value in inputs.entries.items()}
        entries = {key: value.tensor if isinstance(value, PreparedInput) else value for key, value in made.items()}
        main = nested_tensors.find_main_tensor(entries[image])
        if main is None:
            raise ImageError(f"img: {image!r} holds no floating tensor, so it is no image; name another with image=.")
        # An input that is given twice is the image in one place only.
        entries |= {key: _replace_by_view(entries[key], main) for key in entries.keys() - {image}}
        kind = accepted_inputs.check_kind(self._model, main, self._kind)
        axes = SPATIAL_AXES[kind]
        others = {key: value for key, value in entries.items() if key not in (image, *inputs.shared)}
        _check_batch_sizes(image, main, kind, others)
        is_batch = main.ndim == axes + 2
        if not is_batch:
            entries = nested_tensors.map_tensors(entries, lambda tensor: tensor[None] if tensor.ndim else tensor)
        entries |= {key: _share(made[key]) for key in inputs.shared}
        if is_batch:
            shared = find_shared_entries(self._model, entries, image)
            entries |= {key: nested_tensors.SharedInput(entries[key]) for key in shared}
        items = self._prepare_items(made[image], main if is_batch else main[None], kind)
        # The main tensor of a mapping is that of its first entry.
        return InputBatch(items, {image: entries[image], **entries}, call_index, score), is_batch

    def _prepare_items(self, image: Any, batch: Tensor, kind: DataKind) -> list[PreparedInput]:
        return [image] if isinstance(image, PreparedInput) else [self._prepare_tensor(each, kind) for each in batch]

    def select_image_input(
        self, inputs: Inputs, layers: Sequence[str] | None, call_index: int | None, score: UserScore | None = None
    ) -> tuple[Key, int | None]:
        """Return the input that the layers depend on, and the index of the call that does.

        Args:
            inputs: The arguments of the model.
            layers: Dotted names; ``None`` for the best layer.
            call_index: The call that the user asked for. ``None`` stays ``None`` if the last call is the one.
            score: See :meth:`prepare_batches`.

        Raises:
            LayerError: The layers do not depend on the image that the user named, at that call.
        """
        candidates = inputs.find_image_candidates()
        others = [value for key, value in inputs.entries.items() if key != candidates[0]]
        is_only_tensor = not any(
            is_unprepared_image(entry) or nested_tensors.find_main_tensor(entry) is not None for entry in others
        )
        # A layer can depend on nothing else then, and no forward pass is needed to find out.
        if len(candidates) == 1 and is_only_tensor:
            return candidates[0], call_index
        first = {key: next(self.prepare_inputs(inputs, key)[0].split(1)).inputs for key in candidates}
        key, chosen_index = select_image_input(self._model, first, layers, call_index, score)
        return key, None if call_index is None and chosen_index == -1 else chosen_index

    def _prepare_argument(self, value: Any, *, is_image: bool) -> Any:
        """Prepare one argument of the model: an image that is not a tensor yet, or tensors for the model's device."""
        if is_unprepared_image(value) or (is_image and not isinstance(value, (Tensor, list, tuple, Mapping))):
            return self.prepare(value)
        is_array = isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating)
        return nested_tensors.map_tensors(self._to_tensor(value) if is_array else value, self._to_model)


class ReadOnDemand(Sequence[Any]):
    """A list of images whose files are read, with the options of a preparer, when they are asked for.

    Args:
        images: Paths and other images.
        preparer: Reads the paths.
    """

    def __init__(self, images: Sequence[Any], preparer: InputPreparer) -> None:
        self._images, self._preparer = images, preparer

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: Any) -> Any:
        image = self._images[index]
        return self._preparer.read(image) if isinstance(image, (str, bytes, PathLike)) else image


def _check_takes_photos(model: nn.Module) -> None:
    """Check that the convolutions of a model take two axes, and one or three channels.

    Raises:
        ImageError: They do not.
    """
    channels = accepted_inputs.list_channels(model, 2)
    kinds = (kind for kind, axes in SPATIAL_AXES.items() if accepted_inputs.list_channels(model, axes))
    kind = None if channels else next(kinds, None)
    if kind is not None:
        raise ImageError(
            f"img: an image came, but the model's convolutions take a {kind} {SHAPE_TEXTS[SPATIAL_AXES[kind]]}; "
            "give a tensor, or pass transform=."
        )
    if channels and not {0, 1, 3} & {*channels}:  # 0: a lazy one
        raise ImageError(
            f"img: a photo has 1 or 3 channels, but the model's first convolution takes {channels[0]}; give a "
            f"tensor ({channels[0]}, H, W), or pass a transform= that makes one."
        )


def _share(value: Any) -> nested_tensors.SharedInput:
    """Return an input that all images share; a prepared one gets the axis of a batch."""
    return nested_tensors.SharedInput(value.tensor[None] if isinstance(value, PreparedInput) else value)


def _replace_by_view(value: Any, tensor: Tensor) -> Any:
    """Return an input with another tensor of the same values wherever it holds the tensor itself."""
    return nested_tensors.map_tensors(value, lambda inner: inner.view_as(inner) if inner is tensor else inner)


def _check_batch_sizes(key: Key, image: Tensor, kind: DataKind, others: Mapping[Key, Any]) -> None:
    """Check the axes of an image, and that image-like inputs, with as many channels and axes, share its batch size.

    Raises:
        ImageError: It has too few axes, or one of them does not.
    """
    axes = SPATIAL_AXES[kind]
    if image.ndim < axes + 1:
        raise ImageError(
            f"img: {key!r} has shape {tuple(image.shape)}; {add_article(kind)} is {SHAPE_TEXTS[axes]}, with or "
            "without a batch axis before it; name another input with image=."
        )
    for name, other in others.items():
        is_alike = isinstance(other, Tensor) and other.is_floating_point() and other.ndim in (axes + 1, axes + 2)
        if not is_alike or other.shape[-axes - 1] != image.shape[-axes - 1]:
            continue
        differs = len(other) != len(image) if image.ndim == axes + 2 else other.ndim != image.ndim
        if differs:
            raise ImageError(
                f"img: {name!r} {tuple(other.shape)} does not match the image {key!r} {tuple(image.shape)}; give one "
                f"for each image, or mark it as the same for all images: camtool.Inputs(..., shared=[{name!r}])."
            )


def _check_transformed(output: Any, transform: Transform) -> Tensor:
    """Return the tensor ``(C, h, w)`` in what a transform returned.

    Raises:
        ImageError: There is none.
    """
    tensor = unwrap_image(output)
    tensor = torch.from_numpy(tensor) if isinstance(tensor, np.ndarray) else tensor
    if isinstance(tensor, Tensor) and tensor.ndim == 4 and len(tensor) == 1:
        tensor = tensor[0]
    if not isinstance(tensor, Tensor) or tensor.ndim != 3:
        got = f"a tensor of shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else type(output).__name__
        raise ImageError(f"transform {type(transform).__name__} returned {got}; it must return a tensor (C, h, w).")
    return tensor
