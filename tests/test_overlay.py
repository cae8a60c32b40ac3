"""Overlays: exact pixels on tiny arrays, and what must hold on any photo."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from photos import unseen

from camtool.errors import OverlayError
from camtool.overlay import (
    blend,
    boxes,
    colorize,
    contours,
    draw_boxes,
    draw_contours,
    multiply,
)

IMAGES = Path(__file__).resolve().parents[2] / "shared" / "images"
CONSTANTS = [0.0, 0.4, 1.0]


@pytest.fixture
def photo() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)


@pytest.fixture
def heatmap() -> np.ndarray:
    """A smooth hill that reaches 0 and 1."""
    y, x = np.mgrid[:40, :60]
    hill = np.exp(-((y - 15) ** 2 + (x - 40) ** 2) / 200)
    return ((hill - hill.min()) / np.ptp(hill)).astype(np.float32)


@pytest.fixture
def seen() -> np.ndarray:
    """The central 40 x 40 crop."""
    mask = np.zeros((40, 60), dtype=bool)
    mask[:, 10:50] = True
    return mask


def area_of(polygon: np.ndarray) -> float:
    """The shoelace formula, slow and literal."""
    return abs(sum(float(x0 * y1 - x1 * y0) for (x0, y0), (x1, y1) in pairwise(polygon))) / 2


# blend


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.77, 1.0])
def test_full_heat_is_the_weighted_mean_of_photo_and_colour(photo: np.ndarray, alpha: float) -> None:
    heat = np.ones((40, 60))
    heat[0, 0] = 0
    colour = colorize(heat)
    expected = np.rint((1 - alpha) * photo + alpha * colour).astype(np.uint8)
    expected[0, 0] = photo[0, 0]
    np.testing.assert_array_equal(blend(photo, heat, alpha=alpha), expected)


def test_opacity_follows_the_documented_formula() -> None:
    grey = np.full((1, 5, 3), 100, dtype=np.uint8)
    heat = np.array([[0.0, 0.04, 0.25, 0.49, 1.0]])
    opacity = 0.8 * np.array([0, 0.008, 0.125, 0.343, 1])[:, None]  # heat to the power of 1.5
    expected = np.rint((1 - opacity) * 100 + opacity * colorize(heat)[0])
    np.testing.assert_array_equal(blend(grey, heat, alpha=0.8)[0], expected)


@pytest.mark.parametrize("colormap", ["turbo", "viridis", "gray"])
def test_opacity_of_other_color_maps_is_full_from_a_heat_of_one_half(colormap: str) -> None:
    grey = np.full((1, 5, 3), 100, dtype=np.uint8)
    heat = np.array([[0.0, 0.125, 0.25, 0.5, 1.0]])
    # t = 0, 1/4, 1/2, 1, 1 and t²(3 - 2t) = 0, 5/32, 1/2, 1, 1, times alpha 0.8
    opacity = np.array([0, 0.125, 0.4, 0.8, 0.8])[:, None]
    expected = np.rint((1 - opacity) * 100 + opacity * colorize(heat, colormap)[0])
    np.testing.assert_array_equal(blend(grey, heat, alpha=0.8, colormap=colormap)[0], expected)
    np.testing.assert_array_equal(blend(grey, heat, colormap=colormap), blend(grey, heat, alpha=0.5, colormap=colormap))


def test_hand_computed_pixels() -> None:
    photo = np.array([[[200, 100, 40], [200, 100, 40]]], dtype=np.uint8)
    overlay = blend(photo, np.array([[0.0, 1.0]]), alpha=0.25, colormap="jet")
    assert overlay.tolist() == [[[200, 100, 40], [182, 75, 30]]]  # 150 + 32, 75 + 0, 30 + 0


def test_the_overlay_has_no_cliff() -> None:
    heat = np.linspace(0, 1, 2001)[None]
    overlay = blend(np.full((1, 2001, 3), 255, dtype=np.uint8), heat, alpha=1.0).astype(int)
    assert np.abs(np.diff(overlay, axis=1)).max() <= 8


def test_bright_photos_do_not_wrap_and_dark_ones_are_not_lifted(heatmap: np.ndarray) -> None:
    colour = colorize(heatmap)
    for value in (0, 255):
        flat = np.full((40, 60, 3), value, dtype=np.uint8)
        overlay = blend(flat, heatmap, alpha=0.6)
        assert (overlay <= np.maximum(flat, colour)).all()
        assert (overlay >= np.minimum(flat, colour)).all()


def test_halving_the_light_halves_the_overlay() -> None:
    """Nothing is stretched to the picture's own maximum."""
    heat = np.array([[0.0, 0.3, 1.0]])
    black, bright = np.zeros((1, 3, 3), dtype=np.uint8), np.full((1, 3, 3), 200, dtype=np.uint8)
    glow = blend(black, heat, alpha=0.5).astype(int)
    assert glow.max() <= 128
    opacity = np.array([0, 0.5 * 0.3**1.5, 0.5])[:, None]
    np.testing.assert_allclose(blend(bright, heat, alpha=0.5)[0] - glow[0], (1 - opacity) * np.full(3, 200), atol=1)


