"""Small vision-language models whose processors cut photos to tiles, each with the processor's own class.

Where the tokens of a tile lie in the text follows here from the names of the tokens and from the order in which the
processors are documented to write them, and not from camtool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image
from torch import nn

from tests.helpers.text_processors import make_tokenizer
from tests.zoo.vision_language import IMAGE_TOKEN, PATCH, SIDE, WITH_GRID, SmallVLM

Shape = tuple[int, int]

_LENGTH = {"max_position_embeddings": 2048}
_PINPOINTS = [[SIDE * rows, SIDE * columns] for rows, columns in ((1, 2), (2, 1), (2, 2), (1, 3), (3, 1), (2, 3))]


@dataclass(frozen=True)
class TiledVLM:
    """A small model, its processor, and what is known of the tokens of a photo.

    Attributes:
        small: The model.
        make_processor: Return the processor.
        prompt: A prompt with a place for the photo.
        photo: Size ``(H, W)`` of a photo.
        tiles: Rows and columns of the tiles into which the photo is cut.
        grid: The grid of the cells of all tiles together.
        place: From the places of all tokens of the image to those of the grid, row by row, and of the thumbnail.
        options: Arguments of the processor.
    """

    small: SmallVLM
    make_processor: Callable[[], Any]
    prompt: str
    photo: Shape
    tiles: Shape
    grid: Shape
    place: Callable[[Sequence[int], TiledVLM], tuple[list[int], list[int]]]
    options: tuple[tuple[str, Any], ...] = ()

    def build(self) -> nn.Module:
        """The model with random weights."""
        return self.small.build()

    def make_inputs(self, photo: Image.Image) -> dict[str, Any]:
        """The model's inputs for a photo."""
        given = self.make_processor()(images=photo, text=self.prompt, return_tensors="pt", **dict(self.options))
        return dict(given)

    def find_places(self, inputs: dict[str, Any]) -> tuple[list[int], list[int]]:
        """The places, in the text, of the cells of the grid and of the thumbnail, row by row."""
        return self.place((inputs["input_ids"][0] == IMAGE_TOKEN).nonzero().flatten().tolist(), self)


def draw_photo(shape: Shape, seed: int = 0) -> Image.Image:
    """Draw a photo with coarse structures, as real photos have."""
    coarse = np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(shape[::-1], Image.Resampling.BICUBIC)


# ------------------------------------------------------------------------------------------------------------ places


