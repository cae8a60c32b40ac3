"""YOLO models' outputs, in each format, and outputs that resemble them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from camtool.errors import TargetError
from camtool.outputs.anchors import find_anchors, find_best_rows, find_decoded_queries, find_level_scores
from camtool.outputs.detections import count_queries, find_detections
from tests.outputs.example_outputs import LOGITS, make_anchors

SIZES = [(8, 8), (4, 4), (2, 2)]  # of a 64 x 64 image at strides 8, 16 and 32: 84 positions


def make_table(images: int = 2, classes: int = 3, positions: int = 84) -> Tensor:
    """Return ``(N, positions, 4 + K)``: boxes as centers and sizes in pixels, then confidences."""
    torch.manual_seed(0)
    return torch.cat([torch.rand(images, positions, 4) * 60 + 1, torch.rand(images, positions, classes)], 2)


def make_head(table: Tensor, classes: int) -> dict[str, Any]:
    feats = [torch.rand(len(table), 5, *size) for size in SIZES]
    return {"scores": table[..., 4 : 4 + classes].logit().mT, "feats": feats, "boxes": torch.rand(len(table), 64, 84)}


@pytest.mark.parametrize("name", ["plain", "two heads", "masks"])
def test_a_head_of_ultralytics(name: str) -> None:
    table = make_table()
    head = make_head(table, 3)
    rows = table.mT
    output: Any = (rows, head)
    if name == "two heads":
        output = (rows, {"one2many": make_head(torch.rand_like(table), 3), "one2one": head})
    if name == "masks":
        output = ((torch.cat([rows, torch.full((2, 32, 84), 7.0)], 1), torch.rand(2, 32, 16, 16)), head)
    anchors = find_anchors(output)
    assert anchors is not None
    assert_close(anchors.confidences, table[..., 4:])
    assert_close(anchors.scores.sigmoid(), table[..., 4:])
    x, y, w, h = table[1, 5, :4].tolist()
    assert anchors.boxes[1, 5].tolist() == pytest.approx([x - w / 2, y - h / 2, x + w / 2, y + h / 2], rel=1e-5)
    assert [each.shape for each in find_level_scores(output)] == [(2, 3, 64), (2, 3, 16), (2, 3, 4)]
    found = find_detections(output)
    assert found is not None
    assert found[1].class_count == 3


@pytest.mark.parametrize(
    ("angle", "corners"),
    [(0.0, (10, 15, 30, 25)), (math.pi / 2, (15, 10, 25, 30)), (math.pi / 4, (9.393, 9.393, 30.607, 30.607))],
)
def test_a_rotated_box_is_inside_of_its_upright_one(angle: float, corners: tuple[float, ...]) -> None:
    table = make_table()
    table[:, :, :4] = torch.tensor([20.0, 20, 20, 10])
    output = (torch.cat([table.mT, torch.full((2, 1, 84), angle)], 1), make_head(table, 3) | {"angle": torch.zeros(())})
    anchors = find_anchors(output)
    assert anchors is not None
    assert anchors.boxes[0, 0].tolist() == pytest.approx(corners, abs=1e-3)


def test_a_table_with_objectness_and_maps() -> None:
    """YOLOv5 and YOLOv7: three anchors at each position."""
    table = make_table(classes=4, positions=252)  # objectness and three classes
    maps = [torch.rand(2, 3, *size, 8) for size in SIZES]
    anchors = find_anchors((table, maps))
    assert anchors is not None
    assert_close(anchors.confidences, table[..., 4:5] * table[..., 5:])
    assert anchors.confidences.shape == (2, 252, 3)
    assert [*find_level_scores((table, maps))] == maps
    assert find_anchors((table, maps[:2])) is None


def test_tables_alone_are_recognized_by_their_values() -> None:
    table, with_objectness = make_table(), make_table(classes=4, positions=252)
    columns, rows = find_anchors(table.mT.contiguous()), find_anchors(with_objectness)
    assert columns is not None
    assert rows is not None
    assert columns.confidences.shape == (2, 84, 3)
    assert rows.confidences.shape == (2, 252, 3)
    assert [each.shape for each in columns.level_scores] == [(2, 3, 64), (2, 3, 16), (2, 3, 4)]
    assert [each.shape for each in rows.level_scores] == [(2, 192, 4), (2, 48, 4), (2, 12, 4)]


@pytest.mark.parametrize(
    "output",
    [
        LOGITS,
        torch.randn(2, 84, 7),  # logits of a signal at 84 positions
        torch.randn(2, 7, 84),
        torch.rand(2, 84, 7),  # probabilities: no value is a position in pixels
        make_table().mT[:, :, :80],  # 80 positions are no three levels
        torch.zeros(2, 0, 84),
    ],
)
def test_other_tensors_are_no_anchors(output: Tensor) -> None:
    assert find_anchors(output) is None
    assert find_detections(output) is None
    assert not find_level_scores(output)


def make_rows() -> Tensor:
    """Return ``(1, 4, 6)``: corners, confidence, class."""
    return torch.tensor(
        [[[0, 0, 40, 30, 0.9, 2], [5, 5, 15, 10, 0.5, 0], [8, 0, 9, 1, 0.25, 2], [0, 0, 64, 64, 0.125, 1]]]
    )


def test_rows_that_the_model_selected() -> None:
    rows = make_rows().requires_grad_()
    for output in (rows, (rows, None), [rows[0]]):
        assert find_best_rows(output) is not None
        (found,) = find_detections(output) or []
        assert found.boxes.tolist()[1] == [5, 5, 15, 10]
        assert found.classes is not None
        assert found.classes.tolist() == [2, 0, 2, 1]
        assert found.select_class(2).confidences.tolist() == pytest.approx([0.9, 0.25])
        assert not found.is_relative
    # From the smallest box to the largest, as no level is known.
    assert [each.item() for each in find_level_scores(rows)] == pytest.approx([0.25, 0.5, 0.9, 0.125])


def test_levels_of_selected_rows_are_those_of_the_head() -> None:
    head = make_head(make_table(images=1), 3)
    assert [each.shape for each in find_level_scores((make_rows(), head))] == [(1, 3, 64), (1, 3, 16), (1, 3, 4)]
    noise = torch.randn(1, 30, 6)  # random weights: boxes may be turned inside out
    assert find_best_rows((noise, head)) is not None


@pytest.mark.parametrize("column", [0, 4, 5])
def test_rows_with_impossible_values_are_something_else(column: int) -> None:
    rows = make_rows()
    rows[0, 1, column] = [99.0, 0, 0, 0, 1.5, 0.5][column]
    assert find_best_rows(rows) is None
    assert find_detections(rows) is None


def test_no_detection_is_left_by_non_maximum_suppression() -> None:
    (found,) = find_detections([torch.zeros(0, 6)]) or [None]
    assert found is not None
    assert len(found) == 0


def test_decoded_queries_of_rtdetr() -> None:
    torch.manual_seed(0)
    boxes, logits = torch.rand(2, 1, 9, 4), torch.randn(2, 1, 9, 5)
    output = (torch.rand(1, 9, 6), (boxes, logits, torch.rand(1, 9, 4), torch.randn(1, 9, 5), None))
    queries = find_decoded_queries(output)
    assert queries is not None
    assert_close(queries[0], boxes[-1])
    (found,) = find_detections(output) or []
    assert_close(found.scores, logits[-1, 0])
    assert found.is_relative
    assert count_queries(output) == 9
    read, maps = make_anchors()
    assert find_decoded_queries((read, maps)) is None


# -------------------------------------------------------------------------------------------------- fractions in rows


def make_fractions() -> torch.Tensor:
    """Rows of two images: a corner reaches beyond the image, as a wide box at the border does."""
    first = [[-0.02, 0.1, 0.5, 0.6, 0.9, 3.0], [0.25, 0.25, 0.75, 1.01, 0.4, 0.0]]
    second = [[0.1, 0.1, 0.2, 0.3, 0.7, 1.0], [0.0, 0.0, 1.0, 1.0, 0.05, 2.0]]
    return torch.tensor([first, second])


def test_rows_with_fractions_are_detections_relative_to_the_input() -> None:
    table = make_fractions()
    found = find_detections(table)
    assert found is not None
    assert [each.is_relative for each in found] == [True, True]
    assert found[0].boxes.tolist() == table[0, :, :4].tolist()
    assert found[0].classes is not None
    assert found[0].classes.tolist() == [3, 0]
    assert count_queries(table) == 2
    pixels = table * torch.tensor([640, 640, 640, 640, 1, 1])
    assert [each.is_relative for each in find_detections(pixels) or []] == [False, False]


def test_rows_with_centers_are_refused() -> None:
    table = make_fractions()
    table[..., 2:4] *= 0.1  # widths and heights, less than the centers
    with pytest.raises(TargetError, match=r"table \(2, 2, 6\) whose rows have a confidence and a class, but do not"):
        find_detections(table)


@pytest.mark.parametrize("change", ["no classes", "no confidences", "whole"])
def test_other_tables_of_six_columns_are_not_rows(change: str) -> None:
    table = make_fractions()
    if change == "no classes":
        table[0, 0, 5] = 1.5
    elif change == "no confidences":
        table[0, 0, 4] = -0.1
    else:  # zeros and ones may be anything
        table = table.round().clamp(0, 1)
    assert find_detections(table) is None
