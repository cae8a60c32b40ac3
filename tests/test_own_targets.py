"""A target of the user's own answers for itself: its class, its label, its place, and what to doubt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool import images
from camtool.figures.explained import what_sets_apart
from camtool.folder import Output, plan, run
from camtool.outputs import logits
from camtool.targets import Negated, Target, has_a_place

PHOTO = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)
LABELS = ["sky", "road", "tree"]


@dataclass(frozen=True)
class Half(Target):
    """A class in the left half of the image."""

    index: int

    def __call__(self, output: Any) -> Tensor:
        planes = logits(output)[:, self.index]
        return planes[..., : planes.shape[-1] // 2].sum((1, 2))

    def get_class_index(self) -> int:
        return self.index

    def describe(self, labels: Sequence[str] | None) -> str:
        return f"{super().describe(labels)} on the left"

    def has_place(self) -> bool:
        return True

    def get_warnings(self, score: float) -> Sequence[str]:
        return (f"Half was asked and scored {score:.1f}.",)


@dataclass(frozen=True)
class Silent(Target):
    """The same, which says nothing of itself."""

    index: int

    def __call__(self, output: Any) -> Tensor:
        return Half(self.index)(output)


def segmenter() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1)).eval()


class Prepare:
    """From a photo to a tensor, told so that black is known."""

    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)

    def __call__(self, image: Any) -> Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


def explain(target: Target, method: str = "gradcam") -> camtool.Explanation:
    return camtool.explain(segmenter(), PHOTO, target, method=method, layer="1", transform=Prepare(), labels=LABELS)


def test_its_class_and_its_label_are_the_explanations() -> None:
    result = explain(Half(1))
    assert (result.index, result.label) == (1, "road on the left")
    assert result.probability is not None
    assert "road on the left" in repr(result)
    assert explain(Negated(Half(1))).label == "not road on the left"
    assert explain(Negated(Half(1))).index == 1


def test_its_warnings_are_the_explanations() -> None:
    result = explain(Half(1))
    assert f"Half was asked and scored {result.score:.1f}." in result.warnings


def test_its_label_names_the_overlays_file_and_title(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = what_sets_apart([explain(Half(1)), explain(Half(2))])
    assert ["road on the left" in str(words[0]), "tree on the left" in str(words[1])] == [True, True]
    images.write(tmp_path / "a.png", PHOTO)
    explainer = camtool.Explainer(segmenter(), layer="1", transform=Prepare(), labels=LABELS)
    list(run(explainer, plan([str(tmp_path / "a.png")]).jobs, Half(1), Output(tmp_path / "out")))
    (file,) = (tmp_path / "out").rglob("*.png")
    assert "1-road-on-the-left" in file.name


def test_the_image_is_not_flipped_under_it() -> None:
    assert has_a_place(Half(1))
    assert has_a_place(Negated(Half(1)))
    lights = torch.stack([factor * Prepare()(PHOTO) for factor in (0.9, 1.0, 1.1)])
    each = camtool.explain(segmenter(), lights, Half(1), layer="1")
    by_hand = np.mean([result.raw for result in each], axis=0)
    np.testing.assert_allclose(explain(Half(1), "tta:gradcam").raw, by_hand, atol=1e-6)
    assert not np.allclose(explain(Silent(1), "tta:gradcam").raw, by_hand, atol=1e-3)


def test_the_image_is_not_cut_under_it() -> None:
    with pytest.raises(camtool.MethodError, match="Half is about a part of it"):
        explain(Half(1), "sess:gradcam")


def test_one_that_says_nothing_is_about_no_class_and_no_place() -> None:
    result = explain(Silent(1))
    assert (result.index, result.label, result.probability) == (None, "Silent(index=1)", None)
    assert not has_a_place(Silent(1))


def test_a_class_that_the_model_does_not_have_is_said() -> None:
    with pytest.raises(camtool.TargetError, match="target_class 7 does not exist"):
        explain(Half(7))