def test_alpha_zero_is_the_photo(photo: np.ndarray, heatmap: np.ndarray) -> None:
    np.testing.assert_array_equal(blend(photo, heatmap, alpha=0), photo)


@pytest.mark.parametrize("value", CONSTANTS)
def test_a_constant_map_is_the_photo(photo: np.ndarray, value: float) -> None:
    noise = np.random.default_rng(1).uniform(-3e-7, 3e-7, (40, 60))
    np.testing.assert_array_equal(blend(photo, np.full((40, 60), value)), photo)
    np.testing.assert_array_equal(blend(photo, value + noise), photo)


def test_float32_rounding_above_one_is_one(photo: np.ndarray) -> None:
    exact, off = np.zeros((40, 60)), np.zeros((40, 60))
    exact[3, 4], off[3, 4] = 1, 1 + 2e-7
    np.testing.assert_array_equal(blend(photo, off), blend(photo, exact))


# what the model never saw


def test_seen_everywhere_is_the_same_as_no_mask(photo: np.ndarray, heatmap: np.ndarray) -> None:
    everywhere = np.ones((40, 60), dtype=bool)
    np.testing.assert_array_equal(blend(photo, heatmap, seen=everywhere), blend(photo, heatmap))
    np.testing.assert_array_equal(multiply(photo, heatmap, seen=everywhere), multiply(photo, heatmap))


def test_seen_pixels_are_untouched_by_the_mask(photo: np.ndarray, heatmap: np.ndarray, seen: np.ndarray) -> None:
    np.testing.assert_array_equal(blend(photo, heatmap, seen=seen)[seen], blend(photo, heatmap)[seen])


def test_unseen_pixels_are_pale_grey_without_heat(photo: np.ndarray, seen: np.ndarray) -> None:
    heat = np.zeros((40, 60))
    heat[:, 30:] = 1  # hot in the unseen strip on the right too
    unseen = blend(photo, heat, alpha=1, seen=seen)[~seen].astype(int)
    assert (unseen == unseen[:, :1]).all()
    veil = unseen[unseen[:, 0] != 230]
    assert len(veil) == 18 * 40  # 2 x 10 columns, less one on each side for the line
    assert veil.min() >= 61  # 0.55 * 112
    assert veil.max() <= 177  # 0.45 * 255 + 0.55 * 112
    np.testing.assert_array_equal(unseen, blend(photo, 1 - heat, alpha=0, seen=seen)[~seen])


def test_the_line_around_what_was_seen_lies_outside_it(
    photo: np.ndarray, heatmap: np.ndarray, seen: np.ndarray
) -> None:
    overlay = blend(photo, heatmap, alpha=0, seen=seen)
    assert (overlay[:, [9, 50]] == 230).all()
    np.testing.assert_array_equal(overlay[:, 10:50], photo[:, 10:50])


@pytest.mark.parametrize("value", CONSTANTS)
def test_a_map_constant_over_what_was_seen_adds_no_colour(photo: np.ndarray, seen: np.ndarray, value: float) -> None:
    overlay = blend(photo, np.where(seen, value, 0.0), seen=seen)
    np.testing.assert_array_equal(overlay[seen], photo[seen])


def test_nothing_seen_is_all_grey(photo: np.ndarray, heatmap: np.ndarray) -> None:
    overlay = blend(photo, heatmap, seen=np.zeros((40, 60), dtype=bool))
    assert (overlay == overlay[..., :1]).all()
    assert (overlay != 230).all()


# many pixels


