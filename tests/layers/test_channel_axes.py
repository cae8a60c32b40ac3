"""The axis of the channels: what is known from a module, and what follows for the modules around it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.ao.nn.quantized import Conv2d as QuantizedConv2d
from torchvision.models.convnext import CNBlockConfig, ConvNeXt, LayerNorm2d
from torchvision.ops import FrozenBatchNorm2d, StochasticDepth

import camtool
from camtool.hooks.tracing import TracedCall, trace
from camtool.layers.channel_axes import ChannelAxis, find_channel_axes
from camtool.layers.layouts import Layout
from camtool.layers.selection import find_layers
from tests.helpers.nets import Apply
from tests.layers.nets import Residual, build_small_swin, build_wide_cnn

FIRST, LAST = "channels first", "channels last"
CERTAIN, LIKELY = True, False

CUBE = (1, 8, 8, 8)
"""Shape with as many channels as rows and columns."""


def find_axes(model: nn.Module, x: Tensor) -> dict[str, tuple[int, bool] | None]:
    """Return for each module the axis of its channels, and whether that is certain."""
    calls = trace(model, x)
    return {
        call.name: found and (found.axis, found.is_certain)
        for call, found in zip(calls, find_channel_axes(calls), strict=True)
    }


# ---------------------------------------------------------------------------------------- what is known from a module


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv1d(8, 8, 3, padding=1), (1, 8, 8)),
        (nn.Conv2d(8, 8, 3, padding=1), CUBE),
        (nn.Conv3d(8, 8, 3, padding=1), (1, 8, 8, 8, 8)),
        (nn.ConvTranspose2d(8, 8, 1), CUBE),
        (nn.BatchNorm2d(8), CUBE),
        (nn.SyncBatchNorm(8), CUBE),
        (nn.InstanceNorm2d(8), CUBE),
        (nn.GroupNorm(2, 8), CUBE),
        (nn.LocalResponseNorm(2), CUBE),
        (nn.MaxPool2d(2), (1, 8, 16, 16)),
        (nn.AvgPool2d(2), (1, 8, 16, 16)),
        (nn.LPPool2d(2, 2), (1, 8, 16, 16)),
        (nn.AdaptiveAvgPool2d(8), (1, 8, 16, 16)),
        (nn.AdaptiveMaxPool2d(8), (1, 8, 16, 16)),
        (nn.FractionalMaxPool2d(2, 8), (1, 8, 16, 16)),
        (nn.ZeroPad2d(1), (1, 8, 6, 6)),
        (nn.ReflectionPad2d(1), (1, 8, 6, 6)),
        (nn.Upsample(scale_factor=2), (1, 8, 4, 4)),
        (nn.PixelShuffle(2), (1, 32, 4, 4)),
        (nn.PixelUnshuffle(2), (1, 2, 16, 16)),
        (nn.ChannelShuffle(2), CUBE),
        (nn.Dropout2d(), CUBE),
        (nn.Softmax2d(), CUBE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_convolutions_and_their_kin_have_channels_first(module: nn.Module, shape: tuple[int, ...]) -> None:
    assert find_axes(nn.Sequential(module).eval(), torch.rand(shape))["0"] == (1, CERTAIN)


@pytest.mark.parametrize("module", [FrozenBatchNorm2d(8), LayerNorm2d(8)], ids=lambda value: type(value).__name__)
def test_a_name_that_ends_in_2d_makes_channels_first_likely(module: nn.Module) -> None:
    assert find_axes(nn.Sequential(module), torch.rand(CUBE))["0"] == (1, LIKELY)


@pytest.mark.parametrize("module", [nn.LayerNorm(8), nn.Linear(8, 8)], ids=lambda value: type(value).__name__)
def test_modules_that_work_along_the_last_axis_make_channels_last_likely(module: nn.Module) -> None:
    assert find_axes(nn.Sequential(module), torch.rand(CUBE))["0"] == (3, LIKELY)


class NormOfMaps(nn.LayerNorm):
    """A layer norm over the channels of ``(N, C, h, w)``, with a name that does not say so."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class ChannelsLastConvolution(nn.Conv2d):
    """A convolution that returns its channels last."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).movedim(1, -1)


@pytest.mark.parametrize(
    ("module", "shape"),
    [(NormOfMaps(8), CUBE), (ChannelsLastConvolution(8, 8, 1), (1, 8, 4, 4)), (nn.Embedding(9, 8), None)],
    ids=["overridden forward", "another number of channels", "no convention"],
)
def test_nothing_is_known_of_a_module_with_its_own_forward(module: nn.Module, shape: tuple[int, ...] | None) -> None:
    x = torch.rand(shape) if shape else torch.zeros(1, 8, 8, dtype=torch.long)
    assert find_axes(nn.Sequential(module), x)["0"] is None


@pytest.mark.filterwarnings("ignore")  # torch warns about its own quantized modules
def test_a_quantized_convolution_is_known_by_its_name() -> None:
    call = TracedCall("0", QuantizedConv2d(3, 8, 4), CUBE, passes_through=False, follows_previous=False, source=None)
    assert find_channel_axes([call]) == [ChannelAxis(1, is_certain=False)]


# ------------------------------------------------------------------------------------------ what follows for others


@pytest.mark.parametrize(
    "module",
    [nn.ReLU(), nn.ReLU(inplace=True), nn.GELU(), nn.SiLU(), nn.PReLU(8), nn.Softmax(1), nn.Dropout(), nn.Identity()],
    ids=str,
)
def test_an_elementwise_module_has_the_layout_of_its_input(module: nn.Module) -> None:
    after_a_convolution = nn.Sequential(nn.Conv2d(8, 8, 1), module).eval()
    assert find_axes(after_a_convolution, torch.rand(CUBE))["1"] == (1, CERTAIN)
    after_a_norm = nn.Sequential(nn.LayerNorm(8), module).eval()
    assert find_axes(after_a_norm, torch.rand(CUBE))["1"] == (3, LIKELY)


def test_the_input_of_a_convolution_has_channels_first() -> None:
    model = nn.Sequential(Apply(torch.tanh), nn.ReLU(), nn.Conv2d(8, 8, 1))
    assert find_axes(model, torch.randn(CUBE)) == dict.fromkeys(("0", "1", "2", ""), (1, CERTAIN))


def test_a_container_has_the_layout_of_its_last_child() -> None:
    model = nn.Sequential(nn.Sequential(nn.Sequential(nn.Conv2d(8, 8, 1))), Apply(torch.tanh))
    assert find_axes(model, torch.rand(CUBE)) == {
        "0.0.0": (1, CERTAIN),
        "0.0": (1, CERTAIN),
        "0": (1, CERTAIN),
        "1": None,
        "": None,
    }


def test_a_permuted_view_has_its_channels_on_another_axis() -> None:
    to_last, to_first = Apply(lambda x: x.permute(0, 2, 3, 1)), Apply(lambda x: x.permute(0, 3, 1, 2))
    model = nn.Sequential(nn.Conv2d(8, 8, 1), to_last, nn.Identity(), to_first, nn.GELU())
    found = find_axes(model, torch.rand(CUBE))
    assert found == {
        "0": (1, CERTAIN),
        "1": (3, CERTAIN),
        "2": (3, CERTAIN),
        "3": (1, CERTAIN),
        "4": (1, CERTAIN),
        "": (1, CERTAIN),
    }


def test_a_certain_axis_overrides_a_likely_one() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU(), nn.LayerNorm(8), nn.Conv2d(8, 8, 1))  # along the width
    assert find_axes(model, torch.rand(CUBE)) == dict.fromkeys(("0", "1", "2", "3", ""), (1, CERTAIN))


@pytest.mark.parametrize(
    ("inside", "axis"),
    [
        ([nn.Conv2d(8, 8, 1), nn.ReLU()], (1, LIKELY)),
        ([nn.LayerNorm(8), nn.Linear(8, 8)], (3, LIKELY)),
        ([nn.Conv2d(8, 8, 1), Apply(torch.tanh), nn.Linear(8, 8)], None),  # contradictory
    ],
    ids=["convolution", "norm", "both"],
)
def test_a_residual_block_has_the_layout_of_what_is_inside(inside: list[nn.Module], axis: tuple[int, bool]) -> None:
    model = nn.Sequential(Residual(*inside), Apply(torch.tanh))
    assert find_axes(model, torch.rand(CUBE))["0"] == axis


# ---------------------------------------------------------------------------------------------- maps of whole models


def compute_gradcam(model: nn.Sequential, upto: int, x: Tensor, target: int) -> Tensor:
    """Return Grad-CAM at the output of the first ``upto`` layers, written out."""
    maps = model[:upto](x).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model[upto:](maps)[0, target], maps)
    return (gradient.mean((2, 3), keepdim=True) * maps).sum(1).relu()[0].detach()


@pytest.mark.parametrize("seed", [2, 4, 5, 9, 10])
def test_gradcam_is_right_with_as_many_channels_as_rows(seed: int) -> None:
    model, x = build_wide_cnn(seed), torch.randn(1, 3, 32, 32)
    for target in range(5):
        expected = compute_gradcam(model, 6, x, target)
        torch.testing.assert_close(torch.as_tensor(camtool.explain(model, x, target)[0].raw), expected)


def build_random_cnn(seed: int) -> tuple[nn.Sequential, Tensor]:
    """Return a random network whose maps have as many channels as rows and columns, and an image."""
    torch.manual_seed(seed)
    width = int(torch.randint(2, 9, ()))
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, stride=4)]
    for _ in range(int(torch.randint(1, 5, ()))):
        kernel = 2 * int(torch.randint(0, 4, ())) + 1
        options = [
            [nn.Conv2d(width, width, kernel, padding=kernel // 2)],
            [nn.BatchNorm2d(width), nn.ReLU(inplace=True)],
            [nn.GELU(), nn.Dropout()],
            [Residual(nn.Conv2d(width, width, kernel, padding=kernel // 2), nn.SiLU())],
            [nn.MaxPool2d(3, stride=1, padding=1), nn.GroupNorm(1, width)],
            [nn.Sequential(nn.Conv2d(width, width, kernel, padding=kernel // 2), nn.ReLU())],
        ]
        layers += options[int(torch.randint(len(options), ()))]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 3)]
    if torch.rand(()) < 0.5:
        head = [Apply(lambda x: x.mean((2, 3))), nn.Linear(width, 3)]
    return nn.Sequential(*layers, *head).eval(), torch.randn(1, 3, 4 * width, 4 * width)


@pytest.mark.parametrize("seed", range(40))
def test_gradcam_is_right_on_random_networks(seed: int) -> None:
    model, x = build_random_cnn(seed)
    [explanation] = camtool.explain(model, x, 1)
    assert find_layers(model, x)[0].layout == Layout(FIRST, (x.shape[-1] // 4,) * 2)
    expected = compute_gradcam(model, int(explanation.layer) + 1, x, 1)
    torch.testing.assert_close(torch.as_tensor(explanation.raw), expected, rtol=1e-4, atol=1e-6)


class OneConvolution(nn.Module):
    """The network of Captum's own test of Grad-CAM: two channels over 2 x 2 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.relu1 = nn.Conv2d(1, 2, 3), nn.ReLU()
        self.fc1, self.relu2 = nn.Linear(8, 4), nn.ReLU()
        with torch.no_grad():
            self.conv1.weight.fill_(1)
            self.conv1.bias.copy_(torch.tensor([-50.0, -75.0]))
            self.fc1.weight.copy_(torch.tensor([1.0] * 5 + [-1.0] * 3).expand(4, 8))
            self.fc1.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu2(self.fc1(self.relu1(self.conv1(x)).flatten(1)))


