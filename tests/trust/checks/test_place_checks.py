"""The test of places: do the pixels on which the hottest cell depends lie where it is drawn?"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import v2

import camtool
from camtool.rendering.regions import choose_mark_radius
from camtool.runs.save_kinds import SAVE_KINDS, OutputSettings
from camtool.trust.checks.check_report import Finding
from camtool.warning_codes import CodedWarning, HeatPlaces
from tests.helpers import onnx_files
from tests.layers.test_places_of_content import STEPS, Net, paint

CODES = ("heat-elsewhere", "no-places", "global-cells")


def find_places(result: camtool.Explanation) -> list[Finding]:
    return [finding for finding in result.check().findings if finding.code in CODES]


class Apply(nn.Module):
    def __init__(self, step) -> None:
        super().__init__()
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        return self.step(x)


@pytest.mark.parametrize("name", ["crop", "zoom", "columns"])
def test_heat_that_is_drawn_elsewhere_is_found(name: str) -> None:
    model = Net(STEPS[name]).eval()
    (right,) = camtool.explain(model, paint(84, 20), 0, layer="features")
    (wrong,) = camtool.explain(model, paint(84, 20), 0, layer="features", placement="stretch")
    assert find_places(right) == []
    (finding,) = find_places(wrong)
    assert finding.code == "heat-elsewhere"
    hottest = np.unravel_index(int(wrong.raw.argmax()), wrong.raw.shape)
    strides = [96 / cells for cells in wrong.raw.shape]
    drawn = [stride * (cell + 0.5) for stride, cell in zip(strides, hottest, strict=True)]
    assert right.centers is not None
    true = [line.offset + line.stride * cell for line, cell in zip(right.centers.axes, hottest, strict=True)]
    distance = np.linalg.norm([(one - other) / stride for one, other, stride in zip(true, drawn, strides, strict=True)])
    assert finding.numbers["distance"] == pytest.approx(distance, abs=0.5)


def test_the_direction_is_told() -> None:
    (wrong,) = camtool.explain(Net(STEPS["crop"]).eval(), paint(30, 30), 0, layer="features", placement="stretch")
    (finding,) = find_places(wrong)
    assert "cells up and left from where it is drawn" in finding.sentence


class Fourier(nn.Module):
    """A network that gets the Fourier transform of an image, ``(N, 2, H, W)``."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net(lambda x: x)

    def forward(self, x: Tensor) -> Tensor:
        image = torch.fft.ifft2(torch.complex(x[:, 0], x[:, 1])).abs()
        return self.net(image[:, None].expand(-1, 3, -1, -1))


def test_a_transform_of_the_whole_image_leaves_no_places() -> None:
    transform = torch.fft.fft2(paint(28, 68)[:, :1])
    (result,) = camtool.explain(Fourier().eval(), torch.cat([transform.real, transform.imag], 1), 0)
    assert "no-places" in [warning.code for warning in result.warnings]
    (finding,) = find_places(result)
    assert finding.code == "no-places"
    assert finding.numbers["times as much there"] < 2


def test_cells_that_see_all_but_their_own_place_most_are_a_fact() -> None:
    see_all = Apply(lambda x: x + 64 * x.mean((2, 3), keepdim=True))
    (result,) = camtool.explain(Net(see_all).eval(), torch.rand(1, 3, 96, 96), 0, layer="features")
    (finding,) = find_places(result)
    assert (finding.code, finding.severity) == ("global-cells", "note")


def test_a_file_without_gradients_is_tested_by_covering(tmp_path: Path) -> None:
    for size, expected in ((48, ["heat-elsewhere"]), (96, [])):
        model = Net(lambda x, size=size: x[..., :size, :size]).eval()
        path = onnx_files.export(model, torch.rand(2, 3, 96, 96), tmp_path / f"{size}.onnx")
        place = {"placement": "stretch", "method": "ablationcam"}
        (result,) = camtool.explain(camtool.load(path), paint(20, 30), 0, **place)
        assert [finding.code for finding in find_places(result)] == expected


def test_a_map_of_the_input_has_nothing_to_prove() -> None:
    (result,) = camtool.explain(Net(lambda x: x).eval(), paint(20, 30), 0, method="inputxgradient")
    assert result.check().skipped["place"] == "the map is not on the grid of one layer"


