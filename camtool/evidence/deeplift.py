"""DeepLIFT contributions of a layer's activations to the score, computed by captum."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from camtool.arguments.libraries import import_library
from camtool.errors import MethodError, raise_interrupt
from camtool.evidence.evidence import Evidence
from camtool.evidence.rescoring import score_activations_with_graph
from camtool.hooks.structures.modules import list_weights, read_tree
from camtool.hooks.tracing import trace


def compute_deeplift_contributions(evidence: Evidence) -> Tensor:
    """Return what each activation contributes to each row's score, by DeepLIFT with activations of zero as reference.

    captum's ``DeepLift`` computes them by the Rescale rule (Shrikumar et al. 2017, section 3.5.1) for activation
    functions that are modules and run once after the layer. It takes the gradient of all other operations. So the
    result is DeepLIFT's only if it sums to the change of the score, which the caller must check.

    captum sets hooks and attributes on the modules, so it works on a copy of the model that shares its weights.

    Returns:
        ``(R, C, *grid)``.

    Raises:
        MethodError: captum is not installed, the model cannot be copied, or captum fails on it.
    """
    deep_lift, model = _import_deep_lift(), _copy_model(evidence.model)
    modules = _find_modules_after_layer(evidence, model)
    tails = [_Tail(model, modules, evidence, row) for row in range(len(evidence.targets))]
    return torch.cat([_explain_row(deep_lift(tail), evidence, row) for row, tail in enumerate(tails)])


class _Tail(nn.Module):
    """From activations ``(M, C, *grid)`` of a row's image to the row's scores ``(M,)``.

    Its submodules, on which captum sets hooks, are those that run after the layer. The others have no gradient.
    """

    def __init__(self, model: nn.Module, modules: Sequence[nn.Module], evidence: Evidence, row: int) -> None:
        super().__init__()
        self.modules_after_layer = nn.ModuleList(modules)
        self._score = partial(score_activations_with_graph, evidence, row, model=model)

    def forward(self, activations: Tensor) -> Tensor:
        return self._score(activations)


def _import_deep_lift() -> Any:
    """Return captum's class; captum has no types."""
    package = "'camtool[captum]', or use method='ablationcam'"
    return import_library("captum.attr", "DeepLIFT of a nonlinear tail needs captum", package, MethodError).DeepLift


def _copy_model(model: nn.Module) -> nn.Module:
    """Return a copy that shares the weights, and whose activation functions do not work in place.

    captum's hooks cannot differentiate activation functions that overwrite their input.
    """
    try:
        copied = copy.deepcopy(model, {id(weight): weight for weight in list_weights(model)})
    except (RuntimeError, TypeError, ValueError, AttributeError, copy.Error) as error:
        raise_interrupt(error)
        raise MethodError(
            f"DeepLIFT works on a copy of the model, which cannot be copied ({error}); use method='ablationcam'."
        ) from error
    for module in read_tree(copied).modules:
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]
    return copied


def _find_modules_after_layer(evidence: Evidence, model: nn.Module) -> list[nn.Module]:
    """Return the modules of the copy without children that run after the observed call of the layer."""
    forward_pass = evidence.forward_pass
    with forward_pass.restore_autocast():
        calls = trace(model, forward_pass.select_inputs(0))
    observed = model.get_submodule(evidence.layer)
    ends = [index for index, call in enumerate(calls) if call.module is observed]
    after = [call.module for call in calls[ends[forward_pass.call_index] + 1 :]]
    return [module for module in dict.fromkeys(after) if not [*module.children()]]


def _explain_row(deep_lift: Any, evidence: Evidence, row: int) -> Tensor:
    """Return the contributions for one row, ``(1, C, *grid)``. captum's rules for softmax and pooling mix rows."""
    activations = evidence.activations[row : row + 1].clone().requires_grad_()
    with warnings.catch_warnings():
        # captum says that it sets hooks, which are on the copy here.
        warnings.filterwarnings("ignore", message=r"\s*Setting forward, backward hooks", category=UserWarning)
        try:
            contributions: Tensor = deep_lift.attribute(activations, torch.zeros_like(activations))
        except (RuntimeError, AssertionError) as error:
            raise_interrupt(error, torch.OutOfMemoryError)
            raise MethodError(
                f"captum's DeepLIFT fails on what follows layer {evidence.layer!r} ({error}). Each activation function "
                "must be a module that is called once. Use method='ablationcam' or 'shapleycam', or a later layer."
            ) from error
    return contributions.detach()
