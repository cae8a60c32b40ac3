"""The cache of answers about a model, and the changes of a model that it must notice."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.engines import engine_runner
from camtool.errors import MethodError
from camtool.hooks.structures.caches import forget_model, remember_for_model
from camtool.hooks.structures.modules import lacks_gradients
from camtool.inputs.accepted_inputs import infer_kind
from camtool.layers.selection import find_layers
from camtool.models import to_loaded
from camtool.targets import Similarity

Change = Callable[[nn.Sequential], object]


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = OrderedDict(
        stem=nn.Conv2d(3, 4, 4, stride=4),
        rectify=nn.ReLU(),
        body=nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.ReLU()),
        pool=nn.AdaptiveAvgPool2d(1),
        flat=nn.Flatten(),
        head=nn.Linear(6, 5),
    )
    return nn.Sequential(layers).eval()


class Other(nn.ReLU):
    """Another class."""


def in_another_order(model: nn.Sequential) -> None:
    model.body[0], model.body[1] = model.body[1], model.body[0]


def renamed(model: nn.Sequential) -> None:
    children = [("trunk" if name == "body" else name, child) for name, child in model.named_children()]
    model._modules.clear()
    model._modules.update(children)


def another_class(model: nn.Sequential) -> None:
    model.rectify.__class__ = Other


CHANGES: dict[str, Change] = {
    "a layer replaced": lambda model: setattr(model, "stem", nn.Conv2d(3, 4, 4, stride=4)),
    "a layer within replaced": lambda model: model.body.__setitem__(0, nn.Conv2d(4, 6, 3, padding=1)),
    "a layer added": lambda model: model.body.append(nn.Tanh()),
    "a layer removed": lambda model: model.body.__delitem__(1),
    "a layer set to None": lambda model: setattr(model, "rectify", None),
    "in another order": in_another_order,
    "renamed": renamed,
    "another class": another_class,
}

THAT_RUN = CHANGES.keys() - {"a layer set to None", "in another order"}
"""Those after which a ``Sequential`` can still be called."""


# ---------------------------------------------------------------------------------------------------------- the rule


def counting() -> tuple[list[int], Callable[[], int]]:
    """A function that returns how often it was called, and the list of what it returned."""
    calls: list[int] = []

    def answer() -> int:
        calls.append(len(calls) + 1)
        return calls[-1]

    return calls, answer


def test_an_answer_is_computed_once_per_question_and_model() -> None:
    model, (calls, answer) = small_net(), counting()
    assert [remember_for_model(model, "one", answer) for _ in range(3)] == [1, 1, 1]
    assert [remember_for_model(model, "other", answer) for _ in range(3)] == [2, 2, 2]
    assert [remember_for_model(small_net(), "one", answer), remember_for_model(model, "one", answer)] == [3, 1]
    assert calls == [1, 2, 3]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_answer_is_computed_again_when_the_modules_change(change: Change) -> None:
    model, (_, answer) = small_net(), counting()
    assert remember_for_model(model, "question", answer) == 1
    change(model)
    assert [remember_for_model(model, "question", answer) for _ in range(2)] == [2, 2]


def test_a_module_moved_to_another_container_is_a_change() -> None:
    model = nn.Sequential(nn.ModuleDict({"x": nn.ReLU(), "y": nn.Tanh()}), nn.ModuleDict({"z": nn.GELU()}))
    _, answer = counting()
    remember_for_model(model, "question", answer)
    model[1] = nn.ModuleDict({"y": model[0].pop("y"), "z": model[1].pop("z")})
    assert remember_for_model(model, "question", answer) == 2


def test_a_module_moved_to_an_empty_container_is_a_change() -> None:
    model = nn.Sequential(nn.ModuleDict({"x": nn.ReLU()}), nn.ModuleDict())
    _, answer = counting()
    remember_for_model(model, "question", answer)
    model[1]["x"] = model[0].pop("x")
    assert remember_for_model(model, "question", answer) == 2


def test_a_new_module_with_the_id_of_the_old_one_is_a_change() -> None:
    model, (_, answer) = nn.Sequential(nn.ReLU()), counting()
    for found in range(1, 20):  # memory is soon given again to an object as large
        assert remember_for_model(model, "question", answer) == found
        model[0] = nn.Identity()
        gc.collect()
        model[0] = nn.ReLU()


@pytest.mark.parametrize(
    "use",
    [
        lambda model: model.train(),
        lambda model: model.requires_grad_(requires_grad=False),
        lambda model: model.double(),
        lambda model: model.load_state_dict(model.state_dict()),
        lambda model: model.stem.register_forward_hook(lambda *_: None),
    ],
    ids=["mode", "frozen", "type", "weights", "hook"],
)
def test_changes_that_replace_no_module_keep_the_answers(use: Change) -> None:
    model, (_, answer) = small_net(), counting()
    remember_for_model(model, "question", answer)
    use(model)
    assert remember_for_model(model, "question", answer) == 1


def test_a_forgotten_answer_is_computed_again() -> None:
    model, (_, answer) = small_net(), counting()
    forget_model(model)
    remember_for_model(model, "question", answer)
    forget_model(model)
    assert remember_for_model(model, "question", answer) == 2


def test_an_exception_is_not_cached() -> None:
    model, (_, answer) = small_net(), counting()
    with pytest.raises(ZeroDivisionError):
        remember_for_model(model, "question", lambda: 1 // 0)
    assert remember_for_model(model, "question", answer) == 1


def test_modules_that_contain_each_other_are_read_once() -> None:
    model, (_, answer) = small_net(), counting()
    model.body.add_module("whole", model)
    assert [remember_for_model(model, "question", answer) for _ in range(2)] == [1, 1]


@pytest.mark.filterwarnings("ignore")  # of torch, about scripts
def test_a_model_may_hold_scripted_modules() -> None:
    model, (_, answer) = small_net(), counting()
    model.body = torch.jit.script(model.body)
    assert [remember_for_model(model, "question", answer) for _ in range(2)] == [1, 1]
    model.body = torch.jit.script(model.body)  # which is what it was
    assert remember_for_model(model, "question", answer) == 1


def test_models_without_a_hash_are_accepted() -> None:
    class Unhashable(nn.Module):
        def __eq__(self, other: object) -> bool:
            return self is other

        __hash__ = None  # type: ignore[assignment]

    assert remember_for_model(Unhashable(), "question", lambda: 1) == 1


def test_threads_get_the_same_answer() -> None:
    model, barrier = small_net(), threading.Barrier(8)
    found: list[object] = []

    def answer() -> object:
        barrier.wait(10)  # all of them look for it at once
        return object()

    threads = [threading.Thread(target=lambda: found.append(remember_for_model(model, "q", answer))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_the_cache_keeps_no_model_and_no_module_alive() -> None:
    model = small_net()
    camtool.explain(model, torch.randn(1, 3, 32, 32), 1)
    replaced, whole = weakref.ref(model.stem), weakref.ref(model)
    model.stem = nn.Conv2d(3, 4, 4, stride=4)
    gc.collect()
    assert replaced() is None
    del model
    gc.collect()
    assert whole() is None


def test_answers_are_neither_copied_nor_pickled_with_the_model() -> None:
    model = small_net()
    before = pickle.dumps(model)
    camtool.explain(model, torch.randn(1, 3, 32, 32), 1)
    assert pickle.dumps(model) == before
    _, answer = counting()
    remember_for_model(model, "question", answer)
    assert remember_for_model(copy.deepcopy(model), "question", answer) == 2


# -------------------------------------------------------------------------------------------------- who relies on it


def check_like_a_fresh_model(model: nn.Module, x: Tensor, **options: object) -> camtool.Explanation:
    """Check that a model is explained as a copy is, of which nothing is remembered."""
    found = camtool.explain(model, x, 1, **options)[0]
    fresh = camtool.explain(copy.deepcopy(model), x, 1, **options)[0]
    assert (found.layer, found.warnings) == (fresh.layer, fresh.warnings)
    np.testing.assert_array_equal(found.raw, fresh.raw)
    return found


def test_a_replaced_first_layer_with_other_channels_is_noticed() -> None:
    model = small_net()
    check_like_a_fresh_model(model, torch.randn(1, 3, 32, 32))
    model.stem = nn.Conv2d(1, 4, 4, stride=4)
    check_like_a_fresh_model(model, torch.randn(1, 1, 32, 32))


@pytest.mark.parametrize(
    "change",
    [
        *(pytest.param(change, id=name) for name, change in CHANGES.items() if name in THAT_RUN),
        pytest.param(lambda model: setattr(model, "stem", nn.Conv2d(3, 4, 2, stride=2)), id="a finer grid"),
        pytest.param(lambda model: setattr(model.stem, "stride", (2, 2)), id="another stride"),
        pytest.param(lambda model: setattr(model, "head", nn.Linear(6, 3)), id="another head"),
    ],
)
def test_a_changed_model_is_explained_like_a_fresh_one(change: Change) -> None:
    model, x = small_net(), torch.randn(1, 3, 32, 32)
    check_like_a_fresh_model(model, x)
    change(model)
    check_like_a_fresh_model(model, x)
    check_like_a_fresh_model(model, x, layer="stem")


class Tokens(nn.Module):
    """Patches as tokens behind a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm, self.head = nn.Conv2d(3, 6, 8, stride=8), nn.LayerNorm(6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(torch.cat([tokens.mean(1, keepdim=True), tokens], 1)).mean(1))


