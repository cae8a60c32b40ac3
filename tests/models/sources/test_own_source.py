"""A source of models that is defined outside of camtool: loading, explaining, listing, and bare models."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import CenterCrop, Compose, ToTensor

import camtool
from camtool import Loaded, ModelError
from camtool.cli.options import model_options
from camtool.models import Source, build_untrained, find_input_size, register_source, resolve_labels, to_loaded
from camtool.models.declared_properties import find_transform
from camtool.models.loading import is_model_name
from camtool.models.sources import FACTORY, SOURCES
from camtool.models.weights import load_state, read_state
from tests.cli.test_commands import camtool_
from tests.helpers.nets import Staged, staged

__all__ = ["camtool_"]

SIZE = (32, 48)
LABELS = ["ant", "bee", "cat", "dog"]
TRANSFORM = Compose([CenterCrop(SIZE), ToTensor()])
PHOTO = Image.effect_noise((60, 40), 90).convert("RGB")


class ToySource(Source):
    """A family with one classifier, ``"toy:staged"``."""

    prefix = "toy"
    usage = "'toy:NAME'"

    def load(self, name: str, weights: str | PathLike[str] | None) -> Loaded:
        model = self.build_untrained(name)
        if weights is not None:
            load_state(model, read_state(weights), weights)
        return Loaded(model, TRANSFORM, LABELS)

    def build_untrained(self, name: str) -> nn.Module:
        if name != "staged":
            raise ModelError(f"model 'toy:{name}' is unknown.")
        return staged()

    def find_transform(self, model: nn.Module) -> Any:
        return TRANSFORM if isinstance(model, Staged) else None

    def find_labels(self, model: nn.Module) -> Sequence[str] | None:
        return LABELS if isinstance(model, Staged) else None

    def find_input_size(self, model: nn.Module) -> tuple[int, int] | None:
        return SIZE if isinstance(model, Staged) else None


class TwoTowers(nn.Module):
    """A model that compares images with texts."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())

    def encode_image(self, images: Tensor) -> Tensor:
        return self.image(images).mean((2, 3))

    def encode_text(self, tokens: Tensor) -> Tensor:
        return tokens.float()


class TwoTowersSource(ToySource):
    prefix = "towers"

    def build_untrained(self, name: str) -> nn.Module:
        return TwoTowers()

    def find_tokenizer(self, model: nn.Module) -> Any:
        return (lambda texts: torch.eye(4)[: len(texts)]) if isinstance(model, TwoTowers) else None


@pytest.fixture(autouse=True)
def sources() -> Iterator[None]:
    """Registers both sources for the time of a test."""
    before = [*SOURCES]
    register_source(ToySource())
    register_source(TwoTowersSource())
    yield
    SOURCES[:] = before


def test_a_model_is_loaded_by_its_prefix() -> None:
    loaded = camtool.load("toy:staged")
    assert isinstance(loaded.model, Staged)
    assert (loaded.name, loaded.labels, loaded.transform) == ("toy:staged", LABELS, TRANSFORM)
    assert not loaded.model.training
    assert camtool.load("toy:staged", labels=[*"wxyz"]).labels == [*"wxyz"]


def test_weights_come_from_a_file(tmp_path) -> None:
    state = {name: torch.full_like(tensor, 2) for name, tensor in staged().state_dict().items()}
    torch.save(state, tmp_path / "weights.pth")
    assert (camtool.load("toy:staged", tmp_path / "weights.pth").model.head.weight == 2).all()


def test_a_loaded_model_is_explained() -> None:
    explanation = camtool.explain(camtool.load("toy:staged"), PHOTO, "bee")
    assert (explanation.label, explanation.index) == ("bee", 1)
    assert explanation.heatmap.shape == (40, 60)
    assert explanation.seen.sum() == SIZE[0] * SIZE[1]


def test_a_bare_model_gets_the_transform_the_labels_and_the_size_of_its_source() -> None:
    explanation = camtool.explain(staged(), PHOTO, "bee")
    assert explanation.seen.sum() == SIZE[0] * SIZE[1]
    assert find_transform(staged()) is TRANSFORM
    assert resolve_labels(staged(), None, 4) == LABELS
    assert resolve_labels(staged(), None, 5) is None
    assert find_input_size(staged()) == SIZE
    assert find_input_size(nn.Linear(2, 2)) == (224, 224)


def test_its_tokenizer_makes_targets_of_texts() -> None:
    bare, loaded = to_loaded(TwoTowers()), camtool.load("towers:any")
    for each in (bare, loaded):
        assert each.text is not None
        assert torch.equal(each.text(["a", "b"]), torch.eye(4)[:2])


def test_the_command_line_lists_layers_and_explains(camtool_, tmp_path) -> None:
    listed = camtool_("layers", "toy:staged")
    assert (listed.code, listed.err) == (0, "")
    assert "body" in listed.out
    PHOTO.save(tmp_path / "photo.png")
    explained = camtool_("photo.png", "--model", "toy:staged", "--target", "bee")
    assert (explained.code, explained.err) == (0, "")
    assert (tmp_path / "out" / "photo.gradcam.1-bee.png").exists()


def test_an_untrained_model_is_built() -> None:
    assert isinstance(build_untrained("toy:staged"), Staged)
    with pytest.raises(ModelError, match="'toy:nothing' is unknown"):
        build_untrained("toy:nothing")


def test_its_names_are_recognized_and_suggested() -> None:
    assert is_model_name("toy:staged")
    with pytest.raises(ModelError, match=r"'resnet_18' is unknown\..*'toy:NAME'.*'timm:NAME'.*, or your own as"):
        camtool.load("resnet_18")


def test_a_prefix_that_is_taken_is_refused() -> None:
    with pytest.raises(ModelError, match="prefix 'toy' is already"):
        register_source(ToySource())


def test_the_help_names_each_built_in_source() -> None:
    """``MODEL_HELP`` in cli/options/model_options.py is written out by hand, as the sources import torch."""
    built_in = [source for source in SOURCES if type(source).__module__.startswith("camtool.")]
    for prefix in (source.prefix for source in built_in if source.prefix and not source.list_names()):
        assert f"{prefix}:" in model_options.MODEL_HELP, (
            f"add {prefix}:NAME to MODEL_HELP in camtool/cli/options/model_options.py"
        )
    assert {
        name
        for source in built_in
        if not source.prefix or source.list_names()
        for name in re.findall("'(.+?)'", source.usage)
    } == {*("resnet50", "demo", "package.module:factory"), *("model.onnx", "model.xml", "model.tflite", "model.keras")}
    assert SOURCES[-1] is FACTORY
