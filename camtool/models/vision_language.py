"""Vision-language models whose images do not come as ``(N, C, H, W)``.

Processors of such models cut images to patches ``(P, C·t·p·p)`` (the Qwen family), or to tiles ``(N, K, C, H, W)``.
:class:`VisionLanguageModel` takes images ``(N, C, H, W)`` and gives the model what it expects, so that all of camtool
works on images.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from camtool.errors import ForwardError, ImageError
from camtool.layers.image_tokens_in_text import TILED_IMAGE, TiledImage, find_placeholder
from camtool.models import image_tiles
from camtool.models.two_towers import PartOfModel

_PIXELS, _GRIDS, _TEXT, _MASK = "pixel_values", "image_grid_thw", "input_ids", "attention_mask"
# Names of arguments in transformers: pixels, numbers of patches ``(frames, rows, columns)`` of each image, tokens,
# which of them are no padding, the number of images of each text, and pixels of videos.
_COUNTS, _VIDEOS = "batch_num_images", "pixel_values_videos"


def takes_image_and_text(model: nn.Module) -> bool:
    """Return True for a model of Hugging Face that reads images and texts at once."""
    if not hasattr(model, "config"):
        return False
    return {_PIXELS, _TEXT} <= inspect.signature(model.forward).parameters.keys()


class VisionLanguageModel(PartOfModel):
    """A model of Hugging Face that reads texts and images ``(N, C, H, W)``, one for each text."""

    config: Any

    def __init__(self, whole: nn.Module) -> None:
        super().__init__(whole)
        self.__dict__["config"] = whole.config

    def forward(self, *args: Any, **inputs: Any) -> Any:
        """Return the output of the whole model.

        Raises:
            ForwardError: An image came alone, and the model reads a text beside it.
        """
        reads_text_first = getattr(self.whole, "main_input_name", None) == _TEXT
        if args and isinstance(args[0], Tensor) and args[0].is_floating_point() and reads_text_first:
            raise ForwardError(
                "this model reads a text beside the image: use camtool.tokens(model, processor, img, prompt), or give "
                "what its processor returns."
            )
        self._split_pixels(inputs)
        for name in (_TEXT, _MASK):
            if isinstance(inputs.get(name), Tensor) and inputs[name].ndim == 3:
                inputs[name] = inputs[name].flatten(0, 1)
        return self.whole(*args, **inputs)

    def _split_pixels(self, inputs: dict[str, Any]) -> None:
        """Replace an image among the arguments by the tiles or the patches that the model takes."""
        pixels, tiled = inputs.get(_PIXELS), inputs.pop(TILED_IMAGE, None)
        if isinstance(tiled, TiledImage):
            parts = {_PIXELS, image_tiles.THUMBNAIL, image_tiles.PADDED_TILES} & inputs.keys()
            inputs[_PIXELS] = image_tiles.cut_tiles({name: inputs.pop(name) for name in parts}, tiled)
            inputs.pop(_COUNTS, None)  # it says that each text has one image, as without it
        elif isinstance(pixels, Tensor) and pixels.ndim == 4 and isinstance(inputs.get(_GRIDS), Tensor):
            inputs[_PIXELS] = _cut_to_patches(pixels, *self._read_patch_sizes())

    def join_to_images(self, inputs: Mapping[Any, Any], tiled: TiledImage | None = None) -> dict[Any, Any]:
        """Return the arguments of the model with the pixels as images ``(N, C, H, W)``.

        If there are several tiles for a text, these are the joined tiles, and ``thumbnail`` is one more image.

        Args:
            inputs: The arguments as a processor returns them.
            tiled: The arrangement of the tiles, if it is known; else it is found.

        Raises:
            ImageError: There are videos, several images or frames for a text, images of several sizes, or tiles in an
                unknown order.
        """
        pixels, text, grids = (inputs.get(name) for name in (_PIXELS, _TEXT, _GRIDS))
        if isinstance(inputs.get(_VIDEOS), Tensor):
            raise ImageError(f"img: {_VIDEOS!r} came, and videos in a text are not explained; give frames as images.")
        if not isinstance(pixels, Tensor) or TILED_IMAGE in inputs:
            return dict(inputs)
        if pixels.ndim == 2 and isinstance(grids, Tensor):
            pixels = _join_patches(pixels, grids, *self._read_patch_sizes())
        joined = {**inputs, _PIXELS: pixels}
        if pixels.ndim == 5 or tiled is not None:
            joined |= self._join_tiles(pixels, inputs, tiled)
        if not isinstance(text, Tensor) or text.ndim != 2 or pixels.ndim not in (4, 5):
            return joined
        if find_placeholder(self) is None:  # no text holds an image
            return joined | _group_texts(inputs, len(joined[_PIXELS]))
        if len(joined[_PIXELS]) != len(text):
            joined |= self._join_tiles(pixels, inputs, None)
        _check_padding(inputs.get(_MASK))
        return joined

    def _join_tiles(self, pixels: Tensor, inputs: Mapping[Any, Any], tiled: TiledImage | None) -> dict[str, Any]:
        """Return the joined tiles, the thumbnail, and the arrangement of the tiles.

        Raises:
            ImageError: The arrangement is not certain.
        """
        try:
            tiled = tiled or image_tiles.find_tiled_image(self.whole, pixels, inputs, find_placeholder(self))
        except image_tiles.UnknownTilesError as error:
            text = inputs.get(_TEXT)
            raise _build_tiles_error(pixels, len(text) if isinstance(text, Tensor) else 1, str(error)) from error
        return {**image_tiles.join_tiles(pixels, tiled), TILED_IMAGE: tiled}

    def _read_patch_sizes(self) -> tuple[int, int, int]:
        """Return the numbers of frames and pixels of a patch, and of the rows of patches that become one token."""
        vision = self.config.vision_config
        return int(vision.temporal_patch_size), int(vision.patch_size), int(vision.spatial_merge_size)


def _group_texts(inputs: Mapping[Any, Any], images: int) -> dict[str, Tensor]:
    """Return texts ``(N·Q, T)`` as ``(N, Q, T)``, as open-vocabulary detectors compare Q texts with each image."""
    texts = {name: inputs[name] for name in (_TEXT, _MASK) if isinstance(inputs.get(name), Tensor)}
    count = len(texts[_TEXT]) // images
    has_several = count > 1 and all(len(text) == images * count for text in texts.values())
    return {name: text.unflatten(0, (images, count)) for name, text in texts.items()} if has_several else {}


def _check_padding(mask: Any) -> None:
    """Check that no text ends in padding: the scores of the next token are those at the last position.

    Raises:
        ImageError: One does.
    """
    if isinstance(mask, Tensor) and mask.ndim == 2 and not bool(mask[:, -1].all()):
        raise ImageError(
            "img: a text of the batch ends in padding ('attention_mask'), and the model scores the next token at its "
            "end; pad on the left: processor.tokenizer.padding_side = 'left'."
        )


def _build_tiles_error(pixels: Tensor, texts: int, reason: str) -> ImageError:
    count = pixels.shape[1] if pixels.ndim == 5 else len(pixels)
    whose = "a text" if texts == 1 or pixels.ndim == 5 else f"{texts} texts"
    return ImageError(
        f"img: 'pixel_values' holds {count} images or tiles for {whose}, and {reason}. Let the processor make one "
        "tile, e.g. processor(..., do_image_splitting=False) or crop_to_patches=False, and give one image for each "
        "text."
    )


# ------------------------------------------------------------------------------------------------------------- patches


def _join_patches(patches: Tensor, grids: Tensor, frames: int, side: int, merged: int) -> Tensor:
    """Return the images ``(N, C, H, W)`` of patches ``(P, C·frames·side·side)``, which lie in squares of ``merged``.

    Raises:
        ImageError: The images have several sizes, or several frames.
    """
    count, (depth, rows, columns) = len(grids), grids[0].tolist()
    if depth != 1 or not bool((grids == grids[:1]).all()) or len(patches) != count * rows * columns:
        raise ImageError(
            f"img: {_GRIDS} is {grids.tolist()} for {len(patches)} patches; give one image, or images of one size, "
            "and no video."
        )
    cells = patches.reshape(count, rows // merged, columns // merged, merged, merged, -1, frames, side, side)
    if not bool((cells == cells[:, :, :, :, :, :, :1]).all()):
        raise ImageError(f"img: the frames of '{_PIXELS}' differ; a map lies over one image, not over a video.")
    image = cells[:, :, :, :, :, :, 0].permute(0, 5, 1, 3, 6, 2, 4, 7)
    return image.reshape(count, -1, rows * side, columns * side)


def _cut_to_patches(images: Tensor, frames: int, side: int, merged: int) -> Tensor:
    """Return the patches of images ``(N, C, H, W)``, the inverse of :func:`_join_patches`."""
    count, channels, height, width = images.shape
    rows, columns = height // side // merged, width // side // merged
    cells = images.reshape(count, channels, rows, merged, side, columns, merged, side).permute(0, 2, 5, 3, 6, 1, 4, 7)
    repeated = cells.unsqueeze(6).expand(*cells.shape[:6], frames, *cells.shape[6:])
    return repeated.reshape(-1, channels * frames * side**2)
