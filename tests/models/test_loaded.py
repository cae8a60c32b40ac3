"""Loaded as its model: calls, functions that take a model, and the repr."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torchvision.transforms import CenterCrop, Compose, Resize, ToTensor

import camtool
from camtool import Loaded, ModelError, Recorder
from camtool.demo.camnet import load_honest_model
from camtool.hooks import observation, tracing
from camtool.models import to_loaded
from camtool.models.sources.torchvision import build_default_transform
from camtool.recorder import select, zero
from tests.helpers.nets import staged
from tools import demo_accuracy as measure

BATCH = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def loaded() -> Loaded:
    return Loaded(staged(), build_default_transform(), ["ant", "bee", "cat", "dog"], "staged")


def test_calling_loaded_calls_the_model(loaded) -> None:
    assert_close(loaded(BATCH), loaded.model(BATCH))
    assert_close(loaded(x=BATCH), loaded.model(BATCH))


def test_a_recorder_accepts_loaded(loaded) -> None:
    with Recorder(loaded, ["stem", "body"], inputs=True, gradients=True) as recorder:
        loaded(BATCH)[:, 2].sum().backward()
    assert recorder["body"].grad_outputs[0].shape == recorder["body"].outputs[0].shape
    assert recorder[loaded.model.body] is recorder["body"]
    assert "Recorder of Staged, 2 layers" in repr(recorder)
    assert Recorder(loaded, "stem", stop_after_last=True).run(BATCH) is None


def test_an_edit_changes_the_model_of_loaded(loaded) -> None:
    with Recorder(loaded, edit={"body": zero()}):
        answer = loaded(BATCH)
    assert_close(answer, loaded.model.head.bias.expand(2, -1))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "explain": lambda model: camtool.explain(model, BATCH, 1)[0].raw,
    "Explainer": lambda model: camtool.Explainer(model, layer="stem")(BATCH, 1)[0].raw,
    "compare": lambda model: camtool.compare(model, BATCH[0], 1, methods=["gradcam"])[0].raw,
    "concepts": lambda model: camtool.concepts(model, BATCH, 2).maps,
    "candidate_layers": lambda model: str(camtool.candidate_layers(model, BATCH)),
    "Recorder": lambda model: Recorder(model, "body").run(BATCH),
    "select": lambda model: select(model, nn.Conv2d),
    "observe": lambda model: observation.run_with_hooks(model, ["body"], BATCH).output.detach(),
    "resume": lambda model: observation.resume(model, "stem", torch.ones(2, 6, 8, 8), BATCH),
    "trace": lambda model: [call.shape for call in tracing.trace(model, BATCH)],
}
"""Public functions that take a model, each with a result that can be compared."""


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_that_take_a_model_accept_loaded(function) -> None:
    net = staged()
    ours, theirs = function(Loaded(net)), function(net)
    if isinstance(ours, (str, list)):
        assert ours == theirs
    else:
        assert_close(torch.as_tensor(ours), torch.as_tensor(theirs))


FIGURES: dict[str, Callable[[Any], Any]] = {
    "feature_maps": lambda model: camtool.figures.feature_maps(model, BATCH[0], "body"),
    "feature_pages": lambda model: next(camtool.figures.feature_pages(model, BATCH[0], "body"))[1],
    "kernels": lambda model: camtool.figures.kernels(model),
    "kernel_pages": lambda model: next(camtool.figures.kernel_pages(model, nn.Conv2d))[1],
    "methods_grid": lambda model: camtool.figures.methods_grid(model, BATCH, ["gradcam"], 1),
    "layers_sweep": lambda model: camtool.figures.layers_sweep(model, BATCH, ["stem", "body"], 1),
    "classes_grid": lambda model: camtool.figures.classes_grid(model, BATCH, 2),
}


@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES)
def test_figures_accept_loaded(draw, tmp_path) -> None:
    pytest.importorskip("matplotlib.font_manager")
    models = {"ours": Loaded(staged()), "theirs": staged()}
    files = [camtool.figures.save(draw(model), tmp_path / f"{name}.svg") for name, model in models.items()]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_measures_of_the_demo_accept_loaded() -> None:
    assert measure.compute_accuracy(load_honest_model(), range(3)) == measure.compute_accuracy(
        load_honest_model().model, range(3)
    )
    assert measure.play_pointing_game(load_honest_model(), range(2)) == measure.play_pointing_game(
        load_honest_model().model, range(2)
    )


@pytest.mark.parametrize(
    "function", [*FUNCTIONS.values(), lambda model: camtool.figures.kernels(model)], ids=[*FUNCTIONS, "kernels"]
)
def test_a_tensor_instead_of_a_model_raises_an_error_about_the_order(function) -> None:
    pytest.importorskip("matplotlib.font_manager")
    with pytest.raises(ModelError, match=r"model is a Tensor, not a torch\.nn\.Module; .*The model comes first"):
        function(BATCH)


def test_a_string_instead_of_a_model_raises_an_error_that_suggests_load() -> None:
    with pytest.raises(ModelError, match=r"model is a str, .*or what camtool\.load gives\. The model comes first"):
        camtool.Explainer("photo.jpg")
    with pytest.raises(ModelError, match=r"camtool\.load\('resnet50\.a1_in1k'\)\. The model comes first"):
        camtool.Explainer("resnet50.a1_in1k")


# ------------------------------------------------------------------------------------------------------ repr


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (
            Loaded(staged(), build_default_transform(), ["ant", "bee", "cat", "dog"], "staged"),
            "<Loaded 'staged': Staged, 4 labels, transform ImageClassification to 224 x 224>",
        ),
        (Loaded(staged()), "<Loaded Staged, no labels, no transform>"),
        (
            Loaded(staged(), Compose([Resize(40), CenterCrop((32, 48)), ToTensor()]), ["a"]),
            "<Loaded Staged, 1 label, transform Resize, CenterCrop and ToTensor to 32 x 48>",
        ),
        (Loaded(staged(), ToTensor()), "<Loaded Staged, no labels, transform ToTensor>"),
        (
            Loaded(staged(), ToTensor(), name="hf:clip", text=lambda texts: torch.ones(len(texts), 4)),
            "<Loaded 'hf:clip': Staged, targets are texts, transform ToTensor>",
        ),
    ],
)
def test_the_repr_is_one_line(made, line) -> None:
    assert repr(made) == line


def test_the_repr_names_a_transform_that_is_a_function() -> None:
    def halve(image: Any) -> Any:
        return image

    assert "transform halve" in repr(Loaded(staged(), halve))


def test_the_repr_of_a_loaded_model_is_short() -> None:
    line = repr(camtool.load("demo"))
    assert line.startswith("<Loaded 'demo': CamNet, 10 labels, transform ")
    assert "\n" not in line
    assert len(line) < 120


def test_an_object_with_a_model_attribute_is_accepted(loaded) -> None:
    class Pipeline:
        model = loaded.model

    assert to_loaded(Pipeline()).model is loaded.model
