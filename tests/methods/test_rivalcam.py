"""Rival-CAM: numbers by hand, limits, and real photos side by side."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.testing import assert_close
from torchvision.transforms.functional import gaussian_blur

import camtool
from benchmarks.photos import read_photos
from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence, gather_evidence
from camtool.evidence.forward_pass import run_forward_pass
from camtool.layers.layouts import Layer, Layout
from camtool.methods import METHODS
from camtool.targets import AgainstRest, ClassScore, Contrast, Custom, Negated, Probability, Target
from camtool.trust.metrics.localization import compute_energy_in_mask
from tests.helpers.nets import Apply
from tests.helpers.photos import unseen


def pooled(weight: list[list[float]], bias: list[float]) -> nn.Module:
    """The picture itself is the activations; then the mean, and a linear layer."""
    linear = nn.Linear(len(weight[0]), len(weight)).double()
    linear.weight.data, linear.bias.data = torch.tensor(weight).double(), torch.tensor(bias).double()
    return nn.Sequential(nn.Identity(), Apply(lambda a: a.flatten(2).mean(2)), linear)


def look(net: nn.Module, x: Tensor, *wanted: object, images: list[int] | None = None) -> Evidence:
    forward_pass = run_forward_pass(net, x, [Layer("0", Layout("channels first", tuple(x.shape[2:])))])
    return gather_evidence(forward_pass, list(wanted), images)[0]  # type: ignore[arg-type]


def rivalcam(evidence: Evidence, **options: object) -> Tensor:
    return METHODS["rivalcam"](evidence, **options)


def test_two_classes_at_two_positions_equal_numbers_by_hand() -> None:
    """``m_0 = (4, 0)`` and ``m_1 = (0, 4)``: their correlation is -1, and the deviation of ``m_0`` is 2."""
    evidence = look(pooled([[4, 0], [0, 4]], [0, 0]), torch.eye(2).double().reshape(1, 2, 1, 2), ClassScore(0))
    won = torch.tensor([4.0, -4.0]).double().sigmoid()  # softmax of the difference, over T = 1/2 · 2
    assert_close(rivalcam(evidence), (torch.tensor([2.0, 0.0]) * won).reshape(1, 1, 2))
    soft = torch.tensor([1.0, -1.0]).double().sigmoid()
    assert_close(rivalcam(evidence, temperature=2.0), (torch.tensor([2.0, 0.0]) * soft).reshape(1, 1, 2))


def test_bias_helps_a_rival_everywhere() -> None:
    x = torch.eye(2).double().reshape(1, 2, 1, 2)
    without, with_bias = (rivalcam(look(pooled([[4, 0], [0, 4]], [0, b]), x, ClassScore(0))) for b in (0, 3))
    won = torch.tensor(4.0 - 3).double().sigmoid()
    assert_close(with_bias[0, 0, 0], 2 * won)
    assert with_bias[0, 0, 0] < without[0, 0, 0]


def test_equal_classes_do_not_compete_unless_kinship_is_zero() -> None:
    """Two classes with the same weights: as if there were one."""
    x = torch.rand(1, 3, 4, 5).double()
    row = [1.0, -2.0, 3.0]
    twins, alone = look(pooled([row, row], [0, 0]), x, ClassScore(0)), look(pooled([row], [0]), x, ClassScore(1))
    assert_close(rivalcam(twins), rivalcam(alone))
    assert_close(rivalcam(alone), METHODS["hirescam"](alone))
    assert_close(rivalcam(twins, kinship=0.0), rivalcam(alone) / 2)


def test_only_the_highest_other_classes_compete() -> None:
    x = torch.eye(3).double().reshape(1, 3, 1, 3)
    weight = torch.diag(torch.tensor([3.0, 6.0, 9.0])).tolist()
    evidence = look(pooled(weight, [0, 0, 0]), x, ClassScore(0))
    without_1 = look(pooled([weight[0], weight[2]], [0, 0]), x, ClassScore(0))
    assert_close(rivalcam(evidence, rivals=1), rivalcam(without_1))
    assert not torch.equal(rivalcam(evidence), rivalcam(evidence, rivals=1))


def test_scale_of_the_logits_has_no_effect() -> None:
    x, weight = torch.rand(2, 3, 4, 5).double(), torch.randn(4, 3)
    one, other = (look(pooled((f * weight).tolist(), [0] * 4), x, ClassScore(1), ClassScore(2)) for f in (1, 1024))
    assert_close(rivalcam(one) * 1024, rivalcam(other))


def test_classes_of_one_image_equal_single_classes() -> None:
    x, net = torch.rand(2, 3, 4, 5).double(), pooled(torch.randn(4, 3).tolist(), [0.0] * 4)
    together = rivalcam(look(net, x, ClassScore(3), ClassScore(1), ClassScore(3), images=[0, 0, 1]))
    alone = [rivalcam(look(net, x[i : i + 1], ClassScore(c))) for i, c in ((0, 3), (0, 1), (1, 3))]
    assert_close(together, torch.cat(alone))


@pytest.mark.parametrize("at_once", [1, 3])
def test_classes_in_chunks_give_the_same_map(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, net = torch.rand(2, 3, 4, 5).double(), pooled(torch.randn(6, 3).tolist(), [0.0] * 6)
    evidence = look(net, x, ClassScore(3), ClassScore(1), ClassScore(3), images=[0, 0, 1])
    expected, rows = rivalcam(evidence), []
    monkeypatch.setattr("camtool.methods.families.competition.compute_chunk_size", lambda numbers, like: at_once)
    about = Evidence.for_targets
    monkeypatch.setattr(Evidence, "for_targets", lambda self, *what: rows.append(len(what[0])) or about(self, *what))
    assert_close(rivalcam(evidence), expected)
    assert rows == [3 * at_once] * (6 // at_once)


@pytest.mark.parametrize(
    ("options", "came"),
    [
        ({"rivals": 0}, "rivals must be a whole number of 1 or more, got 0"),
        ({"rivals": 1.5}, "rivals must be a whole number of 1 or more, got 1.5"),
        ({"temperature": 0.0}, "temperature must be a finite number above 0, got 0.0"),
        ({"temperature": float("nan")}, "temperature must be a finite number above 0, got nan"),
        ({"kinship": -1}, "kinship must be a finite number at least 0, got -1"),
    ],
)
def test_option_out_of_range_is_rejected(options: dict[str, float], came: str) -> None:
    evidence = look(pooled([[4, 0], [0, 4]], [0, 0]), torch.rand(1, 2, 1, 2).double(), ClassScore(0))
    with pytest.raises(MethodError, match=came):
        rivalcam(evidence, **options)


@pytest.mark.parametrize(
    "target",
    [
        Custom(lambda one: one.sum()),
        *(Probability(0), Contrast(0, 1), AgainstRest(0), Negated(ClassScore(0))),
    ],
    ids=str,
)
def test_target_that_is_not_a_class_score_is_rejected(target: Target) -> None:
    """It would be in other units than the scores of its rivals."""
    evidence = look(pooled([[4, 0], [0, 4]], [0, 0]), torch.rand(1, 2, 1, 2).double(), target)
    with pytest.raises(MethodError, match=r"compares the scores of classes.* got target .*method='hirescam'"):
        rivalcam(evidence)


def test_rivalcam_separates_two_animals(mobilenet: camtool.Loaded, shared: Path) -> None:
    found = camtool.explain(mobilenet, shared / "images" / "both.png", ["bull mastiff", "tabby"], method="rivalcam")
    dog, cat = (each.heatmap / each.heatmap.sum() for each in found)
    assert dog[: len(dog) // 2].sum() > 0.6
    assert cat[len(cat) // 2 :].sum() > 0.8


def test_rivalcam_separates_two_shapes(demo: camtool.Loaded) -> None:
    """Check the same on the bundled model."""
    picture = unseen(0, objects=2)
    found = camtool.explain(demo, picture.image, [thing.index for thing in picture.objects], method="rivalcam")
    for own, other, thing in zip(found, found[::-1], picture.objects, strict=True):
        assert compute_energy_in_mask(own.heatmap, thing.mask) > 4 * thing.mask.mean()
        assert compute_energy_in_mask(other.heatmap, thing.mask) < 0.2 * thing.mask.mean()


_CONFIDENT, _STEPS, _HOT = 0.5, 28, 0.5


def read_confident_photos(loaded: camtool.Loaded, folder: Path) -> list[tuple[Tensor, int]]:
    """Return the prepared photos ``(C, H, W)`` whose class the model predicts with confidence, with the class."""
    images = read_photos(loaded, folder)
    return [(x, index) for x, index in images if _compute_probabilities(loaded, x[None], index)[0] > _CONFIDENT]


def compute_pointing(loaded: camtool.Loaded, images: list[tuple[Tensor, int]], method: str, count: int) -> float:
    """Return the mean share of energy in the right quarter: grid pointing game, Böhle et al. 2021, section 4."""
    generator, explainer = random.Random(0), camtool.Explainer(loaded.model, method)
    inside = []
    for _ in range(count):
        four = generator.sample(images, 4)
        rows = [torch.cat([x for x, _ in four[i : i + 2]], 2) for i in (0, 2)]
        (results,) = explainer(torch.cat(rows, 1)[None], [[index for _, index in four]])
        inside += [_compute_energy_share(result.raw, i) for i, result in enumerate(results)]
    return round(float(np.mean(inside)), 4)


def _compute_energy_share(raw: NDArray[np.float32], quarter: int) -> float:
    heat, (row, column) = raw.clip(0).astype(float), divmod(quarter, 2)
    h, w = heat.shape[0] // 2, heat.shape[1] // 2
    part = heat[row * h : (row + 1) * h, column * w : (column + 1) * w]
    return float(part.sum() / heat.sum()) if heat.any() else 0.25


def measure_single_photos(loaded: camtool.Loaded, images: list[tuple[Tensor, int]], method: str) -> dict[str, Any]:
    """Return insertion minus deletion, and the share of Grad-CAM's hot cells above a quarter of the peak."""
    explainer = camtool.Explainer(loaded.model, method)
    reference = camtool.Explainer(loaded.model, "gradcam")
    gains, kept = [], []
    for x, index in images:
        result, usual = explainer(x, index), reference(x, index)
        gains.append(compute_insertion_minus_deletion(loaded, x, index, result.heatmap))
        hot = usual.raw > _HOT * usual.raw.max()
        kept.append(float((result.raw[hot] > _HOT / 2 * result.raw.max()).mean()))
    figures = {"insertion_less_deletion": np.mean(gains), "hot_kept": np.mean(kept), "hot_kept_least": np.min(kept)}
    return {name: round(float(value), 4) for name, value in figures.items()}


