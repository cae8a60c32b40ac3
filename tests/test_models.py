"""Models: names, weights files of every kind, what belongs to them, and the faults that people meet."""

from __future__ import annotations

import pickle
import random
import re
from email.message import Message
from io import BytesIO
from pathlib import Path
from urllib.error import URLError
from urllib.response import addinfourl

import pytest
import torch
import torchvision.models as zoo
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.hub import HASH_REGEX

import camtool
from camtool import Loaded, ModelError
from camtool.models import architecture, read_state, usual_labels, usual_transform
from camtool.models.weights import fill
from camtool.outputs import logits

NAME = "shufflenet_v2_x0_5"
"""The smallest of torchvision's classifiers with a usual head."""

OPTIONS = {
    "googlenet": {"init_weights": False},
    "inception_v3": {"init_weights": False},
    "deeplabv3_mobilenet_v3_large": {"weights_backbone": None, "aux_loss": True},
}
"""How the models were built whose published weights are not those of the bare model."""

BATCH = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
PHOTO = Image.radial_gradient("L").convert("RGB")


def built(name: str = NAME, **options) -> nn.Module:
    return zoo.get_model(name, weights=None, **options).eval()


def saved(folder: Path, content: object, name: str = "weights.pth") -> Path:
    path = folder / name
    save_file(content, path) if path.suffix == ".safetensors" else torch.save(content, path)
    return path


def assert_one_sentence(error: pytest.ExceptionInfo[ModelError]) -> None:
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 500


# -------------------------------------------------------------------------------------- factories for the tests


