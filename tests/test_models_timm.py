"""timm's models: their names, weights of a file, their own preparation and labels, and the faults that people meet."""

from __future__ import annotations

import json
import sys
from urllib.error import URLError

import numpy as np
import pytest
import timm
import torch
import torchvision.models as zoo
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torchvision import transforms
from typer.testing import CliRunner

import camtool
from camtool import ModelError
from camtool.cli import app
from camtool.geometry import geometry_of, probe
from camtool.models import architecture, own_transform, usual_labels, usual_size

NAME = "test_resnet"
"""timm's smallest network with a usual head."""

NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 140, 3), np.uint8))


def saved(folder, model: nn.Module) -> str:
    save_file(model.state_dict(), folder / "weights.safetensors")
    return str(folder / "weights.safetensors")


def configured(name: str = NAME, **changes) -> nn.Module:
    """A model with random weights whose configuration is changed."""
    return timm.create_model(name, pretrained_cfg_overlay=changes).eval()


# ---------------------------------------------------------------------------------------------------- weights


def test_a_model_with_weights_of_a_file_computes_what_the_saved_one_did(tmp_path):
    original = timm.create_model(NAME).eval()
    loaded = camtool.load(f"timm:{NAME}", saved(tmp_path, original))
    batch = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(loaded.model(batch), original(batch), rtol=0, atol=0)
    assert loaded.name == f"timm:{NAME}"
    assert not any(module.training for module in loaded.model.modules())


def test_weights_for_other_classes_change_the_head_and_have_no_imagenet_labels(tmp_path):
    original = timm.create_model(NAME, num_classes=7).eval()
    loaded = camtool.load(f"timm:{NAME}", saved(tmp_path, original), labels=list("abcdefg"))
    assert loaded.model(torch.rand(1, 3, 64, 64)).shape == (1, 7)
    assert camtool.load(f"timm:{NAME}", saved(tmp_path, original)).labels is None
    assert loaded.labels == list("abcdefg")


def test_weights_without_a_head_make_a_backbone(tmp_path):
    original = timm.create_model(NAME, num_classes=0).eval()
    loaded = camtool.load(f"timm:{NAME}", saved(tmp_path, original))
    batch = torch.rand(1, 3, 64, 64)
    torch.testing.assert_close(loaded.model(batch), original(batch), rtol=0, atol=0)


def test_a_head_of_two_parts_has_the_classes_of_its_first(tmp_path):
    name = "deit_tiny_distilled_patch16_224"
    original = timm.create_model(name, num_classes=5).eval()
    assert camtool.load(f"timm:{name}", saved(tmp_path, original)).model.num_classes == 5


def test_weights_of_another_architecture_do_not_fit(tmp_path):
    with pytest.raises(ModelError, match="do not fit the model"):
        camtool.load(f"timm:{NAME}", saved(tmp_path, timm.create_model("test_vit")))


def test_pretrained_weights_are_asked_of_timm(monkeypatch):
    asked, real = [], timm.create_model

    def create_model(name, *, pretrained=False, **options):
        asked.append((name, pretrained))
        return real(name, **options)

    monkeypatch.setattr(timm, "create_model", create_model)
    loaded = camtool.load(f"timm:{NAME}.r160_in1k")
    assert asked == [(f"{NAME}.r160_in1k", True)]
    assert loaded.labels == zoo.ResNet18_Weights.IMAGENET1K_V1.meta["categories"]


@pytest.mark.parametrize("fault", [URLError("no route"), OSError("no such host\nat all"), RuntimeError("a wrong hash")])
def test_without_internet_the_sentence_says_what_to_do(monkeypatch, fault):
    def create_model(*args, **kwargs):
        raise fault

    monkeypatch.setattr(timm, "create_model", create_model)
    with pytest.raises(ModelError, match=r"'timm:test_resnet' could not be fetched \(.*--weights FILE") as error:
        camtool.load(f"timm:{NAME}")
    assert "\n" not in str(error.value)


# ------------------------------------------------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("resnet_18", r"unknown to timm [\d.]+\. Did you mean 'timm:resnet18'"),
        ("resnet18.a1_in2k", r"weights for resnet18 are a1_in1k, .*Did you mean 'a1_in1k'"),
        ("test_resnet.nothing", "weights for test_resnet are r160_in1k"),
        ("", "unknown to timm"),
    ],
)
def test_an_unknown_name_or_tag_suggests_near_ones(name, match):
    with pytest.raises(ModelError, match=match):
        camtool.load(f"timm:{name}")
    with pytest.raises(ModelError, match=match):
        architecture(f"timm:{name}")


def test_an_architecture_without_published_weights_asks_for_a_file():
    name = next(name for name in timm.list_models("vit_*") if not timm.list_pretrained(f"{name}.*"))
    with pytest.raises(ModelError, match=rf"no weights for '{name}'; give a file"):
        camtool.load(f"timm:{name}")


def test_a_source_of_timms_own_that_is_nowhere_is_a_sentence(tmp_path):
    with pytest.raises(ModelError, match=r"'timm:local-dir:.*' cannot be built"):
        architecture(f"timm:local-dir:{tmp_path}")


def test_without_timm_the_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModelError, match=r"pip install 'camtool\[timm\]'"):
        camtool.load("timm:resnet18")


def test_an_architecture_is_built_without_fetching_anything(monkeypatch):
    monkeypatch.setattr(torch.hub, "urlopen", None)
    model = architecture("timm:test_vit")
    assert not model.training
    assert all(module.weight.any() for module in model.modules() if isinstance(module, nn.Linear))


# ------------------------------------------------------------------------------------------------- preparation

