"""Assertions for users' tests: numbers computed by hand, what passes and fails, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import camtool
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.errors import CamtoolError, MetricError
from camtool.testing import assert_ignores, assert_looks_at, assert_no_shortcuts
from tests.evaluation.audit.results import build_audit, write_pictures
from tests.hooks.state.test_no_trace import unchanged

CORNER = (slice(6, 8), slice(6, 8))


class Corner(nn.Module):
    """Classes of logits 0 and the sum over the four pixels of the lower right corner."""

    def forward(self, x: Tensor) -> Tensor:
        score = x[:, 0, 6:, 6:].sum((1, 2))
        return torch.stack([torch.zeros_like(score), score], 1)


class Holes(nn.Module):
    """Classes of logits 0 and the number of zero pixels: a model that reacts to any removal."""

    def forward(self, x: Tensor) -> Tensor:
        count = (x[:, 0] == 0).sum((1, 2)).to(x)
        return torch.stack([torch.ones_like(count), count], 1)


class Cells(nn.Module):
    """A heatmap that is known: Grad-CAM at ``last`` is the first channel of the image, a grid of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.head = nn.Conv2d(3, 1, 1, bias=False), nn.Linear(1, 2, bias=False)
        self.last.weight.data = torch.tensor([1.0, 0, 0]).reshape(1, 3, 1, 1)
        self.head.weight.data = torch.tensor([[1.0], [0.0]])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(x).mean((2, 3)))


def build_images() -> Tensor:
    """Return two images: of 8 units of heat 6 are in the corner, and 2."""
    images = torch.zeros(2, 3, 8, 8)
    images[0, 0, 7, 6:], images[0, 0, 0, 0], images[0, 0, 0, 5] = 3, 1, 1
    images[1, 0, 6, 7], images[1, 0, 0, 1:4] = 2, 2
    return images


