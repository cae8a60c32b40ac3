"""Networks that join several inputs to one batch: the map is that of a network that runs on one after the other."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import camtool
from camtool.errors import LayerError
from camtool.figures import feature_maps
from camtool.hooks.observation import EntriesPerImage
from tests.helpers.vision_transformers import CHANNELS, Block
from tests.hooks.state.test_no_trace import unchanged


class Tokens(nn.Module):
    """Patches of 8 x 8 pixels with a class token, ``(N, 1 + h·w, C)``."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.blocks = nn.Conv2d(3, CHANNELS, 8, 8), nn.Sequential(Block("fused"), Block("fused"))
        self.first, self.places = nn.Parameter(torch.randn(1, 1, CHANNELS)), nn.Parameter(torch.randn(1, 31, CHANNELS))

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.patches(x).flatten(2).mT
        tokens = torch.cat([self.first.expand(len(x), -1, -1), tokens], 1) + self.places
        return self.blocks(tokens)  # type: ignore[no-any-return]


def build_trunk(kind: str) -> nn.Module:
    if kind == "tokens":
        return Tokens()
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 12, 3, 2, 1), nn.Tanh())


class Meet(nn.Module):
    """Adds to the features of each of two inputs those of the other one."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)


class Siamese(nn.Module):
    """Scores of three inputs, of which the trunk gets two as one batch, in one of the usual ways or by two copies."""

    def __init__(self, kind: str, joined: str, view: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.classes = build_trunk(kind), nn.Bilinear(2, 2, 5)
        self.other = copy.deepcopy(self.trunk)
        self.joined, self.view = joined, view

    def forward(self, image: Tensor, second: Tensor, third: Tensor) -> Tensor:
        pair = [image, second] if self.view == 0 else [second, image]
        if self.joined == "stack":
            features = self.trunk(torch.stack(pair, 1).flatten(0, 1))
            one, two = features.unflatten(0, (len(image), 2)).unbind(1)
        elif self.joined == "cat":
            one, two = self.trunk(torch.cat(pair)).chunk(2)
        else:
            one, two = (trunk(x) for trunk, x in zip(self.in_turn, pair, strict=True))
        weights = torch.linspace(-3, 3, 2 * one[0].numel()).cos().reshape(2, -1).to(one)
        first, last = (each.flatten(1) @ weights.T for each in (one, two))
        return self.classes(first, last) + third.mean((1, 2, 3))[:, None]  # type: ignore[no-any-return]

    @property
    def in_turn(self) -> list[nn.Module]:
        return [self.trunk, self.other] if self.view == 0 else [self.other, self.trunk]


def draw_inputs(count: int) -> camtool.Inputs:
    return camtool.Inputs(*torch.rand(3, count, 3, 40, 48, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("method", ["gradcam", "layercam", "ablationcam", "shapleycam", "faithcam"])
@pytest.mark.parametrize("joined", ["stack", "cat"])
@pytest.mark.parametrize("view", [0, 1])
@pytest.mark.parametrize("kind", ["maps", "tokens"])
def test_the_map_is_that_of_a_trunk_for_each_input(kind: str, view: int, joined: str, method: str) -> None:
    inputs, layer = draw_inputs(3), "trunk.3" if kind == "maps" else "trunk.blocks.1"
    apart, together = Siamese(kind, "none", view).eval(), Siamese(kind, joined, view).eval()
    expected = camtool.explain(apart, inputs, [2, 0, 1], method=method, layer=layer)
    with unchanged(together):
        results = camtool.explain(together, inputs, [2, 0, 1], method=method)
    assert results[0].layer in (layer, "trunk", "trunk.blocks")
    assert any(each.heatmap.any() for each in expected)
    for ours, reference in zip(results, expected, strict=True):
        np.testing.assert_allclose(ours.heatmap, reference.heatmap, atol=1e-4)
        assert ours.score == pytest.approx(reference.score, rel=1e-4)


def test_a_layer_where_the_inputs_meet_is_not_read() -> None:
    net = Siamese("maps", "stack", 0).eval()
    net.trunk.append(Meet())
    (result,) = camtool.explain(net, draw_inputs(1), 2)
    assert result.layer == "trunk.3"
    with pytest.raises(LayerError, match=r"'trunk.4' returned \(2, 12, 10, 12\): .* no row of it shows the image"):
        camtool.explain(net, draw_inputs(1), 2, layer="trunk.4")


class Squeezed(Siamese):
    """Returns ``(K,)`` for one image, so that the layers are surveyed one image at a time."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return super().forward(*inputs).squeeze()


