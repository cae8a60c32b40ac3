"""Layouts: tensors as grids and back, grids of tokens, the choice between two layouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from camtool.layers.layouts import (
    Layout,
    choose_layout,
    find_token_layout,
    follows_image,
    measure_order,
    place_cells,
)

FIRST, LAST, TOKENS = "channels first", "channels last", "tokens"


# -------------------------------------------------------------------------------------------------- grids and back


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (Layout(FIRST, (2, 3)), (4, 5, 2, 3)),
        (Layout(LAST, (2, 3)), (4, 2, 3, 5)),
        (Layout(TOKENS, (2, 3)), (4, 6, 5)),
        (Layout(TOKENS, (2, 3), prefix=2), (4, 8, 5)),
        (Layout(TOKENS, (2, 3), prefix=1, suffix=3), (4, 10, 5)),
        (Layout(TOKENS, (2, 3, 4), prefix=1), (4, 25, 5)),
        (Layout(FIRST, (2, 3, 4)), (4, 5, 2, 3, 4)),
        (Layout(LAST, (2, 3, 4)), (4, 2, 3, 4, 5)),
        (Layout(FIRST, (7,)), (4, 5, 7)),
    ],
    ids=lambda value: str(value),
)
def test_from_grid_inverts_to_grid(layout: Layout, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape)
    maps = layout.to_grid(tensor)
    assert maps.shape == (4, 5, *layout.grid)
    assert layout.fits(shape, 4)
    channels = 1 if layout.kind == FIRST else len(shape) - 1
    for axis in {*range(1, len(shape))} - {channels}:
        assert not layout.fits([*shape[:axis], 9, *shape[axis + 1 :]], 4)
    for i in range(4):
        assert torch.equal(layout.from_grid(maps[i : i + 1], tensor[i : i + 1]), tensor[i : i + 1])


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (Layout("frames", (3, 2, 4)), (2, 3, 5, 2, 4)),
        (Layout("frames channels last", (3, 2, 4)), (2, 3, 2, 4, 5)),
        (Layout("frame tokens", (3, 2, 4)), (2, 3, 8, 5)),
        (Layout("frame tokens", (3, 2, 4), prefix=2, suffix=1), (2, 3, 11, 5)),
    ],
    ids=lambda value: str(value),
)
def test_frames_are_an_axis_or_rows_of_the_batch(layout: Layout, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape)
    maps = layout.to_grid(tensor)
    assert maps.shape == (2, 5, 3, 2, 4)
    assert layout.fits(shape, shape[0])
    assert not layout.fits((2, 4, *shape[2:]), 2)
    assert torch.equal(layout.to_grid(tensor.flatten(0, 1)), maps)
    for i in range(2):
        assert torch.equal(layout.from_grid(maps[i : i + 1], tensor[i : i + 1]), tensor[i : i + 1])


@pytest.mark.parametrize("kind", [TOKENS, "frame tokens"])
@pytest.mark.parametrize(("prefix", "suffix"), [(0, 0), (2, 0), (0, 3), (1, 2)])
def test_slices_write_what_indices_of_the_same_tokens_do(kind: Any, prefix: int, suffix: int) -> None:
    """Slices need no indices on a GPU; gradients flow alike, too."""
    grid = (2, 3) if kind == TOKENS else (4, 2, 3)
    slices = Layout(kind, grid, prefix, suffix)
    indices = replace(slices, positions=tuple(slices.cells))
    like = torch.randn(1, *grid[:-2], 6 + prefix + suffix, 5)
    maps = torch.randn(3, 5, *grid, requires_grad=True)
    written = [layout.from_grid(maps, like) for layout in (slices, indices)]
    assert torch.equal(*written)
    assert written[0].stride() == written[1].stride()
    weights = torch.randn_like(written[0])
    assert torch.equal(*(torch.autograd.grad((one * weights).sum(), maps)[0] for one in written))


def test_tokens_are_read_row_by_row_and_from_grid_keeps_the_prefix() -> None:
    layout = Layout(TOKENS, (2, 3), prefix=1)
    own = torch.arange(7.0).reshape(1, 7, 1)
    assert layout.to_grid(own).tolist() == [[[[1, 2, 3], [4, 5, 6]]]]
    variants = layout.from_grid(torch.zeros(3, 1, 2, 3), own + 9)
    assert variants[:, :, 0].tolist() == [[9, 0, 0, 0, 0, 0, 0]] * 3


# --------------------------------------------------------------------------------------------------------- tokens


def test_the_layout_of_some_tokens_counts_those_before_and_behind_them() -> None:
    """Tokens 2 to 5 of 9 in a row, or the same cells with a token between them that is none."""
    assert Layout.from_positions((2, 2), [2, 3, 4, 5], 9) == Layout(TOKENS, (2, 2), prefix=2, suffix=3)
    layout = Layout.from_positions((2, 2), [2, 3, 5, 6], 9)
    assert layout == Layout(TOKENS, (2, 2), prefix=2, suffix=2, positions=(2, 3, 5, 6))
    assert layout.token_count == 9
    assert layout.fits((1, 9, 4), 1)
    assert layout.to_grid(torch.arange(9.0).reshape(1, 9, 1)).tolist() == [[[[2, 3], [5, 6]]]]


@pytest.mark.parametrize(
    ("tokens", "size", "known", "layout"),
    [
        (196, (224, 224), [], Layout(TOKENS, (14, 14))),
        (197, (224, 224), [], Layout(TOKENS, (14, 14), 1)),
        (261, (224, 224), [], Layout(TOKENS, (16, 16), 5)),  # patches of 14, a class token and four registers
        (280, (224, 320), [], Layout(TOKENS, (14, 20))),
        (280, (320, 224), [], Layout(TOKENS, (20, 14))),
        (7 * 10, (200, 300), [(7, 10)], Layout(TOKENS, (7, 10))),  # a convolution that pads
        (401, (240, 320), [(20, 20)], Layout(TOKENS, (20, 20), 1)),  # a model that makes its image square
        (1 + 8 * 7 * 7, (16, 112, 112), [(8, 7, 7)], Layout(TOKENS, (8, 7, 7), 1)),
        (1 + 8 * 3 * 2, (16, 96, 64), [(8, 12, 8)], Layout(TOKENS, (8, 3, 2), 1)),  # height and width halved twice
        (336, (128, 128), [(16, 16), (8, 8), (4, 4)], Layout(TOKENS, (4, 4), 320)),  # three concatenated levels
        (336, (128, 128), [], None),  # 12 and 18 x 18 patches of 7, which do not tile 128 pixels
        (1000, (224, 224), [], None),
        (1, (224, 224), [], None),
        (392, (16, 112, 112), [], None),
    ],
    ids=str,
)
def test_tokens_form_square_patches_or_a_known_grid(
    tokens: int, size: tuple[int, ...], known: list[tuple[int, ...]], layout: Layout | None
) -> None:
    assert find_token_layout(tokens, size, known) == layout


# ------------------------------------------------------------------------------------------------------- the choice


@pytest.mark.parametrize("kind", [FIRST, LAST])
def test_the_layout_that_changed_in_the_corner_is_chosen(kind: str) -> None:
    maps = torch.zeros(2, 8, 8, 8)
    maps[1, :, :4, :4] = 1
    tensor = maps if kind == FIRST else maps.movedim(1, -1)
    assert choose_layout(tensor, [Layout(FIRST, (8, 8)), Layout(LAST, (8, 8))]).kind == kind


@pytest.mark.parametrize(("times", "kind"), [(1.1, FIRST), (1.5, LAST)])
def test_the_likely_layout_is_chosen_unless_another_changed_clearly_more(times: float, kind: str) -> None:
    maps = torch.zeros(2, 8, 8, 8)
    maps[1, :4] = times  # channels last: a change in the corner; channels first: a change everywhere
    maps[1, 4:] = 2 - times
    assert choose_layout(maps, [Layout(FIRST, (8, 8)), Layout(LAST, (8, 8))]).kind == kind


def test_cells_near_the_border_of_a_changed_half_can_be_left_out() -> None:
    """An object behind the border responds more strongly than the plain area that was changed."""
    rows = torch.tensor([2.0, 2.0, 1.0, 1.0, 1.0, 9.0, 0.5, 0.5])
    change = rows[:, None].expand(8, 8)
    maps = torch.stack([torch.zeros(8, 8), change, change.T])[:, None]
    # All rows but that behind the border: those with 9, 2, 2 and one with 1 respond most, and 5 of their 14 are right.
    for contrast, agreement in measure_order(maps):
        assert agreement == pytest.approx(5 / 14)
        assert contrast == pytest.approx((14 / 4) / (2 / 3))
    # Without two rows on both sides of the border.
    for contrast, agreement in measure_order(maps, margin=0.25):
        assert agreement == 1
        assert contrast == pytest.approx(4)


@pytest.mark.parametrize("unchanged", [0, 12, 5], ids=["first", "last", "between"])
def test_a_token_that_no_half_of_the_image_changes_lies_beside_the_cells(unchanged: int) -> None:
    """Behind a deep trunk all cells respond to each half, so only the others show where the grid lies."""
    output = torch.rand(3, 13, 4, generator=torch.Generator().manual_seed(0))
    output[:, unchanged] = 0.5
    found = place_cells(Layout("tokens", (3, 4), prefix=1), [output])
    assert found is not None
    assert found.others == [unchanged]


class WithoutDouble(Tensor):
    """A tensor on a device that has no float64, e.g. MPS."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        if func is Tensor.cpu:
            return result.as_subclass(Tensor)
        if isinstance(result, cls) and result.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return result


def test_a_device_without_float64_suffices() -> None:
    output = torch.zeros(9, 17, 2)
    for number, part in enumerate([*torch.arange(1, 17).split(4), *torch.arange(1, 17).reshape(4, 4).T], 1):
        output[number, part] = 1
    layout, halves = Layout(TOKENS, (4, 4), prefix=1), torch.stack([output[0], output[1:3].sum(0), output[5:7].sum(0)])
    assert place_cells(layout, [halves.as_subclass(WithoutDouble)]) == layout
    assert follows_image(layout.to_grid(output.as_subclass(WithoutDouble)))