class Pickled:
    """A pickle of it writes a file where it is read: what a malicious one would do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.write_text, (self.path, "I ran.")


def bare():
    return nn.Linear(2, 3).train()


def with_transform():
    return nn.Linear(2, 3), str


def complete():
    return Loaded(nn.Linear(2, 3), str, ["a", "b", "c"], name="its own")


def exported():
    return torch.export.export(nn.Linear(2, 3), (torch.ones(1, 2),)).module()


def blank():
    made = nn.Linear(2, 3)
    nn.init.zeros_(made.weight)
    return made


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = nn.Linear(3, 4)

    def encode_image(self, pictures):
        return self.visual(pictures)

    def encode_text(self, tokens):
        return tokens


def two_towers():
    return Loaded(TwoTowers(), text=lambda texts: torch.ones(len(texts), 4))


def nothing():
    return None


def three():
    return nn.Linear(2, 3), str, ["a"]


def backwards():
    return str, nn.Linear(2, 3)


not_a_function = 3


def factory(function) -> str:
    return f"{__name__}:{function.__name__}"


# --------------------------------------------------------------------------------------------- weights of a file


@pytest.mark.parametrize("name", [NAME, "squeezenet1_1", "mobilenet_v3_small", "mnasnet0_5", "resnet18"])
def test_a_model_with_weights_of_a_file_computes_what_the_saved_one_did(tmp_path, name):
    original = built(name)
    loaded = camtool.load(name, saved(tmp_path, original.state_dict()))
    torch.testing.assert_close(loaded.model(BATCH), original(BATCH), rtol=0, atol=0)
    assert not any(module.training for module in loaded.model.modules())


@pytest.mark.parametrize(
    "pack",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model_state_dict": state, "optimizer": {"lr": 0.1}},
        lambda state: {"model": state},
        lambda state: {f"module.{key}": value for key, value in state.items()},
        lambda state: {"state_dict": {f"module.{key}": value for key, value in state.items()}},
    ],
    ids=["plain", "state_dict", "model_state_dict", "model", "DataParallel", "both"],
)
@pytest.mark.parametrize("suffix", ["pt", "pth"])
def test_a_checkpoint_is_unpacked(tmp_path, pack, suffix):
    state = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).state_dict()
    read = read_state(saved(tmp_path, pack(state), f"weights.{suffix}"))
    assert read.keys() == state.keys()
    assert all(torch.equal(read[key], state[key]) for key in state)


def test_names_are_left_alone_unless_all_are_under_module(tmp_path):
    state = {"module.weight": torch.ones(1), "modules.weight": torch.ones(2)}
    assert read_state(saved(tmp_path, state)).keys() == state.keys()


def test_half_precision_in_a_file_becomes_the_models_single_precision(tmp_path):
    original = built()
    halved = {key: value.half() if value.is_floating_point() else value for key, value in original.state_dict().items()}
    model = camtool.load(NAME, saved(tmp_path, halved, "weights.safetensors")).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(torch.equal(mine.half(), halved[key]) for key, mine in model.state_dict().items() if "num" not in key)


def test_a_file_comes_with_the_labels_and_the_usual_transform_of_its_name(tmp_path):
    loaded = camtool.load(NAME, saved(tmp_path, built().state_dict()))
    usual = zoo.get_model_weights(NAME)["IMAGENET1K_V1"]
    assert loaded.labels == usual.meta["categories"]
    torch.testing.assert_close(loaded.transform(PHOTO), usual.transforms()(PHOTO), rtol=0, atol=0)
    assert loaded.name == NAME


@pytest.mark.parametrize("name", [NAME, "squeezenet1_1", "mobilenet_v3_small"])
def test_weights_for_other_classes_change_the_head_and_have_no_imagenet_labels(tmp_path, name):
    original = built(name, num_classes=7)
    path = saved(tmp_path, original.state_dict())
    loaded = camtool.load(name, path)
    torch.testing.assert_close(loaded.model(BATCH), original(BATCH), rtol=0, atol=0)
    assert loaded.labels is None
    assert camtool.load(name, path, labels=tuple("abcdefg")).labels == list("abcdefg")


def test_the_path_may_be_a_string(tmp_path):
    assert camtool.load(NAME, str(saved(tmp_path, built().state_dict()))).model


def test_the_model_goes_to_the_device(tmp_path):
    model = camtool.load(NAME, saved(tmp_path, built().state_dict()), device="meta").model
    assert {tensor.device.type for tensor in [*model.parameters(), *model.buffers()]} == {"meta"}


def test_a_file_saved_from_torchvisions_usual_googlenet_is_taken(tmp_path):
    without = built("googlenet", init_weights=False, aux_logits=False)
    camtool.load("googlenet", saved(tmp_path, without.state_dict()))


def test_a_file_as_torchvision_publishes_it_for_densenet_is_taken(tmp_path):
    state = built("densenet121").state_dict()
    old = {re.sub(r"(denselayer\d+\.(?:norm|conv))(\d)", r"\1.\2", key): value for key, value in state.items()}
    camtool.load("densenet121", saved(tmp_path, old))


# ------------------------------------------------------------------------------------------------- files at fault


def test_a_malicious_pickle_is_refused_and_its_code_is_not_run(tmp_path):
    with (tmp_path / "evil.pth").open("wb") as file:
        pickle.dump({"state_dict": Pickled(tmp_path / "ran")}, file, protocol=2)
    torch.save({"state_dict": Pickled(tmp_path / "ran")}, tmp_path / "zipped.pth")
    for name in ("evil.pth", "zipped.pth"):
        with pytest.raises(ModelError, match=r"holds more than tensors.*refused") as error:
            camtool.load(NAME, tmp_path / name)
        assert_one_sentence(error)
    assert not (tmp_path / "ran").exists()


def test_a_whole_model_in_a_pickle_is_refused_with_advice(tmp_path):
    with pytest.raises(ModelError, match=r"Save model\.state_dict\(\)"):
        read_state(saved(tmp_path, nn.Linear(2, 2)))


@pytest.mark.parametrize("suffix", ["pth", "pt", "safetensors"])
@pytest.mark.parametrize("content", [b"", b"<html>404 Not Found</html>", b"PK\x03\x04", bytes(range(256)) * 9])
def test_a_file_that_holds_no_weights_is_a_sentence_with_its_name(tmp_path, content, suffix):
    path = tmp_path / f"bad.{suffix}"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=re.escape(str(path))) as error:
        read_state(path)
    assert_one_sentence(error)
    assert not str(error.value).rstrip().endswith(":")


@pytest.mark.parametrize("name", ["new.pth", "legacy.pth", "whole.safetensors"])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_damaged_file_is_read_or_refused_but_never_crashes(tmp_path, name):
    path, state = tmp_path / name, {"a.weight": torch.rand(3, 3), "b": torch.zeros(2)}
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save({"state_dict": state}, path, _use_new_zipfile_serialization=name == "new.pth")
    whole, dice, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(300):
        damaged = bytearray(whole[: dice.randrange(1, len(whole))] if dice.random() < 0.3 else whole)
        for _ in range(dice.randrange(1, 5)):
            damaged[dice.randrange(min(len(damaged), 700))] = dice.randrange(256)  # the pickle is at the beginning
        path.write_bytes(damaged)
        try:
            read_state(path)
        except ModelError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize("content", [torch.ones(3), [1, 2], {"epoch": 3}, {"state_dict": {}}, {}])
def test_a_file_without_tensors_by_name_is_refused(tmp_path, content):
    with pytest.raises(ModelError, match=r"hold no tensors by name \(\w+\); save a state_dict"):
        read_state(saved(tmp_path, content))


@pytest.mark.parametrize("name", ["none.pth", "none.safetensors", "."])
def test_a_missing_file_is_named(tmp_path, name):
    with pytest.raises(ModelError, match="there is no such file"):
        camtool.load(NAME, tmp_path / name)


def misfit(tmp_path, state) -> list[str]:
    """The lines that are told of weights which do not fit."""
    with pytest.raises(ModelError, match="do not fit the model") as error:
        camtool.load(NAME, saved(tmp_path, state))
    return str(error.value).splitlines()


@pytest.mark.parametrize(
    "state", [lambda: built("squeezenet1_1").state_dict(), lambda: nn.Linear(2, 2).state_dict()], ids=["net", "linear"]
)
def test_weights_of_another_architecture_are_summed_up_in_two_lines(tmp_path, state):
    summary, remedy = misfit(tmp_path, state())
    expected, first = built(NAME).state_dict(), next(iter(built(NAME).state_dict()))
    assert f"{len(expected)} tensors missing ({first}, " in summary
    assert f"{len(state())} tensors unexpected ({next(iter(state()))}" in summary
    assert len(summary) < 500
    assert "another architecture" in remedy


def test_weights_of_another_width_are_told_by_their_shapes(tmp_path):
    summary, remedy = misfit(tmp_path, built("shufflenet_v2_x1_0").state_dict())
    assert re.search(r"\d+ tensors of another shape \(\S+ \([\d, ]+\) instead of \([\d, ]+\)", summary)
    assert "missing" not in summary
    assert "build the model in the size" in remedy


def test_weights_below_a_prefix_are_told_by_it(tmp_path):
    state = built(NAME).state_dict()
    more = {f"net.backbone.{name}": value for name, value in state.items()}
    assert "start with 'net.backbone.'; save them without it" in misfit(tmp_path, more)[1]


def test_weights_without_a_prefix_of_the_model_are_told_by_it():
    with pytest.raises(ModelError, match=r"\nThe names of the model start with '0\.', those in the file do not"):
        fill(nn.Sequential(built(NAME)), built(NAME).state_dict(), "net.pth")


@pytest.mark.parametrize("url", ["https://x.org/a.pth", "S3://bucket/a.safetensors"])
def test_a_url_is_refused_as_it_was_given(url):
    for call in (lambda: camtool.load(NAME, url), lambda: camtool.load(url), lambda: camtool.load(f"hf:{url}")):
        with pytest.raises(ModelError, match=re.escape(f"{url!r}: URLs are not read; download")):
            call()


@pytest.mark.parametrize(
    ("name", "hint"),
    [("a/cat.jpg", "looks like a photo"), ("net.pth", "file of weights"), ("./resnet18", "a photo or a path")],
)
def test_a_file_in_the_place_of_a_name_is_noticed(name, hint):
    with pytest.raises(ModelError, match=hint):
        camtool.load(name)


# ------------------------------------------------------------------------------------------------------- download


@pytest.fixture
def published(monkeypatch):
    """Downloads of any weights give a state with random numbers; returns what was asked for."""
    asked = []

    def get_state_dict(self, *args, **kwargs):
        asked.append((self, kwargs))
        name = next(name for name in zoo.list_models() if self in zoo.get_model_weights(name))
        torch.manual_seed(5)
        return built(name, **OPTIONS.get(name, {})).state_dict()

    monkeypatch.setattr(zoo.WeightsEnum, "get_state_dict", get_state_dict)
    return asked


def test_without_a_file_torchvisions_best_weights_come_with_what_belongs_to_them(published):
    loaded = camtool.load("mobilenet_v2")
    best = zoo.MobileNet_V2_Weights.DEFAULT
    assert best is not zoo.MobileNet_V2_Weights.IMAGENET1K_V1  # otherwise the test could not tell
    assert published == [(best, {"progress": False, "check_hash": True})]
    assert loaded.labels == best.meta["categories"]
    torch.testing.assert_close(loaded.transform(PHOTO), best.transforms()(PHOTO), rtol=0, atol=0)


@pytest.mark.parametrize("name", [NAME, "densenet121", *OPTIONS])
def test_a_fetched_model_computes_what_torchvisions_own_does(published, name):
    batch = torch.rand(1, 3, 96, 96)
    theirs, ours = zoo.get_model(name, weights="DEFAULT").eval(), camtool.load(name).model
    torch.testing.assert_close(logits(ours(batch)), logits(theirs(batch)), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["googlenet", pytest.param("inception_v3", marks=pytest.mark.slow)])
def test_a_model_of_a_file_prepares_its_input_as_a_fetched_one(tmp_path, published, name):
    state = zoo.get_model_weights(name)["DEFAULT"].get_state_dict()
    batch = torch.rand(1, 3, 96, 96)
    filled = camtool.load(name, saved(tmp_path, state)).model
    torch.testing.assert_close(filled(batch), camtool.load(name).model(batch), rtol=0, atol=0)


def test_the_cache_of_torch_hub_serves_without_internet(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    original, best = built(), zoo.get_model_weights(NAME)["DEFAULT"]
    cached = tmp_path / "hub" / "checkpoints" / best.url.rpartition("/")[2]
    cached.parent.mkdir(parents=True)
    torch.save(original.state_dict(), cached)
    torch.testing.assert_close(camtool.load(NAME).model(BATCH), original(BATCH), rtol=0, atol=0)


def test_a_download_is_read_through_its_hash(tmp_path, monkeypatch):
    """A portal of a hotel that answers every address with its own page is the usual case."""

    def urlopen(*args, **kwargs):
        return addinfourl(BytesIO(b"<html>Please log in</html>"), Message(), "https://portal.example")

    assert HASH_REGEX.search(zoo.get_model_weights(NAME)["DEFAULT"].url)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "urlopen", urlopen)
    with pytest.raises(ModelError, match=r"could not be fetched .*hash") as error:
        camtool.load(NAME)
    assert_one_sentence(error)


@pytest.mark.parametrize("fault", [URLError("Name or service not known"), ConnectionResetError("reset by peer")])
def test_without_internet_the_sentence_names_two_ways_out(tmp_path, monkeypatch, fault):
    def urlopen(*args, **kwargs):
        raise fault

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "urlopen", urlopen)
    with pytest.raises(ModelError, match=r"'resnet18' could not be .*--weights FILE.*--model demo") as error:
        camtool.load("resnet18")
    assert_one_sentence(error)
    assert str(fault.args[0]) in str(error.value)


def test_the_demo_that_messages_recommend_is_there():
    assert camtool.load("demo").model


# ------------------------------------------------------------------------------------------------------ factories


def test_a_factory_may_return_a_model():
    loaded = camtool.load(factory(bare))
    assert (loaded.transform, loaded.labels, loaded.name) == (None, None, factory(bare))
    assert not loaded.model.training


def test_a_factory_may_return_a_model_and_its_transform():
    assert camtool.load(factory(with_transform)).transform is str


def test_a_factory_may_return_all_and_labels_given_come_first():
    loaded = camtool.load(factory(complete))
    assert (loaded.transform, loaded.labels, loaded.name) == (str, ["a", "b", "c"], factory(complete))
    assert camtool.load(factory(complete), labels=["x", "y", "z"]).labels == ["x", "y", "z"]


def test_a_class_serves_as_a_factory():
    assert isinstance(camtool.load("torch.nn:Identity").model, nn.Identity)


def test_a_factory_takes_weights_and_a_device(tmp_path):
    wanted = nn.Linear(2, 3)
    loaded = camtool.load(factory(bare), saved(tmp_path, wanted.state_dict()))
    assert torch.equal(loaded.model.weight, wanted.weight)
    assert camtool.load(factory(bare), device="meta").model.weight.device.type == "meta"


@pytest.mark.parametrize(("function", "came"), [(nothing, "NoneType"), (three, "tuple"), (backwards, "tuple")])
def test_a_factory_that_returns_something_else_is_refused(function, came):
    with pytest.raises(ModelError, match=f"returned {came}; it must return a model, a pair"):
        camtool.load(factory(function))


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("no_such_module:factory", "there is no module 'no_such_module'"),
        ("torch.no_such_module:factory", "there is no module 'torch.no_such_module'"),
        (f"{__name__}:bear", "has no function 'bear'. Did you mean 'bare'"),
        (f"{__name__}:", "has no function ''"),
        (f"{__name__}:not_a_function", "has no function 'not_a_function'"),
        (":factory", "give the module's full name"),
        (".nets:factory", "give the module's full name"),
    ],
)
def test_a_factory_that_is_not_there_is_a_sentence(name, match):
    with pytest.raises(ModelError, match=match) as error:
        camtool.load(name)
    assert_one_sentence(error)


def test_a_factory_may_return_an_exported_graph_which_has_no_modes():
    assert camtool.load(factory(exported)).model(torch.ones(1, 2)).shape == (1, 3)


def test_the_head_of_a_factorys_model_is_left_at_zero():
    assert not architecture(factory(blank)).weight.any()


@pytest.mark.parametrize("name", ["demo", f"{__name__}:bare"])
def test_the_architecture_of_a_factory_is_what_it_makes(name):
    assert type(architecture(name)) is type(camtool.load(name).model)


def test_a_factory_of_two_towers_is_explained_by_the_one_for_pictures():
    loaded = camtool.load(factory(two_towers))
    assert loaded.model(torch.ones(2, 3)).shape == (2, 4)
    assert loaded.text(["a", "b"]).shape == (2, 4)


def test_an_unknown_name_suggests_near_ones():
    with pytest.raises(ModelError, match=r"'mobilnet_v2' is unknown\. Did you mean 'mobilenet_v2'") as error:
        camtool.load("mobilnet_v2")
    assert_one_sentence(error)


# ------------------------------------------------------------------------------------------- what can be told


@pytest.mark.parametrize("name", [NAME, "vit_b_32", "deeplabv3_mobilenet_v3_large"])
def test_an_architecture_is_built_without_fetching_anything(monkeypatch, name):
    monkeypatch.setattr(torch.hub, "urlopen", None)
    model = architecture(name)
    assert not model.training
    assert all(module.weight.any() for module in model.modules() if isinstance(module, nn.Linear))


def test_an_unknown_architecture_suggests_near_ones():
    with pytest.raises(ModelError, match="Did you mean 'resnet18'"):
        architecture("resnet_18")


def test_the_usual_transform_is_that_of_torchvisions_classifiers():
    theirs = zoo.ResNet18_Weights.IMAGENET1K_V1.transforms()(PHOTO)
    torch.testing.assert_close(usual_transform()(PHOTO), theirs, rtol=0, atol=0)
    assert usual_transform(64)(PHOTO).shape == (3, 64, 64)


def test_the_usual_labels_are_imagenets_for_torchvisions_models_with_a_thousand_classes_only():
    model = built()
    assert usual_labels(model, 1000) == zoo.ResNet18_Weights.IMAGENET1K_V1.meta["categories"]
    assert usual_labels(model, 999) is None
    assert usual_labels(nn.Linear(2, 1000), 1000) is None


def test_what_was_loaded_cannot_be_changed():
    with pytest.raises(AttributeError, match="cannot assign"):
        camtool.load(factory(bare)).labels = ["a"]