def test_a_changed_stride_changes_the_grid_of_tokens() -> None:
    model, x = Tokens().eval(), torch.randn(1, 3, 64, 64)
    assert check_like_a_fresh_model(model, x).raw.shape == (8, 8)
    model.patches.stride = (4, 4)
    model.patches.padding = (2, 2)
    assert check_like_a_fresh_model(model, x).raw.shape == (16, 16)


def test_an_unchanged_model_is_analyzed_once() -> None:
    model, x = small_net(), torch.randn(1, 3, 32, 32)
    forwards: list[object] = []
    model.register_forward_hook(lambda *_: forwards.append(None))
    camtool.explain(model, x, 1)
    first = len(forwards)
    camtool.explain(model, x, 1)
    assert (first, len(forwards)) == (4, 5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_head_quantized_in_place_is_noticed() -> None:
    quantization = torch.ao.quantization
    model, x = small_net(), torch.randn(1, 3, 32, 32)
    model.head = nn.Sequential(quantization.QuantStub(), model.head, quantization.DeQuantStub()).eval()
    model.head.qconfig = quantization.get_default_qconfig()
    quantization.prepare(model, inplace=True)
    check_like_a_fresh_model(model, x)
    check_like_a_fresh_model(model, x, method="eigencam")
    quantization.convert(model, inplace=True)
    assert lacks_gradients(model)
    with pytest.raises(MethodError, match="quantized"):
        camtool.explain(model, x, 1)
    check_like_a_fresh_model(model, x, method="eigencam")


@pytest.mark.filterwarnings("ignore")  # of torch, about its own way to make one
def test_a_layer_replaced_by_a_quantized_one_and_back_is_noticed() -> None:
    model = small_net()
    head = model.head
    assert not lacks_gradients(model)
    model.head = torch.ao.nn.quantized.Linear(6, 5)
    assert lacks_gradients(model)
    model.head = head
    assert not lacks_gradients(model)


def test_the_kind_of_data_follows_replaced_layers() -> None:
    model = nn.Sequential(nn.Conv2d(4, 2, 1))
    assert infer_kind(model, (4, 3, 16)) == "image"
    model[0] = nn.Conv1d(3, 2, 1)
    assert infer_kind(model, (4, 3, 16)) == "signal"
    model[0].in_channels, model[0].__class__ = 4, nn.Conv2d
    model[0].kernel_size = (1, 1)
    assert infer_kind(model, (4, 3, 16)) == "image"


def test_the_preparation_of_photos_follows_a_replaced_layer() -> None:
    model, photo = small_net(), np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)
    explainer = camtool.Explainer(model)
    assert not any("gray" in warning for warning in explainer(photo, 1).warnings)
    model.stem = nn.Conv2d(1, 4, 4, stride=4)
    fresh = camtool.explain(copy.deepcopy(model), photo, 1)
    for found in (explainer(photo, 1), camtool.explain(model, photo, 1)):
        assert any("gray" in warning for warning in found.warnings)
        np.testing.assert_array_equal(found.raw, fresh.raw)