@pytest.mark.parametrize("joined", ["stack", "cat"])
def test_the_order_of_rows_is_read_from_a_batch(joined: str) -> None:
    inputs, net = draw_inputs(3), Squeezed("maps", joined, 1).eval()
    expected = camtool.explain(Siamese("maps", "none", 1).eval(), inputs, [2, 0, 1], layer="trunk.3")
    for ours, reference in zip(camtool.explain(net, inputs, [2, 0, 1]), expected, strict=True):
        np.testing.assert_allclose(ours.raw, reference.raw, atol=1e-6)


def test_without_a_batch_the_order_is_not_guessed() -> None:
    inputs = camtool.Inputs(*draw_inputs(3).entries.values(), torch.rand(4, 3), shared=[3])
    net = Shared("maps", "cat", 0).eval()
    with pytest.raises(LayerError, match="joins several images, views or tiles into one batch"):
        camtool.explain(net, inputs, 1)


class Shared(Siamese):
    def forward(self, *inputs: Tensor) -> Tensor:
        return super().forward(*inputs[:3]) + inputs[3].sum()


class Triplet(nn.Module):
    """Runs its trunk on the image alone, and then on two others in one batch."""

    def __init__(self, *, is_image_last: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.is_image_last = build_trunk("maps"), is_image_last

    def forward(self, image: Tensor, second: Tensor, third: Tensor) -> Tensor:
        if self.is_image_last:
            other, (own, last) = self.trunk(third), self.trunk(torch.cat([image, second])).chunk(2)
        else:
            own, (other, last) = self.trunk(image), self.trunk(torch.cat([second, third])).chunk(2)
        return torch.stack([(own * other).mean((1, 2, 3)), (own * last).mean((1, 2, 3))], 1)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("is_image_last", "call_index"), [(True, -1), (False, 0)])
def test_calls_of_one_layer_with_other_numbers_of_rows(count: int, is_image_last: bool, call_index: int) -> None:
    net, inputs = Triplet(is_image_last=is_image_last).eval(), draw_inputs(count)
    results = camtool.explain(net, inputs, 1, layer="trunk.3", image=0, call_index=call_index)
    image, second, third = inputs.entries.values()
    own, last = net.trunk(image).detach(), net.trunk(second if is_image_last else third).detach()
    for result, activations, weights in zip(results, own, last, strict=True):
        expected = ((weights / weights.numel()).mean((1, 2))[:, None, None] * activations).sum(0).relu()
        np.testing.assert_allclose(result.raw, expected, atol=1e-6)


CUTS = {
    "parts by a mask": lambda image, mask: torch.cat([image * mask, image * (1 - mask)]),
    "the image and its part": lambda image, mask: torch.cat([image, image * mask]),
    "its halves": lambda image, mask: torch.cat(
        [nn.functional.interpolate(half, image.shape[2:]) for half in (image + 0 * mask).chunk(2, 3)]
    ),
    "a constant beside it": lambda image, mask: torch.cat([image, torch.ones_like(mask)]),
}


