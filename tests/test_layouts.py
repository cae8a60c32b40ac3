"""How what a module returned is read as a grid, each output in the light of the others."""

from __future__ import annotations

import pytest
import torch
from nets import Apply
from torch import Tensor, nn

from camtool.hooks import Call, trace
from camtool.layouts import Layout, Reader, reading_that_moves, token_layout

FIRST, LAST, TOKENS = "channels first", "channels last", "tokens"


def readings(model: nn.Module, picture: Tensor) -> dict[str, list[Layout]]:
    calls = trace(model, picture)
    reader = Reader(calls, picture.shape[2:])
    return {call.name: reader.readings(call) for call in calls}


# -------------------------------------------------------------------------------------------------------- layouts


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
def test_to_grid_and_back_is_the_identity(layout: Layout, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape)
    maps = layout.to_grid(tensor)
    assert maps.shape == (4, 5, *layout.grid)
    for i in range(4):
        assert torch.equal(layout.from_grid(maps[i : i + 1], tensor[i : i + 1]), tensor[i : i + 1])


def test_tokens_are_read_row_by_row_and_variants_keep_the_prefix() -> None:
    layout = Layout(TOKENS, (2, 3), prefix=1)
    own = torch.arange(7.0).reshape(1, 7, 1)
    assert layout.to_grid(own).tolist() == [[[[1, 2, 3], [4, 5, 6]]]]
    variants = layout.from_grid(torch.zeros(3, 1, 2, 3), own + 9)
    assert variants[:, :, 0].tolist() == [[9, 0, 0, 0, 0, 0, 0]] * 3


# --------------------------------------------------------------------------------------------------------- tokens


@pytest.mark.parametrize(
    ("tokens", "size", "known", "layout"),
    [
        (196, (224, 224), [], Layout(TOKENS, (14, 14))),
        (197, (224, 224), [], Layout(TOKENS, (14, 14), 1)),
        (261, (224, 224), [], Layout(TOKENS, (16, 16), 5)),  # patches of 14, a class token and four registers
        (280, (224, 320), [], Layout(TOKENS, (14, 20))),
        (280, (320, 224), [], Layout(TOKENS, (20, 14))),
        (7 * 10, (200, 300), [(7, 10)], Layout(TOKENS, (7, 10))),  # a convolution that pads
        (401, (240, 320), [(20, 20)], Layout(TOKENS, (20, 20), 1)),  # a model that makes its picture square
        (1 + 8 * 7 * 7, (16, 112, 112), [(8, 7, 7)], Layout(TOKENS, (8, 7, 7), 1)),
        (336, (128, 128), [(16, 16), (8, 8), (4, 4)], Layout(TOKENS, (4, 4), 320)),  # three levels, end to end
        (336, (128, 128), [], None),  # 12 and 18 x 18 patches of 7, which do not fill 128 pixels
        (1000, (224, 224), [], None),
        (1, (224, 224), [], None),
        (392, (16, 112, 112), [], None),
    ],
    ids=str,
)
def test_tokens_lie_in_square_patches_or_as_a_grid_known_from_elsewhere(
    tokens: int, size: tuple[int, ...], known: list[tuple[int, ...]], layout: Layout | None
) -> None:
    assert token_layout(tokens, size, known) == layout


class Embedded(nn.Module):
    """Patches of a picture as tokens, behind a class token, and a body that works on them."""

    def __init__(self, body: nn.Module, patches: nn.Module) -> None:
        super().__init__()
        self.patches = patches
        self.tokens = Apply(lambda maps: nn.functional.pad(maps.flatten(2).transpose(1, 2), (0, 0, 1, 0)))
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.tokens(self.patches(x)))


def test_a_picture_that_the_model_makes_square_has_a_square_grid() -> None:
    patches = nn.Sequential(nn.AdaptiveAvgPool2d(96), nn.Conv2d(3, 8, 16, stride=16))
    found = readings(Embedded(nn.LayerNorm(8), patches), torch.randn(1, 3, 96, 160))
    assert found["body"] == [Layout(TOKENS, (6, 6), 1)]


def test_a_clip_has_tokens_too_where_a_convolution_tells_their_grid() -> None:
    found = readings(Embedded(nn.LayerNorm(8), nn.Conv3d(3, 8, 8, stride=8)), torch.randn(1, 3, 16, 32, 24))
    assert found["body"] == [Layout(TOKENS, (2, 4, 3), 1)]


@pytest.mark.parametrize(
    ("tokens", "layout"),
    [
        (1 + 64 + 10, Layout(TOKENS, (8, 8), 1, suffix=10)),  # YOLOS: a class token, the picture, the queries
        (16, Layout(TOKENS, (4, 4))),  # DETR: not two tokens, a grid of 2 x 2 and the queries
    ],
)
def test_queries_may_stand_behind_the_pictures_tokens(tokens: int, layout: Layout) -> None:
    call = Call("tokens", nn.Identity(), (1, tokens, 8), handed_on=False, follows=False, given=None)
    assert Reader([call], (64, 64), queries=10).readings(call) == [layout]


