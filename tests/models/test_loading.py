"""Loading by name: options, hints and errors."""

from __future__ import annotations

import os
import re
import socket
import zipfile
from urllib.request import urlopen

import pytest
import torch
from torch import nn

import camtool
from camtool import ModelError
from camtool.models import build_untrained, loading
from camtool.models.loading import is_model_name
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
    [("a/cat.jpg", "looks like a photo"), ("net.pth", "no file that exists"), ("./resnet18", "a photo or a path")],
)
def test_a_file_instead_of_a_name_gets_a_hint(name, hint):
    with pytest.raises(ModelError, match=hint):
        camtool.load(name)


class RunsCode:
    """An object that ends the process when it is unpickled."""

    def __reduce__(self):
        return os._exit, (1,)


def write_file_of_ultralytics(path):
    """Write a file as torch does whose pickle names a class of Ultralytics."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("best/data.pkl", b"\x80\x02cultralytics.nn.tasks\nDetectionModel\n.")


@pytest.mark.parametrize(
    ("save", "words"),
    [
        (lambda net, path: torch.save(net.state_dict(), path), "is a file of weights; give it as weights= (--weights)"),
        (lambda net, path: torch.save({"epoch": 3, "model": net.state_dict()}, path), "is a file of weights"),
        (lambda net, path: torch.save(net, path), "is a pickle of a whole model"),
        (lambda net, path: torch.save(RunsCode(), path), "is a pickle of a whole model"),
        (lambda net, path: torch.jit.save(torch.jit.trace(net, torch.rand(1, 3, 8, 8)), path), "is TorchScript"),
        (lambda net, path: path.write_bytes(b"PK\x03\x04 no archive"), "is a file of weights"),
        (lambda net, path: zipfile.ZipFile(path, "w").close(), "is a file of weights"),
    ],
    ids=["weights", "checkpoint", "model", "code", "TorchScript", "damaged", "empty"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*jit")
def test_a_file_of_torch_as_a_model_is_told_from_others_in_one_line(tmp_path, save, words):
    path = tmp_path / "y11.pt"
    save(nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten()).eval(), path)
    with pytest.raises(ModelError) as error:
        camtool.load(str(path))
    assert str(error.value).startswith(f"model {str(path)!r} {words}")
    assert str(error.value).count(str(path)) == 1
    assert_one_line(error)


def test_a_file_of_ultralytics_needs_no_prefix(tmp_path, monkeypatch):
    path = tmp_path / "y11.pt"
    write_file_of_ultralytics(path)
    source, name = loading._find_source(str(path))
    assert (source.prefix, name) == ("ultralytics", str(path))
    monkeypatch.setattr(type(source), "load", lambda self, name, weights: camtool.Loaded(build_net()))
    with pytest.warns(UserWarning, match=f"model '{path}' is a file of Ultralytics"):
        assert camtool.load(str(path)).name == str(path)


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


def test_a_server_of_weights_that_sends_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr("camtool.models.sources.source._SILENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/weights.pth"
        monkeypatch.setattr("torchvision.models.get_model", lambda *_, **__: urlopen(url))  # as torch.hub does
        with pytest.raises(
            ModelError, match=r"weights of 'squeezenet1_1' could not be downloaded \(timed out\)"
        ) as error:
            camtool.load("squeezenet1_1")
        assert_one_line(error)
    assert socket.getdefaulttimeout() is None


def test_a_hub_that_sends_nothing_is_given_up(monkeypatch):
    transformers = pytest.importorskip("transformers")
    import huggingface_hub

    monkeypatch.setattr("camtool.models.sources.source._SILENCE", 0.2)
    session = huggingface_hub.get_session()
    hooks = {event: [*hooks] for event, hooks in session.event_hooks.items()}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/api/models/org/name"

        def ask_twice(*_: object, **__: object) -> None:
            # transformers forgets the error of its question for a revision, and asks for files.
            with pytest.raises(Exception, match="timed out"):
                session.get(url, timeout=None)
            session.get(url, timeout=None)

        monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", ask_twice)
        with pytest.raises(
            ModelError, match=r"could not be loaded: 127\.0\.0\.1 has sent nothing for 0 seconds"
        ) as error:
            camtool.load("hf:org/name")
        assert_one_line(error)
    assert {event: [*hooks] for event, hooks in session.event_hooks.items()} == hooks


def test_a_limit_of_silence_that_the_user_set_stays(monkeypatch):
    monkeypatch.setattr("torchvision.models.get_model", lambda *_, **__: times.append(socket.getdefaulttimeout()))
    times, before = [], socket.getdefaulttimeout()
    try:
        for limit in (7.0, None):
            socket.setdefaulttimeout(limit)
            with pytest.raises(AttributeError):  # the model is None
                camtool.load("squeezenet1_1")
            assert socket.getdefaulttimeout() == limit
    finally:
        socket.setdefaulttimeout(before)
    assert times == [7.0, 60.0]


def test_an_unknown_name_suggests_similar_names():
    with pytest.raises(ModelError, match=r"'mobilnet_v2' is unknown\. Did you mean 'mobilenet_v2'") as error:
        camtool.load("mobilnet_v2")
    assert_one_line(error)


def test_an_unknown_architecture_suggests_similar_names():
    with pytest.raises(ModelError, match="Did you mean 'resnet18'"):
        build_untrained("resnet_18")