def compute_insertion_minus_deletion(
    loaded: camtool.Loaded, x: Tensor, index: int, heat: NDArray[np.float32], steps: int = _STEPS
) -> float:
    """Return the mean probability of a class while the hottest pixels are inserted, less that while deleted."""
    order = torch.from_numpy(np.argsort(-heat.ravel(), kind="stable").copy())
    blurred = gaussian_blur(x, [51, 51], [10.0, 10.0])
    inserted, deleted = [], []
    for step in range(steps + 1):
        shown = torch.zeros(heat.size, dtype=torch.bool)
        shown[order[: round(heat.size * step / steps)]] = True
        mask = shown.reshape(heat.shape)
        inserted.append(torch.where(mask, x, blurred))
        deleted.append(torch.where(mask, blurred, x))
    both = _compute_probabilities(loaded, torch.stack(inserted + deleted), index)
    return float(both[: len(inserted)].mean() - both[len(inserted) :].mean())


def _compute_probabilities(loaded: camtool.Loaded, batch: Tensor, index: int) -> Tensor:
    with torch.inference_mode():
        return torch.cat([loaded.model(part).softmax(1)[:, index] for part in batch.split(16)])


@pytest.mark.nightly
def test_rivalcam_points_better_than_grad_cam_and_is_as_faithful(mobilenet: camtool.Loaded, shared: Path) -> None:
    """Check it on photos of ImageNet classes."""
    pictures = read_confident_photos(mobilenet, shared / "images")
    ours, usual = (compute_pointing(mobilenet, pictures, method, 12) for method in ("rivalcam", "gradcam"))
    assert ours >= usual + 0.15
    ours_single, usual_single = (
        measure_single_photos(mobilenet, pictures[::2], method) for method in ("rivalcam", "gradcam")
    )
    gain = "insertion_less_deletion"
    assert ours_single[gain] >= 0.95 * usual_single[gain]
    assert ours_single["hot_kept_least"] >= 0.8


def test_rivalcam_points_better_on_scenes_and_is_as_faithful(demo: camtool.Loaded) -> None:
    """Check the same on the bundled model, where Grad-CAM leaves less to gain."""
    scenes = [unseen(number) for number in range(8)]
    pictures = [(demo.transform(Image.fromarray(each.image)), each.objects[0].index) for each in scenes]
    ours, usual = (compute_pointing(demo, pictures, method, 12) for method in ("rivalcam", "gradcam"))
    assert ours >= usual + 0.02
    ours_single, usual_single = (measure_single_photos(demo, pictures, method) for method in ("rivalcam", "gradcam"))
    gain = "insertion_less_deletion"
    assert ours_single[gain] >= 0.95 * usual_single[gain]
    assert ours_single["hot_kept_least"] >= 0.8
