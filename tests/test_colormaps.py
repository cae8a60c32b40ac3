"""Color maps: which are known, that colors run from cold to hot, and that what is hotter looks hotter."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

from camtool.errors import CamtoolError, ColormapError
from camtool.overlay import COLORMAPS, blend, colorize

# colorize


def test_colours_are_rgb_and_run_from_cold_to_hot() -> None:
    cold, hot = colorize(np.array([[0.0, 1.0]]), "jet")[0]
    assert cold.tolist() == [0, 0, 128]  # dark blue
    assert hot.tolist() == [128, 0, 0]  # dark red


@pytest.mark.parametrize("colormap", ["jet", "turbo", "hot", "inferno"])
def test_hot_is_more_red_than_blue(colormap: str) -> None:
    red, _, blue = colorize(np.array([[0.8]]), colormap)[0, 0].tolist()
    assert red > blue


def test_colour_steps_are_rounded_not_cut() -> None:
    heat = np.array([[0.0, 0.49 / 255, 0.51 / 255, 254.51 / 255, 1.0]])
    row = colorize(heat, "bone")[0]
    assert (row[0] == row[1]).all()
    assert (row[1] != row[2]).any()
    assert (row[3] == row[4]).all()


@pytest.mark.parametrize("colormap", COLORMAPS)
def test_every_listed_colormap_exists_and_tells_all_heats_apart_at_the_ends(colormap: str) -> None:
    picture = colorize(np.linspace(0, 1, 12).reshape(3, 4), colormap)
    assert (picture.shape, picture.dtype) == ((3, 4, 3), np.uint8)
    assert np.abs(picture[0, 0].astype(int) - picture[-1, -1]).max() > 60


def test_unknown_colormap_names_the_near_and_the_known() -> None:
    with pytest.raises(
        ColormapError, match=r"'virdis' is unknown\. Did you mean 'viridis'.*Choose one of: heat, turbo, .*jet"
    ) as caught:
        colorize(np.zeros((2, 2)), "virdis")
    assert isinstance(caught.value, CamtoolError)
    assert isinstance(caught.value, ValueError)


def test_gray_is_the_heat_itself() -> None:
    assert colorize(np.array([[0.0, 0.2, 1.0]]), "gray")[0].tolist() == [[0] * 3, [51] * 3, [255] * 3]


def test_color_maps_of_matplotlib_are_taken_as_objects_and_by_name() -> None:
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


def test_without_matplotlib_its_names_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ColormapError, match="'RdBu_r' is unknown"):
        colorize(np.zeros((2, 2)), "RdBu_r")


@pytest.mark.parametrize("colormap", [None, 3, dict, ["red"], np.sin, lambda heat: heat])
def test_what_is_no_color_map_is_told(colormap: object) -> None:
    with pytest.raises(
        ColormapError, match=r"colormap must be one of heat, turbo, .*or a color map of matplotlib; got"
    ):
        colorize(np.zeros((2, 2)), colormap)


# what is hotter looks hotter

_JUST_NOTICED = 0.02
"""The distance in OKLab from which on most see that two colors differ."""

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


def linear(colors: np.ndarray) -> np.ndarray:
    """Linear light of sRGB colors."""
    shares = np.asarray(colors, np.float64) / 255
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def oklab(light: np.ndarray) -> np.ndarray:
    """Björn Ottosson's OKLab of linear light ``(..., 3)``."""
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


def to_a_deuteranope(light: np.ndarray) -> np.ndarray:
    """What is left of linear light without green cones, by Machado et al. (2009)."""
    kept = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    return np.clip(light @ np.transpose(kept), 0, 1)


def falls(photo_colors: object, seen_by: Callable[[np.ndarray], np.ndarray] = np.asarray, **how: object) -> np.ndarray:
    """For each color of a photo, how far the perceived strength falls as the heat rises from 0 to 1.

    The strength is the distance in OKLab from the photo without heat.
    """
    flat = np.repeat(np.array(photo_colors, np.uint8).reshape(-1, 1, 3), 256, axis=1)
    drawn = blend(flat, np.tile(np.linspace(0, 1, 256), (len(flat), 1)), **how)
    strength = np.linalg.norm(oklab(seen_by(linear(drawn))) - oklab(seen_by(linear(flat))), axis=2)
    return (np.maximum.accumulate(strength, axis=1) - strength).max(axis=1)


@pytest.mark.parametrize("alpha", [None, 0.4, 0.8])
@pytest.mark.parametrize("name", PHOTO_COLORS)
def test_the_hotter_the_stronger_on_photos_of_any_kind(name: str, alpha: float | None) -> None:
    assert falls(PHOTO_COLORS[name], alpha=alpha) < _JUST_NOTICED


@pytest.mark.parametrize("name", ["black", "dark", "blue", "white", "mid gray"])
def test_the_hotter_the_stronger_without_green_cones(name: str) -> None:
    assert falls(PHOTO_COLORS[name], to_a_deuteranope) < _JUST_NOTICED


def test_the_hotter_the_stronger_for_nine_of_ten_colors() -> None:
    """The rest are orange and yellow: on them the colors of middle heat stand out, too."""
    steps = np.linspace(0, 255, 6)
    every = np.stack(np.meshgrid(steps, steps, steps), -1).reshape(-1, 3)
    own, turbos = falls(every), falls(every, colormap="turbo")
    assert (own < _JUST_NOTICED).mean() > 0.9
    assert own.max() < 0.1
    assert (turbos < _JUST_NOTICED).mean() < 0.1, "the measure tells good from bad"


def test_the_peak_is_the_most_vivid_color() -> None:
    red, green, blue = colorize(np.array([[1.0]]))[0, 0].tolist()
    assert (red, green == blue, green < 20) == (255, True, True)
    chroma = np.hypot(*oklab(linear(colorize(np.linspace(0, 1, 256)[None])[0]))[:, 1:].T)
    assert chroma.argmax() == 255
