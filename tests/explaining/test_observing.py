"""Explanations of the user's own forward pass: the maps of ``explain``, and nothing else changes for the user."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu
from torch.utils.checkpoint import checkpoint
from torchvision.models import convnext, densenet, resnet, vision_transformer

import camtool
from camtool import ForwardError, LayerError, MethodError
from camtool.errors import CamtoolError, ModelError
from tests.hooks.state.test_no_trace import unchanged
from tests.hooks.test_unhookable_models import build_without_warnings


class Net(nn.Module):
    """A classifier with all that a training pass changes: batch norm, dropout, and an in-place ReLU after the layer."""

    def __init__(self, *, checkpoints: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.last = nn.Sequential(nn.Conv2d(6, 8, 3, 1, 1), nn.BatchNorm2d(8))
        self.head = nn.Sequential(nn.Dropout(0.4), nn.Linear(8, 5))
        self.checkpoints = checkpoints

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = checkpoint(self._run_last, x, use_reentrant=False) if self.checkpoints else self._run_last(x)
        return self.head(x)

    def _run_last(self, x: Tensor) -> Tensor:
        return relu(self.last(x), inplace=True).mean((2, 3))


class Alias(nn.Module):
    """The observed layer returns its input, which is written to in place afterwards and is then read again."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.same, self.head = nn.Conv2d(3, 4, 3), nn.Identity(), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        y = self.same(x)
        y.mul_(2)
        return self.head(x.mean((2, 3)))


class Names(nn.Module):
    """A model that takes its image by name, beside a mask."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, mask: Tensor | None = None, *, pixel_values: Tensor) -> dict[str, Tensor]:
        return {"logits": self.net(pixel_values if mask is None else pixel_values * mask)}


def build(kind: Callable[..., nn.Module] = Net, **options: Any) -> nn.Module:
    torch.manual_seed(3)
    model = kind(**options)
    for parameter in model.parameters():
        if not parameter.any():  # a new head of torchvision's transformers is zero
            nn.init.normal_(parameter, std=0.1)
    return model.double().eval()


def build_vit() -> nn.Module:
    return vision_transformer.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=5)


def build_convnext() -> nn.Module:
    settings = [convnext.CNBlockConfig(8, 16, 1), convnext.CNBlockConfig(16, None, 1)]
    return convnext.ConvNeXt(settings, num_classes=5)


def build_densenet() -> nn.Module:
    return densenet.DenseNet(4, (2, 2), 8, num_classes=5)


def build_resnet() -> nn.Module:
    return resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=5)


IMAGES = torch.rand(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
METHODS = ["gradcam", "gradcam++", "layercam", "eigencam", "rivalcam", "shapleycam", "eigen:gradcam"]


def assert_equal(ours: list[Any], expected: list[Any], tolerance: float = 1e-6) -> None:
    assert len(ours) == len(expected)
    for our, other in zip(ours, expected, strict=True):
        assert (our.label, our.layer, our.method, our.warnings) == (
            other.label,
            other.layer,
            other.method,
            other.warnings,
        )
        assert our.score == pytest.approx(other.score, rel=1e-9)
        assert our.probability == pytest.approx(other.probability, rel=1e-9)
        np.testing.assert_allclose(our.raw, other.raw, rtol=0, atol=tolerance * np.abs(other.raw).max())
        np.testing.assert_allclose(our.heatmap, other.heatmap, rtol=0, atol=10 * tolerance)


def observe(model: nn.Module, images: Tensor = IMAGES, **options: Any) -> camtool.ObservedPasses:
    with camtool.observe(model, **options) as cam:
        model(images)
    return cam


# --------------------------------------------------------------------------------------------- the maps of explain


@pytest.mark.parametrize("kind", [Net, Alias, build_vit, build_convnext, build_densenet, build_resnet])
def test_maps_scores_and_warnings_are_those_of_explain(kind: Callable[..., nn.Module]) -> None:
    model = build(kind)
    cam = observe(model)
    # Torch has no second derivative of the fast attention of a CPU.
    for method in [name for name in METHODS if kind is not build_vit or name != "shapleycam"]:
        for target in (None, 3, [1, 4]):
            assert_equal(cam.explain(target, method=method), camtool.explain(model, IMAGES, target, method=method))


def test_a_named_layer_before_an_operation_in_place_is_read_before_it() -> None:
    for layer, kind in (("last.0", Net), ("last", Net), ("stem", Net), ("features", build_densenet)):
        model = build(kind)
        for method in ("gradcam", "layercam", "eigencam"):
            expected = camtool.explain(model, IMAGES, 2, method=method, layer=layer)
            assert_equal(observe(model, layer=layer).explain(2, method=method), expected)


def test_a_layer_that_returns_its_input_is_read_where_it_returned_it() -> None:
    """The scores are ``w · mean(2 A)``, so the gradient at A is ``2 w / P`` for P positions."""
    model = build(Alias)
    activations = model.conv(IMAGES)
    weights = 2 * model.head.weight[2].reshape(1, -1, 1, 1) / activations[0, 0].numel()
    expected = torch.relu((weights * activations).sum(1)).detach().numpy()
    for our, other in zip(observe(model, layer="same").explain(2), expected, strict=True):
        np.testing.assert_allclose(our.raw, other, rtol=1e-6, atol=1e-7 * other.max())


def test_a_map_in_training_mode_is_that_of_the_very_pass() -> None:
    """Grad-CAM written out on the user's own graph: this dropout mask, these batch statistics."""
    model = build().train()
    with camtool.observe(model, "last.0") as cam:
        seen: list[Tensor] = []
        handle = model.get_submodule("last.0").register_forward_hook(lambda *args: seen.append(args[-1]))
        output = model(IMAGES)
        handle.remove()
    kept = seen[-1]  # those before are of the passes that find the layout of the layer
    (gradient,) = torch.autograd.grad(output[:, 1].sum(), kept, retain_graph=True)
    expected = torch.relu((gradient.mean((2, 3), keepdim=True) * kept).sum(1)).detach().numpy()
    results = cam.explain(1)
    for our, other in zip(results, expected, strict=True):
        np.testing.assert_allclose(our.raw, other, rtol=1e-6, atol=1e-7 * other.max())
        assert "train-mode" in {warning.code for warning in our.warnings}


