"""Options of ``camtool run``: samples, true classes, arrays, captions and contact sheets."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import camtool
from camtool.inputs.formats import reading_options
from camtool.rendering.colormaps import get_palette
from tests.cli.test_commands import assert_refused, list_files, open_image, read_lines, write_photo
from tests.helpers.tiny_models import LABELS, prepare, tiny


@pytest.fixture
def twenty(photos) -> Path:
    for number in range(20):
        write_photo(photos / f"{'x' * number}n.png")
    return photos


def predict(path: str | Path) -> int:
    return int(tiny().model(prepare(open_image(path))[None])[0].argmax())


def write_labels(rows: dict[str, object]) -> str:
    Path("labels.csv").write_text("image,label\n" + "".join(f"{image},{label}\n" for image, label in rows.items()))
    return "labels.csv"


# ------------------------------------------------------------------------------------------------------- samples


def test_limit_and_shuffle_choose_the_photos(explained, twenty):
    assert explained("--limit", 3).code == 0
    assert [Path(line["image"]).name for line in read_lines()] == ["a.png", "b.jpg", "n.png"]
    names = []
    for out, seed in (("one", 1), ("two", 1), ("three", 2)):
        assert explained("--limit", 6, "--shuffle", "--seed", seed, "--out", out).code == 0
        names.append([Path(line["image"]).name for line in read_lines(out)])
    assert names[0] == names[1] != names[2]
    assert len({*names[0]}) == 6
    assert explained("--limit", 0, "--out", "none").code == 2


# --------------------------------------------------------------------------------------------------- true classes


def test_true_classes_add_right_or_wrong_and_the_accuracy(explained, photos):
    write_photo(photos / "without-row.png")
    right, wrong = predict("photos/a.png"), (predict("photos/b.jpg") + 1) % 4
    rows = {"a.png": LABELS[right], "b.jpg": wrong, "nowhere.png": "ant"}
    result = explained("--labels-csv", write_labels(rows), "--target", (right + 1) % 4, "--verbose")
    assert (result.code, result.err) == (0, "")
    lines = read_lines()
    # The explained class is not the predicted one; only the latter counts.
    assert [line["correct"] for line in lines] == [True, False, None]
    assert [line["true_label"] for line in lines] == [LABELS[right], LABELS[wrong], None]
    assert [line["predicted_label"] for line in lines] == [LABELS[predict(line["image"])] for line in lines]
    assert "Accuracy 50.0%: 1 of 2 photos right.\n" in result.out
    assert "1 photo without a row in labels.csv.\n" in result.out
    assert "1 row of labels.csv about no photo.\n" in result.out
    shown = result.out.splitlines()
    assert ", right, " in shown[0]
    assert any(f"wrong, true: {LABELS[wrong]}" in line for line in shown)
    summary = json.loads(explained("--labels-csv", "labels.csv", "--json", "--out", "two").out)
    assert (summary["right"], summary["wrong"], len(summary["notes"])) == (1, 1, 2)


def test_warning_codes_and_predictions_are_in_the_manifest(explained, photos):
    assert explained("photos/a.png", "--target", "top4").code == 0
    lines = read_lines()
    assert {line["predicted_label"] for line in lines} == {lines[0]["label"]}
    assert all(line["correct"] is None is line["true_label"] for line in lines)
    options = ("--method", "rise", "--option", "samples=4", "--layer", "first", "--out", "rise")
    assert explained("photos/a.png", *options).code == 0
    (line,) = read_lines("rise")
    assert "layer-ignored" in line["warning_codes"]
    assert len(line["warning_codes"]) == len(line["warnings"])


def test_only_wrong_writes_wrong_photos_and_tells_how_many_are_right(explained, photos):
    write_photo(photos / "without-row.png")
    rows = {"a.png": predict("photos/a.png"), "b.jpg": (predict("photos/b.jpg") + 1) % 4}
    result = explained("--labels-csv", write_labels(rows), "--only-wrong", "--sheet")
    assert (result.code, result.err) == (0, "")
    (line,) = read_lines()
    assert (Path(line["image"]).name, line["correct"]) == ("b.jpg", False)
    assert list_files() == sorted([line["files"]["overlay"], "contact-sheet.png"])
    assert "2 photos explained" in result.out
    assert "Accuracy 50.0%: 1 of 2 photos right.\n" in result.out
    assert "1 photo right, without results, as of --only-wrong.\n" in result.out
    assert "1 photo without a row in labels.csv.\n" in result.out


def test_the_same_command_again_tells_the_same_accuracy(explained, photos):
    rows = {"a.png": predict("photos/a.png"), "b.jpg": (predict("photos/b.jpg") + 1) % 4}
    path = write_labels(rows)
    for number, options in enumerate(([], ["--only-wrong"])):
        run = ("--labels-csv", path, "--out", number, *options)
        lines = [[line for line in explained(*run).out.splitlines() if "right" in line] for _ in range(2)]
        assert lines[0] == lines[1] != []


def segment() -> camtool.Loaded:
    """A segmenter: it predicts a class at each position, and none of the photo."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 4, 4), torch.nn.Tanh(), torch.nn.Conv2d(6, 4, 1))
    return camtool.Loaded(net.eval(), prepare, LABELS)