def in_one_piece(photo: np.ndarray, heat: np.ndarray, alpha: float, colormap: str, seen: np.ndarray) -> np.ndarray:
    """The documented formula in float64, on all pixels at once."""
    import cv2

    t = np.minimum(1, 2 * heat.astype(np.float64))[..., None]
    opacity = alpha * t**2 * (3 - 2 * t)
    mixed = np.rint((1 - opacity) * photo + opacity * colorize(heat, colormap))
    side = 1 + 2 * max(1, round(min(photo.shape[:2]) / 180) // 2)
    gray = np.rint(0.45 * cv2.cvtColor(photo, cv2.COLOR_RGB2GRAY) + 0.55 * 112)
    line = cv2.dilate(seen.astype(np.uint8), np.ones((side, side))) > 0
    return np.where(seen[..., None], mixed, np.where(line, 230, gray)[..., None]).astype(np.uint8)


@pytest.mark.parametrize("colormap", ["turbo", "viridis", "bone"])
@pytest.mark.parametrize("size", [(900, 700), (3, 40_000), (7, 5)])
def test_bands_leave_no_seams(size: tuple[int, int], colormap: str) -> None:
    rng = np.random.default_rng(0)
    photo, heat = rng.integers(0, 256, (*size, 3), dtype=np.uint8), rng.random(size, dtype=np.float32)
    y, x = np.mgrid[: size[0], : size[1]]
    seen = np.hypot(y / size[0] - 0.5, x / size[1] - 0.5) < 0.4
    expected = in_one_piece(photo, heat, 0.6, colormap, seen)
    drawn = blend(photo, heat, alpha=0.6, colormap=colormap, seen=seen)
    assert np.abs(drawn.astype(int) - expected).max() <= 1
    exact = heat.astype(np.float64)
    np.testing.assert_array_equal(multiply(photo, heat, seen=seen), np.rint(photo * (exact * seen)[..., None]))
    colors = colorize(np.arange(256)[None] / 255, colormap)[0]
    np.testing.assert_array_equal(colorize(heat, colormap), colors[np.rint(255 * exact).astype(int)])


def added(draw: Callable[[], np.ndarray]) -> int:
    """The most bytes that NumPy holds in addition while something is drawn, with what is drawn."""
    tracemalloc.start()
    try:
        draw()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["blend", "multiply", "colorize"])
def test_large_photos_take_little_memory_beside_themselves(name: str) -> None:
    size = (2000, 1500)
    photo, heat, seen = np.full((*size, 3), 90, np.uint8), np.full(size, 0.4, np.float32), np.ones(size, bool)
    heat[::3] = 0.8
    seen[:, :200] = False
    draws = {
        "blend": lambda: blend(photo, heat, seen=seen),
        "multiply": lambda: multiply(photo, heat, seen=seen),
        "colorize": lambda: colorize(heat),
    }
    blend(photo[:9, :9], heat[:9, :9], seen=seen[:9, :9])  # what is imported on the way
    assert added(draws[name]) <= 1.3 * photo.nbytes


# multiply


def test_multiply_rounds_the_product() -> None:
    photo = np.array([[[255, 101, 3], [255, 101, 3], [255, 101, 3]]], dtype=np.uint8)
    product = multiply(photo, np.array([[0.0, 0.25, 1.0]]))
    assert product.tolist() == [[[0, 0, 0], [64, 25, 1], [255, 101, 3]]]


def test_multiply_is_black_where_the_model_did_not_look(
    photo: np.ndarray, heatmap: np.ndarray, seen: np.ndarray
) -> None:
    product = multiply(photo, heatmap, seen=seen)
    assert (product[~seen] == 0).all()
    assert (product <= photo).all()
    np.testing.assert_array_equal(product[seen], multiply(photo, heatmap)[seen])


# boxes and contours


def test_boxes_are_half_open_and_the_largest_comes_first() -> None:
    heat = np.zeros((6, 8))
    heat[0, 0] = 1  # in the corner
    heat[2:5, 3:8] = 0.9  # up to the right border
    assert boxes(heat) == [(3, 2, 8, 5), (0, 0, 1, 1)]
    assert boxes(heat, threshold=0.95) == [(0, 0, 1, 1)]


def test_pixels_exactly_at_the_threshold_belong() -> None:
    heat = np.zeros((5, 5))
    heat[1:4, 1:3] = 0.5
    assert boxes(heat, threshold=0.5) == [(1, 1, 3, 4)]
    assert len(contours(heat, threshold=0.5)) == 1
    assert boxes(heat, threshold=0.51) == []
    assert contours(heat, threshold=0.51) == []


