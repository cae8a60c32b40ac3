"""Plan of a cluster run: which photos are in which shard, from folders, URIs, archives and tables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import camtool
from camtool.runs.cluster import cluster_plan
from camtool.runs.cluster.cluster_plan import open_photo
from tests.runs.cluster.photos import plan_shards, write_scenes, write_tar

pa = pytest.importorskip("pyarrow")
fsspec = pytest.importorskip("fsspec")
import pyarrow.parquet as pq  # noqa: E402


@pytest.fixture
def photos(tmp_path) -> Path:
    write_scenes(tmp_path / "photos", 5)
    write_scenes(tmp_path / "photos" / "sub", 1)
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    return tmp_path / "photos"


@pytest.fixture
def memory(photos):
    """The photos in a file system in memory, as ``memory://bucket/...``."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    for path in photos.rglob("*.*"):
        filesystem.pipe(f"/bucket/{path.relative_to(photos).as_posix()}", path.read_bytes())
    yield filesystem
    filesystem.store.clear()


def list_photos(plan):
    return [[photo.path for photo in shard.source.iterate_photos()] for shard in plan.shards]


def test_photos_are_divided_in_order_each_once(photos):
    plan = plan_shards([str(photos / "003.png"), str(photos)], shard_size=2)
    names = [[Path(path).name for path in part] for part in list_photos(plan)]
    assert names == [["003.png", "000.png"], ["001.png", "002.png"], ["004.png"]]
    assert all(Path(path).is_absolute() for part in list_photos(plan) for path in part)


def test_the_same_photos_give_the_same_names_and_others_do_not(photos):
    def name_all(*paths, **options):
        plan = plan_shards([str(photos / path) for path in paths], **{"shard_size": 2, **options})
        return [shard.name for shard in plan.shards], plan.digest

    names, digest = name_all("")
    assert name_all("") == (names, digest)
    assert len({*names}) == 3
    assert name_all("", recursive=True)[0][:2] == names[:2]
    assert name_all("", recursive=True)[1] != digest
    assert not {*name_all("", shard_size=3)[0]} & {*names}
    assert name_all("001.png", "000.png")[0][0] != names[0]


def test_results_in_the_output_folder_are_no_photos(photos):
    write_scenes(photos / "out" / "overlays", 2)
    (part,) = list_photos(plan_shards([str(photos)], recursive=True, out=photos / "out"))
    assert len(part) == 6


@pytest.mark.parametrize(
    ("path", "recursive", "names"),
    [
        ("memory://bucket", False, ["000", "001", "002", "003", "004"]),
        ("memory://bucket", True, ["000", "001", "002", "003", "004", "sub/000"]),
        ("memory://bucket/00[13].png", False, ["001", "003"]),
        ("memory://bucket/**/*.png", False, ["000", "001", "002", "003", "004", "sub/000"]),
        ("memory://bucket/*/*.png", False, ["sub/000"]),
        ("memory://bucket/002.png", False, ["002"]),
    ],
)
def test_folders_patterns_and_files_of_a_uri(memory, photos, path, recursive, names):
    plan = plan_shards([path], recursive=recursive)
    (found,) = (list(shard.source.iterate_photos()) for shard in plan.shards)
    assert [photo.path for photo in found] == [f"memory:///bucket/{name}.png" for name in names]
    assert open_photo(found[0]) == (photos / f"{names[0]}.png").read_bytes()


def test_a_photo_that_two_uris_name_is_explained_once(memory):
    plan = plan_shards(["memory://bucket/002.png", "memory://bucket", "memory://bucket/00*.png"])
    assert [Path(path).stem for path in list_photos(plan)[0]] == ["002", "000", "001", "003", "004"]


def test_a_file_uri_is_read_through_pyarrow(photos):
    (found,) = (list(shard.source.iterate_photos()) for shard in plan_shards([photos.as_uri()]).shards)
    assert [photo.path for photo in found] == [(photos / f"00{number}.png").as_uri() for number in range(5)]
    assert open_photo(found[2]) == (photos / "002.png").read_bytes()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("memory://bucket/nothing", "no such file"),
        ("memory://bucket/*.jpg", "no images found"),
        ("unknown-scheme://bucket", "cannot be opened"),
        ("missing/*.tar", "no such file"),
        ("missing.parquet", "no such file"),
        ("missing", "no such file"),
    ],
)
def test_a_path_without_images_is_an_error(memory, path, message):
    with pytest.raises(camtool.CamtoolError, match=message):
        plan_shards([path])


def test_credentials_in_a_uri_are_in_no_name():
    place = pytest.importorskip("camtool.runs.cluster.remote_files").locate(
        "s3://some-key:some-secret@bucket/photos?region=eu-west-1&scheme=https"
    )
    file = place.get_file("bucket/photos/a.jpg")
    assert file.name == "s3://bucket/photos/a.jpg"


# ----------------------------------------------------------------------------------------------------- archives


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tgz"])
def test_an_archive_is_a_shard_whose_images_are_photos(tmp_path, photos, suffix):
    content = (photos / "000.png").read_bytes()
    files = {"a/x.png": content, "a/x.json": b"{}", "../../y.PNG": b"broken", ".hidden.png": b""}
    archive = write_tar(tmp_path / f"data.{suffix}", files)
    (shard,) = plan_shards([str(tmp_path / f"*.{suffix}")]).shards
    found = list(shard.source.iterate_photos())
    assert [photo.path for photo in found] == [f"{archive}/a/x.png", f"{archive}/../../y.PNG"]
    assert found[0].data == content


