"""Survey of layers: all grids of a model, each with a verdict."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import squeezenet1_1

from camtool.errors import LayerError
from camtool.layers.survey import find_candidates
from tests.layers.nets import AttentionNet, ClassAttention, ClassTokenNet, build_small_cnn, build_small_vit


def find_verdicts(model: nn.Module) -> dict[str, str]:
    """Return the verdict on each candidate, by its name."""
    return {each.name: each.verdict for each in find_candidates(model, torch.randn(1, 3, 64, 64))}


def test_candidates_are_listed_from_shallow_to_deep_with_one_chosen() -> None:
    candidates = find_candidates(build_small_cnn(), torch.randn(1, 3, 64, 64))
    assert [(c.name, c.kind, c.shape, c.chosen) for c in candidates] == [
        ("0.0", "Conv2d", (1, 4, 16, 16), False),
        ("0.1", "ReLU", (1, 4, 16, 16), False),
        ("0.2", "Conv2d", (1, 6, 8, 8), False),
        ("0", "Sequential", (1, 6, 8, 8), True),  # it returns the output of its last ReLU
    ]
    assert all("not the deepest" in candidate.verdict for candidate in candidates[:-1])
    assert candidates[-1].verdict.startswith("the deepest")


@pytest.mark.parametrize(
    ("make", "layer", "verdict"),
    [
        (build_small_vit, "encoder", "no gradient"),  # the class is read from the class token alone
        (AttentionNet, "attention", "hardly any of its positions"),
        (AttentionNet, "bias", "does not depend on the image"),
        (lambda: squeezenet1_1(num_classes=5), "classifier.1", "classes' own score maps"),
    ],
    ids=["after the last attention", "attention weights", "position bias", "class scores"],
)
def test_the_verdict_says_why_a_layer_is_excluded(make: Callable[[], nn.Module], layer: str, verdict: str) -> None:
    assert verdict in find_verdicts(make())[layer]


def test_only_the_end_of_a_very_deep_model_is_evaluated() -> None:
    model = nn.Sequential(*(nn.Conv2d(3, 3, 1) for _ in range(40)), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for convolution in model[:40]:
        nn.init.dirac_(convolution.weight)  # forty random ones would let nothing of the image through
    candidates = find_candidates(model.append(nn.Linear(3, 2)), torch.randn(1, 3, 8, 8))
    assert ["shallow" in candidate.verdict for candidate in candidates] == [True] * 8 + [False] * 32
    assert candidates[-1].chosen


@pytest.mark.parametrize("together", [True, False], ids=["one projection", "three projections"])
def test_the_source_of_queries_keys_and_values_is_chosen(together: bool) -> None:
    found = find_candidates(ClassTokenNet(ClassAttention(8, together=together)), torch.randn(1, 3, 64, 64))
    assert next(candidate.name for candidate in found if candidate.chosen) == "norm"
    found_inside = {c.name: c.verdict for c in found if c.name.startswith("attention.")}
    shared = dict.fromkeys(["attention.key", "attention.value"], "a projection of norm")
    asking = {"attention.query": "no gradient reaches it"}  # except at the class token
    assert found_inside == ({"attention.qkv": "a projection of norm"} if together else asking | shared)


def test_candidates_have_a_stride_and_know_whether_the_gradient_reaches_them() -> None:
    found = {c.name: c for c in find_candidates(build_small_vit(), torch.randn(1, 3, 64, 64))}
    assert {candidate.stride for candidate in found.values()} == {(16.0, 16.0)}
    assert (found["encoder.layers.encoder_layer_1.ln_1"].reached, found["encoder"].reached) == (True, False)


class CropByContent(nn.Module):
    """It crops at a place that the sum of the pixels decides, so the size of its grid depends on the content."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Conv2d(3, 8, 3, 2, 1), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        starts = [int(1000 * image.abs().sum()) % 32 for image in x]
        parts = torch.stack([image[:, start:, start:] for start, image in zip(starts, x, strict=True)])
        return self.head(self.features(parts).mean((2, 3)))


def test_a_grid_whose_size_depends_on_the_content_is_refused() -> None:
    image = torch.rand(1, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    with pytest.raises(LayerError, match="the size of a layer depends on the image's content"):
        find_candidates(CropByContent().eval(), image)
