"""Views: what a person sees of a photo, a signal, a volume and a clip, and where a map lies on it."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from camtool import overlay, plots
from camtool.errors import CamtoolError, ColormapError, OverlayError
from camtool.geometry import Geometry
from camtool.views import Clip, Photo, Signal, Volume

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


# ----------------------------------------------------------------------------------------------------- all of them


def test_what_is_drawn_is_a_picture_and_the_heatmap_has_the_inputs_shape(view) -> None:
    raw = np.random.default_rng(1).standard_normal([3] * len(view.size)).astype(np.float32)
    heat = view.heatmap(raw)
    assert (heat.shape, heat.dtype) == (view.size, np.float32)
    assert (heat.min(), heat.max()) == (0, 1)
    assert view.seen.shape == view.size
    assert view.seen.all()
    for picture in (view.overlay(heat), view.masked(heat)):
        assert picture.dtype == np.uint8
        assert picture.ndim == 3
        assert picture.shape[2] == 3


def test_a_map_lies_where_its_cells_are_linear_between_their_centres(view) -> None:
    for axis, length in enumerate(view.size):
        raw = np.zeros([1] * axis + [2] + [1] * (len(view.size) - axis - 1), np.float32)
        raw.flat[1] = 1
        along = np.moveaxis(view.heatmap(raw), axis, 0).reshape(length, -1)
        # Two cells: constant beyond their centres, which lie at a quarter and at three quarters.
        expected = np.clip(((np.arange(length) + 0.5) / length - 0.25) / 0.5, 0, 1)
        expected = (expected - expected.min()) / np.ptp(expected)
        assert np.allclose(along, expected[:, None], atol=1e-6)


def test_a_map_of_the_inputs_own_size_is_itself(view) -> None:
    raw = np.random.default_rng(1).random(view.size, np.float32)
    raw.flat[0], raw.flat[1] = 0, 1
    assert np.allclose(view.heatmap(raw), raw, atol=1e-6)


def test_a_map_of_three_axes_agrees_with_torchs_interpolation() -> None:
    raw = np.random.default_rng(1).random((2, 3, 4)).astype(np.float32)
    expected = torch.nn.functional.interpolate(torch.from_numpy(raw)[None, None], (20, 24, 16), mode="trilinear")
    expected = (expected - expected.amin()) / (expected.amax() - expected.amin())
    assert np.allclose(volume().heatmap(raw), expected[0, 0].numpy(), atol=1e-5)


def test_a_constant_map_adds_no_colour(view) -> None:
    nothing = np.zeros(view.size, np.float32)
    assert not view.heatmap(np.full([2] * len(view.size), 3, np.float32)).any()
    shown = view.overlay(nothing, alpha=1)
    bare = view.overlay(nothing, alpha=0)
    assert np.array_equal(shown, bare)


def test_without_alpha_the_heat_is_not_on_the_input(view) -> None:
    heat = hot_at(view.size, *[length // 2 for length in view.size])
    plain, tinted = (view.overlay(heat, alpha=alpha).astype(int) for alpha in (0, 0.8))
    assert not np.array_equal(plain, tinted)


def test_an_unknown_colormap_is_said(view) -> None:
    with pytest.raises(ColormapError, match="'turbo'"):
        view.overlay(np.zeros(view.size, np.float32), colormap="turbow")


@pytest.mark.parametrize("alpha", [-0.1, 1.5])
def test_an_alpha_out_of_range_is_said(view, alpha) -> None:
    with pytest.raises(OverlayError, match=rf"alpha must be a number in \[0, 1\], got {alpha}"):
        view.overlay(np.zeros(view.size, np.float32), alpha=alpha)


@pytest.mark.parametrize("name", [name for name in VIEWS if name != "photo"])
def test_what_only_photos_have_is_said_of_the_others(name) -> None:
    view = VIEWS[name]()
    heat = np.zeros(view.size, np.float32)
    assert view.geometry is None
    for what, ask in (
        ("boxes", lambda: view.boxes(heat)),
        ("contours", lambda: view.contours(heat)),
        ("photo", lambda: view.photo),
        ("place in a detector", lambda: view.inside(None)),
    ):
        with pytest.raises(CamtoolError, match=f"a {name} has no {what}"):
            ask()


@pytest.mark.parametrize("name", ["photo", "signal"])
def test_what_has_no_frames_says_so(name) -> None:
    view = VIEWS[name]()
    with pytest.raises(CamtoolError, match=f"a {name} has no frames"):
        view.frames(np.zeros(view.size, np.float32))


def test_a_photo_is_that_of_the_overlay_room() -> None:
    view, heat = photo(), np.random.default_rng(1).random((40, 60), np.float32)
    assert np.array_equal(view.overlay(heat, alpha=0.3), overlay.blend(view.photo, heat, alpha=0.3, seen=view.seen))
    assert np.array_equal(view.masked(heat), overlay.multiply(view.photo, heat, seen=view.seen))
    assert view.boxes(heat, 0.5) == overlay.boxes(heat, threshold=0.5)
    assert len(view.contours(heat, 0.5)) == len(overlay.contours(heat, threshold=0.5))


@pytest.mark.parametrize("margin", [0, 100])
def test_a_large_photo_takes_at_most_three_times_its_bytes_from_raw_map_to_overlay(margin: int) -> None:
    height, width = 1500, 2000
    geometry = Geometry.whole(height, width)
    box = (0.0, float(margin), float(height), float(width - margin))
    view = Photo(np.full((height, width, 3), 90, np.uint8), replace(geometry, box=box))
    raw = np.random.default_rng(0).random((7, 7)).astype(np.float32)
    photo(9, 9).overlay(photo(9, 9).heatmap(raw))  # what is imported on the way
    tracemalloc.start()
    try:
        heatmap = view.heatmap(raw)
        after, peak = tracemalloc.get_traced_memory()
        view.overlay(heatmap)
        most = max(peak, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert after < heatmap.nbytes, "the map is torch's, which the count does not see"
    assert most + heatmap.nbytes <= 3 * view.photo.nbytes


def test_a_photo_is_grey_where_the_model_did_not_look() -> None:
    cut = Photo(noise(40, 60, 3), Geometry.whole(40, 60).center_crop(40))
    assert cut.seen.sum() == 40 * 40
    assert not cut.heatmap(np.eye(2, dtype=np.float32))[~cut.seen].any()


# --------------------------------------------------------------------------------------------------------- signals


def columns_that_differ(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.flatnonzero((one != other).any((0, 2)))


def test_a_signals_colour_is_where_the_heat_is() -> None:
    view = signal(1, 100)
    heat = np.zeros(100, np.float32)
    heat[60:70] = 1
    plain, tinted = view.overlay(heat, alpha=0), view.overlay(heat, alpha=0.5)
    left, right = 96, 1060 - 24  # where the panel begins and ends
    changed = (columns_that_differ(plain, tinted) - left) / (right - left) * 100
    assert 59 < changed.min() < 60.5
    assert 69.5 < changed.max() < 71


def written(view: Signal, draw: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Every word on a page."""
    words: set[str] = set()

    def noted(text: str) -> str:
        words.add(text)
        return text

    write, upright = plots._write, plots._write_upright
    monkeypatch.setattr(plots, "_write", lambda pen, at, text, *more, **by: write(pen, at, noted(text), *more, **by))
    monkeypatch.setattr(plots, "_write_upright", lambda page, at, text, *more: upright(page, at, noted(text), *more))
    getattr(view, draw)(hot_at(view.size, 3))
    return words


