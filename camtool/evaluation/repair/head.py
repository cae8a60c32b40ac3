"""The last linear layer of a model: found by arithmetic, fitted again, and with the norms before it trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from camtool.errors import CamtoolError, MetricError
from camtool.evidence.class_vectors import find_linear_layers, is_same_up_to_rounding
from camtool.hooks.observation import run_and_keep_input
from camtool.hooks.structures.modules import find_module
from camtool.maps import upcast
from camtool.outputs.class_scores import find_logits

# How strongly the weights are pulled towards the old ones, for features of standard deviation 1. Chosen on four draws
# of 60 scenes of 3 classes: with 0.01 classes without photos are recognized more (87 instead of 71 and 62 %), but
# removing the mark still changed the probability of hearts by 12 points.
PULL = 0.002

# How strongly the outputs for an image as it is and changed are pulled together. Without it removing the mark still
# changed the probability of hearts by up to 36 points. Chosen on four networks of ``python -m benchmarks repair``: with
# 1.0 their accuracy is 2 to 5 points lower.
PAIRING = 0.3

# Smallest standard deviation of a feature, as a share of the largest one: one that is constant here gets no weight.
_LEAST_DEVIATION = 1e-3

# Steps of the optimizer of the last layer.
_STEPS = 200

# Passes over the images, and the step of Adam, for norm layers.
_EPOCHS, _RATE = 5, 1e-3

# From the outputs of the layer to the scores of the model.
_LINKS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "logits": lambda logits: logits,
    "softmax": lambda logits: logits.softmax(1),
    "sigmoid": torch.sigmoid,
}

_NORMS: tuple[type[nn.Module], ...] = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.LayerNorm, nn.GroupNorm),
    *([nn.RMSNorm] if hasattr(nn, "RMSNorm") else []),
)


class Linear(NamedTuple):
    """Weight ``(K, C)`` and bias ``(K,)`` of a layer; without a bias it is None."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, features: Tensor) -> Tensor:
        """Return the outputs ``(N, K)`` for features ``(N, C)``."""
        outputs = features @ self.weight.T
        return outputs if self.bias is None else outputs + self.bias

    def compute_logits(self, features: Tensor) -> Tensor:
        """Return the logits ``(N, K)`` for features ``(N, C)``, of a single output those of both answers."""
        return _split_single(self(features))


