"""Vision-language models: the map lies where the model itself notes its image, and equals a Grad-CAM by hand."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.errors import ImageError, LayerError
from tests.zoo.vision_language import IMAGE_TOKEN, PATCH, SIDE, WITH_GRID, WITHOUT_GRID

Grid = tuple[int, int]


@pytest.fixture
def picture() -> Tensor:
    return torch.randn(1, 3, SIDE, SIDE)


def observe(model: nn.Module, layer: str, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the output of a layer, on the graph, and the scores of the next token."""
    kept: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(
        lambda _module, _given, output: kept.append(output if isinstance(output, Tensor) else output[0])
    )
    with torch.enable_grad():
        logits = model(**inputs).logits[0, -1]
    handle.remove()
    return kept[-1], logits


def compute_gradcam(
    model: nn.Module, layer: str, inputs: dict[str, Any], index: int, positions: Sequence[int], grid: Grid
) -> np.ndarray:
    """Compute the Grad-CAM of a token's score, at the places of the image in the text."""
    output, logits = observe(model, layer, inputs)
    (gradient,) = torch.autograd.grad(logits[index], output)
    weights = gradient[0, positions].mean(0)
    return (output[0, positions] * weights).sum(-1).relu().reshape(grid).detach().numpy()


def explain(model: nn.Module, inputs: dict[str, Any], token: int | None = None, **options: Any) -> camtool.Explanation:
    """Explain one image; its map may be empty, as the weights are random."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (found,) = camtool.explain(model, inputs, token, **options)
    return found


def assert_equal_maps(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-5 * max(expected.max(), 1e-9)


@pytest.mark.parametrize("family", WITH_GRID)
@pytest.mark.parametrize("first_layer", [False, True])
def test_the_map_equals_a_gradcam_by_hand(family: str, first_layer: bool, picture: Tensor) -> None:
    small = WITH_GRID[family]
    model, inputs = small.build(), small.make_inputs(picture)
    layer = find_first_block(model) if first_layer else None
    index = int(observe(model, find_first_block(model), inputs)[1].argmax())
    found = explain(model, inputs, layer=layer)
    assert found.index == index
    assert first_layer or found.layer.startswith(find_first_block(model).rpartition(".layers")[0])
    # A class whose map is not empty, if the top one's is.
    for token in range(index, index + 9):
        expected = compute_gradcam(model, found.layer, inputs, token % IMAGE_TOKEN, small.positions, small.grid)
        if expected.any():
            break
    assert expected.any()
    assert_equal_maps(explain(model, inputs, token % IMAGE_TOKEN, layer=layer).raw, expected)


def find_first_block(model: nn.Module) -> str:
    """Return the first block of the language model, which reads the image's tokens."""
    names = [
        name
        for name, _ in model.named_modules()
        if name.endswith("layers.0") and ("language" in name or "text" in name)
    ]
    return names[0]


@pytest.mark.parametrize("family", WITH_GRID)
def test_a_cell_of_the_grid_follows_its_place_in_the_image(family: str, picture: Tensor) -> None:
    """What the test above takes for granted: that the tokens of the text are the image's cells, row by row."""
    small = WITH_GRID[family]
    model, (height, width) = small.build(), small.grid
    sides, before = (
        (SIDE // height, SIDE // width),
        observe(model, find_first_block(model), small.make_inputs(picture))[0],
    )
    for row, column in ((0, width - 1), (height - 1, 0), (1, 2)):
        changed = picture.clone()
        changed[..., row * sides[0] : (row + 1) * sides[0], column * sides[1] : (column + 1) * sides[1]] *= -1
        after = observe(model, find_first_block(model), small.make_inputs(changed))[0]
        change = (after - before).abs().sum(-1)[0, small.positions]
        found = divmod(int(change.argmax()), width)
        # The convolutions of Florence-2's tower overlap.
        assert max(abs(found[0] - row), abs(found[1] - column)) <= (family == "florence2")


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "idefics3"])
def test_the_same_number_of_tokens_with_the_image_elsewhere_is_read_anew(family: str, picture: Tensor) -> None:
    small = WITH_GRID[family]
    model, inputs = small.build(), small.make_inputs(picture)
    layer = find_first_block(model)
    explain(model, inputs, 5, layer=layer)
    moved = {**inputs, "input_ids": inputs["input_ids"].roll(2, 1)}
    if small.mark:
        moved[small.mark] = inputs[small.mark].roll(2, 1)
    positions = [each + 2 for each in small.positions]
    expected = compute_gradcam(model, layer, moved, 5, positions, small.grid)
    assert_equal_maps(explain(model, moved, 5, layer=layer).raw, expected)


