"""The whole path from images to explanations, and lists of them nested by image, target and method."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms._presets import ImageClassification

import camtool
from camtool import targets
from camtool.demo.scenes import SceneObject
from camtool.errors import MethodError, OverlayError, TargetError
from camtool.explaining import types
from camtool.geometry.crop_and_resize import Geometry
from camtool.rendering.colormaps import get_palette
from camtool.rendering.overlay import UNSEEN_GRAY
from camtool.rendering.views import Photo
from camtool.trust.metrics.localization import compute_energy_in_mask
from camtool.warning_codes import MapWarning
from tests.app.panels.models import box_model
from tests.helpers.comparison import assert_same_explanation
from tests.helpers.method_lists import FOR_CLASSIFIERS
from tests.helpers.photos import unseen
from tests.hooks.state.test_no_trace import unchanged

LABELS = ["cat", "dog", "fish", "bird", "cow", "hen", "ox"]
TRANSFORM = ImageClassification(crop_size=32, resize_size=36)


class Net(nn.Sequential):
    def __init__(self, channels: int = 3) -> None:
        super().__init__(
            nn.Conv2d(channels, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 12, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(12, len(LABELS)),
        )


@pytest.fixture
def model() -> nn.Module:
    return Net().eval()


@pytest.fixture
def photo() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)


def explain(model, img, *args, **kwargs):
    return camtool.explain(model, img, *args, **{"transform": TRANSFORM, "labels": LABELS, **kwargs})


# ------------------------------------------------------------------------------------------------------- kinds of image


def test_all_kinds_of_image_give_the_same_explanation(model, photo, tmp_path) -> None:
    image = Image.fromarray(photo)
    path = tmp_path / "photo.png"
    image.save(path)
    kinds = {
        "path": path,
        "str": str(path),
        "bytes": path.read_bytes(),
        "PIL": image,
        "uint8": photo,
        "float": photo / 255,
        "RGBA": np.dstack([photo, np.full((40, 60), 255, np.uint8)]),
        "tensor": torch.from_numpy(photo).movedim(-1, 0),
        "float tensor": torch.from_numpy(photo).movedim(-1, 0) / 255,
    }
    expected = explain(model, image)
    assert expected.heatmap.any()
    for img in kinds.values():
        assert_same_explanation(explain(model, img), expected)


@pytest.mark.parametrize("shape", [(40, 60), (40, 60, 1)])
def test_gray_images_are_explained(model, shape) -> None:
    gray = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    result = explain(model, gray)
    assert result.photo.shape == (40, 60, 3)
    assert np.array_equal(result.photo[..., 0], gray.reshape(40, 60))


def test_a_tensor_may_be_written_to_after_it_was_explained(demo) -> None:
    """The pixels are computed when somebody looks."""
    x = torch.rand(1, 3, 128, 128)
    expected, explained = camtool.explain(demo, x)[0].photo, camtool.explain(demo, x)[0]
    x.zero_()
    assert expected.any()
    assert np.array_equal(explained.photo, expected)


def test_the_heatmap_and_the_overlay_have_the_size_of_the_photo(model, photo) -> None:
    result = explain(model, photo)
    assert result.heatmap.shape == (40, 60)
    assert result.heatmap.dtype == np.float32
    assert (result.heatmap.min(), result.heatmap.max()) == (0, 1)
    assert (result.raw.shape, result.raw.dtype) == ((8, 8), np.float32)
    assert np.array_equal(result.photo, photo)
    # 40 x 60 is scaled by 36 / 40; then the center of 32 x 32 is cropped: 35.6 of the photo's rows and columns.
    assert result.seen[2:38, 12:48].mean() > 0.95
    assert result.seen.sum() == pytest.approx(35.6**2, rel=0.05)
    assert not result.heatmap[~result.seen].any()
    assert result.overlay().shape == result.masked().shape == (40, 60, 3)
    assert np.array_equal(result.masked()[~result.seen].ravel(), np.zeros((~result.seen).sum() * 3))


def test_prepared_tensors_are_not_transformed(model) -> None:
    batch = torch.randn(2, 3, 32, 32)
    before = batch.clone()
    results = camtool.explain(model, batch)
    assert torch.equal(batch, before)
    assert [r.score for r in results] == pytest.approx(model(batch).amax(1).tolist(), abs=1e-6)
    assert_same_explanation(camtool.explain(model, batch[0]), results[0])  # a floating 3-D tensor, without a transform
    assert results[0].heatmap.shape == (32, 32)
    assert results[0].seen.all()


def test_a_batch_of_one_image_gives_a_list(model) -> None:
    assert isinstance(camtool.explain(model, torch.randn(1, 3, 32, 32)), list)


def test_a_prepared_tensor_is_denormalized_for_display_if_the_transform_is_known(model, photo) -> None:
    crop = Image.fromarray(photo).crop((0, 0, 32, 32))
    loaded = camtool.Loaded(model, ImageClassification(crop_size=32, resize_size=32))
    prepared = loaded.transform(crop)[None]
    (known,) = camtool.explain(loaded, prepared)
    assert np.abs(known.photo.astype(int) - np.asarray(crop)).max() <= 1
    (unknown,) = camtool.explain(model, prepared)
    assert (unknown.photo.min(), unknown.photo.max()) == (0, 255)  # scaled min to max


def test_a_model_with_one_channel_is_explained(photo) -> None:
    result = camtool.explain(Net(channels=1).eval(), torch.randn(1, 32, 32))
    assert result.photo.shape == (32, 32, 3)


def test_photos_of_different_sizes_share_a_call(model, photo) -> None:
    photos = [photo, photo[:, :45], photo.transpose(1, 0, 2)]
    together = explain(model, photos)
    assert [r.heatmap.shape for r in together] == [(40, 60), (40, 45), (60, 40)]
    for one, each in zip(together, photos, strict=True):
        assert_same_explanation(one, explain(model, each))


def test_inputs_of_different_sizes_run_in_separate_batches(model) -> None:
    tensors = [torch.randn(3, 32, 32), torch.randn(3, 48, 48), torch.randn(3, 32, 32)]
    together = camtool.explain(model, tensors)
    for one, each in zip(together, tensors, strict=True):
        assert_same_explanation(one, camtool.explain(model, each))


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_batch_size_does_not_change_the_results(model, batch_size) -> None:
    batch = torch.randn(5, 3, 32, 32)
    expected = camtool.explain(model, batch)
    for one, each in zip(camtool.explain(model, batch, batch_size=batch_size), expected, strict=True):
        assert_same_explanation(one, each)


# -------------------------------------------------------------------------------------------------- targets and results


def test_none_selects_the_top_class_of_each_image(model) -> None:
    batch = torch.randn(6, 3, 32, 32)
    results = camtool.explain(model, batch, labels=LABELS)
    assert [r.index for r in results] == model(batch).argmax(1).tolist()
    assert [r.label for r in results] == [LABELS[r.index] for r in results]
    chances = model(batch).softmax(1).amax(1)
    assert [r.probability for r in results] == pytest.approx(chances.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    "wanted", [1, "dog", "DOG", targets.ClassScore(1), np.int64(1), torch.tensor(1)], ids=lambda wanted: repr(wanted)
)
def test_a_class_is_selected_by_index_label_or_target(model, photo, wanted) -> None:
    result = explain(model, photo, wanted)
    assert (result.label, result.index) == ("dog", 1)


def test_a_callable_target_receives_the_output_of_one_image(model, photo) -> None:
    shapes = []

    def dog_less_cat(output):
        shapes.append(tuple(output.shape))
        return output[1] - output[0]

    result = explain(model, photo, dog_less_cat)
    assert shapes == [(7,), (7,)]  # when the layer is chosen, and when it is explained
    explain(model, photo, dog_less_cat)
    assert len(shapes) == 3
    assert (result.label, result.index, result.probability) == ("dog_less_cat", None, None)
    assert_same_explanation(
        result, dataclasses.replace(explain(model, photo, targets.Contrast(1, 0)), label="dog_less_cat")
    )


def test_results_are_nested_as_the_arguments(model, photo) -> None:
    def shape(results):
        return [shape(each) for each in results] if isinstance(results, list) else results.label

    photos = [photo, photo[::-1].copy()]
    assert shape(explain(model, photo, "cat")) == "cat"
    assert shape(explain(model, photo, ["cat", 1])) == ["cat", "dog"]
    assert shape(explain(model, photos, "cat")) == ["cat", "cat"]
    assert shape(explain(model, photos, ["cat", 1])) == ["cat", "dog"]
    assert shape(explain(model, photos, [["cat", 1], "ox"])) == [["cat", "dog"], "ox"]
    assert shape(explain(model, photo, "cat", method=["gradcam", "cam"])) == ["cat", "cat"]
    assert shape(explain(model, photos, [["cat"], [1]], method=["cam"])) == [[["cat"]], [["dog"]]]
    assert len(explain(model, photo, targets.Top(3))) == 3


def test_several_targets_and_methods_equal_single_calls(model, photo) -> None:
    methods = FOR_CLASSIFIERS
    wanted = [["cat", "dog"], "ox"]
    photos = [photo, photo[::-1].copy()]
    first, second = explain(model, photos, wanted, method=methods)
    for label, by_method in zip(["cat", "dog"], first, strict=True):
        for method, result in zip(methods, by_method, strict=True):
            assert_same_explanation(result, explain(model, photos[0], label, method=method))
    for method, result in zip(methods, second, strict=True):
        assert_same_explanation(result, explain(model, photos[1], "ox", method=method))


def test_classes_may_be_a_tensor_or_an_array(model) -> None:
    explainer = camtool.Explainer(model, method="layercam", labels=LABELS)
    batch, classes = torch.randn(3, 3, 32, 32), torch.tensor([2, 0, 6])
    assert [r.index for r in explainer(batch, classes)] == [2, 0, 6]


def test_a_series_of_pandas_is_read_by_position(model) -> None:
    pandas = pytest.importorskip("pandas")
    names, batch = pandas.Series(LABELS, index=range(len(LABELS))[::-1]), torch.randn(3, 3, 32, 32)
    loaded = camtool.Loaded(model, labels=names)
    assert camtool.explain(model, batch[0], 0, labels=names).label == LABELS[0]
    assert camtool.explain(loaded, batch[0], LABELS[1]).label == LABELS[1]
    assert camtool.explain(loaded, batch[0], 1).label == LABELS[1]
    assert [each.label for each in camtool.predict(model, batch[0], [2, 0], labels=names)] == [LABELS[2], LABELS[0]]
    assert camtool.load(lambda x: x.mean((2, 3)), labels=names).labels == LABELS
    classes = pandas.Series([2, 0, 6], index=[1, 0, 2])
    explainer = camtool.Explainer(loaded)
    assert [each.index for each in explainer(batch, classes)] == [2, 0, 6]
    torch.testing.assert_close(explainer.compute_maps(batch, classes), explainer.compute_maps(batch, [2, 0, 6]))


@pytest.mark.parametrize("count", [1, 3])
def test_a_list_of_targets_of_another_length_raises_an_error(model, photo, count) -> None:
    with pytest.raises(camtool.TargetError, match=rf"target_class has {count} entr(y|ies) for 2 images"):
        explain(model, [photo, photo], ["cat"] * count)


def test_the_signature_of_explain_has_the_settings_of_explainer() -> None:
    """The settings and their defaults are written in Settings alone; help() shows them for both."""
    shown, settings = (dict(inspect.signature(each).parameters) for each in (camtool.explain, camtool.Explainer))
    assert [*shown][:3] == ["model", "img", "target_class"]
    assert [*shown][3:] == [*settings][1:]
    assert {name: shown[name].default for name in [*shown][3:]} == {
        name: settings[name].default for name in [*settings][1:]
    }
    keywords = types.SettingKeywords.__annotations__
    assert {name: each.__forward_arg__ for name, each in keywords.items()} == types.Settings.__annotations__
    documented = re.findall(r"^        (\w+): ", str(camtool.explain.__doc__), re.MULTILINE)
    assert [name for name in shown if name != "options"] == [name for name in documented if name in shown]


def test_an_empty_list_gives_an_empty_list(model) -> None:
    assert explain(model, []) == []


# ----------------------------------------------------------------------------------------------- layers, merges, errors


def test_layers_are_selected_by_name_or_module(model, photo) -> None:
    named = explain(model, photo, layer="1")
    assert named.layer == "1"
    assert named.raw.shape == (16, 16)
    assert_same_explanation(explain(model, photo, layer=model[1]), named)
    both = explain(model, photo, layer=["1", "3"])
    assert both.layer == "1 + 3"
    assert both.raw.shape == (16, 16)
    assert not np.allclose(both.raw, explain(model, photo, layer=["1", "3"], merge="max").raw)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({}, "gradcam at the layer of its choice"),
        ({"method": ["gradcam", "layercam"], "layer": ["1", "3"]}, "gradcam, layercam at 1, 3"),
        ({"method": "auto"}, "auto at the layer of its choice"),
    ],
)
def test_an_explainer_tells_its_settings(model, arguments, shown) -> None:
    assert repr(camtool.Explainer(model, **arguments)) == f"<Explainer of a Net: {shown}>"


class Compose:
    """A stand-in for the class of Albumentations, whose transforms take arrays by name."""

    __module__ = "albumentations.core.composition"

    def __call__(self, **arrays: np.ndarray) -> dict[str, np.ndarray]:
        return arrays


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"method": "gradcamm"}, camtool.MethodError, "'gradcam'"),
        ({"merge": "meen"}, camtool.MethodError, "'mean'"),
        ({"stabilise": 1}, camtool.MethodError, "no option 'stabilise'"),
        ({"layer": "33"}, camtool.LayerError, "no layer '33'"),
        ({"layer": nn.ReLU()}, camtool.LayerError, "this ReLU is not a module of the model"),
        ({"device": "meta"}, camtool.CamtoolError, "the model is on cpu"),
        ({"device": "foo"}, camtool.CamtoolError, "device='foo' is not a device of torch"),
        ({"method": None}, camtool.MethodError, "method=None is neither a name nor a function"),
        ({"transform": 3}, camtool.CamtoolError, "transform=3 cannot be called"),
        ({"transform": Compose()}, camtool.CamtoolError, r"compose\(image=np.asarray\(photo\)\)\[\"image\"\]"),
        ({"labels": 3}, camtool.TargetError, "labels=3 is no list of names"),
        ({"labels": "dog"}, camtool.TargetError, "labels='dog' is no list of names"),
        ({"batch_size": "2"}, camtool.CamtoolError, "batch_size must be a whole number of 1 or more, or None, got '2'"),
        ({"batch_size": 1.5}, camtool.CamtoolError, "batch_size must be a whole number of 1 or more, or None, got 1.5"),
        ({"call_index": True}, camtool.CamtoolError, "call_index=True is no integer"),
        ({"target_class": "dgo"}, camtool.TargetError, "'dog'"),
        ({"target_class": 7}, camtool.TargetError, "7 classes, 0 to 6"),
    ],
)
def test_invalid_arguments_raise_an_error(model, photo, arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        explain(model, photo, **arguments)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("resnet18", r"model is a str, .* camtool.load\('resnet18'\)"),
        (None, "model is a NoneType, not a torch.nn.Module"),
        (OrderedDict(), "model is an OrderedDict, not a torch.nn.Module"),
    ],
)
def test_other_objects_as_model_raise_an_error(photo, wrong, message) -> None:
    with pytest.raises(camtool.ModelError, match=message):
        camtool.explain(wrong, photo)


def test_a_transform_that_returns_no_tensor_raises_an_error(model, photo) -> None:
    with pytest.raises(camtool.CamtoolError, match="must"):
        camtool.explain(model, photo, transform=lambda image: image)


def test_errors_of_the_model_are_not_hidden(model) -> None:
    with pytest.raises(RuntimeError, match="channels"):
        camtool.explain(model, torch.randn(5, 32, 32))


# --------------------------------------------------------------------------------------------------- showing and saving


def test_an_explanation_is_saved_and_shown(model, photo, tmp_path, monkeypatch) -> None:
    result = explain(model, photo)
    path = result.save(tmp_path / "deep" / "where.png", alpha=0.3, colormap="viridis", enlarge=False, legend=False)
    assert np.array_equal(np.asarray(Image.open(path)), result.overlay(0.3, "viridis"))
    assert result._repr_png_().startswith(b"\x89PNG")
    shown = []
    monkeypatch.setattr(Image.Image, "show", lambda image: shown.append(image))
    result.show()
    assert [image.size for image in shown] == [(300, 200)]


@pytest.mark.parametrize(
    ("size", "times"), [((32, 32), 10), ((28, 40), 8), ((160, 90), 2), ((161, 40), 1), ((300, 400), 1)]
)
def test_small_photos_are_saved_enlarged(size, times, tmp_path) -> None:
    photo = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    raw = np.array([[0, 0], [0, 1]], np.float32)
    view = Photo(photo, Geometry.whole(*size))
    result = camtool.Explanation(raw, view, "cat", 0, 1.0, 0.5, "cam", "layer")
    assert result.overlay().shape == photo.shape
    cold = np.asarray(Image.open(result.save(tmp_path / "cold.png", alpha=0, legend=False)))
    np.testing.assert_array_equal(cold, photo.repeat(times, 0).repeat(times, 1))
    saved = np.asarray(Image.open(result.save(tmp_path / "hot.png", legend=False))).astype(int)
    assert saved.shape == cold.shape
    flat = camtool.Explanation(raw, Photo(np.full_like(photo, 90), view.geometry), "cat", 0, 1.0, 0.5, "cam", "layer")
    smooth = np.asarray(Image.open(flat.save(tmp_path / "flat.png", legend=False))).astype(int)
    assert np.abs(np.diff(smooth[-1], axis=0)).max() <= (5 if times >= 8 else 30), "the heat has no steps"
    kept = np.asarray(Image.open(result.save(tmp_path / "kept.png", enlarge=False, legend=False)))
    np.testing.assert_array_equal(kept, result.overlay())


def test_the_box_of_a_detection_is_enlarged_with_the_photo(tmp_path) -> None:
    view = Photo(np.zeros((32, 32, 3), np.uint8), Geometry.whole(32, 32))
    result = camtool.Explanation(
        np.zeros((2, 2), np.float32), view, "cat", 0, 1.0, 0.5, "cam", "layer", box=(8, 16, 24, 28)
    )
    saved = np.asarray(Image.open(result.save(tmp_path / "box.png")))
    assert (saved[200, 78:82].max(1) > 200).any(), "the left edge"
    assert (saved[276:281, 150].max(1) > 200).any(), "the lower edge"
    assert (saved[120:158, 82:140] > 200).any(), "the tag"


def test_boxes_and_contours_contain_the_maximum(model, photo) -> None:
    result = explain(model, photo)
    row, column = np.unravel_index(result.heatmap.argmax(), result.heatmap.shape)
    assert any(x0 <= column < x1 and y0 <= row < y1 for x0, y0, x1, y1 in result.boxes(0.5))
    assert all(contour.ndim == 2 for contour in result.contours())


def test_the_heat_in_a_corner_a_box_and_a_mask_is_the_sum_of_the_heatmap_there(model, photo) -> None:
    result = explain(model, photo, 2, method="eigencam")
    heat = result.heatmap.astype(float)
    assert heat.shape == (40, 60)
    mask = np.arange(60)[None] % 7 < np.arange(40)[:, None] % 5
    parts = {
        "bottom-left": heat[30:, :15],
        "top-right": heat[:10, 45:],
        "0%,50%,100%,100%": heat[20:],
        (10, 20, 41, 33): heat[20:33, 10:41],
    }
    shares = {region: result.heat_in(region) for region in parts}
    assert shares == {region: pytest.approx(part.sum() / heat.sum()) for region, part in parts.items()}
    assert len({*shares.values()}) == 4
    assert result.heat_in(mask) == pytest.approx(heat[mask].sum() / heat.sum())
    with pytest.raises(OverlayError, match=r"region 'botom-left' is unknown\. Did you mean 'bottom-left'"):
        result.heat_in("botom-left")


def test_a_legend_is_drawn_below_the_overlay_and_in_the_file(model, photo, tmp_path) -> None:
    result = explain(model, photo)
    assert not result.seen.all()
    plain, drawn = (result.overlay(1, "turbo", legend=legend) for legend in (False, True))
    assert (drawn[:40, :60] == plain).all()
    assert drawn.shape[0] > 40
    strip = drawn[40:].reshape(-1, 3).astype(int)
    for color in (get_palette("turbo")[-1], np.full(3, UNSEEN_GRAY)):
        assert (abs(strip - color).max(1) <= 2).any()
    saved = Image.open(result.save(tmp_path / "legend.png", alpha=1, colormap="turbo", enlarge=False))
    np.testing.assert_array_equal(np.asarray(saved), drawn)


def test_an_explanation_is_frozen_and_has_a_repr(model, photo) -> None:
    result = explain(model, photo, "dog")
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.label = "cat"
    assert repr(result).startswith("<Explanation of 'dog', probability ")
    doubt, fact = MapWarning("Ranked 7th.", "low-rank"), MapWarning("Made gray.", "made-gray")
    for warnings, end in ({(): "", (fact,): ", 1 note", (fact, "doubt", doubt): ", 2 warnings, 1 note"}).items():
        told = repr(dataclasses.replace(result, warnings=warnings))
        assert told == repr(dataclasses.replace(result, warnings=())).removesuffix(">") + f"{end}>"


def test_the_repr_says_that_a_probability_is_not_a_number(model, photo) -> None:
    result = dataclasses.replace(explain(model, photo, "dog"), probability=float("nan"))
    assert repr(result).startswith("<Explanation of 'dog', probability not a number: gradcam at ")


# ----------------------------------------------------------------------------------------------- real photos and models


def compute_energy_at_the_top(result: camtool.Explanation) -> float:
    """Return the share of the heatmap in the upper half, where the dog is; the cat is in the lower half."""
    return float(result.heatmap[:112].sum() / result.heatmap.sum())


BLIND = ["eigencam", "activation-map", "kpcacam", "fem", "random"]
"""Methods whose maps do not depend on the class."""

SCATTERED = ["smoothgrad", "guided-backprop", "inputxgradient", "integrated-gradients"]
"""Methods at the input, whose maps are high on all edges: their maximum may be anywhere."""

BROAD = ["opticam"]
"""The mask covers everything that helps, so the position of its maximum is random."""

FEWER = {"sscam": {"samples": 1}, "iscam": {"samples": 2}, "rise": {"samples": 600}, "polycam": {"score": "target"}}


LOCATING = [name for name in FOR_CLASSIFIERS if name not in BLIND + SCATTERED]

ON_THE_PHOTO = [
    *(name for name in LOCATING if camtool.METHODS[name].cost != "many passes" and name != "cameras"),
    "scorecam",
]
"""One method of a thousand forward passes, which take long here; the scene is for all."""


@pytest.mark.parametrize("method", ON_THE_PHOTO)
def test_cat_and_dog_are_located_on_a_photo(mobilenet, shared, method) -> None:
    both, few = shared / "images" / "both.png", FEWER.get(method, {})
    tabby, mastiff, boxer = camtool.explain(mobilenet, both, ["tabby", "bull mastiff", "boxer"], method=method, **few)
    assert compute_energy_at_the_top(tabby) < compute_energy_at_the_top(boxer)
    assert compute_energy_at_the_top(tabby) < compute_energy_at_the_top(mastiff)
    if method in BROAD:
        return
    row, column = np.unravel_index(tabby.heatmap.argmax(), tabby.heatmap.shape)
    assert row > 130
    assert column > 44  # its tail
    for dog in (mastiff, boxer):
        row, column = np.unravel_index(dog.heatmap.argmax(), dog.heatmap.shape)
        assert row < 112
        assert 56 < column < 200


@pytest.mark.parametrize("method", LOCATING)
def test_two_objects_are_located_in_one_scene(demo, method) -> None:
    """The same check as for the cat and the dog, on the bundled model.

    In the map of FullGrad, which adds up all layers, edges of the backdrop may peak.
    """
    scene, few = unseen(5, objects=2), FEWER.get(method, {})
    found = camtool.explain(demo, scene.image, [thing.index for thing in scene.objects], method=method, **few)
    for own, other, thing in zip(found, found[::-1], scene.objects, strict=True):
        assert compute_energy_in_mask(own.heatmap, thing.mask) > 1.05 * compute_energy_in_mask(
            other.heatmap, thing.mask
        )
        peak = np.unravel_index(own.heatmap.argmax(), own.heatmap.shape)
        assert method in (*BROAD, "fullgrad") or find_nearest(scene.objects, peak) is thing


def find_nearest(things: Sequence[SceneObject], place: tuple[int, int]) -> SceneObject:
    """Return the object that a pixel, row and column, is on or closest to."""
    return min(things, key=lambda thing: float(np.hypot(*(np.argwhere(thing.mask) - place).T).min()))


def test_real_photos_are_recognized_and_their_maps_vary(mobilenet, shared) -> None:
    lines = (shared / "images" / "labels.csv").read_text().splitlines()[1:]
    photos = [shared / "images" / line.split(",")[0] for line in lines]
    truth = [int(line.split(",")[1]) for line in lines]
    results = camtool.explain(mobilenet, photos)
    assert np.mean([r.index == index for r, index in zip(results, truth, strict=True)]) > 0.7
    for result in results:
        assert result.heatmap.max() == 1
        assert result.heatmap[result.seen].mean() < 0.8
        assert not result.warnings


def test_scenes_are_recognized_and_their_maps_vary(demo) -> None:
    """The same check as with real photos, on the bundled model."""
    scenes = [unseen(number, size=200) for number in range(10)]
    results = camtool.explain(demo, [each.image for each in scenes])
    assert np.mean([r.index == each.objects[0].index for r, each in zip(results, scenes, strict=True)]) > 0.85
    for result in results:
        assert result.heatmap.max() == 1
        assert result.heatmap[result.seen].mean() < 0.8
        assert not result.warnings


@pytest.mark.parametrize("method", ["gradcam", "rise"])
def test_errors_of_the_forward_pass_and_of_a_callable_target_are_explained(model, method) -> None:
    with pytest.raises(camtool.ForwardError, match=r"shape \(1, 4, 32, 48\): RuntimeError: .*expected input"):
        camtool.explain(model, torch.rand(4, 32, 48), method=method)
    with pytest.raises(camtool.TargetError, match=r"failed with IndexError.* shapes of its tensors: \(7,\)") as error:
        camtool.explain(model, torch.rand(3, 32, 48), lambda output: output[99], method=method)
    assert isinstance(error.value.__cause__, IndexError)


def test_an_image_and_a_prepared_tensor_have_separate_values_of_black(model, photo) -> None:
    """The value of black is known for images, and unknown for tensors that the user prepared."""
    options = {"method": "integratedgradcam", "steps": 3}
    tensor = torch.randn(3, 224, 224)
    for mixed in ([photo, tensor], [tensor, photo]):
        together = camtool.explain(model, mixed, 1, **options)
        for one, source in zip(together, mixed, strict=True):
            assert np.array_equal(one.raw, camtool.explain(model, source, 1, **options).raw)


def test_a_method_at_the_input_gives_a_warning_about_layer(model, photo) -> None:
    said = "Method 'inputxgradient' looks at no layer, so layer= makes no difference."
    assert said in explain(model, photo, 1, method="inputxgradient", layer="0").warnings
    assert said not in explain(model, photo, 1, method="inputxgradient").warnings
    found = explain(model, photo, 1, method="inputxgradient")
    assert found.layer == ""
    assert repr(found).startswith(f"<Explanation of 'dog', probability {found.probability:.1%}: inputxgradient,")


# ---------------------------------------------------------------------------------------------------------- predictions


@pytest.mark.parametrize("asked", [None, "hen", targets.Top(3), [2, "ox", None]])
def test_a_prediction_says_what_explanations_say_in_one_forward_pass(model: nn.Module, photo, asked) -> None:
    explained = explain(model, photo, asked, method="rise", samples=2)
    passes = list[int]()
    model.register_forward_hook(lambda *_: passes.append(1))
    with unchanged(model):
        predicted = camtool.predict(model, photo, asked, transform=TRANSFORM, labels=LABELS)
    assert passes == [1]
    assert [dataclasses.astuple(each) for each in predicted] == [
        (each.label, each.index, each.score, each.probability, each.box, ())
        for each in (explained if isinstance(explained, list) else [explained])
    ]


@pytest.mark.filterwarnings("ignore:torch.*deprecated")
def test_predictions_take_the_targets_of_explain(model: nn.Module, photo) -> None:
    predict = partial(camtool.predict, transform=TRANSFORM, labels=LABELS)
    assert [each.index for each in predict(model, photo, torch.tensor([3, 1]))] == [3, 1]
    with pytest.raises(TargetError, match="target_class is empty"):
        predict(model, photo, [])
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)
    assert predict(quantized, photo, "hen")[0].index == 5
    (assumed,) = camtool.predict(model, photo, 1)
    assert [each.code for each in assumed.warnings] == ["assumed-transform"]
    with pytest.raises(MethodError, match="target= is target_class= here"):
        camtool.predict(model, photo, target=1)


def test_a_prediction_of_boxes() -> None:
    loaded = box_model([(2, 3, 10, 12, 1, 0.9), (5, 4, 18, 15, 2, 0.6)])
    found = camtool.predict(loaded, Image.new("RGB", (20, 20)), targets.Top(5))
    assert [(each.label, each.index) for each in found] == [("cat", 1), ("dog", 2)]
    assert [each.probability for each in found] == pytest.approx([0.9, 0.6])
    np.testing.assert_allclose([each.box for each in found], [(2, 3, 10, 12), (5, 4, 18, 15)])
