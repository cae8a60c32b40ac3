"""Source of torchvision: files, downloads, labels and transforms."""

from __future__ import annotations

import re
from email.message import Message
from io import BytesIO
from urllib.error import URLError
from urllib.response import addinfourl

import pytest
import torch
import torchvision.models as zoo
from torch import nn
from torch.hub import HASH_REGEX

import camtool
from camtool import ModelError
from camtool.models import build_untrained, resolve_labels
from camtool.models.sources.torchvision import build_default_transform
from camtool.outputs.class_scores import find_logits
from tests.models.torchvision_nets import BATCH, NAME, OPTIONS, PHOTO, assert_one_line, build_net, save_weights

# --------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("name", [NAME, "squeezenet1_1", "mobilenet_v3_small", "mnasnet0_5", "resnet18"])
def test_a_model_with_weights_of_a_file_equals_the_saved_model(tmp_path, name):
    original = build_net(name)
    loaded = camtool.load(name, save_weights(tmp_path, original.state_dict()))
    torch.testing.assert_close(loaded.model(BATCH), original(BATCH), rtol=0, atol=0)
    assert not any(module.training for module in loaded.model.modules())


def test_half_precision_weights_become_single_precision(tmp_path):
    original = build_net()
    halved = {key: value.half() if value.is_floating_point() else value for key, value in original.state_dict().items()}
    model = camtool.load(NAME, save_weights(tmp_path, halved, "weights.safetensors")).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(torch.equal(mine.half(), halved[key]) for key, mine in model.state_dict().items() if "num" not in key)


def test_a_file_gets_the_labels_and_the_default_transform_of_its_architecture(tmp_path):
    loaded = camtool.load(NAME, save_weights(tmp_path, build_net().state_dict()))
    usual = zoo.get_model_weights(NAME)["IMAGENET1K_V1"]
    assert loaded.labels == usual.meta["categories"]
    torch.testing.assert_close(loaded.transform(PHOTO), usual.transforms()(PHOTO), rtol=0, atol=0)
    assert loaded.name == NAME


@pytest.mark.parametrize("name", [NAME, "squeezenet1_1", "mobilenet_v3_small"])
def test_weights_for_other_classes_replace_the_head_and_the_labels(tmp_path, name):
    original = build_net(name, num_classes=7)
    path = save_weights(tmp_path, original.state_dict())
    loaded = camtool.load(name, path)
    torch.testing.assert_close(loaded.model(BATCH), original(BATCH), rtol=0, atol=0)
    assert loaded.labels is None
    assert camtool.load(name, path, labels=tuple("abcdefg")).labels == list("abcdefg")


def test_a_file_saved_from_the_default_googlenet_is_loaded(tmp_path):
    without = build_net("googlenet", init_weights=False, aux_logits=False)
    camtool.load("googlenet", save_weights(tmp_path, without.state_dict()))


def test_a_densenet_file_with_old_names_is_loaded(tmp_path):
    state = build_net("densenet121").state_dict()
    old = {re.sub(r"(denselayer\d+\.(?:norm|conv))(\d)", r"\1.\2", key): value for key, value in state.items()}
    camtool.load("densenet121", save_weights(tmp_path, old))


# ------------------------------------------------------------------------------------------------------- downloads


@pytest.fixture
def downloads(monkeypatch):
    """Replace each download by random weights; return the requests."""
    requested = []

    def get_state_dict(self, *args, **kwargs):
        requested.append((self, kwargs))
        name = next(name for name in zoo.list_models() if self in zoo.get_model_weights(name))
        torch.manual_seed(5)
        return build_net(name, **OPTIONS.get(name, {})).state_dict()

    monkeypatch.setattr(zoo.WeightsEnum, "get_state_dict", get_state_dict)
    return requested