def test_corners_connect_in_boxes_and_in_contours() -> None:
    heat = np.zeros((6, 6))
    heat[1, 1] = heat[2, 2] = 1
    assert boxes(heat, threshold=0.5) == [(1, 1, 3, 3)]
    assert len(contours(heat, threshold=0.5)) == 1


def test_regions_of_one_size_come_in_reading_order() -> None:
    heat = np.zeros((5, 5))
    heat[0, 4] = heat[2, 0] = heat[2, 2] = 1
    assert boxes(heat) == [(4, 0, 5, 1), (0, 2, 1, 3), (2, 2, 3, 3)]


def test_the_default_threshold_is_otsus(heatmap: np.ndarray) -> None:
    """Slow and literal: of 256 cuts, the one with the largest variance between the two sides."""
    counts, edges = np.histogram(heatmap.astype(np.float64), bins=256)
    centres = (edges[:-1] + edges[1:]) / 2

    def between(cut: int) -> float:
        low, high = counts[: cut + 1], counts[cut + 1 :]
        means = np.average(centres[: cut + 1], weights=low), np.average(centres[cut + 1 :], weights=high)
        return float(low.sum() * high.sum() * (means[0] - means[1]) ** 2)

    otsu = centres[max(range(255), key=between)]
    assert boxes(heatmap) == boxes(heatmap, threshold=otsu)
    assert boxes(heatmap) != boxes(heatmap, threshold=otsu + 0.02)
    for ours, literal in zip(contours(heatmap), contours(heatmap, threshold=otsu), strict=True):
        np.testing.assert_allclose(ours, literal, atol=1e-3)


def test_a_contour_runs_between_the_pixels() -> None:
    heat = np.zeros((5, 7))
    heat[2, 4] = 1
    (diamond,) = contours(heat, threshold=0.25)
    assert diamond.dtype == np.float32
    assert (diamond[0] == diamond[-1]).all()
    corners = {tuple(point) for point in np.round(diamond, 4).tolist()}
    assert corners == {
        (4.75, 2.0),
        (4.0, 2.75),
        (3.25, 2.0),
        (4.0, 1.25),
    }  # (x, y), three quarters of the way down


def test_a_region_at_the_border_is_closed_along_it() -> None:
    heat = np.zeros((6, 9))
    heat[:3, 5:] = 1
    (outline,) = contours(heat, threshold=0.5)
    assert (outline[0] == outline[-1]).all()
    np.testing.assert_allclose(outline.min(axis=0), (4.5, 0))
    np.testing.assert_allclose(outline.max(axis=0), (8, 2.5))
    assert area_of(outline) == pytest.approx(3.5 * 2.5, abs=0.2)  # the free corner is cut off


def test_the_longest_outline_comes_first_and_holes_have_their_own() -> None:
    heat = np.zeros((12, 20))
    heat[1, 18] = 1
    heat[2:11, 2:11] = 1
    heat[5:8, 5:8] = 0
    areas = [area_of(outline) for outline in contours(heat, threshold=0.5)]
    assert areas == pytest.approx([81, 9, 0.5], abs=0.6)


def test_the_whole_map_is_one_region_at_threshold_zero(heatmap: np.ndarray) -> None:
    assert boxes(heatmap, threshold=0) == [(0, 0, 60, 40)]
    (outline,) = contours(heatmap, threshold=0)
    assert area_of(outline) == pytest.approx(59 * 39, abs=1)


@pytest.mark.parametrize("threshold", [None, 0.0, 0.3])
@pytest.mark.parametrize("value", CONSTANTS)
def test_a_constant_map_has_no_regions(value: float, threshold: float | None) -> None:
    heat = np.full((5, 6), value)
    assert boxes(heat, threshold=threshold) == []
    assert contours(heat, threshold=threshold) == []


# lines


def test_a_box_is_drawn_in_its_colour_with_a_dark_halo() -> None:
    grey = np.full((60, 80, 3), 128, dtype=np.uint8)
    picture = draw_boxes(grey, [(20, 15, 61, 46)], color=(255, 0, 0), width=1)
    for y, x in [(15, 40), (45, 40), (30, 20), (30, 60)]:  # the outermost pixels inside the box
        red, green, blue = picture[y, x].tolist()
        assert red > 200
        assert max(green, blue) < 60
    assert picture[13:18, 40].max(axis=1).min() < 90  # the halo
    assert (picture[20:40, 30:50] == 128).all()
    assert (picture[:10] == 128).all()


