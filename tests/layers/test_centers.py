"""Centers of cells by arithmetic, against the centroids of gradients, which know nothing of strides and padding."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import camtool
from camtool.evidence.forward_pass import run_forward_pass
from camtool.geometry.cell_centers import CellCenters
from camtool.hooks.structures.caches import forget_model
from camtool.layers import centers
from camtool.layers.centers import find_centers, read_centers
from camtool.layers.layouts import Layer, Layout
from tests.hooks.state.test_no_trace import unchanged


def average(window: int, stride: int = 1, padding: int = 0, dilation: int = 1, axes: int = 2) -> nn.Module:
    """Return a convolution that averages, so that the centroid of a gradient is the middle of what a cell sees."""
    layer = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[axes](1, 1, window, stride, padding, dilation, bias=False)
    nn.init.constant_(layer.weight, 1)
    return layer


class Apply(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.inner, self.shortcut = inner, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.shortcut(x)


class Gated(nn.Module):
    """Squeeze and excitation: the gate is the same at all positions and must not count."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + x.mean((2, 3), keepdim=True)).sigmoid()


class MergedPatches(nn.Module):
    """Swin's merging of 2 x 2 patches in a tensor with its channels last."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        parts = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return torch.cat(parts, -1).mean(-1, keepdim=True).permute(0, 3, 1, 2)


def unpack_pixels(x: Tensor) -> Tensor:
    return functional.pixel_unshuffle(x, 2).mean(1, keepdim=True)


def unfold(x: Tensor) -> Tensor:
    return x.unfold(2, 8, 4).unfold(-2, 4, 4).mean((-1, -2))


NETS: dict[str, Callable[[], nn.Module]] = {
    "ResNet's strides": lambda: nn.Sequential(average(7, 2, 3), average(3, 2, 1), average(3, 2, 1), average(3, 1, 1)),
    "valid padding": lambda: nn.Sequential(average(3, 2), average(3, 1), average(3, 2)),
    "padding by name": lambda: nn.Sequential(named("valid", 3, 2), named("same", 3, 1), average(3, 2, 1)),
    "dilation": lambda: nn.Sequential(average(3, 2, 1), average(3, 1, 2, 2)),
    "even kernel": lambda: nn.Sequential(average(4, 2, 1), average(2, 2)),
    "patches": lambda: average(4, 4),
    "average pooling": lambda: nn.Sequential(average(3, 2, 1), nn.AvgPool2d(2), nn.AvgPool2d(3, 1, 1)),
    "TensorFlow's same padding": lambda: nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), average(3, 2), average(3, 1, 1)),
    "padding on one side": lambda: nn.Sequential(nn.ZeroPad2d((3, 0, 1, 0)), average(3, 2)),
    "negative padding": lambda: nn.Sequential(nn.ZeroPad2d((-3, 0, -1, 0)), average(3, 2)),
    "padding that shifts": lambda: nn.Sequential(nn.ZeroPad2d((-1, 1, -3, 3)), average(3, 2)),
    "reflection": lambda: nn.Sequential(nn.ReflectionPad2d((2, 1, 2, 1)), average(4, 2)),
    "crop": lambda: nn.Sequential(average(3, 2, 1), Apply(lambda x: x[:, :, 2:-1, 3:])),
    "subsampling": lambda: nn.Sequential(average(3, 1, 1), Apply(lambda x: x[..., 1::2, ::2])),
    "merged patches": lambda: nn.Sequential(average(4, 4), MergedPatches()),
    "unfolded patches": lambda: nn.Sequential(average(3, 2, 1), Apply(lambda x: x[:, :, 5:, :-7]), Apply(unfold)),
    "unfolded channels": lambda: Apply(lambda x: x.expand(-1, 5, -1, -1).unfold(1, 2, 2).mean((1, -1))[:, None]),
    "pixels as channels": lambda: nn.Sequential(average(3, 1, 1), Apply(unpack_pixels)),
    "transposed convolution": lambda: nn.Sequential(average(3, 2, 1), average(3, 2, 1), transposed(4, 2, 1)),
    "transposed, odd": lambda: nn.Sequential(average(3, 2, 1), average(3, 2, 1), transposed(3, 1, 1)),
    "residual": lambda: nn.Sequential(average(3, 2, 1), Residual(average(3, 1, 1), nn.Identity()), average(3, 2, 1)),
    "gate": lambda: nn.Sequential(average(3, 2, 1), Gated(), average(3, 2, 1)),
    "adaptive pooling": lambda: nn.Sequential(average(3, 2, 1), nn.AdaptiveAvgPool2d((8, 12))),
}


def named(padding: str, window: int, stride: int) -> nn.Module:
    layer = nn.Conv2d(1, 1, window, stride, padding, bias=False)
    nn.init.constant_(layer.weight, 1)
    return layer


def transposed(window: int, stride: int, padding: int) -> nn.Module:
    layer = nn.ConvTranspose2d(1, 1, window, stride, padding, bias=False)
    nn.init.constant_(layer.weight, 1)
    return layer


def read(model: nn.Module, image: Tensor) -> tuple[Any, Tensor]:
    image = image.requires_grad_()
    output = model(image)
    return read_centers([(output, output.shape[2:])], image)[0], output


def measure(output: Tensor, image: Tensor, cell: tuple[int, ...]) -> list[float]:
    """Return the centroid along each axis of the gradient of one cell."""
    (gradient,) = torch.autograd.grad(output[(slice(None), slice(None), *cell)].sum(), image, retain_graph=True)
    weight = gradient.abs().sum((0, 1)).double()
    lines = [weight.movedim(axis, 0).reshape(pixels, -1).sum(1) for axis, pixels in enumerate(weight.shape)]
    return [float((line * (torch.arange(len(line)) + 0.5)).sum() / line.sum()) for line in lines]


@pytest.mark.parametrize("name", NETS)
def test_centers_are_the_centroids_of_what_the_cells_see(name: str) -> None:
    image = torch.rand(1, 1, 64, 96, dtype=torch.float32)
    centers, output = read(NETS[name](), image)
    assert centers is not None
    assert centers.size == (64, 96)
    for cell in (tuple(cells // 2 for cells in output.shape[2:]), tuple(cells // 2 - 1 for cells in output.shape[2:])):
        expected = measure(output, image, cell)
        found = [axis.offset + axis.stride * index for axis, index in zip(centers.axes, cell, strict=True)]
        # Gates add a little of all positions; every second cell of a transposed convolution sees more on one side.
        tolerance = {"gate": 0.2, "transposed convolution": 1.01}.get(name, 1e-3)
        assert found == pytest.approx(expected, abs=tolerance)


def test_numbers_by_hand() -> None:
    """A 3 x 3 convolution with stride 2 and padding 1 sees pixels 2 j - 1 to 2 j + 1: its center is 2 j + 0.5."""
    centers, _ = read(nn.Sequential(*(average(3, 2, 1) for _ in range(5))), torch.rand(1, 1, 224, 224))
    assert [(axis.offset, axis.stride, axis.field) for axis in centers.axes] == [(0.5, 32, 63)] * 2
    assert list(centers.axes[0].list_centers(3)) == [0.5, 32.5, 64.5]
    assert centers.compute_shift((7, 7)) == (-15.5, -15.5)


@pytest.mark.parametrize("axes", [1, 3])
def test_signals_and_volumes(axes: int) -> None:
    image = torch.rand(1, 1, *[32] * axes)
    centers, output = read(nn.Sequential(average(3, 2, 1, axes=axes), average(3, 2, 1, axes=axes)), image)
    cell = (3,) * axes
    expected = measure(output, image, cell)
    assert [axis.offset + 3 * axis.stride for axis in centers.axes] == pytest.approx(expected)


def test_signals_that_torch_pools_as_images() -> None:
    image = torch.rand(1, 1, 32)
    for pool in (nn.MaxPool1d(3, 2, 1), nn.AvgPool1d(2)):
        centers, _ = read(nn.Sequential(average(3, 2, 1, axes=1), pool), image)
        expected = 0.5 if isinstance(pool, nn.MaxPool1d) else 1.5
        assert (centers.axes[0].offset, centers.axes[0].stride) == (expected, 4)


@pytest.mark.parametrize(("ceil_mode", "cells"), [(False, 7), (True, 8)])
def test_max_pooling(ceil_mode: bool, cells: int) -> None:
    centers, output = read(nn.MaxPool2d(3, 2, ceil_mode=ceil_mode), torch.rand(1, 1, 16, 16))
    assert output.shape[-1] == cells
    assert [(axis.offset, axis.stride, axis.field) for axis in centers.axes] == [(1.5, 2, 3)] * 2


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_interpolation_keeps_the_middle(mode: str) -> None:
    corners = {} if mode == "nearest" else {"align_corners": False}
    net = nn.Sequential(average(3, 4, 1), nn.Upsample(scale_factor=2, mode=mode, **corners))
    centers, _ = read(net, torch.rand(1, 1, 64, 64))
    assert [(axis.offset, axis.stride) for axis in centers.axes] == [(-0.5, 2)] * 2


def test_aligned_corners() -> None:
    net = nn.Sequential(average(3, 4, 1), nn.Upsample(size=31, mode="bilinear", align_corners=True))
    centers, _ = read(net, torch.rand(1, 1, 64, 64))  # 16 cells at 0.5, 4.5, ... become 31
    assert [(axis.offset, axis.stride) for axis in centers.axes] == [(0.5, 2)] * 2


class SpaceToDepth(nn.Module):
    """Pixels become channels by a reshape, which arithmetic does not understand, so nothing is moved."""

    def forward(self, x: Tensor) -> Tensor:
        n, _, h, w = x.shape
        return x.view(n, 1, h // 4, 4, w // 4, 4).permute(0, 3, 5, 1, 2, 4).reshape(n, 16, h // 4, w // 4)


@pytest.mark.parametrize(
    "net",
    [
        pytest.param(SpaceToDepth(), id="at the end"),
        pytest.param(nn.Sequential(SpaceToDepth(), nn.Conv2d(16, 1, 3, 2, 1)), id="before a convolution"),
        pytest.param(Residual(nn.Conv2d(1, 1, 3, 2, 1), Apply(lambda x: torch.rand_like(x)[..., ::2, ::2])), id="read"),
        pytest.param(Residual(nn.Conv2d(1, 1, 3, 2, 1), nn.Upsample(size=16)), id="read, two ways"),
    ],
)
def test_what_is_not_understood_moves_nothing(net: nn.Module) -> None:
    centers, _ = read(net, torch.rand(1, 1, 32, 32))
    understood = not isinstance(net, SpaceToDepth) and not isinstance(getattr(net, "0", None), SpaceToDepth)
    assert (centers is not None) == understood


def test_as_many_unfolded_channels_as_rows_are_not_understood() -> None:
    net = Apply(lambda x: x.expand(-1, 32, -1, -1).unfold(2, 4, 4).mean(-1))
    assert read(net, torch.rand(1, 1, 32, 32))[0] is None
    assert read(net, torch.rand(1, 1, 32, 48))[0] is not None


def build_one_sided(sides: tuple[float, ...], *, filters: int = 32) -> nn.Module:
    """Return three strided convolutions whose filters have these mean weights along both axes."""
    layers = [nn.Conv2d(channels, filters, 3, 2, 1) for channels in (3, filters, filters)]
    for layer in layers:
        scale = torch.tensor(sides)
        layer.weight.data = torch.randn(layer.weight.shape) * scale * scale[:, None]
    return nn.Sequential(*layers)


def test_filters_that_weigh_one_side_more_move_the_centers() -> None:
    """Trained networks have such filters. The gradients' centroids, over many projections, are the truth."""
    torch.manual_seed(0)
    image = torch.rand(1, 3, 64, 64)
    centers, output = read(build_one_sided((2.0, 1.0, 0.5)), image)
    total = torch.zeros_like(image)
    for _ in range(200):
        (gradient,) = torch.autograd.grad(output[0, :, 4, 4], image, torch.randn(32), retain_graph=True)
        total += gradient.square()
    lines = [total.sum((0, 1, 3)), total.sum((0, 1, 2))]
    expected = [float((line * (torch.arange(64) + 0.5)).sum() / line.sum()) for line in lines]
    found = [axis.offset + 4 * axis.stride for axis in centers.axes]
    assert found == pytest.approx(expected, abs=0.5)
    assert max(found) < 32.5 - 3  # where the kernels' middles are


