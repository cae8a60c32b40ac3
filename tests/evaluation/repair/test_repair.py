"""``camtool.repair`` on a network whose cue is set by hand."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import camtool
from camtool.errors import MetricError
from camtool.evaluation.audit import read_audit
from camtool.evaluation.repair import head as heads
from camtool.evaluation.repair import running
from camtool.evaluation.repair.head import PAIRING, PULL, Examples, Linear, find_score_head, refit
from camtool.evaluation.repair.measuring import compare_sizes
from camtool.evaluation.repair.result import CueRepair, Effects
from tests.evaluation.repair.conftest import LABELS, NAMES, SINGLE, build_net, draw_images, run_audit


def run_repair(audit, model=None, labels=None, **options):
    images = draw_images(LABELS if labels is None else labels)
    model = build_net() if model is None else model
    return camtool.repair(model, images, SINGLE if labels is None else labels, audit, class_names=NAMES, **options)


def compute_literal_loss(old, new, features, labels, shares, differences):
    """Return the loss of a head as the docstring of ``refit`` describes it, one number at a time."""
    count, width = features.shape
    total = 0.0
    for row in range(count):
        logits = [sum(new.weight[k, c] * features[row, c] for c in range(width)) + new.bias[k] for k in range(2)]
        highest = max(logits)
        total -= shares[row] * (logits[labels[row]] - highest - math.log(sum(math.exp(z - highest) for z in logits)))
    for column in range(width):
        values = [features[row, column] for row in range(count)]
        mean = sum(values) / count
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
        total += PULL * sum(((new.weight[k, column] - old.weight[k, column]) * deviation) ** 2 for k in range(2))
    for difference in differences:
        outputs = [sum(new.weight[k, c] * difference[c] for c in range(width)) for k in range(2)]
        total += PAIRING * sum(output**2 for output in outputs) / len(differences)
    return float(total)


def test_the_head_minimizes_the_literal_loss_and_leaves_classes_without_images():
    random = np.random.default_rng(0)
    features, labels = random.random((12, 3)), [number % 2 for number in range(12)]
    features[:, 1] += labels
    shares = np.full(12, 1 / 12)
    weight = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0], [5.0, 5.0, 5.0]]).double()
    old = Linear(weight, torch.tensor([0.5, 0.0, 9.0]).double())
    answers = torch.nn.functional.one_hot(torch.tensor(labels), 3).double()
    differences = random.random((5, 3))
    new = refit(old, Examples(torch.tensor(features), answers, torch.tensor(differences), is_independent=False))
    assert torch.equal(new.weight[2], old.weight[2])
    assert new.bias[2] == old.bias[2]
    least = compute_literal_loss(old, new, features, labels, shares, differences)
    assert least < compute_literal_loss(old, old, features, labels, shares, differences)
    for part in (new.weight, new.bias):
        for index in np.ndindex(*part[:2].shape):
            for step in (1e-3, -1e-3):
                moved = Linear(new.weight.clone(), new.bias.clone())
                moved[part is new.bias][index] += step
                assert compute_literal_loss(old, moved, features, labels, shares, differences) > least - 1e-9


@pytest.mark.parametrize("end", [None, nn.Softmax(1)])
def test_a_mark_is_forgotten_and_the_object_is_learned(audited, end):
    model = build_net(end=end)
    before = copy.deepcopy(model.state_dict())
    repair = run_repair(audited, model)
    assert {name: value.tolist() for name, value in model.state_dict().items()} == {
        name: value.tolist() for name, value in before.items()
    }
    (cue,) = repair.cues
    assert (cue.label, cue.name) == ("green", "the lower right corner")
    assert cue.before.removal.answers.mean == cue.before.transplant.answers.mean == 1
    assert cue.after.size < 0.15 < 0.3 < cue.before.size
    assert cue.change.mean == pytest.approx(cue.after.size - cue.before.size)
    assert cue.change.low < cue.change.mean < cue.change.high < 0
    assert (repair.without_cue.before.mean, repair.without_cue.after.mean) == (0.5, 1)
    assert repair.accuracy.after.mean == repair.without_cue.after.mean == repair.with_cue.after.mean == 1
    assert {*repair.by_class} == {"'green'", "'blue'"}
    assert (repair.learned, repair.tested, repair.is_better) == (40, 40, True)
    assert repair.worst_groups[0].name in ("'green' without a cue", "'blue' with a cue")
    assert repair.worst_groups[0].accuracy.mean == 0
    assert "1 class without images in the half that was learned from" in repair.notes[-1]
    assert repair.notes[-1].endswith("which was not measured: absent.")
    text = str(repair)
    assert text.startswith("# Repair\n\nThe model depends less on what was found.")
    assert "| Without a cue | 40 | 50 % (35 to 65) | 100 % (91 to 100) | +50 points (+" in text


def test_the_copy_has_the_numbers_that_are_told(audited):
    repair = run_repair(audited)
    marked, clean = draw_images(LABELS, seed=1), draw_images(LABELS, seed=1)
    clean[:, 0, 28:, 28:] = 0.05
    for images in (marked, clean):
        assert (repair.model(images).argmax(1) == torch.tensor(SINGLE)).all()
    again = run_audit(repair.model)
    assert [finding for finding in again.findings if finding.label == "green"] == []


def test_an_audit_from_its_folder_gives_the_same_repair(copied):
    stored = read_audit(copied)
    assert [*stored.cues] == ["green: place: the lower right corner"]
    assert run_repair(copied).to_json() == run_repair(run_audit()).to_json()


def test_verdicts_choose_what_is_repaired(audited):
    key = audited.findings[0].key
    with pytest.raises(MetricError, match="no suspicious finding, so the model is left alone"):
        run_repair(audited.mark(key, "object"))
    assert run_repair(audited.mark(key, "shortcut")).is_better


def test_an_honest_model_is_left_alone():
    honest = build_net()
    with torch.no_grad():
        honest[-1].weight[0] = torch.tensor([0.0, 2.5, 0.0]).repeat(2)
        honest[-1].bias[0] = -0.45
    audit = run_audit(honest)
    assert not audit.findings
    with pytest.raises(MetricError, match="left alone"):
        run_repair(audit, honest)


def test_weights_are_saved_for_each_kind_of_file(audited, tmp_path):
    from camtool.models import read_state

    repair = run_repair(audited)
    for name in ("mended.safetensors", "mended.pt"):
        state = read_state(repair.save(tmp_path / name))
        fresh = build_net()
        fresh.load_state_dict(state)
        assert torch.equal(fresh[-1].weight, repair.model[-1].weight)
    folder = repair.save(tmp_path / "all")
    assert {path.name for path in folder.iterdir() if path.name[0] != "."} == {
        "index.html",
        "mended.safetensors",
        "repair.json",
        "repair.md",
    }
    content = json.loads((folder / "repair.json").read_text())
    assert content["is_better"] is True
    assert content["cues"][0]["before"]["removal"]["answers"][0] == 1
    assert content["cues"][0]["sentence"] == repair.cues[0].sentence
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "Became right" in page
    assert "data:image/jpeg;base64," in page
    assert "Removing it changes the answer, after" in page
    repair.save(folder)


def test_a_single_logit_is_repaired():
    model = build_net(rows=1)
    images = draw_images(LABELS)
    audit = camtool.audit(model, images, SINGLE, method="gradcam", kinds=["place"], controls=9)
    assert {finding.target for finding in audit.findings} >= {0}
    repair = camtool.repair(model, images, SINGLE, audit)
    assert repair.is_better
    assert repair.without_cue.after.mean == 1
    assert ((repair.model(images)[:, 0] > 0).long() == torch.tensor(SINGLE)).all()


def test_several_labels_are_repaired():
    labels = [[(0,), (1,), (0, 1), ()][number % 4] for number in range(160)]
    images, model = draw_images(labels), build_net(rows=2)
    audit = camtool.audit(model, images, labels, method="gradcam", kinds=["place"], controls=9)
    assert audit.findings[0].target == 0
    for finding in audit.findings[1:]:  # where blue squares may be
        audit = audit.mark(finding.key, "object")
    repair = camtool.repair(model, images, labels, audit)
    assert repair.is_better
    assert repair.without_cue.before.mean < 0.6
    assert repair.without_cue.after.mean > 0.95
    truth = torch.tensor([[0 in own, 1 in own] for own in labels])
    assert ((repair.model(images) > 0) == truth).double().mean() > 0.95


def test_norm_layers_are_trained_as_well(audited):
    model = build_net(has_norm=True)
    audit = run_audit(model)
    repair = run_repair(audit, model, layers="norms")
    assert not torch.equal(repair.model[1].weight, model[1].weight)
    assert torch.equal(repair.model[0].weight, model[0].weight)
    assert torch.equal(repair.model[1].running_mean, model[1].running_mean)
    assert repair.is_better
    assert all(parameter.requires_grad and parameter.grad is None for parameter in repair.model.parameters())
    assert "and the norm layers" in str(repair)
    with pytest.raises(MetricError, match="no norm layers with parameters; give layers='last'"):
        run_repair(audited, layers="norms")


def test_a_head_that_cannot_see_the_object_is_told(audited):
    """Without green, an image without the mark is like one of nothing."""
    model = build_net()
    with torch.no_grad():
        model[0].weight[[1, 2, 4, 5]] = 0
    audit = run_audit(model)
    repair = run_repair(audit, model)
    (note,) = [note for note in repair.notes if "Only training helps" in note]
    assert "collect images of 'green' without it, and of other classes with it" in note


def test_what_is_no_repair_says_so(audited, monkeypatch):
    monkeypatch.setattr(running, "refit", lambda old, examples: old)
    repair = run_repair(audited)
    assert not repair.is_better
    assert "This is no repair: the effect of the lower right corner on 'green' does not fall" in str(repair)
    assert "points of probability, +0 points (+0 to +0))" in str(repair)
    assert str(repair).startswith("# No repair")
    worse = Linear(torch.zeros(3, 6).double(), torch.tensor([-1.0, 0.0, -1.0]).double())
    monkeypatch.setattr(running, "refit", lambda old, examples: worse)
    # Half of the images without a mark are right, as before, but no image is taken for 'green' any more.
    (reason,) = run_repair(audited).reasons
    assert reason.startswith("'green' is recognized less on its images as they are: 100 % (84 to 100) → 0 % (0 to 16)")
    worse = Linear(torch.zeros(3, 6).double(), torch.tensor([-1.0, -1.0, 0.0]).double())
    repair = run_repair(audited)
    assert not repair.is_better
    assert "the accuracy on images without a cue falls: 50 % (35 to 65) → 0 % (0 to 9), -50 points" in repair.verdict


@pytest.mark.parametrize(
    ("before", "after", "change", "falls"),
    [
        # Photos differ much, and each has less of it afterwards: 5 points in all draws.
        (np.linspace(0.1, 0.9, 9), np.linspace(0.1, 0.9, 9) - 0.05, -0.05, True),
        # Of eight photos one has less of it, which is in 1 - (7 / 8) ** 8 = 66 % of the draws.
        (np.full(8, 0.5), np.array([0.5] * 7 + [0.1]), -0.05, False),
        # It became evidence against the class.
        (np.full(8, 0.4), np.full(8, -0.6), 0.2, False),
    ],
)
def test_an_effect_falls_if_it_does_on_the_same_photos(before, after, change, falls):
    sides = [[np.stack([each, np.zeros_like(each)], 1)] for each in (before, after)]
    interval = compare_sizes(*sides)
    assert interval.mean == pytest.approx(change)
    cue = CueRepair("", "place", "", "", Effects(None, None), Effects(None, None), interval)
    assert cue.falls is falls


def test_the_size_is_that_of_the_largest_effect_beyond_its_controls():
    removal, transplant = np.tile([0.5, 0.1], (8, 1)), np.tile([0.3, 0.0], (9, 1))
    assert compare_sizes([removal, transplant], [removal, transplant]) == (0, 0, 0)
    # 40 points of removing it are gone, as the controls change as much; 20 of giving it are left.
    without = compare_sizes([removal, transplant], [np.tile([0.1, 0.1], (8, 1)), np.tile([0.2, 0.0], (9, 1))])
    assert without == pytest.approx((-0.2, -0.2, -0.2))
    nothing = compare_sizes([], [])
    assert not CueRepair("", "place", "", "", Effects(None, None), Effects(None, None), nothing).falls


def test_evidence_against_a_class_counts_as_an_effect(audited, monkeypatch):
    weight = torch.zeros(3, 6).double()
    weight[0, :2] = torch.tensor([-30.0, 9.0])
    against = Linear(weight, torch.zeros(3).double())
    monkeypatch.setattr(running, "refit", lambda old, examples: against)
    repair = run_repair(audited)
    assert repair.cues[0].after.transplant.probability.mean < 0
    assert repair.cues[0].after.size > 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": "all"}, "layers must be one of"),
        ({"labels": LABELS[:70]}, "images: 70 can be read, and the audit had 80; give the same"),
    ],
)
def test_what_does_not_fit_is_refused(audited, change, message):
    with pytest.raises(MetricError, match=message):
        run_repair(audited, **change)


def test_labels_are_needed(audited):
    with pytest.raises(MetricError, match="a repair learns from the true classes"):
        camtool.repair(build_net(), draw_images(LABELS), None, audited, class_names=NAMES)


def test_an_audit_of_an_earlier_version_is_refused(copied):
    (copied / "cues.json").unlink()
    with pytest.raises(MetricError, match=r"cues.json lacks it; run the audit again"):
        run_repair(copied)
    (copied / "cues.json").write_text("[]")
    with pytest.raises(MetricError, match="cannot be read"):
        read_audit(copied)


def test_concepts_are_refused_with_the_reason(audited):
    concept = replace(audited.findings[0], key="a concept", kind="concept")
    with pytest.raises(MetricError, match="a concept is removed from activations, not from images"):
        run_repair(replace(audited, findings=(concept,)))
    both = replace(audited, findings=(*audited.findings, concept))
    assert run_repair(both).notes[0].startswith("'a concept' is not repaired")


class ZeroShot(nn.Module):
    """Compares images with texts, as CLIP does: both towers end in a linear layer, and neither returns the scores."""

    def __init__(self):
        super().__init__()
        self.visual = build_net()
        self.text = nn.Linear(3, 3, bias=False)
        nn.init.eye_(self.text.weight)

    def forward(self, images):
        texts = nn.functional.normalize(self.text(torch.eye(3)))
        return 10 * nn.functional.normalize(self.visual(images)) @ texts.T


def test_a_model_without_a_last_linear_layer_is_refused(audited):
    with pytest.raises(MetricError, match=r"no linear layer or 1 x 1 convolution returns its scores.*zero-shot"):
        run_repair(audited, ZeroShot().eval())


class TiedWeights(nn.Module):
    """The weights of the head are a small part of what it receives as well."""

    def __init__(self):
        super().__init__()
        *body, self.head = build_net()
        self.body, self.embedding = nn.Sequential(*body), nn.Linear(6, 3)
        self.embedding.weight = self.head.weight

    def forward(self, images):
        return self.head(self.body(images) + 1e-5 * self.embedding.weight.sum(0))


def build_normalized():
    model = build_net()
    torch.nn.init.constant_(model[-1].weight[2], 1e-3)  # a weight of 0 has no direction
    torch.nn.utils.parametrizations.weight_norm(model[-1])
    return model


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TiedWeights().eval(), r"layer 'head' are used elsewhere in it too \(tied weights\)"),
        (build_normalized, r"layer '5' are computed from others \(weight_norm"),
    ],
    ids=["tied", "normalized"],
)
def test_weights_that_cannot_be_set_alone_are_refused(audited, build, message):
    with pytest.raises(MetricError, match=message):
        run_repair(audited, build())


class Convolution(nn.Module):
    """A head of a 1 x 1 convolution on each place of the grid, behind dropout."""

    def __init__(self):
        super().__init__()
        *body, linear = build_net()
        self.body, self.drop, self.head = nn.Sequential(*body[:2]), nn.Dropout(), nn.Conv2d(6, 3, 1)
        with torch.no_grad():
            self.head.weight.copy_(linear.weight[:, :, None, None])
            self.head.bias.copy_(linear.bias)

    def forward(self, images):
        return self.head(self.drop(self.body(images))).mean((2, 3))


class Answer(nn.Module):
    """A classifier that returns its logits by name, as those of Hugging Face."""

    def __init__(self):
        super().__init__()
        self.model = build_net()

    def forward(self, pixel_values):
        return {"logits": self.model(pixel_values)}


@pytest.mark.parametrize(
    "build",
    [Convolution, Answer, lambda: build_net().train(), lambda: build_net().half(), lambda: build_net().bfloat16()],
    ids=["convolution", "logits by name", "train", "half", "bfloat16"],
)
def test_models_of_other_forms_are_repaired(audited, build):
    model = build()
    if not isinstance(model, nn.Sequential):
        model.eval()
    repair = run_repair(audited, model)
    assert repair.is_better
    assert repair.without_cue.after.mean == 1
    assert repair.model.training == model.training
    assert {value.dtype for value in repair.model.parameters()} == {value.dtype for value in model.parameters()}


def build_convolution():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Dropout(), nn.Conv2d(4, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def build_timm():
    return pytest.importorskip("timm").create_model("test_vit", num_classes=7)


def build_transformers():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(image_size=SIDE_OF_HEADS, patch_size=16, num_labels=6, **sizes)
    )


def build_torchvision():
    return pytest.importorskip("torchvision").models.mobilenet_v3_small(num_classes=4)


SIDE_OF_HEADS = 160


@pytest.mark.parametrize(
    ("build", "layer", "classes"),
    [
        (build_convolution, "3", 5),
        (build_timm, "head", 7),
        (build_transformers, "classifier", 6),
        (build_torchvision, "classifier.3", 4),
    ],
)
def test_heads_are_found_by_arithmetic(build, layer, classes):
    model = build().eval()
    images = torch.rand(3, 3, SIDE_OF_HEADS, SIDE_OF_HEADS, generator=torch.Generator().manual_seed(0))
    head = find_score_head(model, images, classes)
    assert (head.layer, head.link) == (layer, "logits")
    linear = head.read(model)
    head.write(model, Linear(2 * linear.weight, linear.bias))
    assert head.fits(model, images)


def test_norms_of_torch_are_listed():
    model = nn.Sequential(nn.BatchNorm2d(2), nn.GroupNorm(1, 2), nn.LayerNorm(3), nn.InstanceNorm2d(2, affine=True))
    assert len(heads.list_norms(model)) == 8
