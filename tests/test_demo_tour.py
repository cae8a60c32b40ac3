"""The demo's tour: rows that are true of models made by hand, pages that hold what they say, the same every time."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms._presets import ImageClassification

from camtool.demo import measure
from camtool.demo.scenes import Scene, Thing
from camtool.demo.sheet import Block, Cell, sheet
from camtool.demo.tour import judge, showcase, tour
from camtool.errors import CamtoolError, MethodError
from camtool.models import Loaded

RED, GREEN = (slice(8, 24), slice(8, 24)), (slice(40, 48), slice(32, 40))  # 256 and 64 of 4096 pixels


def two_squares():
    """A large red and a small green square on black."""
    image, things = np.zeros((64, 64, 3), np.uint8), []
    for index, (rows, columns) in enumerate((RED, GREEN)):
        mask = np.zeros((64, 64), bool)
        mask[rows, columns] = True
        image[mask, index] = 255
        things.append(Thing(index, ("red", "green")[index], mask, (columns.start, rows.start, columns.stop, rows.stop)))
    return Scene(image, tuple(things))


class Colours(torch.nn.Module):
    """A map a colour, pooled, and a linear layer: what Grad-CAM makes of it is plain."""

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
        pytest.param([[1, 0, 0], [0, 1, 0]], 1, 1, id="reads-its-own-colour"),
        pytest.param([[0, 1, 0], [1, 0, 0]], 0, 0, id="reads-the-other"),
        pytest.param([[2, 1, 0], [2, 1, 0]], 0.5, (256 / 288 + 32 / 288) / 2, id="looks-twice-as-hard-at-red"),
        pytest.param([[1, 0, 0], [2, 1, 0]], 0.5, (1 + 32 / 288) / 2, id="knows-red-alone"),
    ],
)
def test_a_row_is_true_of_a_model_made_by_hand(monkeypatch, head, hits, energy):
    monkeypatch.setattr("camtool.demo.tour.time", SimpleNamespace(perf_counter=iter([1.0, 1.6]).__next__))
    transform = ImageClassification(crop_size=64, resize_size=64, mean=(0, 0, 0), std=(1, 1, 1))
    loaded = Loaded(Colours(head).eval(), transform, ["red", "green"])
    row, answers = judge(loaded, [two_squares()] * 3, "gradcam")
    assert (row.method, row.maps) == ("gradcam", 6)
    assert (row.hits, row.energy) == pytest.approx((hits, energy), abs=1e-6)
    assert row.share == pytest.approx((256 + 64) / 2 / 4096)
    assert row.milliseconds == pytest.approx(200)
    assert [[answer.label for answer in own] for own in answers] == [["red", "green"]] * 3


def test_the_scenes_of_the_tour():
    shown = showcase(12)
    counts = [len(each.objects) for each in shown]
    assert counts == [1, 1, 1, *[2] * 8, 4]
    assert {thing.label for each in shown for thing in each.objects} == set(measure.LABELS)
    assert [len(each.objects) for each in showcase(3)] == [1, 2, 2]
    more = showcase(14)
    assert len({each.image.tobytes() for each in more}) == 14


@pytest.fixture(scope="module")
def toured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tour")
    return folder, tour(folder, 3, methods=("gradcam", "cam"))


def test_the_tour_writes_what_it_says(toured):
    folder, found = toured
    said = {found.overview, found.cheat, *found.pictures}
    assert {path for path in folder.rglob("*") if path.is_file()} == said
    assert {path.parent.name for path in found.pictures} == {"scenes", "gradcam", "cam"}
    assert len(found.pictures) == 3 + 2 * 5
    assert (found.overview, found.cheat) == (folder / "overview.png", folder / "cheat.png")
    for number, each in enumerate(showcase(3), 1):
        labels = [thing.label for thing in each.objects]
        assert np.array_equal(
            np.asarray(Image.open(folder / "scenes" / f"{number:02}-{'-'.join(labels)}.png")), each.image
        )
        for thing in each.objects:
            drawn = np.asarray(Image.open(folder / "gradcam" / f"{number:02}-{thing.label}.png"))
            up, down, left, right = (np.roll(thing.mask, *shift) for shift in ((1, 0), (-1, 0), (1, 1), (-1, 1)))
            rim = thing.mask & ~(up & down & left & right)
            assert drawn[rim].min(1).mean() > 150, "the outline is white"
    assert [(row.method, row.maps) for row in found.rows] == [("gradcam", 5), ("cam", 5)]


def test_the_overview_shows_each_scene(toured):
    page = np.asarray(Image.open(toured[1].overview))
    assert all(holds(page, each.image) for each in showcase(3))


def test_the_tour_is_the_same_every_time(toured, tmp_path):
    folder, found = toured
    again = tour(tmp_path, 3, methods=("gradcam", "cam"))
    for path in (found.overview, found.cheat, *found.pictures):
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
def test_what_cannot_be_toured_leaves_nothing_behind(tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        tour(tmp_path / "demo", **{"scenes": 1, **arguments})
    assert not (tmp_path / "demo").exists()


# ------------------------------------------------------------------------------------------------------- pages


def plain(shade, cells, heading=""):
    """A block of pictures of one grey."""
    return Block(heading, [Cell(np.full((200, 200, 3), shade, np.uint8), "a caption")] * cells)


def holds(page, picture):
    """Whether a picture lies somewhere on a page, pixel for pixel."""
    starts = np.argwhere((page[: -len(picture), : -len(picture)] == picture[0, 0]).all(2))
    return any(np.array_equal(page[y : y + len(picture), x : x + len(picture)], picture) for y, x in starts)


def places(page, shade):
    """Where the first picture of a grey begins, as (row, column), and how many pictures wide it is."""
    rows, columns = np.nonzero((page == shade).all(2) & (np.roll(page, -1, 1) == shade).all(2))
    return int(rows.min()), int(columns.min()), round((columns.max() - columns.min()) / 216 + 0.5)


def test_a_block_is_never_split_and_room_is_used():
    page = sheet("A title", "Words.", [plain(40, 2), plain(80, 2), plain(120, 1)], columns=3)
    (row_40, left_40, wide_40), (row_80, left_80, wide_80), (row_120, left_120, _) = (
        places(page, shade) for shade in (40, 80, 120)
    )
    assert (wide_40, wide_80) == (2, 2)
    assert row_40 == row_120 < row_80
    assert left_120 == left_40 + 2 * 216
    assert left_80 == left_40


def test_words_stay_inside_the_margins():
    page = sheet("A title", "word " * 60, [plain(40, 1)], columns=2)
    assert (page[:, :40] == 255).all()
    assert (page[:, -40:] == 255).all()
    one_line = sheet("A title", "word", [plain(40, 1)], columns=2)
    assert len(page) > len(one_line) + 100