@pytest.mark.parametrize(
    ("one_sided", "offset"),
    [
        (10, 0.5),  # the mean tap is 0.75, and its standard error 0.25: by chance
        (14, -0.75 * (1 - 7 / 135) + 0.5),  # 0.25, and its squared error 7 / 15 / 16, which is 7 / 135 of 0.75 squared
    ],
)
def test_a_shift_by_chance_is_none_and_a_larger_one_is_reduced_by_what_chance_explains(
    one_sided: int, offset: float
) -> None:
    """16 filters look at one pixel each: the first of three, or else the last."""
    layer = nn.Conv2d(1, 16, 3, 2, 1, bias=False)
    layer.weight.data.zero_()
    layer.weight.data[:one_sided, :, 0, 0] = layer.weight.data[one_sided:, :, 2, 2] = 1
    centers, _ = read(layer, torch.rand(1, 1, 16, 16))
    assert [axis.offset for axis in centers.axes] == pytest.approx([offset] * 2)


@pytest.mark.parametrize("filters", [7, 64])
def test_random_filters_move_hardly_anything(filters: int) -> None:
    torch.manual_seed(0)
    centers, _ = read(build_one_sided((1.0, 1.0, 1.0), filters=filters), torch.rand(1, 3, 64, 64))
    assert [axis.offset for axis in centers.axes] == pytest.approx([0.5, 0.5], abs=0 if filters < 8 else 0.2)
    few, _ = read(build_one_sided((2.0, 1.0, 0.5), filters=7), torch.rand(1, 3, 64, 64))
    assert [axis.offset for axis in few.axes] == [0.5, 0.5]  # too few to tell a habit from chance


