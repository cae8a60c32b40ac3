"""Paths from the image to the scores beside a layer: ensembles, branches and gates, but no skip connections."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.layers.depths import _WEIGHTED
from tests.helpers.vision_transformers import make_tiny_vit


class Net(nn.Module):
    """A stem, a layer, and something that joins the layer's output with what else there is."""

    def __init__(self, join: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.join, self.stem, self.layer = join, nn.Conv2d(3, 4, 3, 2), nn.Conv2d(4, 4, 3, 1, 1)
        self.other, self.head = nn.Conv2d(4, 4, 3, 1, 1), nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        before = self.stem(images)
        other, values = self.other(before), self.layer(before)
        values = {
            "nothing": lambda: values,
            "skip connection": lambda: before + values,
            "concatenated skip": lambda: torch.cat([before[:, :2], values[:, :2]], 1),
            "shortcut with weights": lambda: other + values,
            "resized skip": lambda: self.resize(before) + values,
            "product with a skip": lambda: torch.addmm(values[0, 0], values[0, 0], before[0, 0])[None, None].expand_as(
                values
            ),
            "branches": lambda: torch.cat([other[:, :2], values[:, :2]], 1),
            "attention pooling": lambda: before * values.flatten(2).softmax(2).unflatten(2, values.shape[2:]),
            "gate of its own": lambda: values * values.sigmoid(),
        }[self.join]()
        return self.head(values.mean((2, 3)))

    def resize(self, maps: Tensor) -> Tensor:
        """Return maps of the same size, by a node that is named as if it had weights."""
        row = nn.functional.interpolate(maps.flatten(2), maps[0, 0].numel(), mode="linear")
        return row.unflatten(2, maps.shape[2:])


@pytest.mark.parametrize(
    ("join", "is_passed_by"),
    [
        ("nothing", False),
        ("skip connection", False),
        ("concatenated skip", False),
        ("resized skip", False),
        ("gate of its own", False),
        ("shortcut with weights", True),
        ("branches", True),
        ("attention pooling", True),
        ("product with a skip", True),
    ],
)
def test_a_layer_that_other_branches_pass_by_gets_a_warning(join: str, is_passed_by: bool) -> None:
    model, image = Net(join).eval(), torch.rand(1, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    result = camtool.explain(model, image, 1, layer="layer")[0]
    assert ("other-paths" in [each.code for each in result.warnings]) == is_passed_by
    result = camtool.explain(model, image, 1, layer="layer", placement="stretch")[0]
    assert ("other-paths" in [each.code for each in result.warnings]) == is_passed_by
    # With branches named together, and for functions, whose tensors are not known before, check() finds out.
    for target, layer in ((1, ["layer", "other"]), (lambda scores: scores[1], "layer")):
        result = camtool.explain(model, image, target, layer=layer)[0]
        assert "other-paths" not in [each.code for each in result.warnings]


@pytest.mark.parametrize("name", ["CudnnRnn", "MkldnnRnnLayer", "ThnnFusedLstmCell", "Baddbmm", "Mv", "MkldnnLinear"])
def test_nodes_that_other_devices_and_shapes_have_are_known_by_their_names(name: str) -> None:
    assert _WEIGHTED.search(f"{name}Backward0")


def test_the_last_block_of_a_transformer_gets_none() -> None:
    result = camtool.explain(make_tiny_vit(), torch.rand(1, 3, 6, 8), 1)[0]
    assert "other-paths" not in [each.code for each in result.warnings]
