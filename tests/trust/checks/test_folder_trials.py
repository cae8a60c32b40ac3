"""Folders of images: a wrong input is found by the mean over many images, and a right one is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import camtool
from camtool.errors import ForwardError
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
        return images.flatten(1)[:, :10]

    for _ in range(3):
        trials.add(item.tensor.expand(30, -1, -1, -1), item, score)
    assert {name: len(gains) for name, gains in trials.gains.items()} == dict.fromkeys(trials.gains, 64)
    assert set(counted) == {30, 4}
    trials = FolderTrials()
    trials.add(torch.zeros(2, 1, 8, 8), item, score)
    assert not trials.gains


@pytest.mark.parametrize(("classes", "least"), [(9, None), (10, 0.2), (99, 0.2), (100, 0.05)])
def test_few_classes_take_a_larger_gain(demo, classes: int, least: float | None) -> None:
    """One class of K has the score 1 + c and the others 0: its contrast is (K - 1) / sqrt(K), whatever c is."""
    trials = FolderTrials()
    (item,) = [camtool.Explainer(demo).prepare(Image.fromarray(photos.unseen(0).image))]
    trials.add(item.tensor.expand(9, -1, -1, -1), item, lambda images: torch.eye(classes)[:1].expand(len(images), -1))
    assert bool(trials.gains) == (least is not None)
    for gain in [] if least is None else [0.9 * least, 1.1 * least]:
        trials.gains["upside-down"] = [gain - 0.01, gain + 0.01] * 8
        assert bool([*trials.find_warnings()]) == (gain > least)


class Strict(torch.nn.Module):
    """A classifier of ten classes that refuses values above a limit."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.body, self.head, self.limit = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Linear(4, 10), limit
        self.eval()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return scores ``(N, 10)``."""
        if float(images.abs().max()) > self.limit:
            raise ValueError("values are too large")
        scores: torch.Tensor = self.head(self.body(images).relu().mean((2, 3)))
        return scores


def test_a_change_that_the_model_refuses_costs_no_results() -> None:
    images = torch.rand(10, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    table = camtool.evaluate(Strict(10.0), images, ["gradcam"], metrics=["sparsity"], batch_size=4)
    assert len(table.rows) == 2
    assert all(np.isfinite(row.values["sparsity"]).all() and len(row.values["sparsity"]) == 10 for row in table.rows)


def test_a_change_that_is_refused_for_some_images_is_left_out(demo) -> None:
    trials, model = FolderTrials(), Strict(2.2)
    (item,) = [camtool.Explainer(demo).prepare(Image.fromarray(photos.unseen(0).image))]

    def score(images: torch.Tensor) -> torch.Tensor:
        try:
            return model(images).detach()
        except ValueError as error:
            raise ForwardError(str(error)) from error

    dark = torch.full((4, 3, 8, 8), -0.9)
    dark[:, :, 0, 0] = 0.5
    for images in (dark, -dark, dark):  # only the bright batch exceeds 2.2 with ImageNet's normalization
        trials.add(images, item, score)
    assert {len(gains) for gains in trials.gains.values()} == {12}
    assert trials.refused == {"scale-misfit ImageNet's mean and standard deviation"}
    assert not trials.refused & trials.gains.keys()


def exchange(pixels: np.ndarray) -> np.ndarray:
    return pixels[..., ::-1].copy()


def turn(pixels: np.ndarray) -> np.ndarray:
    return pixels[::-1, ::-1].copy()


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