def test_autocast_and_frozen_weights_make_no_difference() -> None:
    torch.manual_seed(0)
    model, image = build_one_sided((2.0, 1.0, 0.5)), torch.rand(1, 3, 64, 64)
    layer = Layer("2", Layout("channels first", (8, 8)))
    expected = find_centers(model, image, layer)
    assert expected is not None
    assert expected.axes[0].offset < -1
    forget_model(model)
    with torch.autocast("cpu"):
        in_half = find_centers(model, image, layer)
    assert in_half is not None
    assert in_half.axes[0].offset == pytest.approx(expected.axes[0].offset, abs=0.01)
    forget_model(model.requires_grad_(False))
    assert find_centers(model, image, layer) == expected
    forget_model(model)
    with torch.autocast("cpu"):
        frozen_in_half = find_centers(model, image, layer)
    assert frozen_in_half is not None
    assert frozen_in_half.axes[0].offset == pytest.approx(expected.axes[0].offset, abs=0.01)


class Gathered(nn.Conv2d):
    """A convolution whose weight has memory only while it runs, as FSDP gathers and frees it."""

    def forward(self, x: Tensor) -> Tensor:
        weight = nn.Parameter(self.weight.detach().clone())
        output = functional.conv2d(x, weight, self.bias, self.stride, self.padding)
        weight.untyped_storage().resize_(0)
        return output