def _place_tile_after_tile(places: Sequence[int], each: TiledVLM, thumbnail: int = -1) -> tuple[list[int], list[int]]:
    """Tiles of equal numbers of tokens in turn, row by row, with the thumbnail at one end."""
    (rows, columns), (height, width) = each.tiles, each.grid
    h, w = height // rows, width // columns
    runs = [list(places[start : start + h * w]) for start in range(0, len(places), h * w)]
    assert len(runs) == rows * columns + 1
    of_thumbnail = runs.pop(thumbnail)
    cells = [runs[(y // h) * columns + x // w][(y % h) * w + x % w] for y in range(height) for x in range(width)]
    return cells, of_thumbnail


def _place_after_first_tile(places: Sequence[int], each: TiledVLM) -> tuple[list[int], list[int]]:
    return _place_tile_after_tile(places, each, thumbnail=0)


def _place_rows_with_newlines(places: Sequence[int], each: TiledVLM) -> tuple[list[int], list[int]]:
    """The thumbnail, and then the rows of all tiles together, each with a token behind it."""
    cells, (height, width) = (SIDE // PATCH) ** 2, each.grid
    thumbnail, rest = list(places[:cells]), places[cells:]
    assert len(rest) == height * (width + 1)
    return [rest[y * (width + 1) + x] for y in range(height) for x in range(width)], thumbnail


# -------------------------------------------------------------------------------------------------------- processors


def _make_llava_next() -> Any:
    from transformers import LlavaNextImageProcessor, LlavaNextProcessor

    crop = {"height": SIDE, "width": SIDE}
    images = LlavaNextImageProcessor(size={"shortest_edge": SIDE}, crop_size=crop, image_grid_pinpoints=_PINPOINTS)
    return LlavaNextProcessor(
        images,
        make_tokenizer("<image>"),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


def _make_llava_onevision() -> Any:
    from transformers import LlavaOnevisionImageProcessor, LlavaOnevisionProcessor, LlavaOnevisionVideoProcessor

    size = {"height": SIDE, "width": SIDE}
    return LlavaOnevisionProcessor(
        LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=_PINPOINTS),
        make_tokenizer("<image>", "<video>"),
        LlavaOnevisionVideoProcessor(size=size),
        num_image_tokens=(SIDE // PATCH) ** 2,
        vision_feature_select_strategy="full",
        vision_aspect_ratio="anyres_max_2",
    )


def _make_idefics3() -> Any:
    from transformers import Idefics3ImageProcessor, Idefics3Processor

    markers = [f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)]
    tokenizer = make_tokenizer("<image>", "<fake_token_around_image>", "<global-img>", "\n", *markers)
    images = Idefics3ImageProcessor(size={"longest_edge": 3 * SIDE}, max_image_size={"longest_edge": SIDE})
    return Idefics3Processor(images, tokenizer, image_seq_len=16)


def _make_internvl() -> Any:
    from transformers import GotOcr2ImageProcessor, InternVLProcessor, InternVLVideoProcessor

    size = {"height": SIDE, "width": SIDE}
    tokenizer = make_tokenizer("<IMG_CONTEXT>", "<img>", "</img>", "<video>")
    for name, token in (("start_image", "<img>"), ("end_image", "</img>"), ("context_image", "<IMG_CONTEXT>")):
        setattr(tokenizer, f"{name}_token", token)
        setattr(tokenizer, f"{name}_token_id", tokenizer.convert_tokens_to_ids(token))
    tokenizer.video_token = "<video>"
    images = GotOcr2ImageProcessor(size=size, max_patches=6)
    return InternVLProcessor(images, tokenizer, InternVLVideoProcessor(size=size), image_seq_length=16)


def _make_gemma3() -> Any:
    from transformers import Gemma3ImageProcessor, Gemma3Processor

    tokenizer = make_tokenizer("<image_soft_token>", "<start_of_image>", "<end_of_image>")
    names = {"image": "<image_soft_token>", "boi": "<start_of_image>", "eoi": "<end_of_image>"}
    for name, token in names.items():
        setattr(tokenizer, f"{name}_token", token)
        setattr(tokenizer, f"{name}_token_id", tokenizer.convert_tokens_to_ids(token))
    return Gemma3Processor(Gemma3ImageProcessor(size={"height": SIDE, "width": SIDE}), tokenizer, image_seq_length=16)


def _lengthen(small: SmallVLM, **options: Any) -> SmallVLM:
    """The model for longer texts."""
    kind, text = small.parts["text_config"]
    return replace(small, parts=small.parts | {"text_config": (kind, text | _LENGTH)}, options=small.options | options)


_LLAVA_NEXT = replace(
    _lengthen(WITH_GRID["llava"], image_grid_pinpoints=_PINPOINTS), kind="LlavaNextForConditionalGeneration"
)
_ONEVISION = replace(
    _LLAVA_NEXT,
    kind="LlavaOnevisionForConditionalGeneration",
    parts=_LLAVA_NEXT.parts | {"vision_config": WITH_GRID["gemma3"].parts["vision_config"]},
    options=_LLAVA_NEXT.options | {"vision_aspect_ratio": "anyres_max_2", "vision_feature_select_strategy": "full"},
)
_QUESTION = "what is this ?"

TILED: dict[str, TiledVLM] = {
    # 90 x 120 becomes 96 x 128 in 2 x 2 tiles: 16 pixels of padding above and below, two rows of cells each.
    "llava_next": TiledVLM(
        _LLAVA_NEXT, _make_llava_next, f"<image> {_QUESTION}", (90, 120), (2, 2), (12, 16), _place_rows_with_newlines
    ),
    "llava_next_wide": TiledVLM(
        _LLAVA_NEXT, _make_llava_next, f"<image> {_QUESTION}", (60, 180), (1, 3), (8, 24), _place_rows_with_newlines
    ),
    # 16 x 24 cells are more than twice the 8 x 8 of a tile, by a factor of 3: 9 x 13 cells are interpolated.
    "llava_onevision": TiledVLM(
        _ONEVISION,
        _make_llava_onevision,
        f"<image> {_QUESTION}",
        (120, 180),
        (2, 3),
        (9, 13),
        _place_rows_with_newlines,
    ),
    "idefics3": TiledVLM(
        _lengthen(WITH_GRID["idefics3"]),
        _make_idefics3,
        f"<image> {_QUESTION}",
        (120, 180),
        (2, 3),
        (8, 12),
        _place_tile_after_tile,
    ),
    "smolvlm": TiledVLM(
        _lengthen(WITH_GRID["smolvlm"]),
        _make_idefics3,
        f"<image> {_QUESTION}",
        (180, 100),
        (3, 2),
        (12, 8),
        _place_tile_after_tile,
    ),
    "internvl": TiledVLM(
        _lengthen(WITH_GRID["internvl"]),
        _make_internvl,
        f"<IMG_CONTEXT> {_QUESTION}",
        (120, 180),
        (2, 3),
        (8, 12),
        _place_tile_after_tile,
    ),
    "gemma3": TiledVLM(
        _lengthen(WITH_GRID["gemma3"]),
        _make_gemma3,
        f"<start_of_image> {_QUESTION}",
        (80, 240),
        (1, 3),
        (4, 12),
        _place_after_first_tile,
        (("images_kwargs", {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 16}),),
    ),
}
"""Families → a model and a photo. Two photos of one family are cut differently."""
