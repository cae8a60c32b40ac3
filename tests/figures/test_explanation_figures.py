"""Figures of explanations: galleries, comparisons, and grids of methods, layers and classes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import camtool
from camtool import figures
from camtool.explaining.explanation import Explanation
from camtool.rendering.views import Signal
from tests.figures.drawing_helpers import (
    TIMES,
    draw_scenes,
    find_texts,
    get_drawn_axes,
    get_titles,
    make_explanation,
    make_photo,
)

matplotlib = pytest.importorskip("matplotlib")
backend_agg = pytest.importorskip("matplotlib.backends.backend_agg")


def test_gallery_omits_a_probability_that_is_nan():
    assert get_titles(figures.gallery([[make_explanation("cat", probability=float("nan"))]])) == ["cat"]


def test_gallery_shows_overlays_with_labels_and_one_color_bar():
    shown = [
        make_explanation("cat"),
        make_explanation("dog", probability=0.001),
        make_explanation("value", probability=None),
    ]
    figure = figures.gallery([shown[:2], [shown[2]]])
    assert get_titles(figure) == ["cat\n42%", "dog\n<1%", "value"] or get_titles(figure) == [
        "cat 42%",
        "dog <1%",
        "value",
    ]
    assert len(figure.axes) == 3 + 1
    for axes, each in zip(get_drawn_axes(figure), shown, strict=True):
        assert_array_equal(axes.images[0].get_array(), each.overlay())
    assert {text.get_text() for text in find_texts(figure)} >= {"each map:  low", "high"}


def test_titles_replace_the_labels():
    assert get_titles(figures.gallery([make_explanation(), make_explanation()], titles=["ResNet", "ViT"])) == [
        "ResNet",
        "ViT",
    ]


def test_images_of_a_row_have_one_height_and_at_most_print_resolution():
    figure = figures.gallery(
        [make_explanation(pixels=make_photo(900, 1200)), make_explanation(pixels=make_photo(60, 60))],
        columns=2,
        width=1,
    )
    one, other = (axes.get_position() for axes in get_drawn_axes(figure))
    assert_allclose(one.height, other.height, rtol=0.01)
    assert_allclose(one.width / other.width, 4 / 3, rtol=0.01)
    assert get_drawn_axes(figure)[0].images[0].get_array().shape[1] < 400


def test_shared_scale_gives_equal_values_equal_colors():
    strong = np.zeros((4, 4), np.float32)
    strong[1, 1] = 4
    raws = [strong, strong / 2]
    shown = [make_explanation(pixels=make_photo(64, 64), raw=raw) for raw in raws]
    each, shared = (get_drawn_axes(figures.gallery(shown, scale=scale)) for scale in ("each", "shared"))
    pixels = [[np.asarray(axes.images[0].get_array()) for axes in some] for some in (each, shared)]
    assert_array_equal(pixels[0][0], pixels[0][1])  # each on its own: no difference can be seen
    assert_array_equal(pixels[1][0], pixels[0][0])  # the strongest is as it was
    assert not np.array_equal(pixels[1][0], pixels[1][1])
    assert {text.get_text() for text in find_texts(figures.gallery(shown, scale="shared"))} >= {"all maps:  0", "4"}


def test_shared_scale_accepts_constant_maps():
    figure = figures.gallery([make_explanation(raw=np.zeros((2, 2)))] * 2, scale="shared")
    assert_array_equal(get_drawn_axes(figure)[0].images[0].get_array(), make_photo())


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ([make_explanation(method="cam"), make_explanation(method="gradcam")], ["photo", "cam", "gradcam"]),
        ([make_explanation("cat"), make_explanation("dog")], ["photo", "cat 42%", "dog 42%"]),
        ([make_explanation(layer="a"), make_explanation(layer="b")], ["photo", "a", "b"]),
        ([make_explanation(), make_explanation()], ["photo", "cat 42%", "cat 42%"]),
        (
            [make_explanation(method="cam", layer="a"), make_explanation(method="fullgrad", layer="")],
            ["photo", "cam, a", "fullgrad"],
        ),
        (
            [make_explanation("cat", method="a"), make_explanation("dog", method="b")],
            ["photo", "cat, a 42%", "dog, b 42%"],
        ),
    ],
)
def test_comparison_titles_name_the_differences(shown, expected):
    assert [title.replace("\n", " ") for title in get_titles(figures.comparison(shown))] == expected


def test_comparison_begins_with_the_photo():
    first = get_drawn_axes(figures.comparison([make_explanation()]))[0]
    assert_array_equal(first.images[0].get_array(), make_photo())


def test_comparison_names_the_kind_of_other_inputs():
    signal = Explanation(
        raw=np.arange(5, dtype=np.float32),
        view=Signal(np.sin(np.arange(40, dtype=np.float32))[None]),
        label="beat",
        index=0,
        score=0.0,
        probability=0.5,
        method="gradcam",
        layer="0",
    )
    assert get_titles(figures.comparison([signal]))[0] == "signal"


def test_methods_grid_has_a_row_per_image_and_a_column_per_method(demo):
    figure = figures.methods_grid(demo, draw_scenes(2), {"Grad-CAM": "gradcam", "LayerCAM": "layercam"})
    assert get_titles(figure) == ["photo", "Grad-CAM", "LayerCAM", "", "", ""]
    expected = [
        each.overlay()
        for image in draw_scenes(2)
        for each in camtool.explain(demo, image, method=["gradcam", "layercam"])
    ]
    shown = [np.asarray(axes.images[0].get_array()) for axes in get_drawn_axes(figure)]
    for ours, theirs in zip([*shown[1:3], *shown[4:6]], expected, strict=True):
        assert_array_equal(ours, theirs)
    best = [camtool.explain(demo, image) for image in draw_scenes(2)]
    labels = [axes.get_ylabel().replace("\n", " ") for axes in get_drawn_axes(figure)[::3]]
    assert labels == [f"{each.label} {each.probability:.0%}" for each in best]


def test_many_methods_continue_below_and_images_keep_their_minimum_width(demo):
    figure = figures.methods_grid(demo, draw_scenes(1), {f"m{i}": "gradcam" for i in range(12)})
    shown = get_titles(figure)
    assert shown == ["photo", *[f"m{i}" for i in range(6)], "photo", *[f"m{i}" for i in range(6, 12)]]
    assert min(axes.get_position().width for axes in get_drawn_axes(figure)) * 6.75 > 0.72


def test_layers_sweep_titles_name_layer_and_grid(demo):
    figure = figures.layers_sweep(demo, draw_scenes(1), ["stem.0", "features"])
    assert [title.replace("\n", " ") for title in get_titles(figure)] == [
        "photo",
        f"stem.0 64{TIMES}64",
        f"features 16{TIMES}16",
    ]
    by_pattern = figures.layers_sweep(demo, draw_scenes(1), "features.[12]")
    assert [title.split()[0] for title in get_titles(by_pattern)] == ["photo", "features.1", "features.2"]


def test_layers_sweep_takes_the_deepest_layer_of_each_grid_by_default(demo):
    titles = [title.split()[0] for title in get_titles(figures.layers_sweep(demo, draw_scenes(1)[0]))]
    candidates = camtool.candidate_layers(demo, draw_scenes(1)[0])
    assert titles == ["photo", "stem.0", "stem", candidates.chosen.name]


def test_classes_grid_takes_classes(demo):
    for names in (demo.labels[:2], (demo.labels[3], 1)):
        shown = [re.split(r"\s", title)[0] for title in get_titles(figures.classes_grid(demo, draw_scenes(2), names))]
        labels = [name if isinstance(name, str) else demo.labels[name] for name in names]
        assert shown == ["photo", *labels, "photo", *labels]


def test_classes_grid_shows_the_most_probable_class_first(demo):
    expected = camtool.explain(demo, draw_scenes(1)[0], camtool.targets.Top(3))
    figure = figures.classes_grid(demo, draw_scenes(1)[0], 3)
    shown = [re.split(r"\s", title)[0] for title in get_titles(figure)]
    assert shown == ["photo", *[each.label for each in expected]]


def test_questions_grid_asks_three_questions_about_each_image(demo):
    first, second = (demo.labels.index(name) for name in ("star", "heart"))
    figure = figures.questions_grid(demo, draw_scenes(2), ["star", "heart"], "fish", width=9)
    questions = [
        "star or heart",
        {"star rather than heart", "heart rather than star"},
        "star or heart rather than fish",
    ]
    titles = [" ".join(title.split()) for title in get_titles(figure)]
    for shown in (titles[:4], titles[4:]):
        assert (shown[0], shown[1], shown[3]) == ("photo", questions[0], questions[2])
        assert shown[2] in questions[1]
    wanted = camtool.targets.Group([first, second])
    assert_array_equal(
        get_drawn_axes(figures.questions_grid(demo, draw_scenes(1), [first, second], "fish"))[1].images[0].get_array(),
        camtool.explain(demo, draw_scenes(1)[0], wanted).overlay(),
    )
    with pytest.raises(camtool.CamtoolError, match="Within compares two classes of a group"):
        figures.questions_grid(demo, draw_scenes(1), "star", "fish")


def test_grids_accept_an_image_and_a_batch_like_explain(net):
    batch = torch.rand(2, 3, 16, 16)
    assert len(get_drawn_axes(figures.methods_grid(net, batch, ["gradcam"]))) == 4
    assert len(get_drawn_axes(figures.methods_grid(net, batch[0], ["gradcam"]))) == 2
