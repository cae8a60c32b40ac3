"""Explanation.check(): planted faults are named, sound runs raise no alarm, and the model stays as it was."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.models import squeezenet1_1
from torchvision.transforms import v2

import camtool
from camtool.errors import CamtoolError
from camtool.trust.checks.check_list import CHECKS
from camtool.trust.checks.check_report import CheckReport
from camtool.warning_codes import WARNING_KINDS, MapWarning
from tests.helpers import photos
from tests.helpers.vision_transformers import make_tiny_vit
from tests.trust.checks.faults import FAULTS, HALF, PIXELS, Deep, Ensemble, Net, make_kinds
from tools.docs_site.reference import _draw_warnings

METHODS = ("gradcam", "layercam", "gradcam++")
DOCS = Path(__file__).parents[3] / "docs" / "checks.md"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fault: str) -> None:
    code, explain = FAULTS[fault]
    report = explain().check()
    assert code in report.codes
    assert report.ok == (not report.warnings)


def test_twenty_faults_or_more_are_planted() -> None:
    assert len({code for code, _ in FAULTS.values()}) >= 20


def test_an_unplanted_network_has_no_finding() -> None:
    """The network in which faults are planted is sound by itself."""
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert camtool.explain(Net(), image, layer="layer")[0].check().codes == ()


@pytest.mark.parametrize("method", METHODS)
def test_scenes_raise_at_most_two_percent_of_false_alarms(demo, method: str) -> None:
    images = [Image.fromarray(photos.unseen(number).image) for number in range(25)]
    alarms = [report.codes for report in _check_all(demo, images, method) if not report.ok]
    assert len(alarms) <= 0.02 * len(images), alarms


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["mobilenet_v2", "squeezenet1_1"])
def test_photos_raise_at_most_two_percent_of_false_alarms(shared: Path, name: str) -> None:
    model = camtool.load(name, shared / "models" / f"{name}-imagenet.safetensors")
    images = sorted((shared / "images").glob("*.*g"))
    some = images[::5]  # a check takes a second, and most of it does not depend on the method
    reports = [each for way in METHODS for each in _check_all(model, images if way == "gradcam" else some, way)]
    alarms = [report.codes for report in reports if not report.ok]
    assert len(alarms) <= 0.02 * len(reports), alarms


@pytest.mark.nightly
def test_exchanged_channels_and_missing_normalization_on_photos(mobilenet, shared: Path, monkeypatch) -> None:
    """The checks are cautious: of real photos they name some, but clearly more than none."""

    def check_alone(name: str, explanation: camtool.Explanation) -> tuple[str, ...]:
        monkeypatch.setattr("camtool.trust.checks.check_list.CHECKS", {name: CHECKS[name]})
        return explanation.check().codes

    explainer = camtool.Explainer(mobilenet)
    swapped, scaled = 0, 0
    for path in sorted((shared / "images").glob("n*.jpg")):
        pixels = np.asarray(Image.open(path).convert("RGB"))
        exchanged = explainer(Image.fromarray(pixels[..., ::-1].copy()))
        swapped += "channels-swapped" in check_alone("channels", exchanged)
        inputs = explainer.prepare(path).tensor
        mean, std = (torch.tensor(each).reshape(3, 1, 1) for each in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
        (unnormalized,) = explainer((inputs * std + mean).reshape(1, 3, 224, 224))
        scaled += "scale-misfit" in check_alone("scale", unnormalized)
    assert swapped >= 4
    assert scaled >= 12


def _check_all(model, images, method: str) -> list[CheckReport]:
    explainer = camtool.Explainer(model, method=method)
    return [explainer(image).check() for image in images]


# ------------------------------------------------------------------------------------------- transforms and layers


class Inside(Net):
    """A network that normalizes by itself, with the statistics in a buffer or in a module."""

    def __init__(self, norm: nn.Module | None) -> None:
        super().__init__()
        self.norm = norm
        if norm is None:
            self.register_buffer("pixel_mean", torch.full((3, 1, 1), 0.5))
            self.register_buffer("pixel_std", torch.full((3, 1, 1), 0.5))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return scores ``(N, K)``."""
        return super().forward(self.norm(images) if self.norm else (images - self.pixel_mean) / self.pixel_std)


