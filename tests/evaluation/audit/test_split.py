"""Halves of images: near-duplicates, bursts and patients stay together, and names do not matter."""

from __future__ import annotations

import io

import numpy as np
import pandas
from PIL import Image

from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.evaluation.audit.split import compute_perceptual_hash, group_images, read_capture_time, split_in_halves

SCENES = [draw_scene(UNSEEN + seed).image for seed in range(40)]


def hash_all(photos):
    return np.stack([compute_perceptual_hash(photo) for photo in photos])


def test_the_hash_by_hand():
    ramp = np.repeat(np.arange(17, dtype=np.uint8)[None, :, None] * 10, 16, 0).repeat(3, 2)
    assert compute_perceptual_hash(ramp).tolist() == [255] * 32
    assert compute_perceptual_hash(ramp[:, ::-1].copy()).tolist() == [0] * 32
    assert compute_perceptual_hash(np.full((1, 1, 3), 7, np.uint8)).tolist() == [0] * 32


def test_resized_compressed_and_brighter_copies_are_one_group_and_other_scenes_are_not():
    stream = io.BytesIO()
    Image.fromarray(SCENES[3]).resize((100, 100)).save(stream, "JPEG", quality=60)
    copies = [np.asarray(Image.open(stream)), np.clip(SCENES[5].astype(int) + 12, 0, 255).astype(np.uint8)]
    groups = group_images(hash_all([*SCENES, *copies]))
    assert groups[40:] == [3, 5]
    assert len({*groups}) == 40


def test_chains_and_columns_are_joined():
    hashes = hash_all(SCENES[:6])
    for missing in (None, float("nan"), pandas.NA, pandas.NaT):
        assert group_images(hashes, None, ["a", "b", "a", missing, missing, "b"]) == [0, 1, 0, 3, 4, 1]
    times = [("x", 10.0), ("x", 11.5), ("x", 13.0), ("y", 11.0), None, ("x", 20.0)]
    assert group_images(hashes, times) == [0, 0, 0, 3, 4, 5]


def test_the_time_is_the_camera_s_own(tmp_path):
    exif = Image.Exif()
    exif[271], exif.get_ifd(34665)[36867] = "Maker", "2024:05:01 10:00:02"
    Image.fromarray(SCENES[0]).save(tmp_path / "a.jpg", exif=exif)
    Image.fromarray(SCENES[0]).save(tmp_path / "b.jpg")
    (tmp_path / "c.jpg").write_bytes(b"no image")
    camera, seconds = read_capture_time(tmp_path / "a.jpg")
    assert (camera, seconds % 86400) == (f"{tmp_path} Maker ", 36002)
    others = [tmp_path / "b.jpg", tmp_path / "c.jpg", SCENES[0], "https://a.b/c.jpg"]
    assert [read_capture_time(other) for other in others] == [None] * 4


def test_groups_stay_together_and_classes_are_balanced():
    hashes, classes = hash_all(SCENES), [seed % 2 for seed in range(40)]
    groups = [0, 1, 0, 0, *range(4, 40)]
    confirms = split_in_halves(hashes, groups, classes)
    assert len({confirms[0], confirms[2], confirms[3]}) == 1
    counts = [sum(confirms[image] for image in range(40) if classes[image] == one) for one in (0, 1)]
    assert all(8 <= count <= 12 for count in counts)


def test_the_halves_depend_on_pixels_and_seed_alone():
    hashes, classes = hash_all(SCENES), [0] * 40
    confirms = split_in_halves(hashes, list(range(40)), classes)
    backwards = split_in_halves(hashes[::-1], list(range(40)), classes)
    assert (backwards[::-1] == confirms).all()
    assert (split_in_halves(hashes, list(range(40)), classes, seed=1) != confirms).any()


def draw_discs(count):
    """Return photos of 224 pixels with a gray disc of radius 30 on white, each 15 pixels from the others or more."""
    random, grid, photos, centers = np.random.default_rng(0), np.indices((224, 224)), [], []
    while len(centers) < count:
        center = random.integers(30, 194, 2)
        if all(np.linalg.norm(center - other) >= 15 for other in centers):
            centers.append(center)
    for row, column in centers:
        photo = np.full((224, 224, 3), 255, np.uint8)
        photo[(grid[0] - row) ** 2 + (grid[1] - column) ** 2 <= 900] = 90
        photos.append(photo)
    return photos


def test_photos_of_a_plain_background_are_told_apart_and_their_copies_are_not():
    photos = draw_discs(40)
    assert len({*group_images(hash_all(photos))}) == 40
    for photo in photos:
        stream = io.BytesIO()
        Image.fromarray(photo).resize((180, 180)).save(stream, "JPEG", quality=75)
        assert group_images(hash_all([photo, np.asarray(Image.open(stream))])) == [0, 0]
    blank = [np.full((20, 20, 3), value, np.uint8) for value in (0, 255)]
    assert group_images(hash_all(blank)) == [0, 0]