class First(nn.Module):
    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return one


class Second(nn.Module):
    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return other


class TwoPictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.choose, self.net = First(), small_net()

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return self.net(self.choose(one, other))


def test_the_choice_of_the_image_input_follows_replaced_layers() -> None:
    model = TwoPictures().eval()
    inputs = camtool.Inputs(torch.zeros(1, 3, 32, 32), torch.rand(1, 3, 48, 48))
    forwards: list[object] = []
    model.register_forward_hook(lambda *_: forwards.append(None))
    assert camtool.explain(model, inputs, 1)[0].heatmap.shape == (32, 32)
    asked = len(forwards)
    camtool.explain(model, inputs, 1)
    assert len(forwards) == asked + 1
    model.choose = Second()
    assert camtool.explain(model, inputs, 1)[0].heatmap.shape == (48, 48)


class TwoTowers(nn.Module):
    """A model of pictures and texts, as the CLIP of open_clip is called."""

    def __init__(self) -> None:
        super().__init__()
        self.visual, self.text = small_net(), nn.Linear(3, 5)

    def encode_image(self, x: Tensor) -> Tensor:
        return self.visual(x)

    def encode_text(self, tokens: Tensor) -> Tensor:
        return self.text(tokens)


def test_a_tower_has_the_present_modules_of_the_whole_model() -> None:
    whole, x = TwoTowers().eval(), torch.randn(1, 3, 32, 32)
    tower = to_loaded(whole).model
    assert to_loaded(whole).model is tower
    target = Similarity(torch.ones(5))
    before = camtool.explain(whole, x, target)[0]
    replaced = weakref.ref(whole.visual.stem)
    whole.visual.stem = nn.Conv2d(3, 4, 2, stride=2)
    gc.collect()
    assert replaced() is None
    after, fresh = camtool.explain(whole, x, target)[0], camtool.explain(copy.deepcopy(whole), x, target)[0]
    assert (before.raw.shape, after.raw.shape) == ((4, 4), (8, 8))
    np.testing.assert_array_equal(after.raw, fresh.raw)
    whole.visual = small_net()
    assert dict(tower.named_modules())["visual"] is whole.visual


