"""Which classes and channels speak at a place of the photo."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.transforms import CenterCrop, Compose, ToTensor

from camtool.app.panels.places import look_at_place
from camtool.errors import LayerError, ModelError, TargetError
from camtool.models import Loaded
from tests.app.panels.models import FlatClassifier, color_segmenter, draw_demo_scene, draw_noise, to_tensor
from tests.helpers.nets import staged


def test_a_place_on_an_object_speaks_for_its_class(demo: Loaded) -> None:
    scene, photo = draw_demo_scene()
    for each in scene.objects:
        rows, columns = np.nonzero(each.mask)
        middle = len(rows) // 2
        found = look_at_place(demo, photo, columns[middle], rows[middle])
        assert found.classes[0].label == each.label
        x0, y0, x1, y1 = found.box
        assert abs(columns[middle] - (x0 + x1) / 2) <= 4.1, "cells are 8 pixels apart"
        assert abs(rows[middle] - (y0 + y1) / 2) <= 4.1
        assert found.label == "fish", "the channels are those of the top class"


def test_with_a_pooled_linear_head_the_evidence_is_the_class_activation() -> None:
    net, photo = staged(), draw_noise(8, 12)
    with torch.no_grad():
        maps = net.body(net.stem(to_tensor(photo)[None]))[0]  # (8, 6, 4)
        scores = net(to_tensor(photo)[None])[0]
    found = [[look_at_place(Loaded(net, to_tensor), photo, 2 * c + 1, 2 * r + 1) for c in range(4)] for r in range(6)]
    for r, row in enumerate(found):
        for c, each in enumerate(row):
            assert each.cell == (r, c)
            expected = net.head.weight.detach() @ maps[:, r, c] / 24
            values = {one.index: one.evidence for one in each.classes}
            assert values == pytest.approx(dict(enumerate(expected.tolist())), abs=1e-5)
            assert [one.evidence for one in each.classes] == sorted(values.values(), reverse=True)
            assert each.is_exact
    total = sum(one.evidence for row in found for each in row for one in each.classes if one.index == 2)
    assert total + net.head.bias[2].item() == pytest.approx(float(scores[2]), abs=1e-4)


def test_channels_are_sorted_by_what_they_add_to_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("camtool.app.panels.places._MOST_CHANNELS", 8)
    net, photo = staged(), draw_noise(8, 12)
    with torch.no_grad():
        maps = net.body(net.stem(to_tensor(photo)[None]))[0]
    found = look_at_place(Loaded(net, to_tensor), photo, 3, 5, 1)
    expected = (net.head.weight.detach()[1] * maps[:, 2, 1] / 24).tolist()
    assert {each.index for each in found.channels} == {*range(8)}
    sizes = [abs(each.contribution) for each in found.channels]
    assert sizes == sorted(sizes, reverse=True)
    for each in found.channels:
        assert each.contribution == pytest.approx(expected[each.index], abs=1e-6)
        assert each.activation == pytest.approx(float(maps[each.index, 2, 1]), abs=1e-5)
        assert each.picture.size == photo.size
    assert sum(each.contribution for each in found.channels) == pytest.approx(
        next(each.evidence for each in found.classes if each.index == 1), abs=1e-5
    )


def test_without_such_a_head_it_is_gradient_times_activation() -> None:
    torch.manual_seed(0)
    net, photo = FlatClassifier().eval(), draw_noise(16, 16)
    found = look_at_place(Loaded(net, to_tensor, ["a", "b", "c"]), photo, 5, 9, "b", layer="features.1")
    maps = net.features(to_tensor(photo)[None]).detach().requires_grad_()
    for index, label in enumerate("abc"):
        (gradient,) = torch.autograd.grad(net.head(maps)[0, index], maps)
        (each,) = (one for one in found.classes if one.label == label)
        assert each.evidence == pytest.approx((gradient * maps)[0, :, 4, 2].sum().item(), abs=1e-6)
        assert each.index == index
    assert found.label == "b"
    assert not found.is_exact
    assert "linear estimate" in found.describe()


def test_classes_of_one_name_are_ranked_one_by_one() -> None:
    loaded = Loaded(FlatClassifier().eval(), to_tensor, ["crane", "crane", "crane"])
    found = look_at_place(loaded, draw_noise(16, 16), 5, 9, 1, layer="features.1")
    assert {one.index for one in found.classes} == {0, 1, 2}


def test_a_place_that_the_model_never_saw_is_refused(demo: Loaded) -> None:
    net, photo = staged(), draw_noise(60, 20)
    loaded = Loaded(net, Compose([CenterCrop(16), ToTensor()]))
    with pytest.raises(TargetError, match="never saw the point"):
        look_at_place(loaded, photo, 3, 10)
    assert look_at_place(loaded, photo, 30, 10).grid == (8, 8)
    with pytest.raises(TargetError, match="outside of the photo"):
        look_at_place(demo, draw_demo_scene()[1], 128, 5)


def test_models_without_a_grid_are_refused() -> None:
    photo = draw_noise(16, 16)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(768, 3)).eval()
    with pytest.raises(LayerError):
        look_at_place(Loaded(flat, to_tensor), photo, 3, 3)
    one_cell = nn.Sequential(nn.Conv2d(3, 4, 16), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3)).eval()
    with pytest.raises(LayerError, match="no grid"):
        look_at_place(Loaded(one_cell, to_tensor), photo, 3, 3, layer="1")
    with pytest.raises(ModelError, match="no single score for each class"):
        look_at_place(color_segmenter(), photo, 3, 3)
