"""Folders of images: a wrong input is found by the mean over many images, and a right one is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import camtool
from camtool.trust.checks.input_checks import FolderTrials
from tests.helpers import photos


def find_codes(gains: dict[str, list[float]]) -> list[str]:
    return [warning.code for warning in FolderTrials(gains).find_warnings()]


def test_a_mean_gain_of_more_than_three_standard_errors_is_named() -> None:
    # Mean 1 and deviation 2 / sqrt(3) of 16 gains: a standard error of 0.2887, so 3.46 of them; with -0.3 less, 2.42.
    gains = [2.0, 0.0, 2.0, 0.0] * 4
    deviation = (16 / 15) ** 0.5
    assert np.std(gains, ddof=1) == pytest.approx(deviation)
    (warning,) = FolderTrials({"upside-down": gains, "channels-swapped": [-1.0, 0.0] * 8}).find_warnings()
    assert warning.code == "upside-down"
    assert f"{1 / (deviation / 4):.1f} standard errors" in warning
    assert find_codes({"upside-down": [gain - 0.3 for gain in gains]}) == []


def test_the_change_with_the_surest_gain_is_named() -> None:
    small, large = [0.9, 1.1] * 5, [0.0, 4.0] * 5
    assert find_codes({"upside-down": large, "channels-swapped": small}) == ["channels-swapped"]


@pytest.mark.parametrize("gains", [[0.9, 1.1] * 3, [0.5] * 20, [1e-6, 2e-6] * 10, [float("nan")] * 10, []])
def test_few_images_equal_gains_and_rounding_are_not_named(gains: list[float]) -> None:
    assert find_codes({"upside-down": gains}) == []


def test_at_most_64_images_of_three_channels_are_scored(demo) -> None:
    trials, counted = FolderTrials(), list[int]()
    (item,) = [camtool.Explainer(demo).prepare(Image.fromarray(photos.unseen(0).image))]

    def score(images: torch.Tensor) -> torch.Tensor:
        counted.append(len(images))
        return images.flatten(1)[:, :5]

    for _ in range(3):
        trials.add(item.tensor.expand(30, -1, -1, -1), item, score)
    assert {name: len(gains) for name, gains in trials.gains.items()} == dict.fromkeys(trials.gains, 64)
    assert set(counted) == {30, 4}
    trials = FolderTrials()
    trials.add(torch.zeros(2, 1, 8, 8), item, score)
    assert not trials.gains


def exchange(pixels: np.ndarray) -> np.ndarray:
    return pixels[..., ::-1].copy()


def turn(pixels: np.ndarray) -> np.ndarray:
    return pixels[::-1, ::-1].copy()


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("name", ["mobilenet_v2", "squeezenet1_1"])
@pytest.mark.parametrize(("change", "code"), [(exchange, "channels-swapped"), (turn, "upside-down"), (None, None)])
def test_evaluate_names_what_is_wrong_with_all_photos(
    shared: Path, name: str, change: Callable[[np.ndarray], np.ndarray] | None, code: str | None
) -> None:
    """No code is told how the photos were changed: the files themselves are wrong."""
    model = camtool.load(name, shared / "models" / f"{name}-imagenet.safetensors")
    pixels = [np.asarray(Image.open(path).convert("RGB")) for path in sorted((shared / "images").glob("*.*g"))]
    images = [Image.fromarray(change(array) if change else array) for array in pixels]
    table = camtool.evaluate(model, images, ["gradcam"], metrics=["sparsity"])
    assert [note.code for note in table.notes] == ([code] if code else [])


def test_scenes_of_the_demo_have_no_finding(demo) -> None:
    images = [Image.fromarray(photos.unseen(number).image) for number in range(16)]
    assert camtool.evaluate(demo, images, ["gradcam"], metrics=["sparsity"]).notes == ()


def test_scenes_in_another_range_are_named(demo) -> None:
    """The twin of the test on photos: the demo expects [-1, 1], and gets [0, 1]."""
    scenes = np.stack([photos.unseen(number).image for number in range(32)])
    images = torch.from_numpy(scenes).permute(0, 3, 1, 2).float() / 255
    notes = camtool.evaluate(demo.model, images, ["gradcam"], metrics=["sparsity"]).notes
    assert [note.code for note in notes] == ["scale-misfit"]
    assert "[-1, 1]" in notes[0]
