"""Properties of the whole photo: which ones are no part of an object."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from camtool.evaluation.audit.cues.candidates import Discovery
from camtool.evaluation.audit.cues.property import find_properties
from camtool.evaluation.audit.images import GRID, ImageRecord
from camtool.evaluation.photo_properties import PROPERTIES, compress, leave_out, measure_parts, measure_properties

SIDE, EACH = 48, 25


def draw_classes(levels, change):
    """Return photos of noise about a level for each class, those of the first class changed, and their classes."""
    random, photos = np.random.default_rng(0), []
    classes = [target for target in range(len(levels)) for _ in range(EACH)]
    for target in classes:
        photo = levels[target] + random.normal(0, 12) + random.normal(0, 20, (SIDE, SIDE, 3))
        photos.append(np.clip(change(photo, random) if target == 0 else photo, 0, 255).astype(np.uint8))
    return photos, classes


def find(levels, change):
    photos, classes = draw_classes(levels, change)
    records = [
        ImageRecord(index, target, np.zeros(32), target, np.zeros((GRID, GRID)), measure_properties(photo))
        for index, (photo, target) in enumerate(zip(photos, classes, strict=True))
    ]
    images = SimpleNamespace(prepare=lambda index: SimpleNamespace(photo=photos[index]))
    found = find_properties(Discovery(images, records, range(len(photos)), range(len(levels)), 0))
    return {candidate.name: candidate.suspicion for candidate in found if candidate.target == 0}


def brighten(photo, random):
    return photo + 30


def add_object(photo, random):
    """Return a photo with a bright square at a random place, which is as bright on average as one brighter all over."""
    changed, (row, column) = photo.copy(), random.integers(0, SIDE - 20, 2)
    changed[row : row + 20, column : column + 20] += 140
    return changed


@pytest.mark.parametrize("classes", [2, 4])
def test_a_property_is_suspicious_if_nearly_all_parts_of_the_photos_have_it(classes):
    assert find([100] * classes, brighten)["brighter (brightness)"] == "a property of the whole photo"
    assert find([100] * classes, add_object)["brighter (brightness)"] == ""


@pytest.mark.parametrize(
    ("levels", "suspicion"),
    [
        ([130, 90, 100, 180], ""),  # another class is brighter
        ([80, 60, 100, 90], ""),  # 10 beyond the others, which are 40 apart
        ([110, 60, 100, 90], "a property of the whole photo"),  # 40 beyond the others
    ],
)
def test_a_property_is_not_suspicious_if_other_classes_differ_as_much(levels, suspicion):
    assert find(levels, brighten)["brighter (brightness)"] == suspicion


def tint(photo, random):
    return photo * np.array([0.95, 1, 1])


def add_contrast(photo, random):
    return photo + random.normal(0, 10, photo.shape[:2])[..., None]


def test_a_tint_is_suspicious_beside_classes_that_differ_more_by_another_property():
    for levels in ([100] * 4, [100, 100, 100, 180]):
        assert find(levels, tint)["greener (red-green tint)"] == "a property of the whole photo"
    # What is no color may be one of objects: a class that is brighter all over differs by more.
    assert find([100] * 4, add_contrast)["more contrast (contrast)"] == "a property of the whole photo"
    assert find([100, 100, 100, 250], add_contrast)["more contrast (contrast)"] == ""


def test_parts_of_a_photo_have_its_properties():
    photo = np.zeros((40, 80, 3), np.uint8)
    photo[:10, 60:] = 200
    parts = measure_parts(photo)
    assert parts.shape == (16, len(PROPERTIES))
    assert parts[:, 0] == pytest.approx([0, 0, 0, 200] + [0] * 12)
    assert (parts[:, 5] == measure_properties(photo)[5]).all()


@pytest.mark.parametrize("name", ["brightness", "red-green tint", "blue-yellow tint"])
def test_a_photo_takes_the_mean_color_of_another_by_a_sum_or_by_factors(name):
    random = np.random.default_rng(0)
    photo = random.integers(60, 120, (8, 8, 3)).astype(np.uint8)
    other = (photo * np.array([0.5, 1.0, 1.5])).astype(np.uint8)
    kind = next(each for each in PROPERTIES if each.name == name)
    made = [kind.imitate(photo, other, random) for _ in range(10)]
    for each in made:
        np.testing.assert_allclose(each.mean((0, 1)), other.mean((0, 1)), atol=1)
    # A factor is exactly what made the other photo; a sum keeps the deviations of each color.
    spreads = sorted({round(float(each[..., 2].std() / photo[..., 2].std()), 1) for each in made})
    assert spreads == [1.0, 1.5]


def test_a_photo_cannot_be_made_sharper():
    sharp = np.random.default_rng(0).integers(0, 255, (16, 16, 3)).astype(np.uint8)
    kind = next(each for each in PROPERTIES if each.name == "sharpness")
    blurred = kind.imitate(sharp, np.full_like(sharp, 9), np.random.default_rng(0))
    assert kind.measure(blurred.astype(float)) < kind.measure(sharp.astype(float))
    assert kind.imitate(blurred, sharp, np.random.default_rng(0)) is None


@pytest.mark.parametrize("gains", [(0.6, 1, 1), (1, 0.6, 1), (1, 1, 0.6), (0.5, 0.5, 0.5)])
def test_light_that_multiplies_colors_is_evened_out(gains):
    """By brightness and both tints, one after the other; a sum would leave dark pixels brighter than they were."""
    photo = np.random.default_rng(0).integers(0, 200, (SIDE, SIDE, 3)).astype(np.uint8)
    photo[0, 0] = 0
    evened = np.rint(photo * np.array(gains)).astype(np.uint8)
    for kind in [kind for kind in PROPERTIES if kind.is_color] * 3:
        evened = kind.shift(evened, kind.measure(evened.astype(float)), kind.measure(photo.astype(float)))
    np.testing.assert_allclose(evened.astype(float), photo, atol=6)
    assert (evened[0, 0] == 0).all()


def test_a_shift_of_a_color_by_hand():
    photo = np.array([[[100, 50, 20], [0, 150, 60]]], np.uint8)  # means 50, 100, 40
    brightness = next(kind for kind in PROPERTIES if kind.name == "brightness")
    # 20 more of each mean color: factors 1.4, 1.2 and 1.5.
    np.testing.assert_array_equal(brightness.shift(photo, 0, 20), [[[140, 60, 30], [0, 180, 90]]])
    np.testing.assert_array_equal(brightness.shift(photo, 0, -50), [[[0, 25, 0], [0, 75, 0]]])


def get_property(name):
    return next(kind for kind in PROPERTIES if kind.name == name)


def test_pixels_that_do_not_count_have_no_part_in_a_property_by_hand():
    photo = np.full((3, 2, 3), 255, np.uint8)
    photo[0] = [[100, 50, 20], [0, 150, 60]]  # the only pixels that count; means 50, 100, 40
    counted = np.array([[True, True], [False, False], [False, False]])
    brightness = get_property("brightness")
    assert brightness.measure(leave_out(photo, counted)) == pytest.approx(0.299 * 50 + 0.587 * 100 + 0.114 * 40)
    assert brightness.measure(leave_out(photo, ~counted)) == pytest.approx(255)
    assert brightness.measure(leave_out(photo, None)) == brightness.measure(photo.astype(float))
    # 20 more of each mean color of these pixels: factors 1.4, 1.2 and 1.5.
    np.testing.assert_array_equal(brightness.shift(photo, 0, 20, counted)[0], [[140, 60, 30], [0, 180, 90]])
    assert get_property("red-green tint").measure(leave_out(photo, counted)) == -50
    gray = np.array([[[90] * 3, [110] * 3], [[250] * 3, [0] * 3]], np.uint8)
    contrast, counted = get_property("contrast"), np.array([[True, True], [False, False]])
    assert contrast.measure(leave_out(gray, counted)) == pytest.approx(10)
    np.testing.assert_array_equal(contrast.shift(gray, 10, 5, counted)[0], [[95] * 3, [105] * 3])
    assert contrast.measure(leave_out(gray, np.zeros((2, 2), bool))) == 0


def test_edges_and_blocks_of_what_does_not_count_do_not_either():
    random = np.random.default_rng(0)
    photo = np.full((40, 40, 3), 90, np.uint8)
    photo[:, 20:] = random.integers(0, 255, (40, 20, 3))
    photo[5, 5] = 98
    counted = np.arange(40)[None].repeat(40, 0) < 20
    sharpness = get_property("sharpness")
    # Of 38 x 18 pixels with neighbors that count, one differs by 8 from its four neighbors: 32 there, 8 beside it.
    expected = np.log((32**2 + 4 * 8**2) / (38 * 18) + 1)
    assert sharpness.measure(leave_out(photo, counted)) == pytest.approx(expected)
    assert sharpness.measure(photo.astype(float)) > expected + 5
    noise = random.integers(0, 255, (64, 64, 3)).astype(np.uint8)
    half, blocks = np.arange(64)[None].repeat(64, 0) < 32, get_property("JPEG blocks")
    mixed = np.where(half[..., None], noise, compress(noise, 10))
    left, right = (blocks.measure(leave_out(mixed, part)) for part in (half, ~half))
    assert left == pytest.approx(blocks.measure(leave_out(noise, half)))
    assert abs(left) < 0.2 < right
