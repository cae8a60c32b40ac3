"""Photos in several tiles: the map of the tiles together, that of the thumbnail, and their places on the photo."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'camtool[test]'")

import camtool
from camtool.errors import CamtoolError, ImageError, LayerError
from camtool.models import to_loaded
from camtool.models.image_tiles import cut_tiles
from tests.zoo.test_vision_language import (
    Shuffled,
    assert_equal_maps,
    compute_gradcam,
    explain,
    find_first_block,
    observe,
)
from tests.zoo.tiled_vision_language import TILED, TiledVLM, draw_photo
from tests.zoo.vision_language import SIDE, WITH_GRID

Shape = tuple[int, int]

WITH_PROCESSOR_OPTIONS = "gemma3"
IN_ANSWERS = [name for name in TILED if name != WITH_PROCESSOR_OPTIONS]


def build(name: str) -> tuple[TiledVLM, nn.Module, Image.Image, dict[str, Any]]:
    each = TILED[name]
    photo = draw_photo(each.photo)
    return each, each.build(), photo, each.make_inputs(photo)


@pytest.mark.parametrize("name", TILED)
@pytest.mark.parametrize("first_layer", [False, True])
def test_the_maps_of_tiles_and_thumbnail_equal_a_gradcam_by_hand(name: str, first_layer: bool) -> None:
    each, model, _, inputs = build(name)
    layer = find_first_block(model) if first_layer else None
    side = int(len(each.find_places(inputs)[1]) ** 0.5)
    for image, places, grid in zip(
        ("pixel_values", "thumbnail"), each.find_places(inputs), (each.grid, (side, side)), strict=True
    ):
        found = explain(model, inputs, 5, layer=layer, image=image)
        for token in range(5, 15):  # one whose map is not empty
            expected = compute_gradcam(model, found.layer, inputs, token, places, grid)
            if expected.any():
                break
        assert expected.any()
        assert_equal_maps(explain(model, inputs, token, layer=layer, image=image).raw, expected)
    assert found.layer.startswith(find_first_block(model).rpartition(".0")[0])


@pytest.mark.parametrize("name", TILED)
def test_a_cell_of_the_tiles_follows_its_place_in_the_photo(name: str) -> None:
    """What the test above takes for granted: the order of the tokens that the processors write."""
    each, model, photo, inputs = build(name)
    layer, places = find_first_block(model), each.find_places(inputs)[0]
    before = observe(model, layer, inputs)[0][0, places]
    for row, column in ((0, each.grid[1] - 1), (each.grid[0] - 1, 0), (1, each.grid[1] // 2)):
        changed = invert(photo, find_rectangle(each.photo, each.grid, row, column))
        after = observe(model, layer, each.make_inputs(changed))[0][0, places]
        assert divmod(int((after - before).abs().sum(-1).argmax()), each.grid[1]) == (row, column)


def find_rectangle(photo: Shape, grid: Shape, row: int, column: int) -> tuple[slice, slice]:
    """The pixels of a photo that a cell covers. No photo here has padding that is part of a cell."""
    (height, width), (rows, columns) = photo, grid
    return (
        slice(round(row * height / rows), round((row + 1) * height / rows)),
        slice(round(column * width / columns), round((column + 1) * width / columns)),
    )


def invert(photo: Image.Image, part: tuple[slice, slice]) -> Image.Image:
    pixels = np.array(photo)
    pixels[part] = 255 - pixels[part]
    return Image.fromarray(pixels)


@pytest.mark.parametrize("name", IN_ANSWERS)
@pytest.mark.parametrize("image", ["pixel_values", "thumbnail"])
def test_words_of_an_answer_have_the_gradcam_of_their_tokens(name: str, image: str) -> None:
    each, model, photo, inputs = build(name)
    layer, processor = find_first_block(model), each.make_processor()
    (word,) = camtool.tokens(model, processor, photo, each.prompt, "dog", layer=layer, image=image)  # type: ignore[arg-type]
    ids = torch.cat([inputs["input_ids"], torch.tensor([[processor.tokenizer.convert_tokens_to_ids("dog")]])], 1)
    # The word's score is the one after the prompt.
    expected = compute_gradcam(
        model, layer, inputs, int(ids[0, -1]), each.find_places(inputs)[image == "thumbnail"], word.raw.shape
    )
    assert_equal_maps(word.raw, expected)
    assert word.heatmap.shape == each.photo
    assert word.seen.mean() > 0.95
    np.testing.assert_array_equal(word.photo, np.asarray(photo))


@pytest.mark.parametrize("name", IN_ANSWERS)
@pytest.mark.parametrize("image", ["pixel_values", "thumbnail"])
def test_a_checked_word_loses_the_tiles_and_the_thumbnail(name: str, image: str) -> None:
    each, model, photo, _ = build(name)
    processor, settings = each.make_processor(), {"layer": find_first_block(model), "image": image}
    answer = camtool.tokens(model, processor, photo, each.prompt, "dog", **settings)
    (check,) = answer.verify(fills=("mean",), controls=0).checks or ()
    mean = Image.new("RGB", photo.size, tuple(int(value) for value in np.asarray(photo).mean((0, 1)).round()))
    for shown, probability in ((photo, check.probability), (mean, check.blank)):
        with torch.no_grad():
            logits = model(**each.make_inputs(shown)).logits[0, -1].double()
        by_hand = logits.softmax(0)[processor.tokenizer.convert_tokens_to_ids("dog")].item()
        assert probability == pytest.approx(by_hand, rel=1e-4)


@pytest.mark.parametrize("name", IN_ANSWERS)
@pytest.mark.parametrize("image", ["pixel_values", "thumbnail"])
def test_the_heatmap_is_largest_where_a_photo_has_a_spot(name: str, image: str) -> None:
    each, model, method = TILED[name], TILED[name].build(), Difference()
    height, width = each.photo
    settings: dict[str, Any] = {"layer": find_first_block(model), "method": method, "image": image}

    def explain_pixels(pixels: np.ndarray) -> camtool.Explanation:
        photo = Image.fromarray(pixels)
        return camtool.tokens(model, each.make_processor(), photo, each.prompt, "dog", **settings)[0]

    plain = np.full((height, width, 3), 90, np.uint8)
    rows, columns = explain_pixels(plain).raw.shape
    for row, column in ((0, columns - 1), (rows - 1, 0), (rows // 2, columns // 2)):
        pixels, cell = plain.copy(), find_rectangle(each.photo, (rows, columns), row, column)
        pixels[cell] = np.random.default_rng(0).integers(0, 255, pixels[cell].shape)
        y, x = np.unravel_index(explain_pixels(pixels).heatmap.argmax(), (height, width))
        assert (y * rows // height, x * columns // width) == (row, column)


class Difference:
    """A method whose map is known beforehand: how much each cell differs from that of the first photo."""

    def __init__(self) -> None:
        self.first: list[Tensor] = []

    def __call__(self, evidence: Any) -> Tensor:
        self.first = self.first or [evidence.activations.clone()]
        difference: Tensor = (evidence.activations - self.first[0]).norm(dim=1)
        return difference


@pytest.mark.parametrize("name", ["llava_next", "llava_onevision", "idefics3", "internvl", "gemma3"])
@pytest.mark.parametrize("kind", ["tiles", "cells"])
def test_no_map_lies_over_tiles_or_cells_in_another_order(name: str, kind: str) -> None:
    each, model, _, inputs = build(name)
    block = find_first_block(model)
    projector = next(
        part for part in ("model.multi_modal_projector", "model.connector") if part in dict(model.named_modules())
    )
    parent, attribute = model.get_submodule(projector.rpartition(".")[0]), projector.rpartition(".")[2]
    order = ShuffledTiles if kind == "tiles" else MirroredCells
    setattr(parent, attribute, order(getattr(parent, attribute), each))
    with pytest.raises(LayerError, match="no grid over"):
        explain(model, inputs, 7, layer=block)
    with pytest.raises(LayerError, match="no layer of the model can carry a map"):
        explain(model, inputs, 7)


class ShuffledTiles(nn.Module):
    """A projector that swaps two tiles of a row."""

    def __init__(self, projector: nn.Module, each: TiledVLM) -> None:
        super().__init__()
        self.projector = projector
        count = each.tiles[0] * each.tiles[1] + 1
        first = int(each.place.__name__ != "_place_tile_after_tile")
        self.order = torch.arange(count)
        self.order[[first, first + 1]] = self.order[[first + 1, first]]

    def forward(self, features: Tensor) -> Tensor:
        found = self.projector(features)
        return found.unflatten(0, (-1, len(self.order)))[:, self.order].flatten(0, 1)


class MirroredCells(Shuffled):
    """A projector that mirrors the cells of each tile."""

    def __init__(self, projector: nn.Module, each: TiledVLM) -> None:
        cells = len(each.find_places(each.make_inputs(draw_photo(each.photo)))[1])
        side = int(cells**0.5)
        super().__init__(projector, torch.arange(cells).reshape(side, side).flip(1).flatten())


@pytest.mark.parametrize("name", TILED)
def test_joined_tiles_are_cut_to_the_same_tiles(name: str) -> None:
    _, model, _, inputs = build(name)
    loaded: Any = to_loaded(model).model
    joined = loaded.join_to_images(inputs)
    tiled = joined["tiled_image"]
    assert torch.equal(cut_tiles(joined, tiled), inputs["pixel_values"])
    expected = model(**inputs).logits
    assert torch.equal(loaded(**joined).logits, expected)
    assert joined["pixel_values"].shape[2] == TILED[name].tiles[0] * SIDE - 2 * tiled.crop[0]


def test_photos_in_as_many_tiles_are_explained_together_as_alone() -> None:
    each = TILED["idefics3"]
    model, photos = each.build(), [draw_photo(each.photo, seed) for seed in range(2)]
    alone = [each.make_inputs(photo) for photo in photos]
    together = {name: torch.cat([inputs[name] for inputs in alone]) for name in alone[0]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = camtool.explain(model, together, [3, 4])
    for inputs, token, result in zip(alone, (3, 4), found, strict=True):
        assert np.abs(result.raw - explain(model, inputs, token).raw).max() <= 1e-6


def test_photos_in_tiles_and_in_one_tile_take_turns() -> None:
    each, model, _, inputs = build("idefics3")
    small = WITH_GRID["idefics3"].make_inputs(torch.randn(1, 3, SIDE, SIDE))
    first = explain(model, small, 5).raw
    assert explain(model, inputs, 5).raw.shape == each.grid
    np.testing.assert_array_equal(explain(model, small, 5).raw, first)


def test_a_gray_photo_does_not_show_how_internvl_cut_it() -> None:
    each = TILED["internvl"]
    model, gray = each.build(), Image.new("RGB", each.photo[::-1], (90, 90, 90))
    with pytest.raises(ImageError, match="holds 7 images or tiles for a text, and they do not look like"):
        explain(model, each.make_inputs(gray))
    # The processor shows it.
    (word,) = camtool.tokens(model, each.make_processor(), gray, each.prompt, "dog", layer=find_first_block(model))
    assert word.raw.shape == each.grid


@pytest.mark.parametrize("name", ["internvl", "gemma3"])
def test_several_photos_for_a_text_are_no_tiles(name: str) -> None:
    _, model, _, inputs = build(name)
    count = len(inputs["pixel_values"])
    several = [WITH_GRID["llava"].make_inputs(torch.randn(1, 3, SIDE, SIDE))["pixel_values"] for _ in range(count)]
    with pytest.raises(ImageError, match="do not look like"):
        explain(model, {**inputs, "pixel_values": torch.cat(several)})


def test_a_text_without_line_breaks_does_not_tell_rows_of_tiles() -> None:
    each, model, _, inputs = build("idefics3")
    newline = each.make_processor().tokenizer.convert_tokens_to_ids("\n")
    kept = inputs["input_ids"][0] != newline
    inputs |= {name: inputs[name][:, kept] for name in ("input_ids", "attention_mask")}
    with pytest.raises(ImageError, match="rows of tiles in the text have different lengths"):
        explain(model, inputs)


def test_markers_that_contradict_the_thumbnail_are_refused() -> None:
    each, model, _, inputs = build("idefics3")
    turned = each.make_inputs(draw_photo(each.photo[::-1]))
    with pytest.raises(ImageError, match=r"the text has \(2, 3\) rows and columns, but the thumbnail shows \(3, 2\)"):
        explain(model, {**inputs, "pixel_values": turned["pixel_values"]})


def test_wrong_sizes_of_the_photo_are_refused() -> None:
    _, model, _, inputs = build("llava_next")
    with pytest.raises(ImageError, match="the text has 268 tokens for them, the model makes"):
        explain(model, inputs | {"image_sizes": torch.tensor([[100, 100]])})
    with pytest.raises(ImageError, match="the model expects 1 x 3 tiles of 64 pixels"):
        explain(model, inputs | {"image_sizes": torch.tensor([[60, 180]])})
    del inputs["image_sizes"]
    with pytest.raises(ImageError, match=r"the size of the photo is missing \(image_sizes\)"):
        explain(model, inputs)


def test_one_tile_has_no_thumbnail() -> None:
    from tests.helpers.text_processors import make_llava_processor

    with pytest.raises(CamtoolError, match="image='thumbnail': the processor made one tile"):
        camtool.tokens(
            WITH_GRID["llava"].build(),
            make_llava_processor(),
            draw_photo((90, 120)),
            "<image> what is this ?",
            "dog",
            image="thumbnail",
        )
