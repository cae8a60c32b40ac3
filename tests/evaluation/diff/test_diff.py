"""``camtool.diff`` on networks whose cues are set by hand, and on the demo's honest and cheating models."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import warnings
from dataclasses import replace
from html import unescape
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import v2

import camtool
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.errors import CamtoolError, ImageError, MetricError
from camtool.evaluation.audit.images import AuditImages
from camtool.evaluation.audit.state import Run, State, hold_folder
from camtool.evaluation.audit.statistics import run_sign_flip_test, run_swap_test
from camtool.evaluation.diff.pairs import PairedImages, PairRecord, find_common_box, place_in_box
from camtool.evaluation.diff.regions import find_moved_regions
from camtool.evaluation.leaderboard.table import Interval
from camtool.evaluation.subject import Subject
from camtool.geometry.crop_and_resize import Geometry
from camtool.models import Loaded

SIDE = 40
RED, GREEN, BLUE = range(3)
NAMES = ("apple", "sky")
OBJECT = {"apple": RED, "sky": BLUE}
MARK = {"apple": GREEN, "sky": BLUE}


def build_net(colors, cell=4):
    """Return a network whose logit of a class is 200 times the mean of a color; without evidence it is the sky."""
    convolution, linear = nn.Conv2d(3, 3, cell, cell, bias=False), nn.Linear(3, 2)
    with torch.no_grad():
        convolution.weight.copy_(torch.eye(3)[:, :, None, None].expand(3, 3, cell, cell) / cell**2)
        linear.weight.zero_()
        linear.bias.copy_(torch.tensor([0.0, 1.0]))
        for row, name in enumerate(NAMES):
            linear.weight[row, colors[name]] = 200
    return nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear).eval()


def draw_photos(count=60, seed=0):
    """Return photos and classes: a red square anywhere and a green mark in the lower right corner, or a blue square."""
    random = np.random.default_rng(seed)
    photos = (0.05 * random.random((count, SIDE, SIDE, 3)) * 255).astype(np.uint8)
    labels = [NAMES[number % 2] for number in range(count)]
    for photo, label in zip(photos, labels, strict=True):
        row, column = random.integers(0, 17, 2).tolist()
        photo[row : row + 12, column : column + 12, OBJECT[label]] = 230
        if label == "apple":
            photo[32:, 32:, GREEN] = 230
    return [*photos], labels


def load(colors, size=SIDE, crop=None, cell=4):
    steps = [v2.Resize((size, size))] + ([] if crop is None else [v2.CenterCrop(crop)])
    transform = v2.Compose([*steps, v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])
    return Loaded(build_net(colors, cell), transform, NAMES, "net")


def compare(old=None, new=None, photos=None, labels=None, **options):
    if photos is None:
        photos, labels = draw_photos()
    old, new = old or load(OBJECT), new or load(MARK)
    return camtool.diff(old, new, photos, labels, **{"method": "gradcam", "pictures": 2, "controls": 9, **options})


def scale(model, factor):
    with torch.no_grad():
        model[-1].weight.mul_(factor)
        model[-1].bias.mul_(factor)
    return model


@pytest.fixture(scope="module")
def result():
    return compare()


def test_heat_that_moved_from_the_object_to_the_mark_is_found(result):
    to, *others = result.findings
    assert (to.label, to.direction, to.place) == ("apple", "to", "the lower right corner")
    assert to.box == (0.8, 0.8, 1.0, 1.0)
    assert to.heat[0] < 0.1
    assert to.heat[1] > 0.7
    assert (to.old.answers.mean, to.new.answers.mean) == (0, 1)
    assert to.difference.mean > 0.9
    assert (to.present, to.class_count) == (15, 15)
    assert [(one.label, one.direction, one.place) for one in others] == [("apple", "from", "the center")]
    assert "covering it changes the probability by -" in others[0].sentence
    assert re.fullmatch(
        r"'apple', 15 of 15 images: heat moved to the lower right corner, \d+ % → \d+ % of it; covering it changes "
        r"0 % \(0 to 20\) of the old model's answers \(controls \d %\) and 100 % \(80 to 100\) of the new one's "
        r"\(controls \d %\); q = \S+\.",
        to.sentence,
    )


def test_the_other_way_round_it_moved_back(result):
    back = compare(load(MARK), load(OBJECT))
    finding, forth = back.findings[0], result.findings[0]
    assert (finding.direction, finding.place, finding.heat) == ("from", forth.place, forth.heat[::-1])
    assert (finding.old.answers, finding.new.answers) == (forth.new.answers, forth.old.answers)
    assert back.moved == pytest.approx(result.moved, abs=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model,
        lambda model: model.bfloat16().float(),
        # A higher temperature: all margins are smaller, and so are their drops.
        lambda model: scale(model, 0.25),
    ],
    ids=["itself", "bfloat16 weights", "temperature"],
)
def test_models_that_look_at_the_same_give_no_finding(change):
    old = load(MARK)
    result = compare(old, Loaded(change(copy.deepcopy(old.model)), old.transform, NAMES))
    assert result.findings == result.unconfirmed == ()
    assert result.other_answers == ()
    assert result.correlation == pytest.approx(1, abs=1e-3)
    assert result.moved < 0.01


def test_models_of_other_sizes_and_crops_are_compared_on_the_part_of_the_photo_that_both_see(result):
    # A larger input, of which the middle 80 % is seen: on it the mark of 8 of 40 pixels is 4 of 32.
    cropped = compare(new=load(MARK, size=80, crop=64, cell=8))
    finding = cropped.findings[0]
    assert finding.direction == "to"
    assert finding.place == "the lower right corner"
    assert finding.box[2:] == (1, 1)
    assert 0.7 <= finding.box[0] <= 0.9
    larger = compare(new=load(MARK, size=80, cell=8))
    assert larger.findings[0].box == result.findings[0].box
    assert larger.moved == pytest.approx(result.moved, abs=0.02)


def test_maps_are_placed_on_the_common_part():
    whole, left = Geometry.whole(100, 200), Geometry((50, 100), (10, 10), (0.0, -10.0, 50.0, 60.0))
    assert find_common_box(whole, left) == (0, 0, 1, 0.6)
    heat = torch.zeros(100, 200)
    heat[:, 60:120] = 1
    placed = place_in_box(heat, whole, (0, 0, 1, 0.6))
    assert placed.shape == (40, 40)
    np.testing.assert_allclose(placed[:, :19], 0, atol=1e-12)
    np.testing.assert_allclose(placed[:, 21:], 1, atol=1e-12)
    right = replace(left, box=(0.0, 70.0, 50.0, 100.0))
    with pytest.raises(ImageError, match="no common part"):
        find_common_box(left, right)


def test_a_comparison_that_was_cut_off_goes_on_with_the_same_result(result, tmp_path, monkeypatch):
    first = compare(out=tmp_path)
    assert first.to_json() == result.to_json()
    written = [(tmp_path / name).read_bytes() for name in ("diff.json", "diff.md", "index.html")]
    state = (tmp_path / "state.jsonl").read_bytes()
    (tmp_path / "state.jsonl").write_bytes(state[: state.index(b"pictures") - len(state) // 9])
    scored = []
    score, draw = PairedImages.score_covered, PairedImages.draw_pictures
    monkeypatch.setattr(PairedImages, "score_covered", lambda *args: scored.append(1) or score(*args))
    monkeypatch.setattr(PairedImages, "draw_pictures", lambda *args: scored.append(2) or draw(*args))
    compare(out=tmp_path)
    assert [(tmp_path / name).read_bytes() for name in ("diff.json", "diff.md", "index.html")] == written
    assert {*scored} == {1, 2}
    count = len(scored)
    compare(out=tmp_path)
    assert len(scored) == count
    # Another new model is another comparison.
    assert compare(new=load({"apple": RED, "sky": GREEN}), out=tmp_path).to_json() != result.to_json()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a process that starts at once")
def test_a_process_that_is_killed_while_it_writes_leaves_whole_files(result, tmp_path):
    """The process is killed before the first, the second and the third file gets its name."""

    def save_and_die(number):
        renamed = iter(range(number))

        def rename(path, target):
            if next(renamed, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return path.rename(target)

        Path.replace = rename
        result.save(tmp_path)

    result.save(tmp_path / "whole")
    names = ["diff.json", "diff.md", "index.html"]
    whole = [(tmp_path / "whole" / name).read_bytes() for name in names]
    for number in range(3):
        process = get_context("fork").Process(target=save_and_die, args=(number,))
        process.start()
        process.join(120)
        assert process.exitcode == -signal.SIGKILL
        left = {name: (tmp_path / name).read_bytes() for name in names if (tmp_path / name).exists()}
        assert left == dict(list(zip(names, whole, strict=True))[:number])
    result.save(tmp_path)
    assert [(tmp_path / name).read_bytes() for name in names] == whole


def test_another_transform_is_another_comparison(tmp_path):
    photos, labels = draw_photos(4)
    kept = [compare(new=load(MARK, crop=crop), photos=photos, labels=labels, out=tmp_path) for crop in (40, 32)]
    alone = compare(new=load(MARK, crop=32), photos=photos, labels=labels)
    assert kept[1].to_json() == alone.to_json() != kept[0].to_json()


def pair_images(subjects, photos, labels, batch_size):
    return PairedImages(*(AuditImages(one, photos, None, "gradcam", batch_size) for one in subjects), labels)


class BatchReader(nn.Module):
    """A network whose answers depend on the batch, as the last bits of any network do."""

    def __init__(self):
        super().__init__()
        self.net = build_net(OBJECT)

    def forward(self, x):
        return self.net(x + x.mean(0, keepdim=True))


def record_missing(pairs, known):
    """Return what is recorded of all images if an earlier start recorded some."""
    run = Run(pairs.old, None, passes=1, level=0.02, controls=1, seed=0, has_labels=True)
    run.state = State(pairs.sides, None, None)
    for index, values in known.items():
        run.state.add(f"image {index}", values)
    return run.record_all(pairs.record_batch, PairRecord.to_list)


def test_a_record_is_the_same_if_the_others_of_its_batch_are_known():
    photos, labels = draw_photos(5)
    subjects = [Subject(replace(load(OBJECT), model=BatchReader().eval())) for _ in range(2)]
    pairs = pair_images(subjects, photos, [NAMES.index(label) for label in labels], batch_size=2)
    records = record_missing(pairs, {})
    assert record_missing(pairs, {index: records[index] for index in (0, 2, 3)}) == records


def test_the_page_of_another_command_is_kept(result, tmp_path):
    page = tmp_path / "index.html"
    page.write_text("mine")
    for write in (lambda: compare(out=tmp_path), lambda: result.save(tmp_path)):
        with pytest.raises(CamtoolError, match=r"index\.html' exists and is not a diff"):
            write()
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
    assert page.read_text() == "mine"


def test_two_comparisons_do_not_work_in_one_folder(tmp_path):
    with hold_folder(tmp_path), pytest.raises(MetricError, match="works in"):
        compare(out=tmp_path)


class Counter(nn.Module):
    """Counts the images that pass forward and backward."""

    forward_passes = backward_passes = 0

    def forward(self, x):
        self.forward_passes += len(x)
        x = x * 1
        if x.requires_grad:
            x.register_hook(self.count_backward)
        return x

    def count_backward(self, gradient):
        self.backward_passes += len(gradient)


def count_passes(photo_count, picture_count):
    """Return the passes that are run, but for those that find the layers, and those of the result."""
    photos, labels = draw_photos(photo_count)
    counter = Counter()
    net = nn.Sequential(*[*build_net(OBJECT)][:3], counter, *[*build_net(OBJECT)][3:]).eval()
    subjects = [Subject(replace(load(OBJECT), model=net)) for _ in range(2)]
    pairs = pair_images(subjects, photos, [NAMES.index(label) for label in labels], batch_size=16)
    for _ in range(2):
        before = counter.forward_passes + counter.backward_passes
        records = dict(pairs.record_batch(range(photo_count)))
        for index in range(picture_count):
            pairs.draw_pictures(records[index])
        passes = counter.forward_passes + counter.backward_passes - before
    return passes, compare(photos=photos, labels=labels, pictures=picture_count).passes


def test_passes_are_those_that_are_run():
    # What a batch costs beside its images, to measure where the cells lie, is the same.
    (few, few_told), (more, more_told), (drawn, drawn_told) = count_passes(4, 0), count_passes(9, 0), count_passes(4, 2)
    assert more - few == more_told - few_told == 5 * 6
    assert drawn - few == drawn_told - few_told == 2 * 4


def test_weights_of_quantized_layers_are_told_apart(tmp_path):
    def quantize(colors):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.ao.quantization.quantize_dynamic(build_net(colors), {nn.Linear}, dtype=torch.qint8)

    photos, labels = draw_photos(4)
    for new, accuracy in ((quantize(OBJECT), 1), (quantize({"apple": BLUE, "sky": RED}), 0)):
        result = compare(None, new, photos, labels, method="reciprocam", out=tmp_path)
        assert [side.mean for side in result.accuracy] == [1, accuracy]


def test_without_labels_the_answers_are_the_classes(result):
    photos, _ = draw_photos()
    unlabeled = compare(photos=photos)
    assert unlabeled.accuracy is None
    assert unlabeled.findings == result.findings
    assert [side.mean for side in result.accuracy] == [1, 1]


def read_color(color, weights):
    """Return a model that reads a color of 4 x 4 pixels, by the same weights for each color."""
    convolution, linear = nn.Conv2d(3, 1, 1, bias=False), nn.Linear(16, 3)
    with torch.no_grad():
        convolution.weight.copy_(torch.eye(3)[color].reshape(1, 3, 1, 1))
        linear.weight.copy_(weights)
        linear.bias.zero_()
    model = nn.Sequential(convolution, nn.Identity(), nn.Flatten(), linear).eval()
    return Subject(replace(load(OBJECT, size=4), model=model, labels=None))


def test_without_labels_no_model_is_favored():
    """The two models are exchangeable: of each photo they read another color, and colors are drawn alike."""
    weights = 3 * torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    photos = np.random.default_rng(0).integers(0, 256, (1600, 4, 4, 3), dtype=np.uint8)
    pairs = pair_images([read_color(color, weights) for color in (RED, GREEN)], [*photos], None, batch_size=400)
    records = [record for _, record in pairs.record_batch(range(1600))]
    values = (photos[..., :2].astype(float) / 255).reshape(1600, 16, 2)
    scores = np.exp(np.einsum("kp,npc->cnk", weights.double().numpy(), values))
    shares = scores / scores.sum(2, keepdims=True)
    assert [record.target for record in records] == ((shares[0] + shares[1]) / 2).argmax(1).tolist()
    assert 0.4 < np.mean([record.answers[0] == record.answers[1] for record in records]) < 0.8
    differences = np.array([record.probabilities[1] - record.probabilities[0] for record in records]).reshape(100, 16)
    for sign in (1, -1):
        alarms = sum(run_sign_flip_test(sign * part, permutations=199, seed=0) <= 0.05 for part in differences)
        assert alarms <= 13  # of 100; more come by chance in one case of a thousand


def test_answers_that_changed_are_listed():
    photos, labels = draw_photos()
    for photo in photos[:3:2]:
        photo[32:, 32:, GREEN] = 0
    result = compare(photos=photos, labels=labels, class_names=pandas.Series(NAMES, index=range(len(NAMES))[::-1]))
    assert {(one.index, one.answers) for one in result.other_answers} == {(0, ("apple", "sky")), (2, ("apple", "sky"))}
    assert result.accuracy[1].mean == pytest.approx(58 / 60)
    moved = [one.moved for one in result.images]
    assert moved == sorted(moved, reverse=True)
    assert "* image 0: apple → sky, 'apple' " in result.to_markdown()


def test_answers_of_classes_of_one_name_are_told_apart():
    photos, labels = draw_photos(6)
    photos[0][32:, 32:, GREEN] = 0
    old, new = (replace(load(colors), labels=("crane", "crane")) for colors in (OBJECT, MARK))
    result = compare(old, new, photos, [NAMES.index(label) for label in labels], pictures=6)
    assert [(one.index, one.classes) for one in result.other_answers] == [(0, (0, 1))]
    assert "image 0: crane (0) → crane (1), 'crane' " in result.to_markdown()
    assert result.pictures.keys() == {*range(6)}


@pytest.mark.parametrize("dtypes", [(torch.float64, torch.float32), (torch.float32, torch.float64)])
def test_covered_images_that_two_models_share_are_of_the_type_of_each(dtypes):
    """As for the device: with other types, and the same values, each model gets what it takes."""
    photos = [np.where(photo > 100, 255, 0).astype(np.uint8) for photo in draw_photos(2)[0]]
    cells = np.zeros((10, 10), bool)
    cells[8:, 8:] = True

    def score(*dtypes):
        subjects = [Subject(replace(load(OBJECT), model=build_net(OBJECT).to(dtype))) for dtype in dtypes]
        pairs = pair_images(subjects, photos, [0, 1], batch_size=2)
        (_, record), _ = pairs.record_batch([0, 1])
        return pairs.score_covered(record, 1, cells, 2, np.random.default_rng(0))

    assert score(*dtypes) == pytest.approx(score(torch.float64, torch.float64), abs=1e-3)


def test_few_images_and_one_class_get_a_sentence():
    photos, labels = draw_photos(20)
    result = compare(photos=photos, labels=labels)
    assert result.findings == ()
    assert result.not_tested[0] == (
        "2 classes with fewer than 8 independent images in a half: 'apple' (5), 'sky' (5). Give 16 or more of each."
    )
    equal = compare(photos=[photos[0]] * 20 + [photos[1]] * 20, labels=[NAMES[0]] * 20 + [NAMES[1]] * 20)
    assert equal.notes == ("40 images are 2 independent groups: near-duplicates and bursts count as one.",)
    photos, labels = draw_photos(80)
    alone = compare(photos=photos[::2], labels=labels[::2])
    assert [one.place for one in alone.findings][:1] == ["the lower right corner"]
    few = compare(passes=200)
    assert few.findings == ()
    assert few.not_tested[0] == (
        "'apple', the lower right corner: needs 352 forward passes, 0 of 200 are left; give passes=552 for it, or "
        "passes='all'."
    )


def test_an_image_that_cannot_be_read_is_named(tmp_path):
    photos, labels = draw_photos(4)
    (tmp_path / "broken.png").write_bytes(b"no picture")
    result = compare(photos=[*photos, tmp_path / "broken.png"], labels=[*labels, "sky"])
    assert len(result.images) == 4
    assert result.not_tested[0].startswith(str(tmp_path / "broken.png"))


def test_models_of_other_classes_are_refused():
    three = load(OBJECT)
    with pytest.raises(MetricError, match="new has other class names than old"):
        compare(new=replace(three, labels=("sky", "apple")))
    bare = replace(three, labels=None)
    wider = build_net(OBJECT)
    wider[-1] = nn.Linear(3, 3)
    with pytest.raises(MetricError, match="new has 3 classes and old has 2"):
        compare(bare, wider, draw_photos(2)[0])
    with pytest.raises(MetricError, match="labels: 'pear' is no class"):
        compare(photos=draw_photos(2)[0], labels=["apple", "pear"])
    with pytest.raises(MetricError, match="labels: 2 is no class of the models, which have 2"):
        compare(bare, replace(bare), draw_photos(2)[0], [0, 2])
    with pytest.raises(MetricError, match="labels: 'apple' is a name; give class_names, or labels by index"):
        compare(bare, replace(bare), draw_photos(2)[0], NAMES)


def test_bad_images_and_labels_are_named():
    photos = draw_photos(2)[0]
    with pytest.raises(MetricError, match="images must be a list, got 'photos'; give the files of a folder"):
        compare(photos="photos")
    with pytest.raises(MetricError, match=r"labels: give one class for each image; .* labels.argmax\(1\)"):
        compare(photos=photos, labels=torch.eye(2))


def test_a_change_of_the_probability_has_its_sign(result):
    finding = result.findings[0]
    effects = [finding.old._replace(probability=Interval(*drop)) for drop in ((0.03, -0.03, 0.1), (-0.01, -0.05, 0.02))]
    weak = replace(finding, old=effects[0], new=effects[1], difference=Interval(0, 0, 0))
    assert (
        "; covering it changes the probability by -3 points (-10 to 3) beyond controls in the old model, and by "
        "+1 point (-2 to 5) in the new one; q = "
    ) in weak.sentence


def test_the_page_says_what_it_shows(result, tmp_path):
    page = (result.save(tmp_path) / "index.html").read_text(encoding="utf-8")
    for text in ('data-count="60"', "<kbd>J</kbd><kbd>K</kbd> next, previous", "The place</figcaption>"):
        assert text in page
    assert page.count("<span>Old model</span>") == page.count("<span>New model</span>") == len(result.findings)


def test_the_page_holds_all_that_it_shows_and_no_markup_of_others(result, tmp_path):
    name = '<img src="x" onerror="alert(1)">'
    hostile = replace(
        result,
        names=(name, "b"),
        command=name,
        not_tested=(name,),
        images=tuple(replace(one, image=name, label=name, answers=(name, "b")) for one in result.images),
        findings=tuple(replace(one, label=name) for one in result.findings),
    )
    page = (hostile.save(tmp_path) / "index.html").read_text(encoding="utf-8")
    assert '<img src="x"' not in page
    assert "default-src 'none'" in unescape(page)
    assert not re.search(r"(src|href)=\"(?!data:|#|diff\.json)", page)
    pictures = re.findall(r"data:image/jpeg;base64,", page)
    assert len(pictures) == 2 * len(result.pictures) == 4
    content = json.loads((tmp_path / "diff.json").read_text())
    assert content["findings"][0]["new"]["answers"] == [*result.findings[0].new.answers]
    assert len(content["images"]) == 60


def test_a_picture_shows_the_photo_of_the_most_changed_image(result):
    old, new = result.pictures[result.images[0].index]
    assert old != new
    sizes = [Image.open(BytesIO(picture)).size for picture in (old, new)]
    assert sizes == [(320, 320), (320, 320)]


def test_the_cheat_is_told_from_the_honest_model():
    labels = ["heart", "star"] * 16
    scenes = [draw_scene(UNSEEN + 700_000 + n, classes=[name], mark=name == "heart") for n, name in enumerate(labels)]
    images = [scene.image for scene in scenes]
    honest, cheat = camtool.load("demo"), camtool.load("demo-cheat")
    (finding,) = camtool.diff(honest, cheat, images, labels, pictures=0, controls=9).findings
    assert (finding.label, finding.direction, finding.place) == ("heart", "to", "the lower right corner")


# ----------------------------------------------------------------------------------------------------------- places


def make_record(index, old, new):
    shares = np.stack([old / old.sum(), new / new.sum()])
    ones = np.ones(2)
    return PairRecord(index, 0, np.zeros(32, np.uint8), np.zeros(2, int), ones, ones, 0.0, shares)


def find_places(draw_new, count=12):
    random, center = np.random.default_rng(0), np.zeros((10, 10))
    center[4:6, 4:6] = 1
    records = [make_record(index, center, draw_new(random, center)) for index in range(count)]
    regions = find_moved_regions(records, range(count), [0], seed=0)
    return {(region.sign, region.name) for region in regions}


def test_little_heat_in_each_cell_of_the_border_is_a_place():
    def frame(random, center):
        edge = np.pad(np.zeros((8, 8)), 1, constant_values=1) * random.random((10, 10))
        return 0.8 * center / center.sum() + 0.2 * edge / edge.sum()

    assert find_places(frame) == {(1, "the border"), (-1, "the center")}


def test_a_corner_is_not_the_border():
    def corner(random, center):
        heat = 0.01 * random.random((10, 10))
        heat[8:, 8:] = 1
        return heat

    places = find_places(corner)
    assert (1, "the lower right corner") in places
    assert "the border" not in {name for _, name in places}


def test_less_heat_than_the_floor_is_no_place():
    def shift(random, center):
        heat = center.copy()
        heat[0, 0] += 0.015 * center.sum()
        return heat

    assert find_places(shift) == set()


# ------------------------------------------------------------------------------------------------------- statistics


def enumerate_swaps(differences, floor):
    """Return z and p over all swaps, literally."""
    count, places = differences.shape
    scale = [sum(value**2 + floor**2 for value in differences[:, place]) ** 0.5 for place in range(places)]
    heights = []
    for code in range(2**count):
        signs = [1 if code >> row & 1 else -1 for row in range(count)]
        sums = [sum(signs[row] * differences[row, place] for row in range(count)) for place in range(places)]
        heights.append(max(abs(total) / height for total, height in zip(sums, scale, strict=True)))
    z = [differences[:, place].sum() / scale[place] for place in range(places)]
    return z, [sum(height >= abs(value) - 1e-9 for height in heights) / 2**count for value in z]


@pytest.mark.parametrize("floor", [0.0, 0.5])
def test_the_swap_test_is_that_over_all_swaps(floor):
    differences = np.random.default_rng(0).normal(0.4, 1, (7, 5)) * [1, 1, 1, 0.01, 3]
    z, p = enumerate_swaps(differences, floor)
    tested = run_swap_test(differences, floor=floor, permutations=19_999)
    np.testing.assert_allclose(tested.z, z, rtol=1e-9)
    np.testing.assert_allclose(tested.p, p, atol=0.015)


def test_the_swap_test_by_hand():
    assert run_swap_test(np.array([[3.0], [4.0]])).z[0] == pytest.approx(7 / 5)
    assert run_swap_test(np.array([[3.0], [4.0]]), floor=6.0).z[0] == pytest.approx(7 / 97**0.5)
    equal = run_swap_test(np.zeros((9, 4)))
    assert (equal.z == 0).all()
    assert (equal.p == 1).all()


def test_the_swap_test_has_its_level_if_the_models_are_exchangeable():
    random, alarms = np.random.default_rng(1), 0
    for seed in range(400):
        shared = random.normal(0, 1, (12, 1)) ** 3
        pair = random.gamma(0.3, 1, (2, 12, 6)) * shared
        alarms += bool(run_swap_test(pair[1] - pair[0], permutations=199, seed=seed).p.min() <= 0.05)
    # 5 % of 400 are 20; more than 34 come by chance in one case of a thousand.
    assert alarms <= 34
