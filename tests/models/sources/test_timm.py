"""Source of timm models: names, files of weights, transforms, labels and errors."""

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
from camtool.cli.app import app
from camtool.geometry.measured_transforms import probe_geometry
from camtool.geometry.torchvision_transforms import read_geometry
from camtool.models import build_untrained, find_input_size, resolve_labels
from camtool.models.declared_properties import find_transform

NAME = "test_resnet"
"""Name of timm's smallest network with an ordinary head."""

NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 140, 3), np.uint8))


def save_weights(folder, model: nn.Module) -> str:
    save_file(model.state_dict(), folder / "weights.safetensors")
    return str(folder / "weights.safetensors")


def build_configured(name: str = NAME, **changes) -> nn.Module:
    """Build a model with random weights and a changed configuration."""
    return timm.create_model(name, pretrained_cfg_overlay=changes).eval()


# ---------------------------------------------------------------------------------------------------- weights


def test_a_model_with_weights_of_a_file_equals_the_saved_model(tmp_path):
    original = timm.create_model(NAME).eval()
    loaded = camtool.load(f"timm:{NAME}", save_weights(tmp_path, original))
    batch = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(loaded.model(batch), original(batch), rtol=0, atol=0)
    assert loaded.name == f"timm:{NAME}"
    assert not any(module.training for module in loaded.model.modules())


def test_weights_for_other_classes_replace_the_head_and_the_labels(tmp_path):
    original = timm.create_model(NAME, num_classes=7).eval()
    loaded = camtool.load(f"timm:{NAME}", save_weights(tmp_path, original), labels=list("abcdefg"))
    assert loaded.model(torch.rand(1, 3, 64, 64)).shape == (1, 7)
    assert camtool.load(f"timm:{NAME}", save_weights(tmp_path, original)).labels is None
    assert loaded.labels == list("abcdefg")


def test_weights_without_a_head_give_a_backbone(tmp_path):
    original = timm.create_model(NAME, num_classes=0).eval()
    loaded = camtool.load(f"timm:{NAME}", save_weights(tmp_path, original))
    batch = torch.rand(1, 3, 64, 64)
    torch.testing.assert_close(loaded.model(batch), original(batch), rtol=0, atol=0)


def test_a_head_of_two_parts_has_the_classes_of_the_first(tmp_path):
    name = "deit_tiny_distilled_patch16_224"
    original = timm.create_model(name, num_classes=5).eval()
    assert camtool.load(f"timm:{name}", save_weights(tmp_path, original)).model.num_classes == 5


def test_weights_of_another_architecture_do_not_fit(tmp_path):
    with pytest.raises(ModelError, match="do not fit the model"):
        camtool.load(f"timm:{NAME}", save_weights(tmp_path, timm.create_model("test_vit")))


def test_timm_loads_pretrained_weights(monkeypatch):
    requested, real = [], timm.create_model

    def create_model(name, *, pretrained=False, **options):
        requested.append((name, pretrained))
        return real(name, **options)

    monkeypatch.setattr(timm, "create_model", create_model)
    loaded = camtool.load(f"timm:{NAME}.r160_in1k")
    assert requested == [(f"{NAME}.r160_in1k", True)]
    assert loaded.labels == zoo.ResNet18_Weights.IMAGENET1K_V1.meta["categories"]


@pytest.mark.parametrize("fault", [URLError("no route"), OSError("no such host\nat all"), RuntimeError("a wrong hash")])
def test_the_error_without_internet_says_what_to_do(monkeypatch, fault):
    def create_model(*args, **kwargs):
        raise fault

    monkeypatch.setattr(timm, "create_model", create_model)
    with pytest.raises(ModelError, match=r"'timm:test_resnet' could not be downloaded \(.*--weights FILE") as error:
        camtool.load(f"timm:{NAME}")
    assert "\n" not in str(error.value)
    assert error.value.__suppress_context__


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
def test_an_unknown_name_or_tag_suggests_similar_ones(name, match):
    with pytest.raises(ModelError, match=match):
        camtool.load(f"timm:{name}")
    with pytest.raises(ModelError, match=match):
        build_untrained(f"timm:{name}")


def test_an_architecture_without_published_weights_needs_a_file():
    name = next(name for name in timm.list_models("vit_*") if not timm.list_pretrained(f"{name}.*"))
    with pytest.raises(ModelError, match=rf"no weights for '{name}'; give a file"):
        camtool.load(f"timm:{name}")


def test_a_missing_local_folder_raises_an_error(tmp_path):
    with pytest.raises(ModelError, match=r"'timm:local-dir:.*' cannot be built"):
        build_untrained(f"timm:local-dir:{tmp_path}")


def test_the_error_without_timm_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModelError, match=r"pip install 'camtool\[timm\]'"):
        camtool.load("timm:resnet18")


def test_an_untrained_model_is_built_without_downloads(monkeypatch):
    monkeypatch.setattr(torch.hub, "urlopen", None)
    model = build_untrained("timm:test_vit")
    assert not model.training
    assert all(module.weight.any() for module in model.modules() if isinstance(module, nn.Linear))


# ------------------------------------------------------------------------------------------------- preprocessing

