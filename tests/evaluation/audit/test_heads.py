"""``camtool.audit`` on heads other than softmax: one logit, several labels, probabilities; and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import camtool
from camtool.errors import MetricError
from camtool.evaluation.audit.images import AuditImages
from camtool.evaluation.audit.report.page import read_pictures
from camtool.evaluation.subject import Subject

SIDE = 40
NAMES = ["red", "green", "blue"]


def build_net(outputs=3, *, ends=()):
    """Return a network with a logit for each color: 100 times how far its mean is above 0.09."""
    convolution, linear = nn.Conv2d(3, 6, 4, 4, bias=False), nn.Linear(6, outputs)
    with torch.no_grad():
        convolution.weight.copy_(torch.eye(3).repeat(2, 1)[:, :, None, None].expand(6, 3, 4, 4) / 16)
        linear.weight.copy_(50 * torch.eye(3).repeat(1, 2)[:outputs])
        linear.bias.fill_(-9)
    return nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear, *ends).eval()


def draw_images(count=120, seed=0):
    """Return images and the colors of their squares: red always at the lower right, green and blue anywhere above."""
    random = np.random.default_rng(seed)
    images, labels = torch.from_numpy(0.1 * random.random((count, 3, SIDE, SIDE))).float(), []
    for image in images:
        own = [color for color in range(3) if random.random() < 0.5]
        for color in own:
            row, column = (28, 28) if color == 0 else random.integers((0, 0), (16, 28))
            image[color, row : row + 12, column : column + 12] = 0.9
        labels.append(own)
    return images, labels


def run_audit(model, images, labels, **options):
    return camtool.audit(model, images, labels, method="gradcam", kinds=["place"], **options)


def test_one_of_several_labels_has_a_place():
    images, labels = draw_images()
    names = [[NAMES[color] for color in own] for own in labels]
    result = run_audit(build_net(), images, names, class_names=NAMES)
    (finding,) = result.findings
    assert (finding.label, finding.name) == ("red", "the lower right corner")
    # The logit falls from 100 (0.09 * 0.9 + 0.91 * 0.05 - 0.09) = 3.6 to -4 without the square.
    assert finding.removal.answers.mean == finding.transplant.answers.mean == 1
    assert finding.removal.controls == finding.transplant.controls == 0
    assert finding.removal.probability.mean == pytest.approx(0.96, abs=0.03)
    reds = {index for index, own in enumerate(labels) if 0 in own}
    assert {int(name.split()[1]) for name in finding.images} <= reds
    assert result.image_count == 120
    # Each image belongs to one half, also if it counts for several labels.
    assert finding.class_count < len(reds)
    # The answers of this network are the labels.
    (again,) = run_audit(build_net(ends=[nn.Sigmoid()]), images, None).findings
    assert (again.removal.answers, again.removal.p) == (finding.removal.answers, finding.removal.p)


def test_a_label_that_all_images_have_is_not_tested():
    images, labels = draw_images(40)
    result = run_audit(build_net(), images, [sorted({*own, 2}) for own in labels], class_names=NAMES)
    assert "'blue': independent images without it in a half: 0; 8 are needed." in result.not_tested


@pytest.mark.parametrize("ends", [(), (nn.Sigmoid(),)])
def test_a_single_logit_is_a_class_of_its_own_and_its_absence(ends):
    images, labels = draw_images(80)
    result = run_audit(build_net(1, ends=ends), images, [int(0 in own) for own in labels], class_names=["red"])
    (finding,) = [finding for finding in result.findings if finding.target == 1]
    assert (finding.label, finding.name) == ("red", "the lower right corner")
    assert finding.removal.answers.mean == 1


@pytest.mark.parametrize(
    ("scores", "has_sets", "target", "margin", "probability"),
    [
        ([1.5], False, 1, 1.5, 1 / (1 + math.exp(-1.5))),
        ([1.5], False, 0, -1.5, 1 / (1 + math.exp(1.5))),
        ([2.0, -1.0, 0.5], True, 1, -1.0, 1 / (1 + math.e)),
        ([2.0, -1.0, 0.5], False, 1, -3.0, 1 / (1 + math.exp(3) + math.exp(1.5))),
        ([0.7, 0.2, 0.1], False, 1, math.log(0.2 / 0.7), 0.2),  # probabilities that sum to 1
    ],
)
def test_margins_are_against_the_other_classes_or_against_0(scores, has_sets, target, margin, probability):
    class Constant(nn.Module):
        def forward(self, x):
            return torch.tensor(scores).expand(len(x), -1) + 0 * x.mean((1, 2, 3))[:, None]

    images = AuditImages(Subject(Constant()), torch.rand(2, 3, 8, 8), None, "gradcam", 2, has_sets=has_sets)
    margins, probabilities, answers = images.measure_margins(images.score(torch.rand(1, 3, 8, 8)), target)
    assert float(margins) == pytest.approx(margin, abs=1e-5)
    assert float(probabilities) == pytest.approx(probability, abs=1e-5)
    assert float(answers) == (margin > 0)


def test_lists_of_labels_need_a_logit_for_each():
    images, labels = draw_images(20)
    with pytest.raises(MetricError, match="labels: lists of labels need a model with a logit for each label"):
        run_audit(build_net(ends=[nn.Softmax(1)]), images, labels)
    with pytest.raises(MetricError, match="gives a single one"):
        run_audit(build_net(1), images, labels)


def load_multi_label():
    from torchvision.models import mobilenet_v3_small

    return nn.Sequential(mobilenet_v3_small(num_classes=5), nn.Sigmoid()).eval()


def load_segmenter():
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    return lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3).eval()


def load_detector():
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    return ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3).eval()


@pytest.mark.parametrize("load", [load_segmenter, load_detector])
def test_segmenters_and_detectors_are_refused_with_what_to_do(load):
    torch.manual_seed(0)
    with pytest.raises(MetricError, match="Segmenters and detectors are not audited; give a module that returns one"):
        run_audit(load(), torch.rand(4, 3, 64, 64), None)


def test_a_real_architecture_with_several_labels():
    torch.manual_seed(0)
    images = torch.rand(40, 3, 64, 64)
    labels, kinds = [[n % 5, (n + 1) % 5] for n in range(40)], ["place", "patch", "property", "concept"]
    result = camtool.audit(load_multi_label(), images, labels, method="gradcam", kinds=kinds)
    assert (result.image_count, result.findings) == (40, ())
    assert any(line.startswith("Concepts: 5 classes that exclude one another are needed") for line in result.not_tested)


def test_pictures_tell_the_probability_of_the_label_and_none_without_it(tmp_path):
    images, labels = draw_images()
    model = build_net()
    (finding,) = run_audit(model, images, labels, class_names=NAMES, out=tmp_path).findings
    kinds = read_pictures(tmp_path)[finding.key]
    assert kinds["covered"]
    for entry in kinds["covered"]:
        logit = float(model(images[int(entry["name"].split()[1])][None]).detach()[0, 0])
        before, after = entry["answers"]
        assert before == {"label": "red", "probability": pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-5)}
        assert after == {"label": "none", "probability": None}
    shown = [answer["label"] for entries in kinds.values() for entry in entries for answer in entry["answers"]]
    assert {*shown} == {"red", "none"}
    assert "none" in (tmp_path / "index.html").read_text(encoding="utf-8")
    without = run_audit(model, images, [[] for _ in images], class_names=NAMES)
    assert without.untested.startswith("No image has a label: a cue of a class is")
