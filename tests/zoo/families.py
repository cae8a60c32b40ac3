"""Models whose map is compared with a Grad-CAM by hand: YOLO, vision-language, open-vocabulary, networks on frames.

All have random weights from configurations. Where the cells of a layer are follows from how each family is made, and
not from camtool.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import camtool
from tests.layers.test_frames import FrameNet
from tests.zoo import test_open_vocabulary as open_vocabulary
from tests.zoo.vision_language import SIDE, WITH_GRID, WITHOUT_GRID, SmallVLM

_MOST_CLASSES = 8
"""A rectified map of a random network is empty for about half of the classes, so as many are asked."""


@dataclass(frozen=True)
class Family:
    """A model, an input, and what a Grad-CAM by hand needs to know of it.

    Attributes:
        build: Makes the model with random weights, the same each time.
        make_inputs: Makes the model's input for one image or clip.
        get_scores: From the model's whole output to the scores of the classes ``(K,)``.
        read_grid: From a layer's output for one image or clip to ``(C, *grid)``.
    """

    build: Callable[[], nn.Module]
    make_inputs: Callable[[], Any]
    get_scores: Callable[[Any], Tensor]
    read_grid: Callable[[Tensor], Tensor]


def find_faults(family: Family, model: nn.Module, inputs: Any) -> list[str]:
    """Explain a model with no options and compare its maps with a Grad-CAM by hand; return what differs.

    The model's top class is explained first. If its map is empty, as rectified maps of random networks may be, the
    next classes are.
    """
    with torch.no_grad():
        ranked = family.get_scores(_call(model, inputs)).argsort(descending=True)[:_MOST_CLASSES].tolist()
    for index in [None, *ranked[1:]]:
        result = _explain(model, inputs, index)
        if index is None and result.index != ranked[0]:
            return [f"it explains class {result.index} instead of {ranked[0]}"]
        expected = compute_gradcam(family, model, inputs, result.layer, ranked[0] if index is None else index)
        if result.raw.shape != expected.shape:
            return [f"the map of {result.layer} has shape {result.raw.shape} instead of {expected.shape}"]
        if np.abs(result.raw - expected).max() > 1e-5 * max(expected.max(), 1e-9):
            return [f"the map of {result.layer} is not the Grad-CAM by hand"]
        if np.ptp(expected) > 0:
            return []
    return ["the maps of all classes are constant"]


def compute_gradcam(family: Family, model: nn.Module, inputs: Any, layer: str, index: int) -> NDArray[Any]:
    """Return the Grad-CAM of a class at a layer, with a hook and autograd alone."""
    kept: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(
        lambda _module, _given, output: kept.append(output if isinstance(output, Tensor) else output[0])
    )
    with torch.enable_grad():
        score = family.get_scores(_call(model, inputs))[index]
    handle.remove()
    (gradient,) = torch.autograd.grad(score, kept[-1])
    activations, gradient = family.read_grid(kept[-1].detach()), family.read_grid(gradient)
    weights = gradient.flatten(1).mean(1).reshape(-1, *[1] * (gradient.ndim - 1))
    return (weights * activations).sum(0).relu().numpy()


def _call(model: nn.Module, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def _explain(model: nn.Module, inputs: Any, index: int | None) -> camtool.Explanation:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # maps may be empty
        try:
            found = camtool.explain(model, inputs, index)
        except camtool.NothingFoundError:  # random weights are sure of nothing
            found = camtool.explain(model, inputs, camtool.targets.Detection(0, confidence=0))
    return found[0] if isinstance(found, list) else found


def _read_channels_first(output: Tensor) -> Tensor:
    return output[0]


def _read_last_tokens(output: Tensor, height: int, width: int) -> Tensor:
    """Read tokens behind any prefix."""
    return output.reshape(-1, output.shape[-1])[-height * width :].T.unflatten(1, (height, width))


# ---------------------------------------------------------------------------------------------------------------- YOLO

_DETECTORS = ["yolov3-tiny", "yolov5n", "yolov6n", "yolov8n", "yolov8n-p2", "yolov8n-p6", "yolov8n-world"]
_DETECTORS += ["yolov9t", "yolov9c", "yolov10n", "yolo11n", "yolo12n", "yolo26n"]
_TASKS = [
    f"{version}-{task}" for version in ("yolov8n", "yolo11n", "yolo12n", "yolo26n") for task in ("seg", "pose", "obb")
]
_CLASSIFIERS = ["yolov8n-cls", "yolo11n-cls", "yolo12n-cls", "yolo26n-cls"]


_SEEDS = {"yolov8n-pose": 3}
"""Seeds of the weights, by default 0. With that one, the map of the only class of this model is empty."""


def build_yolo(name: str) -> nn.Module:
    """Build a model whose class scores depend on the image and differ between anchors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ultralytics import RTDETR, YOLO
    torch.manual_seed(_SEEDS.get(name, 0))
    model: nn.Module = (RTDETR if "rtdetr" in name else YOLO)(f"{name}.yaml").model.eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
            module.weight.data.fill_(1.7)
    for branches in (getattr(model.model[-1], each, None) for each in ("cv3", "one2one_cv3")):  # type: ignore[index]
        for branch in branches or ():
            nn.init.normal_(branch[-1].weight, std=0.3)
            nn.init.zeros_(branch[-1].bias)
    return model