@pytest.mark.parametrize(
    ("channels", "title"), [(1, "value"), (2, "channel, value"), (8, "channel, value"), (12, "channel")]
)
def test_the_axes_of_a_signal_have_titles(channels: int, title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"position (time step)", title, "heat", "low", "high"} <= written(signal(channels), "overlay", monkeypatch)
    masked = written(signal(channels), "masked", monkeypatch)
    assert {"position (time step)", title} <= masked
    assert "heat" not in masked, "there is none to be seen"


@pytest.mark.parametrize("channels", [1, 2, 20])
def test_the_titles_lie_on_the_page_and_the_key_runs_from_cold_to_hot(channels: int) -> None:
    view = signal(channels)
    page = view.overlay(hot_at(view.size, 3)).astype(int)
    ink = (page < 160).all(2)
    assert ink[:, :22].any(), "the title on the left"
    assert not ink[[0, -1]].any(), "nothing is cut off"
    assert not ink[:, 0].any()
    assert ink[-30:, 96 + 400 : 96 + 540].any(), "the title below"
    bar = page[-30:, -24 - 44 - 120 : -24 - 44]
    rows = [row for row in bar if (row[0] == overlay.palette("heat")[0]).all()]
    assert len(rows) == 10
    assert (rows[0][-1] == overlay.palette("heat")[255]).all()