@pytest.mark.parametrize(
    ("layer", "raw"), [("conv1", [[11.25, 13.5], [20.25, 22.5]]), ("relu1", [[0.0, 4.0], [28.0, 32.5]])]
)
def test_gradcam_equals_the_numbers_in_captums_test(layer: str, raw: list[list[float]]) -> None:
    x = torch.arange(16.0).view(1, 1, 4, 4)
    [explanation] = camtool.explain(OneConvolution(), x, 0, layer=layer)
    assert explanation.raw.tolist() == raw


@pytest.mark.parametrize("seed", range(4))
def test_signals_and_volumes_have_channels_first(seed: int) -> None:
    torch.manual_seed(seed)
    for convolution, pool, axes_count in ((nn.Conv1d, nn.AdaptiveAvgPool1d, 1), (nn.Conv3d, nn.AdaptiveAvgPool3d, 3)):
        wide = convolution(4, 4, 5, padding=2)
        body = [convolution(1, 4, 4, stride=4), nn.ReLU(), wide, nn.ReLU(), convolution(4, 4, 5, padding=2), nn.ReLU()]
        model = nn.Sequential(*body, pool(1), nn.Flatten(), nn.Linear(4, 3))
        (layer,) = find_layers(model, torch.randn(1, 1, *[16] * axes_count))
        assert (layer.name, layer.layout) == ("5", Layout(FIRST, (4,) * axes_count))


