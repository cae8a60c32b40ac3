"""Evidence: what one forward lets a method see, and nothing else.

A method is a function from :class:`Evidence` to raw maps. What costs something is done when it is first asked for:
a method that never reads ``gradients`` pays for no backward pass, and one that never reads ``head`` needs no such head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from camtool import targets
from camtool.errors import LayerError, MethodError
from camtool.hooks import Inputs, Observation, call, left_as_found, map_tensors, observe, resume
from camtool.layers import Layer

__all__ = ["Evidence", "LinearHead", "Scene"]


@dataclass(frozen=True)
class LinearHead:
    """A head that averages maps over the positions and weighs them linearly: ``output = weight @ mean(maps) + bias``.

    Attributes:
        weight: ``(K, C)``, for K classes.
        bias: ``(K,)``.
        maps: ``(N, C, *grid)``, what is averaged: the layer's activations, or their positive part.
    """

    weight: Tensor
    bias: Tensor
    maps: Tensor


class Scene:
    """One forward of one batch, seen at one or more layers. It can be asked about any number of targets.

    Args:
        model: Any module; it is left as it was found.
        inputs: What the model is called with.
        layers: Where to look, as :func:`camtool.layers.resolve` gives them.
    """

    def __init__(self, model: nn.Module, inputs: Inputs, layers: Sequence[Layer]) -> None:
        self.model, self.inputs, self.layers = model, inputs, list(layers)
        self.observation: Observation = observe(model, [layer.name for layer in layers], inputs)
        self.logits: Tensor = targets.logits(self.observation.output).detach()

    def evidence(self, wanted: Sequence[targets.Target]) -> list[Evidence]:
        """The evidence about one target an image, at each of the layers."""
        with torch.inference_mode(False), torch.enable_grad():
            scores = targets.score(wanted, self.observation.output)
        question = _Question(self, list(wanted), scores)
        return [Evidence(question, i) for i in range(len(self.layers))]

    def tensor(self, layer: Layer) -> Tensor:
        """What the layer returned at its last call, in its own layout, on the graph."""
        return self.observation.calls[layer.name][-1]


@dataclass
class _Question:
    """One target an image, on a scene; the backward pass is run once for all layers, when first asked for."""

    scene: Scene
    targets: list[targets.Target]
    scores: Tensor

    @cached_property
    def gradients(self) -> list[Tensor]:
        if not self.scores.requires_grad:
            raise LayerError(
                "the score does not depend on the layers "
                f"{[layer.name for layer in self.scene.layers]} through a gradient; choose a layer that leads to it, "
                "and a target that does not detach the output."
            )
        tensors = [self.scene.tensor(layer) for layer in self.scene.layers]
        with torch.inference_mode(False), torch.enable_grad():
            # Other targets may ask the same graph again, so it is kept; it goes when the scene goes.
            return list(
                torch.autograd.grad(
                    self.scores,
                    tensors,
                    grad_outputs=torch.ones_like(self.scores),
                    retain_graph=True,
                    materialize_grads=True,
                )
            )


class Evidence:
    """What a method may look at: one layer's activations, and whatever else it asks for.

    Maps are in the order ``(N, C, *grid)`` whatever the layer's own layout, in float32 at least: half precision is
    widened, so that a sum over positions does not lose them.
    """

    def __init__(self, question: _Question, index: int) -> None:
        self._question, self._index = question, index
        self._layer = question.scene.layers[index]

    @cached_property
    def activations(self) -> Tensor:
        """What the layer returned, ``(N, C, *grid)``."""
        return self._on_grid(self._question.scene.tensor(self._layer).detach())

    @cached_property
    def gradients(self) -> Tensor:
        """How each image's score depends on the activations, ``(N, C, *grid)``.

        Raises:
            LayerError: No gradient can pass from the score to the layer.
        """
        return self._on_grid(self._question.gradients[self._index])

    @property
    def scores(self) -> Tensor:
        """The score of each image's target, ``(N,)``."""
        return self._question.scores.detach()

    @property
    def layer(self) -> str:
        """The layer's dotted name."""
        return self._layer.name

    @property
    def gradients_used(self) -> bool:
        """Whether a method has asked for the gradients."""
        return "gradients" in self.__dict__

    @cached_property
    def silent(self) -> list[bool]:
        """For each image, whether the gradient is zero everywhere; asking counts as using the gradients."""
        quiet: list[bool] = self.gradients.flatten(1).any(1).logical_not().tolist()
        return quiet

    @property
    def times_run(self) -> int:
        """How often the layer ran in the forward; the last time is what is looked at."""
        return len(self._question.scene.observation.calls[self._layer.name])

    @cached_property
    def head(self) -> LinearHead:
        """The linear layer behind global average pooling.

        It is found by arithmetic, not by name: the linear layer (or 1 x 1 convolution) that, given the mean of these
        activations or of their positive part, gives exactly what the model returned.

        Raises:
            MethodError: The model has no such head behind this layer.
        """
        return _linear_head(self._question.scene.model, self.activations, self._question.scene.logits)

    @cached_property
    def head_weights(self) -> Tensor:
        """How each image's score depends on each pooled channel, ``(N, C)``: the class' row of the head's weights.

        Raises:
            MethodError: See :attr:`head`.
        """
        head = self.head
        with torch.inference_mode(False), torch.enable_grad():
            logits = self._question.scene.logits.clone().requires_grad_()
            scores = targets.score(self._question.targets, logits)
            (by_class,) = torch.autograd.grad(scores.sum(), logits)
        return by_class.to(head.weight) @ head.weight

    def score(self, inputs: Inputs, image: int = 0) -> Tensor:
        """Run the model anew, without hooks or a graph, and score the target of ``image``: ``(M,)`` for M inputs."""
        model = self._question.scene.model
        with left_as_found(model), torch.no_grad():
            return self._scored(call(model, inputs), image)

    def tail(self, activations: Tensor, image: int = 0) -> Tensor:
        """Score variants of the activations: the trunk runs once on ``image``, only what follows the layer on all.

        Args:
            activations: ``(M, C, *grid)``, M variants of ``image``'s activations.
            image: Which image of the batch they are variants of.

        Returns:
            The scores ``(M,)``.
        """
        scene = self._question.scene
        own = scene.tensor(self._layer)[image : image + 1].detach()
        variants = self._layer.layout.from_grid(activations.to(own.dtype), own)
        one: Inputs = map_tensors(scene.inputs, lambda tensor: tensor[image : image + 1])
        output = resume(scene.model, self._layer.name, variants, one, nth=self.times_run - 1)
        return self._scored(output, image)

    def _scored(self, output: Any, image: int) -> Tensor:
        count = len(targets.logits(output))
        return targets.score([self._question.targets[image]] * count, output)

    def _on_grid(self, tensor: Tensor) -> Tensor:
        maps = self._layer.layout.to_grid(tensor)
        return maps.float() if maps.dtype in (torch.float16, torch.bfloat16) else maps


