"""Candidates of frames and positions, and decoys: what they measure, move and draw, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from camtool.evaluation.audit.cues.candidates import Change, Discovery
from camtool.evaluation.audit.cues.patch import PatchCandidate, _choose_templates
from camtool.evaluation.audit.cues.place import (
    FrameCandidate,
    PlaceCandidate,
    PositionCandidate,
    compute_center,
    find_frames,
    find_positions,
    measure_frame,
)
from camtool.evaluation.audit.cues.sameness import UsualImage
from camtool.evaluation.audit.images import GRID, AuditImages, ImageRecord
from camtool.evaluation.audit.statistics import estimate_false_discovery_rate
from camtool.evaluation.audit.trials import Effect, Interval, Outcome
from camtool.evaluation.subject import Subject
from tests.evaluation.audit.results import build_finding
from tests.evaluation.audit.test_audit import build_net, run_audit

NOTHING_STILL = UsualImage(torch.full((3, 40, 40), 9.0), 0.0, torch.zeros(40, 40, dtype=torch.bool))


class Images:
    """Images of an audit that are at hand."""

    def __init__(self, tensors):
        self.tensors, self.heats = tensors, {}

    def prepare(self, index):
        return SimpleNamespace(tensor=self.tensors[index % len(self.tensors)])


def make_record(index, target, heat=None):
    heat = np.ones((GRID, GRID)) if heat is None else heat
    return ImageRecord(index, target, np.zeros(32, np.uint8), target, heat / heat.sum(), np.zeros(6))


def make_discovery(tensors, records):
    return Discovery(Images(tensors), records, [record.index for record in records], [0, 1], 0)


def draw_noise(count, side=40, seed=0):
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def spot(row, column):
    heat = np.zeros((GRID, GRID))
    heat[row, column] = 1
    return heat


def test_the_widths_of_a_frame():
    image = draw_noise(1)[0]
    assert measure_frame(image).tolist() == [0, 0, 0, 0]
    image[:, :2] = 0.3
    image[:, :, -3:] = 0.3
    assert measure_frame(image).tolist() == [2, 0, 0, 3]
    image[:, 20:] = 0.3
    assert measure_frame(image).tolist() == [2, 10, 0, 3]  # not more than a quarter of a side


def test_a_frame_is_found_located_and_covers_the_width_of_each_image():
    tensors = draw_noise(40)
    for image in tensors[:20:2]:
        image[:, :2] = 0.6
    for image in tensors[1:20:2]:
        image[:, :3] = 0.6
    records = [make_record(number, int(number >= 20)) for number in range(40)]
    (frame,) = find_frames(make_discovery(tensors, records))
    assert (frame.target, frame.kind, frame.name) == (0, "border", "a frame of one color (upper)")
    images = Images(tensors)
    assert [frame.measure(images, records[number]) for number in (0, 30)] == [1, 0]
    for number, rows in ((0, 2), (1, 3)):
        region = frame.locate(images, images.prepare(number))
        assert region[:rows].all()
        assert region.sum() == rows * 40


def test_a_place_beside_a_frame_is_what_is_left_of_it_outside():
    tensors = draw_noise(2)
    tensors[0, :, :2] = 0.6
    images, cells = Images(tensors), spot(0, 3) + spot(1, 3) > 0
    place = PlaceCandidate(0, "", 1.0, cells)
    frame = FrameCandidate(0, "", 1.0, np.array([2, 0, 0, 0]))
    rest = place.leave_region(frame, None)
    assert rest.key != place.key
    for number in (0, 1):  # the second image has no frame: it is where the frame would be
        region = rest.locate(images, images.prepare(number))
        assert region[3:8, 12:16].all()  # without a rim of a pixel
        assert region.sum() == 5 * 4
    # Of a place in the frame nothing is left, so it cannot be covered.
    within = PlaceCandidate(0, "", 1.0, spot(0, 3) > 0).leave_region(
        FrameCandidate(0, "", 1.0, np.array([4, 0, 0, 0])), None
    )
    assert within.remove(Change(images, 1, 0, 1, np.random.default_rng(0))) is None
    assert place.leave_region(place, None) is frame.leave_region(place, None) is None


def test_images_without_frames_give_no_candidate():
    records = [make_record(number, int(number >= 20)) for number in range(40)]
    assert [*find_frames(make_discovery(draw_noise(40), records))] == []
    assert [*find_positions(make_discovery(draw_noise(40), records))] == []


@pytest.mark.parametrize(
    ("heat", "center"),
    [
        (spot(0, 9), (0.05, 0.95)),
        (spot(2, 2) + spot(4, 6), (0.35, 0.45)),
        (spot(2, 2) + 0.4 * spot(9, 9), (0.25, 0.25)),  # less than half of the peak
        (np.zeros((GRID, GRID)), (0.5, 0.5)),
    ],
)
def test_the_center_of_heat(heat, center):
    assert compute_center(heat) == pytest.approx(center)


def test_a_position_moves_what_is_hot_to_its_goal():
    image = torch.zeros(3, 40, 40)
    image[:, 8:12, 8:12] = 1  # cell (2, 2)
    images = Images(image[None])
    record = make_record(0, 0, spot(2, 2))
    candidate = PositionCandidate(0, "", 1.0, np.array([0.75, 0.25]), np.array([[0.55, 0.65]]), NOTHING_STILL)
    images.heats[0] = record.heat
    given, control = candidate.transplant(Change(images, 0, 0, 1, np.random.default_rng(0)))
    assert given[:, 28:32, 8:12].all()
    assert control[:, 20:24, 24:28].all()
    unchanged, moved = candidate.compare_moves(images, record, [], np.random.default_rng(0))[0]
    assert torch.equal(unchanged, image)
    assert torch.equal(moved, control)
    assert candidate.measure(images, record) == pytest.approx(-0.5)


def test_a_moved_mark_is_one_cue_with_its_place():
    images = Images(draw_noise(1))
    images.heats[0] = spot(9, 9)
    position = PositionCandidate(0, "", 1.0, np.array([0.9, 0.9]), np.array([[0.5, 0.5]]), NOTHING_STILL)
    corner, other = (PlaceCandidate(0, "", 1.0, spot(*cell) > 0) for cell in ((9, 9), (0, 0)))
    assert position.is_same_cue(corner, images, [0])
    assert corner.is_same_cue(position, images, [0])
    assert not other.is_same_cue(position, images, [0])
    assert not position.is_same_cue(position, images, [0])


def test_a_class_at_another_place_is_found():
    random = np.random.default_rng(0)
    cells = [(2, 2) if number < 20 else tuple(random.integers(0, GRID, 2)) for number in range(60)]
    records = [make_record(number, int(number >= 20), spot(*cell)) for number, cell in enumerate(cells)]
    found = {candidate.target: candidate for candidate in find_positions(make_discovery(draw_noise(60), records))}
    assert found[0].center == pytest.approx([0.25, 0.25])
    assert found[0].suspicion == "the same place in all images"


def test_a_place_is_no_suspicion_where_all_classes_are_at_fixed_places():
    """As the sky, houses and water of landscapes: cells up to one beside the place of each class."""
    random, places = np.random.default_rng(0), {0: (2, 2), 1: (6, 5)}
    targets = [int(number >= 20) for number in range(60)]
    cells = [np.array(places[target]) + random.integers(-1, 2, 2) for target in targets]
    records = [
        make_record(number, target, spot(*cell))
        for number, (target, cell) in enumerate(zip(targets, cells, strict=True))
    ]
    found = find_positions(make_discovery(draw_noise(60), records))
    assert [(candidate.target, candidate.suspicion) for candidate in found] == [(0, ""), (1, "")]


def test_decoys_of_a_place_are_other_places_with_other_keys():
    cells = np.zeros((GRID, GRID), bool)
    cells[8:, 8:] = True
    candidate = PlaceCandidate(0, "the lower right corner", 1.0, cells)
    records = [make_record(0, 0), make_record(1, 1)]
    random = np.random.default_rng(0)
    decoys = [candidate.make_decoy(make_discovery(draw_noise(2), records), random) for _ in range(20)]
    assert all(decoy.cells.sum() == 4 and decoy.target == 0 for decoy in decoys)
    assert not any((decoy.cells & cells).any() for decoy in decoys)
    places = {decoy.cells.tobytes() for decoy in decoys}
    assert len({decoy.key for decoy in decoys}) == len(places) > 10
    frame = FrameCandidate(0, "", 1.0, np.array([2, 2, 2, 2]))
    assert frame.make_decoy(make_discovery(draw_noise(2), records), random).cells.any()


def test_a_patch_may_occur_in_a_few_images_of_other_classes():
    is_class = np.arange(200) < 20
    cosines = np.full((200, 2), 0.1)
    cosines[:12] = 0.9
    cosines[195:, 0] = 0.95  # 2.8 % of the others have it as well
    cosines[150:, 1] = 0.95  # 28 %
    assert [*_choose_templates(cosines, is_class, np.array([0, 1]))] == [0]


def test_the_estimated_rate_of_false_discoveries():
    assert estimate_false_discovery_rate(0, 0, 9) is None
    assert estimate_false_discovery_rate(0, 1, 9) == pytest.approx(1 / 9)
    assert estimate_false_discovery_rate(8, 2, 9) == 0.5
    assert estimate_false_discovery_rate(3, 1) == 1


@pytest.mark.parametrize(
    ("probability", "answers", "is_large"),
    [
        (Interval(0.09, 0.04, 0.14), 0.0, True),  # the interval holds 10 points
        (Interval(0.04, -0.04, 0.12), 0.0, False),  # it does, but less than 5 are likely
        (Interval(0.08, 0.07, 0.09), 0.0, False),
        (Interval(0.0, 0.0, 0.0), 0.4, True),
    ],
)
def test_the_floor_of_effects(probability, answers, is_large):
    effect = Effect(20, 20, Interval(answers, 0, 1), 0.1, probability, 0.0002)
    assert effect.is_large == is_large
    small = Effect(20, 20, Interval(0.0, 0, 1), 0.0, Interval(0.0, 0.0, 0.0), 0.0001)
    outcome = Outcome(PlaceCandidate(0, "", 1.0, np.ones((GRID, GRID), bool)), (), 20, 0.0002, (small, effect), small)
    assert outcome.p == pytest.approx(
        0.0006 if is_large else 0.0003
    )  # of three; clear effects that are small count less
    assert outcome.is_large == is_large


def draw_sizes(*sides):
    """Return 90 inputs of several sizes with a square of a color anywhere, and their classes."""
    random, images = np.random.default_rng(0), []
    for number in range(90):
        side = sides[number // 3 % len(sides)]
        image = torch.from_numpy(0.1 * random.random((3, side, side))).float()
        row, column = random.integers(0, side - 11, 2).tolist()
        image[number % 3, row : row + 12, column : column + 12] = 0.9
        images.append(image)
    return images, [number % 3 for number in range(90)]


@pytest.mark.parametrize("sides", [(40, 48, 64), (64, 40, 48), (40, 16)])
def test_patches_are_compared_in_images_of_several_sizes(sides):
    result = run_audit(*draw_sizes(*sides), kinds=["patch"])
    tested = [*result.findings, *result.rejected]
    assert tested
    # Squares lie anywhere, and no key names an image.
    assert {one.key.partition(": ")[2] for one in tested} == {"patch: no fixed place"}


def test_a_patch_that_is_larger_than_an_image_is_not_in_it():
    images = AuditImages(Subject(build_net()), [torch.rand(3, 40, 40), torch.rand(3, 16, 16)], None, "gradcam", 8)
    candidate = PatchCandidate(0, "", 1.0, "0", torch.ones(6, 5, 5), 10, "")
    large, small = (images.prepare(index) for index in (0, 1))
    assert candidate.locate(images, large).sum() == 20**2
    assert not candidate.locate(images, small).any()
    assert (
        candidate.measure(images, SimpleNamespace(index=1)) == -1 < candidate.measure(images, SimpleNamespace(index=0))
    )


def test_a_patch_is_covered_and_pasted_with_a_margin_of_a_cell():
    inputs = [torch.zeros(3, 40, 40), torch.ones(3, 40, 40)]
    inputs[0][:, 16:24, 12:20] = 0.5
    images = AuditImages(Subject(build_net()), inputs, None, "gradcam", 8)
    candidate = PatchCandidate(0, "", 1.0, "0", torch.ones(6, 2, 2), 10, "")
    assert (
        candidate.locate(images, images.prepare(0))[16:24, 12:20].sum()
        == candidate.locate(images, images.prepare(0)).sum()
        == 64
    )
    covered = candidate.remove(Change(images, 0, 1, 1, np.random.default_rng(0)))[1, 0]
    pasted = candidate.transplant(Change(images, 1, 0, 1, np.random.default_rng(0)))[0]
    whole = torch.zeros(40, 40, dtype=torch.bool)
    whole[12:28, 8:24] = True
    assert torch.equal((covered == 1).all(0), whole)
    assert torch.equal((pasted != 1).all(0), whole)


def test_without_masks_no_region_is_looked_for():
    class Unplaced(PatchCandidate):
        def locate(self, images, image):
            raise AssertionError

    images = AuditImages(Subject(build_net()), [torch.rand(3, 40, 40)], None, "gradcam", 8)
    assert Unplaced(0, "", 1.0, "0", torch.ones(6, 2, 2), 10, "").measure_outside(images, [0]) is None


def test_a_file_name_that_is_not_unique_is_told_with_its_folder():
    files = ["photos/a/0.png", "photos/b/0.png", "photos/b/1.png", "/x/2.png", "y/2.png"]
    images = AuditImages(Subject(build_net()), [*files, torch.zeros(3, 4, 4)], None, "gradcam", 8)
    names = [images.shorten_name(index) for index in range(6)]
    assert names == ["a/0.png", "b/0.png", "1.png", "/x/2.png", "y/2.png", "image 5"]


def test_sentences_name_the_controls_of_both_effects():
    """Pasting makes fewer images the class than its controls do; the probability is what tells them apart."""
    effect = Effect(20, 20, Interval(0.31, 0.2, 0.4), 0.36, Interval(0.15, 0.1, 0.2), 0.0002)
    finding = build_finding(removal=effect, transplant=effect)
    numbers = "(controls 36 %), and its probability by 15 points (10 to 20) beyond the controls"
    assert f"changes 31 % (20 to 40) of the answers {numbers}" in finding.sentence
    assert f"makes 31 % (20 to 40) of other images 'heart' {numbers}" in finding.sentence
