"""A loaded model stands for its model: it is called, it goes where a model goes, and it prints in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from nets import staged
from torch import nn
from torch.testing import assert_close
from torchvision.transforms import CenterCrop, Compose, Resize, ToTensor

import camtool
from camtool import Loaded, ModelError, Recorder, hooks
from camtool.demo import measure
from camtool.demo.bundled import honest
from camtool.models import as_loaded, usual_transform
from camtool.recorder import select, zero

BATCH = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def loaded() -> Loaded:
    return Loaded(staged(), usual_transform(), ["ant", "bee", "cat", "dog"], "staged")


def test_it_is_called_like_its_model(loaded) -> None:
    assert_close(loaded(BATCH), loaded.model(BATCH))
    assert_close(loaded(x=BATCH), loaded.model(BATCH))


def test_a_recorder_takes_it(loaded) -> None:
    with Recorder(loaded, ["stem", "body"], inputs=True, gradients=True) as recorder:
        loaded(BATCH)[:, 2].sum().backward()
    assert recorder["body"].grad_outputs[0].shape == recorder["body"].outputs[0].shape
    assert recorder[loaded.model.body] is recorder["body"]
    assert "Recorder of Staged, 2 layers" in repr(recorder)
    assert Recorder(loaded, "stem", stop_after_last=True).run(BATCH) is None


def test_an_edit_acts_on_its_model(loaded) -> None:
    with Recorder(loaded, edit={"body": zero()}):
        answer = loaded(BATCH)
    assert_close(answer, loaded.model.head.bias.expand(2, -1))


TAKERS: dict[str, Callable[[Any], Any]] = {
    "explain": lambda model: camtool.explain(model, BATCH, 1)[0].raw,
    "Explainer": lambda model: camtool.Explainer(model, layer="stem")(BATCH, 1)[0].raw,
    "compare": lambda model: camtool.compare(model, BATCH[0], 1, methods=["gradcam"])[0].raw,
    "concepts": lambda model: camtool.concepts(model, BATCH, 2).maps,
    "candidate_layers": lambda model: str(camtool.candidate_layers(model, BATCH)),
    "Recorder": lambda model: Recorder(model, "body").run(BATCH),
    "select": lambda model: select(model, nn.Conv2d),
    "observe": lambda model: hooks.observe(model, ["body"], BATCH).output.detach(),
    "resume": lambda model: hooks.resume(model, "stem", torch.ones(2, 6, 8, 8), BATCH),
    "trace": lambda model: [call.shape for call in hooks.trace(model, BATCH)],
}
"""Everything public that takes a model and needs no further library, with a result that can be compared."""


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
def test_what_takes_a_model_takes_it(take) -> None:
    net = staged()
    ours, theirs = take(Loaded(net)), take(net)
    if isinstance(ours, (str, list)):
        assert ours == theirs
    else:
        assert_close(torch.as_tensor(ours), torch.as_tensor(theirs))


DRAWERS: dict[str, Callable[[Any], Any]] = {
    "feature_maps": lambda model: camtool.figures.feature_maps(model, BATCH[0], "body"),
    "feature_pages": lambda model: next(camtool.figures.feature_pages(model, BATCH[0], "body"))[1],
    "kernels": lambda model: camtool.figures.kernels(model),
    "kernel_pages": lambda model: next(camtool.figures.kernel_pages(model, nn.Conv2d))[1],
    "methods_grid": lambda model: camtool.figures.methods_grid(model, BATCH, ["gradcam"], 1),
    "layers_sweep": lambda model: camtool.figures.layers_sweep(model, BATCH, ["stem", "body"], 1),
    "classes_grid": lambda model: camtool.figures.classes_grid(model, BATCH, 2),
}


@pytest.mark.parametrize("draw", DRAWERS.values(), ids=DRAWERS)
def test_what_draws_a_model_takes_it(draw, tmp_path) -> None:
    pytest.importorskip("matplotlib.font_manager")
    models = {"ours": Loaded(staged()), "theirs": staged()}
    files = [camtool.figures.save(draw(model), tmp_path / f"{name}.svg") for name, model in models.items()]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_demos_measures_take_it() -> None:
    assert measure.accuracy(honest(), range(3)) == measure.accuracy(honest().model, range(3))
    assert measure.pointing(honest(), range(2)) == measure.pointing(honest().model, range(2))


@pytest.mark.parametrize(
    "take", [*TAKERS.values(), lambda model: camtool.figures.kernels(model)], ids=[*TAKERS, "kernels"]
)
def test_what_is_no_model_is_told_to_come_first(take) -> None:
    pytest.importorskip("matplotlib.font_manager")
    with pytest.raises(ModelError, match=r"model is a Tensor, no torch\.nn\.Module; .*The model comes first"):
        take(BATCH)


def test_a_photo_in_the_models_place_is_no_name_to_load() -> None:
    with pytest.raises(ModelError, match=r"model is a str, .*or what camtool\.load returns\. The model comes first"):
        camtool.Explainer("photo.jpg")
    with pytest.raises(ModelError, match=r"camtool\.load\('resnet50\.a1_in1k'\)\. The model comes first"):
        camtool.Explainer("resnet50.a1_in1k")


# ------------------------------------------------------------------------------------------------------ one line


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (
            Loaded(staged(), usual_transform(), ["ant", "bee", "cat", "dog"], "staged"),
            "<Loaded 'staged': Staged, 4 classes, prepared by ImageClassification to 224 x 224>",
        ),
        (Loaded(staged()), "<Loaded Staged, classes without names, no preparation of its own>"),
        (
            Loaded(staged(), Compose([Resize(40), CenterCrop((32, 48)), ToTensor()]), ["a"]),
            "<Loaded Staged, 1 class, prepared by Resize, CenterCrop and ToTensor to 32 x 48>",
        ),
        (Loaded(staged(), ToTensor()), "<Loaded Staged, classes without names, prepared by ToTensor>"),
        (
            Loaded(staged(), ToTensor(), name="hf:clip", text=lambda texts: torch.ones(len(texts), 4)),
            "<Loaded 'hf:clip': Staged, asked in words, prepared by ToTensor>",
        ),
    ],
)
def test_it_prints_in_one_line(made, line) -> None:
    assert repr(made) == line


def test_a_function_that_prepares_is_called_by_its_name() -> None:
    def halve(picture: Any) -> Any:
        return picture

    assert "prepared by halve" in repr(Loaded(staged(), halve))


def test_what_was_loaded_prints_in_one_line() -> None:
    line = repr(camtool.load("demo"))
    assert line.startswith("<Loaded 'demo': CamNet, 10 classes, prepared by ")
    assert "\n" not in line
    assert len(line) < 120


def test_what_holds_a_module_is_as_good_as_loaded(loaded) -> None:
    class Pipeline:
        model = loaded.model

    assert as_loaded(Pipeline()).model is loaded.model