def to_caffe(photo: Image.Image) -> torch.Tensor:
    return 255 * PIXELS(photo).flip(0) - torch.tensor([104.0, 117, 123])[:, None, None]


SOUND = {
    "ImageNet's normalization": (
        Net(),
        v2.Compose([PIXELS, v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]),
    ),
    "values in [-1, 1]": (Net(), v2.Compose([PIXELS, HALF])),
    "the model's own normalization by other code": (camtool.load("demo"), lambda photo: 2 * PIXELS(photo) - 1),
    "a buffer that normalizes": (Inside(None), PIXELS),
    "a module that normalizes": (Inside(HALF), PIXELS),
    "bytes minus a mean, in BGR": (Net(), to_caffe),
    "BGR that the user states": (Net(), camtool.preprocessing(128, channels="bgr", mean=0.5, std=0.5)),
    "BGR that the user states, of a model of RGB": (
        camtool.load("demo"),
        camtool.preprocessing(128, channels="bgr", mean=0.5, std=0.5),
    ),
    "bytes minus a mean, in BGR, for a network of torchvision": (squeezenet1_1().eval(), to_caffe),
    "gray values in three channels": (Net(), v2.Compose([v2.Grayscale(3), PIXELS, HALF])),
    "almost gray values": (Net(), lambda photo: HALF(0.9 * PIXELS(photo).mean(0) + 0.1 * PIXELS(photo).flip(0))),
    "gray values": (Net(channels=1), v2.Compose([v2.Grayscale(), PIXELS, v2.Normalize([0.45], [0.226])])),
}


@pytest.mark.parametrize(
    ("change", "is_gray"),
    [
        (lambda photo: photo, False),
        (lambda photo: photo.convert("L"), True),
        (lambda photo: photo.convert("L").convert("RGB"), True),
        (lambda photo: Image.blend(photo.convert("L").convert("RGB"), photo, 0.2), False),  # faded colors
        (lambda photo: Image.new("RGB", photo.size, (90, 90, 90)), False),  # has a warning of its own
    ],
)
def test_a_gray_photo_is_a_fact_and_no_alarm(demo, change, is_gray: bool) -> None:
    report = camtool.explain(demo, change(Image.fromarray(photos.unseen(0).image))).check()
    assert ("gray-image" in report.codes) == is_gray
    assert "gray-image" not in [finding.code for finding in report.warnings]


@pytest.mark.parametrize("title", SOUND)
def test_a_sound_transform_has_no_finding(title: str) -> None:
    model, transform = SOUND[title]
    report = camtool.explain(model, Image.fromarray(photos.unseen(0).image), 0, transform=transform).check()
    codes = {"byte-range", "unusual-range", "other-normalization", "unit-range", "channels-swapped", "upside-down"}
    assert not {*report.codes} & {*codes, "aspect-changed"}
    assert "transform" not in report.skipped


def refuse_small(photo: Image.Image) -> torch.Tensor:
    if min(photo.size) < 300:
        raise ValueError("the photo is too small")
    return 2 * PIXELS(photo) - 1


def refuse_red(photo: Image.Image) -> torch.Tensor:
    if photo.getpixel((0, 0)) == (255, 0, 0):
        raise KeyError("red")
    return 2 * PIXELS(photo) - 1


def test_photos_that_measure_a_transform_have_the_size_of_the_photo(demo) -> None:
    """The transform refuses photos of other sizes, or crops far from the corner."""
    photo = Image.fromarray(photos.unseen(0).image).resize((400, 300))
    report = camtool.explain(demo, photo, transform=lambda image: refuse_small(image).flip(0)).check()
    assert "channels-swapped" in report.codes
    report = camtool.explain(demo, photo, transform=lambda image: PIXELS(image.crop((270, 170, 398, 298)))).check()
    assert "other-normalization" in report.codes