def test_several_targets_methods_and_passes_share_a_block() -> None:
    model = build()
    with camtool.observe(model) as cam:
        outputs = [model(IMAGES * scale) for scale in (1, 0.5, 0.1)]
    assert len(cam) == 3
    assert all(one.output is output for one, output in zip(cam, outputs, strict=True))
    for index, scale in enumerate((1, 0.5, 0.1)):
        assert_equal(cam[index].explain(2), camtool.explain(model, IMAGES * scale, 2))
    assert_equal(cam.explain(), camtool.explain(model, IMAGES * 0.1))
    rows = [[1, 2], [3]]
    for ours, expected in zip(cam[0].explain(rows), camtool.explain(model, IMAGES, rows), strict=True):
        assert_equal(ours, expected)
    both = cam[0].explain(rows, method=["gradcam", "eigencam"])
    assert [[[one.method for one in row] for row in image] for image in both] == [
        [["gradcam", "eigencam"]] * 2,
        [["gradcam", "eigencam"]],
    ]


def test_only_the_latest_passes_are_kept_if_asked() -> None:
    model = build()
    with camtool.observe(model, keep=2) as cam:
        for scale in (1, 0.5, 0.1):
            model(IMAGES * scale)
    assert len(cam) == 2
    assert_equal(cam[0].explain(2), camtool.explain(model, IMAGES * 0.5, 2))


def test_inputs_by_name_and_outputs_of_any_structure() -> None:
    model = Names(build()).eval()
    mask = torch.ones(2, 1, 32, 32, dtype=torch.float64)
    mask[..., 16:] = 0.3
    with camtool.observe(model) as cam:
        model(pixel_values=IMAGES)
        model(mask, pixel_values=IMAGES)
    assert_equal(cam[0].explain(2), camtool.explain(model, {"pixel_values": IMAGES}, 2))
    assert_equal(cam[1].explain(2), camtool.explain(model, camtool.Inputs(mask, pixel_values=IMAGES), 2))


