"""The demo's scenes: the same from the same seed, whatever else is asked, and true to what they say of themselves."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from camtool.demo.dice import Dice
from camtool.demo.scenes import LABELS, scene
from camtool.demo.shapes import SHAPES
from camtool.errors import CamtoolError

KINDS = [pytest.param({"objects": n, "mark": mark}, id=f"{n}-{mark}") for n in (1, 2, 4) for mark in (False, True)]


def digest(*scenes):
    """A fingerprint of all that a scene is."""
    parts = (part for each in scenes for part in (each.image, *(thing.mask for thing in each.objects)))
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:16]


def test_dice_are_pinned():
    dice = Dice(3, 1)
    assert [dice.unit(), dice.between(2, 4), dice.below(1000)] == [0.25325307785026463, 2.8143943825639894, 341]
    assert dice.bytes(9).tolist() == [143, 72, 155, 38, 94, 15, 109, 109, 85]


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
    assert digest(*(scene(seed, objects=objects, size=size) for seed in range(40))) == expected


def test_the_order_of_calls_does_not_matter():
    first, second = scene(1), scene(2, objects=2)
    np.random.seed(0)  # noqa: NPY002  (the global generator is what must not matter)
    scene(3, size=200, mark=True)
    assert digest(scene(2, objects=2), scene(1)) == digest(second, first)


@pytest.mark.parametrize("objects", [1, 2, 4])
def test_a_scene_is_the_same_at_any_size(objects):
    for seed in range(30):
        small, large = (scene(seed, objects=objects, size=size) for size in (128, 512))
        for one, other in zip(small.objects, large.objects, strict=True):
            reduced = other.mask.reshape(128, 4, 128, 4).mean((1, 3)) >= 0.5
            assert one.index == other.index
            assert (one.mask & reduced).sum() / (one.mask | reduced).sum() > 0.9
        reduced = large.image.reshape(128, 4, 128, 4, 3).mean((1, 3))
        assert np.abs(reduced - small.image).mean() < 8


@pytest.mark.parametrize("kind", KINDS)
def test_things_are_what_they_say(kind):
    for seed in range(25):
        picture = scene(seed, **kind)
        assert picture.image.shape == (128, 128, 3)
        assert picture.image.dtype == np.uint8
        assert len({thing.index for thing in picture.objects}) == len(picture.objects) == kind["objects"]
        for thing in picture.objects:
            x0, y0, x1, y1 = thing.box
            rows, columns = np.nonzero(thing.mask)
            assert (x0, y0, x1, y1) == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            assert thing.label == LABELS[thing.index]


def test_masks_do_not_overlap_and_stay_visible():
    for seed in range(40):
        masks = [thing.mask for thing in scene(seed, objects=4).objects]
        assert np.sum(masks, axis=0).max() == 1
        assert all(mask.mean() > 0.005 for mask in masks)


def test_another_class_changes_the_object_alone():
    star, heart = (scene(11, classes=[label]) for label in ("star", "heart"))
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


def test_the_mark_changes_its_box_alone():
    for seed in range(10):
        plain, marked = scene(seed), scene(seed, mark=True)
        x0, y0, x1, y1 = marked.mark
        differs = (plain.image != marked.image).any(2)
        assert plain.mark is None
        assert differs[y0:y1, x0:x1].mean() > 0.5
        differs[y0 - 1 : y1 + 1, x0 - 1 : x1 + 1] = False
        assert not differs.any()
        assert min(x0, y0) > 96


def test_all_classes_and_both_ways_to_name_them():
    assert len(LABELS) == 10
    for index, label in enumerate(LABELS):
        assert digest(scene(5, classes=[label])) == digest(scene(5, classes=[index]))
    assert {scene(seed).objects[0].label for seed in range(100)} == set(LABELS)


@pytest.mark.parametrize("label", LABELS)
def test_a_shape_fills_its_circle_and_its_distance_is_no_longer_than_the_way(label):
    at = (np.arange(-160, 160, dtype=np.float32) + np.float32(0.5)) / np.float32(100)
    distance = SHAPES[label](at[None, :], at[:, None])
    assert distance.dtype == np.float32
    reach = np.sqrt(at[None, :] ** 2 + at[:, None] ** 2)[distance < 0].max()
    assert 0.9 < reach < 1.05
    for axis in (0, 1):  # a step of 0.01 changes no distance by more
        assert np.abs(np.diff(distance, axis=axis)).max() < 0.0101


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1}, "seed: -1 came"),
        ({"objects": 3}, "objects: 3 came; a scene has 1, 2, 4"),
        ({"size": 16}, "size: 16 came"),
        ({"classes": ["hart"]}, "'hart' came.*Did you mean 'heart'"),
        ({"classes": [10]}, "10 came; known are"),
        ({"classes": ["star", "heart"]}, "give one each for objects=1"),
        ({"classes": ["star", "star"], "objects": 2}, "all different"),
    ],
)
def test_what_cannot_be_drawn_is_said(arguments, message):
    with pytest.raises(CamtoolError, match=message):
        scene(**{"seed": 0, **arguments})


def test_importing_camtool_leaves_the_demo_alone():
    code = "import sys, camtool, camtool.explanation; sys.exit(any('camtool.demo' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