def test_a_photo_without_a_predicted_class_is_neither_right_nor_wrong(camtool_, photos):
    path = write_labels({"a.png": 1, "b.jpg": 2})
    run = ("photos", "--model", f"{__name__}:segment", "--labels-csv", path)
    result = camtool_(*run)
    assert result.code == 0
    assert [line["correct"] for line in read_lines()] == [None, None]
    assert "Accuracy is unknown" in result.out
    result = camtool_(*run, "--only-wrong", "--out", "wrong")
    assert (result.code, read_lines("wrong")) == (1, [])
    assert result.err.count("neither right nor wrong") == 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--only-wrong"], ["--only-wrong", "--truth FILE"]),
        (["--labels-csv", "bad.csv"], ["bad.csv, line 2", "'wasp'"]),
        (["--labels-csv", "other.csv"], ["other.csv", "no row is about a photo"]),
        (["--sheet", "--save", "raw"], ["--sheet needs overlays", "raw"]),
        (["--caption", "--format", "npz"], ["--caption needs overlays", "npz"]),
        (["--format", "npz", "--save", "overlay,raw"], ["--format npz", "--save overlay,npz"]),
    ],
)
def test_options_that_do_not_fit_are_refused(explained, photos, args, words):
    Path("bad.csv").write_text("image,label\na.png,wasp\n")
    Path("other.csv").write_text("image,label\nnowhere.png,ant\n")
    assert_refused(explained(*args), *words)
    assert not Path("out").exists()


# --------------------------------------------------------------------------------------------------------- arrays


@pytest.mark.parametrize(
    "options", [["--format", "npz"], ["--save", "npz"], ["--format", "npz", "--save", "raw"], ["--save", "npz,overlay"]]
)
def test_npz_holds_arrays_and_numbers_without_pickle(explained, photos, options):
    assert explained("photos/a.png", *options).code == 0
    (line,) = read_lines()
    assert [*line["files"]] == (["npz", "overlay"] if "npz,overlay" in options else ["npz"])
    with np.load(Path("out", line["files"]["npz"]), allow_pickle=False) as stored:
        found = {name: stored[name] for name in stored.files}
    wanted = camtool.explain(tiny(), "photos/a.png")
    np.testing.assert_allclose(found["raw"], wanted.raw, atol=1e-6)
    assert (found["heatmap"].dtype, found["heatmap"].shape) == (np.uint8, (20, 28))
    np.testing.assert_allclose(found["heatmap"] / 255, wanted.heatmap, atol=0.6 / 255)
    np.testing.assert_array_equal(found["seen"], wanted.seen)
    assert (str(found["label"]), int(found["index"])) == (wanted.label, wanted.index)
    assert (str(found["method"]), str(found["layer"])) == ("gradcam", "second")
    assert float(found["score"]) == pytest.approx(wanted.score, rel=1e-5)
    assert float(found["probability"]) == pytest.approx(wanted.probability, rel=1e-5)
    assert np.isnan(found["box"]).all()
    assert found["warning_codes"].tolist() == line["warning_codes"]


def test_npz_files_are_the_same_in_each_run(explained, photos):
    for out in ("one", "two"):
        assert explained("--format", "npz", "--out", out).code == 0
    assert list_files("one") == list_files("two") != []
    for name in list_files("one"):
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes()