def _get_yolo_scores(output: Any) -> Tensor:
    """Return the largest logit of each class over the anchors of the head that the model's table is made of."""
    head = output[1]
    is_selected = output[0].shape[-1] < output[0].shape[-2] if isinstance(output[0], Tensor) else False
    scores: Tensor = head.get("one2one" if is_selected else "one2many", head)["scores"][0]
    return scores.amax(1)


def _get_rtdetr_scores(output: Any) -> Tensor:
    """Return the largest logit of each class over the queries of the last decoder layer."""
    logits: Tensor = output[1][1][-1, 0]
    return logits.amax(0)


def _read_rtdetr(output: Tensor) -> Tensor:
    """Read a map, or tokens of all levels; those of the coarsest are last, 128 / 32 = 4 in rows and columns."""
    return output[0] if output.ndim == 4 else _read_last_tokens(output, 4, 4)


def _get_logits_of_pair(output: Any) -> Tensor:
    """Return the logits of Ultralytics' classifiers, which return probabilities and logits."""
    logits: Tensor = output[1][0]
    return logits


def _list_yolo() -> Iterator[tuple[str, Family]]:
    for name in [*_DETECTORS, *_TASKS, "yolov9c-seg", *_CLASSIFIERS, "rtdetr-l", "rtdetr-resnet50"]:
        get_scores = _get_yolo_scores
        if name in _CLASSIFIERS:
            get_scores = _get_logits_of_pair
        elif "rtdetr" in name:
            get_scores = _get_rtdetr_scores
        read = _read_rtdetr if "rtdetr" in name else _read_channels_first
        yield name, Family(partial(build_yolo, name), _make_photo, get_scores, read)


def _make_photo() -> Tensor:
    return torch.rand(1, 3, 128, 128, generator=torch.Generator().manual_seed(1))


# ---------------------------------------------------------------------------------------------- images and their texts


def _make_vlm_inputs(small: SmallVLM) -> Any:
    return small.make_inputs(torch.randn(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1)))


def _get_next_token(output: Any) -> Tensor:
    logits: Tensor = output.logits[0, -1]
    return logits


def _read_text(small: SmallVLM, output: Tensor) -> Tensor:
    """Read the positions of the image in the text."""
    assert small.grid is not None
    return output[0, small.positions].T.unflatten(1, small.grid)


def _list_vision_language() -> Iterator[tuple[str, Family]]:
    for name, small in WITH_GRID.items():
        make = partial(_make_vlm_inputs, small)
        yield name, Family(small.build, make, _get_next_token, partial(_read_text, small))
    for name, small in WITHOUT_GRID.items():  # explained in the vision tower, of 8 x 8 patches
        make = partial(_make_vlm_inputs, small)
        yield name, Family(small.build, make, _get_next_token, partial(_read_last_tokens, height=8, width=8))


def _make_texts(count: int) -> Any:
    torch.manual_seed(1)
    return open_vocabulary.make_inputs(count)


def _get_text_scores(output: Any) -> Tensor:
    """Return the largest logit of each text over the boxes."""
    logits: Tensor = output.logits[0]
    return logits.amax(0)


def _list_open_vocabulary() -> Iterator[tuple[str, Family]]:
    read = partial(_read_last_tokens, height=8, width=8)
    for name in ("OwlViT", "Owlv2"):
        for count in (1, 3):
            make = partial(_make_texts, count)
            yield (
                f"{name}, {count} text{'s' * (count > 1)}",
                Family(partial(open_vocabulary.build, name), make, _get_text_scores, read),
            )


# -------------------------------------------------------------------------------------------------------------- frames


def _build_frame_net(head: str) -> nn.Module:
    torch.manual_seed(0)
    return FrameNet(head).eval()


def _make_clip() -> Tensor:
    return torch.randn(1, 3, 5, 16, 24, generator=torch.Generator().manual_seed(1))


def _list_frame_networks() -> Iterator[tuple[str, Family]]:
    for head in ("mean", "max", "lstm"):
        # The rows of the batch are the frames, (T, C, h, w).
        read = partial(Tensor.transpose, dim0=0, dim1=1)
        yield f"{head} over frames", Family(partial(_build_frame_net, head), _make_clip, lambda output: output[0], read)


FAMILIES: dict[str, dict[str, Family]] = {
    "YOLO and RT-DETR of Ultralytics": dict(_list_yolo()),
    "vision-language models": dict(_list_vision_language()),
    "open-vocabulary detectors": dict(_list_open_vocabulary()),
    "image networks on the frames of clips": dict(_list_frame_networks()),
}
"""The models by group and by name."""