def test_the_model_runs_again_for_methods_that_change_images_and_for_no_other() -> None:
    model, calls = build(), [0]
    model.register_forward_pre_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    observe(model, depths=2).explain(2)  # the first time, the layers and the places of their cells are found
    with camtool.observe(model, depths=2) as cam:
        calls[0] = 0
        model(IMAGES)
        assert calls[0] == 1
    for method in METHODS:
        cam.explain(2, method=method)
    assert calls[0] == 1
    for method in ("ablationcam", "occlusion", "tta:gradcam"):
        assert_equal(cam.explain(2, method=method), camtool.explain(model, IMAGES, 2, method=method))
    assert calls[0] > 2
    expected = camtool.explain(model, IMAGES, 2, method="faithcam", depths=2)
    assert_equal(cam.explain(2, method="faithcam", depths=2), expected)
    assert not {finding.code for finding in cam.explain(2)[0].check().findings} & {"not-repeatable", "train-mode"}


# --------------------------------------------------------------------------------- nothing else changes for the user


def train(*, with_block: bool, autocast: bool = False, checkpoints: bool = False) -> tuple[list[Tensor], list[Tensor]]:
    """Return outputs and gradients of three steps, and the parameters, buffers and the random state afterwards."""
    model = build(checkpoints=checkpoints).float().train()
    optimizer, seen = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), []
    torch.manual_seed(5)
    for step in range(3):
        images = IMAGES.float() * (1 + step)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            if with_block:
                with camtool.observe(model, "last") as cam:
                    output = model(images)
                    cam.explain([1, 2])
                cam.explain(0, method="gradcam++")
                cam.explain([[0, 1], 2], method="eigencam")
            else:
                output = model(images)
            output.retain_grad()
            loss = cross_entropy(output, torch.tensor([1, 2]))
            if with_block:
                cam.explain(3, method="layercam")
                assert output.grad is None
        optimizer.zero_grad()
        loss.backward()
        seen += [output.detach(), output.grad, *(parameter.grad.clone() for parameter in model.parameters())]
        optimizer.step()
    return seen, [*model.state_dict().values(), torch.get_rng_state(), torch.tensor(model.training)]


@pytest.mark.parametrize("options", [{}, {"autocast": True}, {"checkpoints": True}])
def test_a_training_goes_on_bitwise_as_without_the_block(options: dict[str, bool]) -> None:
    for ours, plain in zip(train(with_block=True, **options), train(with_block=False, **options), strict=True):
        assert len(ours) == len(plain) > 5
        assert all(one.dtype == other.dtype and torch.equal(one, other) for one, other in zip(ours, plain, strict=True))


@pytest.mark.parametrize("kind", [Net, Alias, build_vit, build_densenet])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_output_is_bitwise_that_without_the_block(kind: Callable[..., nn.Module], mode: Callable[[], Any]) -> None:
    model = build(kind)
    with mode():
        expected = model(IMAGES)
        with camtool.observe(model) as cam:
            output = model(IMAGES)
    assert torch.equal(output, expected)
    assert cam[0].output is output
    assert (output.requires_grad, output.is_inference()) == (expected.requires_grad, expected.is_inference())
    assert (output.grad_fn is None) == (expected.grad_fn is None)


def test_no_trace_is_left_also_by_a_model_that_fails() -> None:
    model, was_called = build(), []
    model.head.train()  # a flag to restore
    with torch.no_grad():
        observe(model, layer="last.0", start_graph=True)

    def fail(*_: object) -> None:
        was_called.append(torch.is_grad_enabled())
        raise KeyError("mine")

    def run() -> None:
        with camtool.observe(model, "last.0", start_graph=True) as cam, torch.no_grad():
            with pytest.raises(CamtoolError, match="has not run in the block"):
                cam.explain()
            model(IMAGES)

    handle = model.head[0].register_forward_pre_hook(fail)
    with unchanged(model), pytest.raises(KeyError, match="mine"):
        run()
    handle.remove()
    assert was_called[-1]  # the graph had been started
    assert torch.is_grad_enabled()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_pass_after_one_that_failed_is_recorded() -> None:
    model = build()
    with camtool.observe(model) as cam:
        with pytest.raises(RuntimeError):
            model(IMAGES[:, :1])
        model(IMAGES)
    assert len(cam) == 1
    assert_equal(cam.explain(1), camtool.explain(model, IMAGES, 1))