def test_a_transform_that_fails_on_a_photo_of_one_color_is_a_reason() -> None:
    photo = Image.fromarray(photos.unseen(0).image)
    report = camtool.explain(Net(), photo, 0, transform=refuse_red, layer="layer").check()
    assert "KeyError: 'red'" in report.skipped["transform"]


def test_the_aspect_is_judged_without_the_colors(demo) -> None:
    """Divided by the brightest value, gray becomes white, so the values are not linear."""
    photo = Image.fromarray(photos.unseen(0).image).resize((160, 120))
    brightest = v2.Lambda(lambda values: values / values.max().clamp(min=0.1))
    report = camtool.explain(demo, photo, transform=v2.Compose([v2.Resize((128, 128)), PIXELS, brightest])).check()
    assert "aspect-changed" in report.codes
    assert "not linear" in report.skipped["transform"]


@pytest.mark.parametrize("is_broken_everywhere", [False, True])
def test_what_was_found_before_the_models_own_transform_failed_is_kept(demo, is_broken_everywhere) -> None:
    declared = (lambda _: {}["mine"]) if is_broken_everywhere else refuse_red
    photo = Image.fromarray(photos.unseen(0).image)
    turning = camtool.Loaded(demo.model, declared)
    report = camtool.explain(turning, photo, transform=lambda image: refuse_red(image.rotate(180))).check()
    assert "upside-down" in report.codes
    assert "KeyError" in report.skipped["transform"]


def test_the_normalization_of_a_network_of_torchvision_is_called_usual() -> None:
    photo = Image.fromarray(photos.unseen(0).image)
    report = camtool.explain(squeezenet1_1().eval(), photo, 0, transform=v2.Compose([PIXELS, HALF])).check()
    (finding,) = (each for each in report.findings if each.code == "other-normalization")
    assert "torchvision's usual one turns them into -2.12, -2.04, -1.8" in finding.sentence


@pytest.mark.parametrize(("classes", "is_named"), [(1000, True), (5, False)])
def test_a_model_of_timm_with_other_classes_may_be_normalized_otherwise(classes: int, is_named) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("mobilenetv3_small_050", num_classes=classes).eval()
    photo = Image.fromarray(photos.unseen(0).image)
    report = camtool.explain(model, photo, 0, transform=v2.Compose([PIXELS, HALF])).check()
    assert ("other-normalization" in report.codes) == is_named


def test_a_model_that_squeezes_photos_itself_has_no_finding(demo) -> None:
    squeeze = v2.Compose([v2.Resize((128, 128)), PIXELS, HALF])
    photo = Image.fromarray(photos.unseen(0).image).resize((160, 120))
    squeezing = camtool.Loaded(demo.model, lambda image: squeeze(image))
    assert "aspect-changed" not in camtool.explain(squeezing, photo, transform=squeeze).check().codes
    finding = next(
        f for f in camtool.explain(demo, photo, transform=squeeze).check().findings if f.code == "aspect-changed"
    )
    # A photo of 160 x 120 becomes square: its width is scaled by 0.8 and its height by 1.067.
    assert [*finding.numbers.values()] == [pytest.approx(0.75, abs=0.01)]


def test_kinds_in_their_order_and_late_layers_have_no_finding() -> None:
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    kinds = make_kinds()
    species = camtool.Loaded(kinds.model, labels=[" ".join(reversed(label.split())) for label in kinds.labels])
    for model in (kinds, species):
        codes = camtool.explain(model, image, 0, layer="layer")[0].check().codes
        assert not {"labels-mixed-up", "negated-layer"} & {*codes}
    # One of five convolutions is 20 %, three are 60 %.
    for layer, method, is_early in (
        (["1"], "gradcam", 1),
        (["1"], "layercam", 0),
        (["5"], "gradcam", 0),
        (["1", "5"], "gradcam", 0),
    ):
        codes = camtool.explain(Deep(), image, 0, layer=layer, method=method)[0].check().codes
        assert ("early-layer" in codes) == is_early


