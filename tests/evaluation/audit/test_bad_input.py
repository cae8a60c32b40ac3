"""Bad input of ``camtool.audit``: each case gets a sentence that names the argument, or is no matter at all.

Few images, one class, equal and damaged images, and arguments that are too long or unknown are in ``test_audit.py``.
"""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import camtool
from camtool.errors import MetricError

from .test_audit import SIDE, build_net, draw_images, run_audit


class Broken(nn.Module):
    """A network that returns NaN for images that are bright."""

    def __init__(self, *, always):
        super().__init__()
        self.net, self.always = build_net(), always

    def forward(self, x):
        is_broken = (x.amax((1, 2, 3)) > (0 if self.always else 0.95))[:, None]
        return torch.where(is_broken, torch.nan, self.net(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": [7] * 90}, "labels: 7 is no class of the model, which has the classes 0 to 2"),
        ({"labels": [0.5] * 90}, "labels: 0.5 is no class"),
        ({"labels": [None] * 90}, "labels: None is no class"),
        ({"labels": [float("nan")] * 90}, "labels: nan is no class"),
        ({"labels": [[0, "red"]] * 90}, "labels: 'red' is a name; give class_names"),
        ({"images": "photos"}, "images must be a list, got 'photos'"),
        ({"images": [], "labels": []}, "images is empty"),
        ({"masks": ["left", "right"]}, "masks must be one region, or one for each of the 90 images; got 2"),
        ({"model": Broken(always=True)}, "scores that are not finite"),
    ],
)
def test_the_argument_is_named(options, message):
    images, classes = draw_images()
    given = {"model": build_net(), "images": images, "labels": classes, "method": "gradcam", **options}
    with pytest.raises(MetricError, match=message):
        camtool.audit(given.pop("model"), given.pop("images"), **given)


def test_a_score_that_is_not_finite_on_a_later_image_is_told():
    images, classes = draw_images()
    images[80, 0, 0, 0] = 1
    with pytest.raises(MetricError, match="scores that are not finite"):
        camtool.audit(Broken(always=False), images, classes, method="gradcam")


def test_a_model_in_training_mode_gives_the_same_and_stays_in_it(result):
    images, classes = draw_images()
    model = nn.Sequential(nn.Dropout(0.5), build_net()).train()
    names = pandas.Series(["a", "b", "c"], index=[2, 1, 0])  # which is read by position
    trained = camtool.audit(model, images, classes, method="gradcam", kinds=["place"], class_names=names)
    assert all(module.training for module in model.children() if isinstance(module, nn.Dropout))
    assert trained.findings[0].label == "a"
    assert trained.findings[0].removal == result.findings[0].removal


def test_images_of_several_sizes_are_compared_in_cells():
    images, classes = draw_images()
    larger = [nn.functional.interpolate(image[None], scale_factor=2)[0] for image in images[::2]]
    mixed = [larger[number // 2] if number % 2 == 0 else image for number, image in enumerate(images)]
    (finding,) = run_audit(mixed, classes).findings
    assert (finding.label, finding.name) == ("red", "the lower right corner")


def test_photos_of_one_pixel_that_all_differ_claim_nothing():
    photos = [np.full((1, 1, 3), value, np.uint8) for value in range(0, 240, 4)]
    result = camtool.audit(camtool.load("demo"), photos, [n % 2 for n in range(60)], method="gradcam")
    assert result.findings == ()


@pytest.mark.parametrize(
    ("masks", "outside"),
    [("0,0,20,20", 1.0), ([None] * 45 + ["0,0,20,20"] * 45, 1.0), (None, None), (np.ones((90, SIDE, SIDE)), 0.0)],
)
def test_the_share_outside_of_masks_is_told(masks, outside):
    result = run_audit(masks=masks)
    (finding,) = result.findings
    assert finding.outside == outside
    assert ("outside the given masks" in finding.suspicions) == bool(outside)
    assert ("Of it 100 % is outside of the given masks." in result.to_markdown()) == bool(outside)


def test_a_mask_of_another_size_is_named():
    with pytest.raises(MetricError, match=r"masks\[\d+\] must be \(40, 40\), as large as its photo"):
        run_audit(masks=np.ones((90, 5, 5)))