def test_a_layer_that_cannot_be_explained_fails_in_explain_and_not_in_the_pass_of_the_user() -> None:
    model = build()
    with camtool.observe(model, "head") as cam:
        output = model(IMAGES)
    assert torch.equal(output, model(IMAGES))
    for _ in range(2):
        with pytest.raises(LayerError, match="head"):
            cam.explain()
    with pytest.raises(LayerError, match="nothing"):
        camtool.observe(model, "nothing")


def test_the_graph_is_freed_with_the_block() -> None:
    model = build()
    cam = observe(model)
    node = weakref.ref(cam[0].output)
    cam.explain(1)[0].save  # noqa: B018  # the explanation does not hold the graph
    results = cam.explain(1)
    gc.disable()
    try:
        del cam
        assert node() is None
    finally:
        gc.enable()
    assert results[0].raw.any()


def test_what_the_user_writes_to_afterwards_does_not_change_the_pass() -> None:
    model, images = build(), IMAGES.clone()
    expected = camtool.explain(model, IMAGES, 1), camtool.explain(model, IMAGES, 1, method="ablationcam")
    with torch.no_grad(), camtool.observe(model, start_graph=True) as cam:
        output = model(images)
        output.zero_()
        images.zero_()
    assert_equal(cam.explain(1), expected[0])
    assert_equal(cam.explain(1, method="ablationcam"), expected[1])


def test_passes_of_camtool_of_other_threads_and_of_copies_are_not_recorded() -> None:
    model = build()
    with camtool.observe(model) as outer, camtool.observe(model, "stem") as inner:
        expected = camtool.explain(model, IMAGES, 1)
        camtool.explain(nn.Sequential(model), IMAGES, 1)
        model(IMAGES)
        outer.explain(1, method="ablationcam")
        thread = threading.Thread(target=model, args=(IMAGES,))
        thread.start()
        thread.join()
        copy.deepcopy(model)(IMAGES)
    assert (len(outer), len(inner)) == (1, 1)
    assert_equal(outer.explain(1), expected)
    assert inner.explain(1)[0].layer == "stem"


def test_calls_in_transforms_and_exports_go_on_and_are_not_recorded() -> None:
    model = build()
    expected = torch.func.vmap(lambda image: model(image[None])[0])(IMAGES)
    with camtool.observe(model) as cam:
        assert torch.equal(torch.func.vmap(lambda image: model(image[None])[0])(IMAGES), expected)
        torch.func.grad(lambda x: model(x).sum())(IMAGES)
        torch.export.export(model, (IMAGES,))
        assert len(cam) == 0
        model(IMAGES)
    assert_equal(cam.explain(1), camtool.explain(model, IMAGES, 1))


