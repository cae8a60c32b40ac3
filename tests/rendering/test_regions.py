"""Hot regions: boxes and outlines on tiny arrays, and how they are drawn."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from camtool.errors import OverlayError
from camtool.rendering.regions import (
    PhotoRegion,
    compute_heat_share,
    draw_boxes,
    draw_contours,
    find_boxes,
    find_contours,
)

CONSTANTS = [0.0, 0.4, 1.0]
GOOD = np.zeros((4, 6, 3), dtype=np.uint8)
FLAT = np.zeros((4, 6))


def measure_area(polygon: np.ndarray) -> float:
    """Return the area of a polygon by the shoelace formula."""
    return abs(sum(float(x0 * y1 - x1 * y0) for (x0, y0), (x1, y1) in pairwise(polygon))) / 2


def test_boxes_are_half_open_and_sorted_by_size() -> None:
    heat = np.zeros((6, 8))
    heat[0, 0] = 1  # in the corner
    heat[2:5, 3:8] = 0.9  # up to the right border
    assert find_boxes(heat) == [(3, 2, 8, 5), (0, 0, 1, 1)]
    assert find_boxes(heat, threshold=0.95) == [(0, 0, 1, 1)]


def test_pixels_at_the_threshold_belong_to_regions() -> None:
    heat = np.zeros((5, 5))
    heat[1:4, 1:3] = 0.5
    assert find_boxes(heat, threshold=0.5) == [(1, 1, 3, 4)]
    assert len(find_contours(heat, threshold=0.5)) == 1
    assert find_boxes(heat, threshold=0.51) == []
    assert find_contours(heat, threshold=0.51) == []


def test_corners_connect_regions_in_boxes_and_contours() -> None:
    heat = np.zeros((6, 6))
    heat[1, 1] = heat[2, 2] = 1
    assert find_boxes(heat, threshold=0.5) == [(1, 1, 3, 3)]
    assert len(find_contours(heat, threshold=0.5)) == 1


def test_regions_of_equal_size_are_in_reading_order() -> None:
    heat = np.zeros((5, 5))
    heat[0, 4] = heat[2, 0] = heat[2, 2] = 1
    assert find_boxes(heat) == [(4, 0, 5, 1), (0, 2, 1, 3), (2, 2, 3, 3)]


def test_default_threshold_is_that_of_otsu(heatmap: np.ndarray) -> None:
    """Compare with a literal search: of 256 cuts, the one with the largest variance between the two sides."""
    counts, edges = np.histogram(heatmap.astype(np.float64), bins=256)
    centers = (edges[:-1] + edges[1:]) / 2

    def between(cut: int) -> float:
        low, high = counts[: cut + 1], counts[cut + 1 :]
        means = np.average(centers[: cut + 1], weights=low), np.average(centers[cut + 1 :], weights=high)
        return float(low.sum() * high.sum() * (means[0] - means[1]) ** 2)

    otsu = centers[max(range(255), key=between)]
    assert find_boxes(heatmap) == find_boxes(heatmap, threshold=otsu)
    assert find_boxes(heatmap) != find_boxes(heatmap, threshold=otsu + 0.02)
    for ours, literal in zip(find_contours(heatmap), find_contours(heatmap, threshold=otsu), strict=True):
        np.testing.assert_allclose(ours, literal, atol=1e-3)


def test_contour_is_between_the_pixels() -> None:
    heat = np.zeros((5, 7))
    heat[2, 4] = 1
    (diamond,) = find_contours(heat, threshold=0.25)
    assert diamond.dtype == np.float32
    assert (diamond[0] == diamond[-1]).all()
    corners = {tuple(point) for point in np.round(diamond, 4).tolist()}
    assert corners == {
        (4.75, 2.0),
        (4.0, 2.75),
        (3.25, 2.0),
        (4.0, 1.25),
    }  # (x, y), three quarters of the way down


def test_region_at_the_border_is_closed_along_it() -> None:
    heat = np.zeros((6, 9))
    heat[:3, 5:] = 1
    (outline,) = find_contours(heat, threshold=0.5)
    assert (outline[0] == outline[-1]).all()
    np.testing.assert_allclose(outline.min(axis=0), (4.5, 0))
    np.testing.assert_allclose(outline.max(axis=0), (8, 2.5))
    assert measure_area(outline) == pytest.approx(3.5 * 2.5, abs=0.2)  # the free corner is cut off


def test_outlines_are_sorted_by_length_and_holes_have_their_own() -> None:
    heat = np.zeros((12, 20))
    heat[1, 18] = 1
    heat[2:11, 2:11] = 1
    heat[5:8, 5:8] = 0
    areas = [measure_area(outline) for outline in find_contours(heat, threshold=0.5)]
    assert areas == pytest.approx([81, 9, 0.5], abs=0.6)


def test_threshold_zero_gives_one_region(heatmap: np.ndarray) -> None:
    assert find_boxes(heatmap, threshold=0) == [(0, 0, 60, 40)]
    (outline,) = find_contours(heatmap, threshold=0)
    assert measure_area(outline) == pytest.approx(59 * 39, abs=1)


@pytest.mark.parametrize("threshold", [None, 0.0, 0.3])
@pytest.mark.parametrize("value", CONSTANTS)
def test_constant_heatmap_has_no_regions(value: float, threshold: float | None) -> None:
    heat = np.full((5, 6), value)
    assert find_boxes(heat, threshold=threshold) == []
    assert find_contours(heat, threshold=threshold) == []


def test_box_has_its_color_and_a_dark_halo() -> None:
    gray = np.full((60, 80, 3), 128, dtype=np.uint8)
    drawing = draw_boxes(gray, [(20, 15, 61, 46)], color=(255, 0, 0), width=1)
    for y, x in [(15, 40), (45, 40), (30, 20), (30, 60)]:  # the outermost pixels inside the box
        red, green, blue = drawing[y, x].tolist()
        assert red > 200
        assert max(green, blue) < 60
    assert drawing[13:18, 40].max(axis=1).min() < 90  # the halo
    assert (drawing[20:40, 30:50] == 128).all()
    assert (drawing[:10] == 128).all()


def test_dark_line_has_a_light_halo() -> None:
    night = np.zeros((60, 80, 3), dtype=np.uint8)
    assert draw_boxes(night, [(20, 15, 61, 46)], color=(0, 0, 0)).max() > 200
    assert draw_boxes(night, [(20, 15, 61, 46)], color=(255, 0, 0))[..., 1].max() == 0


@pytest.mark.parametrize("level", [0, 128, 255])
def test_white_line_is_visible_on_any_background(level: int) -> None:
    ground = np.full((60, 80, 3), level, dtype=np.uint8)
    drawing = draw_boxes(ground, [(20, 15, 61, 46)])
    assert np.ptp(drawing[10:20, 40].astype(int)) > 180


def test_line_along_the_border_has_its_full_width() -> None:
    gray = np.full((720, 1080, 3), 128, dtype=np.uint8)
    inside = (draw_boxes(gray, [(100, 100, 400, 400)])[150, 90:110, 0] > 200).sum()
    edge = draw_boxes(gray, [(0, 0, 1080, 720)])
    assert inside >= 2
    assert (edge[150, :10, 0] > 200).sum() == inside
    assert (edge[150, -10:, 0] > 200).sum() == inside


def test_line_width_grows_with_the_photo() -> None:
    def thickness(side: int) -> int:
        ground = np.zeros((side, side, 3), dtype=np.uint8)
        quarter = side // 4
        drawing = draw_boxes(ground, [(quarter, quarter, 3 * quarter, 3 * quarter)])
        return int((drawing[side // 2, : side // 2, 0] > 128).sum())

    assert thickness(200) == 1
    assert 2 <= thickness(500) <= 3
    assert 5 <= thickness(1800) <= 7


def find_tag(drawing: np.ndarray, plain: np.ndarray) -> tuple[int, int, int, int]:
    """Return the box of the tag: the pixels that the labels changed."""
    rows, columns = np.nonzero((drawing != plain).any(2))
    return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1


@pytest.mark.parametrize("level", [0, 90, 128, 255])
@pytest.mark.parametrize(
    "box", [(60, 100, 160, 200), (60, 1, 160, 200), (0, 0, 300, 240), (280, 230, 299, 239), (-9, -9, 20, 30)], ids=str
)
def test_label_is_readable_on_any_background_and_inside_the_photo(box: tuple, level: int) -> None:
    ground = np.full((240, 300, 3), level, np.uint8)
    plain, drawn = draw_boxes(ground, [box]), draw_boxes(ground, [box], labels=["tabby cat 98%"])
    assert drawn.shape == plain.shape
    left, top, right, bottom = find_tag(drawn, plain)
    letters = drawn[top:bottom, left:right].astype(int)
    assert 11 <= bottom - top <= 20
    assert 60 <= right - left <= 120
    assert (letters.min(2) > 240).mean() > 0.3, "white paper"
    assert (letters.max(2) < 60).mean() > 0.1, "dark letters"
    assert abs(left - max(0, box[0])) <= 3 or right >= 298
    assert min(abs(bottom - box[1]), abs(top - box[3]), abs(top - max(0, box[1]))) <= 12


def test_long_label_is_shortened_before_its_score_and_tiny_photos_get_none() -> None:
    ground, box = np.full((100, 100, 3), 90, np.uint8), (10, 40, 60, 80)
    plain = draw_boxes(ground, [box])
    long = draw_boxes(ground, [box], labels=["Staffordshire bull terrier of great age 98%"])
    left, _, right, _ = find_tag(long, plain)
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


def test_found_boxes_and_contours_can_be_drawn(photo: np.ndarray, heatmap: np.ndarray) -> None:
    for drawing in (draw_boxes(photo, find_boxes(heatmap)), draw_contours(photo, find_contours(heatmap))):
        assert (drawing.shape, drawing.dtype) == (photo.shape, np.uint8)
        assert (drawing != photo).any()
    np.testing.assert_array_equal(draw_boxes(photo, []), photo)
    np.testing.assert_array_equal(draw_contours(photo, []), photo)


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
def test_invalid_boxes_contours_and_lines_raise(arguments: dict[str, object], message: str) -> None:
    draw = draw_contours if "contours" in arguments else draw_boxes
    with pytest.raises(OverlayError, match=message):
        draw(GOOD, **arguments)


# -------------------------------------------------------------------------------------------------- heat in a region


def test_the_share_of_the_heat_in_places_boxes_and_masks() -> None:
    heat = np.zeros((8, 12))
    heat[7, 0], heat[3, 5], heat[0, 11] = 0.5, 0.25, 0.25  # bottom left, in the middle, top right
    for region, share in {
        "bottom-left": 0.5,
        "Top-Right ": 0.25,
        "top-left": 0,
        "center": 0.25,
        "border": 0.75,
        "0%,50%,100%,100%": 0.5,
        "0,7,1,8": 0.5,
        (5, 0, 12, 4): 0.5,
    }.items():
        assert compute_heat_share(heat, region) == pytest.approx(share, abs=1e-12), region
    assert compute_heat_share(heat, heat > 0.3) == pytest.approx(0.5)
    assert np.isnan(compute_heat_share(np.zeros((8, 12)), "center"))


@pytest.mark.parametrize(
    ("region", "message"),
    [
        ("botom-left", r"'botom-left' is unknown. Did you mean 'bottom-left'"),
        ("0,0,1", "Give one of top-left"),
        ("0%,0%,10,10", "unknown"),
        ("0%,0%,101%,10%", "unknown"),
        ("5,5,5,9", "unknown"),
        ("0,nan,1,1", "unknown"),
        ("20,20,30,30", r"no pixel of the photo of 6 x 4"),
        (np.ones((4, 5), bool), r"boolean mask \(4, 6\)"),
        (np.ones((4, 6)), "got float64"),
    ],
)
def test_a_region_that_is_none_is_an_error(region: object, message: str) -> None:
    with pytest.raises(OverlayError, match=message):
        compute_heat_share(FLAT, region)


def test_a_box_in_percent_fits_photos_of_any_size() -> None:
    region = PhotoRegion.parse("50%, 0%, 100%, 25%")
    assert [region.to_mask(*size).sum() for size in [(8, 12), (4, 6)]] == [12, 3]
