"""Tour of the demo: rows of figures on hand-made models, files and pages."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms._presets import ImageClassification

from camtool.demo.scenes import Scene, SceneObject
from camtool.demo.shapes import LABELS
from camtool.demo.tour import draw_page, draw_tour_scenes, evaluate_method, run_tour
from camtool.errors import CamtoolError, MethodError
from camtool.models import Loaded
from camtool.rendering.contact_sheet import CaptionLine

RED, GREEN = (slice(8, 24), slice(8, 24)), (slice(40, 48), slice(32, 40))  # 256 and 64 of 4096 pixels


def draw_two_squares():
    """Return a scene with a large red and a small green square on black."""
    image, items = np.zeros((64, 64, 3), np.uint8), []
    for index, (rows, columns) in enumerate((RED, GREEN)):
        mask = np.zeros((64, 64), bool)
        mask[rows, columns] = True
        image[mask, index] = 255
        items.append(
            SceneObject(index, ("red", "green")[index], mask, (columns.start, rows.start, columns.stop, rows.stop))
        )
    return Scene(image, tuple(items))


class ColorNet(torch.nn.Module):
    """One map for each color channel, pooled, and a linear layer: its Grad-CAM is known."""

    def __init__(self, head):
        super().__init__()
        self.maps = torch.nn.Conv2d(3, 3, 1, bias=False)
        self.head = torch.nn.Linear(3, 2, bias=False)
        self.maps.weight.data = torch.eye(3)[..., None, None]
        self.head.weight.data = torch.tensor(head, dtype=torch.float32)

    def forward(self, x):
        return self.head(self.maps(x).mean((2, 3)))


@pytest.mark.parametrize(
    ("head", "hits", "energy"),
    [
        pytest.param([[1, 0, 0], [0, 1, 0]], 1, 1, id="reads-its-own-color"),
        pytest.param([[0, 1, 0], [1, 0, 0]], 0, 0, id="reads-the-other"),
        pytest.param([[2, 1, 0], [2, 1, 0]], 0.5, (256 / 288 + 32 / 288) / 2, id="weighs-red-twice"),
        pytest.param([[1, 0, 0], [2, 1, 0]], 0.5, (1 + 32 / 288) / 2, id="knows-only-red"),
    ],
)
def test_a_row_has_the_figures_of_a_hand_made_model(monkeypatch, head, hits, energy):
    monkeypatch.setattr("camtool.demo.tour.time", SimpleNamespace(perf_counter=iter([1.0, 1.6]).__next__))
    transform = ImageClassification(crop_size=64, resize_size=64, mean=(0, 0, 0), std=(1, 1, 1))
    loaded = Loaded(ColorNet(head).eval(), transform, ["red", "green"])
    row, answers = evaluate_method(loaded, [draw_two_squares()] * 3, "gradcam")
    assert (row.method, row.maps) == ("gradcam", 6)
    assert (row.hits, row.energy) == pytest.approx((hits, energy), abs=1e-6)
    assert row.share == pytest.approx((256 + 64) / 2 / 4096)
    assert row.milliseconds == pytest.approx(200)
    assert [[answer.label for answer in own] for own in answers] == [["red", "green"]] * 3


def test_scenes_of_the_tour_have_all_classes():
    shown = draw_tour_scenes(12)
    counts = [len(each.objects) for each in shown]
    assert counts == [1, 1, 1, *[2] * 8, 4]
    assert {item.label for each in shown for item in each.objects} == set(LABELS)
    assert [len(each.objects) for each in draw_tour_scenes(3)] == [1, 2, 2]
    more = draw_tour_scenes(14)
    assert len({each.image.tobytes() for each in more}) == 14


@pytest.fixture(scope="module")
def tour_results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run_tour")
    return folder, run_tour(folder, 3, methods=("gradcam", "cam"))


def test_the_tour_writes_the_files_that_it_returns(tour_results):
    folder, found = tour_results
    expected = {found.overview, found.cheat, *found.images}
    assert {path for path in folder.rglob("[!.]*") if path.is_file()} == expected
    assert {path.parent.name for path in found.images} == {"scenes", "gradcam", "cam"}
    assert len(found.images) == 3 + 2 * 5
    assert (found.overview, found.cheat) == (folder / "overview.png", folder / "cheat.png")
    for number, each in enumerate(draw_tour_scenes(3), 1):
        labels = [item.label for item in each.objects]
        assert np.array_equal(
            np.asarray(Image.open(folder / "scenes" / f"{number:02}-{'-'.join(labels)}.png")), each.image
        )
        for item in each.objects:
            drawn = np.asarray(Image.open(folder / "gradcam" / f"{number:02}-{item.label}.png"))
            up, down, left, right = (np.roll(item.mask, *shift) for shift in ((1, 0), (-1, 0), (1, 1), (-1, 1)))
            rim = item.mask & ~(up & down & left & right)
            assert drawn[rim].min(1).mean() > 150, "the outline is white"
    assert [(row.method, row.maps) for row in found.rows] == [("gradcam", 5), ("cam", 5)]


def test_the_overview_shows_each_scene(tour_results):
    page = np.asarray(Image.open(tour_results[1].overview))
    assert all(is_on_page(page, each.image) for each in draw_tour_scenes(3))


def test_the_tour_is_deterministic(tour_results, tmp_path):
    folder, found = tour_results
    again = run_tour(tmp_path, 3, methods=("gradcam", "cam"))
    for path in (found.overview, found.cheat, *found.images):
        assert path.read_bytes() == (tmp_path / path.relative_to(folder)).read_bytes()
    assert [replace(row, milliseconds=0) for row in again.rows] == [replace(row, milliseconds=0) for row in found.rows]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"scenes": 0}, CamtoolError, "scenes=0"),
        ({"methods": ()}, CamtoolError, r"methods=\[\]"),
        ({"methods": ("gradcam", "gradcan")}, MethodError, "'gradcan' is unknown"),
    ],
)
def test_wrong_arguments_write_no_files(tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        run_tour(tmp_path / "demo", **{"scenes": 1, **arguments})
    assert not (tmp_path / "demo").exists()


# ------------------------------------------------------------------------------------------------------- pages


def is_on_page(page, image):
    """Check that an image is on a page, pixel for pixel."""
    starts = np.argwhere((page[: -len(image), : -len(image)] == image[0, 0]).all(2))
    return any(np.array_equal(page[y : y + len(image), x : x + len(image)], image) for y, x in starts)


def test_text_stays_inside_the_margins():
    picture = (np.full((200, 200, 3), 40, np.uint8), [CaptionLine("a caption")])
    page = draw_page("A title", "word " * 60, [picture] * 3, columns=2, side=200)
    assert is_on_page(page, picture[0])
    assert (page[:, :20] == 255).all()
    assert (page[:, -20:] == 255).all()
    one_line = draw_page("A title", "word", [picture] * 3, columns=2, side=200)
    assert len(page) > len(one_line) + 80