def _linear_head(model: nn.Module, activations: Tensor, logits: Tensor) -> LinearHead:
    for maps in (activations, activations.relu()):
        pooled = maps.flatten(2).mean(2)
        for weight, bias in _linear_layers(model, channels=pooled.shape[1], classes=logits.shape[1]):
            expected = (pooled @ weight.T + bias).to(logits.dtype)
            if logits.ndim == 2 and _same_up_to_rounding(expected, logits):
                return LinearHead(weight, bias, maps)
    raise MethodError(
        "method 'cam' needs a model that ends in global average pooling and one linear layer, right behind the layer "
        f"that is looked at (its {activations.shape[1]} channels to {logits.shape[1]} classes); this one does not. "
        "Use method='gradcam' or 'layercam', which work on any head."
    )


def _linear_layers(model: nn.Module, *, channels: int, classes: int) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias, in float32 at least, of the linear layers and 1 x 1 convolutions of this size."""
    found = []
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.shape[:2] == (classes, channels) and weight[0, 0].numel() == 1:
            wide = weight.detach().flatten(1)
            wide = wide.float() if wide.dtype in (torch.float16, torch.bfloat16) else wide
            bias = getattr(module, "bias", None)
            found.append((wide, wide.new_zeros(classes) if bias is None else bias.detach().to(wide)))
    return found


def _same_up_to_rounding(one: Tensor, other: Tensor) -> bool:
    # A half-precision value is rounded to 2 or 3 digits, and more leeway would let another kind of pooling pass.
    steps = 4 if other.dtype in (torch.float16, torch.bfloat16) else 64
    tolerance = steps * torch.finfo(other.dtype).eps * float(other.abs().amax())
    return bool((one - other).abs().amax() <= tolerance)
