"""Scenes of the demo: equal for equal seeds, with masks and boxes that are right."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from camtool.demo.random_numbers import RandomNumbers
from camtool.demo.scenes import draw_scene
from camtool.demo.shapes import LABELS, SHAPES
from camtool.errors import CamtoolError

KINDS = [pytest.param({"objects": n, "mark": mark}, id=f"{n}-{mark}") for n in (1, 2, 4) for mark in (False, True)]


def compute_digest(*scenes):
    """Return a hash of the images and the masks of scenes."""
    parts = (part for each in scenes for part in (each.image, *(item.mask for item in each.objects)))
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:16]


def test_random_numbers_never_change():
    random = RandomNumbers(3, 1)
    assert [random.draw_unit(), random.draw_between(2, 4), random.draw_below(1000)] == [
        0.25325307785026463,
        2.8143943825639894,
        341,
    ]
    assert random.draw_bytes(9).tolist() == [143, 72, 155, 38, 94, 15, 109, 109, 85]


@pytest.mark.parametrize(
    ("size", "objects", "expected"),
    [
        (128, 1, "e51bff549d495c6e"),
        (128, 2, "0c14da30f03df45f"),
        (128, 4, "9c8f0bc596553e91"),
        (200, 1, "793fe7955e9e5edc"),
    ],
)
def test_scenes_are_the_same_on_every_machine(size, objects, expected):
    assert compute_digest(*(draw_scene(seed, objects=objects, size=size) for seed in range(40))) == expected


def test_scenes_do_not_depend_on_the_order_of_calls():
    first, second = draw_scene(1), draw_scene(2, objects=2)
    np.random.seed(0)  # noqa: NPY002  (the global generator must not matter)
    draw_scene(3, size=200, mark=True)
    assert compute_digest(draw_scene(2, objects=2), draw_scene(1)) == compute_digest(second, first)


@pytest.mark.parametrize("objects", [1, 2, 4])
def test_a_scene_is_the_same_at_any_size(objects):
    for seed in range(30):
        small, large = (draw_scene(seed, objects=objects, size=size) for size in (128, 512))
        for one, other in zip(small.objects, large.objects, strict=True):
            reduced = other.mask.reshape(128, 4, 128, 4).mean((1, 3)) >= 0.5
            assert one.index == other.index
            assert (one.mask & reduced).sum() / (one.mask | reduced).sum() > 0.9
        reduced = large.image.reshape(128, 4, 128, 4, 3).mean((1, 3))
        assert np.abs(reduced - small.image).mean() < 8


@pytest.mark.parametrize("kind", KINDS)
def test_objects_match_their_masks_and_boxes(kind):
    for seed in range(25):
        scene = draw_scene(seed, **kind)
        assert scene.image.shape == (128, 128, 3)
        assert scene.image.dtype == np.uint8
        assert len({item.index for item in scene.objects}) == len(scene.objects) == kind["objects"]
        for item in scene.objects:
            x0, y0, x1, y1 = item.box
            rows, columns = np.nonzero(item.mask)
            assert (x0, y0, x1, y1) == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            assert item.label == LABELS[item.index]


def test_masks_do_not_overlap_and_remain_visible():
    for seed in range(40):
        masks = [item.mask for item in draw_scene(seed, objects=4).objects]
        assert np.sum(masks, axis=0).max() == 1
        assert all(mask.mean() > 0.005 for mask in masks)


def test_another_class_changes_only_the_object():
    star, heart = (draw_scene(11, classes=[label]) for label in ("star", "heart"))
    assert (star.objects[0].label, heart.objects[0].label) == ("star", "heart")
    differs = np.abs(star.image.astype(int) - heart.image).max(2) > 0
    x0, y0, x1, y1 = star.objects[0].box
    rows, columns = np.nonzero(differs)
    assert differs.any()
    reach = max(x1 - x0, y1 - y0)
    assert rows.min() >= y0 - reach
    assert rows.max() <= y1 + reach
    assert columns.min() >= x0 - reach
    assert columns.max() <= x1 + reach


def test_the_watermark_changes_only_its_box():
    for seed in range(10):
        plain, marked = draw_scene(seed), draw_scene(seed, mark=True)
        x0, y0, x1, y1 = marked.mark
        differs = (plain.image != marked.image).any(2)
        assert plain.mark is None
        assert differs[y0:y1, x0:x1].mean() > 0.5
        differs[y0 - 1 : y1 + 1, x0 - 1 : x1 + 1] = False
        assert not differs.any()
        assert min(x0, y0) > 96


def test_an_object_lies_where_it_is_asked_to_be():
    for seed in range(10):
        scenes = [draw_scene(seed, classes=["square"], position=at) for at in ((0.3, 0.7), (0.7, 0.3))]
        for scene, (x, y) in zip(scenes, ((0.3, 0.7), (0.7, 0.3)), strict=True):
            x0, y0, x1, y1 = scene.objects[0].box
            assert x0 < 128 * x < x1
            assert y0 < 128 * y < y1
        radii = [np.sqrt(scene.objects[0].mask.sum()) for scene in scenes]
        assert max(radii) / min(radii) < 1.3  # a tip may lie outside, or below a stick


def test_classes_are_given_by_name_or_index():
    assert len(LABELS) == 10
    for index, label in enumerate(LABELS):
        assert compute_digest(draw_scene(5, classes=[label])) == compute_digest(draw_scene(5, classes=[index]))
    assert {draw_scene(seed).objects[0].label for seed in range(100)} == set(LABELS)


@pytest.mark.parametrize("label", LABELS)
def test_a_shape_fills_its_circle_and_its_distance_has_slope_one_at_most(label):
    at = (np.arange(-160, 160, dtype=np.float32) + np.float32(0.5)) / np.float32(100)
    distance = SHAPES[label](at[None, :], at[:, None])
    assert distance.dtype == np.float32
    reach = np.sqrt(at[None, :] ** 2 + at[:, None] ** 2)[distance < 0].max()
    assert 0.9 < reach < 1.05
    for axis in (0, 1):  # a step of 0.01 changes the distance by no more
        assert np.abs(np.diff(distance, axis=axis)).max() < 0.0101


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1}, "seed must be 0 or more, got -1"),
        ({"objects": 3}, "objects must be one of 1, 2, 4, got 3"),
        ({"size": 16}, "size must be 32 or more, got 16"),
        ({"classes": ["hart"]}, "classes must be among .*got 'hart'.*Did you mean 'heart'"),
        ({"classes": [10]}, "classes must be among arrow.*got 10"),
        ({"classes": ["star", "heart"]}, "must be 1 different ones for objects=1"),
        ({"classes": ["star", "star"], "objects": 2}, "must be 2 different ones"),
        ({"position": (0.5, 1.2)}, r"position must be two numbers in \[0, 1\)"),
        ({"position": (0.5, 0.5), "objects": 2}, "of one object"),
    ],
)
def test_wrong_arguments_raise_an_error(arguments, message):
    with pytest.raises(CamtoolError, match=message):
        draw_scene(**{"seed": 0, **arguments})


def test_importing_camtool_does_not_import_the_demo():
    loaded = "any('camtool.demo' in name for name in sys.modules)"
    code = f"import sys, camtool, camtool.explaining.explanation; sys.exit({loaded})"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