NAMES = {
    "numbers": [*range(200)],
    "nothing": [None] * 200,
    "a first word that all share": [f"class {index}" for index in range(200)],
    "a last word that an eighth shares": [f"n{index} kind{'abcdefgh'[index % 8]}" for index in range(200)],
}


@pytest.mark.parametrize("title", NAMES)
def test_names_that_say_nothing_of_kinds_are_not_judged(title: str) -> None:
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    model = camtool.Loaded(make_kinds(is_sorted=False).model, labels=NAMES[title])
    report = camtool.explain(model, image, 0, layer="layer")[0].check()
    assert "labels-mixed-up" not in report.codes
    assert "last layer" not in report.skipped


class TwoHeads(Net):
    """A network with a second head for training, which is registered last and not read."""

    def __init__(self, first: Net, second: Net) -> None:
        super().__init__(classes=200)
        self.load_state_dict(first.state_dict())
        self.auxiliary = second.head


@pytest.mark.parametrize("is_first_negated", [False, True])
def test_the_layer_that_returns_the_scores_is_judged(is_first_negated) -> None:
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    sound, negated = make_kinds().model, make_kinds(sign=-1).model
    model = TwoHeads(negated, sound) if is_first_negated else TwoHeads(sound, negated)
    codes = camtool.explain(model, image, 0, layer="layer")[0].check().codes
    assert ("negated-layer" in codes) == is_first_negated


def test_the_reason_says_why_the_last_layer_is_not_judged() -> None:
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    scaled = Net(classes=200, behind=nn.Softplus())
    reasons = [camtool.explain(net, image, 0, layer="layer")[0].check().skipped for net in (Net(), scaled)]
    assert [each["last layer"] for each in reasons] == [
        "it takes a classifier of 100 classes or more",
        "no linear layer returns the scores",
    ]