@pytest.mark.parametrize("kind", [FIRST, LAST])
def test_what_has_the_pictures_very_proportions_is_not_read_askew(kind: str) -> None:
    """Ten channels over 8 x 8 positions, read the other way, are 10 x 8 positions, or 8 x 10."""
    shape = (1, 10, 8, 8) if kind == FIRST else (1, 8, 8, 10)
    call = Call("maps", nn.Identity(), shape, handed_on=False, follows=False, given=None)
    assert Reader([call], (128, 128)).readings(call) == [Layout(kind, (8, 8))]


# ------------------------------------------------------------------------------------------- what only looks like one


class Attention(nn.Module):
    """Its queries (N, heads, tokens, channels of a head) and both its products are modules."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries, self.over_tokens, self.over_channels = nn.Identity(), nn.Softmax(-1), nn.Softmax(-1)
        self.back = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        apart = self.queries(x.unflatten(2, (self.heads, -1)).transpose(1, 2).contiguous())
        mixed = self.over_tokens(apart @ apart.mT) @ apart @ self.over_channels(apart.mT @ apart)
        return self.back(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("width", [60, 64, 68])  # of each of two heads about as many channels as there are tokens
def test_the_inside_of_an_attention_is_no_grid(width: int) -> None:
    patches = nn.Conv2d(3, width * 2, 8, stride=8)
    found = readings(Embedded(Attention(width * 2, 2), patches), torch.randn(1, 3, 64, 64))
    assert {name: found[f"body.{name}"] for name in ("queries", "over_tokens", "over_channels")} == {
        "queries": [],
        "over_tokens": [],
        "over_channels": [],
    }
    assert found["body"] == found["body.back"] == [Layout(TOKENS, (8, 8), 1)]


class Pooling(nn.Module):
    """One query of its own asks all tokens, so none come back; the keys (N, heads, tokens, channels) are a module."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, width))
        self.both, self.keys = nn.Linear(width, 2 * width), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        keys, values = self.both(x).unflatten(2, (2, 2, -1)).permute(2, 0, 3, 1, 4).unbind()
        weights = self.query.unflatten(2, (2, -1)).transpose(1, 2) @ self.keys(keys).mT
        return (weights.softmax(-1) @ values).flatten(1)


def test_the_keys_of_an_attention_that_pools_are_no_grid() -> None:
    found = readings(Embedded(Pooling(128), nn.Conv2d(3, 128, 8, stride=8)), torch.randn(1, 3, 64, 64))
    assert (found["body.keys"], found["body.both"]) == ([], [Layout(TOKENS, (8, 8), 1)])


def test_maps_as_large_as_an_attentions_are_a_grid_elsewhere() -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten(2), nn.Linear(64 * 64, 8))
    assert readings(model, torch.randn(1, 3, 64, 64))["0"] == [Layout(FIRST, (64, 64))]


class Mixer(nn.Module):
    """Mixes the positions by a linear layer along them: within, channels stand where tokens do."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.along = nn.Linear(tokens, tokens)

    def forward(self, x: Tensor) -> Tensor:
        return self.along(x.transpose(1, 2)).transpose(1, 2)


def test_channels_are_not_taken_for_tokens_where_positions_are_mixed() -> None:
    patches = nn.Conv2d(3, 64, 16, stride=16)  # 64 channels could be 8 x 8 tokens
    found = readings(Embedded(Mixer(17), patches), torch.randn(1, 3, 64, 64))
    assert (found["body.along"], found["body"]) == ([], [Layout(TOKENS, (4, 4), 1)])


@pytest.mark.parametrize("kind", [FIRST, LAST])
def test_of_two_readings_the_one_that_moved_in_the_corner_is_taken(kind: str) -> None:
    maps = torch.zeros(2, 8, 8, 8)
    maps[1, :, :4, :4] = 1
    tensor = maps if kind == FIRST else maps.movedim(1, -1)
    assert reading_that_moves(tensor, [Layout(FIRST, (8, 8)), Layout(LAST, (8, 8))]).kind == kind


@pytest.mark.parametrize(("times", "kind"), [(1.1, FIRST), (1.5, LAST)])
def test_the_likely_reading_is_taken_unless_another_moved_clearly_more(times: float, kind: str) -> None:
    maps = torch.zeros(2, 8, 8, 8)
    maps[1, :4] = times  # in the corner of what is read as channels last; all of what is read as channels first moves
    maps[1, 4:] = 2 - times
    assert reading_that_moves(maps, [Layout(FIRST, (8, 8)), Layout(LAST, (8, 8))]).kind == kind