@pytest.mark.parametrize("names", [None, ["body"]], ids=["best", "by name"])
def test_layers_equal_those_of_a_model_without_cached_answers(names: list[str] | None) -> None:
    model, x = small_net(), torch.randn(1, 3, 32, 32)
    find_layers(model, x, names)
    model.body[0] = nn.Conv2d(4, 6, 3, padding=1)
    assert find_layers(model, x, names) == find_layers(copy.deepcopy(model), x, names)


def test_the_answers_that_were_used_last_are_kept() -> None:
    model, computed = small_net(), list[object]()

    def ask(question: object, most: int = 3) -> None:
        remember_for_model(model, question, lambda: computed.append(question), most=most)

    for question in (1, 2, 3, 1, 4, 1, 3, 4):
        ask(question)
    assert computed == [1, 2, 3, 4]  # in place of 2
    ask(2)
    ask(1)
    assert computed == [1, 2, 3, 4, 2, 1]
    for question in range(10):
        ask(question, most=100)  # kept by themselves
    del computed[:]
    ask(4)
    ask(5, most=100)
    assert computed == []


def test_an_answer_that_is_no_longer_valid_is_replaced_and_counts_once() -> None:
    model, values = small_net(), iter(range(10))

    def ask(question: object, *, valid: bool) -> int:
        return remember_for_model(model, question, lambda: next(values), lambda _: valid, most=2)

    assert [ask("a", valid=True), ask("b", valid=True), ask("a", valid=False), ask("b", valid=True)] == [0, 1, 2, 1]
    assert ask("a", valid=True) == 2


def test_sizes_of_images_do_not_fill_the_memory_with_prepared_models(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[weakref.ref[object]]()

    class Counted(engine_runner.PreparedModel):
        def __init__(self, *arguments: object) -> None:
            made.append(weakref.ref(self))
            super().__init__(*arguments)

    monkeypatch.setattr(engine_runner, "PreparedModel", Counted)
    monkeypatch.setattr(engine_runner, "_MOST_PLANS", 2)
    model = small_net()
    explainer = camtool.Explainer(model, engine="prepared", layer="body")
    for side in (16, 24, 32, 40, 32):
        explainer(torch.rand(1, 3, side, side), 1)
    gc.collect()
    assert len(made) == 4
    assert [one() is not None for one in made] == [False, False, True, True]
