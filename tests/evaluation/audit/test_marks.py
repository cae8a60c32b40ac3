"""What stands still in a class, what looks the same pixel by pixel, and how a shortcut is told from an object by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.transforms.functional import to_tensor

import camtool
from camtool.evaluation.audit.cues.candidates import Change, Discovery
from camtool.evaluation.audit.cues.kinds import KINDS, Kind
from camtool.evaluation.audit.cues.mark import find_marks
from camtool.evaluation.audit.cues.patch import PatchCandidate
from camtool.evaluation.audit.cues.place import PlaceCandidate, find_positions
from camtool.evaluation.audit.cues.property import PropertyCandidate
from camtool.evaluation.audit.cues.sameness import UsualImage, find_usual_image, measure_sameness
from camtool.evaluation.audit.images import GRID, AuditImages
from camtool.evaluation.subject import Subject
from tests.evaluation.audit.test_audit import RED, SIDE, build_net, draw_images, run_audit
from tests.evaluation.audit.test_candidates import Images, draw_noise, make_discovery, make_record, spot


def draw_marked(count=60, side=40):
    """Return noise, of which the first half has a mark of two colors with a gap in the upper left corner."""
    images = draw_noise(count, side)
    images[: count // 2, :, :8, :8] = 1.0
    images[: count // 2, 1, :8, :8] = 0.0
    images[: count // 2, :, 3:5, 3:5] = draw_noise(count // 2, 2, seed=1)
    return images


def make_marked_discovery(images):
    half = len(images) // 2
    return make_discovery(images, [make_record(number, int(number >= half)) for number in range(len(images))])


def test_a_mark_is_found_with_its_pixels_whatever_the_heat():
    (mark,) = find_marks(make_marked_discovery(draw_marked()))
    assert (mark.target, mark.name) == (0, "the same pixels in the upper left corner")
    expected = torch.zeros(40, 40, dtype=torch.bool)
    expected[:8, :8] = True
    expected[3:5, 3:5] = False
    images = Images(draw_marked())
    assert torch.equal(mark.locate(images, images.prepare(0)), expected)
    assert mark.measure(images, make_record(0, 0)) == 1
    assert mark.measure(images, make_record(59, 1)) < 0.1
    changed = mark.locate_change(images, images.prepare(0))
    assert changed[:9, :9].all()  # with the gap and a rim of a pixel
    assert changed.sum() == 81
    assert [*find_marks(make_marked_discovery(draw_noise(60)))] == []


def test_what_all_classes_have_in_common_is_no_mark_and_does_not_stand_still():
    images = draw_noise(60)
    images[:, :, :8, :8] = 0.5
    discovery = make_marked_discovery(images)
    assert [*find_marks(discovery)] == []
    assert not discovery.find_usual_image(0).still.any()


def test_what_stands_still_stays_with_its_gaps():
    images = draw_marked()
    usual = find_usual_image([*images[:30]], [*images[30:]])
    assert usual.still[:8, :8].sum() == 60
    kept = usual.keep_still(images[0], torch.full((3, 40, 40), 7.0))
    assert torch.equal(kept[:, :8, :8], images[0, :, :8, :8])
    assert (kept == 7).sum() >= 3 * (40 * 40 - 64) - 30  # noise that looks like the median by chance
    # An image without the mark has nothing that stands still.
    assert (usual.keep_still(images[59], torch.full((3, 40, 40), 7.0)) == 7).double().mean() > 0.95


def test_a_usual_image_fits_inputs_of_another_size():
    pixels = torch.arange(4.0).reshape(1, 2, 2)
    usual = UsualImage(pixels, 0.1, torch.ones(2, 2, dtype=torch.bool))
    assert usual.find_still(pixels.repeat_interleave(3, 1).repeat_interleave(3, 2)).all()


def test_the_heat_of_a_mark_is_no_position():
    images = draw_marked()
    random = np.random.default_rng(0)
    heats = [spot(0, 0) if number < 30 else spot(*random.integers(0, 10, 2)) for number in range(60)]
    records = [make_record(number, int(number >= 30), heat) for number, heat in enumerate(heats)]
    assert 0 in [candidate.target for candidate in find_positions(make_discovery(draw_noise(60), records))]
    # Without the heat of the mark nothing is left of it: all centers are in the middle.
    centers = [candidate for candidate in find_positions(make_discovery(images, records)) if candidate.target == 0]
    assert all(np.allclose(candidate.center, 0.5) for candidate in centers)


def test_a_move_leaves_what_stands_still():
    images = draw_marked()
    records = [
        make_record(number, int(number >= 30), spot(9, 9) if number < 30 else spot(4, 4)) for number in range(60)
    ]
    discovery = make_discovery(images, records)
    (candidate,) = (each for each in find_positions(discovery) if each.target == 0)
    discovery.images.heats.update({record.index: record.heat for record in records})
    before, moved = candidate.compare_moves(discovery.images, records[0], [], np.random.default_rng(0))[0]
    assert torch.equal(moved[:, :8, :8], before[:, :8, :8])
    assert not torch.equal(moved[:, 9:, 9:], before[:, 9:, 9:])
    (given, *_) = candidate.transplant(Change(discovery.images, 59, 0, 1, np.random.default_rng(0)))
    assert not torch.equal(given, images[59])


@pytest.mark.parametrize("shift", [0, 2])
def test_stamps_look_the_same_and_squares_of_other_colors_do_not(shift):
    random, noise = np.random.default_rng(0), draw_noise(8, 24)
    stamp, stamped, colored = draw_noise(1, 8, seed=5)[0], noise.clone(), noise.clone()
    for number in range(8):
        row, column = (8 + random.integers(-shift, shift + 1, 2)).tolist()
        stamped[number, :, row : row + 8, column : column + 8] = stamp
        colored[number, :, row : row + 8, column : column + 8] = torch.from_numpy(random.random((3, 1, 1)))
    margin = 2 * shift
    parts = slice(8 - margin, 16 + margin)
    shares = [
        measure_sameness(Images(images), range(8), [*images[:, :, parts, parts]], margin)
        for images in (stamped, colored)
    ]
    assert shares[0] >= 0.75  # the part is displaced by up to two of its eight pixels
    assert shares[1] < 0.1
    assert measure_sameness(Images(stamped), [0], [stamped[0]], 0) == 0  # of one image nothing can be said


def test_a_fixed_mark_is_suspicious_and_an_object_is_what_the_class_is_recognized_by():
    images, classes = draw_images()
    (mark,) = run_audit(images, classes, kinds=["mark"]).findings
    assert (mark.label, mark.name) == ("red", "the same pixels in the lower right corner")
    assert mark.suspicions == ("the same pixels at a fixed place", "at the border in nearly all images")
    assert mark.removal.answers.mean == mark.transplant.answers.mean == 1
    random = np.random.default_rng(0)
    varied = torch.from_numpy(0.1 * random.random((90, 3, SIDE, SIDE))).float()
    for number, image in enumerate(varied):
        height, width = random.integers(10, 13, 2).tolist()
        row, column = (14, 14) if number % 3 == RED else random.integers(0, 28, 2).tolist()
        pixels = torch.from_numpy(random.uniform(0.5, 1, (height, width)))
        image[number % 3, row : row + height, column : column + width] = pixels
    audit = run_audit(varied, classes)
    assert [finding.kind for finding in audit.recognized_by] == ["place"]
    assert (audit.suspects, audit.sections) == ((), {"What the classes are recognized by": audit.findings})
    assert run_audit(varied, classes, kinds=["mark"]).findings == ()
    marked = audit.mark(audit.findings[0].key, "shortcut")
    assert (marked.suspects, marked.recognized_by) == (marked.findings, ())
    assert "## Suspicious" in marked.to_markdown()


def test_a_patch_at_the_border_of_an_image_has_a_sameness():
    images = Images(draw_noise(4, 32))
    images.read_activations = lambda tensor, layer: tensor
    candidate = PatchCandidate(0, "", 1.0, "", torch.ones(3, 4, 4) / 48**0.5, 32, "")
    assert candidate.measure_sameness(images, range(4)) < 0.2


def test_a_patch_beside_a_mark_is_one_cue_with_it():
    images = Images(draw_marked())
    images.read_activations = lambda tensor, layer: tensor
    (mark,) = find_marks(make_marked_discovery(draw_marked()))
    template = images.prepare(0).tensor[:, 6:14, 6:14]
    template = template - images.prepare(0).tensor.mean((1, 2), keepdim=True)
    patch = PatchCandidate(0, "", 1.0, "", template / template.norm(), 10, "")
    own, beside = (candidate.locate(images, images.prepare(0)) for candidate in (mark, patch))
    assert beside[6:14, 6:14].all()
    assert (own & beside).sum() < 5
    assert patch.is_same_cue(mark, images, [0])


def to_photos(images):
    return [(image.permute(1, 2, 0).numpy() * 255).astype(np.uint8) for image in images]


def test_a_property_leaves_the_region_of_another_cue():
    """Its means are of what is left, as is the step from one to the other: white corners make photos brighter."""
    levels = (100, 110, 119, 60, 70, 80)
    photos = [np.full((SIDE, SIDE, 3), level, np.uint8) for level in levels]
    for photo in photos[:3]:
        photo[:4, :4] = 255
    images = AuditImages(Subject(build_net(), to_tensor), photos, None, "gradcam", 8)
    records = [make_record(number, int(number >= 3)) for number in range(6)]
    discovery = Discovery(images, records, [0, 0, 1, 2, 3, 4], [0, 1], 0)
    brighter = PropertyCandidate(0, "", 1.0, 0, 1, 160.0, 100.0)
    corner = PlaceCandidate(0, "", 1.0, spot(0, 0) > 0)
    rest = brighter.leave_region(corner, discovery)
    assert rest.key != brighter.key
    # The first two photos are one group, which counts as one.
    assert (rest.of_class, rest.of_others) == pytest.approx(((105 + 119) / 2, 70))
    assert [rest.measure(images, record) for record in records] == pytest.approx(levels)
    darker = replace(brighter, sign=-1).leave_region(corner, discovery)
    assert (darker.of_class, darker.measure(images, records[0])) == pytest.approx((rest.of_class, -100))
    before = images.prepare(0).tensor
    change = Change(images, 0, 1, 1, np.random.default_rng(0))
    changed = rest.remove(change)[0, 0]
    assert torch.equal(changed[:, :4, :4], before[:, :4, :4])
    assert (changed[:, 4:] * 255).round().unique().tolist() == [100 - (112 - 70)]
    assert not torch.equal(brighter.remove(change)[0, 0][:, :4, :4], before[:, :4, :4])
    # Neither has the other a region, nor is a region left out of one. Of a photo in the region nothing is changed.
    assert brighter.leave_region(brighter, discovery) is corner.leave_region(brighter, discovery) is None
    everywhere = brighter.leave_region(PlaceCandidate(0, "", 1.0, np.ones((GRID, GRID), bool)), discovery)
    assert everywhere.of_class == everywhere.of_others == 0
    assert everywhere.remove(change) is None


def build_brightness_net():
    """Return a network that answers red if a photo is bright as a whole, else the brighter one of green and blue."""
    net = build_net()
    with torch.no_grad():
        net[4].weight.copy_(torch.tensor([[30.0, 30.0, 30.0], [-20.0, 20.0, 0.0], [-20.0, 0.0, 20.0]]).repeat(1, 2))
        net[4].bias.copy_(torch.tensor([-180 * 0.345, 0.0, 0.0]))
    return net


def test_what_a_frame_changes_elsewhere_is_named_with_it(monkeypatch):
    """A white bar makes photos brighter, and a part of it matter; the rest of the photos is alike."""

    def find_part(discovery):
        return [PlaceCandidate(RED, "the upper left part", 1.0, cells)]

    cells = np.zeros((GRID, GRID), bool)
    cells[:3, :4] = True
    monkeypatch.setitem(KINDS, "part", Kind(find_part))
    random = np.random.default_rng(0)
    images, classes = draw_images()
    levels = random.uniform(0.255, 0.265, (90, 1, 1, 1))
    images[:] = torch.from_numpy(levels + 0.1 * random.random((90, 1, SIDE, SIDE)))
    for image, color in zip(images, classes, strict=True):
        if color == RED:
            image[:, :3] = 1
        else:
            row, column = random.integers(14, 28, 2).tolist()
            image[color, row : row + 12, column : column + 12] += 0.4
    options = {"method": "gradcam", "transform": to_tensor, "class_names": ["red", "green", "blue"], "controls": 5}
    kinds = (["property"], ["part"], ["border", "part", "property"])
    net, photos = build_brightness_net(), to_photos(images)
    audits = [camtool.audit(net, photos, classes, kinds=names, **options) for names in kinds]
    alone, part, with_frame = ([one for one in audit.findings if one.label == "red"] for audit in audits)
    assert "brighter (brightness)" in [finding.name for finding in alone]
    assert [finding.name for finding in part] == ["the upper left part"]
    frame, redder = with_frame  # photos of the others are green and blue, whatever the bar does
    assert redder.name == "redder (red-green tint)"
    assert frame.name == "a frame of one color (upper)"
    assert [also.partition(" (")[0] for also in frame.also] == ["the upper left part", "brighter"]


def build_peak_net():
    """Return a network that answers red if parts are very red: a tint of the photo matters only on the mark."""
    mix, head = nn.Conv2d(6, 3, 1), nn.Linear(3, 3)
    with torch.no_grad():
        mix.weight.copy_(torch.eye(3, 6)[:, :, None, None])
        mix.bias.copy_(torch.tensor([-0.8, 0.0, 0.0]))
        head.weight.copy_(torch.diag(torch.tensor([200.0, 10.0, 10.0])))
        head.bias.zero_()
    return nn.Sequential(*build_net()[:2], mix, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head).eval()


def test_a_property_that_is_an_effect_of_a_mark_is_named_with_it():
    images, classes = draw_images()
    options = {"method": "gradcam", "transform": to_tensor, "class_names": ["red", "green", "blue"], "controls": 5}
    kinds = (["property"], ["mark", "property"])
    audits = [camtool.audit(build_peak_net(), to_photos(images), classes, kinds=names, **options) for names in kinds]
    alone, with_mark = ([finding for finding in audit.findings if finding.label == "red"] for audit in audits)
    assert "redder (red-green tint)" in [finding.name for finding in alone]
    (finding,) = with_mark
    assert (finding.kind, finding.suspicions[0]) == ("mark", "the same pixels at a fixed place")
    assert "redder (red-green tint) (property, 15 images)" in finding.also