# --------------------------------------------------------------------------------------------------- channels last


@pytest.mark.parametrize("name", ["features.0", "features.1.0", "features.1", "norm"])
def test_a_swin_transformer_has_channels_last(name: str) -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        (layer,) = find_layers(
            build_small_swin(), torch.randn(1, 3, 64, 64), [name]
        )  # 16 channels over 16 x 16 positions
        assert layer.layout == Layout(LAST, (16, 16))


def test_a_swin_transformer_is_explained_at_its_last_norm() -> None:
    assert find_layers(build_small_swin(), torch.randn(1, 3, 64, 64))[0].name == "norm"


@pytest.mark.parametrize("seed", range(4))
def test_a_convnext_has_channels_first_except_inside_its_blocks(seed: int) -> None:
    torch.manual_seed(seed)
    model = ConvNeXt([CNBlockConfig(16, None, 2)], stochastic_depth_prob=0.1, num_classes=5).eval()
    assert any(isinstance(module, StochasticDepth) for module in model.modules())
    x = torch.randn(1, 3, 64, 64)
    names = ["features.1.0.block.0", "features.1.0.block.2", "features.1.0.block.5", "features.1.0", "features"]
    kinds = {layer.name: layer.layout.kind for layer in find_layers(model, x, names)}
    assert kinds == dict(zip(names, [FIRST, LAST, LAST, FIRST, FIRST], strict=True))
    assert find_layers(model, x)[0].name == "features"