def test_a_dark_line_gets_a_light_halo() -> None:
    night = np.zeros((60, 80, 3), dtype=np.uint8)
    assert draw_boxes(night, [(20, 15, 61, 46)], color=(0, 0, 0)).max() > 200
    assert draw_boxes(night, [(20, 15, 61, 46)], color=(255, 0, 0))[..., 1].max() == 0


@pytest.mark.parametrize("level", [0, 128, 255])
def test_a_white_line_shows_on_any_ground(level: int) -> None:
    ground = np.full((60, 80, 3), level, dtype=np.uint8)
    picture = draw_boxes(ground, [(20, 15, 61, 46)])
    assert np.ptp(picture[10:20, 40].astype(int)) > 180


def test_a_line_along_the_border_is_drawn_whole() -> None:
    grey = np.full((720, 1080, 3), 128, dtype=np.uint8)
    inside = (draw_boxes(grey, [(100, 100, 400, 400)])[150, 90:110, 0] > 200).sum()
    edge = draw_boxes(grey, [(0, 0, 1080, 720)])
    assert inside >= 2
    assert (edge[150, :10, 0] > 200).sum() == inside
    assert (edge[150, -10:, 0] > 200).sum() == inside


def test_lines_grow_with_the_picture() -> None:
    def thickness(side: int) -> int:
        ground = np.zeros((side, side, 3), dtype=np.uint8)
        quarter = side // 4
        picture = draw_boxes(ground, [(quarter, quarter, 3 * quarter, 3 * quarter)])
        return int((picture[side // 2, : side // 2, 0] > 128).sum())

    assert thickness(200) == 1
    assert 2 <= thickness(500) <= 3
    assert 5 <= thickness(1800) <= 7


def tag(picture: np.ndarray, plain: np.ndarray) -> tuple[int, int, int, int]:
    """Where the letters' tag lies: what the labels changed."""
    rows, columns = np.nonzero((picture != plain).any(2))
    return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1


@pytest.mark.parametrize("level", [0, 90, 128, 255])
@pytest.mark.parametrize(
    "box", [(60, 100, 160, 200), (60, 1, 160, 200), (0, 0, 300, 240), (280, 230, 299, 239), (-9, -9, 20, 30)], ids=str
)
def test_a_label_is_legible_on_any_ground_beside_its_box_and_inside_the_picture(box: tuple, level: int) -> None:
    ground = np.full((240, 300, 3), level, np.uint8)
    plain, drawn = draw_boxes(ground, [box]), draw_boxes(ground, [box], labels=["tabby cat 98%"])
    assert drawn.shape == plain.shape
    left, top, right, bottom = tag(drawn, plain)
    letters = drawn[top:bottom, left:right].astype(int)
    assert 11 <= bottom - top <= 20
    assert 60 <= right - left <= 120
    assert (letters.min(2) > 240).mean() > 0.3, "white paper"
    assert (letters.max(2) < 60).mean() > 0.1, "dark letters"
    assert abs(left - max(0, box[0])) <= 3 or right >= 298
    assert min(abs(bottom - box[1]), abs(top - box[3]), abs(top - max(0, box[1]))) <= 12


def test_a_long_label_is_shortened_before_its_score_and_tiny_pictures_get_none() -> None:
    ground, box = np.full((100, 100, 3), 90, np.uint8), (10, 40, 60, 80)
    plain = draw_boxes(ground, [box])
    long = draw_boxes(ground, [box], labels=["Staffordshire bull terrier of great age 98%"])
    left, _, right, _ = tag(long, plain)
    assert 0 <= left < right <= 100
    other = draw_boxes(ground, [box], labels=["Staffordshire bull terrier of great age 11%"])
    assert (long != other).any(), "the score is still there"
    tiny = draw_boxes(ground[:32, :32], [(4, 4, 20, 20)], labels=["cat 98%"])
    np.testing.assert_array_equal(tiny, draw_boxes(ground[:32, :32], [(4, 4, 20, 20)]))


def test_contours_are_smooth_and_subpixel() -> None:
    black = np.zeros((40, 40, 3), dtype=np.uint8)
    square = np.array([[10, 10], [30, 10], [30, 30], [10, 30], [10, 10]], dtype=np.float32)
    exact = draw_contours(black, [square], width=1)
    shifted = draw_contours(black, [square + 0.5], width=1)
    assert 0 < shifted[10, 20, 0] < 255  # the line is shared by rows 10 and 11
    assert 0 < shifted[11, 20, 0] < 255
    assert exact[10, 20, 0] > shifted[10, 20, 0]


def test_what_boxes_and_contours_return_can_be_drawn(photo: np.ndarray, heatmap: np.ndarray) -> None:
    for picture in (draw_boxes(photo, boxes(heatmap)), draw_contours(photo, contours(heatmap))):
        assert (picture.shape, picture.dtype) == (photo.shape, np.uint8)
        assert (picture != photo).any()
    np.testing.assert_array_equal(draw_boxes(photo, []), photo)
    np.testing.assert_array_equal(draw_contours(photo, []), photo)


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (2, 2)])
def test_tiny_pictures_work_throughout(size: tuple[int, int]) -> None:
    photo = np.full((*size, 3), 90, dtype=np.uint8)
    heat = np.linspace(0, 1, photo[..., 0].size).reshape(size)
    pictures = [
        blend(photo, heat, seen=heat > 0.4),
        multiply(photo, heat),
        draw_boxes(photo, boxes(heat)),
        draw_contours(photo, contours(heat)),
    ]
    assert [picture.shape for picture in pictures] == [photo.shape] * 4


# inputs


def test_inputs_are_never_changed_nor_handed_back(photo: np.ndarray, heatmap: np.ndarray, seen: np.ndarray) -> None:
    for array in (photo, heatmap, seen):
        array.flags.writeable = False
    pictures = [
        blend(photo, heatmap, alpha=0, seen=seen),
        blend(photo, np.zeros((40, 60))),
        multiply(photo, np.ones((40, 60))),
        draw_boxes(photo, []),
        draw_contours(photo, contours(heatmap)),
    ]
    for picture in pictures:
        assert picture.dtype == np.uint8
        assert picture.flags.writeable
        assert not np.shares_memory(picture, photo)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_any_float_and_any_strides_will_do(photo: np.ndarray, dtype: type) -> None:
    heat = np.zeros((40, 60), dtype=dtype)
    heat[5:20, 10:30] = 0.5
    seen = np.ones((40, 60), dtype=bool)
    seen[:, ::7] = False
    for flipped in (np.s_[:, ::-1], np.s_[::-1]):
        whole = blend(photo, heat, seen=seen)[flipped]
        np.testing.assert_array_equal(blend(photo[flipped], heat[flipped], seen=seen[flipped]), whole)
    assert len(boxes(heat[:, ::-1])) == 1
    assert draw_boxes(photo[::2, ::-1], boxes(heat[::2])).shape == (20, 60, 3)


GOOD = np.zeros((4, 6, 3), dtype=np.uint8)
FLAT = np.zeros((4, 6))


@pytest.mark.parametrize("layer", [blend, multiply])
@pytest.mark.parametrize(
    ("photo", "heatmap", "seen", "message"),
    [
        (GOOD / 255, FLAT, None, r"photo must be .*uint8 RGB.*got float64 \(4, 6, 3\); .*\* 255"),
        (GOOD.astype(np.uint16), FLAT, None, r"photo must be .*got uint16 \(4, 6, 3\)\.$"),
        (GOOD[..., 0], FLAT, None, r"photo must be .*got uint8 \(4, 6\)"),
        (np.zeros((4, 6, 4), dtype=np.uint8), FLAT, None, r"photo must be .*got uint8 \(4, 6, 4\)"),
        (GOOD[:0], FLAT[:0], None, r"photo must be .*got uint8 \(0, 6, 3\)"),
        ([[1]], FLAT, None, "photo must be .*got a list"),
        (GOOD, FLAT.astype(np.uint8), None, r"heatmap must be .*float.*got uint8 \(4, 6\)"),
        (GOOD, FLAT[None], None, r"heatmap must be .*got float64 \(1, 4, 6\)"),
        (GOOD, None, None, "heatmap must be .*got a NoneType"),
        (GOOD, FLAT.T, None, r"heatmap is float64 \(6, 4\), photo is .*resize the heatmap to \(4, 6\)"),
        (GOOD, FLAT + np.nan, None, "heatmap must lie in .*holds NaN"),
        (GOOD, FLAT + np.inf, None, "heatmap must lie in .*inf"),
        (GOOD, FLAT + 1.01, None, "heatmap must lie in .*1.01.*normalise"),
        (GOOD, FLAT - 0.01, None, "heatmap must lie in .*-0.01"),
        (GOOD, FLAT, FLAT, r"seen must be a \(4, 6\) bool array.*got float64 \(4, 6\)"),
        (GOOD, FLAT, FLAT[1:] > 0, r"seen must be .*got bool \(3, 6\)"),
    ],
)
def test_layers_that_do_not_fit_are_named(
    layer: object, photo: object, heatmap: object, seen: object, message: str
) -> None:
    with pytest.raises(OverlayError, match=message):
        layer(photo, heatmap, seen=seen)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "0.5", 1 + 0j])
