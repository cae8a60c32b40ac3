"""True classes from a CSV file: which photo and which class a row means, and rows that are refused."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from camtool.errors import CamtoolError
from camtool.runs.job_list import Plan, plan_run
from camtool.runs.photo_tables import TrueClass, TrueClasses, match_masks, read_truth_table
from tests.runs.photos import write_photo

LABELS = ["ant", "bee", "Crane", "crane", "Käfer", "7"]


@pytest.fixture
def plan(tmp_path) -> Plan:
    for name in ("a.png", "b.png", "sub/a.png", "sub/c.png"):
        write_photo(tmp_path / "photos" / name)
    return plan_run([str(tmp_path / "photos")], recursive=True)


def read(plan: Plan, text: str | bytes, labels=LABELS, count=None) -> TrueClasses:
    path = plan.folders[0].parent / "labels.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_truth_table(path, plan, labels, count)


def by_name(plan: Plan, found: TrueClasses) -> dict[str, int]:
    return {photo.relative_to(plan.folders[0]).as_posix(): each.index for photo, each in found.by_photo.items()}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("image,label\na.png,ant\nsub/a.png,bee\n", {"a.png": 0, "sub/a.png": 1}),
        ("image,label\nc.png,bee\n", {"sub/c.png": 1}),
        ("image,label\nsub\\c.png,bee\n./b.png,1\n", {"sub/c.png": 1, "b.png": 1}),
        ("label,more,image\nbee,x,b.png\n", {"b.png": 1}),
        (" Image ; LABEL \r\n b.png ; bee \r\n\r\n", {"b.png": 1}),
        ("image\tlabel\nb.png\tbee", {"b.png": 1}),
        ("image\tlabel\tnote\nb.png\tbee\ta, b, c, d, e, f", {"b.png": 1}),
        ("image;label;note\r\nb.png;bee;a, b, c, d, e, f\r\n", {"b.png": 1}),
        ('\ufeffimage,label\n"b.png","bee"\n', {"b.png": 1}),
        ("image,label\nb.png,BEE\na.png,4\nc.png,käfer", {"b.png": 1, "a.png": 4, "sub/c.png": 4}),
        ("image,label\nb.png,bee\nb.png,1\n", {"b.png": 1}),
        ("image,index,label\nb.png,5,ant\n", {"b.png": 5}),
        ("Filename,label\nb.png,bee\n", {"b.png": 1}),
        ("file,image,label\na.png,b.png,bee\n", {"b.png": 1}),
    ],
)
def test_a_row_names_a_photo_and_a_class(plan, text, wanted):
    assert by_name(plan, read(plan, text)) == wanted


def test_a_path_in_the_folder_wins_over_a_file_name(plan):
    assert by_name(plan, read(plan, "image,label\na.png,bee\n")) == {"a.png": 1}


def test_absolute_paths_and_paths_as_given_are_found(plan):
    photo = plan.jobs[1].source
    assert read(plan, f"image,label\n{photo.resolve()},bee\n").by_photo == {photo: TrueClass(1, "bee")}


def test_accents_are_the_same_in_both_ways_of_writing(tmp_path):
    write_photo(tmp_path / "photos" / unicodedata.normalize("NFD", "Bär.png"))
    plan = plan_run([str(tmp_path / "photos")])
    assert len(read(plan, unicodedata.normalize("NFC", "image,label\nBär.png,Käfer\n")).by_photo) == 1


def test_without_names_labels_are_indices(plan):
    assert read(plan, "image,label\nb.png,900\n", labels=None).by_photo[plan.jobs[1].source] == TrueClass(
        900, "class 900"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["line 1", "no column 'image'", "nothing"]),
        ("photo,label\na.png,ant\n", ["line 1", "no column 'image'", "'photo', 'label'"]),
        ("file,path,label\na.png,a.png,ant\n", ["line 1", "no column 'image'", "'file', 'path', 'label'"]),
        ("image,class\na.png,ant\n", ["line 1", "no column 'label'"]),
        ("image,label\nb.png,ant\nc.png\n", ["line 3", "no label"]),
        ("image,label\nb.png, \n", ["line 2", "no label"]),
        ("image,label\nb.png,bea\n", ["line 2", "'bea'", "Did you mean 'bee'"]),
        ("image,label\nb.png,crane\n", ["line 2", "2, 3", "indices"]),
        ("image,label\nb.png,6\n", ["line 2", "class 6 does not exist", "0 to 5"]),
        ("image,label\nb.png,7\n", ["line 2", "class 5", "column 'index'"]),
        ("image,label\nb.png,-1\n", ["line 2", "'-1'"]),
        ("image,index\nb.png,bee\n", ["line 2", "index 'bee'"]),
        ("image,label\nb.png,ant\n\nb.png,bee\n", ["line 4", "'bee'", "line 2", "'ant'"]),
        ("image,label\nz.png,ant\n", ["no row is about a photo"]),
        (b"image,label\nb.png,K\xe4fer\n", ["cannot be read", "utf-8"]),
        ("image,label\n" + "b" * 200_000 + ",ant\n", ["cannot be read", "field larger"]),
    ],
)
def test_a_wrong_table_is_refused_with_the_line(plan, text, words):
    with pytest.raises(CamtoolError) as error:
        read(plan, text)
    assert [word for word in (*words, "labels.csv") if word not in str(error.value)] == []


@pytest.mark.parametrize(
    ("masks", "wanted"),
    [
        (["c.gif", "b.png"], {"b.png": "b.png", "sub/c.png": "c.gif"}),
        (["a.png", "sub/a.png"], {"a.png": "a.png", "sub/a.png": "sub/a.png"}),
        (["a.png", "sub/b.png", "other.png"], {"a.png": "a.png"}),
        (["d.png.gif", "d.jpg.gif"], {"d.png": "d.png.gif", "d.jpg": "d.jpg.gif"}),
        (["d.png"], "image 'd' is the name of 2 photos, e.g. .*d.jpg and .*d.png; give the mask the path of its photo"),
        (["b.png", "b.gif"], "has two masks of .*b.png, .*b.gif and .*b.png; leave one"),
        (["c.png", "sub/c.png"], "has two masks of .*c.png"),
    ],
)
def test_a_mask_has_the_path_or_the_name_of_its_photo(plan, masks, wanted):
    photos, folder = plan.folders[0], plan.folders[0].parent / "masks"
    for path in (photos / "d.png", photos / "d.jpg", *(folder / mask for mask in masks)):
        write_photo(path)
    plan = plan_run([str(photos)], recursive=True)
    if isinstance(wanted, str):
        with pytest.raises(CamtoolError, match=f"^--region {folder}.*{wanted}"):
            match_masks(folder, plan, f"--region {folder}")
    else:
        found = match_masks(folder, plan, "").items()
        assert {
            photo.relative_to(photos).as_posix(): mask.relative_to(folder).as_posix() for photo, mask in found
        } == wanted


def test_an_ambiguous_file_name_is_refused(tmp_path):
    for name in ("one/a.png", "two/a.png"):
        write_photo(tmp_path / "photos" / name)
    plan = plan_run([str(tmp_path / "photos")], recursive=True)
    with pytest.raises(CamtoolError, match=r"line 2: image 'a.png' is the name of 2 photos"):
        read(plan, "image,label\na.png,ant\n")
    assert by_name(plan, read(plan, "image,label\none/a.png,ant\n")) == {"one/a.png": 0}


def test_names_without_known_classes_and_too_high_indices_are_refused(plan):
    with pytest.raises(CamtoolError, match="no class names are known"):
        read(plan, "image,label\nb.png,ant\n", labels=None)
    with pytest.raises(CamtoolError, match="class 3 does not exist"):
        read(plan, "image,label\nb.png,3\n", labels=None, count=3)


def test_gaps_are_described(plan):
    found = read(plan, "image,label\nb.png,ant\nnowhere.png,ant\n")
    path = plan.folders[0].parent / "labels.csv"
    assert found.describe_gaps(plan) == [f"3 photos without a row in {path}.", f"1 row of {path} about no photo."]
    assert TrueClasses(None, {}, 0).describe_gaps(plan) == []
    assert Path(path).is_file()