def test_weights_that_are_freed_after_the_forward_pass() -> None:
    torch.manual_seed(0)
    plain, image = build_one_sided((2.0, 1.0, 0.5)), torch.rand(1, 3, 64, 64)
    net = nn.Sequential(*(Gathered(channels, 32, 3, 2, 1) for channels in (3, 32, 32)))
    net.load_state_dict(plain.state_dict())
    layer = Layer("2", Layout("channels first", (8, 8)))
    assert find_centers(net, image, layer) == find_centers(plain, image, layer)


def find_known_centers(model: nn.Module, image: Tensor, layer: Layer) -> CellCenters | None:
    """Return the centers as an explanation gets them: from the plan, if they are known and hold."""
    return run_forward_pass(model, image, [layer]).find_place(layer).centers


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("how", ["load_state_dict", "assign", "in place", "data"])
def test_loaded_or_trained_weights_are_noticed(how: str, frozen: bool) -> None:
    torch.manual_seed(0)
    model, other, image = build_one_sided((1.0, 1.0, 1.0)), build_one_sided((2.0, 1.0, 0.5)), torch.rand(1, 3, 64, 64)
    layer = Layer("2", Layout("channels first", (8, 8)))
    model.requires_grad_(not frozen)
    with torch.autocast("cpu", enabled=frozen):  # under autocast frozen weights are copies without a trace
        before = find_known_centers(model, image, layer)
    if how == "data":
        for own, new in zip(model.parameters(), other.parameters(), strict=True):
            own.data = new.data
    elif how == "in place":
        with torch.no_grad():
            for own, new in zip(model.parameters(), other.parameters(), strict=True):
                own.mul_(0).add_(new)
    else:
        model.load_state_dict(other.state_dict(), assign=how == "assign")
    after = find_known_centers(model, image, layer)
    assert before is not None
    assert after == find_centers(other, image, layer)
    assert after is not None
    assert after.axes[0].offset < before.axes[0].offset - 1