# ------------------------------------------------------------------------------------------------------- regions


def test_the_heat_in_regions_is_a_number_of_each_photo_and_a_column_of_the_report(explained, photos):
    masks = photos.parent / "masks"
    masks.mkdir()
    height, width = np.asarray(open_image(photos / "a.png")).shape[:2]
    mask = np.zeros((height, width), np.uint8)
    mask[:, : width // 2] = 255
    Image.fromarray(mask).save(masks / "a.png")
    wanted = ("--region", "left=0%,0%,50%,100%", "--region", "bottom-left", "--region", f"object={masks}")
    assert explained("photos/a.png", "photos/b.jpg", *wanted, "--save", "overlay,npz").code == 0
    by_name = {Path(line["image"]).name: line for line in read_lines()}
    heatmap = np.load(Path("out") / by_name["a.png"]["files"]["npz"])["heatmap"].astype(float)
    shares = by_name["a.png"]["heat_in"]
    assert shares["left"] == pytest.approx(heatmap[:, : width // 2].sum() / heatmap.sum(), abs=5e-3)
    assert shares["object"] == pytest.approx(shares["left"], abs=1e-9)
    assert 0 <= shares["bottom-left"] <= shares["left"]
    assert by_name["b.jpg"]["heat_in"]["object"] is None
    page = Path("out/index.html").read_text(encoding="utf-8")
    assert all(f'"title":"Heat in {name}"' in page for name in ("left", "bottom-left", "object"))
    assert "not seen by the model" in page


def test_each_photo_has_the_mask_of_its_path(explained, photos):
    for folder, color in (("cat", 0), ("dog", 255)):
        for parent in ("animals", "masks"):
            (photos.parent / parent / folder).mkdir(parents=True)
        shutil.copy(photos / "a.png", photos.parent / "animals" / folder / "001.png")
        Image.new("L", open_image(photos / "a.png").size, color).save(photos.parent / f"masks/{folder}/001.png")
    shutil.copy(photos / "b.jpg", photos.parent / "animals/cat/002.jpg")
    Image.new("L", open_image(photos / "b.jpg").size, 255).save(photos.parent / "masks/002.png")
    assert explained("animals", "-r", "--region", "object=masks").code == 0
    shares = {line["image"]: line["heat_in"]["object"] for line in read_lines()}
    assert shares == {
        "animals/cat/001.png": 0, "animals/cat/002.jpg": pytest.approx(1), "animals/dog/001.png": pytest.approx(1)
    }  # fmt: skip
    shutil.copy(photos.parent / "masks/dog/001.png", photos.parent / "masks/001.png")
    result = explained("animals", "-r", "--limit", "1", "--region", "object=masks", "--overwrite")
    assert result.code == 2
    assert "mask masks/001.png: image '001' is the name of 2 photos" in " ".join(result.err.split())


def test_a_mask_of_other_proportions_fails_its_photo(explained, photos):
    (photos.parent / "masks").mkdir()
    Image.new("L", (10, 90), 255).save(photos.parent / "masks/a.png")
    result = explained("photos/a.png", "--region", "object=masks")
    assert result.code == 1
    assert "the mask masks/a.png is 10 x 90, the photo" in Path("out/failures.jsonl").read_text(encoding="utf-8")


def test_a_region_in_pixels_is_not_measured_on_a_photo_that_was_reduced(explained, photos, monkeypatch):
    monkeypatch.setattr(reading_options, "MAX_DRAWN", 300)
    for region, code in (("logo=0,0,5,5", 1), ("logo=0%,0%,25%,25%", 0)):
        assert explained("photos/a.png", "--region", region, "--overwrite").code == code
    assert read_lines()[0]["warning_codes"].count("photo-reduced") == 1
    result = explained("photos/a.png", "--region", "0,0,5,5", "--overwrite")
    assert "photos/a.png: --region is in pixels, and the photo was reduced to save memory; give percent" in result.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--region", "botom-left"], "Did you mean 'bottom-left'"),
        (["--region", "center", "--region", "center"], "two regions are named 'center'"),
        (["--region", "0,0,5,5", "--max-side", 100], "give percent"),
        (["--legend", "--save", "raw"], "--legend needs overlays"),
    ],
)
def test_regions_and_legends_that_do_not_fit_are_refused(explained, photos, options, message):
    result = explained(*options)
    assert result.code == 2
    assert message in " ".join(result.err.split())


# --------------------------------------------------------------------------------------------- captions and sheets


def test_captions_are_below_the_overlays(explained, photos):
    assert explained("photos/a.png", "--no-enlarge", "--out", "plain").code == 0
    assert explained("photos/a.png", "--no-enlarge", "--caption").code == 0
    plain, captioned = (np.asarray(open_image(Path(out, list_files(out)[0]))) for out in ("plain", "out"))
    assert captioned.shape[0] > plain.shape[0] == 20
    np.testing.assert_array_equal(captioned[:20, :28], plain)


def test_a_legend_is_below_the_overlays_and_the_report_has_a_color_bar(explained, photos):
    run = ("photos/a.png", "--no-enlarge", "--colormap", "viridis", "--alpha", 1)
    assert explained(*run, "--out", "plain").code == 0
    assert explained(*run, "--legend").code == 0
    plain, drawn = (np.asarray(open_image(Path(out, list_files(out)[0]))) for out in ("plain", "out"))
    np.testing.assert_array_equal(drawn[:20, :28], plain)
    assert drawn.shape[0] > plain.shape[0] == 20
    strip, palette = drawn[20:].reshape(-1, 3).astype(int), get_palette("viridis")
    assert (abs(strip - palette[-1]).max(1) <= 2).any(), "the color of the most heat"
    page = Path("out/index.html").read_text(encoding="utf-8")
    (stops,) = re.findall(r"\.legend \.colors \{ background: linear-gradient\(90deg, (.*)\); \}", page)
    heat = np.arange(16) / 15
    step = np.minimum(1, 2 * heat) ** 2 * (3 - 2 * np.minimum(1, 2 * heat))
    blended = np.rint(128 + step[:, None] * (palette[::17].astype(float) - 128)).astype(int)
    assert stops.split(", ") == ["rgb({} {} {})".format(*color) for color in blended], "as the overlay is on gray"
    assert 'class="swatch colors"' in page, "an element has them"


def test_labels_that_no_font_can_draw_are_told(explained, photos):
    Path("labels.txt").write_text("ant\nbee\ncat\n\U0010fffd\n", encoding="utf-8")
    run = ("photos/a.png", "--labels", "labels.txt")
    result = explained(*run, "--caption")
    assert "No font of this system has all letters of 1 label, e.g. '\\U0010fffd'" in result.out
    assert "font" not in explained(*run, "--out", "two").out + explained("photos/a.png", "--caption", "--out", "x").out


def test_a_sheet_shows_all_overlays_and_is_the_same_with_captions(explained, photos):
    sheets = []
    for out, options in (("plain", []), ("captioned", ["--caption"])):
        result = explained("-r", "--sheet", "--out", out, *options)
        assert f"Contact sheet: {Path(out, 'contact-sheet.png')}\n" in result.out
        sheets.append(np.asarray(open_image(Path(out, "contact-sheet.png"))))
    np.testing.assert_array_equal(*sheets)


def test_a_sheet_shows_results_of_an_earlier_start(explained, photos):
    assert explained("-r", "--sheet", "--out", "at-once").code == 0
    assert explained("-r").code == 0
    assert not Path("out", "contact-sheet.png").exists()
    assert explained("-r", "--sheet").code == 0
    assert Path("out", "contact-sheet.png").read_bytes() == Path("at-once", "contact-sheet.png").read_bytes()


def test_the_part_that_is_enough_is_a_picture_and_columns_of_the_report(explained, photos):
    assert explained("photos/a.png", "--sufficient").code == 0
    (line,) = read_lines()
    picture = np.asarray(open_image(Path("out") / line["files"]["sufficient"]))
    assert line["files"]["sufficient"].endswith(".sufficient.png")
    assert len({*picture.min((0, 1)).tolist(), *picture.max((0, 1)).tolist()}) > 1
    assert 0 <= line["sufficient"] <= 1
    assert line["sufficient_text"].startswith(("Nothing of", f"{line['sufficient']:.0%} of", "Less than 1%"))
    page = Path("out/index.html").read_text(encoding="utf-8")
    assert '"title":"Enough alone"' in page
    assert line["sufficient_text"] in page.replace("\\u0027", "'")
