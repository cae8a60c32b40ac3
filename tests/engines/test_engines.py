"""Engines give the results of the model itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.engines import engine_runner
from camtool.engines.compiled import CompiledModel
from camtool.engines.graph_capture import capture_model
from camtool.engines.segments import split_at_layers
from camtool.hooks.model_passes import run_model
from camtool.methods import METHODS
from camtool.targets import Contrast, Group, Negated, Probability
from tests.engines.nets import ENGINES, RUNTIMES, Gated, Net, assert_agree, build, explain_twice, get_lines
from tests.hooks.state.test_no_trace import unchanged

FORMULAS = [name for name, method in METHODS.items() if method.can_be_compiled]


def test_all_methods_of_activations_and_gradients_are_covered() -> None:
    wanted = {"gradcam", "gradcam++", "xgradcam", "hirescam", "layercam", "gradcam-elementwise", "cam", "rivalcam"}
    assert wanted | {"faithcam", "eigencam", "fem"} <= {*FORMULAS}
    assert not {"scorecam", "rise", "rollout", "shapleycam", "guided-backprop"} & {*FORMULAS}


@pytest.mark.parametrize("engine", ENGINES)
def test_each_method_equals_that_of_the_model(engine: str, net: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(3, 3, 16, 20)
    for method in FORMULAS:
        ours, usual = explain_twice(net, x, method=method, engine=engine), camtool.explain(net, x, method=method)
        for our, other in zip(ours, usual, strict=True):
            assert_agree(our, other)
            assert our.probability == pytest.approx(other.probability, abs=1e-5)
            assert our.warnings == other.warnings
    assert get_lines(caplog) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_the_engine_runs_and_not_the_model(engine: str, net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 3, 16, 20)
    explain_twice(net, x, engine=engine)

    def run(model: nn.Module, inputs: Any) -> Any:
        return pytest.fail("the model itself ran") if model is net else run_model(model, inputs)

    monkeypatch.setattr("camtool.hooks.observation.run_model", run)
    assert len(camtool.explain(net, x, engine=engine)) == len(x)
    with pytest.raises(pytest.fail.Exception, match="the model itself ran"):
        camtool.explain(net, x)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("layer", "classes"), [(None, None), (None, 2), (["stem", "last"], [4, 0, 1])])
def test_maps_without_explanations(
    engine: Any, layer: Any, classes: Any, net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, usual = torch.randn(3, 3, 16, 20), camtool.Explainer(net, "layercam", layer)
    explainer = camtool.Explainer(net, "layercam", layer, engine=engine)
    first = explainer.compute_maps(x, classes)  # compared with those of the model
    with monkeypatch.context() as patch, unchanged(net):
        patch.setattr("camtool.engines.comparison.run_with_hooks", lambda *_, **__: pytest.fail("the model itself ran"))
        maps, heatmaps = (explainer.compute_maps(x, classes, resize=each) for each in (False, True))
        overlays = explainer.draw_overlays(x, classes)
    expected = usual.compute_maps(x, classes)
    assert float(expected.max()) > 0
    for found in (first, maps):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * float(expected.max()))
    torch.testing.assert_close(heatmaps, usual.compute_maps(x, classes, resize=True), rtol=0, atol=1e-3)
    difference = (overlays.int() - usual.draw_overlays(x, classes).int()).abs()
    assert int(difference.max()) <= 2
    assert float((difference > 0).float().mean()) < 0.02


def test_a_graph_of_the_maps_is_that_of_the_model_itself(net: nn.Module) -> None:
    x = torch.randn(2, 3, 16, 20)
    found, expected = (
        torch.autograd.grad(
            camtool.Explainer(net, engine=engine).compute_maps(x, 1, differentiable=True).sum(), net.head.weight
        )[0]
        for engine in ("onnxruntime", "eager")
    )
    assert torch.equal(found, expected)
    assert bool(expected.any())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_equals_single_images_and_several_targets(engine: str, net: nn.Module) -> None:
    x = torch.randn(3, 3, 16, 20)
    wanted = [[0, Probability(1)], [Contrast(2, (3,)), 4], [Negated(camtool.targets.ClassScore(1)), Group([1, 2])]]
    together = explain_twice(net, x, wanted, method=["gradcam", "hirescam"], engine=engine)
    for image, targets in enumerate(wanted):
        for row, target in enumerate(targets):
            usual = camtool.explain(net, x[image : image + 1], target, method=["gradcam", "hirescam"])[0]
            for ours, other in zip(together[image][row], usual, strict=True):
                if other.raw.any():
                    assert_agree(ours, other)


@pytest.mark.parametrize("engine", RUNTIMES)
def test_several_classes_of_an_image_share_one_backward_pass(
    engine: str, net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, classes = torch.randn(2, 3, 16, 20), [[0, 1, 2, 3], [4]]
    layer = ["block", "last"]  # the graph from the first leads through the second
    ours, runs = explain_twice(net, x, classes, layer=layer, engine=engine, method="hirescam"), []
    kind = engine_runner.RUNTIMES[engine]
    run = kind.run
    monkeypatch.setattr(
        kind, "run", lambda self, arrays: runs.append([len(each) for each in arrays]) or run(self, arrays)
    )
    camtool.explain(net, x, classes, layer=layer, engine=engine, method="hirescam")
    assert [rows[0] for rows in runs] == [2, 5, 5]  # two images; then five rows, from the output to each layer
    usual = camtool.explain(net, x, classes, layer=layer, method="hirescam")
    for our, other in zip([*ours[0], *ours[1]], [*usual[0], *usual[1]], strict=True):
        assert_agree(our, other)


LAYERS = ["block.conv", ["stem", "block.pool"], "stem", "stem.0", "block.norm", "block", ["block", "last"]]


@pytest.mark.parametrize("engine", ENGINES)
def test_layers_in_the_middle_and_several_layers(engine: str, net: nn.Module) -> None:
    x = torch.randn(2, 3, 16, 20)
    # The model is cut at its layers in the same way for all that compile it, which takes seconds for each cut.
    for layer in {"prepared": LAYERS, "onnxruntime": LAYERS[::2]}.get(engine, LAYERS[:2]):
        ours, usual = (
            explain_twice(net, x, 2, layer=layer, engine=each, method="layercam") for each in (engine, "eager")
        )
        for our, other in zip(ours, usual, strict=True):
            assert_agree(our, other)


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_of_the_model_changes(engine: str, net: nn.Module) -> None:
    x = torch.randn(3, 3, 16, 20)
    with unchanged(net):
        explain_twice(net, x, 1, method="faithcam", engine=engine)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in net.parameters())
    net.train()
    with unchanged(net):
        explain_twice(net, x, 1, engine=engine)
    net.eval()


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_that_change_are_noticed(engine: str) -> None:
    net, x = build(), torch.randn(1, 3, 16, 20)
    before = explain_twice(net, x, 1, engine=engine)[0]
    with torch.no_grad():
        net.last[0].weight += 0.3
    after = explain_twice(net, x, 1, engine=engine)[0]
    assert_agree(after, camtool.explain(net, x, 1)[0])
    assert not np.allclose(after.raw, before.raw, atol=1e-2 * before.raw.max())


CHANGES: dict[str, Callable[[Net], object]] = {
    "a parameter that is replaced": lambda net: setattr(net.last[0], "weight", nn.Parameter(2 * net.last[0].weight)),
    "other memory of a parameter": lambda net: setattr(net.last[0].weight, "data", 2 * net.last[0].weight.data),
    "a buffer that is written to": lambda net: net.block.norm.running_var.mul_(4),
    "a buffer that is replaced": lambda net: setattr(net.block.norm, "running_var", 4 * net.block.norm.running_var),
    "a module that is replaced": lambda net: setattr(net.block, "pool", nn.AvgPool2d(2)),
    "a module that is added": lambda net: net.last.append(nn.Softplus()),
    "a module that is removed": lambda net: net.stem.pop(2),
    "a hook": lambda net: net.stem.register_forward_hook(lambda _, __, output: 3 * output),
    "an attribute that is added": lambda net: setattr(net, "gate", 3.0),
    "a list that grows": lambda net: net.gates.append(3.0),
}


class Listing(Net):
    """Its result depends on a list, and on an attribute that it may lack."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = [1.0]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.gates[-1] * getattr(self, "gate", 1.0) * x)