@pytest.mark.parametrize("nonzero", [0, 1, 7])
def test_filters_of_zeros_do_not_count(nonzero: int) -> None:
    """A residual branch that starts at zero has no weights to look at; one with 7 filters has too few."""
    model = build_one_sided((2.0, 1.0, 0.5), filters=16)
    for layer in model:
        layer.weight.data[nonzero:] = 0
    centers, _ = read(model, torch.rand(1, 3, 64, 64))
    assert [axis.offset for axis in centers.axes] == [0.5, 0.5]


def test_checkpointed_parts_are_read_and_leave_no_trace() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = build_one_sided((2.0, 1.0, 0.5)).insert(1, nn.BatchNorm2d(32))

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.parts, x, use_reentrant=False)

    torch.manual_seed(0)
    model, image = Checkpointed().train(), torch.rand(2, 3, 64, 64)
    layer = Layer("parts", Layout("channels first", (8, 8)))
    expected = find_centers(model.parts, image, Layer("3", layer.layout))
    with unchanged(model):
        assert find_centers(model, image, layer) == expected


def test_computed_weights_count_as_random_ones_trainable_or_frozen() -> None:
    torch.manual_seed(0)
    model, image = build_one_sided((2.0, 1.0, 0.5)), torch.rand(1, 3, 64, 64)
    for convolution in model:
        nn.utils.parametrizations.weight_norm(convolution)
    layer = Layer("2", Layout("channels first", (8, 8)))
    trainable = find_centers(model, image, layer)
    forget_model(model.requires_grad_(False))
    assert find_centers(model, image, layer) == trainable
    assert trainable is not None
    assert trainable.axes[0].offset == 0.5


def test_a_mirrored_image_has_cells_that_run_backwards() -> None:
    for axis, lines in ((-1, [(0.5, 2), (31.5, -2)]), (1, [(0.5, 2), (0.5, 2)])):
        mirror = Apply(lambda x, axis=axis: x.flip(axis))
        centers, _ = read(nn.Sequential(mirror, average(3, 2, 1)), torch.rand(1, 1, 32, 32))
        assert centers is not None
        assert [(line.offset, line.stride) for line in centers.axes] == lines


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.transpose(2, 3),
    "permuted": lambda x: x.permute(0, 1, 3, 2),
    "turned": lambda x: torch.rot90(x, 1, (2, 3)),
    "rolled": lambda x: x.roll(x.shape[-1] // 2, -1),
    "rolled by an eighth": lambda x: x.roll(x.shape[2] // 8, 2),
    "halves exchanged": lambda x: torch.cat([*x.chunk(2, -1)][::-1], -1),
}

STAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "colors exchanged": lambda x: x.flip(1),
    "colors chosen": lambda x: x[:, [2, 1, 0]],
    "channels last and back": lambda x: x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    "tokens and back": lambda x: x.flatten(2).transpose(1, 2).tanh().transpose(1, 2).unflatten(2, x.shape[2:]),
    "mirrored twice": lambda x: x.flip(3).tanh().flip(3),
    "rolled there and back": lambda x: x.roll((5, 5), (2, 3)).tanh().roll((-5, -5), (2, 3)),
}