CONFIGURATIONS = [
    {"crop_mode": "center", "crop_pct": 0.9},
    {"crop_mode": "squash", "crop_pct": 0.875},
    {"crop_mode": "border", "crop_pct": 0.8},
    {"crop_mode": "border", "crop_pct": 1.0},
    {"crop_mode": "center", "crop_pct": 0.95, "input_size": (3, 96, 160)},
]


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda each: "-".join(map(str, each.values())))
def test_the_preparation_is_timms_own_and_its_geometry_is_read(configuration):
    model = configured(**configuration)
    transform = own_transform(model)
    theirs = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    torch.testing.assert_close(transform(NOISE), theirs(NOISE), rtol=0, atol=0)
    for size in ((300, 413), (413, 300), (97, 97), (61, 402)):
        read, probed = geometry_of(transform, size), probe(transform, size)
        assert read.size == probed.size == usual_size(model)
        # Scales of a few pixels a cell are probed to a part of a pixel, coarse ones less truly.
        np.testing.assert_allclose(read.box, probed.box, rtol=0, atol=0.5)


@pytest.mark.parametrize("longest", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("photo", [(101, 57), (64, 200)])
def test_where_a_pixel_goes_is_read_to_the_pixel(longest, photo):
    """Resizing alone tells the size; what is cut out or padded is compared pixel for pixel, without resampling."""
    from timm.data.transforms import CenterCropOrPad, ResizeKeepRatio, TrimBorder

    resize = ResizeKeepRatio((40, 50), longest=longest)
    picture = Image.fromarray(np.random.default_rng(1).integers(1, 256, (*photo, 3), np.uint8))
    resized = resize(picture)
    assert geometry_of(transforms.Compose([resize]), photo).size == (resized.height, resized.width)
    for part in (CenterCropOrPad((71, 71)), TrimBorder(5), transforms.CenterCrop((33, 90))):
        compose = transforms.Compose([part, transforms.ToTensor()])
        top, left, bottom, right = map(int, geometry_of(compose, photo).box)
        padded = np.pad(np.asarray(picture), ((100, 100), (100, 100), (0, 0)))
        expected = padded[100 + top : 100 + bottom, 100 + left : 100 + right]
        np.testing.assert_array_equal((compose(picture) * 255).byte().movedim(0, -1).numpy(), expected)


def test_a_random_resizing_is_not_read_off_but_refused():
    from timm.data.transforms import ResizeKeepRatio

    random = transforms.Compose([ResizeKeepRatio(32, random_scale_prob=1.0), transforms.ToTensor()])
    with pytest.raises(camtool.GeometryError, match="is random"):
        geometry_of(random, (100, 120))


def test_a_bare_model_is_given_photos_as_its_configuration_asks_without_a_warning():
    model = configured("test_vit", mean=(0.1, 0.2, 0.3), input_size=(3, 160, 160))
    nn.init.normal_(model.head.weight)
    result = camtool.explain(model, NOISE)
    with torch.no_grad():
        expected = model(own_transform(model)(NOISE)[None])[0].max()
    assert result.score == pytest.approx(float(expected), rel=1e-5)
    assert not any("transform" in warning for warning in result.warnings)


# ------------------------------------------------------------------------------------------------------ labels


def test_imagenets_classes_have_the_names_that_they_have_with_torchvision():
    names = zoo.ResNet18_Weights.IMAGENET1K_V1.meta["categories"]
    assert usual_labels(configured(), 1000) == names
    described = timm.data.ImageNetInfo("imagenet-1k").label_descriptions()
    shared = sum(name.casefold() in each.casefold() for name, each in zip(names, described, strict=True))
    assert shared > 950  # timm's order is the same; a few classes are described in other words


def test_labels_of_the_larger_sets_are_wordnets():
    model = timm.create_model(NAME, num_classes=11821, pretrained_cfg_overlay={"num_classes": 11821})
    labels = usual_labels(model, 11821)
    assert len(labels) == 11821
    assert labels == timm.data.ImageNetInfo("imagenet-12k").label_descriptions()


def test_names_in_a_configuration_come_first():
    own = {"num_classes": 2, "label_names": ["n1", "n2"], "label_descriptions": {"n1": "cat", "n2": "dog"}}
    model = timm.create_model(NAME, num_classes=2, pretrained_cfg_overlay=own)
    assert usual_labels(model, 2) == ["cat", "dog"]


def test_a_head_of_ones_own_has_no_labels():
    assert usual_labels(timm.create_model(NAME, num_classes=3), 3) is None
    assert usual_labels(timm.create_model(NAME, num_classes=0), 1000) is None
    assert usual_labels(timm.create_model(NAME, features_only=True), 1000) is None


# ---------------------------------------------------------------------------------------------- the command line


def test_the_command_line_lists_layers_at_the_size_that_the_model_is_for(monkeypatch):
    monkeypatch.setattr("camtool.cli._out.width", 200)
    said = CliRunner().invoke(app, ["layers", "timm:test_vit"])
    assert (said.exit_code, "10 x 10" in said.output, "chosen" in said.output) == (0, True, True)  # 160 by 16


def test_the_command_line_explains_photos_with_a_model_of_timm(tmp_path):
    NOISE.save(tmp_path / "noise.png")
    weights = saved(tmp_path, timm.create_model(NAME))
    out = tmp_path / "out"
    arguments = [tmp_path / "noise.png", "--model", f"timm:{NAME}", "--weights", weights, "--out", out, "--target", "3"]
    said = CliRunner().invoke(app, ["run", *map(str, arguments)])
    assert said.exit_code == 0, said.output
    (line,) = (out / "explanations.jsonl").read_text().splitlines()
    assert json.loads(line)["label"] == zoo.ResNet18_Weights.IMAGENET1K_V1.meta["categories"][3]
