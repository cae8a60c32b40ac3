"""Depths: layers on all paths to a layer, spread over the last stages."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import Tensor, nn

import camtool
from camtool.errors import LayerError
from camtool.layers.depths import find_depths
from camtool.layers.layouts import Layer, Layout
from camtool.layers.selection import find_layers
from tests.helpers.nets import Apply, small_detector
from tests.hooks.state.test_no_trace import unchanged


def conv(channels: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(channels, 3, stride, 1), nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


class Block(nn.Module):
    """A residual block that adds and rectifies in place."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(conv(channels), nn.LazyConv2d(channels, 3, padding=1), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        y += x
        return y.relu_()


class Skipping(nn.Module):
    """A U-Net of two levels: the output of ``fine`` bypasses ``coarse``."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.fine, self.coarse = conv(4), conv(4), conv(4, 2)
        self.up, self.last = nn.Upsample(scale_factor=2), conv(4)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(3))

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(self.stem(x))
        return self.head(self.last(torch.cat([fine, self.up(self.coarse(fine))], 1)))


def made(net: nn.Module, size: int = 32) -> tuple[nn.Module, Tensor]:
    x = torch.randn(1, 3, size, size)
    net.eval()(x)
    return net, x


def staged(*blocks: int) -> tuple[nn.Module, Tensor]:
    """Stages of so many residual blocks, each after a convolution with stride 2."""
    stages = [nn.Sequential(conv(4, 2), *(Block(4) for _ in range(count))) for count in blocks]
    return made(nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(3)))


def names(net: nn.Module, x: Tensor, depths: object, layer: str | None = None) -> list[str]:
    (chosen,) = find_layers(net, x, None if layer is None else [layer])
    return [each.name for each in find_depths(net, x, chosen, depths)]  # type: ignore[arg-type]


def test_the_middle_and_the_end_of_the_last_two_stages() -> None:
    net, x = staged(3, 3, 3)
    assert find_layers(net, x)[0].name == "2"
    assert names(net, x, 4) == ["1.1", "1", "2.1"]


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, []), (2, ["2.1"]), (3, ["1", "2.1"]), (5, ["0", "1.1", "1", "2.1"]), (6, ["0.1", "0", "1.1", "1", "2.1"])],
)
def test_the_number_of_depths_counts_the_layer(count: int, expected: list[str]) -> None:
    assert names(*staged(3, 3, 3), count) == expected


def test_a_network_of_one_stage_is_divided_into_equal_parts() -> None:
    net, x = made(nn.Sequential(*(Block(3) for _ in range(8)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(2)))
    assert names(net, x, 4) == ["1", "3", "5"]


def test_a_few_layers_give_few_depths() -> None:
    net, x = made(nn.Sequential(conv(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(2)))
    assert names(net, x, 4) == []


def test_norms_and_activations_are_no_depths_of_their_own() -> None:
    net, x = made(nn.Sequential(conv(4, 2), conv(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(2)))
    assert names(net, x, 4) == ["0"]  # and neither 0.0 nor 0.1, the convolution and the norm before its ReLU


def test_layers_beside_a_shortcut_are_no_depths() -> None:
    """The sum is in place, so the tensor of the last norm ends as the output of the block."""
    net, x = staged(2)
    assert names(net, x, 50) == ["0.0", "0.1"]


def test_a_skip_connection_leaves_what_lies_before_it() -> None:
    net, x = made(Skipping())
    assert find_layers(net, x)[0].name == "last"
    assert names(net, x, 50) == ["stem", "fine"]


def test_depths_lead_to_the_layer_that_the_user_names() -> None:
    net, x = staged(3, 3, 3)
    assert names(net, x, 4, "1") == ["0.1", "0", "1.1"]
    assert names(net, x, 4, "1.2.inner") == ["0.1", "0", "1.1"]


def test_named_depths() -> None:
    net, x = staged(3, 3, 3)
    assert names(net, x, ["0", "1.1.inner"]) == ["0", "1.1.inner"]
    for wrong in ("2", "2.3", "2.2.inner.0"):
        with pytest.raises(LayerError, match=f"depths: layer '{wrong}' does not lead to layer '1'"):
            names(net, x, [wrong], "1")
    with pytest.raises(LayerError, match="depths: layer '1' does not lead to layer '1'"):
        names(net, x, ["1"], "1")
    with pytest.raises(LayerError, match=r"no layer '1\.9'"):
        names(net, x, ["1.9"])


def test_a_layer_that_is_used_several_times_is_on_all_paths() -> None:
    net, x = made(
        nn.Sequential(conv(4, 2), Apply(lambda a: a.relu() + a.sigmoid() + a), nn.Sequential(conv(4), conv(4)))
    )
    layer = Layer("2.1", Layout("channels first", (16, 16)))
    assert [each.name for each in find_depths(net, x, layer, 4)] == ["1", "2.0"]


class Shuffled(nn.Module):
    """Tokens that are in another order than the image's rows in the first of its two stages, as in Hiera."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.first = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.last = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 5)
        self.order = torch.randperm(64)

    def forward(self, x: Tensor) -> Tensor:
        shuffled = self.first(self.patches(x).flatten(2).mT[:, self.order])
        logits: Tensor = self.head(self.last(shuffled[:, self.order.argsort()]).mean(1))
        return logits


def test_depths_that_cannot_carry_a_map_are_left_out() -> None:
    model, photo = Shuffled().eval(), torch.rand(1, 3, 32, 32)
    (layer,) = find_layers(model, photo, ["last"])
    assert [depth.name for depth in find_depths(model, photo, layer, 6)] == ["patches", "last.1"]
    assert camtool.explain(model, photo, 1, method="faithcam", depths=6)[0].raw.shape == (8, 8)
    with pytest.raises(LayerError, match=r"layer 'first' cannot carry a map: its tokens are not in the order"):
        find_depths(model, photo, layer, ["first"])


def test_the_search_leaves_no_trace() -> None:
    net, x = staged(2, 2)
    layer = find_layers(net, x)[0]
    with unchanged(net):
        find_depths(net, x, layer, 4)


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("resnet18", 224, ["layer3.0", "layer3", "layer4.0"]),
        ("mobilenet_v2", 224, ["features.10", "features.14.conv.0", "features.15"]),
        ("convnext_tiny", 224, ["features.5.4", "features.6.0", "features.7.1"]),
        ("swin_t", 224, ["features.5.2", "features.5", "features.7.0"]),
        ("vit_b_16", 112, [f"encoder.layers.encoder_layer_{block}" for block in (2, 4, 7)]),
    ],
)
def test_depths_of_known_networks(name: str, size: int, expected: list[str]) -> None:
    options = {"image_size": size} if name == "vit_b_16" else {}
    net = torchvision.models.get_model(name, weights=None, **options).eval()
    for parameter in net.parameters():
        if not parameter.any():
            nn.init.normal_(parameter)
    assert names(net, torch.randn(1, 3, size, size), 4) == expected


def test_a_detector_has_depths_in_its_backbone() -> None:
    detector = small_detector()
    x = torch.rand(1, 3, 224, 224)
    found = names(detector, x, 4)
    assert found
    assert all(name.startswith("backbone.") for name in found)
    assert camtool.explain(detector, x, method="faithcam")[0].raw.any()
