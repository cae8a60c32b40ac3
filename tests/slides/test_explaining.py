"""Whole slides: stitched maps, background, scale, and heat where the objects are."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import ToTensor

import camtool
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.errors import CamtoolError, ImageError, MethodError, NothingFoundError, TargetError
from camtool.slides import explaining
from camtool.slides.readers import open_slide
from camtool.slides.tiling import TileGrid, choose_scale, place_on_tile
from tests.slides.slide_files import Planted, halve, plant_objects, write_slide
from tests.slides.test_readers import damage_tile, draw_noise


class Patches(nn.Module):
    """A network whose map does not depend on where a tile begins, if that is a multiple of 4 pixels."""

    def __init__(self, *, padded: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.features = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU())
        if padded:
            self.features.extend([nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()])
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


def explain_patches(path: Path, **options: Any) -> camtool.SlideExplanation:
    settings = {"tile": 64, "background": "none", "level": 0, "transform": ToTensor(), **options}
    return camtool.explain_slide(Patches(), path, 1, **settings)


# ------------------------------------------------------------------------------------------------------- stitching


@pytest.mark.parametrize(("padded", "overlap"), [(False, 0.25), (True, 0.5)])
def test_the_stitched_map_is_that_of_the_whole_image(tmp_path: Path, padded: bool, overlap: float) -> None:
    pixels = smooth_noise(256, 320)
    write_slide(tmp_path / "a.tif", pixels, levels=1)
    net = Patches(padded=padded)
    layer = "features.3" if padded else "features.1"
    at_once = camtool.explain(net, torch.from_numpy(pixels).permute(2, 0, 1) / 255, 1, layer=layer)
    result = camtool.explain_slide(
        net,
        tmp_path / "a.tif",
        1,
        tile=64,
        overlap=overlap,
        background="none",
        level=0,
        transform=ToTensor(),
        layer=layer,
    )
    inside = (slice(8, -8), slice(8, -8))
    expected = at_once.view.geometry.place_on_photo(torch.from_numpy(at_once.raw), at_once.centers).numpy()
    expected = expected.reshape(64, 4, 80, 4).mean((1, 3))[inside]
    stitched = result.heatmap[inside]
    # The scale of a whole slide is linear in the raw values: two numbers take one to the other.
    slope, shift = np.polyfit(expected.ravel(), stitched.ravel(), 1)
    assert slope > 0
    np.testing.assert_allclose(slope * expected + shift, stitched, atol=1e-4)
    assert stitched.std() > 0.1
    assert result.explained.all()


def smooth_noise(height: int, width: int) -> np.ndarray:
    coarse = np.random.default_rng(7).integers(0, 256, (height // 16, width // 16, 3), np.uint8)
    return coarse.repeat(16, axis=0).repeat(16, axis=1)


def test_nothing_fades_toward_the_edge_of_a_tile(demo) -> None:
    """The cells of the bundled model lie up and to the left, so its heat on a photo fades to the right and below."""
    tile = Image.fromarray(draw_scene(UNSEEN).image)
    result = camtool.explain(demo, tile, method="layercam")
    assert result.geometry is not None
    held = result.geometry.place_on_photo(torch.from_numpy(result.raw), result.centers, holds=True).numpy()
    placed = place_on_tile(result, tile.width)
    assert np.array_equal(placed, held)
    assert not np.allclose(placed, result.geometry.place_on_photo(torch.from_numpy(result.raw), result.centers).numpy())


def test_without_overlap_the_seams_show(tmp_path: Path) -> None:
    """The test above can fail: a layer with padding draws the borders of tiles that do not overlap."""
    write_slide(tmp_path / "a.tif", np.full((256, 256, 3), 90, np.uint8), levels=1)
    net = Patches(padded=True)
    seams = [
        np.ptp(
            camtool.explain_slide(
                net, tmp_path / "a.tif", 1, tile=64, overlap=each, background="none", level=0, transform=ToTensor(),
                layer="features.3",
            ).heatmap[12:-12, 12:-12]
        )
        for each in (0, 0.5)
    ]  # fmt: skip
    assert seams[1] < 1e-3 < 0.2 < seams[0]


def test_the_tiles_of_a_slide_are_on_one_scale(tmp_path: Path) -> None:
    """A tile with a third of the evidence has a third of the heat, and is not stretched to its own maximum."""
    pixels = np.zeros((128, 256, 3), np.uint8)
    pixels[48:80, 48:80], pixels[48:80, 176:208] = 240, 80
    write_slide(tmp_path / "a.tif", pixels, levels=1)
    net = Bright()
    result = camtool.explain_slide(
        net, tmp_path / "a.tif", 0, tile=128, overlap=0, background="none", level=0, transform=ToTensor(), layer="pool"
    )
    assert result.heatmap[14:18, 14:18].max() == pytest.approx(1)
    assert result.heatmap[14:18, 46:50].max() == pytest.approx(1 / 3, abs=0.01)
    assert result.limits == pytest.approx((0, result.limits[1]))


class Bright(nn.Module):
    """A network whose first score is the brightness."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.Conv2d(3, 1, 4, 4, bias=False)
        nn.init.constant_(self.pool.weight, 1 / 48)

    def forward(self, x: Tensor) -> Tensor:
        brightness = self.pool(x).mean((2, 3))
        return torch.cat([brightness, 1 - brightness], dim=1)


