"""Overlays: exact pixels on tiny arrays, and properties on any photo."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from camtool.errors import OverlayError
from camtool.rendering.overlay import blend, colorize, multiply
from camtool.rendering.regions import draw_boxes, draw_contours, find_boxes, find_contours
from tests.helpers.photos import unseen

IMAGES = Path(__file__).resolve().parents[3] / "shared" / "images"


CONSTANTS = [0.0, 0.4, 1.0]


def assert_rounded(pixels: np.ndarray, exact: np.ndarray) -> None:
    """Check that pixels are the nearest integers; of a half, either, as the library calculates in float32."""
    assert np.abs(pixels - exact).max() <= 0.5 + 1e-4


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.77, 1.0])
def test_full_heat_is_the_weighted_mean_of_photo_and_color(photo: np.ndarray, alpha: float) -> None:
    heat = np.ones((40, 60))
    heat[0, 0] = 0
    color = colorize(heat)
    exact = (1 - alpha) * photo + alpha * color
    exact[0, 0] = photo[0, 0]
    assert_rounded(blend(photo, heat, alpha=alpha), exact)


def test_opacity_follows_the_documented_formula() -> None:
    gray = np.full((1, 5, 3), 100, dtype=np.uint8)
    heat = np.array([[0.0, 0.04, 0.25, 0.49, 1.0]])
    opacity = 0.8 * np.array([0, 0.008, 0.125, 0.343, 1])[:, None]  # heat to the power of 1.5
    expected = np.rint((1 - opacity) * 100 + opacity * colorize(heat)[0])
    np.testing.assert_array_equal(blend(gray, heat, alpha=0.8)[0], expected)


@pytest.mark.parametrize("colormap", ["turbo", "viridis", "gray"])
def test_other_colormaps_have_full_opacity_from_a_heat_of_one_half(colormap: str) -> None:
    gray = np.full((1, 5, 3), 100, dtype=np.uint8)
    heat = np.array([[0.0, 0.125, 0.25, 0.5, 1.0]])
    # t = 0, 1/4, 1/2, 1, 1 and t²(3 - 2t) = 0, 5/32, 1/2, 1, 1, times alpha 0.8
    opacity = np.array([0, 0.125, 0.4, 0.8, 0.8])[:, None]
    expected = np.rint((1 - opacity) * 100 + opacity * colorize(heat, colormap)[0])
    np.testing.assert_array_equal(blend(gray, heat, alpha=0.8, colormap=colormap)[0], expected)
    np.testing.assert_array_equal(blend(gray, heat, colormap=colormap), blend(gray, heat, alpha=0.5, colormap=colormap))


def test_hand_computed_pixels() -> None:
    photo = np.array([[[200, 100, 40], [200, 100, 40]]], dtype=np.uint8)
    overlay = blend(photo, np.array([[0.0, 1.0]]), alpha=0.25, colormap="jet")
    assert overlay.tolist() == [[[200, 100, 40], [182, 75, 30]]]  # 150 + 32, 75 + 0, 30 + 0


def test_overlay_has_no_steps() -> None:
    heat = np.linspace(0, 1, 2001)[None]
    overlay = blend(np.full((1, 2001, 3), 255, dtype=np.uint8), heat, alpha=1.0).astype(int)
    assert np.abs(np.diff(overlay, axis=1)).max() <= 8


def test_bright_photos_do_not_overflow_and_dark_ones_are_not_brightened(heatmap: np.ndarray) -> None:
    color = colorize(heatmap)
    for value in (0, 255):
        flat = np.full((40, 60, 3), value, dtype=np.uint8)
        overlay = blend(flat, heatmap, alpha=0.6)
        assert (overlay <= np.maximum(flat, color)).all()
        assert (overlay >= np.minimum(flat, color)).all()


def test_half_as_bright_photo_gives_half_as_bright_overlay() -> None:
    """Check that overlays are not stretched to their own maximum."""
    heat = np.array([[0.0, 0.3, 1.0]])
    black, bright = np.zeros((1, 3, 3), dtype=np.uint8), np.full((1, 3, 3), 200, dtype=np.uint8)
    glow = blend(black, heat, alpha=0.5).astype(int)
    assert glow.max() <= 128
    opacity = np.array([0, 0.5 * 0.3**1.5, 0.5])[:, None]
    np.testing.assert_allclose(blend(bright, heat, alpha=0.5)[0] - glow[0], (1 - opacity) * np.full(3, 200), atol=1)


def test_alpha_zero_gives_the_photo(photo: np.ndarray, heatmap: np.ndarray) -> None:
    np.testing.assert_array_equal(blend(photo, heatmap, alpha=0), photo)


@pytest.mark.parametrize("value", CONSTANTS)
def test_constant_heatmap_gives_the_photo(photo: np.ndarray, value: float) -> None:
    noise = np.random.default_rng(1).uniform(-3e-7, 3e-7, (40, 60))
    np.testing.assert_array_equal(blend(photo, np.full((40, 60), value)), photo)
    np.testing.assert_array_equal(blend(photo, value + noise), photo)


def test_a_constant_part_of_a_larger_heatmap_keeps_its_color(photo: np.ndarray) -> None:
    heat = np.full(photo.shape[:2], 1.0)
    np.testing.assert_array_equal(blend(photo, heat), photo)
    whole = np.concatenate([heat, np.zeros_like(heat)])
    expected = blend(np.concatenate([photo, photo]), whole)[: len(photo)]
    np.testing.assert_array_equal(blend(photo, heat, is_part=True), expected)
    assert (expected != photo).any()


def test_float32_rounding_above_one_is_clipped(photo: np.ndarray) -> None:
    exact, off = np.zeros((40, 60)), np.zeros((40, 60))
    exact[3, 4], off[3, 4] = 1, 1 + 2e-7
    np.testing.assert_array_equal(blend(photo, off), blend(photo, exact))


def test_seen_everywhere_equals_no_mask(photo: np.ndarray, heatmap: np.ndarray) -> None:
    everywhere = np.ones((40, 60), dtype=bool)
    np.testing.assert_array_equal(blend(photo, heatmap, seen=everywhere), blend(photo, heatmap))
    np.testing.assert_array_equal(multiply(photo, heatmap, seen=everywhere), multiply(photo, heatmap))


def test_mask_does_not_change_seen_pixels(photo: np.ndarray, heatmap: np.ndarray, seen: np.ndarray) -> None:
    np.testing.assert_array_equal(blend(photo, heatmap, seen=seen)[seen], blend(photo, heatmap)[seen])


def test_unseen_pixels_are_pale_gray_without_heat(photo: np.ndarray, seen: np.ndarray) -> None:
    heat = np.zeros((40, 60))
    heat[:, 30:] = 1  # hot in the unseen strip on the right too
    unseen = blend(photo, heat, alpha=1, seen=seen)[~seen].astype(int)
    assert (unseen == unseen[:, :1]).all()
    veil = unseen[unseen[:, 0] != 184]
    assert len(veil) == 18 * 40  # 2 x 10 columns, less one on each side for the line
    assert veil.min() >= 61  # 0.55 * 112
    assert veil.max() <= 177  # 0.45 * 255 + 0.55 * 112
    np.testing.assert_array_equal(unseen, blend(photo, 1 - heat, alpha=0, seen=seen)[~seen])


def test_line_around_the_seen_part_is_outside(photo: np.ndarray, heatmap: np.ndarray, seen: np.ndarray) -> None:
    overlay = blend(photo, heatmap, alpha=0, seen=seen)
    assert (overlay[:, [9, 50]] == 184).all()
    np.testing.assert_array_equal(overlay[:, 10:50], photo[:, 10:50])


@pytest.mark.parametrize("value", CONSTANTS)
def test_heatmap_constant_over_the_seen_part_adds_no_color(photo: np.ndarray, seen: np.ndarray, value: float) -> None:
    overlay = blend(photo, np.where(seen, value, 0.0), seen=seen)
    np.testing.assert_array_equal(overlay[seen], photo[seen])


def test_photo_without_seen_pixels_is_gray(photo: np.ndarray, heatmap: np.ndarray) -> None:
    overlay = blend(photo, heatmap, seen=np.zeros((40, 60), dtype=bool))
    assert (overlay == overlay[..., :1]).all()
    assert (overlay != 184).all()


def blend_literally(photo: np.ndarray, heat: np.ndarray, alpha: float, colormap: str, seen: np.ndarray) -> np.ndarray:
    """Return the documented formula in float64, not rounded, for all pixels at once."""
    import cv2

    t = np.minimum(1, 2 * heat.astype(np.float64))[..., None]
    opacity = alpha * t**2 * (3 - 2 * t)
    mixed = (1 - opacity) * photo + opacity * colorize(heat, colormap)
    side = 1 + 2 * max(1, round(min(photo.shape[:2]) / 180) // 2)
    gray = np.rint(0.45 * cv2.cvtColor(photo, cv2.COLOR_RGB2GRAY) + 0.55 * 112)
    line = cv2.dilate(seen.astype(np.uint8), np.ones((side, side))) > 0
    return np.where(seen[..., None], mixed, np.where(line, 184, gray)[..., None])


@pytest.mark.parametrize("colormap", ["turbo", "viridis", "bone"])
@pytest.mark.parametrize("size", [(900, 700), (3, 40_000), (7, 5)])
def test_drawing_in_bands_equals_drawing_at_once(size: tuple[int, int], colormap: str) -> None:
    rng = np.random.default_rng(0)
    photo, heat = rng.integers(0, 256, (*size, 3), dtype=np.uint8), rng.random(size, dtype=np.float32)
    y, x = np.mgrid[: size[0], : size[1]]
    seen = np.hypot(y / size[0] - 0.5, x / size[1] - 0.5) < 0.4
    expected = blend_literally(photo, heat, 0.6, colormap, seen)
    drawn = blend(photo, heat, alpha=0.6, colormap=colormap, seen=seen)
    assert_rounded(drawn, expected)
    exact = heat.astype(np.float64)
    assert_rounded(multiply(photo, heat, seen=seen), photo * (exact * seen)[..., None])
    colors, levels = colorize(np.arange(256)[None] / 255, colormap)[0], 255 * exact
    nearest = colors[np.rint(levels - 1e-4).astype(int)], colors[np.rint(levels + 1e-4).astype(int)]
    drawn = colorize(heat, colormap)
    assert ((drawn == nearest[0]) | (drawn == nearest[1])).all()


def measure_added_memory(draw: Callable[[], np.ndarray]) -> int:
    """Return the largest number of bytes that NumPy allocates while drawing, including the result."""
    tracemalloc.start()
    try:
        draw()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["blend", "multiply", "colorize"])
def test_large_photos_need_little_additional_memory(name: str) -> None:
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
    assert measure_added_memory(draws[name]) <= 1.3 * photo.nbytes


def test_multiply_rounds_the_product() -> None:
    photo = np.array([[[255, 101, 3], [255, 101, 3], [255, 101, 3]]], dtype=np.uint8)
    product = multiply(photo, np.array([[0.0, 0.25, 1.0]]))
    assert product.tolist() == [[[0, 0, 0], [64, 25, 1], [255, 101, 3]]]


def test_multiply_is_black_in_the_unseen_part(photo: np.ndarray, heatmap: np.ndarray, seen: np.ndarray) -> None:
    product = multiply(photo, heatmap, seen=seen)
    assert (product[~seen] == 0).all()
    assert (product <= photo).all()
    np.testing.assert_array_equal(product[seen], multiply(photo, heatmap)[seen])


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (2, 2)])
def test_tiny_photos_are_accepted(size: tuple[int, int]) -> None:
    photo = np.full((*size, 3), 90, dtype=np.uint8)
    heat = np.linspace(0, 1, photo[..., 0].size).reshape(size)
    drawings = [
        blend(photo, heat, seen=heat > 0.4),
        multiply(photo, heat),
        draw_boxes(photo, find_boxes(heat)),
        draw_contours(photo, find_contours(heat)),
    ]
    assert [drawing.shape for drawing in drawings] == [photo.shape] * 4


def test_arguments_are_neither_changed_nor_returned(photo: np.ndarray, heatmap: np.ndarray, seen: np.ndarray) -> None:
    for array in (photo, heatmap, seen):
        array.flags.writeable = False
    drawings = [
        blend(photo, heatmap, alpha=0, seen=seen),
        blend(photo, np.zeros((40, 60))),
        multiply(photo, np.ones((40, 60))),
        draw_boxes(photo, []),
        draw_contours(photo, find_contours(heatmap)),
    ]
    for drawing in drawings:
        assert drawing.dtype == np.uint8
        assert drawing.flags.writeable
        assert not np.shares_memory(drawing, photo)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_any_float_type_and_strides_are_accepted(photo: np.ndarray, dtype: type) -> None:
    heat = np.zeros((40, 60), dtype=dtype)
    heat[5:20, 10:30] = 0.5
    seen = np.ones((40, 60), dtype=bool)
    seen[:, ::7] = False
    for flipped in (np.s_[:, ::-1], np.s_[::-1]):
        whole = blend(photo, heat, seen=seen)[flipped]
        np.testing.assert_array_equal(blend(photo[flipped], heat[flipped], seen=seen[flipped]), whole)
    assert len(find_boxes(heat[:, ::-1])) == 1
    assert draw_boxes(photo[::2, ::-1], find_boxes(heat[::2])).shape == (20, 60, 3)


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
        (GOOD, FLAT + 1.01, None, "heatmap must lie in .*1.01.*normalize"),
        (GOOD, FLAT - 0.01, None, "heatmap must lie in .*-0.01"),
        (GOOD, FLAT, FLAT, r"seen must be a \(4, 6\) bool array.*got float64 \(4, 6\)"),
        (GOOD, FLAT, FLAT[1:] > 0, r"seen must be .*got bool \(3, 6\)"),
    ],
)
def test_invalid_photo_heatmap_and_mask_raise(
    layer: object, photo: object, heatmap: object, seen: object, message: str
) -> None:
    with pytest.raises(OverlayError, match=message):
        layer(photo, heatmap, seen=seen)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "0.5", 1 + 0j])
def test_alpha_and_threshold_out_of_range_raise(value: object) -> None:
    with pytest.raises(OverlayError, match="alpha must be a finite number at least 0 and at most 1, or None, got"):
        blend(GOOD, FLAT, alpha=value)
    for find in (find_boxes, find_contours):
        with pytest.raises(
            OverlayError, match="threshold must be a finite number at least 0 and at most 1, or None, got"
        ):
            find(FLAT, threshold=value)


def test_importing_the_module_loads_neither_opencv_nor_skimage() -> None:
    code = "import sys, camtool.rendering.overlay; print(*{'cv2', 'skimage'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("name", ["n04332243_strainer.jpg", "n02114712_red_wolf.jpg", "n04554684_washer.jpg"])
def test_cold_parts_of_real_photos_are_unchanged(name: str) -> None:
    """Test a bright and wide photo, a dark and tall one, and a black-and-white one."""
    if not (IMAGES / name).exists():
        pytest.skip("the sample photos are not here")
    from PIL import Image

    assert_cold_parts_are_unchanged(np.asarray(Image.open(IMAGES / name).convert("RGB")))


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
def test_cold_parts_of_scenes_are_unchanged(photo: np.ndarray) -> None:
    assert_cold_parts_are_unchanged(photo)


def assert_cold_parts_are_unchanged(photo: np.ndarray) -> None:
    height, width, _ = photo.shape
    y, x = np.mgrid[:height, :width]
    heat = np.clip(1 - np.hypot(y - height / 2, x - width / 2) / (height / 4), 0, 1)
    overlay = blend(photo, heat)
    np.testing.assert_array_equal(overlay[heat == 0], photo[heat == 0])
    assert (overlay[heat > 0.5] != photo[heat > 0.5]).any(axis=-1).mean() > 0.99
