"""Views: how photos, signals, volumes and clips are drawn, with and without heatmaps."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from camtool.errors import CamtoolError, ColormapError, OverlayError
from camtool.geometry.crop_and_resize import Geometry
from camtool.rendering import colormaps, overlay, regions, signal_plots, text_drawing
from camtool.rendering.views import Clip, Photo, Signal, Volume

PAPER, PANEL = (255, 255, 255), (247, 248, 250)


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def photo(height: int = 40, width: int = 60) -> Photo:
    return Photo(noise(height, width, 3), Geometry.whole(height, width))


def signal(channels: int = 2, length: int = 300) -> Signal:
    return Signal(np.random.default_rng(0).standard_normal((channels, length)).astype(np.float32))


def volume(depth: int = 20, height: int = 24, width: int = 16) -> Volume:
    return Volume(noise(depth, height, width, 3))


def clip(frames: int = 8, height: int = 24, width: int = 32) -> Clip:
    return Clip(noise(frames, height, width, 3))


VIEWS = {"photo": photo, "signal": signal, "volume": volume, "clip": clip}
STACKS = {"volume": volume, "clip": clip}


@pytest.fixture(params=VIEWS.values(), ids=VIEWS)
def view(request):
    return request.param()


@pytest.fixture(params=STACKS.values(), ids=STACKS)
def stack(request):
    return request.param()


def hot_at(size: tuple[int, ...], *place: int) -> np.ndarray:
    heat = np.zeros(size, np.float32)
    heat[place] = 1
    return heat


def test_signs_have_their_colors_and_zero_has_none() -> None:
    """With one cell for each pixel; the opacity is 0.7 at the largest magnitude, and half of that at half of it."""
    raw = np.zeros((40, 60), np.float32)
    raw[10, 20], raw[30, 40], raw[30, 10] = 2.0, -4.0, 1e-6
    view = Photo(np.full((40, 60, 3), 100, np.uint8), Geometry.whole(40, 60))
    pixels = view.draw_signs(raw).astype(float)
    np.testing.assert_allclose(pixels[30, 40], 0.3 * 100 + 0.7 * np.array([16, 80, 255]), atol=1)
    np.testing.assert_allclose(pixels[10, 20], 0.65 * 100 + 0.35 * np.array([255, 16, 16]), atol=1)
    assert (pixels == 100).all(2).sum() == 40 * 60 - 2
    np.testing.assert_array_equal(view.draw_signs(raw, alpha=0), view.photo)
    for empty in (np.zeros_like(raw), np.full_like(raw, np.nan)):
        np.testing.assert_array_equal(view.draw_signs(empty), view.photo)


def test_signs_are_those_of_the_values_and_not_of_their_range() -> None:
    """A map of one sign has one color, also if it is constant; what the model did not see is gray."""
    view = Photo(np.full((40, 60, 3), 128, np.uint8), Geometry.whole(40, 60).center_crop(40))
    low, high = (view.draw_signs(np.full((4, 4), value, np.float32)).astype(int) for value in (-3, 3))
    assert (low[10:30, 20:40, 2] > low[10:30, 20:40, 0] + 50).all()
    assert (high[10:30, 20:40, 0] > high[10:30, 20:40, 2] + 50).all()
    np.testing.assert_array_equal(low[:, :9], np.full((40, 9, 3), overlay.UNSEEN_GRAY))
    np.testing.assert_array_equal(low[:, :9], high[:, :9])


@pytest.mark.parametrize("make", [signal, volume, clip])
def test_only_photos_have_signed_overlays(make) -> None:
    with pytest.raises(CamtoolError, match="has no signed overlay"):
        make().draw_signs(np.zeros((2, 2), np.float32))


def test_drawings_are_rgb_and_the_heatmap_has_the_inputs_shape(view) -> None:
    raw = np.random.default_rng(1).standard_normal([3] * len(view.size)).astype(np.float32)
    heat = view.to_heatmap(raw)
    assert (heat.shape, heat.dtype) == (view.size, np.float32)
    assert (heat.min(), heat.max()) == (0, 1)
    assert view.seen.shape == view.size
    assert view.seen.all()
    for drawing in (view.draw_overlay(heat), view.draw_masked(heat)):
        assert drawing.dtype == np.uint8
        assert drawing.ndim == 3
        assert drawing.shape[2] == 3


def test_maps_are_linear_between_the_centers_of_their_cells(view) -> None:
    for axis, length in enumerate(view.size):
        raw = np.zeros([1] * axis + [2] + [1] * (len(view.size) - axis - 1), np.float32)
        raw.flat[1] = 1
        along = np.moveaxis(view.to_heatmap(raw), axis, 0).reshape(length, -1)
        # Two cells: constant beyond their centers, which lie at a quarter and at three quarters.
        expected = np.clip(((np.arange(length) + 0.5) / length - 0.25) / 0.5, 0, 1)
        expected = (expected - expected.min()) / np.ptp(expected)
        assert np.allclose(along, expected[:, None], atol=1e-6)


def test_map_of_the_inputs_size_is_unchanged(view) -> None:
    raw = np.random.default_rng(1).random(view.size, np.float32)
    raw.flat[0], raw.flat[1] = 0, 1
    assert np.allclose(view.to_heatmap(raw), raw, atol=1e-6)


def test_map_of_three_axes_equals_torchs_interpolation() -> None:
    raw = np.random.default_rng(1).random((2, 3, 4)).astype(np.float32)
    expected = torch.nn.functional.interpolate(torch.from_numpy(raw)[None, None], (20, 24, 16), mode="trilinear")
    expected = (expected - expected.amin()) / (expected.amax() - expected.amin())
    assert np.allclose(volume().to_heatmap(raw), expected[0, 0].numpy(), atol=1e-5)


def test_constant_map_adds_no_color(view) -> None:
    nothing = np.zeros(view.size, np.float32)
    assert not view.to_heatmap(np.full([2] * len(view.size), 3, np.float32)).any()
    shown = view.draw_overlay(nothing, alpha=1)
    bare = view.draw_overlay(nothing, alpha=0)
    assert np.array_equal(shown, bare)


def test_alpha_zero_draws_no_heat_on_the_input(view) -> None:
    heat = hot_at(view.size, *[length // 2 for length in view.size])
    plain, tinted = (view.draw_overlay(heat, alpha=alpha).astype(int) for alpha in (0, 0.8))
    assert not np.array_equal(plain, tinted)


def test_unknown_colormap_raises(view) -> None:
    with pytest.raises(ColormapError, match="'turbo'"):
        view.draw_overlay(np.zeros(view.size, np.float32), colormap="turbow")


@pytest.mark.parametrize("alpha", [-0.1, 1.5])
def test_alpha_out_of_range_raises(view, alpha) -> None:
    with pytest.raises(
        OverlayError, match=rf"alpha must be a finite number at least 0 and at most 1, or None, got {alpha}"
    ):
        view.draw_overlay(np.zeros(view.size, np.float32), alpha=alpha)


@pytest.mark.parametrize("name", [name for name in VIEWS if name != "photo"])
def test_views_of_other_inputs_raise_for_methods_of_photos(name) -> None:
    view = VIEWS[name]()
    heat = np.zeros(view.size, np.float32)
    assert view.geometry is None
    for what, ask in (
        ("boxes", lambda: view.find_boxes(heat)),
        ("contours", lambda: view.find_contours(heat)),
        ("photo", lambda: view.photo),
        ("layers of a detector", lambda: view.for_detector(None)),
    ):
        with pytest.raises(CamtoolError, match=f"a {name} has no {what}"):
            ask()


@pytest.mark.parametrize("name", ["photo", "signal"])
def test_views_without_frames_raise(name) -> None:
    view = VIEWS[name]()
    with pytest.raises(CamtoolError, match=f"a {name} has no frames"):
        view.draw_frames(np.zeros(view.size, np.float32))


def test_photo_equals_the_functions_of_rendering() -> None:
    view, heat = photo(), np.random.default_rng(1).random((40, 60), np.float32)
    blended = overlay.blend(view.photo, heat, alpha=0.3, seen=view.seen)
    assert np.array_equal(view.draw_overlay(heat, alpha=0.3), blended)
    assert np.array_equal(view.draw_masked(heat), overlay.multiply(view.photo, heat, seen=view.seen))
    assert view.find_boxes(heat, 0.5) == regions.find_boxes(heat, threshold=0.5)
    assert len(view.find_contours(heat, 0.5)) == len(regions.find_contours(heat, threshold=0.5))


@pytest.mark.parametrize("margin", [0, 100])
def test_overlay_of_a_large_photo_needs_at_most_three_times_its_memory(margin: int) -> None:
    height, width = 1500, 2000
    geometry = Geometry.whole(height, width)
    box = (0.0, float(margin), float(height), float(width - margin))
    view = Photo(np.full((height, width, 3), 90, np.uint8), replace(geometry, box=box))
    raw = np.random.default_rng(0).random((7, 7)).astype(np.float32)
    photo(9, 9).draw_overlay(photo(9, 9).to_heatmap(raw))  # what is imported on the way
    tracemalloc.start()
    try:
        heatmap = view.to_heatmap(raw)
        after, peak = tracemalloc.get_traced_memory()
        view.draw_overlay(heatmap)
        most = max(peak, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert after < heatmap.nbytes, "the map is torch's, which the count does not see"
    assert most + heatmap.nbytes <= 3 * view.photo.nbytes


def test_unseen_part_of_a_photo_is_gray() -> None:
    cut = Photo(noise(40, 60, 3), Geometry.whole(40, 60).center_crop(40))
    assert cut.seen.sum() == 40 * 40
    assert not cut.to_heatmap(np.eye(2, dtype=np.float32))[~cut.seen].any()


def find_different_columns(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.flatnonzero((one != other).any((0, 2)))


def test_signal_is_colored_where_the_heat_is() -> None:
    view = signal(1, 100)
    heat = np.zeros(100, np.float32)
    heat[60:70] = 1
    plain, tinted = view.draw_overlay(heat, alpha=0), view.draw_overlay(heat, alpha=0.5)
    left, right = 96, 1060 - 24  # where the panel begins and ends
    changed = (find_different_columns(plain, tinted) - left) / (right - left) * 100
    assert 59 < changed.min() < 60.5
    assert 69.5 < changed.max() < 71


def collect_texts(view: Signal, draw: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return all texts on a page."""
    words: set[str] = set()

    def note(text: str) -> str:
        words.add(text)
        return text

    write, upright = text_drawing.draw_text, text_drawing.draw_vertical_text
    monkeypatch.setattr(
        text_drawing, "draw_text", lambda page, at, text, *more, **by: write(page, at, note(text), *more, **by)
    )
    monkeypatch.setattr(
        text_drawing, "draw_vertical_text", lambda page, at, text, *more: upright(page, at, note(text), *more)
    )
    getattr(view, draw)(hot_at(view.size, 3))
    return words