def test_torchvisions_best_weights_come_with_their_transform_and_labels(downloads):
    loaded = camtool.load("mobilenet_v2")
    best = zoo.MobileNet_V2_Weights.DEFAULT
    assert best is not zoo.MobileNet_V2_Weights.IMAGENET1K_V1  # else the test would show nothing
    assert downloads == [(best, {"progress": False, "check_hash": True})]
    assert loaded.labels == best.meta["categories"]
    torch.testing.assert_close(loaded.transform(PHOTO), best.transforms()(PHOTO), rtol=0, atol=0)


@pytest.mark.parametrize("name", [NAME, "densenet121", *OPTIONS])
def test_a_downloaded_model_equals_torchvisions(downloads, name):
    batch = torch.rand(1, 3, 96, 96)
    theirs, ours = zoo.get_model(name, weights="DEFAULT").eval(), camtool.load(name).model
    torch.testing.assert_close(find_logits(ours(batch)), find_logits(theirs(batch)), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_a_model_of_a_file_rescales_its_input_like_a_downloaded_one(tmp_path, downloads, name):
    state = zoo.get_model_weights(name)["DEFAULT"].get_state_dict()
    batch = torch.rand(1, 3, 96, 96)
    filled = camtool.load(name, save_weights(tmp_path, state)).model
    torch.testing.assert_close(filled(batch), camtool.load(name).model(batch), rtol=0, atol=0)


def test_cached_weights_need_no_internet(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    original, best = build_net(), zoo.get_model_weights(NAME)["DEFAULT"]
    cached = tmp_path / "hub" / "checkpoints" / best.url.rpartition("/")[2]
    cached.parent.mkdir(parents=True)
    torch.save(original.state_dict(), cached)
    torch.testing.assert_close(camtool.load(NAME).model(BATCH), original(BATCH), rtol=0, atol=0)


def test_a_download_with_a_wrong_hash_raises_an_error(tmp_path, monkeypatch):
    """The usual case is a login page that answers every address."""

    def urlopen(*args, **kwargs):
        return addinfourl(BytesIO(b"<html>Please log in</html>"), Message(), "https://portal.example")

    assert HASH_REGEX.search(zoo.get_model_weights(NAME)["DEFAULT"].url)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "urlopen", urlopen)
    with pytest.raises(ModelError, match=r"could not be downloaded .*hash") as error:
        camtool.load(NAME)
    assert_one_line(error)
    assert error.value.__suppress_context__  # no traceback of the download above it


@pytest.mark.parametrize("fault", [URLError("Name or service not known"), ConnectionResetError("reset by peer")])
def test_the_error_without_internet_names_two_remedies(tmp_path, monkeypatch, fault):
    def urlopen(*args, **kwargs):
        raise fault

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "urlopen", urlopen)
    with pytest.raises(ModelError, match=r"'resnet18' could not be .*--weights FILE.*--model demo") as error:
        camtool.load("resnet18")
    assert_one_line(error)
    assert str(fault.args[0]) in str(error.value)


# ------------------------------------------------------------------------------------------- untrained and bare models


@pytest.mark.parametrize("name", [NAME, "vit_b_32", "deeplabv3_mobilenet_v3_large"])
def test_an_untrained_model_is_built_without_downloads(monkeypatch, name):
    monkeypatch.setattr(torch.hub, "urlopen", None)
    model = build_untrained(name)
    assert not model.training
    assert all(module.weight.any() for module in model.modules() if isinstance(module, nn.Linear))


def test_the_default_transform_equals_torchvisions_for_classifiers():
    theirs = zoo.ResNet18_Weights.IMAGENET1K_V1.transforms()(PHOTO)
    torch.testing.assert_close(build_default_transform()(PHOTO), theirs, rtol=0, atol=0)
    assert build_default_transform(64)(PHOTO).shape == (3, 64, 64)


def test_imagenet_labels_are_found_only_for_torchvision_models_with_a_thousand_classes():
    model = build_net()
    assert resolve_labels(model, None, 1000) == (*zoo.ResNet18_Weights.IMAGENET1K_V1.meta["categories"],)
    assert resolve_labels(model, None, 999) is None
    assert resolve_labels(nn.Linear(2, 1000), None, 1000) is None