# -------------------------------------------------------------------------------------------------- planted objects


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> tuple[Planted, Path]:
    path = tmp_path_factory.mktemp("slides") / "planted.tif"
    drawn = plant_objects()
    write_slide(path, drawn.pixels, levels=3)
    return drawn, path


@pytest.fixture(scope="module")
def explained(demo, planted) -> camtool.SlideExplanation:
    return camtool.explain_slide(demo, planted[1], "star", level=0)


def enlarge(heatmap: np.ndarray, scale: float) -> np.ndarray:
    return np.asarray(heatmap).repeat(int(scale), axis=0).repeat(int(scale), axis=1)


def test_heat_is_on_the_planted_objects_and_not_elsewhere(planted, explained) -> None:
    drawn, _ = planted
    assert explained.label == "star"
    assert explained.scale == 4
    heat = enlarge(explained.heatmap, 4)
    inside = np.zeros(heat.shape, np.bool_)
    for x0, y0, x1, y1 in drawn.stars:
        inside[y0 - 8 : y1 + 8, x0 - 8 : x1 + 8] = True
        assert heat[y0:y1, x0:x1].max() > 0.7
    assert heat[~inside].max() < 0.5
    assert heat[inside].mean() > 10 * heat[~inside].mean()


def test_glass_is_skipped_and_counted(planted, explained) -> None:
    left, top, right, bottom = planted[0].tissue
    assert explained.skipped > len(explained.tiles) > 40
    for tile in explained.tiles:
        across, down = min(right, tile.x + tile.side) - max(left, tile.x), min(bottom, tile.y + 128) - max(top, tile.y)
        assert across > 0
        assert down > 0
    # Heatmap pixels of the glass at the corner were not explained.
    assert not explained.explained[:20, :20].any()
    assert explained.explained[top // 4 : bottom // 4, left // 4 : right // 4].all()
    everything = len(explained.tiles) + explained.skipped
    with open_slide(planted[1]) as reader:
        grid = TileGrid(2560, 2048, 1, 128, (0, 0, 128, 128), 0.25)
        assert len(grid.list_tiles()) == everything
        assert reader.levels[0].width == 2560


def test_the_rows_of_the_tiles_with_objects_are_the_most_probable(planted, explained) -> None:
    best = sorted(explained.tiles, key=lambda each: -each.probability)[:3]
    for tile in best:
        assert any(
            x0 < tile.x + tile.side and x1 > tile.x and y0 < tile.y + tile.side and y1 > tile.y
            for x0, y0, x1, y1 in planted[0].stars
        )
        assert tile.probability > 0.7
    assert {tile.label for tile in explained.tiles} == {"star"}


@pytest.mark.parametrize(("level", "mpp"), [(1, None), (None, 1.0)])
def test_a_coarser_level_shows_the_same_slide(tmp_path: Path, demo, level: int | None, mpp: float | None) -> None:
    """The objects are twice as large on level 0, so that they have their size of training at level 1."""
    drawn = plant_objects(width=1536, height=1408, rows=5, columns=7)
    write_slide(tmp_path / "a.tif", drawn.pixels.repeat(2, axis=0).repeat(2, axis=1), levels=3)
    result = camtool.explain_slide(demo, tmp_path / "a.tif", "star", level=level, mpp=mpp)
    assert result.scale == 8
    assert result.mpp == pytest.approx(4)
    best = max(result.tiles, key=lambda each: each.probability)
    assert best.side == 256
    assert any(
        abs(best.x + 128 - (x0 + x1)) < 200 and abs(best.y + 128 - (y0 + y1)) < 200 for x0, y0, x1, y1 in drawn.stars
    )
    heat = enlarge(result.heatmap, 4)
    for x0, y0, x1, y1 in drawn.stars:
        box = heat[y0:y1, x0:x1]
        assert box.max() > 0.7
        rows, columns = np.indices(box.shape) + 0.5
        center = (box * columns).sum() / box.sum(), (box * rows).sum() / box.sum()
        # Half a side of the object, which the model need not look at as a whole.
        assert abs(center[0] - (x1 - x0) / 2) < (x1 - x0) / 4
        assert abs(center[1] - (y1 - y0) / 2) < (y1 - y0) / 4


# --------------------------------------------------------------------------------------------- preparation, memory


def test_a_default_tile_is_what_the_model_sees_without_scaling() -> None:
    from torchvision.transforms import CenterCrop, Compose, Resize

    net = Patches()
    explainer = camtool.Explainer(net, transform=Compose([Resize(256), CenterCrop(224), ToTensor()]))
    assert explaining._choose_side(explainer, net) == 256


def test_what_a_crop_cuts_off_is_covered_by_the_neighbors(tmp_path: Path) -> None:
    from torchvision.transforms import CenterCrop, Compose

    write_slide(tmp_path / "a.tif", draw_noise(512, 512), levels=1)
    cropping = Compose([CenterCrop(48), ToTensor()])
    result = explain_patches(tmp_path / "a.tif", transform=cropping)
    assert not result.explained[:2].any()
    assert not result.explained[:, -2:].any()
    assert result.explained[2:-2, 2:-2].all()


def test_no_more_than_a_few_tiles_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_slide(tmp_path / "a.tif", draw_noise(1024, 1280), levels=1)
    read: list[int] = []

    def open_spied(path: Any) -> Any:
        reader = open_slide(path)
        original = reader.read
        reader.read = lambda *region: (read.append(region[3] * region[4]), original(*region))[1]
        return reader

    monkeypatch.setattr(explaining, "open_slide", open_spied)
    result = explain_patches(tmp_path / "a.tif", tile=64)
    assert max(read) <= 66 * 66
    assert len(result.tiles) == len(read)


def test_a_slide_smaller_than_a_tile_is_padded(tmp_path: Path) -> None:
    write_slide(tmp_path / "a.tif", draw_noise(50, 40), levels=1)
    result = explain_patches(tmp_path / "a.tif")
    assert result.heatmap.shape == (12, 10)
    assert len(result.tiles) == 1


# ------------------------------------------------------------------------------------------ background and failures


@pytest.mark.parametrize(
    ("background", "kept"),
    [
        ("bright", {0, 128, 192}),
        ("dark", {0, 64, 192}),
        ("none", {0, 64, 128, 192}),
        (lambda pixels: pixels[..., 1] == 250, {64}),
    ],
)
def test_the_rule_chooses_the_tiles(tmp_path: Path, background: Any, kept: set[int]) -> None:
    pixels = draw_noise(64, 256)
    pixels[:, 64:128], pixels[:, 128:192], pixels[:, 192:] = 250, 5, (250, 180, 240)  # glass, black, a pale stain
    write_slide(tmp_path / "a.tif", pixels, levels=1)
    result = explain_patches(tmp_path / "a.tif", background=background, overlap=0)
    assert {tile.x for tile in result.tiles} == kept
    assert result.skipped == 4 - len(kept)


def test_a_damaged_tile_is_a_failure_and_the_run_goes_on(tmp_path: Path) -> None:
    write_slide(tmp_path / "a.tif", draw_noise(128, 384), levels=1, compression="zlib")
    damage_tile(tmp_path / "a.tif", 1)
    result = explain_patches(tmp_path / "a.tif", tile=128, overlap=0)
    assert [tile.x for tile in result.tiles] == [0, 256]
    assert [(each.x, "cannot be read" in each.reason) for each in result.failures] == [(128, True)]
    assert result.warnings[0] == "1 of 3 tiles could not be explained; see failures."
    assert not result.explained[:, 34:62].any()


class Poisoned(Patches):
    """A network that overflows on dark tiles."""

    def forward(self, x: Tensor) -> Tensor:
        is_dark = (x.mean((1, 2, 3), keepdim=True) < 0.1).float()
        return super().forward(x / (1 - is_dark))


def test_a_map_that_is_not_finite_does_not_spoil_the_others(tmp_path: Path) -> None:
    pixels = draw_noise(64, 128)
    pixels[:, 64:] = 0
    write_slide(tmp_path / "a.tif", pixels, levels=1)
    result = camtool.explain_slide(
        Poisoned(), tmp_path / "a.tif", 1, tile=64, overlap=0, background="none", level=0, transform=ToTensor()
    )
    assert [each.x for each in result.failures] == [64]
    assert np.isfinite(result.heatmap).all()
    assert result.heatmap.max() == 1


def test_a_tile_in_which_a_detector_finds_nothing_is_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_slide(tmp_path / "a.tif", np.concatenate([draw_noise(64, 64)] * 3, axis=1), levels=1)
    real, count = camtool.Explainer.__call__, iter(range(100))

    def find_in_some(self: Any, images: list[Any], target: Any) -> Any:
        if len(images) > 1 or next(count) == 1:
            raise NothingFoundError("no such object")
        return real(self, images, target)

    monkeypatch.setattr(camtool.Explainer, "__call__", find_in_some)
    result = explain_patches(tmp_path / "a.tif", overlap=0)
    assert [tile.x for tile in result.tiles] == [0, 128]
    assert result.explained.all()
    assert result.failures == []
    assert (result.heatmap[:, 18:30] == result.heatmap.min()).all() or result.limits[0] < 0


# ------------------------------------------------------------------------------------------------------- arguments


def test_what_does_not_fit_is_refused(tmp_path: Path, demo) -> None:
    write_slide(tmp_path / "a.tif", draw_noise(), levels=2)
    tif = tmp_path / "a.tif"
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"target_class": None}, TargetError, r"name one class.*The model's classes are: .*star"),
        ({"target_class": camtool.targets.Top(2)}, TargetError, "name one class"),
        ({"target_class": "sttar"}, TargetError, "Did you mean 'star'"),
        ({"method": ["gradcam", "layercam"]}, MethodError, "one method"),
        ({"overlap": 1}, CamtoolError, "overlap must be"),
        ({"tile": 3}, CamtoolError, "tile must be"),
        ({"background": "bright "}, CamtoolError, "Did you mean 'bright'"),
        ({"background": lambda pixels: pixels}, CamtoolError, "must return a mask"),
        ({"level": 2}, ImageError, "the slide has levels 0 to 1"),
        ({"level": 0, "mpp": 1}, CamtoolError, "give one of them"),
        ({"mpp": 0.1}, ImageError, "finer than the slide"),
        ({"slide": tmp_path / "gone.svs"}, ImageError, "no such file"),
    ]
    for given, kind, message in cases:
        arguments = {"slide": tif, "target_class": "star", "background": "none", **given}
        with pytest.raises(kind, match=message):
            camtool.explain_slide(demo, **arguments)


