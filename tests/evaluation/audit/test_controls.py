"""Controls of the tests of a candidate: an honest network whose classes differ in shape alone, and pairs of images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.evaluation.audit.cues.place import PlaceCandidate
from camtool.evaluation.audit.cues.property import PropertyCandidate
from camtool.evaluation.audit.trials import CueTester
from tests.evaluation.audit.test_audit import run_audit

SIDE = 40


class Shapes(nn.Module):
    """Four 9 x 9 templates, matched anywhere on a ring of pixels: moving an image does not change the logits."""

    def __init__(self) -> None:
        super().__init__()
        templates = torch.zeros(4, 9, 9)
        templates[0, 4], templates[0, :, 4] = 1, 1
        templates[1] = torch.eye(9).maximum(torch.eye(9).flip(1))
        templates[2, [0, -1]], templates[2, :, [0, -1]] = 1, 1
        templates[3, 2:7, 2:7] = 1
        self.templates = templates
        centered = templates - templates.mean((1, 2), keepdim=True)
        self.match = nn.Conv2d(1, 4, 9, padding=4, padding_mode="circular", bias=False)
        self.match.weight.data = (centered / centered.flatten(1).norm(dim=1)[:, None, None])[:, None]
        self.relu = nn.Softplus(beta=3)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (N, 4) of images (N, 3, H, W)."""
        return 400 * self.pool(self.relu(self.match(2.8 * x.mean(1, keepdim=True)) - 1.0) ** 3).flatten(1)


def draw_photos(noises: list[float], count: int = 120, seed: int = 0) -> tuple[list[np.ndarray], list[int]]:
    """Draw photos of a shape anywhere, with noise of a strength for each class, and their classes."""
    random, templates = np.random.default_rng(seed), Shapes().templates.numpy()
    photos, classes = [], []
    for number in range(count):
        label = number % 4
        photo = np.full((SIDE, SIDE), 110.0)
        row, column = random.integers(0, SIDE - 9, 2)
        photo[row : row + 9, column : column + 9] += 90 * templates[label]
        photo += random.normal(0, noises[label], photo.shape)
        photos.append(np.clip(photo, 0, 255).astype(np.uint8)[:, :, None].repeat(3, 2))
        classes.append(label)
    return photos, classes


def to_tensor(image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


@pytest.mark.parametrize("seed", [0, 1])
def test_a_camera_with_more_noise_is_no_shortcut_of_a_network_that_sees_shapes(seed):
    """Less contrast lowers the answers of all classes: with the opposite shift as control each would be a finding."""
    photos, classes = draw_photos([14.0, 6.0, 6.0, 6.0], seed=seed)
    audited = camtool.audit(Shapes().eval(), photos, classes, method="gradcam", kinds=["property"], transform=to_tensor)
    assert audited.findings == ()
    tested = {(finding.label, finding.kind) for finding in audited.rejected}
    assert ("class 0", "property") in tested


def test_a_property_that_all_classes_need_alike_is_compared_with_images_that_have_it_as_strongly(monkeypatch):
    steps, strengths = [], []
    compare, run = PropertyCandidate.compare_moves, CueTester._compare_images

    def compare_moves(self, images, record, others, random):
        steps.append([self.measure(images, one) for one in (record, *others)])
        return compare(self, images, record, others, random)

    def compare_images(self, candidate, row, random):
        strengths.append((self.measure_strengths(candidate), row))
        return run(self, candidate, row, random)

    monkeypatch.setattr(PropertyCandidate, "compare_moves", compare_moves)
    monkeypatch.setattr(CueTester, "_compare_images", compare_images)
    photos, classes = draw_photos([14.0, 6.0, 6.0, 6.0])
    camtool.audit(Shapes().eval(), photos, classes, method="gradcam", kinds=["property"], transform=to_tensor)
    assert steps
    for (own, *others), (known, row) in zip(steps, strengths, strict=True):
        assert own == known[row]
        distances = np.sort(np.abs(np.delete(known, row) - own))
        assert max(abs(other - own) for other in others) <= distances[60 - 2]  # of the nearer ones, all classes counted


def test_each_image_has_a_partner_of_its_own_and_no_more_images_are_pasted_on_than_have_the_cue():
    pairs: dict[str, list[tuple[int, int]]] = {"remove": [], "transplant": []}

    def record(name):
        change = getattr(PlaceCandidate, name)

        def changed(self, asked):
            pairs[name].append((asked.image, asked.partner))
            return change(self, asked)

        return changed

    with pytest.MonkeyPatch.context() as patch:
        for name in pairs:
            patch.setattr(PlaceCandidate, name, record(name))
        run_audit(kinds=["place"], controls=3)
    for made in pairs.values():
        assert len({partner for _, partner in made}) == len(made)
    assert 8 <= len(pairs["transplant"]) <= len(pairs["remove"])