def test_passes_in_several_threads_are_kept_apart() -> None:
    model, results = build(), {}

    def run(scale: int) -> None:
        results[scale] = observe(model, IMAGES * scale).explain(1)

    threads = [threading.Thread(target=run, args=(scale,)) for scale in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for scale in (1, 2, 3, 4):
        assert_equal(results[scale], camtool.explain(model, IMAGES * scale, 1))


# -------------------------------------------------------------------------------------------- modes and their limits


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_a_graph_methods_of_activations_work_and_others_say_what_to_do(mode: Callable[[], Any]) -> None:
    model = build()
    with mode():
        cam = observe(model)
    for method in ("eigencam", "ablationcam"):
        assert_equal(cam.explain(2, method=method), camtool.explain(model, IMAGES, 2, method=method))
    with pytest.raises(LayerError, match=rf"ran in torch\.{mode.__name__}.*start_graph=True.*'eigencam'"):
        cam.explain(2)


@pytest.mark.parametrize("kind", [Net, build_vit, build_convnext])
def test_a_graph_can_be_started_under_no_grad_and_for_frozen_weights(kind: Callable[..., nn.Module]) -> None:
    model = build(kind)
    expected = camtool.explain(model, IMAGES, 2)
    with torch.no_grad():
        cam = observe(model, start_graph=True)
        assert not torch.is_grad_enabled()
    assert not cam[0].output.requires_grad
    assert_equal(cam.explain(2), expected)
    model.requires_grad_(False)
    with pytest.raises(LayerError, match="weights before the layer are frozen"):
        observe(model).explain(2)
    cam = observe(model, start_graph=True)
    assert not cam[0].output.requires_grad
    assert_equal(cam.explain(2), expected)


def test_a_frozen_trunk_leaves_the_graph_of_a_head_in_training() -> None:
    gradients = []
    for start_graph in (False, True):
        model = build()
        model.requires_grad_(False)
        model.head.requires_grad_(True)
        cam = observe(model, start_graph=start_graph)
        if start_graph:
            assert_equal(cam.explain(2), camtool.explain(model, IMAGES, 2))
        cross_entropy(cam[0].output, torch.tensor([1, 2])).backward()
        gradients.append(model.head[1].weight.grad)
    assert torch.equal(*gradients)


def test_a_freed_graph_and_changed_weights_are_told() -> None:
    model = build()
    cam = observe(model)
    cam[0].output.sum().backward(retain_graph=True)
    expected = cam.explain(1)
    assert_equal(expected, camtool.explain(model, IMAGES, 1))
    torch.optim.SGD(model.parameters(), 0.1).step()
    for method in ("ablationcam", "cam"):
        with pytest.raises(MethodError, match=r"weights have changed.*before optimizer\.step\(\)"):
            cam.explain(1, method=method)
    with pytest.raises(ForwardError, match=r"changed in place.*optimizer\.step\(\)"):
        cam.explain(1)
    cam.explain(1, method="eigencam")
    cam = observe(model)
    cam[0].output.sum().backward()
    with pytest.raises(ForwardError, match=r"before loss\.backward\(\)"):
        cam.explain(1)


def test_methods_that_run_the_model_again_are_refused_in_training_mode() -> None:
    cam = observe(build().train())
    for method in ("ablationcam", "occlusion", "noise:gradcam"):
        with pytest.raises(MethodError, match=r"runs the model again.*model\.eval\(\)"):
            cam.explain(1, method=method)
    model = build(build_resnet)
    model.training = True  # a flag that changes nothing
    assert_equal(
        observe(model).explain(1, method="ablationcam"), camtool.explain(model, IMAGES, 1, method="ablationcam")
    )


def test_autocast_is_that_of_the_pass() -> None:
    model = build().float()
    images = IMAGES.float()
    with torch.autocast("cpu", torch.bfloat16):
        cam = observe(model, images)
        expected = [camtool.explain(model, images, 1, method=method) for method in ("gradcam", "ablationcam")]
    assert cam[0].output.dtype == torch.bfloat16
    for method, explanations in zip(("gradcam", "ablationcam"), expected, strict=True):
        # The gradients of the user's pass are rounded as those of explain are.
        assert_equal(cam.explain(1, method=method), explanations)


def test_wrappers_work_and_models_whose_hooks_do_not_run_are_refused_by_name() -> None:
    model = build()
    expected = camtool.explain(model, IMAGES, 1)
    for wrapper in (nn.DataParallel(model), torch.optim.swa_utils.AveragedModel(model).eval()):
        assert_equal(observe(wrapper).explain(1), expected)
    on_two = nn.DataParallel(model)
    on_two.device_ids = [0, 1]
    for refused, reason in ((torch.compile(model), "is compiled"), (on_two, "DataParallel on several devices")):
        with pytest.raises(ModelError, match=reason):
            camtool.observe(refused)
    with pytest.raises(MethodError, match="TorchScript"):
        camtool.observe(build_without_warnings(lambda: torch.jit.trace(model, IMAGES)))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"layer": "stem"}, r"layer= must be known when the model runs; pass it to camtool\.observe"),
        ({"labels": ["a"]}, "labels= must be known"),
        ({"method": "auto"}, "method='auto' runs the model on many images"),
        ({"method": "faithcam"}, r"'stem'.*camtool\.observe\(model, depths=4\)"),
        ({"target_class": 9}, "9 does not exist"),
        ({"method": "gradcam", "samples": 3}, "has no option 'samples'"),
    ],
)
def test_arguments_that_do_not_fit_say_what_to_do(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(CamtoolError, match=reason):
        observe(build()).explain(**options)
