"""Candidates of the kind *color*: parts of one color at any place and in any shape."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import camtool
from camtool.evaluation.audit.cues.property import ColorCandidate, read_colors
from camtool.evaluation.audit.images import AuditImages
from camtool.evaluation.subject import Subject

from .test_audit import build_net

SIDE = 48


def build_reader(*, reads_blue):
    """Return a network of two classes: how much blue there is, or how bright the image is, against a constant."""
    convolution, linear = nn.Conv2d(3, 6, 4, 4, bias=False), nn.Linear(6, 2)
    with torch.no_grad():
        blue, bright = torch.tensor([-1.0, -1.0, 1.0]), torch.ones(3)
        convolution.weight.copy_(torch.stack([blue, bright] * 3)[:, :, None, None].expand(6, 3, 4, 4) / 48)
        linear.weight.copy_(
            torch.tensor([[100.0, 0.0] if reads_blue else [0.0, 10.0]]).repeat(1, 3) * torch.tensor([[1.0], [-1.0]])
        )
        linear.bias.copy_(torch.tensor([0.0, 0.6 if reads_blue else 25.5]))
    return nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear).eval()


def draw_photos(count=160, share_of_others=0.0):
    """Return photos and classes: disc-shaped or rectangular blue parts anywhere, in all photos of class 0."""
    random, photos = np.random.default_rng(3), []
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for number in range(count):
        photo = np.repeat(random.integers(60, 160, (SIDE, SIDE, 1)), 3, 2).astype(np.uint8)
        if number % 2 == 0 or random.random() < share_of_others:
            down, across = random.integers(8, SIDE - 8, 2)
            if random.random() < 0.5:
                part = (rows - down) ** 2 + (columns - across) ** 2 <= 30
            else:
                part = (abs(rows - down) <= 2) & (abs(columns - across) <= 6)
            photo[part] = 20, 40, 220
        photos.append(photo)
    return photos, [number % 2 for number in range(count)]


def run_audit(net, photos, classes, **options):
    return camtool.audit(net, photos, classes, method="gradcam", kinds=["color"], transform=to_tensor, **options)


def to_tensor(photo):
    return torch.from_numpy(np.array(photo)).permute(2, 0, 1).float() / 255


def test_blue_parts_of_any_shape_are_a_finding_of_a_network_that_reads_blue():
    result = run_audit(build_reader(reads_blue=True), *draw_photos())
    (finding,) = result.findings
    assert (finding.target, finding.kind, finding.key) == (0, "color", "class 0: color: blue parts")
    assert finding.removal.answers.mean == finding.transplant.answers.mean == 1
    assert finding.facts[0] == "one color in all images"
    assert "small" in finding.facts
    assert finding.area == pytest.approx(0.035, abs=0.01)  # discs and bars of 65 to 97 of 2304 pixels


@pytest.mark.parametrize(("reads_blue", "share"), [(False, 0.0), (True, 1.0)])
def test_a_color_that_nobody_reads_or_all_have_is_no_finding(reads_blue, share):
    result = run_audit(build_reader(reads_blue=reads_blue), *draw_photos(share_of_others=share))
    assert not result.findings


def test_shares_of_colors_are_those_of_their_hues():
    photo = np.zeros((4, 8, 3), np.uint8)
    photo[:2], photo[2] = (255, 0, 0), 255  # half red, a quarter white, the rest black
    images = AuditImages(Subject(build_net(), to_tensor), [photo], None, "gradcam", 8)
    shares = read_colors(images, 0)
    # Pure red has the hue 40 degrees and the chroma 105 in CIELAB: the strong colors that begin at 15 and 30 degrees.
    expected = np.zeros(51)
    expected[24 + np.array([1, 2])] = 0.5
    expected[[48, 50]] = 0.25
    np.testing.assert_array_equal(shares, expected)


def test_the_region_is_the_part_with_its_rim_and_no_stray_pixel():
    photo = np.full((64, 64, 3), 120, np.uint8)
    photo[20:30, 40:52] = 255, 0, 0
    photo[5, 5] = 255, 0, 0
    images = AuditImages(Subject(build_net(), to_tensor), [photo], None, "gradcam", 8)
    region = ColorCandidate(0, "red parts", 1.0, 25, 0.03).locate(images, images.prepare(0)).numpy()
    expected = np.zeros((64, 64), bool)
    expected[18:32, 38:54] = True
    # Corners of the part have less than half of their surroundings in it.
    assert 0 <= (expected & ~region).sum() <= 4
    assert not (region & ~expected).any()
