"""The files of a slide: pyramids that viewers align with it, a preview, and a line for each tile."""

from __future__ import annotations

import json
import pickle
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openslide
import pytest
import tifffile
from PIL import Image

import camtool
from camtool.cli import app
from camtool.slides import slide_explanation
from tests.slides.slide_files import plant_objects, write_slide


@pytest.fixture(scope="module")
def result(demo, tmp_path_factory) -> camtool.SlideExplanation:
    path = tmp_path_factory.mktemp("slides") / "a.tif"
    write_slide(path, plant_objects(width=2200, height=1400, rows=3, columns=8).pixels, levels=2, mpp=0.25)
    return camtool.explain_slide(demo, path, "star", level=0)


@pytest.fixture(scope="module")
def saved(result, tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slide_explanation, "_BLOCK", 96)  # so that the overlay is drawn in several squares
        return result.save(tmp_path_factory.mktemp("saved") / "out")


def test_a_viewer_finds_the_pyramid_and_the_size_of_its_pixels(result, saved: Path) -> None:
    for name in ("heat.tif", "overlay.tif"):
        with openslide.OpenSlide(saved / name) as pyramid:
            assert pyramid.level_dimensions == ((550, 350), (275, 175))
            assert float(pyramid.properties["openslide.mpp-x"]) == pytest.approx(1)
            # So the pyramid is as large as the slide, in micrometers.
            assert 550 * result.mpp == pytest.approx(2200 * 0.25)
        with tifffile.TiffFile(saved / name) as file:
            assert [page.tile for page in file.pages] == [(256, 256)] * 2
            assert [page.subfiletype for page in file.pages] == [0, 1]
            assert "'star'" in file.pages[0].description
            densities = [page.get_resolution("MICROMETER") for page in file.pages]
            np.testing.assert_allclose(densities, [(1, 1), (0.5, 0.5)], rtol=1e-6)


def test_a_path_with_a_suffix_is_that_of_an_image(result, tmp_path: Path) -> None:
    with Image.open(result.save(tmp_path / "a.png")) as image:
        assert image.size == (550, 350)
    with pytest.raises(camtool.ImageError, match=r"suffix must be one of \.png, .* got '\.csv'"):
        result.save(tmp_path / "a.csv")
    assert [each.name for each in tmp_path.glob("[!.]*")] == ["a.png"]


def test_the_files_hold_the_heatmap(result, saved: Path) -> None:
    heat = tifffile.imread(saved / "heat.tif", key=0)
    np.testing.assert_array_equal(heat, np.rint(255 * result.heatmap))
    overlay = tifffile.imread(saved / "overlay.tif", key=0)
    slide = tifffile.imread(result.path, key=1)  # level 1 has half the side of level 0, the overlay a quarter
    small = np.asarray(Image.fromarray(slide).reduce(2)).astype(int)
    is_cold = heat == 0
    assert is_cold.mean() > 0.3
    assert np.abs(overlay[is_cold] - small[is_cold]).mean() < 2
    hottest = overlay[heat > 250].astype(int)
    assert (hottest[:, 0] > hottest[:, 2] + 60).all()  # red


def test_the_preview_is_the_overlay(result, saved: Path) -> None:
    preview = np.asarray(Image.open(saved / "preview.png"))
    assert preview.shape == (350, 550, 3)
    assert np.abs(preview.astype(int) - result.overlay()).mean() < 1
    assert result.overlay(300).shape == (175, 275, 3)
    assert result._repr_png_().startswith(b"\x89PNG")


def test_there_is_a_line_for_each_tile(result, saved: Path) -> None:
    lines = [json.loads(line) for line in (saved / "tiles.jsonl").read_text().splitlines()]
    assert len(lines) == len(result.tiles)
    assert {"x", "y", "side", "label", "probability", "warning_codes"} <= {*lines[0]}
    about = json.loads((saved / "slide.json").read_text())
    assert (about["skipped"], about["mpp"], about["heatmap_size"]) == (result.skipped, 1.0, [350, 550])
    assert sorted(file.name for file in saved.glob("[!.]*")) == [
        "heat.tif", "overlay.tif", "preview.png", "slide.json", "tiles.jsonl",
    ]  # fmt: skip


def test_a_result_says_what_it_is_and_can_be_pickled(result) -> None:
    line = f"<SlideExplanation of 'star': gradcam, {len(result.tiles)} tiles, {result.skipped} skipped(, .*)?>"
    assert re.fullmatch(line, repr(result))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(result)).heatmap, result.heatmap)


# ------------------------------------------------------------------------------------------------- the command line


@pytest.fixture
def run_command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["camtool", *args])
        with pytest.raises(SystemExit) as end:
            app.main()
        said = capsys.readouterr()
        return SimpleNamespace(code=end.value.code, out=said.out, err=said.err)

    return run


def test_the_command_explains_slides_and_goes_on_after_a_failure(run_command, tmp_path: Path) -> None:
    write_slide(tmp_path / "a.tif", plant_objects(width=1600, height=1024, rows=2, columns=4).pixels, levels=1)
    (tmp_path / "b.svs").write_text("no slide")
    said = run_command("slide", "b.svs", "a.tif", "--model", "demo", "--target", "star", "--level", "0")
    assert said.code == 1
    assert "Failed: slide 'b.svs' is of no format" in said.err
    assert "star: " in said.out
    assert " tiles explained, " in said.out
    assert (tmp_path / "out" / "a" / "preview.png").is_file()
    assert not (tmp_path / "out" / "b").exists()


def test_a_slide_needs_no_name_of_the_command_but_a_class(run_command, tmp_path: Path) -> None:
    (tmp_path / "a.svs").write_text("no slide")
    assert "no format" in run_command("a.svs", "--model", "demo", "--target", "star").err
    said = run_command("a.svs", "--model", "demo")
    assert said.code == 2
    assert "--target" in said.err
    assert "is a slide, not a photo; explain it with: camtool slide a.svs" in run_command("run", "a.svs").err
    assert "is a URL" in run_command("a.svs", "--target", "star", "--out", "https://x.org/out").err
