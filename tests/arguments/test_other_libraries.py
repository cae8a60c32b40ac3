"""Argument names of other libraries, and arguments in another order: errors that name ours."""

from __future__ import annotations

import re
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import camtool
from camtool import CamtoolError, Explainer, ImageError, Loaded, MethodError, ModelError, TargetError
from camtool.arguments.foreign_names import METHOD_NAMES, describe_foreign_name
from camtool.evidence.evidence import Evidence
from tests.helpers.nets import staged

BATCH = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))

FOREIGN = {
    "target": r"target_class=",
    "targets": r"target_class=",
    "target_category": r"target_class=",
    "class_idx": r"target_class=",
    "target_layer": r"layer=",
    "target_layers": r"layer=",
    "layers": r"layer=",
    "reshape_transform": r"is not needed.*detected",
    "aug_smooth": r"method=\"tta:gradcam\"",
    "eigen_smooth": r"method=\"eigen:gradcam\"",
    "use_cuda": r"model\.to\(\"cuda\"\)",
    "methods": r"method=",
    "picture": r"image=",
    "call": r"call_index=",
}
"""Foreign name → what the message says of ours."""


@pytest.mark.parametrize(("name", "ours"), FOREIGN.items())
def test_the_error_for_a_foreign_keyword_names_ours(name: str, ours: str) -> None:
    with pytest.raises(MethodError, match=rf"{name}= .*{ours}"):
        camtool.explain(staged(), BATCH, **{name: 1})
    with pytest.raises(MethodError, match=rf"{name}= .*{ours}"):
        Explainer(staged(), **{name: 1})
    with pytest.raises(MethodError, match=rf"{name}= .*{ours}"):
        Explainer(staged())(BATCH, **{name: 1})


@pytest.mark.parametrize("name", ["input_tensor", "image", "img_tensor", "images", "input"])
def test_the_error_for_a_foreign_name_of_the_image_names_ours(name: str) -> None:
    for take in (camtool.explain, Explainer, camtool.compare, camtool.concepts, camtool.candidate_layers):
        with pytest.raises(MethodError, match=rf"{name}= .*img="):
            take(staged(), **{name: BATCH})
    with pytest.raises(MethodError, match=rf"{name}= .*img="):
        Explainer(staged())(**{name: BATCH})


def test_errors_of_other_functions_name_our_keywords() -> None:
    with pytest.raises(MethodError, match=r"layers= .*layer="):
        camtool.concepts(staged(), BATCH, layers=["body"])
    with pytest.raises(MethodError, match=r"targets= .*target_class="):
        camtool.compare(staged(), BATCH[0], targets=[1])


def test_a_method_may_have_an_option_of_such_a_name() -> None:
    def mine(evidence: Evidence, *, target: float = 1.0) -> torch.Tensor:
        return target * evidence.activations.sum(1)

    once, twice = (camtool.explain(staged(), BATCH, 1, method=mine, target=factor)[0].raw for factor in (1.0, 2.0))
    assert np.allclose(2 * once, twice)


def test_an_unknown_option_still_names_the_known_ones() -> None:
    with pytest.raises(MethodError, match=r"'scorecam' has no option 'max_chanels'; known options: .*Did you mean"):
        camtool.explain(staged(), BATCH, method="scorecam", max_chanels=3)


def test_a_missing_argument_raises_the_error_of_python() -> None:
    with pytest.raises(TypeError, match="img"):
        camtool.explain(staged())
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        Explainer(staged())(BATCH, colour="red")


# ------------------------------------------------------------------------------------- classes of other libraries


@pytest.mark.parametrize(
    ("statement", "ours"),
    [
        ("camtool.GradCAM", 'method="gradcam"'),
        ("camtool.GradCAMPlusPlus", r'method="gradcam\+\+"'),
        ("from camtool import GradCAM", 'method="gradcam"'),
        ("from camtool import show_cam_on_image", r"result\.overlay\(\)"),
        ("from camtool.methods import SmoothGradCAMpp", r'method="smoothgradcam\+\+"'),
        ("camtool.targets.ClassifierOutputTarget", "target_class=index"),
        ("from camtool.targets import SemanticSegmentationTarget", r"targets\.Region"),
        ("camtool.IntegratedGradients", 'method="integrated-gradients"'),
        ("camtool.methods.find_method('FinerCAM')", r"targets\.Finer"),
        ("camtool.methods.find_method('deep feature factorization')", r"camtool\.concepts"),
        ("camtool.methods.find_method('attention')", r'method="rollout".*camtool\.attention'),
        ("camtool.methods.find_method('attention-rollout')", 'method="rollout"'),
        ("camtool.methods.find_method('LRP')", "conservative:.*no LRP: https://.*-not-included-and-why"),
        ("camtool.LayerLRP", "no LRP"),
        ("camtool.methods.find_method('SobelCAM')", "an edge filter"),
        ("from camtool.methods import SobolAttributionMethod", 'method="rise"'),
        ("camtool.methods.find_method('Faster-ScoreCAM')", 'method="scorecam"'),
        ("camtool.DeconvNet", 'method="guided-backprop"'),
    ],
)
def test_a_class_of_another_library_is_answered_with_ours(statement: str, ours: str) -> None:
    with pytest.raises((AttributeError, ImportError, MethodError), match=rf"Use .*{ours}"):
        exec(statement, {"camtool": camtool})