def test_a_slide_of_glass_is_an_error(tmp_path: Path, demo) -> None:
    write_slide(tmp_path / "a.tif", np.full((256, 256, 3), 240, np.uint8), levels=1, mpp=None)
    with pytest.raises(ImageError, match=r"all 9 tiles are background; choose another rule with background="):
        camtool.explain_slide(demo, tmp_path / "a.tif", "star")
    with open_slide(tmp_path / "a.tif") as reader, pytest.raises(ImageError, match="choose a level="):
        choose_scale(reader, None, 0.5)


def test_a_resolution_that_nobody_chose_is_noted(explained, tmp_path: Path, demo) -> None:
    assert not any("Neither level nor mpp" in each for each in explained.warnings)
    write_slide(tmp_path / "a.tif", draw_noise(128, 128), levels=1)
    result = camtool.explain_slide(demo, tmp_path / "a.tif", "star")
    assert "pixels of 0.5 micrometers; choose the resolution" in result.warnings[0]


def test_a_map_of_no_image_is_refused(demo) -> None:
    net = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 2))
    signal = camtool.explain(net, torch.rand(1, 50), 0)
    with pytest.raises(CamtoolError, match="takes no images"):
        place_on_tile(signal, 64)


def test_tiles_begin_at_multiples_of_a_heatmap_pixel_and_cover_the_slide() -> None:
    random = np.random.default_rng(3)
    for _ in range(50):
        width, height = (int(each) for each in random.integers(100, 3000, 2))
        side = 4 * int(random.integers(8, 60))
        margin = float(random.integers(0, side // 4))
        grid = TileGrid(width, height, 1, side, (margin, margin, side - margin, side - margin), random.uniform(0, 0.9))
        tiles = grid.list_tiles()
        assert all(tile.x % 4 == tile.y % 4 == 0 for tile in tiles)
        covered = np.zeros(width, np.bool_)
        for x in {tile.x for tile in tiles}:
            covered[x + int(margin) : x + side - int(margin)] = True
        assert covered[int(margin) : max(side, width // 4 * 4) - int(margin)].all()
        assert len(set(tiles)) == len(tiles)


def test_the_halves_of_a_pyramid_are_means() -> None:
    from camtool.slides.slide_explanation import build_levels

    pixels = draw_noise(1101, 700)
    levels = build_levels(pixels, 300)
    assert [each.shape[:2] for each in levels] == [(1101, 700), (550, 350), (275, 175)]
    np.testing.assert_array_equal(levels[1], halve(pixels))


def test_no_thread_reads_from_a_slide_that_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_slide(tmp_path / "a.tif", draw_noise(512, 512), levels=1)
    events: list[str] = []

    def open_spied(path: Any) -> Any:
        reader = open_slide(path)
        read, close = reader.read, reader.close

        def read_slowly(*region: Any) -> Any:
            time.sleep(0.02)
            events.append("read")
            return read(*region)

        reader.read = read_slowly
        reader.close = lambda: (events.append("close"), close())
        return reader

    monkeypatch.setattr(explaining, "open_slide", open_spied)
    monkeypatch.setattr(camtool.Explainer, "__call__", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError) as error:
        explain_patches(tmp_path / "a.tif", batch_size=4)
    time.sleep(0.2)
    assert events.index("close") == len(events) - 1
    assert error.value is not None  # and its traceback keeps the generator alive until here