def test_alpha_and_threshold_are_fractions(value: object) -> None:
    with pytest.raises(OverlayError, match=r"alpha must be a number in \[0, 1\], got"):
        blend(GOOD, FLAT, alpha=value)
    for regions in (boxes, contours):
        with pytest.raises(OverlayError, match=r"threshold must be a number in \[0, 1\], got"):
            regions(FLAT, threshold=value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"boxes": [(3, 1, 3, 4)]}, r"boxes holds \(3, 1, 3, 4\), which is empty"),
        ({"boxes": [(1, 2, 3)]}, r"each of boxes must be four numbers .*got \(1, 2, 3\)"),
        ({"boxes": [(0, 0, float("nan"), 1)]}, "each of boxes must be four numbers .*nan"),
        ({"contours": [np.zeros((4, 3))]}, r"each of contours must be \(K, 2\) points"),
        ({"contours": [7]}, r"each of contours must be \(K, 2\) points .*got 7"),
        ({"boxes": [], "color": (0, 0, 256)}, r"color must be three numbers .*got \(0, 0, 256\)"),
        ({"boxes": [], "color": "red"}, "color must be three numbers .*got 'red'"),
        ({"boxes": [], "width": 0}, "width must be a whole number .*got 0"),
        ({"boxes": [(0, 0, 2, 2)], "labels": ["a", "b"]}, r"labels must be 1 strings.*got \['a', 'b'\]"),
        ({"boxes": [(0, 0, 2, 2)], "labels": "a"}, "labels must be 1 strings.*got 'a'"),
        ({"boxes": [], "width": 1.5}, "width must be a whole number .*got 1.5"),
    ],
)
def test_lines_that_cannot_be_drawn_are_named(arguments: dict[str, object], message: str) -> None:
    draw = draw_contours if "contours" in arguments else draw_boxes
    with pytest.raises(OverlayError, match=message):
        draw(GOOD, **arguments)


