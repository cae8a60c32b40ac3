"""Videos: frames in order and upright, one scale for all, and heat where the object is."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import CenterCrop, Compose, Resize, ToTensor

import camtool
from camtool.errors import CamtoolError, ImageError, MethodError, NothingFoundError, TargetError
from camtool.geometry.cell_centers import AxisCenters, CellCenters
from camtool.rendering.written_files import RECORD
from camtool.videos import reading
from camtool.videos.explaining import choose_window, prepare_clip, read_clip_geometry, split_clip_map
from camtool.videos.reading import VideoReader
from tests.videos.video_files import (
    draw_crossing_star,
    number_frame,
    read_times,
    read_video,
    write_video,
)


class Brightness(nn.Module):
    """A network whose first score, and map, is the brightness."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.Conv2d(3, 1, 4, 4, bias=False)
        nn.init.constant_(self.pool.weight, 1 / 48)
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        brightness = self.pool(x).mean((2, 3))
        return torch.cat([brightness, 1 - brightness], dim=1)


def explain(path: Path, **options: Any) -> camtool.VideoExplanation:
    settings = {"target_class": 0, "layer": "pool", "transform": ToTensor(), **options}
    return camtool.explain_video(Brightness(), path, **settings)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory) -> Path:
    """Twenty-four frames, each brighter than the one before; in all but the first a corner is white."""
    path = tmp_path_factory.mktemp("videos") / "numbered.mp4"
    write_video(path, [number_frame(number) for number in range(24)])
    return path


# --------------------------------------------------------------------------------------------------------- reading


def test_frames_come_in_order_with_their_times(numbered: Path) -> None:
    frames = list(VideoReader(numbered))
    assert [frame.index for frame in frames] == list(range(24))
    assert [round(frame.time, 3) for frame in frames] == [round(number / 25, 3) for number in range(24)]
    levels = [float(frame.pixels.mean()) for frame in frames]
    np.testing.assert_allclose(levels, np.arange(24) * 8, atol=2)


@pytest.mark.parametrize(("degrees", "turns"), [(90, 1), (-90, -1), (180, 2), (0, 0)])
def test_a_video_that_is_shown_turned_is_read_upright(tmp_path: Path, degrees: int, turns: int) -> None:
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:16, :20] = 240
    write_video(tmp_path / "a.mp4", [picture] * 3, rotation=degrees)
    upright = next(iter(VideoReader(tmp_path / "a.mp4"))).pixels
    np.testing.assert_allclose(upright, np.rot90(picture, turns), atol=4)
    if degrees == -90:
        # As phones write it, by the specification of QuickTime: the matrix (0, 1; -1, 0) turns x to y, clockwise.
        data = (tmp_path / "a.mp4").read_bytes()
        matrix = np.frombuffer(data, ">i4", 9, data.index(b"tkhd") + 44)
        assert matrix[[0, 1, 3, 4]].tolist() == [0, 65536, -65536, 0]


def test_what_is_no_video_is_refused(tmp_path: Path, numbered: Path) -> None:
    (tmp_path / "text.mp4").write_text("no video")
    # A playlist, which makes FFmpeg read other files, or the network.
    write_video(tmp_path / "part.ts", [number_frame(each) for each in range(10)])
    lines = ["#EXTM3U", "#EXT-X-VERSION:3", "#EXT-X-TARGETDURATION:1", "#EXTINF:0.4,", tmp_path / "part.ts"]
    (tmp_path / "list.m3u8").write_text("\n".join([*map(str, lines), "#EXT-X-ENDLIST", ""]))
    (tmp_path / "concat.mp4").write_text(f"ffconcat version 1.0\nfile {numbered}\n")
    for name in ("text.mp4", "list.m3u8", "concat.mp4"):
        with pytest.raises(ImageError, match=f"{name}' cannot be read"):
            VideoReader(tmp_path / name)
    with pytest.raises(ImageError, match="no such file"):
        VideoReader(tmp_path / "gone.mp4")
    with pytest.raises(ImageError, match="URLs are not read"):
        VideoReader("https://x.org/a.mp4")
    with pytest.raises(ImageError, match="no such file"):
        VideoReader(f"concat:{numbered}|{numbered}")


def test_huge_frames_are_refused(numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ImageError, match="frames of 3,072 pixels"):
        VideoReader(numbered)


