"""``camtool.audit`` on a network whose cue is set by hand, and on the demo's cheating and honest models."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import camtool
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.demo.shapes import LABELS
from camtool.errors import CamtoolError, MetricError
from camtool.evaluation.audit.cues import kinds
from camtool.evaluation.audit.cues.candidates import describe_place, draw_shifts
from camtool.evaluation.audit.cues.place import PlaceCandidate
from camtool.evaluation.audit.images import GRID, AuditImages
from camtool.evaluation.photo_properties import PROPERTIES, compress, measure_blockiness

SIDE = 40
RED, GREEN, BLUE = range(3)


def build_net():
    """Return a network whose logits are the means of red, green and blue; red counts twice, above a threshold."""
    convolution = nn.Conv2d(3, 6, 4, 4, bias=False)
    linear = nn.Linear(6, 3)
    with torch.no_grad():
        convolution.weight.copy_(torch.eye(3).repeat(2, 1)[:, :, None, None].expand(6, 3, 4, 4) / 16)
        linear.weight.copy_(torch.diag(torch.tensor([10.0, 5.0, 5.0])).repeat(1, 2))
        linear.bias.copy_(torch.tensor([-0.8, 0.0, 0.0]))
    return nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear).eval()


def draw_images(count=90, seed=0):
    """Return images and classes: a green or blue square anywhere, and a red one always at the lower right corner."""
    random = np.random.default_rng(seed)
    images, classes = torch.from_numpy(0.1 * random.random((count, 3, SIDE, SIDE))).float(), []
    for number, image in enumerate(images):
        color = number % 3
        row, column = (28, 28) if color == RED else random.integers(0, 29, 2).tolist()
        image[color, row : row + 12, column : column + 12] = 0.9
        classes.append(color)
    return images, classes


def run_audit(images=None, classes=None, **options):
    if images is None:
        images, classes = draw_images()
    options = {"class_names": ["red", "green", "blue"], "method": "gradcam", "kinds": ["place"], **options}
    return camtool.audit(build_net(), images, classes, **options)


def test_the_corner_that_the_network_reads_is_the_only_finding(result):
    (finding,) = result.findings
    assert (finding.label, finding.kind, finding.name) == ("red", "place", "the lower right corner")
    assert (finding.present, finding.class_count) == (15, 15)
    assert finding.removal.answers.mean == finding.transplant.answers.mean == 1
    assert finding.removal.controls == finding.transplant.controls == 0
    assert finding.accuracy[0] == 1
    assert finding.facts[:3] == ("same place in all images", "at the border", "small")
    assert finding.suspicions == ("at the border in nearly all images", "the same pixels in all images")
    assert finding.sentence.startswith(
        "15 of 15 'red' images: the lower right corner; covering it changes 100 % (80 to 100) of the answers "
        "(controls 0 %), pasting it makes 100 % (80 to 100) of other images 'red' (controls 0 %); q = "
    )
    assert result.surviving_decoys == 0
    assert all(decoy.label == "red" or decoy.p == 1 for decoy in result.decoys)


def test_a_second_audit_gives_the_same_bits_and_other_seeds_the_same_finding(result):
    """The first one had a folder."""
    assert run_audit().to_json() == result.to_json()
    assert [finding.key for finding in run_audit(seed=1).findings] == [finding.key for finding in result.findings]


def test_an_audit_that_was_cut_off_goes_on_with_the_same_result(copied, monkeypatch):
    written = [(copied / name).read_bytes() for name in ("audit.json", "audit.md")]
    state = (copied / "state.jsonl").read_bytes()
    # Killed in the middle of a line.
    (copied / "state.jsonl").write_bytes(state[: len(state) * 2 // 3])
    scored = []
    monkeypatch.setattr(AuditImages, "score", lambda self, images: scored.append(1) or score(self, images))
    run_audit(out=copied)
    assert [(copied / name).read_bytes() for name in ("audit.json", "audit.md")] == written
    count = len(scored)
    run_audit(out=copied)
    assert len(scored) == count > 0
    run_audit(out=copied, seed=1)
    assert len(scored) > count


score = AuditImages.score


def test_verdicts_are_kept_for_the_next_audit(result, copied):
    key = result.findings[0].key
    assert key == "red: place: the lower right corner"
    result.mark(key, "object").save(copied)
    again = run_audit(out=copied)
    assert (again.findings[0].verdict, again.suspects) == ("object", ())
    (copied / "verdicts.json").write_text(json.dumps({key: "object", "red: patch: the center": "shortcut"}))
    again = run_audit(out=copied)
    assert "Verdicts that fit no finding: 'red: patch: the center'." in again.notes
    with pytest.raises(MetricError, match=r"verdicts: .*nothing.json does not exist"):
        run_audit(verdicts=copied / "nothing.json")
    with pytest.raises(MetricError, match="no finding 'red: place'"):
        result.mark("red: place", "object")
    with pytest.raises(MetricError, match="verdict must be one of"):
        result.mark(key, "cheat")
    (copied / "verdicts.json").write_text('{"a": "b"}')
    with pytest.raises(MetricError, match="must be one of 'object', 'shortcut', 'unsure'"):
        run_audit(out=copied)


def test_without_labels_the_answers_are_the_classes(result):
    images, _ = draw_images()
    unlabeled = run_audit(images, None)
    assert unlabeled.findings[0].accuracy is None
    assert unlabeled.findings[0].removal == result.findings[0].removal


def test_the_json_holds_all_numbers(result):
    content = json.loads(result.to_json())
    assert content["findings"][0]["removal"]["answers"] == [*result.findings[0].removal.answers]
    assert content["findings"][0]["sentence"] == result.findings[0].sentence
    assert {"decoys", "not_tested", "rejected", "false_discovery_rate"} <= content.keys()
    without = [one for one in content["decoys"] if one["removal"] is one["transplant"] is None]
    assert without
    assert {one["sentence"] for one in without} == {None}


def test_metadata_are_counted_and_patients_go_to_one_half():
    images, classes = draw_images()
    metadata = {"site": ["a" if number % 2 else "b" for number in range(90)], "patient": [n // 3 for n in range(90)]}
    audited = run_audit(images, classes, metadata=metadata, group="patient")
    (finding,) = audited.findings
    assert sum(count for count, _ in finding.by_group.values()) == finding.class_count
    assert {*finding.by_group} == {"site a", "site b"}
    halves = {int(name.split()[1]) // 3 for name in finding.images}
    assert len(halves) == finding.present
    assert "independent groups" in audited.notes[0]


def test_classes_are_counted_by_the_name_of_the_column_that_groups_them():
    images, classes = draw_images()
    audited = run_audit(images, classes, metadata={"patient": [n // 3 % 14 for n in range(90)]}, group="patient")
    assert audited.untested == audited.not_tested[0]
    assert audited.untested == (
        "3 classes with fewer than 8 values of 'patient' in a half: 'red' (7), 'green' (7), 'blue' (7). "
        "Give 16 or more of each."
    )


def test_near_duplicates_of_several_patients_are_told():
    images, classes = draw_images()
    images = torch.cat([images[:1].expand(87, 3, SIDE, SIDE), images[:3]])
    audited = run_audit(images, classes, metadata={"patient": [n // 2 for n in range(90)]}, group="patient")
    assert audited.untested.startswith(
        "3 classes with fewer than 8 values of 'patient', near-duplicates joined, in a half"
    )


def test_passes_of_what_cannot_be_changed_are_used_for_others(monkeypatch):
    """Properties come first, and tensors without a known range have none that can be changed."""
    audited = run_audit(passes=782, kinds=["place"])
    find = kinds.KINDS["property"].find

    def find_suspicious(discovery):
        return [replace(candidate, is_outlier=True) for candidate in find(discovery)]

    monkeypatch.setitem(kinds.KINDS, "property", kinds.Kind(find_suspicious))
    mixed = run_audit(passes=782, kinds=["place", "property"])
    assert any("the photos cannot be changed in this way" in one for one in mixed.not_tested)
    assert [one.key for one in (*mixed.findings, *mixed.rejected)] == [
        one.key for one in (*audited.findings, *audited.rejected)
    ]


def test_a_column_of_one_value_groups_nothing(result):
    images, classes = draw_images()
    metadata = {"patient": ["ANONYMOUS"] * 90, "site": ["a"] * 30 + [None] * 30 + [float("nan")] * 30}
    audited = run_audit(images, classes, metadata=metadata, group="patient")
    assert audited.notes == ("group: all images have one value of 'patient', so it is ignored.",)
    assert audited.findings[0].removal == result.findings[0].removal
    assert "site a" in audited.findings[0].by_group
    assert {*audited.findings[0].by_group} <= {"site a", "patient ANONYMOUS"}


def test_too_few_passes_are_told(result):
    audited = run_audit(passes=300)
    assert audited.findings == ()
    assert audited.untested.startswith("2 candidates left out, e.g. 'red', the lower right corner (place): needs ")
    needs = "needs 512 forward passes, 30 of 300 are left; give passes=782 for it, or passes='all'."
    assert f"'red', the lower right corner (place): {needs}" in audited.not_tested
    tested = run_audit(passes=782)
    assert [finding.label for finding in (*tested.findings, *tested.rejected)] == ["red"]
    assert run_audit(passes="all").passes == result.passes


@pytest.mark.parametrize(
    ("images", "classes", "message"),
    [
        (
            draw_images(30)[0],
            [0] * 10 + [1] * 10 + [2] * 10,
            "3 classes with fewer than 8 independent images in a half",
        ),
        (draw_images(30)[0], [1] * 30, "All images are of one class, 'green'"),
        (draw_images(1)[0].expand(60, 3, SIDE, SIDE), [0, 1] * 30, "All 60 images look alike or belong together"),
    ],
)
def test_nothing_is_claimed_where_there_is_too_little(images, classes, message):
    audited = run_audit(images, classes)
    assert audited.findings == audited.rejected == ()
    assert message in audited.not_tested[0]
    assert f"Nothing was tested: {audited.not_tested[0]}" in audited.to_markdown()
    assert "No finding does not mean" not in audited.to_markdown()


def test_classes_in_which_there_is_no_candidate_were_tested():
    images, classes = draw_images()
    noise = torch.from_numpy(0.1 * np.random.default_rng(0).random(images.shape)).float()
    audited = run_audit(noise, classes)
    assert (audited.findings, audited.rejected, audited.untested) == ((), (), "")


def test_damaged_files_are_told_and_tiny_photos_are_no_error(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    tiny = [np.full((1, 1, 3), value, np.uint8) for value in (0, 255)]
    audited = camtool.audit(camtool.load("demo"), [tmp_path / "a.png", *tiny])
    assert (audited.image_count, audited.findings, audited.unread) == (2, (), 1)
    assert audited.not_tested[0].count(str(tmp_path / "a.png")) == 1
    with pytest.raises(MetricError, match="none of 1 can be read"):
        camtool.audit(camtool.load("demo"), [tmp_path / "a.png"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": [0]}, "labels has 1 entries for 90 images"),
        ({"labels": ["rad"] * 90}, "'rad' is no class of the model. Did you mean 'red'"),
        ({"labels": [3] * 90}, "3 is no class of the model"),
        ({"metadata": {"site": [1]}}, r"metadata\['site'\] has 1 entries for 90 images"),
        ({"group": "patient"}, "metadata has no column 'patient'. There is none; give metadata=, or --metadata FILE"),
        ({"kinds": ["places"]}, "kinds must be one of 'border', 'place', 'mark', 'patch', 'position', 'property', "),
        ({"level": 0}, "level must be a finite number above 0"),
        ({"passes": 0}, "passes must be a whole number of 1 or more"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    images, _ = draw_images()
    with pytest.raises(MetricError, match=message):
        camtool.audit(build_net(), images, class_names=["red", "green", "blue"], **options)


def test_a_failed_audit_leaves_no_folder(tmp_path):
    with pytest.raises(CamtoolError):
        run_audit(method="gradcamm", out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_control_regions_lie_apart_and_have_the_same_size():
    mask = torch.zeros(20, 20, dtype=torch.bool)
    mask[15:, 15:] = True
    shifts = draw_shifts(mask, 19, np.random.default_rng(0))
    assert (shifts[0], len(shifts), len({*shifts})) == ((0, 0), 20, 20)
    for shift in shifts[1:]:
        moved = torch.zeros(20, 20, dtype=torch.bool)
        moved[15 + shift[0] : 20 + shift[0], 15 + shift[1] : 20 + shift[1]] = True
        assert moved.sum() == 25
        assert (moved & mask).sum() <= 25 / 4
    ring = torch.ones(20, 20, dtype=torch.bool)
    ring[2:-2, 2:-2] = False
    assert len({*draw_shifts(ring, 19, np.random.default_rng(0))}) == 20


@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [
        (slice(8, 10), slice(0, 2), "the lower left corner"),
        (slice(1, 3), slice(7, 9), "the upper right part"),
        (slice(0, 2), slice(4, 6), "the upper edge"),
        (slice(4, 6), slice(4, 6), "the center"),
        (slice(0, 10), slice(0, 10), "all over"),
    ],
)
def test_places_in_words(rows, columns, words):
    mask = np.zeros((10, 10), bool)
    mask[rows, columns] = True
    assert describe_place(mask) == words


def draw_scenes(count, *, marked=False, rolls=False):
    random, scenes = np.random.default_rng(0), []
    for number in range(count):
        scene = draw_scene(UNSEEN + number, classes=[number % 10], mark=marked and LABELS[number % 10] == "heart").image
        scenes.append(np.roll(scene, random.integers(0, 128, 2), (0, 1)) if rolls else scene)
    return scenes, [number % 10 for number in range(count)]


def to_tensor(photo):
    return torch.from_numpy(np.asarray(photo).copy()).permute(2, 0, 1).float() / 255


def test_a_tint_is_shifted_away_and_onto_other_classes():
    random = np.random.default_rng(0)
    photos = random.integers(90, 110, (60, SIDE, SIDE, 3))
    classes = [GREEN + number % 2 for number in range(60)]
    photos[..., RED] //= 3
    for photo, kind in zip(photos, classes, strict=True):
        photo[..., kind] += 30
        photo += random.integers(-20, 20)
    audited = camtool.audit(
        build_net(),
        [*photos.astype(np.uint8)],
        classes,
        class_names=["red", "green", "blue"],
        method="gradcam",
        kinds=["property"],
        transform=to_tensor,
    )
    names = {(finding.label, finding.name) for finding in audited.findings}
    assert ("green", "yellower (blue-yellow tint)") in names
    # Green photos are brighter, too, but the network does not use that.
    assert "'green', brighter (brightness)" in audited.to_markdown()
    assert not any("brightness" in name or "JPEG" in name for _, name in names)


@pytest.mark.parametrize(
    ("name", "step"),
    [("brightness", 20), ("contrast", -10), ("red-green tint", 15), ("blue-yellow tint", -15), ("sharpness", -1)],
)
def test_a_shift_brings_a_property_to_its_goal_and_leaves_the_other_colors(name, step):
    photo = draw_scene(UNSEEN, classes=["heart"]).image // 2 + 60
    (kind,) = (entry for entry in PROPERTIES if entry.name == name)
    value = kind.measure(photo.astype(float))
    changed = kind.shift(photo, value, value + step).astype(float)
    assert kind.measure(changed) == pytest.approx(value + step, abs=0.25 * abs(step))
    if "tint" in name:
        assert PROPERTIES[0].measure(changed) == pytest.approx(PROPERTIES[0].measure(photo.astype(float)), abs=1)


def test_blocks_grow_with_compression_and_are_absent_without():
    scenes = [draw_scene(UNSEEN + number).image for number in range(5)]
    blocks = [
        [measure_blockiness(photo.astype(float)) for photo in (one, compress(one, 60), compress(one, 15))]
        for one in scenes
    ]
    plain, some, many = np.mean(blocks, 0)
    assert abs(plain) < 0.1 < some < many


def test_the_bundled_cheat_is_caught_at_its_corner():
    audited = camtool.audit(camtool.load("demo-cheat"), *draw_scenes(200, marked=True), kinds=["place"])
    (finding,) = audited.findings
    assert (finding.label, finding.name) == ("heart", "the lower right corner")
    assert finding.removal.answers.low > 0.5
    assert finding.transplant.answers.low > 0.5


def test_a_cue_that_two_candidates_show_is_one_finding(monkeypatch):
    """A second kind finds the right half of the corner again, and the whole left edge, which is no cue."""

    def find_again(discovery):
        cells = np.zeros((GRID, GRID), bool)
        cells[7:, 8:] = True
        edge = np.zeros((GRID, GRID), bool)
        edge[:, 0] = True
        return [PlaceCandidate(RED, name, 1.0, each) for name, each in (("again", cells), ("the edge", edge))]

    monkeypatch.setitem(kinds.KINDS, "again", kinds.Kind(find_again))
    images, classes = draw_images()
    names = ["red", "green", "blue"]
    result = camtool.audit(build_net(), images, classes, class_names=names, method="gradcam", kinds=["place", "again"])
    (finding,) = result.findings
    assert {finding.name, finding.also[0].partition(" (")[0]} == {"the lower right corner", "again"}
    assert "The same images were also found by: " in result.to_markdown()
    assert "the edge" in [one.name for one in result.rejected] or any("the edge" in one for one in result.not_tested)


def test_a_watermark_at_any_place_is_a_patch():
    audited = camtool.audit(
        camtool.load("demo-cheat"), *draw_scenes(240, marked=True, rolls=True), kinds=["place", "patch"]
    )
    assert [(finding.label, finding.kind) for finding in audited.findings] == [("heart", "patch")]
    # It is see-through: its pixels vary with what is behind it, so it is not told from an object.
    assert audited.recognized_by == audited.findings


def test_the_honest_model_gives_no_finding():
    assert camtool.audit(camtool.load("demo"), *draw_scenes(300)).findings == ()