def build_classifier(channels: int = 3) -> nn.Module:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Conv2d(channels, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())
    return nn.Sequential(trunk, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval()


def find_codes(model: nn.Module, size: int = 32, **options: Any) -> list[str]:
    image = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    return [warning.code for warning in camtool.explain(model.eval(), image, 0, **options)[0].warnings]


MIRRORS: dict[str, Callable[[Tensor], Tensor]] = {
    "upside down": lambda x: x.flip(2),
    "mirrored": lambda x: x.flip(-1),
    "mirrored by an index": lambda x: x[..., torch.arange(x.shape[-1] - 1, -1, -1)],
    "turned by 180 degrees": lambda x: torch.rot90(x, 2, (2, 3)),
}


@pytest.mark.parametrize("mirror", MIRRORS)
def test_an_image_that_is_mirrored_in_the_model_has_its_heat_there(mirror: str) -> None:
    image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    (plain,) = camtool.explain(build_classifier(), MIRRORS[mirror](image), 0, layer="0")
    (result,) = camtool.explain(nn.Sequential(Apply(MIRRORS[mirror]), build_classifier()), image, 0, layer="1.0")
    assert [warning.code for warning in result.warnings] == []
    np.testing.assert_array_equal(result.raw, plain.raw)
    mirrored_back = MIRRORS[mirror](torch.from_numpy(plain.heatmap)[None, None])[0, 0].numpy()
    # A cell of stride 4 has its center at the first of its pixels, which is the last one of the mirrored image.
    assert np.corrcoef(result.heatmap.ravel(), mirrored_back.ravel())[0, 1] > 0.97
    assert find_codes(nn.Sequential(Apply(MIRRORS[mirror]), build_classifier()), placement="stretch") == [
        "cells-elsewhere"
    ]


@pytest.mark.parametrize("move", MOVES)
def test_an_image_that_is_moved_in_the_model_gets_a_warning(move: str) -> None:
    moved = nn.Sequential(Apply(MOVES[move]), build_classifier())
    assert find_codes(moved) == find_codes(moved, placement="stretch") == ["cells-elsewhere"]


DARK = torch.full((1, 3, 32, 32), 0.2)
BRIGHT = functional.pad(torch.full((1, 3, 6, 6), 0.8), (24, 2, 20, 6)) + DARK


@pytest.mark.parametrize(
    ("photo", "steps"), [(DARK, {"turned": MOVES["turned"]}), (BRIGHT, MOVES), (DARK, STAYS), (BRIGHT, STAYS)]
)
def test_cells_that_are_zero_on_a_dark_photo_hide_no_move(
    photo: Tensor, steps: Mapping[str, Callable[[Tensor], Tensor]]
) -> None:
    convolution, layer = nn.Conv2d(3, 8, 3, 2, 1), Layer("1.1", Layout("channels first", (16, 16)))
    nn.init.constant_(convolution.weight, 1 / 27)
    nn.init.constant_(convolution.bias, -0.3)
    trunk = nn.Sequential(convolution, nn.ReLU())
    models = (nn.Sequential(Apply(step), trunk, nn.AdaptiveAvgPool2d(1), nn.Flatten()) for step in steps.values())
    assert {centers.find_place(model.eval(), photo, layer).is_moved for model in models} == {steps is not STAYS}


def test_weights_of_inference_mode_whose_graph_shows_nothing_are_asked_too() -> None:
    layer = Layer("1.0", Layout("channels first", (8, 8)))
    for move, is_moved in ((MIRRORS["mirrored"], True), (STAYS["colors exchanged"], False)):
        with torch.inference_mode():
            model = nn.Sequential(Apply(move), build_classifier())
        assert centers.find_place(model, torch.rand(1, 3, 32, 32), layer).is_moved == is_moved


@pytest.mark.parametrize("step", STAYS)
def test_an_image_whose_axes_are_permuted_or_moved_back_gets_none(step: str) -> None:
    assert find_codes(nn.Sequential(Apply(STAYS[step]), build_classifier())) == []


def test_windows_that_are_rolled_in_a_transformer_get_none() -> None:
    torch.manual_seed(0)
    swin = torchvision.models.SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=4)
    assert find_codes(swin, 64) == []
    assert find_codes(nn.Sequential(Apply(lambda x: x.flip(2)), swin), 64) == []
    assert find_codes(nn.Sequential(Apply(lambda x: x.mT), swin), 64) == ["cells-elsewhere"]


def test_each_call_of_a_mean_of_two_images_has_its_own_place() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = build_classifier()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x) + self.net(x.mT)

    assert find_codes(Mean()) == ["other-paths", "cells-elsewhere", "several-calls"]
    assert find_codes(Mean(), call_index=1) == ["other-paths", "cells-elsewhere"]
    assert find_codes(Mean(), call_index=0) == ["other-paths"]


def test_the_model_runs_again_only_where_axes_may_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(centers, "is_moved", lambda *_: asked.append(True) or False)
    assert (find_codes(build_classifier()), asked) == ([], [])
    assert (find_codes(nn.Sequential(Apply(MOVES["turned"]), build_classifier())), asked) == ([], [True])