WITHOUT_MAPS = (
    "Neuron|LLM|.*Interpretable|.*interpretable|.*Summarizer|Text|VLLM|Remote|DataLoader|Layer.*Permutation|CommonStats"
    "|Count$|Max$|Mean$|Min$|MSE$|StdDev$|Sum$|Var$|ImageMask|ProductBase|TokenRef|InternalInf"
)
"""Names of captum that have no counterpart, as they are not about maps."""


@pytest.mark.parametrize(
    "module",
    [
        *("pytorch_grad_cam", "pytorch_grad_cam.utils.model_targets", "pytorch_grad_cam.utils.image"),
        *("pytorch_grad_cam.utils.reshape_transforms", "torchcam.methods", "torchcam.metrics", "captum.attr"),
    ],
)
def test_the_public_names_of_the_peers_have_ours(module: str) -> None:
    found = vars(pytest.importorskip(module)).items()
    library = module.partition(".")[0]
    names = [name for name, value in found if getattr(value, "__module__", "").startswith(library)]
    public = [name for name in names if not name.startswith("_") and not re.match(WITHOUT_MAPS, name)]
    assert public
    assert [name for name in public if describe_foreign_name(name) is None] == []


def test_each_method_in_a_hint_exists() -> None:
    names = [*METHOD_NAMES.values()]
    assert [camtool.methods.find_method(name).name for name in names] == names


# ------------------------------------------------------------------------------------------------------- the order


def encoded() -> bytes:
    stream = BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "PNG")
    return stream.getvalue()


IMAGES: list[Any] = [
    "photo.jpg",
    "photo.WEBP",
    Path("photo"),
    encoded(),
    Image.new("RGB", (8, 8)),
    np.zeros((8, 8, 3), np.uint8),
    BATCH[0],
]
NO_IMAGES: list[Any] = [281, np.int64(281), "tabby", None, camtool.targets.Top(2), lambda output: output[0]]


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: type(image).__name__)
def test_an_image_instead_of_a_model_raises_an_error(image: Any) -> None:
    for take in (camtool.explain, camtool.compare, camtool.concepts, camtool.candidate_layers):
        with pytest.raises(ModelError, match=r"The model comes first: explain\(model, img\)"):
            take(image, staged())


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: type(image).__name__)
@pytest.mark.parametrize("other", NO_IMAGES, ids=lambda other: type(other).__name__)
def test_a_class_instead_of_an_image_raises_an_error(image: Any, other: Any) -> None:
    order = r"the order is explain\(model, img, target_class\)"
    with pytest.raises(ImageError, match=rf"^img is (a|an) \w+ and target_class (is )?.*an image; {order}"):
        camtool.explain(staged(), other, image)
    with pytest.raises(ImageError, match=order):
        Explainer(staged())(other, image)


@pytest.mark.parametrize("model", [staged(), Loaded(staged())], ids=["module", "loaded"])
def test_a_model_instead_of_an_image_raises_an_error(model: Any) -> None:
    with pytest.raises(ImageError, match=r"img is a model; the order is explain\(model, img, target_class\)"):
        camtool.explain(staged(), model, 3)


def test_a_label_may_look_like_a_file_name() -> None:
    labels = ["a.jpg", "b.png", "c", "d"]
    (result,) = camtool.explain(staged(), BATCH[:1], "b.png", labels=labels)
    assert result.label == "b.png"


def test_a_missing_file_raises_an_error_that_says_so() -> None:
    with pytest.raises(ImageError, match=r"photo\.jpg cannot be read: there is no such file"):
        camtool.explain(staged(), "photo.jpg", "other.jpg")


# ------------------------------------------------------------------------------------------------- nothing at all


@pytest.mark.parametrize("nothing", [[], (), torch.zeros(0, dtype=torch.long), np.zeros(0, int)], ids=repr)
def test_an_empty_list_of_classes_raises_an_error(nothing: Any) -> None:
    for image in (BATCH[0], {"x": BATCH[0]}):
        with pytest.raises(TargetError, match=r"target_class is empty; give a class, or None for the model's own"):
            camtool.explain(staged(), image, nothing)


def test_an_empty_list_of_classes_for_one_image_raises_an_error() -> None:
    with pytest.raises(TargetError, match=r"target_class: entry 1 is empty; give a class, or None"):
        camtool.explain(staged(), BATCH, [2, []])


def test_an_empty_list_of_images_raises_an_error() -> None:
    assert camtool.explain(staged(), []) == []
    for found in (lambda: camtool.compare(staged(), []), lambda: camtool.compare(staged(), BATCH[:0])):
        with pytest.raises(CamtoolError, match="img holds no image; pass one"):
            found()


def test_a_script_may_ask_for_a_name_of_another_library(tmp_path: Path) -> None:
    script = tmp_path / "asks.py"
    script.write_text("import camtool.targets\nprint(hasattr(camtool.targets, 'ClassifierOutputTarget'))")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
