"""Rows from the files of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from camtool.runs.report.columns import ReportFailure, RowWarning
from camtool.runs.report.result_reader import read_run_folder
from tests.runs.report.folders import write_run


def test_a_line_becomes_a_row(tmp_path: Path) -> None:
    line = {
        "image": "photos/a.jpg",
        "probability": 0.25,
        "warnings": ["Ranked 7th."],
        "warning_codes": ["low-rank"],
        "predicted_label": "dog",
        "true_label": "cat",
        "correct": False,
        "box": [1, 2.5, 30, 40],
    }
    out = write_run(tmp_path, [line])
    (row,) = read_run_folder(out).rows
    assert (row.image, row.method, row.layer, row.label, row.index) == ("photos/a.jpg", "gradcam", "layer4", "cat", 0)
    assert (row.score, row.probability, row.box) == (3.0, 0.25, (1.0, 2.5, 30.0, 40.0))
    assert (row.predicted_label, row.true_label, row.correct) == ("dog", "cat", False)
    assert row.warnings == (RowWarning("Ranked 7th.", "low-rank"),)
    assert row.pictures == {"overlay": out / "0.gradcam.png"}


def test_fields_that_a_run_did_not_store_are_unknown(tmp_path: Path) -> None:
    (row,) = read_run_folder(write_run(tmp_path, [{"warnings": ["Ranked 7th."]}])).rows
    assert (row.predicted_label, row.true_label, row.correct) == (None, None, None)
    assert row.warnings == (RowWarning("Ranked 7th.", None),)


def test_codes_are_left_out_if_they_are_not_one_for_each_warning(tmp_path: Path) -> None:
    line = {"warnings": ["One.", "Two."], "warning_codes": ["low-rank"]}
    (row,) = read_run_folder(write_run(tmp_path, [line])).rows
    assert row.warnings == (RowWarning("One.", None), RowWarning("Two.", None))


def test_failures_and_the_run_are_read(tmp_path: Path) -> None:
    failures = [{"image": "b.jpg", "reason": "b.jpg is damaged."}]
    contents = read_run_folder(write_run(tmp_path, [{}], failures=failures, run={"camtool": "1.2"}))
    assert contents.failures == [ReportFailure("b.jpg", "b.jpg is damaged.")]
    assert contents.run == {"camtool": "1.2"}
    assert contents.notices == []


def test_damaged_lines_are_counted_and_the_others_read(tmp_path: Path) -> None:
    out = write_run(tmp_path, [{}, {}])
    with (out / "explanations.jsonl").open("ab") as stream:
        stream.write(b'{"image": "cut\n[1, 2]\n\xff\xfe\n\n{"image": "no method"}\n' + b"[" * 100_000 + b"\n")
    contents = read_run_folder(out)
    assert len(contents.rows) == 2
    assert contents.notices == ["5 lines of the run's files cannot be read."]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1" + "0" * 400, '"high"', "null", "true", "[1]"])
def test_what_is_no_finite_number_is_unknown(tmp_path: Path, value: str) -> None:
    out = write_run(tmp_path, [{}])
    line = (out / "explanations.jsonl").read_text().replace('"score": 3.0', f'"score": {value}')
    (out / "explanations.jsonl").write_text(line)
    (row,) = read_run_folder(out).rows
    assert row.score is None


def test_pictures_outside_the_folder_are_left_out(tmp_path: Path) -> None:
    out = write_run(tmp_path, [{"files": {"overlay": "a.png", "raw": "a.npy"}}, {}])
    text = (out / "explanations.jsonl").read_text()
    secret = str(tmp_path / "photos" / "0.png")
    for outside in ("../photos/0.png", secret):
        (out / "explanations.jsonl").write_text(text.replace('"a.png"', json.dumps(outside)))
        first, second = read_run_folder(out).rows
        assert first.pictures == {}
        assert [*second.pictures] == ["overlay"]


def test_more_rows_than_a_page_shows_are_counted(tmp_path: Path) -> None:
    contents = read_run_folder(write_run(tmp_path, [{}] * 5), max_rows=3)
    assert len(contents.rows) == 3
    assert contents.notices == ["The page shows the first 3 of 5 explanations."]


def test_a_run_in_which_every_photo_failed_is_read(tmp_path: Path) -> None:
    contents = read_run_folder(write_run(tmp_path, [], failures=[{"image": "a", "reason": "b"}]))
    assert (len(contents.rows), len(contents.failures)) == (0, 1)
