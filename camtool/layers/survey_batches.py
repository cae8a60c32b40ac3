"""Batches that a survey of a model's layers needs: the first image alone, and variants with a changed corner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from camtool.errors import LayerError
from camtool.hooks.structures.nested_tensors import ModelInputs, find_main_tensor, map_batch

# Number of images that :func:`vary_corner` and :func:`vary_halves` return: the first image and two variants of it.
VARIANTS = 3

# Number of images that :func:`vary_corner_and_halves` returns.
ALL_VARIANTS = 5

# Number of bands along each axis that :func:`nudge_bands` changes one after the other.
_BANDS = 4

# Noise of :func:`nudge_bands`, relative to the largest pixel. Networks that mix positions respond to a large change
# everywhere: with 1 instead, DETR and LeViT with random weights do not show their places.
NUDGE = 0.05


# Ranges of whole numbers, the first that holds an image counts: files of models may take no other numbers.
_WHOLE_RANGES = ((0, 255), (-128, 127), (0, 65535), (-32768, 32767))


def get_image_input(inputs: ModelInputs) -> Tensor:
    """Return the batch of images ``(N, C, *size)`` among the inputs of a model.

    Raises:
        LayerError: There is no such tensor.
    """
    images = find_main_tensor(inputs)
    if images is None or images.ndim < 3:
        given = "no tensor" if images is None else f"shape {tuple(images.shape)}"
        raise LayerError(f"inputs must hold a batch of images (N, C, H, W), got {given}; pass a 4-D tensor.")
    return images


def find_image_size(inputs: ModelInputs) -> tuple[int, ...]:
    """Return the size ``(H, W)`` of the images among the inputs of a model."""
    return tuple(get_image_input(inputs).shape[2:])


def select_first_image(inputs: ModelInputs) -> ModelInputs:
    """Return the inputs with the first row of each batch only."""
    return map_batch(inputs, lambda tensor: tensor[:1])


def score_next_token(inputs: ModelInputs) -> ModelInputs:
    """Return the inputs with which a language model scores the next token alone, if it can leave out the others.

    The logits of all tokens may take more memory than the rest of the forward pass.
    """
    return {**inputs, "logits_to_keep": 1} if isinstance(inputs, Mapping) and "logits_to_keep" in inputs else inputs


def vary_corner(inputs: ModelInputs) -> ModelInputs:
    """Return the inputs with three images: the first one and two variants with a changed upper left quadrant.

    In one variant the quadrant is negated and mirrored. In the other a ramp from dark to bright is added.
    """
    return _repeat_first_image(inputs, _change_corner)


def _change_corner(several: Tensor) -> None:
    halves = [slice(max(1, pixels // 2)) for pixels in several.shape[2:]]
    upper_left = (slice(None), slice(None), *halves)
    corner = several[upper_left]
    corner[1].copy_(-corner[0].flip(-1))
    # The ramp exceeds the image's own range, because a ReLU may respond to bright, or to dark, patches only.
    reach = 2 + 2 * float(several[0].abs().amax())
    corner[2].add_(torch.linspace(-reach, reach, corner.shape[-1], device="cpu").to(corner))


def vary_all(inputs: ModelInputs) -> ModelInputs:
    """Return the inputs with three images: the first one and two variants of it in which every part is changed."""

    def vary(several: Tensor) -> None:
        noise = _draw_noise(several)
        several[1].copy_(noise - several[0].flip(-1))
        several[2].add_(noise.flip(-1) * 2)

    return _repeat_first_image(inputs, vary)


def vary_views(inputs: ModelInputs) -> ModelInputs:
    """Return the inputs with three images: the first one, another one, and the first one beside other views.

    Views are the other inputs of the image's shape.
    """
    image = get_image_input(inputs)

    def repeat(tensor: Tensor) -> Tensor:
        several = torch.cat([tensor[:1].detach()] * VARIANTS)
        if tensor.shape == image.shape and tensor.is_floating_point():
            changed = several[1 if tensor is image else 2]
            changed.copy_(_draw_noise(several) - changed.flip(-1))
        return several

    return map_batch(inputs, repeat)


def vary_halves(inputs: ModelInputs) -> ModelInputs:
    """Return the inputs with three images: the first one, one with another upper half, one with another left half."""
    return _repeat_first_image(inputs, _change_halves)


def vary_parts(inputs: ModelInputs, parts: Sequence[Tensor]) -> ModelInputs:
    """Return the inputs with several images: the first one, and one for each part ``(H, W)`` with other pixels there.

    Args:
        inputs: The inputs.
        parts: Booleans or shares of the change, True or 1 at the pixels to change.
    """

    def vary(several: Tensor) -> None:
        noise = _draw_noise(several)
        for changed, part in zip(several[1:], parts, strict=True):
            changed.add_(noise * part.to(noise))

    return _repeat_first_image(inputs, vary, 1 + len(parts))


def list_parts_of_tiles(size: Sequence[int], seams: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return parts ``(H, W)`` of an image that together tell each tile, and each quarter of a tile, from the others.

    The number of a row of tiles is written in binary, and a part has the rows with one of the digits. So few parts
    are enough. A further part has the upper half of each tile. Columns are treated alike.

    Args:
        size: Size ``(H, W)`` of the image.
        seams: Edges between the tiles, of rows and of columns.
    """
    parts = []
    for axis, (pixels, inner) in enumerate(zip(size, seams, strict=True)):
        edges, at = torch.tensor([0, *inner, pixels], device="cpu"), torch.arange(pixels, device="cpu")
        tile = torch.bucketize(at, edges[1:-1], right=True)
        digits = [tile.bitwise_right_shift(digit) % 2 == 1 for digit in range(len(inner).bit_length())]
        first_half = 2 * at < edges[tile] + edges[tile + 1]
        for part in (*digits, first_half):
            shape = (pixels, 1) if axis == 0 else (1, pixels)
            parts.append(part.reshape(shape).expand(*size))
    return parts


