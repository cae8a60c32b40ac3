"""Color maps: known names, colors from cold to hot, and that more heat looks stronger."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

from camtool.errors import CamtoolError, ColormapError
from camtool.rendering.colormaps import COLORMAPS
from camtool.rendering.overlay import blend, colorize

# colorize


def test_colors_are_rgb_and_go_from_blue_to_red() -> None:
    cold, hot = colorize(np.array([[0.0, 1.0]]), "jet")[0]
    assert cold.tolist() == [0, 0, 128]  # dark blue
    assert hot.tolist() == [128, 0, 0]  # dark red


@pytest.mark.parametrize("colormap", ["jet", "turbo", "hot", "inferno"])
def test_hot_color_is_more_red_than_blue(colormap: str) -> None:
    red, _, blue = colorize(np.array([[0.8]]), colormap)[0, 0].tolist()
    assert red > blue


def test_heats_are_rounded_to_the_nearest_color() -> None:
    heat = np.array([[0.0, 0.49 / 255, 0.51 / 255, 254.51 / 255, 1.0]])
    row = colorize(heat, "bone")[0]
    assert (row[0] == row[1]).all()
    assert (row[1] != row[2]).any()
    assert (row[3] == row[4]).all()


@pytest.mark.parametrize("colormap", COLORMAPS)
def test_listed_colormaps_exist_and_have_different_ends(colormap: str) -> None:
    drawing = colorize(np.linspace(0, 1, 12).reshape(3, 4), colormap)
    assert (drawing.shape, drawing.dtype) == ((3, 4, 3), np.uint8)
    assert np.abs(drawing[0, 0].astype(int) - drawing[-1, -1]).max() > 60


def test_unknown_colormap_error_lists_similar_and_known_names() -> None:
    with pytest.raises(
        ColormapError, match=r"'virdis' is unknown\. Did you mean 'viridis'.*Choose one of: heat, turbo, .*jet"
    ) as caught:
        colorize(np.zeros((2, 2)), "virdis")
    assert isinstance(caught.value, CamtoolError)
    assert isinstance(caught.value, ValueError)


def test_gray_equals_the_heat() -> None:
    assert colorize(np.array([[0.0, 0.2, 1.0]]), "gray")[0].tolist() == [[0] * 3, [51] * 3, [255] * 3]


def test_matplotlib_colormaps_are_accepted_as_objects_and_names() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    from matplotlib.colors import ListedColormap

    heat = np.linspace(0, 1, 12).reshape(3, 4)
    two = colorize(np.array([[0.1, 0.9]]), ListedColormap(["red", "#0000ff"]))
    assert two[0].tolist() == [[255, 0, 0], [0, 0, 255]]
    expected = np.rint(255 * matplotlib.colormaps["RdBu_r"](np.rint(255 * heat).astype(int))[..., :3])
    np.testing.assert_array_equal(colorize(heat, "RdBu_r"), expected)
    np.testing.assert_array_equal(colorize(heat, matplotlib.colormaps["RdBu_r"]), expected)
    assert (blend(np.zeros((3, 4, 3), np.uint8), heat, colormap="RdBu_r") > 0).any()
    with pytest.raises(ColormapError, match=r"'RdBu_q' is unknown\. Did you mean .*'RdBu_r'"):
        colorize(heat, "RdBu_q")


def test_matplotlib_names_are_unknown_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ColormapError, match="'RdBu_r' is unknown"):
        colorize(np.zeros((2, 2)), "RdBu_r")


@pytest.mark.parametrize("colormap", [None, 3, dict, ["red"], np.sin, lambda heat: heat])
def test_invalid_colormaps_raise(colormap: object) -> None:
    with pytest.raises(ColormapError, match=r"colormap must be one of heat, turbo, .*or a matplotlib color map; got"):
        colorize(np.zeros((2, 2)), colormap)


# what is hotter looks hotter

_JUST_NOTICED = 0.02
"""Distance in OKLab from which on most readers see that two colors differ."""

PHOTO_COLORS = {
    "black": (0, 0, 0),
    "dark": (25, 25, 30),
    "blue": (20, 40, 160),
    "sky": (80, 160, 220),
    "white": (255, 255, 255),
    "mid gray": (128, 128, 128),
    "red": (200, 30, 30),
    "green": (30, 140, 50),
    "purple": (100, 20, 120),
    "skin": (224, 172, 140),
}


def to_linear_light(colors: np.ndarray) -> np.ndarray:
    """Return the linear light of sRGB colors."""
    shares = np.asarray(colors, np.float64) / 255
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def to_oklab(light: np.ndarray) -> np.ndarray:
    """Return Björn Ottosson's OKLab of linear light ``(..., 3)``."""
    cones = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    axes = [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
    return np.cbrt(light @ np.transpose(cones)) @ np.transpose(axes)


def remove_green_cones(light: np.ndarray) -> np.ndarray:
    """Return linear light as seen without green cones, by Machado et al. (2009)."""
    kept = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    return np.clip(light @ np.transpose(kept), 0, 1)


def measure_falls(
    photo_colors: object, seen_by: Callable[[np.ndarray], np.ndarray] = np.asarray, **how: object
) -> np.ndarray:
    """Return how far the perceived strength falls as the heat rises from 0 to 1, for each color of a photo.

    The strength is the distance in OKLab from the photo without heat.
    """
    flat = np.repeat(np.array(photo_colors, np.uint8).reshape(-1, 1, 3), 256, axis=1)
    drawn = blend(flat, np.tile(np.linspace(0, 1, 256), (len(flat), 1)), **how)
    strength = np.linalg.norm(
        to_oklab(seen_by(to_linear_light(drawn))) - to_oklab(seen_by(to_linear_light(flat))), axis=2
    )
    return (np.maximum.accumulate(strength, axis=1) - strength).max(axis=1)


@pytest.mark.parametrize("alpha", [None, 0.4, 0.8])
@pytest.mark.parametrize("name", PHOTO_COLORS)
def test_perceived_strength_rises_with_heat_on_all_photos(name: str, alpha: float | None) -> None:
    assert measure_falls(PHOTO_COLORS[name], alpha=alpha) < _JUST_NOTICED


@pytest.mark.parametrize("name", ["black", "dark", "blue", "white", "mid gray"])
def test_perceived_strength_rises_with_heat_without_green_cones(name: str) -> None:
    assert measure_falls(PHOTO_COLORS[name], remove_green_cones) < _JUST_NOTICED


def test_perceived_strength_rises_with_heat_for_nine_of_ten_colors() -> None:
    """Exclude orange and yellow, on which the colors of medium heat are strong, too."""
    steps = np.linspace(0, 255, 6)
    every = np.stack(np.meshgrid(steps, steps, steps), -1).reshape(-1, 3)
    own, turbos = measure_falls(every), measure_falls(every, colormap="turbo")
    assert (own < _JUST_NOTICED).mean() > 0.9
    assert own.max() < 0.1
    assert (turbos < _JUST_NOTICED).mean() < 0.1, "the measure tells good from bad"


def test_hottest_color_is_the_most_vivid() -> None:
    red, green, blue = colorize(np.array([[1.0]]))[0, 0].tolist()
    assert (red, green == blue, green < 20) == (255, True, True)
    chroma = np.hypot(*to_oklab(to_linear_light(colorize(np.linspace(0, 1, 256)[None])[0]))[:, 1:].T)
    assert chroma.argmax() == 255
