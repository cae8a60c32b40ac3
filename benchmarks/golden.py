"""Explanations before and after a change, compared bit for bit: ``python -m benchmarks golden FILE``.

All methods explain twelve small networks with random weights, for two images and two targets each; with ``--coverage``
Grad-CAM also explains the architectures of the coverage benchmark. The first call writes maps, scores, warning codes,
layers and centers, as checksums, to the file. Later calls compare, and list each difference. Both calls must run on one
machine with the same libraries, as another processor rounds differently.
"""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torchvision
import typer
from torch import Tensor, nn

import camtool
from benchmarks.coverage import list_groups
from benchmarks.paired import describe_machine
from tests.helpers.band_nets import BandNet
from tests.helpers.nets import Attend, small_detector, staged
from tests.helpers.vision_transformers import make_tiny_vit
from tests.zoo import catalogue

_DETECTORS_METHODS = ("gradcam", "drise", "faithcam")
"""Methods for the detector, whose forward pass takes hundreds of times that of the other networks."""


def _build(name: str) -> nn.Module:
    return torchvision.models.get_model(name, weights=None, num_classes=7).eval()


def _build_attention() -> nn.Module:
    trunk = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, padding=1), Attend(6), nn.ReLU())
    return nn.Sequential(trunk, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)).eval()


def _build_signal_net() -> nn.Module:
    trunk = nn.Sequential(nn.Conv1d(2, 8, 7, stride=2, padding=3), nn.ReLU(), nn.Conv1d(8, 8, 3), nn.ReLU())
    return nn.Sequential(trunk, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 4)).eval()


_NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet18": (lambda: _build("resnet18"), (3, 64, 64)),
    "mobilenet_v2": (lambda: _build("mobilenet_v2"), (3, 64, 64)),
    "squeezenet1_1": (lambda: _build("squeezenet1_1"), (3, 64, 64)),
    "swin_t": (lambda: _build("swin_t"), (3, 64, 64)),
    "staged": (staged, (3, 16, 24)),
    "attention": (_build_attention, (3, 16, 24)),
    "vit": (make_tiny_vit, (3, 6, 8)),
    "vit, attention pooling": (lambda: make_tiny_vit(pooling="attention"), (3, 6, 8)),
    "five bands": (lambda: BandNet(5).eval(), (5, 12, 16)),
    "volume": (lambda: BandNet(1, axes=3).eval(), (1, 8, 10, 12)),
    "signal": (_build_signal_net, (2, 64)),
    "detector": (small_detector, (3, 96, 128)),
}
"""Name → a network and the shape of one image."""


def main(
    file: Annotated[Path, typer.Argument(help="File of the results; written if it is not there.")],
    *,
    coverage: Annotated[bool, typer.Option("--coverage", help="Also the architectures of the benchmark.")] = False,
) -> None:
    """Write what explanations give, or compare it with the file; end with 1 if anything differs."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    now: dict[str, Any] = {"machine": describe_machine(1)}
    for name, result in _iterate_results(coverage=coverage):
        now[name] = result
        if before is not None and before.get(name) != result:
            print(f"{name}\n  before {json.dumps(before.get(name))}\n  now    {json.dumps(result)}", flush=True)
    if before is None:
        file.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
        print(f"{len(now) - 1} results are in {file}.")
        return
    changed = [name for name, result in now.items() if before.get(name) != result]
    print(f"{len(changed)} of {len(now) - 1} results differ.")
    raise typer.Exit(bool(changed))


def _iterate_results(*, coverage: bool) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for name, (build, shape) in _NETS.items():
        torch.manual_seed(0)
        model = build()
        images = torch.rand(2, *shape, dtype=next(model.parameters()).dtype)
        targets = [[0, None], [1, 2]] if name != "detector" else [[None], [None]]
        for method in camtool.METHODS if name != "detector" else _DETECTORS_METHODS:
            torch.manual_seed(1)
            yield f"{name}, {method}", _describe(model, images, targets, method)
    for group, models in list_groups().items() if coverage else ():
        for name, entry in models.items():
            model = entry.build()
            image = catalogue.picture(2, entry.size, entry.size)
            yield f"{group}, {name}", _describe(model, image, [None], "gradcam")


def _describe(model: nn.Module, images: Tensor, targets: Any, method: str) -> list[dict[str, Any]]:
    """Return a description of each explanation, or the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            results = camtool.explain(model, images, targets, method=method)
        except camtool.CamtoolError as error:
            return [{"error": f"{type(error).__name__}: {error}"}]
    return [_describe_result(each) for each in _flatten(results)]


def _describe_result(result: camtool.Explanation) -> dict[str, Any]:
    return {
        "map": hashlib.sha256(np.ascontiguousarray(result.raw).tobytes()).hexdigest()[:16],
        "shape": list(result.raw.shape),
        "peak": float(result.raw.max()).hex(),
        "heatmap": hashlib.sha256(np.ascontiguousarray(result.heatmap).tobytes()).hexdigest()[:16],
        "score": float(result.score).hex(),
        "probability": None if result.probability is None else float(result.probability).hex(),
        "label": result.label,
        "index": result.index,
        "layer": result.layer,
        "warnings": [each.code for each in result.warnings],
        "centers": repr(result.centers),
    }


def _flatten(results: Any) -> list[camtool.Explanation]:
    return [each for part in results for each in _flatten(part)] if isinstance(results, list) else [results]


if __name__ == "__main__":
    typer.run(main)
