"""The test of places: do the pixels on which the hottest cell depends lie where it is drawn?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.trust.checks.check_report import Finding
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
        vars(camtool.trust.checks.place_checks), "measure_responses", lambda *_, **__: asked.append(1) or {}
    )
    explainer = camtool.Explainer(Net(lambda x: x).eval(), verify=verify)
    for size in (96, 96, 64, 96):
        explainer(torch.rand(1, 3, size, size), 0)
    assert len(asked) == tested


def test_where_the_content_decides_each_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setitem(
        vars(camtool.trust.checks.place_checks), "measure_responses", lambda *_, **__: asked.append(1) or {}
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
