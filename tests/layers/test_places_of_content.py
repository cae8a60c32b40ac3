"""Models that look at a part of the image, or move it, by its content: each image has places of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import camtool
from camtool.errors import CamtoolError
from camtool.geometry.cell_centers import AxisCenters, CellCenters
from camtool.layers import centers
from camtool.layers.layouts import Layer, Layout
from camtool.layers.places.cell_responses import measure_centers, measure_responses
from camtool.layers.places.content_reads import ContentReads

SIDE, SPOT = 96, 6


def paint(row: int, column: int) -> Tensor:
    """Return an image ``(1, 3, 96, 96)`` with a bright square around a place."""
    image = torch.full((1, 3, SIDE, SIDE), 0.2)
    image[..., row - SPOT : row + SPOT, column - SPOT : column + SPOT] = 1.0
    return image


class Net(nn.Module):
    """A network whose class 0 responds to bright pixels, behind a step that prepares the image."""

    def __init__(self, step: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.step, self.head = step, nn.Linear(8, 2)
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU())
        nn.init.constant_(self.features[0].weight[:4], 1 / 27)
        nn.init.constant_(self.features[0].bias[:4], -0.3)
        self.head.weight = nn.Parameter(torch.tensor([[1.0] * 4 + [0.0] * 4, [-1.0] * 4 + [0.0] * 4]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.step(x)).mean((2, 3)))


def find_brightest(image: Tensor) -> tuple[int, int]:
    """Return the row and the column of the brightest quarter of an image ``(C, H, W)``: 0 or 1."""
    quarter = int(functional.adaptive_avg_pool2d(image.mean(0, keepdim=True), 2).flatten().argmax())
    return quarter // 2, quarter % 2


def crop(x: Tensor) -> Tensor:
    (row, column), half = find_brightest(x[0]), SIDE // 2
    return x[..., row * half : (row + 1) * half, column * half : (column + 1) * half]


def crop_each(x: Tensor) -> Tensor:
    return torch.cat([crop(image[None]) for image in x])


def crop_at_a_tensor(x: Tensor) -> Tensor:
    quarter = functional.adaptive_avg_pool2d(x[:1].mean(1), 2).flatten().argmax()
    return x[..., quarter // 2 * 48 : quarter // 2 * 48 + 48, quarter % 2 * 48 : quarter % 2 * 48 + 48]


def select_columns(x: Tensor) -> Tensor:
    """Return the 48 columns around the brightest one."""
    first = x.mean((0, 1, 2)).argmax().clamp(24, 72) - 24
    return x.index_select(3, first + torch.arange(48))


def mirror(x: Tensor) -> Tensor:
    is_left = x[..., :48].mean((1, 2, 3)) >= x[..., 48:].mean((1, 2, 3))
    return torch.where(is_left[:, None, None, None], x, x.flip(-1))


def mirror_by_a_branch(x: Tensor) -> Tensor:
    return x if x[..., :48].mean() >= x[..., 48:].mean() else x.flip(-1)


def zoom(x: Tensor) -> Tensor:
    """Enlarge each image twofold, toward what is bright."""
    places = torch.linspace(-1, 1, SIDE)
    light = (x.mean(1) - 0.2).clamp(min=0)
    share = light / light.sum((1, 2), keepdim=True)
    middle = torch.stack([(share.sum(1) * places).sum(1), (share.sum(2) * places).sum(1)], 1).clamp(-0.5, 0.5)
    half = torch.eye(2).mul(0.5).expand(len(x), 2, 2)
    grid = functional.affine_grid(torch.cat([half, middle[:, :, None]], 2), [*x.shape], align_corners=False)
    return functional.grid_sample(x, grid, align_corners=False)


def mirror_softly(x: Tensor) -> Tensor:
    """Return a sum of the image and its mirror image, of which one weighs nearly all."""
    share = torch.sigmoid(1e4 * (x[..., :48].mean((1, 2, 3)) - x[..., 48:].mean((1, 2, 3))))[:, None, None, None]
    return x * share + x.flip(-1) * (1 - share)


def crop_softly(x: Tensor) -> Tensor:
    share = torch.sigmoid(1e4 * (x[..., :48].mean((1, 2, 3)) - x[..., 48:].mean((1, 2, 3))))[:, None, None, None]
    return x[..., :48] * share + x[..., 48:] * (1 - share)


STEPS = {
    "crop": crop,
    "crop of each image": crop_each,
    "crop at a tensor": crop_at_a_tensor,
    "columns": select_columns,
    "mirror": mirror,
    "mirror by a branch": mirror_by_a_branch,
    "zoom": zoom,
    "mirror softly": mirror_softly,
    "crop softly": crop_softly,
}
PLACES = ((60, 84), (12, 36), (84, 20))


def find_heat(result: camtool.Explanation) -> tuple[float, float]:
    """Return the centroid of the hottest pixels."""
    rows, columns = np.nonzero(result.heatmap >= 0.95 * result.heatmap.max())
    return float(rows.mean() + 0.5), float(columns.mean() + 0.5)


@pytest.mark.parametrize("name", STEPS)
def test_each_image_has_its_heat_where_it_is_bright(name: str) -> None:
    model = Net(STEPS[name]).eval()
    for place in (*PLACES, PLACES[0]):
        (result,) = camtool.explain(model, paint(*place), 0, layer="features")
        assert find_heat(result) == pytest.approx(place, abs=2.0)  # of cells of two pixels
        assert "cells-elsewhere" not in [warning.code for warning in result.warnings]


@pytest.mark.parametrize("name", ["crop of each image", "mirror", "zoom"])
def test_images_of_one_batch_have_places_of_their_own(name: str) -> None:
    results = camtool.explain(Net(STEPS[name]).eval(), torch.cat([paint(*place) for place in PLACES]), 0)
    for place, result in zip(PLACES, results, strict=True):
        assert find_heat(result) == pytest.approx(place, abs=2.0)


def test_a_model_whose_crop_is_that_of_another_image_of_the_batch_is_refused() -> None:
    with pytest.raises(CamtoolError, match="the model joins the images of a batch"):
        camtool.explain(Net(crop).eval(), torch.cat([paint(*place) for place in PLACES]), 0, layer="features")


def test_concepts_of_such_a_model_lie_where_its_images_are_bright() -> None:
    images = [paint(*place)[0] for place in PLACES]
    found = camtool.concepts(Net(crop_each).eval(), images, 1, layer="features")
    for place, lines in zip(PLACES, found.centers, strict=True):
        assert lines is not None
        first, last = (np.array([line.offset + line.stride * cell for line in lines.axes]) for cell in (0, 23))
        assert (np.minimum(first, last) < place).all()
        assert (np.maximum(first, last) > place).all()


def test_an_exported_file_would_hold_one_place_so_it_is_refused(tmp_path) -> None:
    pytest.importorskip("onnx")
    with pytest.raises(CamtoolError, match="depends on each image's content"):
        camtool.export(Net(mirror).eval(), tmp_path / "net.onnx", size=(SIDE, SIDE), layer="features")


def read_content(run: Callable[[Tensor], Tensor]) -> bool:
    image = torch.rand(1, 3, 8, 8, requires_grad=True)
    with ContentReads() as reads:
        output = run(image)
        late = bool(image.sum() > 0)  # noqa: F841  # after the output
    return reads.come_before(output)


CONSTANT = [
    lambda x: functional.relu(functional.conv2d(x, torch.ones(1, 3, 3, 3)), inplace=True),
    lambda x: x[..., x.shape[-1] // 2 :],
    lambda x: torch.where(x > 0.5, x, 0),
    lambda x: x * (x > 0.5),
    lambda x: x[:, torch.tensor([2, 1, 0])],
    lambda x: functional.interpolate(x, scale_factor=0.5),
    lambda x: functional.grid_sample(x, torch.zeros(1, 4, 4, 2), align_corners=False),
]
CHOSEN = [
    lambda x: x if x.mean() > 0.5 else x.flip(-1),
    lambda x: x[..., int(x.sum()) % 4 :],
    lambda x: x[..., x.sum().long() % 4 :],
    lambda x: x.index_select(3, x.detach().flatten().topk(2).indices % 8),
    lambda x: x.gather(3, x.argsort(3)),
    lambda x: x[:, :, x.amax((0, 1, 3)) > 0.5],
    lambda x: torch.where(x.mean() > 0.5, x, x.flip(-1)),
    lambda x: functional.grid_sample(x, x[:, :2].movedim(1, -1), align_corners=False),
    lambda x: x.roll(x.sum().item().__int__(), 3),
    lambda x: x.narrow(3, x.sum().long() % 4, 4),
    lambda x: x.select(2, x.sum().long() % 4),
]


@pytest.mark.parametrize(("runs", "expected"), [(CONSTANT, False), (CHOSEN, True)])
def test_what_the_content_decides_is_told_from_what_is_elementwise(
    runs: list[Callable[[Tensor], Tensor]], expected: bool
) -> None:
    assert [read_content(run) for run in runs] == [expected] * len(runs)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)


class Branching(Plain):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.mean() > 0.5):
            x = x.flip(-1)
        return self.features(x)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_what_torchscript_hides_counts_as_decided_by_content() -> None:
    layer, image = Layer("1", Layout("channels first", (8, 8))), torch.rand(1, 3, 16, 16)
    for kind in (Plain, Branching):
        model = nn.Sequential(torch.jit.script(kind().eval()), nn.Conv2d(8, 4, 1))
        assert centers.find_place(model.eval(), image, layer).by_content == (kind is Branching)


def test_where_the_geometry_is_constant_a_second_image_takes_no_further_pass() -> None:
    model, passes = Net(lambda x: x[..., 48:, 48:]).eval(), []
    camtool.explain(model, paint(60, 66), 0)
    model.features.register_forward_pre_hook(lambda *_: passes.append(1))
    camtool.explain(model, paint(84, 80), 0)
    assert len(passes) == 1


@pytest.mark.parametrize(
    ("step", "place"),
    [
        (lambda x: x[..., 48:, 48:], (60, 66)),
        (lambda x: x[:, :, 48:], (70, 30)),
        (lambda x: x.chunk(2, 3)[1], (30, 70)),
        (lambda x: x.split([32, 64], 2)[1], (70, 30)),
        (lambda x: functional.interpolate(x, (48, 96)), (30, 70)),
        (lambda x: functional.pad(x, (0, 0, 32, 32)), (30, 70)),
        (lambda x: torch.cat([x, x.new_zeros(1, 3, SIDE, 32)], 3), (30, 70)),
    ],
    ids=["corner", "lower half", "right camera", "split", "stretched", "letterbox", "joined"],
)
def test_parts_and_other_aspects_of_the_image_have_places(
    step: Callable[[Tensor], Tensor], place: tuple[int, int]
) -> None:
    (result,) = camtool.explain(Net(step).eval(), paint(*place), 0)
    assert find_heat(result) == pytest.approx(place, abs=2.0)
    assert [warning.code for warning in result.warnings] == []


class PatchNet(Net):
    """As :class:`Net`, but patches are cut by a reshape, which no rule reads."""

    def __init__(self, step: Callable[[Tensor], Tensor]) -> None:
        super().__init__(step)
        self.features = nn.Sequential(nn.Linear(3 * 64, 8), nn.ReLU())
        nn.init.constant_(self.features[0].weight[:4], 1 / 192)
        nn.init.constant_(self.features[0].bias[:4], -0.3)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.step(x).unflatten(3, (-1, 8)).unflatten(2, (-1, 8))
        return self.head(self.features(patches.permute(0, 2, 4, 1, 3, 5).flatten(3)).mean((1, 2)))


@pytest.mark.parametrize(
    ("step", "place"),
    [
        (lambda x: x, (44, 68)),
        (lambda x: x[..., 24:, 24:], (60, 68)),
        (lambda x: functional.pad(x, (24, 0, 0, 24)), (44, 68)),
        (lambda x: x.chunk(2, 2)[1].chunk(2, 3)[0], (68, 28)),
        (lambda x: x.flip(3), (44, 68)),
    ],
    ids=["all", "crop", "pad", "quarter", "mirror"],
)
def test_patches_that_no_rule_reads_have_places(step: Callable[[Tensor], Tensor], place: tuple[int, int]) -> None:
    (result,) = camtool.explain(PatchNet(step).eval(), paint(*place), 0)
    assert find_heat(result) == pytest.approx(place, abs=2.0)
    assert [warning.code for warning in result.warnings] == []


def build_patches() -> tuple[nn.Module, Layer]:
    """Return a network of 8 x 8 patches whose cells are dead where the image is dark, and its layer."""
    convolution = nn.Conv2d(1, 4, 8, 8)
    nn.init.constant_(convolution.weight, 1 / 64)
    nn.init.constant_(convolution.bias, -0.5)
    return nn.Sequential(convolution, nn.ReLU()), Layer("1", Layout("channels first", (8, 8)))


def test_live_cells_of_one_row_lie_where_they_respond() -> None:
    model, layer = build_patches()
    image = torch.zeros(1, 1, 64, 64)
    image[..., 24:32, :] = 1
    measured = measure_centers(model, image, layer)
    assert measured is not None
    assert measured.axes[0].offset + 3 * measured.axes[0].stride == pytest.approx(28)
    assert measured.axes[1].offset == pytest.approx(4, abs=0.5)


def test_exact_centers_are_kept_unless_a_cell_responds_beyond_its_field() -> None:
    model, layer = build_patches()
    image = torch.zeros(1, 1, 64, 64)
    image[..., 24:40, 8:24] = 1
    exact = CellCenters((64, 64), (AxisCenters(4.0, 8.0, 8.0), AxisCenters(4.0, 8.0, 8.0)))
    backwards = CellCenters((64, 64), (exact.axes[0], AxisCenters(60.0, -8.0, 8.0)))
    assert measure_centers(model, image, layer, exact) is exact
    assert measure_centers(model, image, layer, backwards) != backwards


def test_measured_centers_are_the_read_ones_to_a_quarter_of_a_cell() -> None:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(2))
    layer, image = Layer("4", Layout("channels first", (12, 12))), torch.rand(1, 3, SIDE, SIDE)
    read, measured = centers.find_centers(trunk, image, layer), measure_centers(trunk, image, layer)
    assert read is not None
    assert measured is not None
    for one, other in zip(read.axes, measured.axes, strict=True):
        for cell in range(12):
            assert one.offset + one.stride * cell == pytest.approx(other.offset + other.stride * cell, abs=2.0)


def test_a_response_is_the_squared_weights_of_a_linear_layer() -> None:
    convolution = nn.Conv2d(1, 1, 3, 3, bias=False)
    convolution.weight = nn.Parameter(torch.tensor([[[[0.0, 0, 0], [0, 3, 4], [0, 0, 0]]]]))
    layer = Layer("0", Layout("channels first", (2, 2)))
    found = measure_responses(nn.Sequential(convolution), torch.rand(1, 1, 6, 6), layer, [(1, 0)])
    response = found[1, 0]
    # Weights 3 and 4 at row 4.5, columns 1.5 and 2.5: shares 9 and 16 of 25.
    assert response.center == pytest.approx([4.5, 1.5 + 16 / 25])
    assert response.spread == pytest.approx([0, (9 * 16) ** 0.5 / 25])
