"""Keypoints: the score at the peak of a heatmap or at a place, and that of a person of Keypoint R-CNN."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.models.detection import keypointrcnn_resnet50_fpn

import camtool
from camtool.errors import NothingFoundError, TargetError
from camtool.targets import ImageOutput, Keypoint


class Pose(nn.Module):
    """Two heatmaps: the first channel of the image doubled, and the second."""

    def __init__(self, heatmaps: int = 2) -> None:
        super().__init__()
        self.heatmaps = nn.Conv2d(2, heatmaps, 1, bias=False)
        weights = torch.tensor([[2.0, 0], [0, 1]])[:heatmaps]
        self.heatmaps.weight = nn.Parameter(weights[..., None, None])

    def forward(self, x: Tensor) -> Tensor:
        return self.heatmaps(nn.functional.avg_pool2d(x, 2))


def make_image() -> Tensor:
    image = torch.zeros(1, 2, 8, 8)
    image[0, 0, 2:4, 6:8] = 3  # a block that becomes row 1, column 3
    image[0, 0, 6:8, 0:2] = 1
    image[0, 1, 4:6, 4:6] = 5
    return image


@pytest.mark.parametrize(
    ("target", "score", "cell"),
    [
        (Keypoint(0), 6, (1, 3)),
        (Keypoint(1), 5, (2, 2)),
        (Keypoint(0, at=(1, 6.5)), 2, (3, 0)),
        (Keypoint(1, at=(7.9, 0)), 0, (0, 3)),
    ],
)
def test_the_score_is_that_of_the_heatmap(target: Keypoint, score: float, cell: tuple[int, int]) -> None:
    """The map at the heatmaps' input is that of the one position, by the definition of gradient times activation."""
    (result,) = camtool.explain(Pose(), make_image(), target, method="hirescam", layer="heatmaps")
    assert (result.label, result.score) == (f"keypoint {target.index}", score)
    expected = np.zeros((4, 4))
    expected[cell] = score
    np.testing.assert_array_equal(result.raw, expected)


def test_the_layer_before_the_heatmaps_is_found() -> None:
    """A keypoint reads one position, but the layer is chosen for the whole output."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 1, 1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    (result,) = camtool.explain(model.eval(), make_image(), Keypoint(1), method="layercam")
    assert result.layer == "3"
    row, column = divmod(int(model(make_image())[0, 1].argmax()), 4)
    assert not np.delete(result.raw.ravel(), 4 * row + column).any()


def test_a_single_heatmap_has_its_own_peak() -> None:
    (result,) = camtool.explain(Pose(1), make_image(), Keypoint(0), method="hirescam", layer="heatmaps")
    assert result.score == 6


def test_changed_images_are_scored_at_the_same_place() -> None:
    planes = Pose()(make_image())
    target = Keypoint(0).resolve_on(ImageOutput(planes[0]))
    moved = planes.roll(1, 3)  # the peak is in the column of the other value now
    assert target(moved).tolist() == [0]
    assert Keypoint(0)(moved).tolist() == [6]


def test_refused_keypoints() -> None:
    for target, message in [
        (Keypoint(2), "keypoint 2 needs heatmaps (N, K, h, w) with K > index; the model gave (1, 2, 4, 4)"),
        (Keypoint(0, at=(9, 1)), "Point (9, 1) is outside of the part of the photo the model sees"),
    ]:
        with pytest.raises(TargetError, match=re.escape(message)):
            camtool.explain(Pose(), make_image(), target, layer="heatmaps")
    people = [{"boxes": torch.rand(1, 4).sort(1).values, "labels": torch.ones(1).long(), "scores": torch.rand(1)}]
    with pytest.raises(TargetError, match="needs a detector of keypoints; the model returned detections without"):
        Keypoint(0)(people)


@pytest.fixture
def people() -> Iterator[nn.Module]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield keypointrcnn_resnet50_fpn(
            weights=None, weights_backbone=None, num_keypoints=3, min_size=64, max_size=96, box_score_thresh=0.01,
            box_detections_per_img=4, rpn_post_nms_top_n_test=20,
        ).eval()  # fmt: skip


def test_keypoint_rcnn(people: nn.Module) -> None:
    image = torch.rand(1, 3, 64, 80, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        (output,) = people([image[0]])
    for person, index in ((0, 2), (1, 0)):
        (result,) = camtool.explain(people, image, Keypoint(index, instance=person))
        assert result.score == pytest.approx(float(output["keypoints_scores"][person, index]), rel=1e-3)
        assert result.box == pytest.approx(output["boxes"][person].tolist(), abs=0.1)
        assert result.raw.max() > 0
    with pytest.raises(NothingFoundError, match="asks for detection 50"):
        camtool.explain(people, image, Keypoint(0, instance=50))
    with pytest.raises(TargetError, match="scores keypoints at their peaks alone"):
        camtool.explain(people, image, Keypoint(0, at=(1, 1)))