class Examples(NamedTuple):
    """The images that a head learns from.

    Attributes:
        features: ``(M, C)``, what the head receives.
        labels: ``(M, K)``, 1 for each label of the image, else 0.
        differences: ``(P, C)``, what the head receives for a changed image minus that for the image as it is.
        is_independent: True if an image may have several labels; else all classes count alike.
    """

    features: Tensor
    labels: Tensor
    differences: Tensor
    is_independent: bool

    @property
    def shares(self) -> Tensor:
        """The share of the loss that each image has, ``(M,)``."""
        if self.is_independent:
            return torch.full((len(self.labels),), 1 / len(self.labels)).double()
        shares = (self.labels / self.labels.sum(0).clamp_min(1)).sum(1)
        return shares / shares.sum()

    def select_outputs(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the rows of a number of outputs that are fitted, and the labels that they answer.

        A class without images stays as it is, and is not compared.
        """
        if count == 1:
            return torch.zeros(1, dtype=torch.long), self.labels
        rows = self.labels.any(0).nonzero().flatten()
        return rows, self.labels[:, rows]

    def measure_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each image, ``(M,)``: the cross entropy, or the sum of that of each label."""
        if self.is_independent:
            return binary_cross_entropy_with_logits(outputs, labels, reduction="none").sum(1)
        return cross_entropy(_split_single(outputs), labels, reduction="none")


def _split_single(outputs: Tensor) -> Tensor:
    """Return outputs, of a single one ``z`` the logits ``-z / 2`` and ``z / 2`` of both answers."""
    return torch.cat([-outputs, outputs], 1) / 2 if outputs.shape[1] == 1 else outputs


@dataclass(frozen=True)
class ScoreHead:
    """The layer whose outputs are the scores of the model.

    Attributes:
        layer: The name of the layer.
        link: From its outputs to the scores, a key of :data:`_LINKS`.
    """

    layer: str
    link: str

    def read(self, model: nn.Module) -> Linear:
        """Return weight and bias in a model, in float64 and on the CPU, without a graph."""
        weight, bias = self.find_parameters(model)
        return Linear(weight.detach().double().cpu(), None if bias is None else bias.detach().double().cpu())

    def find_parameters(self, model: nn.Module) -> Linear:
        """Return weight and bias of the layer itself."""
        module: Any = find_module(model, self.layer)
        return Linear(module.weight.flatten(1), getattr(module, "bias", None))

    def write(self, model: nn.Module, linear: Linear) -> None:
        """Set weight and bias in a model."""
        module: Any = find_module(model, self.layer)
        with torch.no_grad():
            module.weight.copy_(linear.weight.reshape(module.weight.shape))
            if linear.bias is not None:
                module.bias.copy_(linear.bias)

    def read_features(self, model: nn.Module, inputs: Tensor, *, grad: bool = False) -> tuple[Tensor, Tensor]:
        """Return what the layer receives for inputs, averaged over a grid, ``(N, C)``, and the scores ``(N, K)``.

        Raises:
            CamtoolError: The layer did not run once for all images, or received something else.
        """
        output, received = run_and_keep_input(model, self.layer, inputs, grad=grad)
        width = self.find_parameters(model).weight.shape[1]
        if len(received) != 1 or received[0].shape[:2] != (len(inputs), width):
            raise MetricError(f"model: layer {self.layer!r} did not run once for each image.")
        return upcast(received[0].flatten(2).mean(2) if received[0].ndim > 2 else received[0]), find_logits(output)

    def fits(self, model: nn.Module, inputs: Tensor) -> bool:
        """Return True if the scores of a model are those of its layer, up to rounding."""
        features, scores = self.read_features(model, inputs)
        outputs = self.read(model)(features.double().cpu())
        return is_same_up_to_rounding(_LINKS[self.link](outputs).to(scores), scores)

    def replace(self, old: nn.Module, new: nn.Module, linear: Linear, inputs: Tensor) -> None:
        """Set weight and bias in a copy of a model.

        Args:
            old: The model.
            new: The copy.
            linear: Weight and bias.
            inputs: Inputs by which this is checked.

        Raises:
            MetricError: The weights are computed from others, as by ``weight_norm``, or used elsewhere in the model.
        """
        self.write(new, linear)
        features, changed = (self.read_features(model, inputs)[0] for model in (old, new))
        kept = self.read(new).weight.to(self.find_parameters(new).weight)
        if not is_same_up_to_rounding(linear.weight.to(kept), kept):
            raise MetricError(
                f"model: the weights of layer {self.layer!r} are computed from others (weight_norm, spectral_norm), so "
                "they cannot be set; remove that first, e.g. with torch.nn.utils.parametrize.remove_parametrizations."
            )
        if not (torch.equal(features, changed) and self.fits(new, inputs)):
            raise MetricError(
                f"model: the weights of layer {self.layer!r} are used elsewhere in it too (tied weights), so setting "
                "them changes what it receives; give a model with its own last layer, or train with camtool.losses."
            )


def find_score_head(model: nn.Module, inputs: Tensor, classes: int) -> ScoreHead:
    """Return the linear layer, or 1 x 1 convolution, whose outputs are the scores, found by arithmetic.

    Args:
        model: The model.
        inputs: Its inputs for some images.
        classes: The number of scores of an image.

    Raises:
        MetricError: There is none.
    """
    for head in (ScoreHead(layer, link) for layer in find_linear_layers(model, classes=classes) for link in _LINKS):
        with suppress(CamtoolError):  # it did not run, or not on features of images
            if head.fits(model, inputs):
                return head
    raise MetricError(
        "model: no linear layer or 1 x 1 convolution returns its scores, so there is no last layer to fit again (a "
        "zero-shot head compares images with texts, several heads may be averaged, SqueezeNet has a ReLU behind it, a "
        "quantized layer has no weights); "
        "give a model that ends in one, or train with camtool.losses."
    )


def refit(old: Linear, examples: Examples) -> Linear:
    """Return a head that is fitted to examples from where it was, with a small pull towards its old weights.

    It minimizes the cross entropy, plus :data:`PULL` times the squared change of the weights for standardized features,
    plus :data:`PAIRING` times the mean squared change of the outputs by a change of an image, by L-BFGS.
    """
    features, shares, differences = examples.features, examples.shares, examples.differences
    rows, labels = examples.select_outputs(len(old.weight))
    mean = features.mean(0) if old.bias is not None else torch.zeros(features.shape[1]).double()
    deviation = features.std(0)
    deviation = deviation.clamp_min(_LEAST_DEVIATION * float(deviation.max()))
    standard = (features - mean) / deviation
    base, base_differences = old(features)[:, rows], differences @ old.weight[rows].T
    change = torch.zeros(len(rows), features.shape[1]).double().requires_grad_()
    offset = torch.zeros(len(rows)).double().requires_grad_(old.bias is not None)
    parameters = [change, offset] if old.bias is not None else [change]
    optimizer = torch.optim.LBFGS(parameters, max_iter=_STEPS, line_search_fn="strong_wolfe")

    def compute_loss() -> Tensor:
        optimizer.zero_grad()
        losses = examples.measure_losses(base + standard @ change.T + offset, labels)
        changes = base_differences + differences / deviation @ change.T
        pairing = changes.square().sum() / max(1, len(changes))
        loss: Tensor = (shares * losses).sum() + PULL * change.square().sum() + PAIRING * pairing
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(compute_loss)
    step = change.detach() / deviation
    weight = old.weight.index_add(0, rows, step)
    if old.bias is None:
        return Linear(weight, None)
    return Linear(weight, old.bias.index_add(0, rows, offset.detach() - step @ mean))


def list_norms(model: nn.Module) -> list[nn.Parameter]:
    """Return the affine parameters of all norm layers."""
    norms = (module for module in model.modules() if isinstance(module, _NORMS))
    return [parameter for norm in norms for parameter in norm.parameters(recurse=False)]


def train_norms(
    model: nn.Module, head: ScoreHead, examples: Examples, iterate: Callable[[int], Iterable[tuple[Tensor, list[int]]]]
) -> None:
    """Train the affine parameters of norm layers, and the last layer, in place; all else stays as it is.

    Args:
        model: The model.
        head: Its last layer.
        examples: What it learns.
        iterate: Yields for the number of an epoch batches of inputs, and the row of each in the examples.

    Raises:
        MetricError: There are no norm layers with parameters.
    """
    norms = list_norms(model)
    if not norms:
        raise MetricError("layers: the model has no norm layers with parameters; give layers='last'.")
    trained = [*norms, *find_module(model, head.layer).parameters(recurse=False)]
    frozen = [parameter for parameter in trained if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    outputs, labels = examples.select_outputs(len(head.read(model).weight))
    optimizer = torch.optim.Adam(trained, _RATE)
    for inputs, rows in (batch for epoch in range(_EPOCHS) for batch in iterate(epoch)):
        features, _ = head.read_features(model, inputs, grad=True)
        with torch.enable_grad():
            scores = head.find_parameters(model)(features)[:, outputs]
            losses = examples.measure_losses(scores, labels[rows].to(scores))
            # As a mean over all images, whatever the number of images in a batch.
            loss = (examples.shares[rows].to(losses) * losses).sum() * len(labels) / len(rows)
        for parameter, gradient in zip(trained, torch.autograd.grad(loss, trained), strict=True):
            parameter.grad = gradient
        optimizer.step()
    optimizer.zero_grad()  # sets them to None
    for parameter in frozen:
        parameter.requires_grad_(False)
