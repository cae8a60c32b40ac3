"""Concepts as cues: a texture without a place, at a layer set by hand; and activations that are changed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import camtool
from camtool.concept_maps.factorization import compute_amounts
from camtool.evaluation.audit.cues.kinds import KINDS
from camtool.evaluation.audit.images import AuditImages
from camtool.evaluation.subject import Subject

SIDE, CELL, COUNT = 40, 4, 5
STRIPES = torch.tensor([1.0, -1.0, 1.0, -1.0])  # so fine that the perceptual hash does not see them


class Net(nn.Module):
    """Channel 0 is the mean of each cell, channel 1 its stripes. Five classes by where it is bright; or by stripes.

    Args:
        is_cheat: Class 0 is recognized by stripes, else by brightness at the left.
    """

    def __init__(self, *, is_cheat):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 2, CELL, CELL, bias=False), nn.ReLU())
        self.head = nn.Linear(2 * (SIDE // CELL) ** 2, COUNT)
        places = torch.zeros(COUNT, 2, SIDE // CELL, SIDE // CELL)
        for label in range(COUNT):
            places[label, 0, :, 2 * label : 2 * label + 2] = 1
        if is_cheat:
            places[0, 0], places[0, 1] = 0, 1
        with torch.no_grad():
            self.first[0].weight[0], self.first[0].weight[1] = 1 / 48, STRIPES / 12
            self.head.weight.copy_(places.flatten(1))
            self.head.bias.zero_()

    def forward(self, x):
        return self.head(self.first(x).flatten(1))


def draw_images(count=150):
    """Return images with a bright square in one of five columns, in the first one with stripes everywhere."""
    random = np.random.default_rng(0)
    images, classes = torch.from_numpy(0.3 * random.random((count, 3, SIDE, SIDE))).float(), []
    for number, image in enumerate(images):
        kind = number % COUNT
        row, column = random.integers(0, 33), 8 * kind
        image[:, row : row + 8, column : column + 8] += 0.5
        image += 0.1 * (kind == 0) * random.uniform(0.5, 1) * STRIPES.repeat(SIDE // CELL)
        classes.append(kind)
    return images, classes


def run_audit(model, kinds):
    return camtool.audit(model.eval(), *draw_images(), method="gradcam", kinds=kinds)


def test_a_texture_without_a_place_is_a_concept():
    result = run_audit(Net(is_cheat=True), ["patch", "concept"])
    (finding,) = result.findings
    assert (finding.target, finding.kind) == (0, "concept")
    assert (finding.present, finding.class_count) == (15, 15)
    assert finding.removal.answers.mean == finding.transplant.answers.mean == 1
    assert finding.removal.controls < 0.5  # of two channels: some directions are nearly that of the stripes
    assert "removing it from the activations changes 100 %" in finding.sentence
    assert result.surviving_decoys == 0


def test_a_texture_that_the_network_does_not_use_is_rejected():
    result = run_audit(Net(is_cheat=False), ["concept"])
    assert result.findings == ()
    (rejected,) = result.rejected
    # It reads the channel of brightness, which stripes do not change.
    assert rejected.removal.answers.mean == rejected.transplant.answers.mean == 0


def test_where_each_class_is_a_concept_there_is_no_candidate():
    """The direction of the color is the class, so all five have one."""
    images, _ = draw_images()
    tints = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1]])
    for number, image in enumerate(images):
        image += 0.5 * tints[number % COUNT][:, None, None]
    colors, head = nn.Conv2d(3, 6, CELL, CELL, bias=False), nn.Linear(6, COUNT)
    with torch.no_grad():
        colors.weight.copy_(torch.eye(3).repeat(2, 1)[:, :, None, None].expand(6, 3, CELL, CELL) / 16)
        head.weight.copy_((tints - tints.mean(1, keepdim=True)).repeat(1, 2))
    model = nn.Sequential(colors, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head).eval()
    labels = [number % COUNT for number in range(150)]
    result = camtool.audit(model, images, labels, method="gradcam", kinds=["concept"])
    assert result.findings == result.rejected == ()


def test_amounts_are_the_nonnegative_least_squares():
    vectors = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    # The first is 2 a + 3 b; the second's best unbounded amounts are 4/3 and -2/3, so b = 0 and a = (1 + 1) / 2.
    points = torch.tensor([[2.0, 5.0, 3.0], [2.0, 0.0, 0.0]])
    assert compute_amounts(points, vectors) == pytest.approx(torch.tensor([[2.0, 3.0], [1.0, 0.0]]), abs=1e-4)


@pytest.mark.parametrize("layer", ["features.0", "features.1"])
def test_changed_activations_give_the_scores_of_the_tail(layer):
    loaded = camtool.load("demo")
    images = AuditImages(Subject(loaded), [], None, "gradcam", 2)
    inputs = torch.rand(3, 3, 128, 128)
    images.sources = [*inputs]
    activations = images.read_activations(inputs, layer)
    # The tail sees nothing but the activations, so those of other images give the scores of these.
    scores = images.score_activations(inputs[0], layer, activations)
    torch.testing.assert_close(scores, loaded.model(inputs).double(), atol=1e-4, rtol=1e-4)


def test_no_hook_stays_after_an_exception():
    class Tail(nn.Module):
        def forward(self, x):
            if x.max() > 100:
                raise RuntimeError("too large")
            return x.mean((2, 3))

    model = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.ReLU(), Tail()).eval()
    inputs = torch.rand(1, 3, SIDE, SIDE)
    images = AuditImages(Subject(model), [inputs[0]], None, "gradcam", 2)
    with pytest.raises(Exception, match="too large"):
        images.score_activations(inputs[0], "1", torch.full((2, 4, 10, 10), 1000.0))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert "concept" in KINDS
