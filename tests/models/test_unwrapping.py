"""Unwrapping: wrappers give the map of the model inside, with its layer names, and stay unchanged."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool import LayerError, Loaded
from camtool.models import to_loaded, unwrap_layer, unwrap_model
from tests.helpers.nets import Staged, staged

BATCH = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def wrap_distributed(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


class Adapted(nn.Module):
    """A wrapper with the attributes of a PEFT model: the model with its adapters is two levels down."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.peft_config = {"default": None}
        self.base_model = nn.Module()
        self.base_model.model = model

    def get_base_model(self) -> nn.Module:
        return self.base_model.model

    def forward(self, *args, **kwargs):
        return self.get_base_model()(*args, **kwargs)


class Lora(nn.Module):
    """A linear layer plus a low-rank one, as in LoRA adapters."""

    def __init__(self, base_layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.down, self.up = nn.Linear(base_layer.in_features, 2), nn.Linear(2, base_layer.out_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.up(self.down(x))


def wrap_compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")


WRAPPERS = {
    "DataParallel": (nn.DataParallel, "module"),
    "DistributedDataParallel": (wrap_distributed, "module"),
    "torch.compile": (wrap_compiled, "_orig_mod"),
    "AveragedModel": (torch.optim.swa_utils.AveragedModel, "module"),
    "PEFT": (Adapted, "base_model.model"),
    "several": (lambda model: nn.DataParallel(wrap_compiled(Adapted(model))), "module._orig_mod.base_model.model"),
}


@pytest.fixture(autouse=True, scope="module")
def _group(tmp_path_factory):
    """A process group of one, which DistributedDataParallel needs."""
    file = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", WRAPPERS)
def test_the_model_inside_a_wrapper_is_explained(name):
    wrap, prefix = WRAPPERS[name]
    expected = camtool.explain(staged(), BATCH, [1, 2])
    wrapper = wrap(staged())
    inner = wrapper.get_submodule(prefix)
    assert unwrap_model(wrapper) is inner
    for layer in (None, "body", f"{prefix}.body", inner.body):
        results = camtool.explain(wrapper, BATCH, [1, 2], layer=layer)
        assert [result.layer for result in results] == [expected[0].layer] * 2 == ["body"] * 2
        for result, other in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result.raw, other.raw)
            assert result.score == other.score


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_and_its_model_are_unchanged_afterwards(name):
    wrapper = WRAPPERS[name][0](staged())
    wrapper.train()
    unwrap_model(wrapper).stem[1].eval()
    training = [module.training for module in wrapper.modules()]
    before = {key: value.clone() for key, value in wrapper.state_dict().items()}
    camtool.explain(Loaded(wrapper), BATCH, 1)
    with pytest.raises(LayerError, match="has no layer 'bodi'"):
        camtool.explain(wrapper, BATCH, 1, layer="bodi")
    assert [module.training for module in wrapper.modules()] == training
    assert all(torch.equal(value, before[key]) for key, value in wrapper.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in unwrap_model(wrapper).modules())


def test_peft_adapters_stay_active():
    model = staged()
    model.head = Lora(model.head)
    with torch.no_grad():
        expected = model(BATCH)[0, 1]
    assert camtool.explain(Adapted(model), BATCH[:1], 1)[0].score == pytest.approx(float(expected), rel=1e-5)


def test_a_model_without_a_wrapper_is_returned():
    model = nn.Sequential(nn.Conv2d(3, 2, 1))
    model.module = staged()  # the attribute of a wrapper alone makes no wrapper
    assert unwrap_model(model) is model
    assert unwrap_layer(model, "module.body") == "module.body"
    assert to_loaded(model).model is model
    loaded = Loaded(model, labels=["a"])
    assert to_loaded(loaded) is loaded


def test_transform_and_labels_of_a_wrapped_model_are_kept():
    loaded = to_loaded(Loaded(nn.DataParallel(staged()), str, list("abcd"), "its name"))
    assert isinstance(loaded.model, Staged)
    assert (loaded.transform, loaded.labels, loaded.name) == (str, list("abcd"), "its name")


def test_concepts_and_candidate_layers_unwrap_models():
    wrapper = nn.DataParallel(staged())
    assert camtool.concepts(wrapper, BATCH, 2, layer="module.stem").layer == "stem"


# ----------------------------------------------------------------------------------------------- compiled parts


def compile_in_place(model: Staged) -> Staged:
    model.compile(backend="eager")
    return model


def compile_part(model: Staged) -> Staged:
    model.body = wrap_compiled(model.body)
    return model


def compile_part_in_place(model: Staged) -> Staged:
    model.body.compile(backend="eager")
    return model


@pytest.mark.parametrize("compile_it", [compile_in_place, compile_part, compile_part_in_place])
@pytest.mark.parametrize("method", ["gradcam", "scorecam"])
def test_a_model_that_ran_compiled_before_is_explained(compile_it, method):
    """Compiled code ignores hooks added later, so the explanation must run the model uncompiled."""
    torch._dynamo.reset()
    expected = camtool.explain(staged(), BATCH, 1, method=method)[0]
    model = compile_it(staged())
    with torch.no_grad():
        for _ in range(2):
            model(BATCH)
    result = camtool.explain(model, BATCH, 1, method=method)[0]
    assert result.layer.startswith("body")
    np.testing.assert_allclose(result.raw, expected.raw, rtol=1e-5, atol=1e-7)
    assert torch._dynamo.eval_frame._stance.stance == "default"


def test_threads_that_explain_compiled_models_keep_compilation_on():
    torch._dynamo.reset()
    models, barrier = [compile_in_place(staged()) for _ in range(4)], threading.Barrier(4)
    with torch.no_grad():
        for model in models:
            model(BATCH)
    expected = camtool.explain(staged(), BATCH, 1)[0].raw

    def run(model: nn.Module) -> np.ndarray:
        barrier.wait()
        return [camtool.explain(model, BATCH, 1)[0].raw for _ in range(5)][-1]

    with ThreadPoolExecutor(4) as pool:
        for raw in pool.map(run, models):
            np.testing.assert_array_equal(raw, expected)
    assert torch._dynamo.eval_frame._stance.stance == "default"
