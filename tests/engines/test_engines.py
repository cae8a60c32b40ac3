"""Engines give the results of the model itself, or say why they are not used."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool import Explanation
from camtool.engines import observers
from camtool.engines.capture import capture_model
from camtool.engines.comparison import describe_difference
from camtool.engines.compiled import CompiledModel
from camtool.engines.files import _delete_oldest, compute_key, find_folder, make_once
from camtool.engines.observers import list_engines
from camtool.engines.prepared import PreparedModel
from camtool.engines.segments import split_at_layers
from camtool.errors import CamtoolError
from camtool.methods import METHODS
from camtool.structures.model_cache import forget_model
from camtool.targets import Contrast, Negated, Probability
from tests.state.test_no_trace import unchanged

RUNTIMES = ("onnxruntime", "openvino")
ENGINES = ("prepared", "torch.compile", *RUNTIMES)
FORMULAS = [name for name, method in METHODS.items() if method.can_be_compiled]


class Block(nn.Module):
    """A strided depthwise convolution with a norm beside a pooled shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, 2, 1, groups=width, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(2)

    def forward(self, a: Tensor) -> Tensor:
        return self.norm(self.conv(a)) + self.pool(a)


class Net(nn.Module):
    """Convolutions, norms, operations in place, a shortcut, uneven pooling and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.block = Block(8)
        self.last = nn.Sequential(nn.Conv2d(8, 12, 3, padding=1), nn.ReLU6(inplace=True))
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.block(self.stem(x))).mean((2, 3)))


def build(kind: type[nn.Module] = Net) -> nn.Module:
    net = kind().eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
    net.head.weight.data.abs_()  # so that no map is empty
    return net


@pytest.fixture(autouse=True, scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAMTOOL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(3)
    return build()


def get_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("camtool")]


def assert_agree(ours: Explanation, expected: Explanation, tolerance: float = 1e-4) -> None:
    assert ours.score == pytest.approx(expected.score, abs=1e-4)
    assert ours.index == expected.index
    peak = np.abs(expected.raw).max()
    assert peak > 0
    np.testing.assert_allclose(ours.raw, expected.raw, rtol=0, atol=tolerance * peak)


class Lines(logging.Handler):
    """The lines of camtool's log."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def explain_twice(net: nn.Module, x: Any, *args: Any, falls_back: bool = False, **options: Any) -> Any:
    """Explain by an engine; the first call compares it with the model, and returns the model's own result."""
    lines = Lines()
    logging.getLogger("camtool").addHandler(lines)
    try:
        camtool.explain(net, x, *args, **options)
        found = camtool.explain(net, x, *args, **options)
    finally:
        logging.getLogger("camtool").removeHandler(lines)
    assert falls_back or not lines.found
    return found


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
    x = torch.randn(2, 3, 16, 20)
    explain_twice(net, x, engine=engine)
    monkeypatch.setattr("camtool.engines.comparison.observe", lambda *_, **__: pytest.fail("the model itself ran"))
    assert len(camtool.explain(net, x, engine=engine)) == 2
    with pytest.raises(pytest.fail.Exception, match="the model itself ran"):
        camtool.explain(net, x)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("layer", [None, ["stem", "last"]])
