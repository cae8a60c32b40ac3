"""Loading by name: options, hints and errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import camtool
from camtool import ModelError
from camtool.models import build_untrained, is_model_name
from tests.models.torchvision_nets import NAME, assert_one_line, build_net, save_weights


def test_the_path_may_be_a_string(tmp_path):
    assert camtool.load(NAME, str(save_weights(tmp_path, build_net().state_dict()))).model


def test_the_model_is_moved_to_the_device(tmp_path):
    model = camtool.load(NAME, save_weights(tmp_path, build_net().state_dict()), device="meta").model
    assert {tensor.device.type for tensor in [*model.parameters(), *model.buffers()]} == {"meta"}


@pytest.mark.parametrize("url", ["https://x.org/a.pth", "S3://bucket/a.safetensors"])
def test_the_error_for_a_url_shows_it_unchanged(url):
    for call in (lambda: camtool.load(NAME, url), lambda: camtool.load(url), lambda: camtool.load(f"hf:{url}")):
        with pytest.raises(ModelError, match=re.escape(f"{url!r}: URLs are not read; download")):
            call()


@pytest.mark.parametrize(
    ("name", "hint"),
    [("a/cat.jpg", "looks like a photo"), ("net.pth", "file of weights"), ("./resnet18", "a photo or a path")],
)
def test_a_file_instead_of_a_name_gets_a_hint(name, hint):
    with pytest.raises(ModelError, match=hint):
        camtool.load(name)


@pytest.mark.parametrize("name", ["a/cat.jpg", "net.pth", "absent.onnx", "demo"])
def test_a_name_may_be_a_path(name):
    def describe(given):
        try:
            return camtool.load(given).name
        except ModelError as error:
            return str(error)

    assert describe(Path(name)) == describe(name)


def test_the_name_of_a_library_may_stand_before_a_model_of_torchvision():
    assert type(build_untrained("torchvision:squeezenet1_1")) is type(build_untrained("squeezenet1_1"))
    with pytest.raises(ModelError, match=r"'torchvision:squeezenet' is unknown. Did you mean"):
        build_untrained("torchvision:squeezenet")
    assert is_model_name("torchvision:squeezenet1_1")


@pytest.mark.parametrize(
    "rest", ["hf:org/x", "timm:resnet18", "demo", "tests.helpers.tiny_models:tiny", "torchvision:resnet18"]
)
def test_behind_the_name_of_a_library_stands_none_of_another_one(rest):
    with pytest.raises(ModelError, match=f"'torchvision:{rest}' is unknown"):
        camtool.load(f"torchvision:{rest}")


def test_an_unknown_name_suggests_similar_names():
    with pytest.raises(ModelError, match=r"'mobilnet_v2' is unknown\. Did you mean 'mobilenet_v2'") as error:
        camtool.load("mobilnet_v2")
    assert_one_line(error)


def test_an_unknown_architecture_suggests_similar_names():
    with pytest.raises(ModelError, match="Did you mean 'resnet18'"):
        build_untrained("resnet_18")