def read_failure(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(AssertionError) as failure:
        call(*arguments, **options)
    return str(failure.value)


def read_size(path: Path) -> tuple[int, int]:
    with Image.open(path) as picture:
        return picture.size


# ----------------------------------------------------------------------------------------------- where heat is


def test_the_heat_in_the_mask_decides(tmp_path: Path) -> None:
    net, images = Cells().eval(), build_images()
    options = {"layer": "last", "placement": "stretch"}
    assert_looks_at(net, images, [CORNER, CORNER], 0.25, **options)
    assert_looks_at(net, images, CORNER, 0.7, share_of_images=0.5, **options)
    text = read_failure(assert_looks_at, net, images, CORNER, 0.5, folder=tmp_path, **options)
    assert text == (
        "1 of 2 images have less than 50% of the heat in the mask; mean 50%. The worst is images[1], 'class 0', with "
        f"25% in a mask that covers 6% of the photo: {tmp_path / 'looks-at.png'}"
    )
    assert read_size(tmp_path / "looks-at.png") == (8, 8)
    read_failure(assert_looks_at, net, images[0], CORNER, 0.8, **options, folder=tmp_path)


def test_regions_of_all_kinds_are_the_same(tmp_path: Path) -> None:
    mask = np.zeros((8, 8), bool)
    mask[6:, 6:] = True
    corners = [CORNER, (6, 6, 8, 8), "bottom-right", "6,6,8,8", "75%,75%,100%,100%", mask, 255 * mask.astype("uint8")]
    texts = {
        read_failure(
            assert_looks_at, Cells().eval(), build_images(), corner, layer="last", placement="stretch", folder=tmp_path
        )
        for corner in [*corners, torch.from_numpy(mask), [CORNER, "bottom-right"], np.stack([mask, mask])]
    }
    assert len(texts) == 1
    # Four regions of four images are no box.
    four = build_images().repeat(2, 1, 1, 1)
    assert_looks_at(Cells().eval(), four, ["bottom-right"] * 4, 0.2, layer="last", placement="stretch")


def test_a_picture_goes_to_a_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    text = read_failure(assert_looks_at, Cells().eval(), build_images(), CORNER, layer="last")
    assert Path(text.rpartition(": ")[2]).parent.parent == tmp_path
    assert [path.name for path in tmp_path.rglob("*.png")] == ["looks-at.png"]


# ----------------------------------------------------------------------------------------------- interventions

FILLS = (torch.zeros_like, lambda images: images / 2)


def test_the_change_of_the_probability_is_that_computed_by_hand(tmp_path: Path) -> None:
    images = build_images() + 0.1
    # The corners sum up to 6.4 and 2.4; without them to 0 or the half. The answer 1 stays, but by zeros, it is a tie.
    changes = [1 / (1 + np.exp(-score)) - 0.5 for score in (6.4, 2.4)]
    text = read_failure(assert_ignores, Corner(), images, "bottom-right", fills=FILLS, folder=tmp_path)
    mean = f"{np.mean(changes):.0%} on average, by 0% for control regions"
    assert text.startswith("2 of 2 images depend on the region: without it 2 get another answer, and the prob")
    assert mean in text
    assert f"The worst is images[0] with {changes[0]:.0%}, controls 0%" in text
    assert read_size(tmp_path / "ignores.png") == (8, 8)
    halves = (lambda images: images * 0.9, lambda images: images * 0.5)
    change = 1 / (1 + np.exp(-2.4)) - 1 / (1 + np.exp(-1.2))
    assert_ignores(Corner(), images[1], CORNER, change + 1e-3, fills=halves)
    text = read_failure(assert_ignores, Corner(), images[1], CORNER, change - 1e-3, fills=halves, folder=tmp_path)
    assert "without it 0 get another answer" in text
    assert_ignores(Corner(), images, "top-left", 0, fills=FILLS)


def test_what_is_not_finite_without_the_region_is_no_pass() -> None:
    with pytest.raises(MetricError, match=r"not finite with the fill <function .*so nothing is tested"):
        assert_ignores(Corner(), build_images() + 0.1, CORNER, fills=["blur", lambda images: images / 0])


def test_an_effect_of_any_removal_is_not_one_of_the_region(tmp_path: Path) -> None:
    images, fills = torch.ones(1, 3, 8, 8), (torch.zeros_like, torch.zeros_like)
    assert_ignores(Holes(), images, CORNER, fills=fills)
    text = read_failure(assert_ignores, Holes(), images, CORNER, fills=fills, controls=0, folder=tmp_path)
    assert "1 get another answer" in text


def test_the_class_whose_probability_is_read(tmp_path: Path) -> None:
    images = build_images() + 0.1
    texts = {
        read_failure(assert_ignores, Corner(), images, CORNER, fills=FILLS, target_class=target, folder=tmp_path)
        for target in (None, 1, [0, 1])  # of two classes, both change by the same
    }
    assert len(texts) == 1


def test_the_model_is_left_as_it_was() -> None:
    model = camtool.load("demo").model.train()
    image = torch.rand(1, 3, 128, 128)
    with unchanged(model):
        assert_ignores(model, image, "top-left", 0.9, controls=3, share_of_images=1e-9)


@pytest.fixture(scope="module")
def marked() -> list[Any]:
    return [draw_scene(UNSEEN + 20_000 + seed, classes=["heart"], mark=True) for seed in range(8)]


def test_the_cheating_model_is_caught_and_the_honest_one_is_not(marked: list[Any], tmp_path: Path) -> None:
    images, marks = [scene.image for scene in marked], [scene.mark for scene in marked]
    objects = [scene.objects[0].mask for scene in marked]
    honest, cheat = camtool.load("demo"), camtool.load("demo-cheat")
    assert_ignores(honest, images, marks, folder=tmp_path)
    assert_looks_at(honest, images, objects, folder=tmp_path)
    text = read_failure(assert_ignores, cheat, images, marks, share_of_images=0.5, folder=tmp_path)
    assert re.match("8 of 8 images depend on the region: without it 8 get another answer", text)
    assert "8 of 8 images have less" in read_failure(assert_looks_at, cheat, images, objects, folder=tmp_path)
    # The honest model needs the object: the same assertion fails for it.
    text = read_failure(assert_ignores, honest, images, objects, controls=0, folder=tmp_path)
    assert int(text.partition(" ")[0]) >= 6


def test_a_real_model_uses_the_animal_and_not_the_corner(mobilenet: Any, shared: Path, tmp_path: Path) -> None:
    photos = sorted((shared / "images").glob("*.jpg"))[:6]
    assert_ignores(mobilenet, photos, "25%,80%,35%,90%", 0.3, share_of_images=0.8, folder=tmp_path)
    text = read_failure(assert_ignores, mobilenet, photos, "10%,10%,90%,90%", 0.3, controls=0, folder=tmp_path)
    assert int(text.partition(" ")[0]) >= 5


# ------------------------------------------------------------------------------------------------ what is refused


def test_what_does_not_fit_is_named() -> None:
    net, images, crop = Corner(), torch.rand(2, 3, 8, 8), camtool.preprocessing(size=4)
    empty, full, photo = np.zeros((8, 8), bool), np.ones((8, 8), bool), Image.new("RGB", (40, 8))
    looks = {"layer": "last"}
    for call, message in [
        (lambda: assert_looks_at(Cells(), images, empty, **looks), "masks is empty; leave this image out"),
        (lambda: assert_looks_at(Cells(), images, [CORNER, full], **looks), r"masks\[1\] covers the whole photo"),
        (lambda: assert_looks_at(Cells(), images, empty[:3], **looks), r"masks must be \(8, 8\), .* got bool \(3, 8\)"),
        (
            lambda: assert_looks_at(Cells(), images, [CORNER] * 3, **looks),
            "masks must be one region, .* 2 images; got 3",
        ),
        (lambda: assert_looks_at(Cells(), images, None, **looks), "masks must be one region.*got NoneType"),
        (lambda: assert_looks_at(Cells(), images, "upper", **looks), "region 'upper' is unknown"),
        (lambda: assert_looks_at(Cells(), images, CORNER, 0, **looks), "at_least must be"),
        (lambda: assert_looks_at(Cells(), [], CORNER, **looks), "images: give one image or more"),
        (lambda: assert_looks_at(Cells(), images, CORNER, method=["gradcam", "fem"], **looks), "one method for each"),
        (lambda: assert_ignores(net, [], CORNER), "images is empty"),
        (lambda: assert_ignores(net, images, full), "region covers the whole photo"),
        (lambda: assert_ignores(net, images, [empty, CORNER]), r"region\[0\] is empty"),
        (lambda: assert_ignores(net, images, "border"), "region fits nowhere else.*controls=0"),
        (lambda: assert_ignores(net, images, CORNER, fills=["blur"]), "fills must be two ways"),
        (lambda: assert_ignores(net, images, CORNER, fills="blur"), "fills must be two ways"),
        (lambda: assert_ignores(net, images, CORNER, fills=["blur", "paint"]), "removal must be one of.*'paint'"),
        (lambda: assert_ignores(net, images, CORNER, 1), "at_most must be"),
        (lambda: assert_ignores(net, images, CORNER, controls=-1), "controls must be"),
        (lambda: assert_ignores(net, photo, (0, 0, 4, 4), transform=crop), "region is outside of what the model sees"),
    ]:
        with pytest.raises(CamtoolError, match=message):
            call()


# ------------------------------------------------------------------------------------------- findings of an audit


def test_findings_without_the_verdict_object_fail(tmp_path: Path) -> None:
    audit = build_audit()
    first, second = (finding.key for finding in audit.findings)
    text = read_failure(assert_no_shortcuts, audit, {first: "object", second: "unsure"})
    assert text == (
        "1 suspicious finding without the verdict 'object':\n"
        "1. 20 of 25 'star' images: a patch; covering it changes 75 % (50 to 90) of the answers (controls 10 %), "
        "pasting it makes 50 % (33 to 67) of other images 'star' (controls 0 %); q = 0.002. Verdict: unsure. "
        "Key: 'star: patch: a patch'\n"
        "There are no pictures; camtool.audit(..., out=FOLDER) writes them."
    )
    assert_no_shortcuts(audit, {first: "object", second: "object"})
    harmless = replace(audit, findings=tuple(replace(finding, suspicions=()) for finding in audit.findings))
    assert_no_shortcuts(harmless)
    assert "1 suspicious finding" in read_failure(assert_no_shortcuts, harmless, {first: "shortcut"})
    assert_no_shortcuts(replace(audit, findings=()))
    write_pictures(tmp_path, first, second)
    audit.mark(first, "object").save(tmp_path)
    for given in (tmp_path, str(tmp_path / "audit.json")):
        text = read_failure(assert_no_shortcuts, given)
        assert "Verdict: none. Key: 'star" in text
        picture = Path(text.rpartition(": ")[2])
        assert read_size(picture) == (64, 48)
        assert picture.parent == tmp_path / "index_files"
    # Verdicts that are given count more than those in the folder.
    assert "2 suspicious findings" in read_failure(assert_no_shortcuts, tmp_path, {first: "shortcut"})
    (tmp_path / "known.json").write_text(json.dumps({second: "object"}))
    assert_no_shortcuts(tmp_path, tmp_path / "known.json")
    with pytest.raises(CamtoolError, match=r"verdicts: .*nothing.json does not exist"):
        assert_no_shortcuts(tmp_path, tmp_path / "nothing.json")


def test_verdicts_that_fit_no_finding_are_named() -> None:
    audit = build_audit()
    first, second = (finding.key for finding in audit.findings)
    wrong = {first: "object", f"{second} 2": "object"}
    named = f"known: the audit has no finding '{second} 2'. Did you mean '{second}'"
    assert named in read_failure(assert_no_shortcuts, audit, wrong)
    with pytest.warns(UserWarning, match=re.escape(named)):
        assert_no_shortcuts(audit, {**wrong, second: "object"})


def test_an_audit_that_could_test_nothing_fails() -> None:
    audit = build_audit(findings=(), untested="too few images.")
    assert read_failure(assert_no_shortcuts, audit) == "Nothing was tested: too few images."


def test_verdicts_and_audits_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(CamtoolError, match="verdicts: 'a' must be one of 'object', 'shortcut', 'unsure'"):
        assert_no_shortcuts(build_audit(), {"a": "yes"})
    with pytest.raises(CamtoolError, match=r"audit: [^ ]*audit.json does not exist; give the folder"):
        assert_no_shortcuts(tmp_path / "audit.json")
