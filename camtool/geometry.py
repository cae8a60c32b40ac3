"""How a photo became the model's input, and the way back for a heatmap.

The model's input shows an upright rectangle of the photo. That rectangle is a box in continuous photo
coordinates: pixel edges lie at 0, 1, ..., W and pixel ``i`` has its centre at ``i + 0.5``. A box that reaches
beyond the photo means padding; a box whose left is greater than its right means a horizontal flip. This room
owns three things: the algebra of such boxes, reading a transform's box (exactly where the transform is known,
by probing where it is not), and laying a map on the photo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from camtool.cleanup import Cleanup
from camtool.errors import GeometryError
from camtool.lazy import cached_property
from camtool.rng import keep_generators

__all__ = ["Geometry", "averaged", "geometry_of", "interpolation", "probe", "unwrapped"]

Floats: TypeAlias = NDArray[np.floating[Any]]
Transform: TypeAlias = Callable[[Image.Image], object]


@dataclass(frozen=True)
class Geometry:
    """What part of a photo the model's input shows.

    ``Geometry.whole(H, W)`` is the start; ``resize``, ``crop``, ``pad``, ``center_crop`` and ``flip`` each
    describe one more step and return a new geometry. Sizes are (height, width) throughout.

    Attributes:
        photo: The photo's size (H, W) in pixels.
        size: The size (h, w) of the model's input.
        box: Where the input's edges (top, left, bottom, right) lie in the photo, in photo pixels.
    """

    photo: tuple[int, int]
    size: tuple[int, int]
    box: tuple[float, float, float, float]

    def __post_init__(self) -> None:
        """Refuse what no heatmap could be laid on."""
        if min(*self.photo, *self.size) < 1:
            raise GeometryError(
                f"photo and size must be at least 1 x 1 pixel, got photo {self.photo} and size {self.size}"
            )
        top, left, bottom, right = self.box
        if not np.isfinite(self.box).all() or top == bottom or left == right:
            raise GeometryError(f"box must be finite and not empty, got {self.box}")

    @classmethod
    @lru_cache(maxsize=32)
    def whole(cls, height: int, width: int) -> Geometry:
        """The photo itself as the model's input."""
        return cls((height, width), (height, width), (0.0, 0.0, float(height), float(width)))

    def resize(self, size: int | Sequence[int] | None, max_size: int | None = None) -> Geometry:
        """Scale the input, by torchvision's rule for the size.

        Args:
            size: (h, w), or one number for the shorter side (the longer one is cut to an integer), or None:
                the longer side becomes ``max_size``.
            max_size: What the longer side may be at most. Not together with (h, w).

        Returns:
            The same box, shown at another size.

        Raises:
            GeometryError: If ``size`` and ``max_size`` contradict each other.
        """
        return replace(self, size=_resized(self.size, size, max_size))

    def crop(self, top: int, left: int, height: int, width: int) -> Geometry:
        """Cut a rectangle, given in pixels of the current input; one that reaches beyond it pads."""
        first_row, first_column, last_row, last_column = self.box
        row = (last_row - first_row) / self.size[0]
        column = (last_column - first_column) / self.size[1]
        box = (
            first_row + row * top,
            first_column + column * left,
            first_row + row * (top + height),
            first_column + column * (left + width),
        )
        return replace(self, size=(height, width), box=box)

    def pad(self, left: int, top: int, right: int, bottom: int) -> Geometry:
        """Add pixels of the current input on each side; negative numbers cut."""
        height, width = self.size
        return self.crop(-top, -left, height + top + bottom, width + left + right)

    def center_crop(self, size: int | Sequence[int]) -> Geometry:
        """Cut (h, w), or a square, from the middle; torchvision's rounding, and its padding."""
        height, width = _pair(size)
        down, across = max(height - self.size[0], 0), max(width - self.size[1], 0)
        padded = self.pad(across // 2, down // 2, (across + 1) // 2, (down + 1) // 2)
        top = round((padded.size[0] - height) / 2)
        left = round((padded.size[1] - width) / 2)
        return padded.crop(top, left, height, width)

    def flip(self) -> Geometry:
        """Mirror left and right."""
        top, left, bottom, right = self.box
        return replace(self, box=(top, right, bottom, left))

    @cached_property
    def seen(self) -> NDArray[np.bool_]:
        """(H, W) True where a photo pixel's centre lies inside the box; read-only, as all who ask share it."""
        top, left, bottom, right = self.box
        height, width = self.photo
        seen = np.logical_and.outer(_inside(top, bottom, height), _inside(left, right, width))
        seen.flags.writeable = False
        return seen

    @cached_property
    def sees_all(self) -> bool:
        """Whether all of the photo is in the input."""
        return bool(self.seen.all())

    def inside(self, preparation: Any) -> Geometry:
        """What the layers of a detector see that prepares its pictures itself, as torchvision's do.

        Args:
            preparation: :func:`camtool.modules.preparation_of` the detector.

        Returns:
            The input after its resizing, and with its padding at the bottom and on the right.
        """
        if preparation.fixed_size is not None:
            width, height = preparation.fixed_size
        else:
            shorter, longer = min(self.size), max(self.size)
            scale = min(preparation.min_size[-1] / shorter, preparation.max_size / longer)
            height, width = (int(side * scale) for side in self.size)
        below, beside = (-side % preparation.size_divisible for side in (height, width))
        return self.resize((height, width)).pad(0, 0, beside, below)

    def on_photo(self, box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
        """Where a box ``(x0, y0, x1, y1)`` in pixels of the input lies in the photo, in the photo's pixels."""
        top, left, bottom, right = self.box
        across, down = (right - left) / self.size[1], (bottom - top) / self.size[0]
        x0, x1 = sorted(left + across * x for x in box[::2])
        y0, y1 = sorted(top + down * y for y in box[1::2])
        return x0, y0, x1, y1

    def on_input(self, box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
        """Where a box ``(x0, y0, x1, y1)`` in pixels of the photo lies in the input: :meth:`on_photo`, undone."""
        top, left, bottom, right = self.box
        across, down = self.size[1] / (right - left), self.size[0] / (bottom - top)
        x0, x1 = sorted(across * (x - left) for x in box[::2])
        y0, y1 = sorted(down * (y - top) for y in box[1::2])
        return x0, y0, x1, y1

    def shown(self, mask: Tensor, size: tuple[int, int]) -> Tensor:
        """What the input shows of a mask over the photo.

        Args:
            mask: ``(mh, mw)``, floating, stretched over the photo, whatever its size.
            size: The size of what is wanted, stretched over the input.

        Returns:
            ``(*size)``, the mean of the mask in each cell; what is not of the photo counts as 0.
        """
        top, left, bottom, right = self.box
        down, across = mask.shape[0] / self.photo[0], mask.shape[1] / self.photo[1]
        return averaged(mask, [(down * top, down * bottom), (across * left, across * right)], size)

    def place(self, maps: Tensor) -> Tensor:
        """Lay maps on the photo, bilinearly; differentiable.

        Args:
            maps: (..., gh, gw) of any floating dtype, finite. The grid tiles the model's input evenly.

        Returns:
            (..., H, W) of the same dtype, on the same device; 0 where the model saw nothing.

        Raises:
            GeometryError: If ``maps`` is no floating tensor with at least two dimensions.
        """
        if maps.ndim < 2 or not maps.is_floating_point():
            raise GeometryError(
                f"maps must be floating and (..., gh, gw), got {maps.dtype} with shape {tuple(maps.shape)}"
            )
        top, left, bottom, right = self.box
        # Half precision would show as bands in the heatmap, so float32 at least, autocast or not.
        with torch.autocast(maps.device.type, enabled=False):
            wide = maps if maps.dtype == torch.float64 else maps.float()
            rows = interpolation(maps.shape[-2], top, bottom, self.photo[0]).to(wide)
            columns = interpolation(maps.shape[-1], left, right, self.photo[1]).to(wide)
            return (rows @ wide @ columns.T).to(maps.dtype)


@lru_cache(maxsize=32)
def interpolation(n_in: int, start: float, stop: float, n_out: int) -> Tensor:
    """The matrix that spreads ``n_in`` cells, which tile ``start`` to ``stop``, over ``n_out`` pixels.

    Linear between the centres of the cells, constant beyond the outermost ones, 0 outside of the cells.

    Args:
        n_in: Number of cells.
        start: Where the first cell begins, in output pixels.
        stop: Where the last cell ends; smaller than ``start`` if the cells run backwards.
        n_out: Number of output pixels.

    Returns:
        (n_out, n_in) float64 on the CPU. It is shared between calls: do not change it in place.
    """
    centres = np.arange(n_out) + 0.5
    cell = np.clip((centres - start) / (stop - start) * n_in - 0.5, 0, n_in - 1)
    weights = np.clip(1 - np.abs(cell[:, None] - np.arange(n_in)), 0, None)
    weights[~_inside(start, stop, n_out)] = 0
    # A tensor born in inference mode could never take part in a gradient, and this one outlives the call.
    with torch.inference_mode(False):
        return torch.from_numpy(weights)


def averaged(values: Tensor, spans: Sequence[tuple[float, float]], size: Sequence[int]) -> Tensor:
    """The mean of some cells' values in each cell of another grid, by area.

    Args:
        values: ``(*cells)``, floating.
        spans: Along each axis, from where to where the other grid reaches, in cells; backwards it turns them around.
        size: Its size.

    Returns:
        ``(*size)``; what lies beyond the cells counts as 0.
    """
    for axis, ((start, stop), n_out) in enumerate(zip(spans, size, strict=True)):
        edges = torch.linspace(start, stop, n_out + 1, dtype=torch.float64)
        low, high = torch.minimum(edges[:-1], edges[1:])[:, None], torch.maximum(edges[:-1], edges[1:])[:, None]
        cells = torch.arange(values.shape[axis])
        shares = (torch.minimum(high, cells + 1) - torch.maximum(low, cells)).clamp_min(0) / (high - low)
        values = (values.movedim(axis, -1) @ shares.T.to(values)).movedim(-1, axis)
    return values


def _inside(start: float, stop: float, n: int) -> NDArray[np.bool_]:
    """(n,) True where the centre of a pixel lies between ``start`` and ``stop``."""
    centres = np.arange(n) + 0.5
    inside: NDArray[np.bool_] = (centres >= min(start, stop)) & (centres <= max(start, stop))
    return inside


def _pair(size: int | Sequence[int]) -> tuple[int, int]:
    """(h, w) of a size that may be one number, alone or in a list."""
    sides = (size,) if isinstance(size, int) else tuple(size)
    if len(sides) not in (1, 2):
        raise GeometryError(f"size must be one number or (h, w), got {size!r}")
    return int(sides[0]), int(sides[-1])


def _resized(old: tuple[int, int], size: int | Sequence[int] | None, max_size: int | None) -> tuple[int, int]:
    """The size (h, w) after torchvision's ``resize``, with its order of integer operations."""
    short, long = min(old), max(old)
    if size is None:
        if max_size is None:
            raise GeometryError("size and max_size are both None: give one of them")
        new_short, new_long = int(max_size * short / long), max_size
    elif not isinstance(size, int) and len(size) == 2:
        if max_size is not None:
            raise GeometryError(f"max_size={max_size} goes only with one number as size, got size={size!r}")
        return _pair(size)
    else:
        new_short = _pair(size)[0]
        new_long = int(new_short * long / short)
        if max_size is not None and max_size <= new_short:
            raise GeometryError(f"max_size must be greater than size, got max_size={max_size} and size={size!r}")
        if max_size is not None and new_long > max_size:
            new_short, new_long = int(max_size * new_short / new_long), max_size
    return (new_long, new_short) if old[1] <= old[0] else (new_short, new_long)


# ---- Reading a transform -----------------------------------------------------------------------------------


def geometry_of(transform: Transform, photo: Image.Image | tuple[int, int]) -> Geometry:
    """What part of a photo a transform shows the model.

    The usual transforms of torchvision, timm and open_clip, composed as one likes, and the usual image processors of
    Hugging Face are read exactly, from their attributes. Other processors are read as if they were usual, and believed
    if a probe agrees. Anything else is probed (see ``probe``).

    Args:
        transform: From a PIL image to the model's input.
        photo: The photo, or its size (H, W).

    Returns:
        The geometry of this photo's input.

    Raises:
        GeometryError: If the transform is random, or is no crop and scale.
    """
    height, width = (photo.height, photo.width) if isinstance(photo, Image.Image) else photo
    whole = Geometry.whole(height, width)
    known = _read(whole, transform)
    if known is not None:
        return known
    probed = probe(transform, (height, width))
    guesses = _guesses(whole, getattr(transform, "processor", transform))
    return next((guess for guess in guesses if _agree(guess, probed)), probed)


def _read(geometry: Geometry | None, part: object) -> Geometry | None:
    """The geometry after ``part``, or None if that cannot be read off."""
    kind = type(part)
    # A class from elsewhere may do anything under the same name.
    if geometry is None or not f"{kind.__module__}.".startswith(_KNOWN_MODULES):
        return None
    if kind.__name__ in _KEEP_POSITIONS:
        return geometry
    if _is_usual_processor(part):
        return _processed(geometry, part)
    reader = _READERS.get(kind.__name__)
    return reader(geometry, part) if reader else None


def _sides(padding: int | Sequence[int]) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of a padding given as one, two or four numbers."""
    sides = [padding] if isinstance(padding, int) else list(padding)
    left, top, right, bottom = (sides * 4)[:4]
    return left, top, right, bottom


def _flipped(geometry: Geometry, chance: float) -> Geometry | None:
    return {0.0: geometry, 1.0: geometry.flip()}.get(float(chance))


def _read_all(geometry: Geometry | None, parts: Sequence[object]) -> Geometry | None:
    return reduce(_read, parts, geometry)


def _ratio_kept(geometry: Geometry, part: Any) -> Geometry | None:
    """After timm's, and open_clip's, ``ResizeKeepRatio``: between the shorter and the longer side filling the size."""
    if part.random_scale_prob or part.random_aspect_prob:
        return None
    ratios = [old / new for old, new in zip(geometry.size, part.size, strict=True)]
    ratio = max(ratios) * part.longest + min(ratios) * (1 - part.longest)
    height, width = (round(side / ratio) for side in geometry.size)
    return geometry.resize((height, width))


def _trimmed(geometry: Geometry, border: int) -> Geometry:
    top, left = (min(border, side) for side in geometry.size)
    height, width = (max(0, side - 2 * border) for side in geometry.size)
    return geometry.crop(top, left, height, width)


_KNOWN_MODULES = (
    *("torchvision.transforms.", "timm.data.transforms.", "open_clip.transform.", "transformers."),
    "camtool.models.",
)
_KEEP_POSITIONS = frozenset(
    {
        "ConvertImageDtype",
        "Grayscale",
        "Identity",
        "MaybeConvertMode",
        "MaybePILToTensor",
        "MaybeToTensor",
        "Normalize",
        "ObjectDetection",
        "PILToTensor",
        "RGB",
        "ToDtype",
        "ToImage",
        "ToPILImage",
        "ToPureTensor",
        "ToTensor",
    }
)
_READERS: dict[str, Callable[[Geometry, Any], Geometry | None]] = {
    "CenterCrop": lambda geometry, part: geometry.center_crop(part.size),
    "CenterCropOrPad": lambda geometry, part: geometry.center_crop(part.size),
    "Compose": lambda geometry, part: _read_all(geometry, part.transforms),
    "ImageClassification": lambda geometry, part: geometry.resize(part.resize_size).center_crop(part.crop_size),
    "Pad": lambda geometry, part: geometry.pad(*_sides(part.padding)),
    "Preparation": lambda geometry, part: _read(geometry, part.processor),
    "RandomHorizontalFlip": lambda geometry, part: _flipped(geometry, part.p),
    "Resize": lambda geometry, part: geometry.resize(part.size, part.max_size),
    "ResizeKeepRatio": _ratio_kept,
    "SemanticSegmentation": lambda geometry, part: (
        geometry if part.resize_size is None else geometry.resize(part.resize_size)
    ),
    "TrimBorder": lambda geometry, part: _trimmed(geometry, part.border_size),
}


# ---- Reading an image processor of Hugging Face ------------------------------------------------------------

_MOVERS = {
    "transformers.image_processing_backends": ("process_image", "_preprocess", "resize", "center_crop", "pad"),
    "transformers.image_processing_utils": ("preprocess", "_preprocess_image_like_inputs"),
}
"""Where the usual image processors live → their methods that decide where a pixel goes."""


def _is_usual_processor(part: object) -> bool:
    """Whether all that moves pixels in an image processor is what most of them share."""
    return all(
        getattr(getattr(type(part), method, None), "__module__", None) == module
        for module, methods in _MOVERS.items()
        for method in methods
    )


def _guesses(whole: Geometry, processor: Any) -> list[Geometry]:
    """What an image processor might do that moves pixels in a way of its own, by what it is set to."""
    if not f"{type(processor).__module__}.".startswith("transformers."):
        return []
    guesses = [_processed(whole, processor)]
    edge = _settings(processor, "size").get("shortest_edge")
    if edge:  # a little larger, and cut to size: ConvNeXt, PoolFormer; with a fixed share, LeViT
        for share in (getattr(processor, "crop_pct", None) or 1, 224 / 256):
            scaled = whole.resize(int(edge / share))
            guesses += [_cut(scaled, edge, edge), _cut_as_set(scaled, processor)]
        guesses.append(whole.resize((edge, edge)))
    return guesses


def _agree(guess: Geometry, probed: Geometry) -> bool:
    """Whether two geometries of one photo differ by no more than what a probe may be off."""
    return guess.size == probed.size and np.allclose(guess.box, probed.box, rtol=0, atol=_TRUE_TO)


_TRUE_TO = 0.75  # photo pixels


def _processed(geometry: Geometry, processor: Any) -> Geometry:
    """After an image processor: it resizes, cuts the middle out, and pads at the bottom and on the right."""
    if getattr(processor, "do_resize", False):
        geometry = _fitted(geometry, _settings(processor, "size"))
    geometry = _cut_as_set(geometry, processor)
    padded = _settings(processor, "pad_size") if getattr(processor, "do_pad", False) else {}
    if not padded:
        return geometry
    return geometry.pad(0, 0, padded["width"] - geometry.size[1], padded["height"] - geometry.size[0])


def _settings(processor: Any, name: str) -> dict[str, int]:
    """A size of an image processor, by the names of its parts."""
    size = getattr(processor, name, None)
    return {key: int(value) for key, value in dict(size or {}).items() if value}


def _fitted(geometry: Geometry, size: Mapping[str, int]) -> Geometry:
    """Scaled to a size that Hugging Face gives in one of four ways, with its order of integer operations."""
    height, width = geometry.size
    if "shortest_edge" in size and "longest_edge" in size:
        return geometry.resize(_within(height, width, size["shortest_edge"], size["longest_edge"]))
    if "shortest_edge" in size:
        return geometry.resize(size["shortest_edge"])
    if "max_height" in size and "max_width" in size:
        scale = min(size["max_height"] / height, size["max_width"] / width)
        return geometry.resize((int(height * scale), int(width * scale)))
    return geometry.resize((size["height"], size["width"])) if size else geometry


def _within(height: int, width: int, shortest: int, longest: int) -> tuple[int, int]:
    """The size whose shorter side is ``shortest``, or less, so that the longer one is no more than ``longest``."""
    short, long = min(height, width), max(height, width)
    exact = longest * short / long if long / short * shortest > longest else shortest
    edge = round(exact)
    if short == edge:
        return height, width
    other = int(exact * long / short)
    return (other, edge) if width < height else (edge, other)


def _cut_as_set(geometry: Geometry, processor: Any) -> Geometry:
    cut = _settings(processor, "crop_size") if getattr(processor, "do_center_crop", False) else {}
    return _cut(geometry, cut["height"], cut["width"], getattr(processor, "backend", "")) if cut else geometry


def _cut(geometry: Geometry, height: int, width: int, backend: str = "torchvision") -> Geometry:
    """The middle, with the rounding of an image processor: down, where the pixels are PIL's; else towards zero."""
    spare = geometry.size[0] - height, geometry.size[1] - width
    top, left = (each // 2 if backend == "pil" else int(each / 2) for each in spare)
    return geometry.crop(top, left, height, width)


# ---- Probing a transform -----------------------------------------------------------------------------------

_REPEATS = 4  # how often one picture is pushed again, to catch a generator that is none of the global ones
_CLIMB = 13.0  # grey levels that a ramp climbs across its direction
_RAMP = 255.0 - _CLIMB  # grey levels that a ramp climbs along its direction
_REACH = 3  # pixels of the coarser grid that the widest usual resampling kernel (Lanczos) reaches
_REMEDY = (
    "Pass a deterministic transform that only crops, pads, scales or mirrors, "
    "or pass a tensor that is already prepared."
)


def probe(transform: Transform, photo: tuple[int, int]) -> Geometry:
    """Find a transform's crop and scale by pushing pictures of known coordinates through it.

    Each output pixel of a grey ramp tells which photo column (or row) it shows. Black and white calibrate
    every output value and tell padding; a ramp minus its falling twin cancels whatever is added to both. A line
    is fitted to the coordinates; what does not lie on it is no crop and scale.

    The global random generators (torch, numpy, Python) are left as they were.

    Args:
        transform: From an RGB PIL image to (C, h, w) or (1, C, h, w), as a tensor or an array, alone, in a
            list of one, or in a dict (as ``pixel_values``, as ``image``, or as its only value).
        photo: The photo's size (H, W).

    Returns:
        The geometry. For photos of usual size the box is mostly accurate to a few hundredths of a photo pixel. Where
        the scale is almost, but not quite, a whole number, resampling itself bends the positions in one slow wave,
        and the error grows to half a photo pixel.

    Raises:
        GeometryError: If the transform is random, does not return such an image, or is no crop and scale.
    """
    height, width = photo
    dark = np.zeros((height, width))
    down, up = (ramp.T for ramp in _ramps(height, across=width))
    right, left = _ramps(width, across=height)
    black, white, down, up, right, left = _push(transform, [dark, dark + 255, down, up, right, left])

    span = white - black
    seen = _depends(span)
    if not seen.any():
        raise GeometryError(
            f"transform {_name(transform)} does not tell a black photo from a white one, "
            f"so what it shows cannot be measured. {_REMEDY}"
        )
    rows = _edges(_coordinates(down - up, span, height).T, seen.T, height)
    columns = _edges(_coordinates(right - left, span, width), seen, width)
    if rows is None or columns is None:
        raise GeometryError(
            f"transform {_name(transform)} is not a crop and a scale (it may rotate or distort, or its values "
            f"may not be linear in the photo's), so a heatmap cannot be put back onto the photo. {_REMEDY}"
        )
    return Geometry((height, width), (span.shape[1], span.shape[2]), (rows[0], columns[0], rows[1], columns[1]))


def _ramps(n: int, across: int) -> list[Floats]:
    """Two pictures (across, n), to be cut to integers: grey rises along n in one and falls in the other.

    Two kinds of dither let the roundings average out: noise for the picture's own, and a slow climb across, which
    outlives any resampling, for the roundings after it. Both ramps still reach black and white.
    """
    along = _RAMP * np.linspace(0, 1, n)
    dither = _CLIMB * np.linspace(0, 1, across)[:, None] + np.random.default_rng(0).random((across, n))
    return [along + dither, along[::-1] + dither]


def _coordinates(difference: Floats, span: Floats, n: int) -> Floats:
    """Which photo coordinate each output pixel shows.

    Args:
        difference: (C, h, w) what came of the rising ramp minus what came of the falling one.
        span: (C, h, w) what came of white minus what came of black.
        n: Photo pixels along the ramp.

    Returns:
        (h, w) coordinates; meaningless where the output does not depend on the photo.
    """
    power = np.square(span).sum(0)
    level = (difference * span).sum(0) / np.where(power > 0, power, 1)
    coordinates: Floats = 0.5 + (n - 1) * (1 + level * 255 / _RAMP) / 2
    return coordinates


def _depends(span: Floats) -> NDArray[np.bool_]:
    """(h, w) True where the output depends on the photo in full, and on nothing beside it."""
    power = np.square(span).sum(0)
    most = power[power > power.max() / 4]
    if not most.size:
        return np.zeros(power.shape, bool)
    # The median, because resampling kernels overshoot beside padding.
    full = power > 0.96 * np.median(most)
    # What they mix in there may be clipped, which no calibration undoes.
    inner: NDArray[np.bool_] = np.pad(full, _REACH, constant_values=True)
    for axis in (0, 1):
        inner = np.logical_and.reduce(sliding_window_view(inner, 2 * _REACH + 1, axis), axis=-1)
    return inner if inner.any() else full


def _edges(field: Floats, seen: NDArray[np.bool_], n: int) -> tuple[float, float] | None:
    """Where the output's first and last edge lie in the photo, along the field's last axis.

    Args:
        field: (across, along) the photo coordinate that each output pixel shows.
        seen: (across, along) where to believe it.
        n: Photo pixels along this axis.

    Returns:
        (start, stop) in photo pixels, or None if the coordinates do not lie on a line.
    """
    counts = seen.sum(0)
    at = np.flatnonzero(2 * counts >= counts.max())
    if at.size < 4:
        return None
    tolerance = max(1.0, n / 200)
    slope, start = _line(at + 0.5, (field * seen).sum(0)[at] / counts[at], tolerance)
    length = field.shape[1]
    expected = start + slope * (np.arange(length) + 0.5)
    # Beyond the photo an edge-replicating or mirroring pad need not follow the line.
    trusted = seen & (expected > 0) & (expected < n)
    constant = abs(slope) * length < 0.5
    if constant or 2 * trusted.sum() <= seen.sum() or _largest_bias(field - expected, trusted) > tolerance:
        return None
    return float(start), float(start + slope * length)


def _line(x: Floats, y: Floats, tolerance: float) -> tuple[float, float]:
    """Slope and intercept of the line that most of ``y`` follow, whatever the rest (clamped, mirrored) do."""
    few = np.linspace(0, x.size - 1, min(x.size, 48)).round().astype(int)
    first, second = (few[indices] for indices in np.triu_indices(few.size, 1))
    slopes = (y[second] - y[first]) / (x[second] - x[first])
    candidates = y[first, None] + slopes[:, None] * (x[few] - x[first, None])
    votes = np.clip(1 - np.square((candidates - y[few]) / tolerance), 0, None).sum(1)
    best = votes.argmax()
    slope, intercept = slopes[best], y[first[best]] - slopes[best] * x[first[best]]

    followers = np.flatnonzero(np.abs(intercept + slope * x - y) <= tolerance)
    # Near the ends a resampling kernel is cut off, or mixes in what lies outside.
    reach = min(int(np.ceil(_REACH / min(abs(slope) + 1e-9, 1))), followers.size // 4)
    inner = followers[reach : followers.size - reach]
    # Antialiased coordinates swing around the line with a period of many pixels; weights that fade out keep
    # a period that is cut off at the end from tilting the line.
    fade = np.sin(np.pi * (np.arange(inner.size) + 0.5) / inner.size)
    slope, intercept = np.polyfit(x[inner], y[inner], 1, w=np.sqrt(fade))
    return slope, intercept


def _largest_bias(residual: Floats, trusted: NDArray[np.bool_]) -> float:
    """The largest mean residual in 8 x 8 blocks: rounding averages out in a block, a distortion does not."""
    part = np.ix_(trusted.any(1), trusted.any(0))
    biases = [0.0]
    for band, known in zip(np.array_split(residual[part], 8), np.array_split(trusted[part], 8), strict=True):
        for block, mask in zip(np.array_split(band, 8, axis=1), np.array_split(known, 8, axis=1), strict=True):
            if 4 * mask.sum() > mask.size:
                biases.append(abs(block[mask].mean()))
    return max(biases)


def _push(transform: Transform, pictures: list[Floats]) -> list[Floats]:
    """What the transform makes of grey pictures (H, W) in 0 .. 255; the same picture must give the same."""
    with Cleanup() as cleanup:
        were_used = keep_generators(cleanup)
        outputs = [_pixels(transform, picture) for picture in pictures + pictures[-1:] * _REPEATS]
        drawn = were_used()
    pushed, repeated = outputs[: len(pictures)], outputs[len(pictures) :]
    same_size = len({output.shape for output in outputs}) == 1
    if drawn or not same_size or not all(np.array_equal(output, pushed[-1]) for output in repeated):
        raise GeometryError(
            f"transform {_name(transform)} is random, or crops by what the photo shows, "
            f"so where the input lies in the photo cannot be told. {_REMEDY}"
        )
    return pushed


def _pixels(transform: Transform, picture: Floats) -> Floats:
    """(C, h, w) that the transform makes of one grey picture (H, W)."""
    grey = picture.astype(np.uint8)
    output = transform(Image.fromarray(np.stack([grey] * 3, axis=-1)))
    image = unwrapped(output)
    array = image.detach().cpu().double().numpy() if isinstance(image, Tensor) else image
    if isinstance(array, np.ndarray) and array.ndim == 4 and len(array) == 1:
        array = array[0]
    if not isinstance(array, np.ndarray) or array.ndim != 3 or not array.size:
        shape = f" with shape {tuple(array.shape)}" if isinstance(array, np.ndarray) else ""
        raise GeometryError(
            f"transform {_name(transform)} must return a tensor (C, h, w) or (1, C, h, w), "
            f"got {type(output).__name__}{shape}. {_REMEDY}"
        )
    return array.astype(np.float64)


def unwrapped(output: object) -> object:
    """The image of a dict, of a list of one, or of both; anything else as it is."""
    if isinstance(output, Mapping):
        images = [output[key] for key in ("pixel_values", "image") if key in output] or list(output.values())
        output = images[0] if len(images) == 1 else output
    return output[0] if isinstance(output, (list, tuple)) and len(output) == 1 else output


def _name(transform: Transform) -> str:
    """What to call a transform: a function by its name, an object by its class."""
    return repr(getattr(transform, "__name__", type(transform).__name__))