def test_tokens_of_the_text_between_the_rows_of_the_image_are_left_out(picture: Tensor) -> None:
    small = WITH_GRID["llava"]
    model, inputs = small.build(), small.make_inputs(picture)
    ids = inputs["input_ids"][0].tolist()
    rows = [ids[3 + 8 * row : 3 + 8 * (row + 1)] for row in range(8)]
    broken = [*ids[:3], *[token for row in rows for token in (*row, 55)], *ids[-4:]]
    inputs |= {"input_ids": torch.tensor([broken]), "attention_mask": torch.ones(1, len(broken), dtype=torch.long)}
    positions = [place for place, token in enumerate(broken) if token == IMAGE_TOKEN]
    for layer in (find_first_block(model), None):
        found = explain(model, inputs, 7, layer=layer)
        expected = compute_gradcam(model, found.layer, inputs, 7, positions, (8, 8))
        assert expected.any()
        assert_equal_maps(found.raw, expected)
    for method in ("eigencam", "scorecam", "ablationcam"):  # these run the tail on changed activations
        assert explain(model, inputs, 7, layer=find_first_block(model), method=method).raw.shape == (8, 8)


class Shuffled(nn.Module):
    """A projector whose tokens are not in the order of the image's rows."""

    def __init__(self, projector: nn.Module, order: Tensor) -> None:
        super().__init__()
        self.projector, self.order = projector, order

    def forward(self, features: Tensor) -> Tensor:
        return self.projector(features)[:, self.order]


@pytest.mark.parametrize(
    "order",
    [
        torch.arange(64).flip(0),
        torch.arange(64).reshape(8, 8).T.flatten(),
        torch.arange(64).reshape(8, 8).flip(1).flatten(),
    ],
    ids=["backwards", "by columns", "mirrored"],
)
def test_no_map_lies_over_tokens_in_another_order(order: Tensor, picture: Tensor) -> None:
    small = WITH_GRID["llava"]
    model, inputs = small.build(), small.make_inputs(picture)
    block = find_first_block(model)
    model.model.multi_modal_projector = Shuffled(model.model.multi_modal_projector, order)
    assert explain(model, inputs, 7).layer == "model.vision_tower.encoder.layers.1"
    with pytest.raises(LayerError, match="no grid over the 64 x 64 input"):
        explain(model, inputs, 7, layer=block)