def test_frames_larger_than_4k_are_reduced_and_said_to_be(numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = next(iter(VideoReader(numbered)))
    monkeypatch.setattr(reading, "_KEPT_PIXELS", 1000)  # the frames have 3,072
    result = explain(numbered)
    assert any(
        "64 x 48 pixels are larger than 4K, so they are explained and drawn at 1/2" in w for w in result.warnings
    )
    frame = next(iter(result.reader))
    assert frame.pixels.shape == (24, 32, 3)
    by_hand = whole.pixels.reshape(24, 2, 32, 2, 3).mean((1, 3))
    assert np.abs(frame.pixels - by_hand).mean() < 16  # FFmpeg's filter reaches further than a square of 2 x 2


def test_frames_that_grow_after_the_header_are_refused(numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = VideoReader(numbered)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    monkeypatch.setattr(reading, "_get_video", lambda container, path: container.streams.video[0])
    with pytest.raises(ImageError, match="frames of 3,072 pixels"):
        next(iter(reader))
    monkeypatch.undo()
    reader.size = (40, 50)
    assert next(iter(reader)).pixels.shape == (48, 64, 3)  # as it is below 4K
    monkeypatch.setattr(reading, "_KEPT_PIXELS", 1000)
    with pytest.raises(ImageError, match="has larger frames than it says: 64 x 48"):
        next(iter(reader))


def test_the_readable_part_of_a_short_video_is_explained(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    path = tmp_path / "a.ts"  # a stream without an index at its end
    write_video(path, [random.integers(0, 256, (48, 64, 3), np.uint8) for _ in range(20)])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    result = explain(path)
    assert 5 <= result.frame_count < 20
    assert len(result.rows) == result.frame_count
    result.save(tmp_path / "b.mp4")
    assert len(read_video(tmp_path / "b.mp4")) == result.frame_count


def test_a_damaged_rest_of_a_video_is_a_warning(
    numbered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = VideoReader.__iter__

    def break_off(self: VideoReader) -> Any:
        for frame in read(self):
            if frame.index == 7:
                raise ImageError("invalid data")
            yield frame

    monkeypatch.setattr(VideoReader, "__iter__", break_off)
    result = explain(numbered)
    assert result.warnings[0] == "Only the first 7 frames could be read: invalid data"
    assert len(read_video(result.save(tmp_path / "b.mp4"))) == 7


# -------------------------------------------------------------------------------------------------------- sampling


@pytest.mark.parametrize(
    ("options", "frames"),
    [
        ({}, list(range(24))),
        ({"every": 5}, [0, 5, 10, 15, 20]),
        ({"fps": 5}, [0, 5, 10, 15, 20]),
        ({"fps": 10}, [0, 3, 5, 8, 10, 13, 15, 18, 20, 23]),  # due at 0, 0.1, ...; the first frame not before
        ({"fps": 100}, list(range(24))),
    ],
)
def test_the_frames_that_are_explained(numbered: Path, options: dict[str, Any], frames: list[int]) -> None:
    result = explain(numbered, **options)
    assert [row.frame for row in result.rows] == frames
    assert result.frame_count == 24


def test_the_repr_is_one_line(numbered: Path) -> None:
    line = r"<VideoExplanation: gradcam, 3 of 24 frames explained(, \d+ warnings?)?>"
    assert re.fullmatch(line, repr(explain(numbered, every=8)))


def test_frames_are_explained_in_batches(numbered: Path) -> None:
    net = Brightness()
    camtool.explain_video(net, numbered, 0, layer="pool", transform=ToTensor(), batch_size=10)
    assert [each for each in net.seen if each > 1] == [10, 10, 4]


# ------------------------------------------------------------------------------------------------------------- heat


def test_all_frames_are_on_one_scale(tmp_path: Path) -> None:
    """A frame with half the evidence has half the heat; normalized alone, each would reach 1."""
    frames = []
    for level in (240, 120, 60, 0):
        picture = np.zeros((48, 64, 3), np.uint8)
        picture[16:32, 16:32] = level
        frames.append(picture)
    write_video(tmp_path / "a.mp4", frames)
    result = explain(tmp_path / "a.mp4")
    peaks = [float(result.heatmap(number).max()) for number in range(4)]
    np.testing.assert_allclose(peaks, [1, 0.5, 0.25, 0], atol=0.02)
    assert result.heatmap(0)[:8].max() < 0.02


def test_a_video_of_one_frame_has_the_heatmap_of_a_photo(tmp_path: Path, demo) -> None:
    frames, _ = draw_crossing_star()
    write_video(tmp_path / "a.mp4", frames[:1])
    result = camtool.explain_video(demo, tmp_path / "a.mp4", "star")
    alone = camtool.explain(demo, next(iter(VideoReader(tmp_path / "a.mp4"))).pixels, "star")
    assert (result.rows[0].label, result.rows[0].probability) == ("star", pytest.approx(alone.probability))
    np.testing.assert_allclose(result.heatmap(0), alone.heatmap, atol=0.02)


def test_heat_follows_the_object_and_goes_with_it(tmp_path: Path, demo) -> None:
    frames, boxes = draw_crossing_star()
    write_video(tmp_path / "a.mp4", frames)
    result = camtool.explain_video(demo, tmp_path / "a.mp4", "star")
    found = 0
    for number, box in enumerate(boxes):
        heat = result.heatmap(number)
        if box is not None:
            y, x = np.unravel_index(heat.argmax(), heat.shape)
            assert box[0] <= x < box[2]
            assert box[1] <= y < box[3]
            found += 1
    assert found >= 3
    assert result.heatmap(len(frames) - 1).max() < 0.3
    assert len(result.warnings) <= 1
    assert {row.label for row in result.rows} == {"star"}


def test_a_frame_between_keeps_the_last_heatmap(numbered: Path) -> None:
    result = explain(numbered, every=4)
    np.testing.assert_array_equal(result.heatmap(7), result.heatmap(4))
    assert result.heatmap(8).mean() > result.heatmap(7).mean()
    for frame in (-1, 24):
        with pytest.raises(CamtoolError, match="frames 0 to 23"):
            result.heatmap(frame)


def test_smoothing_averages_neighbors(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", [number_frame(each) for each in (0, 0, 30, 0, 0)])
    sharp, smooth = (
        [explain(tmp_path / "a.mp4", smooth=each).heatmap(number).mean() for number in range(5)] for each in (1, 3)
    )
    np.testing.assert_allclose(sharp, [0, 0, 1, 0, 0], atol=0.02)
    np.testing.assert_allclose(smooth, [0, 1 / 3, 1 / 3, 1 / 3, 0], atol=0.02)


@pytest.mark.parametrize("name", ["", "crane"])
def test_a_class_that_changes_is_a_warning(tmp_path: Path, demo, name: str) -> None:
    """Also if all classes have one name. Heat of another class is not averaged."""
    frames, _ = draw_crossing_star()
    write_video(tmp_path / "a.mp4", [frames[0], frames[-1], frames[0]])
    labels = [name or label for label in demo.labels]
    result, smooth = (
        camtool.explain_video(replace(demo, labels=labels), tmp_path / "a.mp4", smooth=size) for size in (1, 3)
    )
    assert [row.label for row in result.rows] == [name or label for label in ("star", "heart", "star")]
    assert result.warnings[0].startswith("The explained class changes 2 times")
    np.testing.assert_array_equal(smooth.heatmap(1), result.heatmap(1))


def test_a_frame_in_which_a_detector_finds_nothing_has_no_heat(
    tmp_path: Path, numbered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, count = camtool.Explainer.__call__, iter(range(100))

    def find_in_some(self: Any, images: list[Any], target: Any) -> Any:
        if len(images) > 1 or next(count) == 1:
            raise NothingFoundError("no such object")
        return real(self, images, target)

    monkeypatch.setattr(camtool.Explainer, "__call__", find_in_some)
    result = explain(numbered, every=8)
    assert [row.reason for row in result.rows] == [None, "no such object", None]
    assert result.warnings[0] == "1 of 3 frames have no heatmap; their rows say why."
    with pytest.raises(CamtoolError, match="frame 9 has no heatmap: no such object"):
        result.heatmap(9)
    overlays = {frame.index: (frame.pixels, pixels) for frame, pixels in result.iterate_overlays()}
    np.testing.assert_array_equal(*overlays[9])
    assert (overlays[20][0] != overlays[20][1]).any()


# ----------------------------------------------------------------------------------------------------------- saving


def test_the_saved_video_has_the_size_and_the_times_of_the_source(tmp_path: Path) -> None:
    times = [0, 40, 100, 110, 300, 1000]  # as phones write them
    write_video(tmp_path / "a.mp4", [number_frame(each, height=46, width=62) for each in range(6)], times=times)
    result = explain(tmp_path / "a.mp4")
    assert result.save(tmp_path / "folder" / "b.mp4") == tmp_path / "folder" / "b.mp4"
    assert read_times(tmp_path / "folder" / "b.mp4") == read_times(tmp_path / "a.mp4")
    assert [frame.shape for frame in read_video(tmp_path / "folder" / "b.mp4")] == [(46, 62, 3)] * 6
    assert sorted(file.name for file in (tmp_path / "folder").iterdir()) == [RECORD, "b.jsonl", "b.mp4"]


def test_the_saved_frames_are_the_overlays(tmp_path: Path, demo) -> None:
    frames, boxes = draw_crossing_star()
    write_video(tmp_path / "a.mp4", frames)
    result = camtool.explain_video(demo, tmp_path / "a.mp4", "star")
    saved = read_video(result.save(tmp_path / "b.mp4"))
    for number, (frame, pixels) in enumerate(result.iterate_overlays()):
        assert frame.index == number
        assert np.abs(saved[number].astype(int) - pixels).mean() < 4
    x0, y0, x1, y1 = boxes[0]
    change = np.abs(saved[0].astype(int) - frames[0]).mean(2)
    assert change[y0:y1, x0:x1].mean() > 4 * np.median(change)
    assert change[y0:y1, x0:x1].max() > 60
    assert np.abs(saved[-1].astype(int) - frames[-1]).mean() < 6


def test_colors_survive(tmp_path: Path) -> None:
    """The colors of a video are stored by one of several formulas; with the wrong one green would become yellowish."""
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:24, :32], picture[24:, 32:], picture[:24, 32:] = (200, 20, 30), (20, 180, 60), (30, 60, 210)
    write_video(tmp_path / "a.mp4", [picture] * 2)
    saved = read_video(explain(tmp_path / "a.mp4").save(tmp_path / "b.mp4", alpha=0))
    inside = [(10, 10), (40, 50), (10, 50)]
    for y, x in inside:
        np.testing.assert_allclose(saved[0][y, x], picture[y, x], atol=8)


def test_an_odd_side_grows_by_a_pixel(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", [number_frame(each, height=47, width=63) for each in range(3)])
    assert read_video(explain(tmp_path / "a.mp4").save(tmp_path / "b.mp4"))[0].shape == (48, 64, 3)


def test_there_is_a_line_for_each_explained_frame(tmp_path: Path, numbered: Path) -> None:
    explain(numbered, every=10).save(tmp_path / "b.mp4")
    lines = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert [(line["frame"], line["time"], line["index"]) for line in lines] == [(0, 0, 0), (10, 0.4, 0), (20, 0.8, 0)]


def test_the_source_is_never_overwritten(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", [number_frame(each) for each in range(3)])
    before = (tmp_path / "a.mp4").read_bytes()
    result = explain(tmp_path / "a.mp4")
    with pytest.raises(CamtoolError, match="is the video that was explained"):
        result.save(tmp_path / "a.mp4")
    with pytest.raises(ImageError, match=r"videos are written as \.mp4"):
        result.save(tmp_path / "b.gif")
    assert (tmp_path / "a.mp4").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.mp4"]


# ------------------------------------------------------------------------------------------------------------ clips


class Flash(nn.Module):
    """A model of clips whose first score is the brightness above a half, summed over place and time."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.Sequential(nn.Conv3d(3, 1, (1, 4, 4), (1, 4, 4)), nn.ReLU())
        nn.init.constant_(self.pool[0].weight, 1 / 48)
        nn.init.constant_(self.pool[0].bias, -0.5)
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.shapes.append(tuple(x.shape))
        flash = self.pool(x).mean((2, 3, 4))
        return torch.cat([flash, -flash], dim=1)


def test_a_model_of_clips_gets_windows_of_frames(tmp_path: Path) -> None:
    frames = [number_frame(0) for _ in range(11)]
    frames[6] = frames[6].copy()
    frames[6][16:32, 40:56] = 250
    write_video(tmp_path / "a.mp4", frames)
    net = Flash()
    result = camtool.explain_video(
        net, tmp_path / "a.mp4", 0, window=4, layer="pool", transform=ToTensor(), method="hirescam"
    )
    assert {*net.shapes} == {(1, 3, 4, 48, 64)}
    assert [(row.first, row.last) for row in result.rows] == [(0, 3)] * 4 + [(4, 7)] * 4 + [(7, 10)] * 3
    heat = result.heatmap(6)
    assert heat[18:30, 42:54].min() > 0.5
    assert heat[:12].max() < 0.01
    assert result.heatmap(5).max() < 0.01
    assert result.heatmap(8).max() == 0
    assert len(read_video(result.save(tmp_path / "b.mp4"))) == 11


def test_a_short_video_repeats_its_last_frame(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", [number_frame(20), number_frame(30)])
    result = camtool.explain_video(Flash(), tmp_path / "a.mp4", 0, layer="pool", transform=ToTensor())
    assert [row.frame for row in result.rows] == [0, 1]
    assert "The model takes 16 frames, and 2 were chosen, so the last one was repeated." in result.warnings


def test_frames_of_a_clip_are_cropped_and_their_heat_is_placed(tmp_path: Path) -> None:
    picture = np.zeros((48, 96, 3), np.uint8)
    picture[12:36, 36:60] = 250
    write_video(tmp_path / "a.mp4", [picture] * 4)
    crop = Compose([Resize(32), CenterCrop(32), ToTensor()])
    result = camtool.explain_video(Flash(), tmp_path / "a.mp4", 0, window=4, layer="pool", transform=crop)
    heat = result.heatmap(2)
    rows, columns = np.indices(heat.shape) + 0.5
    assert (heat * columns).sum() / heat.sum() == pytest.approx(48, abs=2)
    assert (heat * rows).sum() / heat.sum() == pytest.approx(24, abs=2)
    assert heat[:, :24].max() == heat[:, 72:].max() == 0


def test_the_preparation_that_torchvision_publishes_is_understood() -> None:
    from torchvision.models.video import R3D_18_Weights

    preset = R3D_18_Weights.DEFAULT.transforms()
    frames = [np.full((240, 320, 3), 40 * each, np.uint8) for each in range(4)]
    clip = prepare_clip(preset, frames)
    assert clip.shape == (3, 4, 112, 112)
    geometry = read_clip_geometry(preset, frames[0])
    # Resized to 128 x 171, cropped to 112 x 112.
    assert geometry.size == (112, 112)
    assert geometry.box == pytest.approx((15, 56.1, 225, 265.7), abs=1)


def test_the_window_is_that_of_the_model() -> None:
    assert choose_window(Flash(), None) == 16
    assert choose_window(Flash(), 8) == 8
    assert choose_window(Brightness(), None) is None


# -------------------------------------------------------------------------------------------------------- arguments


def test_what_does_not_fit_is_refused(numbered: Path) -> None:
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"target_class": [0, 1]}, TargetError, "one class"),
        ({"method": ["gradcam", "layercam"]}, MethodError, "one method"),
        ({"every": 0}, CamtoolError, "every must be"),
        ({"fps": 0}, CamtoolError, "fps must be"),
        ({"every": 2, "fps": 5}, CamtoolError, "give one of them"),
        ({"smooth": 2}, CamtoolError, "smooth must be odd"),
        ({"window": 0}, CamtoolError, "window must be"),
    ]
    for given, kind, message in cases:
        with pytest.raises(kind, match=message):
            explain(numbered, **given)
    with pytest.raises(ImageError, match="how their frames are prepared is unknown"):
        camtool.explain_video(Flash(), numbered, 0)
    with pytest.raises(ImageError, match=r"must return a floating tensor \(C, h, w\)"):
        camtool.explain_video(Flash(), numbered, 0, transform=np.asarray)


def test_a_model_with_the_preparation_of_torchvision_is_explained(tmp_path: Path) -> None:
    from torchvision.models.video import R3D_18_Weights

    frames, _ = draw_crossing_star(16)
    write_video(tmp_path / "a.mp4", frames)
    model = camtool.Loaded(Flash(), R3D_18_Weights.DEFAULT.transforms())
    result = camtool.explain_video(model, tmp_path / "a.mp4", 0, layer="pool")
    assert [(row.first, row.last, row.index) for row in result.rows] == [(0, 15, 0)] * 16
    assert result.heatmap(5).shape == (128, 128)
    assert max(float(result.heatmap(number).max()) for number in range(16)) > 0.5


def test_nothing_fades_toward_the_end_of_a_clip() -> None:
    """Two maps at frames 0 and 4 of 8: the frames behind the second one belong to the clip that follows."""
    centers = CellCenters((8, 6, 6), (AxisCenters(0.5, 4), AxisCenters(1, 2), AxisCenters(1, 2)))
    frames, in_space = split_clip_map(
        np.stack([np.zeros((3, 3)), np.ones((3, 3))]).astype(np.float32), centers, (8, 6, 6)
    )
    assert [float(frame.mean()) for frame in frames] == [0, 0.25, 0.5, 0.75, 1, 1, 1, 1]
    assert in_space == CellCenters((6, 6), centers.axes[1:])
