"""Source of Python factories: what a function may return, and errors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import camtool
from camtool import Loaded, ModelError
from camtool.models import build_untrained
from tests.models.torchvision_nets import assert_one_line, save_weights


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


def name_factory(function) -> str:
    return f"{__name__}:{function.__name__}"


def test_the_demo_model_that_errors_recommend_exists():
    assert camtool.load("demo").model


def test_a_factory_may_return_a_model():
    loaded = camtool.load(name_factory(bare))
    assert (loaded.transform, loaded.labels, loaded.name) == (None, None, name_factory(bare))
    assert not loaded.model.training


def test_a_factory_may_return_a_model_and_its_transform():
    assert camtool.load(name_factory(with_transform)).transform is str


def test_a_factory_may_return_loaded_and_given_labels_replace_its_labels():
    loaded = camtool.load(name_factory(complete))
    assert (loaded.transform, loaded.labels, loaded.name) == (str, ["a", "b", "c"], name_factory(complete))
    assert camtool.load(name_factory(complete), labels=["x", "y", "z"]).labels == ["x", "y", "z"]


def test_a_class_is_a_factory():
    assert isinstance(camtool.load("torch.nn:Identity").model, nn.Identity)


def test_weights_and_device_apply_to_the_model_of_a_factory(tmp_path):
    wanted = nn.Linear(2, 3)
    loaded = camtool.load(name_factory(bare), save_weights(tmp_path, wanted.state_dict()))
    assert torch.equal(loaded.model.weight, wanted.weight)
    assert camtool.load(name_factory(bare), device="meta").model.weight.device.type == "meta"


def function_alone():
    return lambda images: images.sum((2, 3))


def function_and_transform():
    return function_alone(), str


def function_behind_a_model():
    return (lambda photo: photo), nn.Linear(2, 3)


def test_a_factory_may_return_a_function_from_images_to_scores():
    images = torch.arange(24.0).reshape(1, 2, 3, 4)
    for factory, transform in ((function_alone, None), (function_and_transform, str)):
        loaded = camtool.load(name_factory(factory))
        assert loaded(images).tolist() == [[66.0, 210.0]]  # 0 + ... + 11, and 12 + ... + 23
        assert loaded.transform is transform
    with pytest.raises(ModelError, match="returned tuple"):
        camtool.load(name_factory(function_behind_a_model))


@pytest.mark.parametrize(("function", "came"), [(nothing, "NoneType"), (three, "tuple"), (backwards, "tuple")])
def test_a_factory_that_returns_something_else_is_refused(function, came):
    with pytest.raises(ModelError, match=f"returned {came}; it must return a model, a pair"):
        camtool.load(name_factory(function))


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("no_such_module:factory", "there is no module 'no_such_module'"),
        ("torch.no_such_module:factory", "there is no module 'torch.no_such_module'"),
        (f"{__name__}:bear", "has no function 'bear'. Did you mean 'bare'"),
        (f"{__name__}:", "has no function ''"),
        (f"{__name__}:not_a_function", "has no function 'not_a_function'"),
        (":factory", "give the full name of the module"),
        (".nets:factory", "give the full name of the module"),
    ],
)
def test_a_missing_factory_raises_an_error(name, match):
    with pytest.raises(ModelError, match=match) as error:
        camtool.load(name)
    assert_one_line(error)


def test_a_factory_may_return_an_exported_program():
    assert camtool.load(name_factory(exported)).model(torch.ones(1, 2)).shape == (1, 3)


def test_a_zero_head_of_a_factory_stays_zero():
    assert not build_untrained(name_factory(blank)).weight.any()


@pytest.mark.parametrize("name", ["demo", f"{__name__}:bare"])
def test_build_untrained_returns_the_model_of_a_factory(name):
    assert type(build_untrained(name)) is type(camtool.load(name).model)


def test_a_factory_with_two_towers_gives_the_image_tower():
    loaded = camtool.load(name_factory(two_towers))
    assert loaded.model(torch.ones(2, 3)).shape == (2, 4)
    assert loaded.text(["a", "b"]).shape == (2, 4)


def test_loaded_is_immutable():
    with pytest.raises(AttributeError, match="cannot assign"):
        camtool.load(name_factory(bare)).labels = ["a"]