@pytest.mark.parametrize("family", WITHOUT_GRID)
def test_queries_that_looked_at_the_image_are_no_grid(family: str, picture: Tensor) -> None:
    small = WITHOUT_GRID[family]
    model, inputs = small.build(), small.make_inputs(picture)
    found = explain(model, inputs)
    assert found.raw.shape == (SIDE // PATCH, SIDE // PATCH)
    with pytest.raises(LayerError, match="no grid over the 64 x 64 input"):
        explain(model, inputs, layer=find_first_block_of_queries(model))


def test_more_queries_than_patches_are_no_grid_after_a_prefix() -> None:
    """BLIP-2 with 32 queries over 5 x 5 patches."""
    small = WITHOUT_GRID["blip_2"]
    tower = {**small.parts["vision_config"][1], "image_size": 40}
    parts = {**small.parts, "vision_config": ("Blip2VisionConfig", tower)}
    small = replace(small, parts=parts, options=small.options | {"num_query_tokens": 32}, tokens=32)
    model, inputs = small.build(), small.make_inputs(torch.randn(1, 3, 40, 40))
    found = explain(model, inputs)
    assert found.raw.shape == (5, 5)
    assert found.layer.startswith("vision_model") or found.layer.endswith("value")  # values of the patches
    for layer in ("language_projection", "qformer", find_first_block_of_queries(model)):
        with pytest.raises(LayerError, match=r"learned queries|no grid over|not in the order"):
            explain(model, inputs, layer=layer)


def test_a_few_queries_do_not_pass_for_cells_by_chance() -> None:
    small = WITHOUT_GRID["kosmos_2"]
    for seed in range(6):  # without a bound on the contrast, three of these six models pass
        model = small.build()
        torch.manual_seed(seed)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.data.normal_(0, 0.08)
        inputs = small.make_inputs(torch.randn(1, 3, SIDE, SIDE))
        with pytest.raises(LayerError, match="no grid over the 64 x 64 input"):
            explain(model, inputs, layer=find_first_block_of_queries(model))


def find_first_block_of_queries(model: nn.Module) -> str:
    return next(
        name
        for name, _ in model.named_modules()
        if name.endswith("layers.0") and ("language" in name or "text" in name)
    )


@pytest.mark.parametrize("family", ["idefics3", "internvl"])
def test_several_tiles_are_refused(family: str, picture: Tensor) -> None:
    small = WITH_GRID[family]
    inputs = small.make_inputs(picture)
    inputs["pixel_values"] = torch.cat([inputs["pixel_values"]] * 2, 1 if family == "idefics3" else 0)
    with pytest.raises(ImageError, match=r"holds 2 images or tiles for a text.*do_image_splitting=False"):
        explain(small.build(), inputs)


def test_several_images_are_explained_as_each_alone() -> None:
    small = WITH_GRID["qwen2_vl"]
    model, pictures = small.build(), torch.randn(2, 3, SIDE, SIDE)
    each = [small.make_inputs(picture[None]) for picture in pictures]
    together = {name: torch.cat([inputs[name] for inputs in each]) for name in each[0]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = camtool.explain(model, together, [3, 4])
    for inputs, token, result in zip(each, (3, 4), found, strict=True):
        assert np.abs(result.raw - explain(model, inputs, token).raw).max() <= 1e-6


def test_images_at_different_places_of_their_texts_are_refused() -> None:
    small = WITH_GRID["llava"]
    model, inputs = small.build(), small.make_inputs(torch.randn(1, 3, SIDE, SIDE))
    together = {name: torch.cat([value] * 2) for name, value in inputs.items()}
    together["input_ids"][1] = together["input_ids"][1].roll(1)
    with pytest.raises(LayerError, match="at different places; explain the images one by one"):
        camtool.explain(model, together)


def test_a_text_that_ends_in_padding_is_refused() -> None:
    small = WITH_GRID["llava"]
    model, inputs = small.build(), small.make_inputs(torch.randn(1, 3, SIDE, SIDE))
    inputs["attention_mask"][0, -1] = 0
    with pytest.raises(ImageError, match=r"ends in padding.*pad on the left"):
        explain(model, inputs)


def test_videos_and_images_of_several_sizes_are_refused() -> None:
    small = WITH_GRID["qwen2_vl"]
    model, inputs = small.build(), small.make_inputs(torch.randn(1, 3, SIDE, SIDE))
    with pytest.raises(ImageError, match=r"image_grid_thw is \[\[1, 4, 4\]\] for 64 patches"):
        explain(model, {**inputs, "image_grid_thw": torch.tensor([[1, 4, 4]])})
    video = {"pixel_values_videos": inputs["pixel_values"], "video_grid_thw": inputs["image_grid_thw"]}
    with pytest.raises(ImageError, match="'pixel_values_videos' came, and videos in a text are not explained"):
        explain(model, {"input_ids": inputs["input_ids"], **video})
    frames = inputs["pixel_values"].reshape(64, 3, 2, PATCH, PATCH).clone()
    frames[:, :, 1] += 1
    with pytest.raises(ImageError, match="the frames of 'pixel_values' differ"):
        explain(model, {**inputs, "pixel_values": frames.reshape(64, -1)})