@pytest.mark.parametrize(("verify", "tested"), [(None, 0), ("places", 4), ("sizes", 2)])
def test_each_call_or_the_first_of_each_size_is_tested(verify, tested, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setitem(
        vars(camtool.trust.checks.map_checks), "measure_responses", lambda *_, **__: asked.append(1) or {}
    )
    explainer = camtool.Explainer(Net(lambda x: x).eval(), verify=verify)
    for size in (96, 96, 64, 96):
        explainer(torch.rand(1, 3, size, size), 0)
    assert len(asked) == tested


def test_where_the_content_decides_each_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setitem(
        vars(camtool.trust.checks.map_checks), "measure_responses", lambda *_, **__: asked.append(1) or {}
    )
    explainer = camtool.Explainer(Net(STEPS["mirror"]).eval(), verify="sizes")
    for place in ((30, 20), (60, 84), (30, 20)):
        explainer(paint(*place), 0)
    assert len(asked) == 3


def test_what_is_found_is_a_warning_of_the_explanation() -> None:
    model, options = Net(STEPS["crop"]).eval(), {"layer": "features", "placement": "stretch"}
    (result,) = camtool.explain(model, paint(84, 20), 0, verify="places", **options)
    assert [warning.code for warning in result.warnings] == ["cells-elsewhere", "heat-elsewhere"]
    with pytest.raises(camtool.CamtoolError, match="verify must be one of 'places', 'sizes', got 'place'"):
        camtool.explain(model, paint(84, 20), 0, verify="place")


class Mirrored(nn.Module):
    """A network behind a mirror: a cell sees 3 x 3 pixels alike, two pixels from those of the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Conv2d(3, 4, 3, 2, 1), nn.Linear(4, 2)
        nn.init.constant_(self.features.weight, 1 / 27)
        nn.init.constant_(self.features.bias, 0)
        self.head.weight = nn.Parameter(torch.tensor([[1.0] * 4, [-1.0] * 4]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x.flip(-1)).relu().mean((2, 3)))


STRETCHED = {"layer": "features", "placement": "stretch", "verify": "places"}


def get_places(found: Iterable[CodedWarning]) -> HeatPlaces | None:
    return next(one.places for one in found if one.code == "heat-elsewhere")


def test_both_places_are_given_in_pixels() -> None:
    """The mirrored spot covers columns 70 to 81: the first window within it is that of cell (13, 36)."""
    (result,) = camtool.explain(Mirrored().eval(), paint(30, 20), 0, **STRETCHED)
    expected = ((73, 27), (96 - 72.5, 26.5))
    for places in (get_places(result.warnings), get_places(result.check().findings)):
        assert np.allclose(places, expected)
    assert np.allclose(get_places(pickle.loads(pickle.dumps(result)).warnings), expected)


def test_both_places_are_given_in_pixels_of_a_photo_that_was_resized_and_cropped() -> None:
    """A photo of 200 x 300 pixels becomes 144 x 216, of which 24 rows and 60 columns are cut off at each side."""
    photo = np.full((200, 300, 3), 51, np.uint8)
    photo[60:90, 110:140] = 255
    transform = v2.Compose([v2.ToImage(), v2.Resize(144), v2.CenterCrop(96), v2.ToDtype(torch.float32, scale=True)])
    model = Mirrored().eval()
    result = camtool.explain(model, Image.fromarray(photo), 0, transform=transform, **STRETCHED)
    row, column = map(int, np.unravel_index(int(result.raw.argmax()), result.raw.shape))
    drawn = ((2 * column + 1 + 60) * 200 / 144, (2 * row + 1 + 24) * 200 / 144)
    measured = ((96 - (2 * column + 0.5) + 60) * 200 / 144, (2 * row + 0.5 + 24) * 200 / 144)
    assert np.allclose(get_places(result.warnings), (drawn, measured))
    assert 110 <= measured[0] <= 140
    assert 60 <= measured[1] <= 90

    marked = result.places_overlay()
    (ring_x, ring_y), (cross_x, cross_y) = drawn, measured
    radius = choose_mark_radius(photo)
    assert (marked[int(ring_y), int(ring_x + radius)] > 240).all()
    assert tuple(marked[int(cross_y), int(cross_x)]) == (0, 224, 255)
    assert marked.shape[0] > 200, "a legend is below"
    assert np.array_equal(result.places_overlay(result.check()), marked), "a report has the same places"


def test_places_are_drawn_of_a_finding_alone() -> None:
    (right,) = camtool.explain(Mirrored().eval(), paint(30, 20), 0, layer="features")
    with pytest.raises(camtool.CamtoolError, match="no finding 'heat-elsewhere'"):
        right.places_overlay(right.check())


def test_a_run_writes_the_overlay_with_both_places(tmp_path: Path) -> None:
    (wrong,) = camtool.explain(Mirrored().eval(), paint(30, 20), 0, **STRETCHED)
    settings = OutputSettings(tmp_path)
    SAVE_KINDS["overlay"].write(wrong, tmp_path / "wrong.png", settings, None)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "wrong.png")), wrong.places_overlay(enlarge=True))


def test_a_signal_has_no_places_to_mark() -> None:
    model = nn.Sequential(OrderedDict(flip=Apply(lambda x: x.flip(-1)), features=nn.Conv1d(1, 4, 3, 1, 1)))
    model.add_module("head", Apply(lambda x: torch.stack([x.relu().mean((1, 2)), x.mean((1, 2))], 1)))
    nn.init.constant_(model.features.weight, 1 / 3)
    signal = torch.zeros(1, 1, 64)
    signal[..., 8:14] = 1
    (result,) = camtool.explain(model.eval(), signal, 0, kind="signal", **STRETCHED)
    assert get_places(result.warnings) is None
