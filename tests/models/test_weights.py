"""Files of weights: formats, damage, and names that do not match."""

from __future__ import annotations

import pickle
import random
import re
from pathlib import Path

import pytest
import torch
import torchvision.models as zoo
from safetensors.torch import save_file
from torch import nn

import camtool
from camtool import ModelError
from camtool.models import read_state
from camtool.models.weights import WeightsWarning, load_state, match_names
from tests.models.torchvision_nets import NAME, assert_one_line, build_net, save_weights


class MaliciousPickle:
    """An object whose pickle writes a file when it is loaded, as a malicious one would."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.write_text, (self.path, "code ran")


@pytest.mark.parametrize(
    "pack",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model_state_dict": state, "optimizer": {"lr": 0.1}},
        lambda state: {"model": state},
    ],
    ids=["plain", "state_dict", "model_state_dict", "model"],
)
@pytest.mark.parametrize("suffix", ["pt", "pth"])
def test_a_checkpoint_is_unpacked(tmp_path, pack, suffix):
    state = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).state_dict()
    read = read_state(save_weights(tmp_path, pack(state), f"weights.{suffix}"))
    assert read.keys() == state.keys()
    assert all(torch.equal(read[key], state[key]) for key in state)


# ------------------------------------------------------------------------------------------------- damaged files


def test_a_malicious_pickle_is_refused_and_its_code_is_not_run(tmp_path):
    with (tmp_path / "evil.pth").open("wb") as file:
        pickle.dump({"state_dict": MaliciousPickle(tmp_path / "ran")}, file, protocol=2)
    torch.save({"state_dict": MaliciousPickle(tmp_path / "ran")}, tmp_path / "zipped.pth")
    for name in ("evil.pth", "zipped.pth"):
        with pytest.raises(ModelError, match=r"with more than tensors.*refused") as error:
            camtool.load(NAME, tmp_path / name)
        assert_one_line(error)
    assert not (tmp_path / "ran").exists()


def test_a_pickled_model_is_refused_with_advice(tmp_path):
    with pytest.raises(ModelError, match=r"Save model\.state_dict\(\)"):
        read_state(save_weights(tmp_path, nn.Linear(2, 2)))


@pytest.mark.parametrize("suffix", ["pth", "pt", "safetensors"])
@pytest.mark.parametrize("content", [b"", b"<html>404 Not Found</html>", b"PK\x03\x04", bytes(range(256)) * 9])
def test_a_file_without_weights_raises_an_error_with_its_name(tmp_path, content, suffix):
    path = tmp_path / f"bad.{suffix}"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=re.escape(str(path))) as error:
        read_state(path)
    assert_one_line(error)
    assert not str(error.value).rstrip().endswith(":")


@pytest.mark.parametrize("name", ["new.pth", "legacy.pth", "whole.safetensors"])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_damaged_file_is_read_or_raises_a_model_error(tmp_path, name):
    path, state = tmp_path / name, {"a.weight": torch.rand(3, 3), "b": torch.zeros(2)}
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save({"state_dict": state}, path, _use_new_zipfile_serialization=name == "new.pth")
    whole, generator, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(300):
        damaged = bytearray(whole[: generator.randrange(1, len(whole))] if generator.random() < 0.3 else whole)
        for _ in range(generator.randrange(1, 5)):
            # The pickle is at the beginning of the file.
            damaged[generator.randrange(min(len(damaged), 700))] = generator.randrange(256)
        path.write_bytes(damaged)
        try:
            read_state(path)
        except ModelError:
            refused += 1
    assert refused > 50


def test_the_error_about_a_file_of_zeros_gives_no_advice_to_run_its_code(tmp_path):
    (tmp_path / "w.pt").write_bytes(bytes(5000))
    with pytest.raises(ModelError, match="are damaged: ") as caught:
        read_state(tmp_path / "w.pt")
    assert "Re-running" not in str(caught.value)


@pytest.mark.parametrize("content", [torch.ones(3), [1, 2], {"epoch": 3}, {"state_dict": {}}, {}, {0: torch.ones(3)}])
def test_a_file_without_tensors_by_name_is_refused(tmp_path, content):
    with pytest.raises(ModelError, match=r"hold an? \w+, not tensors by name; save model\.state_dict"):
        read_state(save_weights(tmp_path, content))


@pytest.mark.parametrize("name", ["none.pth", "none.safetensors", "."])
def test_the_error_names_a_missing_file(tmp_path, name):
    with pytest.raises(ModelError, match="no such file"):
        camtool.load(NAME, tmp_path / name)


def read_mismatch(tmp_path, state) -> list[str]:
    """Return the lines of the error for weights that do not fit."""
    with pytest.raises(ModelError, match="do not fit the model") as error:
        camtool.load(NAME, save_weights(tmp_path, state))
    return str(error.value).splitlines()


@pytest.mark.parametrize(
    "state",
    [lambda: build_net("squeezenet1_1").state_dict(), lambda: nn.Linear(2, 2).state_dict()],
    ids=["net", "linear"],
)
def test_the_error_for_another_architecture_has_two_lines(tmp_path, state):
    summary, remedy = read_mismatch(tmp_path, state())
    expected, first = build_net(NAME).state_dict(), next(iter(build_net(NAME).state_dict()))
    assert f"{len(expected)} tensors missing ({first}, " in summary
    assert f"{len(state())} tensors unexpected ({next(iter(state()))}" in summary
    assert len(summary) < 500
    assert "another architecture" in remedy


def test_the_error_for_another_width_shows_shapes(tmp_path):
    summary, remedy = read_mismatch(tmp_path, build_net("shufflenet_v2_x1_0").state_dict())
    assert re.search(r"\d+ tensors with another shape \(\S+ \([\d, ]+\) instead of \([\d, ]+\)", summary)
    assert "missing" not in summary
    assert "build the model with the size" in remedy


def test_the_error_shows_a_prefix_of_the_file(tmp_path):
    state = build_net(NAME).state_dict()
    more = {f"net.backbone.{name}": value for name, value in state.items()}
    assert "start with 'net.backbone.'; save them without it" in read_mismatch(tmp_path, more)[1]


def test_the_error_shows_a_prefix_of_the_model():
    with pytest.raises(ModelError, match=r"\nThe names of the model start with '0\.', those in the file do not"):
        load_state(nn.Sequential(build_net(NAME)), build_net(NAME).state_dict(), "net.pth")


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod.", "model._orig_mod."])
def test_prefixes_of_wrappers_are_left_out_with_a_line(tmp_path: Path, prefix: str) -> None:
    state = build_net(NAME).state_dict()
    path = save_weights(tmp_path, {"state_dict": {prefix + name: value for name, value in state.items()}})
    with pytest.warns(WeightsWarning, match=re.escape(f"the prefix {prefix!r} of the names is left out")):
        loaded = camtool.load(NAME, path)
    assert all(torch.equal(value, state[name]) for name, value in loaded.model.state_dict().items())


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model."])
def test_a_prefix_that_the_model_or_not_all_names_have_is_kept(prefix: str) -> None:
    model = nn.Linear(3, 2)
    state = {f"{prefix}{name}": value + 1 for name, value in model.state_dict().items()}
    load_state(nn.ModuleDict({prefix[:-1]: model}), state, "a.pt")
    assert torch.equal(model.bias, state[f"{prefix}bias"])
    mixed = {**state, "modules.weight": torch.ones(2)}
    assert match_names(mixed, "a.pt").keys() == mixed.keys()


def test_heads_of_a_segmenter_are_chosen_by_names_without_a_prefix(tmp_path: Path) -> None:
    name = "deeplabv3_mobilenet_v3_large"
    model = zoo.get_model(name, weights=None, weights_backbone=None, aux_loss=True)
    path = save_weights(tmp_path, {f"model.{key}": value for key, value in model.state_dict().items()})
    with pytest.warns(UserWarning, match="is left out"):
        assert camtool.load(name, path).model.state_dict().keys() == model.state_dict().keys()