@pytest.mark.parametrize(
    ("channels", "title"), [(1, "value"), (2, "channel, value"), (8, "channel, value"), (12, "channel")]
)
def test_axes_of_a_signal_have_titles(channels: int, title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"position (time step)", title, "heat", "low", "high"} <= collect_texts(
        signal(channels), "draw_overlay", monkeypatch
    )
    masked = collect_texts(signal(channels), "draw_masked", monkeypatch)
    assert {"position (time step)", title} <= masked
    assert "heat" not in masked, "there is none to be seen"


@pytest.mark.parametrize("channels", [1, 2, 20])
def test_titles_are_on_the_page_and_the_key_goes_from_cold_to_hot(channels: int) -> None:
    view = signal(channels)
    page = view.draw_overlay(hot_at(view.size, 3)).astype(int)
    ink = (page < 160).all(2)
    assert ink[:, :22].any(), "the title on the left"
    assert not ink[[0, -1]].any(), "nothing is cut off"
    assert not ink[:, 0].any()
    assert ink[-30:, 96 + 400 : 96 + 540].any(), "the title below"
    bar = page[-30:, -24 - 44 - 120 : -24 - 44]
    rows = [row for row in bar if (row[0] == colormaps.get_palette("heat")[0]).all()]
    assert len(rows) == 10
    assert (rows[0][-1] == colormaps.get_palette("heat")[255]).all()