CONFIGURATIONS = [
    {"crop_mode": "center", "crop_pct": 0.9},
    {"crop_mode": "squash", "crop_pct": 0.875},
    {"crop_mode": "border", "crop_pct": 0.8},
    {"crop_mode": "border", "crop_pct": 1.0},
    {"crop_mode": "center", "crop_pct": 0.95, "input_size": (3, 96, 160)},
]


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda each: "-".join(map(str, each.values())))
def test_the_transform_equals_timms_and_its_geometry_is_read(configuration):
    model = build_configured(**configuration)
    transform = find_transform(model)
    theirs = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    torch.testing.assert_close(transform(NOISE), theirs(NOISE), rtol=0, atol=0)
    for size in ((300, 413), (413, 300), (97, 97), (61, 402)):
        read, probed = read_geometry(transform, size), probe_geometry(transform, size)
        assert read.size == probed.size == find_input_size(model)
        # A probe is exact to a part of a pixel.
        np.testing.assert_allclose(read.box, probed.box, rtol=0, atol=0.5)


@pytest.mark.parametrize("longest", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("photo", [(101, 57), (64, 200)])
def test_the_geometry_maps_each_pixel_exactly(longest, photo):
    """The size is compared after resizing. Crops and padding are compared pixel for pixel, without resampling."""
    from timm.data.transforms import CenterCropOrPad, ResizeKeepRatio, TrimBorder

    resize = ResizeKeepRatio((40, 50), longest=longest)
    image = Image.fromarray(np.random.default_rng(1).integers(1, 256, (*photo, 3), np.uint8))
    resized = resize(image)
    assert read_geometry(transforms.Compose([resize]), photo).size == (resized.height, resized.width)
    for part in (CenterCropOrPad((71, 71)), TrimBorder(5), transforms.CenterCrop((33, 90))):
        compose = transforms.Compose([part, transforms.ToTensor()])
        top, left, bottom, right = map(int, read_geometry(compose, photo).box)
        padded = np.pad(np.asarray(image), ((100, 100), (100, 100), (0, 0)))
        expected = padded[100 + top : 100 + bottom, 100 + left : 100 + right]
        np.testing.assert_array_equal((compose(image) * 255).byte().movedim(0, -1).numpy(), expected)


def test_a_random_resize_is_refused():
    from timm.data.transforms import ResizeKeepRatio

    random = transforms.Compose([ResizeKeepRatio(32, random_scale_prob=1.0), transforms.ToTensor()])
    with pytest.raises(camtool.GeometryError, match="is random"):
        read_geometry(random, (100, 120))


def test_a_bare_model_uses_the_transform_of_its_configuration_without_a_warning():
    model = build_configured("test_vit", mean=(0.1, 0.2, 0.3), input_size=(3, 160, 160))
    nn.init.normal_(model.head.weight)
    result = camtool.explain(model, NOISE)
    with torch.no_grad():
        expected = model(find_transform(model)(NOISE)[None])[0].max()
    assert result.score == pytest.approx(float(expected), rel=1e-5)
    assert not any("transform" in warning for warning in result.warnings)


# ------------------------------------------------------------------------------------------------------ labels


def test_imagenet_classes_have_torchvisions_names():
    names = zoo.ResNet18_Weights.IMAGENET1K_V1.meta["categories"]
    assert resolve_labels(build_configured(), None, 1000) == names
    described = timm.data.ImageNetInfo("imagenet-1k").label_descriptions()
    shared = sum(name.casefold() in each.casefold() for name, each in zip(names, described, strict=True))
    # The order is the same in timm; a few classes have other names.
    assert shared > 950


def test_labels_of_larger_imagenet_sets_are_those_of_wordnet():
    model = timm.create_model(NAME, num_classes=11821, pretrained_cfg_overlay={"num_classes": 11821})
    labels = resolve_labels(model, None, 11821)
    assert len(labels) == 11821
    assert labels == timm.data.ImageNetInfo("imagenet-12k").label_descriptions()


def test_labels_in_a_configuration_come_first():
    own = {"num_classes": 2, "label_names": ["n1", "n2"], "label_descriptions": {"n1": "cat", "n2": "dog"}}
    model = timm.create_model(NAME, num_classes=2, pretrained_cfg_overlay=own)
    assert resolve_labels(model, None, 2) == ["cat", "dog"]


def test_a_replaced_head_has_no_labels():
    assert resolve_labels(timm.create_model(NAME, num_classes=3), None, 3) is None
    assert resolve_labels(timm.create_model(NAME, num_classes=0), None, 1000) is None
    assert resolve_labels(timm.create_model(NAME, features_only=True), None, 1000) is None


# ---------------------------------------------------------------------------------------------- the command line


def test_the_command_line_lists_layers_at_the_input_size_of_the_model(monkeypatch):
    monkeypatch.setattr("camtool.cli.terminal.out.width", 200)
    result = CliRunner().invoke(app, ["layers", "timm:test_vit"])
    assert (result.exit_code, "10 x 10" in result.output, "chosen" in result.output) == (0, True, True)  # 160 by 16


def test_the_command_line_explains_photos_with_a_timm_model(tmp_path):
    NOISE.save(tmp_path / "noise.png")
    weights = save_weights(tmp_path, timm.create_model(NAME))
    out = tmp_path / "out"
    arguments = [tmp_path / "noise.png", "--model", f"timm:{NAME}", "--weights", weights, "--out", out, "--target", "3"]
    result = CliRunner().invoke(app, ["run", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    (line,) = (out / "explanations.jsonl").read_text().splitlines()
    assert json.loads(line)["label"] == zoo.ResNet18_Weights.IMAGENET1K_V1.meta["categories"][3]
