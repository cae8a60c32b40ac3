"""Explanations on a GPU: the maps of the CPU, no trace, little memory. Where there is no GPU, the tests say so."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from benchmarks import gpu
from camtool.demo.camnet import load_honest_model, prepare_images
from camtool.demo.scenes import UNSEEN, draw_scene
from tests.hooks.state.test_no_trace import unchanged

DEVICES = [pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("mps", marks=pytest.mark.mps)]
METHODS = (
    "cam", "gradcam", "gradcam++", "layercam", "rivalcam", "faithcam", "eigencam", "scorecam", "ablationcam", "rise",
    "occlusion", "integratedgradcam", "smoothgradcam++", "guided-gradcam", "fullgrad", "cameras", "tta:gradcam",
)  # fmt: skip


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    if request.param not in gpu.list_gpus():
        pytest.skip(f"there is no GPU for {request.param} here: nothing was tested on one")
    return request.param


@pytest.fixture(scope="module")
def scenes() -> Tensor:
    return prepare_images(np.stack([draw_scene(UNSEEN + seed).image for seed in range(3)]))


def explain(model: nn.Module, batch: Tensor, method: str = "gradcam", **options: Any) -> list[camtool.Explanation]:
    return list(camtool.explain(model, batch, [0] * len(batch), method=method, **options))


def find_distance(found: list[camtool.Explanation], expected: list[camtool.Explanation]) -> float:
    """Return the largest difference of two maps as a share of the peak."""
    pairs = [(one.raw.astype(float), other.raw.astype(float)) for one, other in zip(found, expected, strict=True)]
    return max(float(np.abs(one - other).max() / np.abs(other).max()) for one, other in pairs)


@pytest.mark.parametrize("method", METHODS)
def test_maps_are_those_of_the_cpu(device: str, method: str, scenes: Tensor) -> None:
    model = load_honest_model().model
    expected = explain(model, scenes, method, seed=0) if method == "rise" else explain(model, scenes, method)
    on_gpu, batch = copy.deepcopy(model).to(device), scenes.to(device)
    with unchanged(on_gpu):
        found = explain(on_gpu, batch, method, seed=0) if method == "rise" else explain(on_gpu, batch, method)
    # NVIDIA's convolutions round to TF32, ten bits.
    assert find_distance(found, expected) < 2e-2
    assert all(isinstance(one.overlay(), np.ndarray) for one in found)


def test_a_batch_is_its_images_one_at_a_time(device: str, scenes: Tensor) -> None:
    model, batch = load_honest_model().model.to(device), scenes.to(device)
    singles = [explain(model, image[None])[0] for image in batch]
    assert find_distance(explain(model, batch), singles) < 2e-2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_is_that_of_the_user(device: str, dtype: torch.dtype, scenes: Tensor) -> None:
    model = load_honest_model().model
    expected = explain(model, scenes)
    model, batch = copy.deepcopy(model).to(device), scenes.to(device)
    with torch.autocast(device, dtype):
        found = explain(model, batch)
        assert torch.is_autocast_enabled(device)
    assert find_distance(found, expected) < 0.1


def test_a_compiled_model_has_the_same_maps(device: str, scenes: Tensor) -> None:
    model = load_honest_model().model
    expected = explain(model, scenes)
    compiled = torch.compile(copy.deepcopy(model).to(device))
    compiled(scenes.to(device))
    assert find_distance(explain(compiled, scenes.to(device)), expected) < 2e-2


@pytest.mark.cuda
def test_an_explanation_takes_the_memory_of_a_few_forward_passes(scenes: Tensor) -> None:
    if "cuda" not in gpu.list_gpus():
        pytest.skip("there is no GPU for cuda here: nothing was tested on one")
    model, batch = load_honest_model().model.cuda(), scenes.repeat(20, 1, 1, 1).cuda()
    explain(model, batch)
    peaks = []
    for run in (lambda: model(batch), lambda: explain(model, batch)):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.inference_mode():
            run()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] < 3 * peaks[0]


def test_the_benchmark_measures_on_a_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """On the CPU, where it stores nothing; the distance to the maps of the CPU is none."""
    monkeypatch.setattr(gpu, "_OUT", tmp_path / "gpu.json")
    row = gpu.measure("mobilenet_v2", 1, "float32", "cpu", turns=1)
    assert row["distance"] == 0
    assert set(row["images a second"]) == {"forward", "compute_maps", "explain", "faithcam"}
    assert row["peak memory"] is None
    if not gpu.list_gpus():
        with pytest.raises(SystemExit, match="no GPU here"):
            gpu.main(device=[], model=[], batch_size=[], precision=[], turns=1)
    assert not gpu._OUT.exists()