@pytest.mark.parametrize("change", CHANGES.values(), ids=[*CHANGES])
def test_other_changes_are_noticed_and_an_unchanged_model_is_compiled_once(
    change: Callable[[Net], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x, compiled = build(Listing), torch.randn(2, 3, 16, 20), []
    start = engine_runner.PreparedModel.__init__
    monkeypatch.setattr(
        engine_runner.PreparedModel, "__init__", lambda self, *args: compiled.append(args) or start(self, *args)
    )
    before = explain_twice(net, x, 1, engine="prepared", layer="last")[0]
    assert len(compiled) == 1
    change(net)
    after = explain_twice(net, x, 1, engine="prepared", layer="last", falls_back=True)[0]
    assert_agree(after, camtool.explain(net, x, 1, layer="last")[0])
    assert not np.allclose(after.raw, before.raw, atol=1e-2 * before.raw.max())


class Answers(Net):
    """An output of several tensors."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        logits = super().forward(x)
        return {"logits": logits, "top": logits.argmax(1), "again": logits}


@pytest.mark.parametrize("engine", RUNTIMES)
def test_an_output_of_several_tensors(engine: str) -> None:
    net, x = build(Answers), torch.randn(2, 3, 16, 20)
    for our, other in zip(explain_twice(net, x, engine=engine), camtool.explain(net, x), strict=True):
        assert_agree(our, other)


class Sigmoids(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sigmoid()


def test_probabilities_of_independent_labels_are_recognized() -> None:
    net, x = build(Sigmoids), torch.randn(2, 3, 16, 20)
    for our, other in zip(explain_twice(net, x, 1, engine="onnxruntime"), camtool.explain(net, x, 1), strict=True):
        assert_agree(our, other)
        assert our.probability == pytest.approx(other.probability, abs=1e-5)


class Fixed(Net):
    """The number of images is written in the code."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(int(x.shape[0]), 3, 16, 20)) + torch.zeros(x.shape[0] + 0, 5)


@pytest.mark.parametrize("engine", RUNTIMES)
def test_a_model_for_a_fixed_number_of_images(engine: str) -> None:
    net = build(Fixed)
    for count in (2, 4, 1):
        x = torch.randn(count, 3, 16, 20)
        for our, other in zip(explain_twice(net, x, 1, engine=engine), camtool.explain(net, x, 1), strict=True):
            assert_agree(our, other)


@pytest.mark.parametrize("engine", ENGINES)
def test_plain_attributes_that_change_are_noticed(engine: str) -> None:
    net, x = build(Gated), torch.randn(2, 3, 16, 20)
    before = explain_twice(net, x, 1, engine=engine)[0]
    net.gate = 3.0
    after = explain_twice(net, x, 1, engine=engine)[0]
    assert_agree(after, camtool.explain(net, x, 1)[0])
    assert not np.allclose(after.raw, before.raw, atol=1e-2 * before.raw.max())


@pytest.mark.parametrize("engine", ENGINES)
def test_forward_functions_that_are_replaced_are_noticed(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = build(Gated), torch.randn(2, 3, 16, 20)
    before = explain_twice(net, x, 1, engine=engine)[0]

    def check(*, falls_back: bool) -> None:
        after = explain_twice(net, x, 1, engine=engine, falls_back=falls_back)[0]
        assert_agree(after, camtool.explain(net, x, 1)[0])
        assert not np.allclose(after.raw, before.raw, atol=1e-2 * before.raw.max())

    monkeypatch.setattr(Gated, "forward", lambda self, x: Net.forward(self, 3 * x))
    check(falls_back=False)
    # A copy of the model would call the model's own layers in this function, so none is used.
    monkeypatch.setattr(net, "forward", lambda x: Net.forward(net, 5 * x))
    check(falls_back=True)


def test_another_engine_does_not_leave_its_blank_image(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = build(), torch.randn(1, 3, 16, 20)
    expected = camtool.explain(copy.deepcopy(net), x, 1, method="faithcam")[0]
    run = CompiledModel.run

    def shift(self: CompiledModel, images: Tensor, *, grad: bool) -> Any:
        return run(self, images + 0.05, grad=grad)

    monkeypatch.setattr(CompiledModel, "run", shift)
    camtool.explain(net, x, 1, method="faithcam", engine="onnxruntime")
    assert np.array_equal(camtool.explain(net, x, 1, method="faithcam")[0].raw, expected.raw)


@pytest.mark.parametrize("engine", RUNTIMES)
def test_methods_beside_an_engine_run_in_one_thread_and_the_engine_in_all(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x, seen, opened = build(), torch.randn(2, 3, 16, 20), [], []
    kind, before = engine_runner.RUNTIMES[engine], torch.get_num_threads()
    start = kind.__init__
    monkeypatch.setattr(
        kind, "__init__", lambda self, path, threads: opened.append(threads) or start(self, path, threads)
    )

    def merge(maps: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return maps[0]

    # FaithCAM runs the engine on a blank image as well, while torch is limited.
    for _ in range(2):
        camtool.explain(net, x, 1, engine=engine, method="faithcam", layer=["block", "last"], merge=merge)
    assert set(opened) == {before}
    assert seen[-1] == 1
    assert torch.get_num_threads() == before


def test_a_segment_reads_what_bypasses_its_layer() -> None:
    net = build()
    capture = capture_model(net, torch.randn(2, 3, 16, 20), ["block.conv", "last"])
    assert capture.layers == ["block.conv", "last"]
    to_last, to_output = split_at_layers(capture)
    # Of the shortcut beside the convolution, the gradient needs the pooled tensor.
    assert (to_last.layers, to_last.results, len(to_last.others)) == ([1], [2], 1)
    assert (to_output.layers, to_output.results, len(to_output.others)) == ([2], [0], 0)


@pytest.mark.parametrize("engine", RUNTIMES)
def test_a_real_photo(engine: str, mobilenet: camtool.Loaded, shared: Path) -> None:
    photo = shared / "images" / "n02085620_chihuahua.jpg"
    for method in ("gradcam", "faithcam"):
        camtool.explain(mobilenet, photo, method=method, engine=engine)
        ours, usual = (camtool.explain(mobilenet, photo, method=method, engine=each) for each in (engine, "eager"))
        assert_agree(ours, usual)


@pytest.mark.parametrize(
    ("name", "few_blocks"),
    [
        ("vit_tiny_patch16_224", {"depth": 2}),
        ("convnext_atto", {"depths": (1, 1, 2, 1)}),
        ("swin_tiny_patch4_window7_224", {"depths": (2, 2), "num_heads": (3, 6)}),
    ],
)
def test_transformers_and_convnext(name: str, few_blocks: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    import timm

    net, x = timm.create_model(name, **few_blocks).eval(), torch.randn(2, 3, 224, 224)
    for our, other in zip(explain_twice(net, x, 1, engine="onnxruntime"), camtool.explain(net, x, 1), strict=True):
        assert_agree(our, other, 1e-3)
    assert get_lines(caplog) == []