def test_a_layer_that_does_not_depend_on_the_image_has_no_centers() -> None:
    image = torch.rand(1, 1, 8, 8, requires_grad=True)
    assert read_centers([(torch.rand(1, 1, 4, 4), (4, 4))], image) == [None]
    assert read_centers([(nn.Conv2d(1, 1, 2, 2)(torch.rand(1, 1, 8, 8)), (4, 4))], image) == [None]


def build_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3, 2, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3),
    ).eval()  # fmt: skip


@pytest.mark.parametrize("change", [lambda net: net, lambda net: net.requires_grad_(False)], ids=["usual", "frozen"])
@pytest.mark.parametrize("autocast", [False, True])
def test_centers_are_kept_and_the_model_is_unchanged(autocast: bool, change: Callable[[nn.Module], nn.Module]) -> None:
    model, image = change(build_net().train()), torch.rand(2, 3, 32, 32)
    layer, runs = Layer("4", Layout("channels first", (8, 8))), []
    handle = model[0].register_forward_pre_hook(lambda *_: runs.append(1))
    with unchanged(model), torch.autocast("cpu", enabled=autocast):
        first = find_known_centers(model, image, layer)
        gc.collect()
        assert find_known_centers(model, image, layer) is first
    handle.remove()
    assert len(runs) == 3  # two forward passes, and one whose graph is read
    assert [(axis.offset, axis.stride) for axis in first.axes] == [(0.5, 4)] * 2


def test_the_graph_keeps_no_activations() -> None:
    """Of the 20 activations of 4 MiB each, one or two are alive at a time, as in inference."""
    alive, most = weakref.WeakSet(), 0

    def count(_: nn.Module, __: object, output: Tensor) -> None:
        nonlocal most
        alive.add(output.untyped_storage())
        most = max(most, len(alive))

    model = nn.Sequential(*(nn.Conv2d(3 if not i else 4, 4, 3, padding=1) for i in range(20)), nn.Flatten())
    for layer in model:
        layer.register_forward_hook(count)
    assert find_centers(model, torch.rand(1, 3, 512, 512), Layer("19", Layout("channels first", (512, 512))))
    assert most < 5


def test_the_second_explanation_costs_no_more() -> None:
    model, image, runs = build_net(), torch.rand(1, 3, 32, 32), []
    camtool.explain(model, image, 1, placement="centers")
    model[0].register_forward_pre_hook(lambda *_: runs.append(1))
    camtool.explain(model, image, 1, placement="stretch")
    stretched = len(runs)
    camtool.explain(model, image, 1, placement="centers")
    assert len(runs) == 2 * stretched


@pytest.mark.parametrize("context", [torch.inference_mode, torch.no_grad])
def test_grad_mode_of_the_user_makes_no_difference(context: Callable[[], Any]) -> None:
    model = build_net()
    with context():
        (result,) = camtool.explain(model, torch.rand(1, 3, 32, 32), 1, layer="4", placement="centers")
    assert [(axis.offset, axis.stride) for axis in result.centers.axes] == [(0.5, 4)] * 2


@pytest.mark.parametrize(
    ("name", "layer", "expected"),
    [
        ("vgg11_bn", "features", (16, 32)),
        ("convnext_tiny", "features", (16, 32)),
        ("vit_b_16", "encoder", (8, 16)),
        ("squeezenet1_1", "features", (15.5, 16)),
        ("resnet50", "layer4", (0.5, 32)),
        ("mobilenet_v3_small", "features", (0.5, 32)),
        ("efficientnet_b0", "features", (0.5, 32)),
        ("regnet_y_400mf", "trunk_output", (0.5, 32)),
        ("mnasnet0_5", "layers", (0.5, 32)),
        ("shufflenet_v2_x0_5", "conv5", (0.5, 32)),
    ],
)
def test_known_architectures(name: str, layer: str, expected: tuple[float, float]) -> None:
    import torchvision

    model = torchvision.models.get_model(name, weights=None).eval()
    for parameter in model.parameters():  # random weights may weigh one side more, by chance
        nn.init.constant_(parameter, 0.01)
    grid = (14, 14) if name == "vit_b_16" else (13, 13) if name == "squeezenet1_1" else (7, 7)
    layout = Layout("tokens", grid, 1) if name == "vit_b_16" else Layout("channels first", grid)
    centers = find_centers(model, torch.rand(1, 3, 224, 224), Layer(layer, layout))
    assert [(axis.offset, axis.stride) for axis in centers.axes] == [expected] * 2