def test_importing_the_module_loads_neither_opencv_nor_skimage() -> None:
    code = "import sys, camtool.overlay; print(*{'cv2', 'skimage'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("name", ["n04332243_strainer.jpg", "n02114712_red_wolf.jpg", "n04554684_washer.jpg"])
def test_real_photos_keep_their_cold_parts(name: str) -> None:
    """A bright, wide photo; a dark, tall one; a black-and-white one."""
    if not (IMAGES / name).exists():
        pytest.skip("the sample photos are not here")
    from PIL import Image

    assert_cold_parts_are_kept(np.asarray(Image.open(IMAGES / name).convert("RGB")))


SCENE = unseen(0, size=300).image


@pytest.mark.parametrize(
    "photo",
    [
        np.maximum(SCENE[:200], 150),
        SCENE[:, :160] // 4,
        SCENE.mean(2, keepdims=True).astype(np.uint8).repeat(3, axis=2),
    ],
    ids=["bright, wide", "dark, tall", "black-and-white"],
)
def test_scenes_keep_their_cold_parts(photo: np.ndarray) -> None:
    assert_cold_parts_are_kept(photo)


def assert_cold_parts_are_kept(photo: np.ndarray) -> None:
    height, width, _ = photo.shape
    y, x = np.mgrid[:height, :width]
    heat = np.clip(1 - np.hypot(y - height / 2, x - width / 2) / (height / 4), 0, 1)
    overlay = blend(photo, heat)
    np.testing.assert_array_equal(overlay[heat == 0], photo[heat == 0])
    assert (overlay[heat > 0.5] != photo[heat > 0.5]).any(axis=-1).mean() > 0.99