def test_line_passes_through_the_values() -> None:
    step = np.repeat([0.0, 1.0], 50)[None].astype(np.float32)
    drawn = Signal(step).draw_masked(np.ones(100, np.float32)).astype(int)
    dark = (drawn[:, 96:-24] < 100).all(2)
    heights = [float(np.flatnonzero(dark[: 24 + 260, column]).mean()) for column in (100, 800)]
    assert heights[0] > heights[1] + 150  # the first half lies at the bottom, the second at the top


def test_masked_signal_is_empty_where_the_heat_is_zero() -> None:
    heat = np.repeat([0.0, 1.0], 50).astype(np.float32)
    drawn = signal(1, 100).draw_masked(heat)[26:200, 96:-24]
    zero_line = (drawn == (222, 225, 230)).all(2)
    left = drawn[:, : drawn.shape[1] // 2 - 10][~zero_line[:, : drawn.shape[1] // 2 - 10]]
    assert (left == PANEL).all()
    assert (drawn[:, drawn.shape[1] // 2 + 10 :] < 60).any()


def test_each_channel_has_a_panel_up_to_sixteen() -> None:
    def panels(channels: int) -> int:
        column = signal(channels, 50).draw_overlay(np.zeros(50, np.float32), alpha=0)[:, 1000]
        inside = ~(column == PAPER).all(1)
        return int((np.diff(inside.astype(int)) == 1).sum())  # with the band of the heatmap

    assert [panels(count) for count in (1, 3, 16, 40)] == [2, 4, 17, 17]


@pytest.mark.parametrize("length", [1, 2, 7, 900, 100_000])
def test_signals_of_any_length_are_drawn(length) -> None:
    view = signal(1, length)
    heat = view.to_heatmap(np.arange(min(length, 5), dtype=np.float32))
    assert heat.shape == (length,)
    assert view.draw_overlay(heat).shape == (376, 1060, 3)


def test_spike_and_its_heat_are_visible_in_a_long_signal() -> None:
    values, heat = np.zeros((1, 200_000), np.float32), np.zeros(200_000, np.float32)
    values[0, 123_456], heat[123_456] = 1, 1
    at = 96 + round(123_456 / 200_000 * (1060 - 96 - 24))
    drawn = Signal(values).draw_overlay(heat).astype(int)
    dark = (drawn[24:90, at - 2 : at + 3] < 160).any()
    assert dark
    band = drawn[24 + 260 + 10 + 3, at - 2 : at + 3]
    assert (band == colormaps.get_palette("heat")[255].astype(int)).all(1).any()


def test_values_that_are_not_finite_are_drawn_as_zero() -> None:
    values = np.array([[0, 1, np.nan, np.inf, 2, -np.inf]], np.float32)
    plain = np.nan_to_num(values, posinf=0, neginf=0)
    heat = np.linspace(0, 1, 6, dtype=np.float32)
    assert np.array_equal(Signal(values).draw_overlay(heat), Signal(plain).draw_overlay(heat))


def test_constant_signal_is_a_line_in_the_middle() -> None:
    drawn = Signal(np.full((1, 50), 7, np.float32)).draw_masked(np.ones(50, np.float32))
    dark = np.flatnonzero((drawn[: 24 + 260, 500] < 100).all(1))
    assert 24 + 120 < dark.mean() < 24 + 140


def test_each_frame_has_its_heatmap(stack) -> None:
    heat = hot_at(stack.size, 5, 3, 4)
    frames = stack.draw_frames(heat, alpha=0.5)
    assert frames.shape == stack.images.shape
    changed = np.argwhere((frames != stack.images).any(3))
    assert changed.tolist() == [[5, 3, 4]]


def test_equal_heat_has_equal_color_in_all_frames() -> None:
    """Use a map that varies over time only: it is constant in each frame, and hot in some."""
    gray = Clip(np.full((4, 10, 10, 3), 100, np.uint8))
    heat = np.broadcast_to(np.array([0, 0.3, 0.6, 1], np.float32)[:, None, None], (4, 10, 10))
    frames = gray.draw_frames(heat, alpha=1, colormap="turbo")
    assert (frames[0] == 100).all()
    assert [tuple(frame[0, 0]) for frame in frames[2:]] == [
        tuple(colormaps.get_palette("turbo")[round(255 * value)]) for value in (0.6, 1)
    ]


def count_tiles(page: np.ndarray) -> int:
    """Return the number of bars on a page: each run of the bar's color in a row is one."""
    is_bar = (page == (222, 225, 230)).all(2)
    runs = (np.diff(np.pad(is_bar, ((0, 0), (1, 0))).astype(int), axis=1) == 1) & (
        np.diff(np.pad(is_bar, ((1, 0), (0, 0))).astype(int), axis=0) == 1
    )
    return int(runs.sum())


@pytest.mark.parametrize(
    ("view", "tiles"), [(clip(1), 1), (clip(3), 3), (clip(40), 16), (volume(1), 2), (volume(5), 6), (volume(50), 11)]
)
def test_contact_sheet_has_a_maximum_number_of_images(view, tiles) -> None:
    assert count_tiles(view.draw_overlay(np.zeros(view.size, np.float32))) == tiles


def test_contact_sheet_shows_the_middles_of_equal_parts() -> None:
    tiles = clip(48)._build_tiles(np.zeros((48, 24, 32), np.float32))
    assert [tile.caption for tile in tiles] == [f"frame {i}" for i in range(1, 48, 3)]


def test_maximum_projection_shows_values_of_slices_not_on_the_sheet() -> None:
    drawings, heat = np.zeros((50, 20, 20, 3), np.uint8), np.zeros((50, 20, 20), np.float32)
    drawings[33, 4:8, 4:8], heat[33, 4:8, 4:8] = 255, 1
    view = Volume(drawings)
    first, *others = view._build_tiles(heat)
    assert first.is_large
    assert first.image.max() == 255
    assert first.heatmap.max() == 1
    assert max(tile.heatmap.max() for tile in others) == 0
    page = view.draw_overlay(heat)
    assert tuple(colormaps.get_palette("heat")[255]) in {tuple(pixel) for pixel in page.reshape(-1, 3)}  # its bar


def test_bar_is_as_long_as_the_image_is_hot() -> None:
    heat = np.zeros((1, 24, 32), np.float32)
    heat[0, 0, 0] = 0.5
    page = clip(1).draw_overlay(heat)
    rule = np.argwhere((page == (222, 225, 230)).all(2))
    color = np.argwhere((page == colormaps.get_palette("heat")[128]).all(2))
    width = rule[:, 1].max() - color[:, 1].min() + 1
    assert abs(np.ptp(color[:, 1]) + 1 - width / 2) <= 1


def test_masked_contact_sheet_is_black_where_the_heat_is_zero() -> None:
    white = Clip(np.full((2, 24, 32, 3), 255, np.uint8))
    page = white.draw_masked(np.stack([np.zeros((24, 32)), np.ones((24, 32))]).astype(np.float32))
    first, second = page[30:100, 30:200], page[30:100, 30 + 234 : 200 + 234]
    assert (first == 0).all()
    assert (second == 255).all()


def test_drawing_does_not_change_the_input(view) -> None:
    heat = np.random.default_rng(1).random(view.size, np.float32)
    kept = heat.copy()
    view.draw_overlay(heat)
    view.draw_masked(heat)
    assert np.array_equal(heat, kept)


@pytest.mark.parametrize(("length", "step"), [(1, 1), (8, 1), (9, 2), (100, 20), (1200, 200), (5000, 1000)])
def test_ticks_are_round_numbers(length, step) -> None:
    assert signal_plots.choose_tick_step(length / 8) == step
    assert length / step <= 8