class Cut(nn.Module):
    """Runs its trunk on two rows that are not two inputs."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.classes, self.how = build_trunk("maps"), nn.Linear(24, 3), how

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        features = self.trunk(CUTS[self.how](image, mask)).mean((2, 3))
        return self.classes(torch.cat(features.chunk(2), 1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", CUTS)
@pytest.mark.parametrize("layer", [None, "trunk.1"])
def test_rows_that_are_no_views_are_refused(how: str, layer: str | None) -> None:
    image, mask = torch.rand(1, 3, 40, 48), torch.ones(1, 3, 40, 48)
    mask[:, :, :20, :24] = 0  # what changes in the upper left quadrant alone would not show the parts
    with pytest.raises(LayerError, match="no row of it shows the image, all of it and nothing else"):
        camtool.explain(Cut(how).eval(), camtool.Inputs(image, mask), 1, layer=layer)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("joined", ["stack", "cat"])
def test_views_in_other_types(joined: str, kind: torch.dtype) -> None:
    inputs = camtool.Inputs(*(each.to(kind) for each in draw_inputs(2).entries.values()))
    (expected, _), (found, _) = (
        camtool.explain(Siamese("maps", how, 1).to(kind).eval(), inputs, 2, layer="trunk.3") for how in ("none", joined)
    )
    np.testing.assert_allclose(found.heatmap, expected.heatmap, atol=0.05)


def test_one_image_in_both_places() -> None:
    image, _, third = draw_inputs(1).entries.values()
    inputs = camtool.Inputs(image, image, third)
    maps = [camtool.explain(Siamese("maps", how, 0).eval(), [inputs], 2, layer="trunk.3")[0] for how in ("none", "cat")]
    np.testing.assert_allclose(maps[1].raw, maps[0].raw, atol=1e-6)
    assert feature_maps(Siamese("maps", "cat", 0).eval(), inputs, ["trunk.1"]).axes


class FusedParts(nn.Module):
    """Joins two parts of its image to one batch, and then to one row again, which a body reads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.fc = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU()), nn.Linear(8, 3)
        self.body = nn.Sequential(nn.Conv2d(12, 8, 3, 1, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1), nn.Tanh())

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        parts = self.stem(CUTS["parts by a mask"](image, mask)).chunk(2)
        return self.fc(self.body(torch.cat(parts, 1)).mean((2, 3)))  # type: ignore[no-any-return]


def test_depths_leave_out_rows_that_are_no_views() -> None:
    image, mask = torch.rand(1, 3, 40, 48), torch.rand(1, 3, 40, 48)
    (result,) = camtool.explain(FusedParts().eval(), camtool.Inputs(image, mask), 1, method="faithcam")
    assert result.layer == "body"


def test_a_changed_way_to_join_the_inputs_is_noticed() -> None:
    net, inputs = Siamese("maps", "stack", 0).eval(), draw_inputs(2)
    before = camtool.explain(net, inputs, 2, layer="trunk.3")
    net.joined = "none"
    after = camtool.explain(net, inputs, 2, layer="trunk.3")
    assert [each.raw.shape for each in after] == [(10, 12)] * 2
    np.testing.assert_allclose(after[0].raw, before[0].raw, atol=1e-6)


@pytest.mark.parametrize("layer", ["0", "1"])
@pytest.mark.parametrize("joined", ["stack", "cat"])
def test_feature_maps_are_those_of_the_image(joined: str, layer: str) -> None:
    inputs = draw_inputs(1)
    view = camtool.Inputs(*inputs.entries.values(), image=1)
    figure = feature_maps(Siamese("maps", joined, 0).eval(), view, [f"trunk.{layer}"])
    alone = feature_maps(Siamese("maps", "none", 0).other.eval(), [*inputs.entries.values()][1], [layer])
    ours, expected = ([each.get_array() for each in drawn.axes[0].images] for drawn in (figure, alone))
    assert len(ours) > 1
    np.testing.assert_allclose(ours, expected, atol=1e-6)


@pytest.mark.parametrize("in_turn", [True, False])
def test_rows_are_split_by_image_and_joined_again(in_turn: bool) -> None:
    images = torch.arange(6).reshape(3, 2)  # two entries for each of three images
    batch = images.flatten() if in_turn else images.T.flatten()
    entries = EntriesPerImage(2, in_turn)
    assert_close(entries.split(batch), images)
    assert_close(entries.join(images), batch)
