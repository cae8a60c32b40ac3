"""Models that run their layers on one image after the other: the maps of a twin that does not, or an error."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import camtool
from camtool.errors import ForwardError, LayerError
from camtool.hooks.observation import resume


class Together(nn.Module):
    """Two convolutions, the mean over the positions, and a head with positive weights, so that no map is empty."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU())
        self.head = nn.Linear(16, 5)
        self.head.weight.data.abs_()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x).mean((2, 3)))
        return logits


class Apart(Together):
    """The same for one image after the other."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([super(Apart, self).forward(image[None]) for image in x])


class ClipsTogether(Together):
    """The frames of all clips ``(N, C, T, H, W)`` in one batch."""

    def forward(self, x: Tensor) -> Tensor:
        frames = super().forward(x.transpose(1, 2).flatten(0, 1))
        return frames.unflatten(0, (len(x), -1)).mean(1)


class ClipsApart(Together):
    """The frames of one clip after those of the other."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([super(ClipsApart, self).forward(clip.transpose(0, 1)).mean(0) for clip in x])


PAIRS = {"images": (Apart, Together, (2, 3, 32, 32)), "clips": (ClipsApart, ClipsTogether, (2, 3, 4, 32, 32))}


@pytest.mark.parametrize("layer", [None, "features.3"])
@pytest.mark.parametrize("method", ["gradcam", "ablationcam", "faithcam"])
@pytest.mark.parametrize("kind", PAIRS)
def test_one_image_at_a_time_has_the_map_of_the_twin(kind: str, method: str, layer: str | None) -> None:
    apart, together, shape = PAIRS[kind]
    batch = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    expected = camtool.explain(together().eval(), batch, 1, method=method, layer=layer)
    for image, one in zip(batch, expected, strict=True):
        assert one.raw.max() > 0
        (alone,) = camtool.explain(apart().eval(), image[None], 1, method=method, layer=layer)
        assert alone.layer == one.layer
        assert_close(alone.raw, one.raw, rtol=1e-4, atol=1e-5 * float(one.raw.max()))
    for settings in ({}, {"batch_size": 1}):
        one_by_one = camtool.explain(apart().eval(), batch, 1, method=method, layer=layer, **settings)
        for alone, one in zip(one_by_one, expected, strict=True):
            assert_close(alone.raw, one.raw, rtol=1e-4, atol=1e-5 * float(one.raw.max()))


class Joined(Apart):
    """Scores of each image that depend on the one before it."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits + logits.roll(1, 0) * (len(x) > 1)


def test_images_that_a_loop_joins_are_not_explained_alone() -> None:
    batch = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with pytest.raises(LayerError, match="joins the images of a batch"):
        camtool.explain(Joined().eval(), batch, 1, layer="features")
    assert len(camtool.explain(Joined().eval(), batch, 1, layer="features", batch_size=1)) == 2


@pytest.mark.parametrize("method", ["fullgrad", "inputxgradient"])
def test_methods_at_the_input_take_the_whole_batch(method: str) -> None:
    batch = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    pairs = [camtool.explain(net().eval(), batch, 1, method=method) for net in (Apart, Together)]
    for one, other in zip(*pairs, strict=True):
        assert_close(one.raw, other.raw, rtol=1e-4, atol=1e-5 * float(abs(other.raw).max()))


def test_the_tail_of_a_loop_takes_one_variant_at_a_time() -> None:
    clip, model = torch.rand(1, 3, 4, 32, 32), ClipsApart().eval()
    variants = torch.rand(5, 4, 16, 7, 7)
    entries = camtool.layers.layouts.Layout("frames", (4, 7, 7)).entries
    with pytest.raises(ForwardError, match="on one image after the other"):
        resume(model, "features", variants, clip, entries=entries)
    by_hand = model.head(variants.mean((3, 4))).mean(1)
    one_by_one = [resume(model, "features", variant[None], clip, entries=entries) for variant in variants]
    assert_close(torch.cat(one_by_one), by_hand)