class Wide(nn.Sequential):
    """One convolution, and four linear layers without a grid."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        tail = [nn.Linear(4, 4) for _ in range(4)]
        super().__init__(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *tail)
        self.eval()


def test_a_layer_is_early_only_if_a_later_one_has_a_grid_and_the_user_named_it(monkeypatch) -> None:
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    report = camtool.explain(Wide(), image, 0, layer="1")[0].check()
    assert "early-layer" not in report.codes
    assert "depth" not in report.skipped
    monkeypatch.setattr("camtool.trust.checks.model_checks._EARLY", 2.0)  # any layer is early
    assert "early-layer" in camtool.explain(Deep(), image, 0, layer="9")[0].check().codes
    report = camtool.explain(Deep(), image, 0)[0].check()
    assert "early-layer" not in report.codes
    assert "depth" not in report.skipped


def test_only_what_the_user_chose_is_judged_or_told_to_be_skipped() -> None:
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    skipped = camtool.explain(Net(), image, 0, layer="layer", method="layercam")[0].check().skipped
    assert "transform" not in skipped
    assert skipped["depth"] == "the method does not weigh each channel by one number"
    demo = camtool.explain(camtool.load("demo"), Image.fromarray(photos.unseen(0).image)).check()
    assert not {"transform", "depth"} & {*demo.skipped}


@pytest.mark.parametrize("name", ["mobilenet_v2", pytest.param("squeezenet1_1", marks=pytest.mark.nightly)])
def test_wrong_transforms_on_photos_are_named(shared: Path, name: str, monkeypatch) -> None:
    """For the model as camtool loads it, and for the bare module, which says nothing about its transform."""
    loaded = camtool.load(name, shared / "models" / f"{name}-imagenet.safetensors")
    steps = [v2.Resize(256), v2.CenterCrop(224), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    norm = v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    wrong = {
        "byte-range": [*steps, v2.Lambda(lambda values: 255 * values)],
        "unusual-range": [*steps, norm, norm],
        "other-normalization": steps,
        "channels-swapped": [*steps, norm, v2.Lambda(lambda values: values.flip(0))],
        "right": [*steps, norm],
    }
    monkeypatch.setattr("camtool.trust.checks.check_list.CHECKS", {"transform": CHECKS["transform"]})
    paths = sorted((shared / "images").glob("n*.jpg"))[::4]
    for code, parts in wrong.items():
        for model in (loaded, loaded.model):
            explainer = camtool.Explainer(model, transform=v2.Compose(parts))
            reports = [explainer(path).check() for path in paths]
            named = sum(report.ok if code == "right" else code in report.codes for report in reports)
            assert named == len(paths), code


# ----------------------------------------------------------------------------------------------------- no trace


def test_a_check_leaves_no_trace_and_is_deterministic(demo) -> None:
    explanation = camtool.explain(demo, Image.fromarray(photos.unseen(0).image))
    model, raw = demo.model, explanation.raw.copy()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [each.training for each in model.modules()]
    random_state = torch.get_rng_state()
    assert str(explanation.check()) == str(explanation.check())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [each.training for each in model.modules()] == modes
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    assert all(each.grad is None for each in model.parameters())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert np.array_equal(explanation.raw, raw)


def test_a_model_in_training_mode_stays_in_it() -> None:
    net = Net(between=torch.nn.Dropout(0.5)).train()
    explanation = camtool.explain(net, torch.randn(1, 3, 32, 32), layer="layer")[0]
    assert "train-mode" in explanation.check().codes
    assert net.training
    assert net.between.training


def test_each_image_of_a_batch_is_checked_alone(demo) -> None:
    """The second image of a batch has the findings that it has alone, not those of the first."""
    scene = torch.from_numpy(photos.unseen(0).image.copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
    scene = torch.nn.functional.interpolate(scene, (128, 128))
    batch = torch.cat([scene, torch.zeros_like(scene)])
    first, second = camtool.explain(demo, batch)
    assert "constant-image" not in first.check().codes
    assert "not-repeatable" not in second.check().codes
    assert "constant-image" in second.check().codes


# ------------------------------------------------------------------------------------------------ where a check fails


def test_layers_of_all_branches_together_are_the_whole_score() -> None:
    ensemble, image = Ensemble().eval(), torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    explanation = camtool.explain(ensemble, image, layer=[f"nets.{index}.layer" for index in range(3)])[0]
    assert "other-paths" not in explanation.check().codes


def test_what_the_class_token_read_before_the_layer_is_a_note() -> None:
    report = camtool.explain(make_tiny_vit(), torch.randn(1, 3, 6, 8))[0].check()
    assert "earlier-layers" in report.codes
    assert "other-paths" not in report.codes


def test_a_layer_that_is_read_by_the_class_token_alone_has_a_remedy_that_helps() -> None:
    report = FAULTS["a norm behind the last attention"][1]().check()
    assert report.codes.count("cells-not-read") == 1
    assert "zero-gradient" not in report.codes
    assert camtool.explain(make_tiny_vit(), torch.randn(1, 3, 6, 8), 1)[0].raw.any()  # without layer=


def test_a_lost_gradient_is_located() -> None:
    _, explain = FAULTS["a dead ReLU"]
    (finding,) = (each for each in explain().check().findings if each.code == "zero-gradient")
    assert "'between'" in finding.sentence


def test_checks_that_do_not_apply_are_skipped_with_a_reason(demo) -> None:
    report = camtool.explain(demo, Image.fromarray(photos.unseen(0).image), lambda output: output.max()).check()
    assert "other classes" in report.skipped
    assert set(report.skipped) <= set(CHECKS)
    assert "not checked" in str(report)


class Differentiating(Net):
    """A network whose score depends on a gradient that it computes in its forward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            scores: torch.Tensor = super().forward(leaf)
            (gradient,) = torch.autograd.grad(scores.sum(), leaf, create_graph=True)
        return scores + gradient.mean()