def test_the_line_passes_through_the_values() -> None:
    step = np.repeat([0.0, 1.0], 50)[None].astype(np.float32)
    drawn = Signal(step).masked(np.ones(100, np.float32)).astype(int)
    dark = (drawn[:, 96:-24] < 100).all(2)
    heights = [float(np.flatnonzero(dark[: 24 + 260, column]).mean()) for column in (100, 800)]
    assert heights[0] > heights[1] + 150  # the first half lies at the bottom, the second at the top


def test_what_counted_not_is_gone_from_a_masked_signal() -> None:
    heat = np.repeat([0.0, 1.0], 50).astype(np.float32)
    drawn = signal(1, 100).masked(heat)[26:200, 96:-24]
    zero_line = (drawn == (222, 225, 230)).all(2)
    left = drawn[:, : drawn.shape[1] // 2 - 10][~zero_line[:, : drawn.shape[1] // 2 - 10]]
    assert (left == PANEL).all()
    assert (drawn[:, drawn.shape[1] // 2 + 10 :] < 60).any()


def test_each_channel_has_a_panel_and_many_are_cut_off() -> None:
    def panels(channels: int) -> int:
        column = signal(channels, 50).overlay(np.zeros(50, np.float32), alpha=0)[:, 1000]
        inside = ~(column == PAPER).all(1)
        return int((np.diff(inside.astype(int)) == 1).sum())  # with the band of the heatmap

    assert [panels(count) for count in (1, 3, 16, 40)] == [2, 4, 17, 17]


@pytest.mark.parametrize("length", [1, 2, 7, 900, 100_000])
def test_signals_of_any_length_are_drawn(length) -> None:
    view = signal(1, length)
    heat = view.heatmap(np.arange(min(length, 5), dtype=np.float32))
    assert heat.shape == (length,)
    assert view.overlay(heat).shape == (376, 1060, 3)


def test_a_spike_and_its_heat_are_seen_in_a_long_signal() -> None:
    values, heat = np.zeros((1, 200_000), np.float32), np.zeros(200_000, np.float32)
    values[0, 123_456], heat[123_456] = 1, 1
    at = 96 + round(123_456 / 200_000 * (1060 - 96 - 24))
    drawn = Signal(values).overlay(heat).astype(int)
    dark = (drawn[24:90, at - 2 : at + 3] < 160).any()
    assert dark
    band = drawn[24 + 260 + 10 + 3, at - 2 : at + 3]
    assert (band == overlay.palette("heat")[255].astype(int)).all(1).any()


def test_values_that_are_not_finite_are_drawn_as_zero() -> None:
    values = np.array([[0, 1, np.nan, np.inf, 2, -np.inf]], np.float32)
    plain = np.nan_to_num(values, posinf=0, neginf=0)
    heat = np.linspace(0, 1, 6, dtype=np.float32)
    assert np.array_equal(Signal(values).overlay(heat), Signal(plain).overlay(heat))


def test_a_constant_signal_is_a_line_in_the_middle() -> None:
    drawn = Signal(np.full((1, 50), 7, np.float32)).masked(np.ones(50, np.float32))
    dark = np.flatnonzero((drawn[: 24 + 260, 500] < 100).all(1))
    assert 24 + 120 < dark.mean() < 24 + 140


# ------------------------------------------------------------------------------------------------ volumes and clips


def test_the_frames_are_each_with_its_heat(stack) -> None:
    heat = hot_at(stack.size, 5, 3, 4)
    frames = stack.frames(heat, alpha=0.5)
    assert frames.shape == stack.pictures.shape
    changed = np.argwhere((frames != stack.pictures).any(3))
    assert changed.tolist() == [[5, 3, 4]]


def test_one_heat_has_one_colour_in_all_frames() -> None:
    """A map may vary over time alone: each frame's is constant, and yet some are hot."""
    grey = Clip(np.full((4, 10, 10, 3), 100, np.uint8))
    heat = np.broadcast_to(np.array([0, 0.3, 0.6, 1], np.float32)[:, None, None], (4, 10, 10))
    frames = grey.frames(heat, alpha=1, colormap="turbo")
    assert (frames[0] == 100).all()
    assert [tuple(frame[0, 0]) for frame in frames[2:]] == [
        tuple(overlay.palette("turbo")[round(255 * value)]) for value in (0.6, 1)
    ]


def count_of_tiles(page: np.ndarray) -> int:
    """How many bars are on a page: a run of the bar's colour in a row is one."""
    is_bar = (page == (222, 225, 230)).all(2)
    runs = (np.diff(np.pad(is_bar, ((0, 0), (1, 0))).astype(int), axis=1) == 1) & (
        np.diff(np.pad(is_bar, ((1, 0), (0, 0))).astype(int), axis=0) == 1
    )
    return int(runs.sum())


@pytest.mark.parametrize(
    ("view", "tiles"), [(clip(1), 1), (clip(3), 3), (clip(40), 16), (volume(1), 2), (volume(5), 6), (volume(50), 11)]
)
def test_a_sheet_holds_so_many_pictures_and_no_more(view, tiles) -> None:
    assert count_of_tiles(view.overlay(np.zeros(view.size, np.float32))) == tiles


def test_the_pictures_on_a_sheet_are_those_in_the_middle_of_equal_parts() -> None:
    tiles = clip(48)._tiles(np.zeros((48, 24, 32), np.float32))
    assert [tile.caption for tile in tiles] == [f"frame {i}" for i in range(1, 48, 3)]


def test_the_maximum_of_a_volume_shows_what_no_chosen_slice_does() -> None:
    pictures, heat = np.zeros((50, 20, 20, 3), np.uint8), np.zeros((50, 20, 20), np.float32)
    pictures[33, 4:8, 4:8], heat[33, 4:8, 4:8] = 255, 1
    view = Volume(pictures)
    first, *others = view._tiles(heat)
    assert first.is_large
    assert first.picture.max() == 255
    assert first.heatmap.max() == 1
    assert max(tile.heatmap.max() for tile in others) == 0
    page = view.overlay(heat)
    assert tuple(overlay.palette("heat")[255]) in {tuple(pixel) for pixel in page.reshape(-1, 3)}  # its bar


def test_a_bar_is_as_long_as_its_picture_is_hot() -> None:
    heat = np.zeros((1, 24, 32), np.float32)
    heat[0, 0, 0] = 0.5
    page = clip(1).overlay(heat)
    rule = np.argwhere((page == (222, 225, 230)).all(2))
    colour = np.argwhere((page == overlay.palette("heat")[128]).all(2))
    width = rule[:, 1].max() - colour[:, 1].min() + 1
    assert abs(np.ptp(colour[:, 1]) + 1 - width / 2) <= 1


def test_a_masked_sheet_is_black_where_nothing_counted() -> None:
    white = Clip(np.full((2, 24, 32, 3), 255, np.uint8))
    page = white.masked(np.stack([np.zeros((24, 32)), np.ones((24, 32))]).astype(np.float32))
    first, second = page[30:100, 30:200], page[30:100, 30 + 234 : 200 + 234]
    assert (first == 0).all()
    assert (second == 255).all()


def test_a_page_does_not_change_what_it_shows(view) -> None:
    heat = np.random.default_rng(1).random(view.size, np.float32)
    kept = heat.copy()
    view.overlay(heat)
    view.masked(heat)
    assert np.array_equal(heat, kept)


# ---------------------------------------------------------------------------------------------------------- ticks


@pytest.mark.parametrize(("length", "step"), [(1, 1), (8, 1), (9, 2), (100, 20), (1200, 200), (5000, 1000)])
def test_the_ticks_are_round_numbers(length, step) -> None:
    assert plots._step(length) == step
    assert length / step <= 8
