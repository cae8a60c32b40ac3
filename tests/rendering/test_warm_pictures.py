"""Photos of the colors of heat: they are gray below the heat, and all others keep their colors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.warm_pictures import LEAST, compute_faint_heat, draw_warm_pictures, make_gray, measure_difference
from camtool.geometry.crop_and_resize import Geometry
from camtool.rendering.colormaps import FAINT_HEAT
from camtool.rendering.overlay import blend, blend_batch, needs_gray
from camtool.rendering.views import Photo
from tests.helpers.photos import unseen

DRAWN = {name.removeprefix("drawn "): pixels for name, pixels in draw_warm_pictures()}
WARM = {name: DRAWN[name][::3, ::3].copy() for name in ("fur", "sunset", "fire", "robin", "forest")}


def draw_hill(width: float, side: int = 120) -> np.ndarray:
    """Return a heatmap with a single hill, from 0 to 1."""
    y, x = np.mgrid[:side, :side]
    hill = np.exp(-((y - 60) ** 2 + (x - 50) ** 2) / (2 * width**2))
    return ((hill - hill.min()) / np.ptp(hill)).astype(np.float32)


HILL = draw_hill(30)


@pytest.mark.parametrize("name", ["fur", "sunset", "robin"])
def test_heat_on_its_own_colors_stands_out_from_the_gray_photo(name: str) -> None:
    photo = WARM[name]
    assert measure_difference(photo, HILL, blend(photo, HILL, is_part=True)) < LEAST
    overlay, gray = blend(photo, HILL), make_gray(photo)
    np.testing.assert_array_equal(overlay[HILL == 0], gray[HILL == 0])
    np.testing.assert_array_equal(overlay, blend(gray, HILL))
    assert measure_difference(gray, HILL, overlay) >= LEAST


def test_other_photos_keep_their_colors() -> None:
    for seed in range(4):
        photo = unseen(seed, size=120).image
        overlay = blend(photo, HILL)
        np.testing.assert_array_equal(overlay, blend(photo, HILL, is_part=True))
        assert measure_difference(photo, HILL, overlay) >= LEAST


def test_photos_in_color_differ_from_heat_of_any_width() -> None:
    random = np.random.default_rng(0)
    grays = 0
    for width in (20, 30, 45):
        heat = draw_hill(width)[::3, ::3]
        for warm in WARM.values():
            tint, share = random.integers(0, 256, 3), random.random()
            photo = np.rint(warm[::3, ::3] * share + tint * (1 - share)).astype(np.uint8)
            grays += needs_gray(photo, heat)
            if not needs_gray(photo, heat):
                assert measure_difference(photo, heat, blend(photo, heat)) >= LEAST
    assert 0 < grays < 3 * len(WARM)


def test_the_opacity_does_not_decide() -> None:
    """A slider of the opacity moves over one photo, and the photo below the layers of a card is that of the overlay."""
    np.testing.assert_array_equal(blend(WARM["fur"], HILL, alpha=0), make_gray(WARM["fur"]))


@pytest.mark.parametrize(
    ("heat", "options"),
    [
        (HILL, {"colormap": "turbo"}),
        (HILL, {"is_part": True}),
        (np.full_like(HILL, 0.9), {}),
        (HILL * np.float32(0.3), {}),
    ],
    ids=["other color map", "part", "constant", "weak"],
)
def test_photos_stay_in_color(heat: np.ndarray, options: dict[str, object]) -> None:
    overlay = blend(WARM["fur"], heat, **options)
    np.testing.assert_array_equal(overlay[0, -1], WARM["fur"][0, -1])


def test_batches_and_views_decide_as_single_photos_do() -> None:
    photos = np.stack([*WARM.values(), unseen(0, size=120).image])
    heat = np.stack([draw_hill(15 + 5 * number) for number in range(len(photos))])
    drawn = blend_batch(torch.from_numpy(photos).movedim(-1, 1), torch.from_numpy(heat)).movedim(1, -1).numpy()
    singles = [blend(photo, each) for photo, each in zip(photos, heat, strict=True)]
    assert np.abs(drawn.astype(int) - singles).max() <= 1
    views = [
        Photo(photo, Geometry.whole(120, 120)).draw_overlay(each) for photo, each in zip(photos, heat, strict=True)
    ]
    np.testing.assert_array_equal(views, singles)
    assert len({needs_gray(photo, each) for photo, each in zip(photos, heat, strict=True)}) == 2


def test_the_stored_table_is_that_of_the_colors() -> None:
    assert compute_faint_heat() == FAINT_HEAT, "run: python -m benchmarks warm_pictures --table"
