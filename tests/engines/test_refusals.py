"""An engine that cannot run a model, or gives other results, is not used, and the log says why."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.engines import comparison, engine_runner, runtimes
from camtool.engines.comparison import describe_difference
from camtool.engines.compiled import CompiledModel
from camtool.engines.engine_runner import list_engines
from camtool.engines.prepared import PreparedModel
from camtool.errors import CamtoolError
from camtool.hooks.structures.caches import forget_model
from tests.engines.nets import RUNTIMES, Decides, Gated, Unknown, assert_agree, build, explain_twice, get_lines
from tests.helpers.missing_extras import needs


@pytest.mark.parametrize("fault", ["maps", "scores", "classes"])
def test_an_engine_of_other_maps_is_not_used(
    fault: str, net: nn.Module, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = PreparedModel.run

    def observe_wrongly(self: Any, *args: Any, **options: Any) -> Any:
        found = run(self, *args, **options)
        if fault == "maps":
            found.calls["last"][0].data *= 1.1
        else:
            shift = {"scores": 0.01, "classes": torch.tensor([0, 0, 0, 0, 1e3])}[fault]
            found = replace(found, output=found.output + shift)
        return found

    forget_model(net)
    monkeypatch.setattr(PreparedModel, "run", observe_wrongly)
    x = torch.randn(2, 3, 16, 20)
    maps = camtool.Explainer(net, engine="prepared").compute_maps(x)
    assert torch.equal(maps, camtool.Explainer(net).compute_maps(x))
    words = {"maps": "its map of gradcam differs", "scores": "its score is", "classes": "it explains 'class 4'"}
    assert words[fault] in caplog.text
    forget_model(net)


@pytest.mark.parametrize("engine", RUNTIMES)
def test_a_model_whose_code_depends_on_values_runs_as_a_copy_or_as_it_is(
    engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    net, x = build(Decides), torch.randn(2, 3, 16, 20)
    ours = explain_twice(net, x, engine=engine, falls_back=True)
    for our, other in zip(ours, camtool.explain(net, x), strict=True):
        assert_agree(our, other)
    assert f"engine {engine!r} is not used: torch.export fails" in caplog.text
    assert len(get_lines(caplog)) == 1  # once, not for each call


def test_a_missing_operator_is_named(caplog: pytest.LogCaptureFixture) -> None:
    net, x = build(Unknown), torch.randn(1, 3, 16, 20)
    assert_agree(camtool.explain(net, x, engine="onnxruntime")[0], camtool.explain(net, x)[0])
    assert any("no operator for prims.bessel_j0" in line for line in get_lines(caplog))


def test_a_compiler_that_fails_is_named(
    net: nn.Module, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no C++ compiler\nand more lines")

    forget_model(net)
    monkeypatch.setattr("camtool.engines.runtimes.TorchGraph.run", fail)
    x = torch.randn(1, 3, 16, 20)
    assert_agree(camtool.explain(net, x, engine="torch.compile")[0], camtool.explain(net, x)[0])
    line = "engine 'torch.compile' is not used: the runtime fails: RuntimeError: no C++ compiler"
    assert get_lines(caplog) == [line]
    forget_model(net)


def test_autocast_is_not_compiled(net: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(1, 3, 16, 20)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, usual = (camtool.explain(net, x, 1, engine=each)[0] for each in ("torch.compile", "eager"))
    assert ours.score == pytest.approx(usual.score, rel=0.02)
    assert "engine 'torch.compile' is not used: torch.compile runs without autocast alone" in caplog.text


@needs("openvino")
def test_hooks_of_the_user_are_not_compiled(net: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(1, 3, 16, 20)
    handle = net.stem.register_forward_hook(lambda _, __, output: output * 2)
    try:
        ours, usual = (explain_twice(net, x, 1, engine=each, falls_back=True)[0] for each in ("openvino", "eager"))
    finally:
        handle.remove()
    assert np.array_equal(ours.raw, usual.raw)
    assert (
        get_lines(caplog).count("engine 'openvino' is not used: the model has hooks, which may change at any time") == 1
    )


def test_without_the_engine_the_backward_pass_finds_the_state_of_its_forward_pass(net: nn.Module) -> None:
    class Counts(nn.Module):
        """A model whose gradient needs a buffer that its forward pass writes to."""

        factor: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.trunk = copy.deepcopy(net)
            self.register_buffer("factor", torch.ones(5))

        def forward(self, x: Tensor) -> Tensor:
            self.factor += 1
            return self.trunk(x) * self.factor

    model, images = Counts(), torch.randn(2, 3, 32, 34)
    expected = camtool.explain(model, images)
    handle = model.trunk.block.register_forward_hook(lambda *_: None)  # no engine takes a model with hooks
    found = camtool.explain(model, images, engine="prepared")
    handle.remove()
    assert [each.raw.tolist() for each in found] == [each.raw.tolist() for each in expected]
    assert model.training
    assert model.factor.tolist() == [1] * 5


def test_hooks_on_the_backward_pass_are_not_compiled_either(net: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(1, 3, 16, 20)
    explain_twice(net, x, 1, engine="onnxruntime")
    handle = net.head.register_full_backward_hook(lambda _, inputs, __: tuple(3 * each for each in inputs))
    try:
        ours, usual = (camtool.explain(net, x, 1, engine=each)[0] for each in ("onnxruntime", "eager"))
    finally:
        handle.remove()
    assert np.array_equal(ours.raw, usual.raw)
    assert any("the model has hooks" in line for line in get_lines(caplog))


def test_a_single_image_is_compared_by_itself() -> None:
    net, x = build(Gated), torch.randn(2, 3, 16, 20)
    net.alone = True
    explain_twice(net, x, 1, engine="onnxruntime")
    (ours,) = explain_twice(net, x[:1], 1, engine="onnxruntime", falls_back=True)
    assert_agree(ours, camtool.explain(net, x[:1], 1)[0])


@needs("openvino")
def test_any_failure_of_a_compiler_falls_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    net, x = build(), torch.randn(1, 3, 16, 20)

    def fail(*_: Any) -> None:
        raise OSError("read-only file system")

    monkeypatch.setattr(engine_runner, "make_once", fail)
    assert_agree(camtool.explain(net, x, 1, engine="openvino")[0], camtool.explain(net, x, 1)[0])
    assert "engine 'openvino' is not used: OSError: read-only file system" in get_lines(caplog)


@needs("openvino")
def test_other_inputs_precisions_and_methods_fall_back(net: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    wide = build().double()
    x = torch.randn(1, 3, 16, 20)
    assert_agree(
        explain_twice(wide, x.double(), engine="openvino", falls_back=True)[0], camtool.explain(wide, x.double())[0]
    )
    assert "in float32 alone" in caplog.text
    camtool.explain(net, x, method="reciprocam", engine="openvino")
    assert "method 'reciprocam' needs more than activations and gradients" in caplog.text


@pytest.mark.parametrize("engine", RUNTIMES)
def test_an_engine_that_differs_is_given_up(
    engine: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    net, x = build(), torch.randn(1, 3, 16, 20)
    expected = camtool.explain(net, x, 1)[0]
    run = CompiledModel.run

    def shift(self: CompiledModel, images: Tensor, *, grad: bool) -> Any:
        return run(self, images + 0.05, grad=grad)

    monkeypatch.setattr(CompiledModel, "run", shift)
    for _ in range(2):
        assert_agree(camtool.explain(net, x, 1, engine=engine)[0], expected)
    assert len(get_lines(caplog)) == 1
    assert f"engine {engine!r} is not used: its score is" in caplog.text


@pytest.mark.parametrize("engine", RUNTIMES)
def test_an_engine_that_fails_is_given_up(
    engine: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    net, x = build(), torch.randn(1, 3, 16, 20)
    explain_twice(net, x, 1, engine=engine)
    kind = engine_runner.RUNTIMES[engine]

    def fail(*_: Any) -> None:
        raise OSError("out of memory")

    monkeypatch.setattr(kind, "run", fail)
    for _ in range(2):
        assert_agree(camtool.explain(net, x, 1, engine=engine)[0], camtool.explain(net, x, 1)[0])
    assert caplog.text.count("the runtime fails: OSError: out of memory") == 1


def test_unknown_and_missing_engines(net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CamtoolError, match=r"engine.*onnxruntim.*onnxruntime"):
        camtool.Explainer(net, engine="onnxruntim")  # type: ignore[call-overload]
    found = runtimes.find_spec
    monkeypatch.setattr(runtimes, "find_spec", lambda name: None if name == "threadpoolctl" else found(name))
    missing = r"engine 'openvino' needs (?:\w+, )*threadpoolctl, .*pip install 'camtool\[openvino\]'"
    with pytest.raises(CamtoolError, match=missing):
        camtool.Explainer(net, engine="openvino")
    assert list_engines("auto") == ["prepared"]
    assert list_engines("eager") == []


def test_differences_are_said_in_words(net: nn.Module) -> None:
    one, other = camtool.explain(net, torch.randn(2, 3, 16, 20), 1)
    assert describe_difference([one], [one]) is None
    near = replace(one, raw=one.raw + 0.02 * abs(one.raw).max())
    assert "its map of gradcam differs by" in str(describe_difference([near], [one]))
    assert describe_difference([near], [one], (5e-3, 3e-2)) is None  # products in TF32
    assert "its map of gradcam differs by" in str(describe_difference([near], [one], (5e-3, 1e-2)))
    assert "its score is" in str(describe_difference([one], [other]))
    (two,) = camtool.explain(net, torch.randn(1, 3, 16, 20), 2)
    assert "it explains 'class 1', and the model 'class 2'" in str(describe_difference([one], [two]))


def test_rounding_to_tf32_is_no_difference(net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 3, 16, 20)
    run = PreparedModel.run

    def observe_rounded(self: Any, *args: Any, **options: Any) -> Any:
        found = run(self, *args, **options)
        return replace(found, output=found.output + 1e-3)

    monkeypatch.setattr(PreparedModel, "run", observe_rounded)
    for is_rounded in (False, True):
        forget_model(net)
        monkeypatch.setattr(comparison, "rounds_to_tf32", lambda _, is_rounded=is_rounded: is_rounded)
        (ours, _), (theirs, _) = camtool.explain(net, x, 1, engine="prepared"), camtool.explain(net, x, 1)
        assert (abs(ours.score - theirs.score) > 5e-4) is is_rounded
    forget_model(net)