@pytest.mark.parametrize("keep", [0.2, 0.7])
def test_a_cut_archive_gives_its_whole_members_and_a_failure(tmp_path, photos, keep):
    files = {path.name: path.read_bytes() for path in sorted(photos.glob("*.png"))}
    archive = write_tar(tmp_path / "data.tar", files)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(len(whole) * keep)])
    (shard,) = plan_shards([str(archive)]).shards
    *read, last = shard.source.iterate_photos()
    assert str(archive) in last.failure
    assert 0 < len(read) < 5
    assert all(photo.data == files[Path(photo.path).name] for photo in read)


def test_a_member_that_claims_to_be_huge_is_a_failure(tmp_path, monkeypatch):
    write_tar(tmp_path / "data.tar", {"a.png": b"x" * 2000, "b.png": b"y"})
    monkeypatch.setattr(cluster_plan, "_MAX_MEMBER_BYTES", 1000)
    (shard,) = plan_shards([str(tmp_path / "data.tar")]).shards
    large, small = shard.source.iterate_photos()
    assert "2000 bytes" in large.failure
    assert small.data == b"y"


# ------------------------------------------------------------------------------------------------------- tables


def write_table(path: Path, table: dict, *, rows_in_group: int = 2) -> Path:
    pq.write_table(pa.table(table), path, row_group_size=rows_in_group)
    return path


def test_row_groups_are_put_together_until_a_shard_is_full(tmp_path):
    path = write_table(
        tmp_path / "a.parquet", {"url": [f"u{i}" for i in range(9)], "bytes": [b"%d" % i for i in range(9)]}
    )
    plan = plan_shards([str(path)], shard_size=3)
    assert list_photos(plan) == [["u0", "u1", "u2", "u3"], ["u4", "u5", "u6", "u7"], ["u8"]]
    assert [photo.data for photo in plan.shards[1].source.iterate_photos()] == [b"4", b"5", b"6", b"7"]


def test_images_as_hugging_face_writes_them(tmp_path):
    images = [{"bytes": b"0", "path": "a.png"}, {"bytes": b"1", "path": None}, {"bytes": None, "path": "c.png"}]
    path = write_table(tmp_path / "a.parquet", {"image": images, "label": [1, 2, 3]}, rows_in_group=1)
    found = [
        photo for shard in plan_shards([str(path)], shard_size=1).shards for photo in shard.source.iterate_photos()
    ]
    assert [photo.path for photo in found] == ["a.png", f"{path}/1", "c.png"]
    assert [photo.data for photo in found] == [b"0", b"1", None]
    assert found[2].failure == "c.png: the row holds no image."


def test_an_unclear_column_is_an_error_that_the_option_solves(tmp_path):
    path = write_table(tmp_path / "a.parquet", {"left": [b"0"], "right": [b"1"], "id": ["x"]})
    with pytest.raises(camtool.ImageError, match=r"--image-column.*left \(binary\), right \(binary\), id \(string\)"):
        plan_shards([str(path)])
    with pytest.raises(camtool.ImageError, match="'id'"):
        plan_shards([str(path)], image_column="id")
    (shard,) = plan_shards([str(path)], image_column="right").shards
    assert [(photo.path, photo.data) for photo in shard.source.iterate_photos()] == [("x", b"1")]


def test_a_table_that_is_none_is_an_error(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"no table")
    with pytest.raises(camtool.ImageError, match="Parquet"):
        plan_shards([str(tmp_path / "a.parquet")])


@pytest.mark.skipif(os.name != "posix", reason="Windows keeps open files")
def test_a_table_that_is_damaged_later_gives_a_failure(tmp_path):
    path = write_table(tmp_path / "a.parquet", {"bytes": [os.urandom(1000)] * 4})
    (shard,) = plan_shards([str(path)]).shards
    content = path.read_bytes()
    path.write_bytes(content[:200] + b"\0" * 2000 + content[2200:])
    assert any(photo.failure for photo in shard.source.iterate_photos())


@pytest.mark.parametrize("path", ["data.parquet", "data.parquet/", "*.parquet", "memory://bucket/data.parquet"])
def test_a_table_may_be_a_folder_as_spark_writes_it(tmp_path, memory, monkeypatch, path):
    names = ["part-00001.snappy.parquet", "part-00000.snappy.parquet", "day=1/part-00000.parquet"]
    left_out = [".part-00000.snappy.parquet", "_temporary/0/part-00002.parquet"]
    folder = tmp_path / "data.parquet"
    for name in (*names, *left_out):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_table(folder / name, {"path": [name], "bytes": [b"0"]})
    for name in ("_SUCCESS", ".part-00000.snappy.parquet.crc"):
        (folder / name).write_bytes(b"")
    for file in (file for file in folder.rglob("*") if file.is_file()):
        memory.pipe(f"/bucket/{file.relative_to(tmp_path).as_posix()}", file.read_bytes())
    monkeypatch.chdir(tmp_path)
    assert list_photos(plan_shards([path])) == [[name] for name in sorted(names)]
    for name in names:
        (folder / name).unlink()
        memory.rm(f"/bucket/data.parquet/{name}")
    with pytest.raises(camtool.ImageError, match="no such file, and no folder with Parquet files"):
        plan_shards([path])