def vary_corner_and_halves(inputs: ModelInputs) -> ModelInputs:
    """Return the inputs with the images of :func:`vary_corner`, then the last two of :func:`vary_halves`."""

    def vary(several: Tensor) -> None:
        _change_corner(several)
        _change_halves(several[VARIANTS - 1 :])

    return _repeat_first_image(inputs, vary, ALL_VARIANTS)


def _change_halves(several: Tensor) -> None:
    upper, left = several[1][..., : several.shape[-2] // 2, :], several[2][..., : several.shape[-1] // 2]
    noise = _draw_noise(several)
    upper.add_(noise[..., : several.shape[-2] // 2, :])
    left.add_(noise[..., : several.shape[-1] // 2])


def nudge_bands(inputs: ModelInputs, nudge: float = NUDGE) -> ModelInputs:
    """Return the inputs with the first image, then variants with some noise in one of the bands of each axis."""

    def vary(several: Tensor) -> None:
        noise = nudge * _draw_noise(several)
        for axis, pixels in enumerate(several.shape[2:]):
            band = torch.arange(pixels, device=several.device) * _BANDS // pixels
            for number in range(_BANDS):
                part = (band == number).reshape(-1, *[1] * (several.ndim - 3 - axis))
                several[1 + _BANDS * axis + number].add_(noise * part)

    return _repeat_first_image(inputs, vary, 1 + _BANDS * len(find_image_size(inputs)))


def vary_covered(inputs: ModelInputs, parts: Tensor) -> ModelInputs:
    """Return the inputs with the first image, then one for each part, which has the mean of the image there.

    Args:
        inputs: The inputs.
        parts: The number of the part that each pixel belongs to, ``(*size)``; the first one is 0.
    """

    def vary(several: Tensor) -> None:
        mean = several[0].mean(tuple(range(1, several.ndim - 1)), keepdim=True)
        for number, covered in enumerate(several[1:]):
            covered.copy_(torch.where((parts == number).to(several.device), mean, covered))

    return _repeat_first_image(inputs, vary, 2 + int(parts.max()))


def _draw_noise(several: Tensor) -> Tensor:
    """Return noise for one of several images. To negate patches instead would change none of a gray area."""
    noise = torch.rand(several.shape[1:], generator=torch.Generator().manual_seed(0), device="cpu") * 2 - 1
    noise *= float(several[0].abs().amax()) or 1
    return noise.to(several)


def _repeat_first_image(inputs: ModelInputs, vary: Callable[[Tensor], None], count: int = VARIANTS) -> ModelInputs:
    """Return the inputs with copies of the first image, of which ``vary`` changes the last ones in place.

    Those of an image of whole numbers, e.g. of bytes, stay in the range of such numbers. They are not rounded, as noise
    on a dark image would vanish.
    """
    images = get_image_input(inputs)

    def repeat(tensor: Tensor) -> Tensor:
        several = torch.cat([tensor[:1].detach()] * count)
        if tensor is images:
            vary(several)
            if several.is_floating_point() and bool((several[0] == several[0].round()).all()):
                low, high = several[0].min(), several[0].max()
                limits = next((pair for pair in _WHOLE_RANGES if pair[0] <= low and high <= pair[1]), (low, high))
                several.clamp_(*limits)
        return several

    return map_batch(inputs, repeat)
