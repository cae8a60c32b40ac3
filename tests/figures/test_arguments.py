"""Errors of figures for invalid arguments and a missing library."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import camtool
from camtool import figures
from camtool.errors import CamtoolError, LayerError, TargetError
from tests.figures.drawing_helpers import make_explanation, make_photo

matplotlib = pytest.importorskip("matplotlib")
backend_agg = pytest.importorskip("matplotlib.backends.backend_agg")


@pytest.mark.parametrize(
    ("draw", "error", "match"),
    [
        (lambda n: figures.gallery([]), CamtoolError, "explanations holds nothing; pass results of camtool.explain"),
        (lambda n: figures.gallery("cat.jpg"), CamtoolError, "explanations holds str"),
        (
            lambda n: figures.gallery(make_explanation(), scale="sharde"),
            CamtoolError,
            r"scale must be one of .*, got 'sharde'.* Did you mean 'shared'",
        ),
        (
            lambda n: figures.gallery(make_explanation(), width="singel"),
            CamtoolError,
            "width 'singel'.* Did you mean 'single'",
        ),
        (lambda n: figures.gallery(make_explanation(), width=0), CamtoolError, "width is 0 inches"),
        (
            lambda n: figures.gallery(make_explanation(), columns=0),
            CamtoolError,
            "columns must be a whole number of 1 or more, or None, got 0",
        ),
        (
            lambda n: figures.gallery([make_explanation()] * 99, columns=99),
            CamtoolError,
            "columns is 99, but only 27 fit; pass 27 or less",
        ),
        (
            lambda n: figures.feature_maps(n, torch.rand(1, 3, 8, 8), columns=99, width="single"),
            CamtoolError,
            r"columns is 99, but only \d+ fit",
        ),
        (lambda n: figures.gallery(make_explanation(), titles=["a", "b"]), CamtoolError, "titles has 2 entries for 1"),
        (lambda n: figures.gallery(make_explanation(), colormap="trubo"), CamtoolError, "Did you mean 'turbo'"),
        (
            lambda n: figures.comparison([make_explanation(), make_explanation(pixels=make_photo(9, 9))]),
            CamtoolError,
            "different images",
        ),
        (lambda n: figures.methods_grid(n, [], ["gradcam"]), CamtoolError, "images is empty"),
        (lambda n: figures.methods_grid(n, torch.rand(1, 3, 8, 8), []), CamtoolError, "method asks for nothing"),
        (
            lambda n: figures.methods_grid(n, torch.rand(1, 3, 8, 8), ["gradcam"], [[0, 1]]),
            CamtoolError,
            "several targets for one image",
        ),
        (lambda n: figures.layers_sweep(n, torch.rand(1, 3, 8, 8), {}), CamtoolError, "layers is empty"),
        (
            lambda n: figures.classes_grid(n, torch.rand(1, 3, 8, 8), 0),
            CamtoolError,
            "k must be a whole number of 1 or more, got 0",
        ),
        (lambda n: figures.feature_maps(n, torch.rand(2, 3, 8, 8)), CamtoolError, "holds 2 images"),
        (
            lambda n: figures.feature_maps(n, torch.rand(1, 3, 8, 8), order="strong"),
            CamtoolError,
            r"order must be one of .*, got 'strong'.* Did you mean 'strongest'",
        ),
        (
            lambda n: figures.feature_maps(n, torch.rand(1, 3, 8, 8), channels=0),
            CamtoolError,
            r"channels must be .* or None, got 0",
        ),
        (
            lambda n: figures.feature_maps(n, torch.rand(1, 3, 8, 8), target_class=1),
            CamtoolError,
            "target_class has no effect with order='first'",
        ),
        (
            lambda n: figures.feature_maps(
                n, torch.rand(1, 3, 8, 8), order="class", target_class=camtool.targets.Top(2)
            ),
            TargetError,
            "gives 2 targets",
        ),
        (
            lambda n: figures.kernels(n, "head"),
            LayerError,
            "'head' is a Linear, which has no filters; choose from first, block.1",
        ),
        (lambda n: figures.kernels(n, "frist"), LayerError, "no layer 'frist'.* Did you mean 'first'"),
        (
            lambda n: figures.feature_maps(n, torch.rand(1, 3, 8, 8), []),
            LayerError,
            "layers is empty; pass one or more",
        ),
        (
            lambda n: next(figures.kernel_pages(nn.Sequential(nn.ReLU()), "0")),
            LayerError,
            r"'0' is a ReLU, which has no filters\.",
        ),
        (lambda n: next(figures.kernel_pages(n, "head*")), LayerError, "none of these layers is a convolution"),
        (lambda n: next(figures.kernel_pages(n, ["first", "head"])), LayerError, "'head' is a Linear"),
        (
            lambda n: figures.feature_maps(nn.Flatten(), torch.rand(1, 3, 8, 8)),
            LayerError,
            "layers='conv', but the model has no convolution; pass names",
        ),
        (lambda n: figures.kernels(nn.Linear(2, 2)), LayerError, "the model has no convolution"),
        (lambda n: figures.kernels(n, filters=0), CamtoolError, r"filters must be .* or None, got 0"),
        (
            lambda n: figures.save(figures.gallery(make_explanation()), "a.gif"),
            CamtoolError,
            "not written as '.gif'.*pdf, .svg or .png",
        ),
        (
            lambda n: figures.save(figures.gallery(make_explanation()), "a.png", dpi=99999),
            CamtoolError,
            r"pass less than \d+, or",
        ),
    ],
)
def test_invalid_arguments_raise(net, draw, error, match):
    with pytest.raises(error, match=match):
        draw(net)


def test_missing_matplotlib_raises_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "camtool.figures.canvas", raising=False)
    monkeypatch.delattr(figures, "canvas", raising=False)
    with pytest.raises(CamtoolError, match=r"figures need matplotlib: pip install 'camtool\[figures\]'"):
        figures.gallery(make_explanation())
    with pytest.raises(CamtoolError, match="figures need matplotlib"):
        figures.kernels(nn.Conv2d(1, 1, 1))