def test_a_check_that_fails_keeps_the_findings_of_the_others() -> None:
    report = camtool.explain(Differentiating(between=torch.nn.Dropout(0.1)).train(), torch.randn(1, 3, 32, 32), 1)[
        0
    ].check()
    assert "train-mode" in report.codes
    assert report.skipped["finite difference"].startswith("it failed: the model cannot run on an input of shape (1, 3,")


def test_a_segmenter_is_checked() -> None:
    """Scores at each position are no classifier's: the checks of classes and of the input are skipped."""
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 2, 1), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 1)).eval()
    report = camtool.explain(net, torch.randn(1, 3, 32, 32), layer="1")[0].check()
    assert {"other classes", "channels", "scale"} <= set(report.skipped)


def test_a_pickled_explanation_keeps_its_warnings_but_cannot_be_checked(demo) -> None:
    explanation = camtool.explain(demo, Image.new("RGB", (128, 128), (90, 90, 90)))
    loaded = pickle.loads(pickle.dumps(explanation))
    assert loaded.warnings == explanation.warnings
    assert [each.code for each in loaded.warnings] == [each.code for each in explanation.warnings]
    with pytest.raises(CamtoolError, match="holds no model"):
        loaded.check()


# --------------------------------------------------------------------------------------------------- border heat


def test_trimming_replaces_the_border_by_its_neighbors() -> None:
    explanation = FAULTS["heat from the padding"][1]()
    trimmed = explanation.trim_border(np.int64(1))
    assert np.array_equal(trimmed.raw[1:-1, 1:-1], explanation.raw[1:-1, 1:-1])
    assert np.array_equal(trimmed.raw[0, 1:-1], explanation.raw[1, 1:-1])
    assert trimmed.raw[0, 0] == explanation.raw[1, 1]
    assert np.ptp(trimmed.raw) < np.ptp(explanation.raw)


@pytest.mark.parametrize("cells", [0, -1, 1.5, True, 100])
def test_a_wrong_border_is_refused(cells: object) -> None:
    with pytest.raises(CamtoolError, match="cells"):
        FAULTS["heat from the padding"][1]().trim_border(cells)


# ------------------------------------------------------------------------------------------------------- the texts


def test_warnings_are_strings_with_code_and_remedy() -> None:
    (warning, *_) = FAULTS["an image of one color"][1]().warnings
    assert isinstance(warning, str)
    assert isinstance(warning, MapWarning)
    assert warning.code == "constant-image"
    assert warning.remedy == WARNING_KINDS["constant-image"].remedy
    assert warning.address == "https://camtool.github.io/camtool/reference/warnings.html#constant-image"


@pytest.mark.parametrize("fault", ["floats from 0 to 255", "a dead ReLU", "an image of one color"])
def test_a_report_fits_into_80_columns(fault: str) -> None:
    text = str(FAULTS[fault][1]().check())
    assert max(map(len, text.splitlines())) <= 80


def test_the_page_of_warnings_has_the_texts_of_every_code_and_docs_lead_there() -> None:
    text, page = DOCS.read_text(encoding="utf-8"), _draw_warnings(WARNING_KINDS.values())
    for kind in WARNING_KINDS.values():
        assert f"## {kind.code}\n\n{kind.condition}\n\n**What to do.** {kind.remedy}\n" in page
        assert f"({kind.address.partition('#')[0]})" in text
    named = {*re.findall(r"`([a-z]+(?:-[a-z]+)+)`", text)}
    assert len(named) > 15
    assert named - WARNING_KINDS.keys() == set()