@pytest.mark.parametrize("classes", [None, 2, [4, 0, 1]])
def test_maps_without_explanations(
    engine: Any, layer: Any, classes: Any, net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, usual = torch.randn(3, 3, 16, 20), camtool.Explainer(net, "layercam", layer)
    explainer = camtool.Explainer(net, "layercam", layer, engine=engine)
    first = explainer.compute_maps(x, classes)  # compared with those of the model
    with monkeypatch.context() as patch, unchanged(net):
        patch.setattr("camtool.engines.comparison.observe", lambda *_, **__: pytest.fail("the model itself ran"))
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


@pytest.mark.parametrize("fault", ["maps", "scores", "classes"])
def test_an_engine_of_other_maps_is_not_used(
    fault: str, net: nn.Module, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    observe = PreparedModel.observe

    def observe_wrongly(self: Any, *args: Any, **options: Any) -> Any:
        found = observe(self, *args, **options)
        if fault == "maps":
            found.calls["last"][0].data *= 1.1
        else:
            shift = {"scores": 0.01, "classes": torch.tensor([0, 0, 0, 0, 1e3])}[fault]
            found = replace(found, output=found.output + shift)
        return found

    forget_model(net)
    monkeypatch.setattr(PreparedModel, "observe", observe_wrongly)
    x = torch.randn(2, 3, 16, 20)
    maps = camtool.Explainer(net, engine="prepared").compute_maps(x)
    assert torch.equal(maps, camtool.Explainer(net).compute_maps(x))
    words = {"maps": "its map of gradcam differs", "scores": "its score is", "classes": "it explains 'class 4'"}
    assert words[fault] in caplog.text
    forget_model(net)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_equals_single_images_and_several_targets(engine: str, net: nn.Module) -> None:
    x = torch.randn(3, 3, 16, 20)
    wanted = [[0, Probability(1)], [Contrast(2, (3,)), 4], [Negated(camtool.targets.ClassScore(1)), 2]]
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
    kind = observers.RUNTIMES[engine]
    run = kind.run
    monkeypatch.setattr(
        kind, "run", lambda self, arrays: runs.append([len(each) for each in arrays]) or run(self, arrays)
    )
    camtool.explain(net, x, classes, layer=layer, engine=engine, method="hirescam")
    assert [rows[0] for rows in runs] == [2, 5, 5]  # two images; then five rows, from the output to each layer
    usual = camtool.explain(net, x, classes, layer=layer, method="hirescam")
    for our, other in zip([*ours[0], *ours[1]], [*usual[0], *usual[1]], strict=True):
        assert_agree(our, other)


@pytest.mark.parametrize("engine", ENGINES)
def test_layers_in_the_middle_and_several_layers(engine: str, net: nn.Module) -> None:
    x = torch.randn(2, 3, 16, 20)
    for layer in ("stem", "stem.0", "block.conv", "block.norm", "block", ["block", "last"], ["stem", "block.pool"]):
        ours, usual = (
            explain_twice(net, x, 2, layer=layer, engine=each, method="layercam") for each in (engine, "eager")
        )
        for our, other in zip(ours, usual, strict=True):
            assert_agree(our, other)


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_of_the_model_changes(engine: str, net: nn.Module) -> None:
    x = torch.randn(1, 3, 16, 20)
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


class Decides(Net):
    """Its code depends on the values of a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if float(x.detach().mean()) > 0 else -x)


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


class Unknown(Net):
    """An operator that ONNX lacks."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 0 * torch.special.bessel_j0(x))


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


class Gated(Net):
    """Its result depends on a plain attribute, and on whether it gets one image."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.alone = 1.0, False

    def forward(self, x: Tensor) -> Tensor:
        if self.alone and len(x) == 1:
            x = 2 * x
        return super().forward(self.gate * x)


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


def test_a_single_image_is_compared_by_itself() -> None:
    net, x = build(Gated), torch.randn(2, 3, 16, 20)
    net.alone = True
    explain_twice(net, x, 1, engine="onnxruntime")
    (ours,) = explain_twice(net, x[:1], 1, engine="onnxruntime", falls_back=True)
    assert_agree(ours, camtool.explain(net, x[:1], 1)[0])


def test_another_engine_does_not_leave_its_blank_image(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = build(), torch.randn(1, 3, 16, 20)
    expected = camtool.explain(copy.deepcopy(net), x, 1, method="faithcam")[0]
    run = CompiledModel.observe

    def shift(self: CompiledModel, images: Tensor, *, grad: bool) -> Any:
        return run(self, images + 0.05, grad=grad)

    monkeypatch.setattr(CompiledModel, "observe", shift)
    camtool.explain(net, x, 1, method="faithcam", engine="onnxruntime")
    assert np.array_equal(camtool.explain(net, x, 1, method="faithcam")[0].raw, expected.raw)


def test_any_failure_of_a_compiler_falls_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    net, x = build(), torch.randn(1, 3, 16, 20)

    def fail(*_: Any) -> None:
        raise OSError("read-only file system")

    monkeypatch.setattr(observers, "make_once", fail)
    assert_agree(camtool.explain(net, x, 1, engine="openvino")[0], camtool.explain(net, x, 1)[0])
    assert "engine 'openvino' is not used: OSError: read-only file system" in get_lines(caplog)


def test_damaged_files_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMTOOL_CACHE", str(tmp_path))
    net, x = build(), torch.randn(1, 3, 16, 20)
    explain_twice(net, x, 1, engine="onnxruntime")
    (plan,) = tmp_path.rglob("plan.json")
    plan.write_text("{")
    for falls_back in (True, False):  # the damage is met by one process, and mended by the next
        forget_model(net)
        (ours,) = explain_twice(net, x, 1, engine="onnxruntime", falls_back=falls_back)
        assert_agree(ours, camtool.explain(net, x, 1)[0])


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
    run = CompiledModel.observe

    def shift(self: CompiledModel, images: Tensor, *, grad: bool) -> Any:
        return run(self, images + 0.05, grad=grad)

    monkeypatch.setattr(CompiledModel, "observe", shift)
    for _ in range(2):
        assert_agree(camtool.explain(net, x, 1, engine=engine)[0], expected)
    assert len(get_lines(caplog)) == 1
    assert f"engine {engine!r} is not used: its score is" in caplog.text


@pytest.mark.parametrize("engine", RUNTIMES)
def test_methods_beside_an_engine_run_in_one_thread_and_the_engine_in_all(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x, seen, opened = build(), torch.randn(2, 3, 16, 20), [], []
    kind, before = observers.RUNTIMES[engine], torch.get_num_threads()
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


@pytest.mark.parametrize("engine", RUNTIMES)
def test_an_engine_that_fails_is_given_up(
    engine: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    net, x = build(), torch.randn(1, 3, 16, 20)
    explain_twice(net, x, 1, engine=engine)
    kind = observers.RUNTIMES[engine]

    def fail(*_: Any) -> None:
        raise OSError("out of memory")

    monkeypatch.setattr(kind, "run", fail)
    for _ in range(2):
        assert_agree(camtool.explain(net, x, 1, engine=engine)[0], camtool.explain(net, x, 1)[0])
    assert caplog.text.count("the runtime fails: OSError: out of memory") == 1


def test_unknown_and_missing_engines(net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CamtoolError, match=r"engine.*onnxruntim.*onnxruntime"):
        camtool.Explainer(net, engine="onnxruntim")  # type: ignore[call-overload]
    monkeypatch.setattr(observers, "is_installed", lambda _: False)
    with pytest.raises(CamtoolError, match=r"pip install 'camtool\[openvino\]'"):
        camtool.Explainer(net, engine="openvino")
    assert list_engines("auto") == ["prepared"]
    assert list_engines("eager") == []


# ------------------------------------------------------------------------------------------------------------- files


def test_a_compiled_model_is_read_from_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = build(), torch.randn(1, 3, 16, 20)
    explain_twice(net, x, 1, engine="onnxruntime")
    forget_model(net)  # as in another process
    monkeypatch.setattr(observers, "write_program", lambda *_: pytest.fail("it was compiled again"))
    assert_agree(explain_twice(net, x, 1, engine="onnxruntime")[0], camtool.explain(net, x, 1)[0])
    # The other runtime reads the same files.
    assert_agree(explain_twice(net, x, 1, engine="openvino")[0], camtool.explain(net, x, 1)[0])


def test_the_key_depends_on_structure_weights_and_settings() -> None:
    net = build()
    keys = {compute_key(net, ["a"]), compute_key(net, ["b"])}
    net.last[1] = nn.ReLU()
    keys.add(compute_key(net, ["a"]))
    with torch.no_grad():
        net.head.bias[0] += 1
    keys.add(compute_key(net, ["a"]))
    assert len(keys) == 4
    assert compute_key(net, ["a"]) in keys


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CAMTOOL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_folder() == tmp_path / "camtool"


def test_files_are_made_once_and_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CAMTOOL_CACHE", str(tmp_path))
    with pytest.raises(ZeroDivisionError):
        make_once("key", lambda _: 1 / 0)  # type: ignore[arg-type, return-value]
    assert [*(tmp_path / "engines").iterdir()] == []
    for text in ("first", "second"):
        made = make_once("key", lambda folder, text=text: (folder / "file").write_text(text))  # type: ignore[misc]
        assert (made / "file").read_text() == "first"


def test_the_oldest_files_are_deleted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    monkeypatch.setattr("camtool.engines.files._LIMIT", 250)
    for age, name in enumerate(("new", "middle", "old", "unfinished-x")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(bytes(100))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    _delete_oldest(tmp_path.iterdir(), keep=tmp_path / "middle")
    assert {each.name for each in tmp_path.iterdir()} == {"new", "middle", "unfinished-x"}


# ------------------------------------------------------------------------------------------------------------- parts


def test_a_segment_reads_what_bypasses_its_layer() -> None:
    net = build()
    capture = capture_model(net, torch.randn(2, 3, 16, 20), ["block.conv", "last"])
    assert capture.layers == ["block.conv", "last"]
    to_last, to_output = split_at_layers(capture)
    # Of the shortcut beside the convolution, the gradient needs the pooled tensor.
    assert (to_last.layers, to_last.results, len(to_last.others)) == ([1], [2], 1)
    assert (to_output.layers, to_output.results, len(to_output.others)) == ([2], [0], 0)


def test_differences_are_said_in_words(net: nn.Module) -> None:
    one, other = camtool.explain(net, torch.randn(2, 3, 16, 20), 1)
    assert describe_difference([one], [one]) is None
    assert "its score is" in str(describe_difference([one], [other]))
    (two,) = camtool.explain(net, torch.randn(1, 3, 16, 20), 2)
    assert "it explains 'class 1', and the model 'class 2'" in str(describe_difference([one], [two]))


# ------------------------------------------------------------------------------------------------------- real models


@pytest.mark.slow
@pytest.mark.parametrize("engine", RUNTIMES)
def test_a_real_photo(engine: str, mobilenet: camtool.Loaded, shared: Path) -> None:
    photo = shared / "images" / "n02085620_chihuahua.jpg"
    for method in ("gradcam", "faithcam"):
        camtool.explain(mobilenet, photo, method=method, engine=engine)
        ours, usual = (camtool.explain(mobilenet, photo, method=method, engine=each) for each in (engine, "eager"))
        assert_agree(ours, usual)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "convnext_atto", "swin_tiny_patch4_window7_224"])
def test_transformers_and_convnext(name: str, caplog: pytest.LogCaptureFixture) -> None:
    import timm

    net, x = timm.create_model(name).eval(), torch.randn(2, 3, 224, 224)
    for our, other in zip(explain_twice(net, x, 1, engine="onnxruntime"), camtool.explain(net, x, 1), strict=True):
        assert_agree(our, other, 1e-3)
    assert get_lines(caplog) == []
