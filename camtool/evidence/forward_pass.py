"""One forward pass of a batch: the model's output, the outputs of the chosen layers, and derived data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from camtool import targets
from camtool.errors import CamtoolError, ForwardError, LayerError
from camtool.evidence.class_vectors import find_class_vectors
from camtool.evidence.layer_plan import LayerPlan, get_layer_plan
from camtool.geometry.cell_centers import Placement
from camtool.hooks.attention.branches import CapturedBranches, capture_branches
from camtool.hooks.attention.capture import AttentionCall, CapturedAttention, capture_attention, visit_attention
from camtool.hooks.chunks import compute_chunk_size, count_largest_output
from camtool.hooks.fast_repeated_passes import FoldedModel
from camtool.hooks.final_operation import find_final_operation
from camtool.hooks.model_passes import compute_row_gradients, compute_row_products, describe_missing_gradient, run_model
from camtool.hooks.norm_gradients import find_batch_norms
from camtool.hooks.observation import Observation, Runner, get_call, run_with_hooks
from camtool.hooks.registration import list_foreign_hooks
from camtool.hooks.state.guard import enable_gradients, guard
from camtool.hooks.structures.caches import remember_for_model
from camtool.hooks.structures.modules import WeightStates, lacks_gradients, list_weights, read_tree
from camtool.hooks.structures.nested_tensors import ModelInputs, find_main_tensor, map_batch
from camtool.hooks.tracing import trace
from camtool.layers.centers import LayerPlace, find_place
from camtool.layers.depths import Depths
from camtool.layers.layouts import Layer
from camtool.maps import upcast
from camtool.outputs import class_count, class_scores, predictions
from camtool.outputs.detections import Detections
from camtool.progress import follow_step


@dataclass(eq=False)
class ScoredTargets:
    """Targets with their scores on one forward pass, and the layer outputs that the scores depend on.

    Attributes:
        targets: One target per row.
        images: The index of each row's image.
        scores: Each row's score, ``(R,)``, on the graph.
        layer_outputs: Layer name to its output ``(N, ...)``, on the graph, in the layer's own layout.
        indices: The index of each row's image in ``layer_outputs``.
        has_norms: Whether batch norms may follow the layers, see :mod:`camtool.hooks.norm_gradients`.
        find_reason: Runs the model and returns why scores have no graph, if it shows that; ``None`` if they have one.
    """

    targets: list[targets.Target]
    images: list[int]
    scores: Tensor
    layer_outputs: dict[str, Tensor]
    indices: list[int]
    has_norms: bool = True
    _gradients: dict[str, Tensor] = field(default_factory=dict)
    find_reason: Callable[[], str | None] | None = None

    def compute_gradients(self, layer: str) -> Tensor:
        """Return the gradient of each row's score with respect to a layer's output for the row's image, ``(R, ...)``.

        The first call runs one backward pass to all layers; later calls reuse its result.

        Raises:
            LayerError: The scores do not depend on the layers through a gradient.
        """
        if not self._gradients:
            if not self.scores.requires_grad:
                self._raise_no_gradient()
            tensors = list(self.layer_outputs.values())
            gradients = compute_row_gradients(self.scores, self.indices, tensors, has_norms=self.has_norms)
            self._gradients.update(zip(self.layer_outputs, gradients, strict=True))
        return self._gradients[layer]

    def select(self, rows: Sequence[int]) -> ScoredTargets:
        """Return some of the rows, with the gradients that are computed already."""
        index = list(rows)
        with enable_gradients():
            scores = self.scores[index]
        return replace(
            self,
            targets=[self.targets[row] for row in index],
            images=[self.images[row] for row in index],
            scores=scores,
            indices=[self.indices[row] for row in index],
            _gradients={layer: gradient[index] for layer, gradient in self._gradients.items()},
        )

    def hessian_vector_product(self, layer: str, direction: Tensor) -> Tensor:
        """Return the Hessian of each row's score with respect to a layer's output, times the row's direction.

        Args:
            layer: The layer's name.
            direction: ``(R, ...)``, in the layer's own layout.

        Returns:
            ``(R, ...)``.

        Raises:
            LayerError: The scores do not depend on the layers through a gradient.
            RuntimeError: Torch has no second derivative of an operation after the layer.
        """
        if not self.scores.requires_grad:
            self._raise_no_gradient()
        return compute_row_products(self.scores, self.indices, self.layer_outputs[layer], direction)

    def _raise_no_gradient(self) -> NoReturn:
        reason = None if self.find_reason is None else self.find_reason()
        raise LayerError(
            f"the score does not depend on the layers {list(self.layer_outputs)} through a gradient; "
            f"{reason or 'choose a layer that leads to it, and a target that does not detach the output'}."
        )


class Classes(NamedTuple):
    """Probabilities and top classes of a forward pass.

    Attributes:
        probabilities: ``(N, K, ...)`` in float32 or wider; ``None`` where there are none.
        predicted: The index of the top class of each image; ``None`` where the model predicts no class of the image, as
            only classifiers do, or where its scores are not finite.
    """

    probabilities: Tensor | None
    predicted: list[int | None]


class _BlankOutputs(NamedTuple):
    """The outputs of layers for a blank image, with the input's shape and type, and the states of the weights."""

    key: object
    outputs: dict[str, Tensor]
    weights: WeightStates


class SeveralImagesError(LayerError):
    """A layer does not return one row for each of several images, or has other places for each."""


@dataclass(frozen=True, eq=False)
class PassSettings:
    """Settings of a forward pass, beside the model, its inputs and the layers.

    Attributes:
        black: ``(C,)``, a black pixel as the model gets it; ``None`` where it is not known.
        call_index: The call of a layer to observe if it runs several times: 0 is the first, -1 the last. ``None`` is
            the last, too; the user then gets a warning that there are others.
        placement: Where the cells of a layer lie in the image input.
        depths: Other layers on the way to each layer that are observed as well, see
            :func:`camtool.layers.depths.find_depths`; by default none.
        score: The user's own score, which decides which layer is best.
    """

    black: Tensor | None = None
    call_index: int | None = None
    placement: Placement = "centers"
    depths: Depths = 0
    score: class_scores.UserScore | None = None


_DEFAULT_SETTINGS = PassSettings()


@dataclass(eq=False, repr=False)
class ForwardPass:
    """One forward pass of one batch, observed at zero or more layers. Any number of targets can be scored on it.

    :func:`run_forward_pass` runs the model and makes it.

    Attributes:
        model: The model.
        inputs: The model's inputs.
        main_input: The image input ``(N, C, *size)``, the tensor among the inputs.
        image_input: The image input, detached.
        plan: What is known about the model with inputs of this shape: the layers to observe.
        observation: What the model and the layers returned.
        runner: What ran the model.
        settings: The settings.
        call_index: That of the settings, -1 for ``None``.
        layers: The layers to explain.
        layer_outputs: Layer name to the output of the observed call, in the layer's own layout, on the graph.
        call_counts: Layer name to the number of its calls.
        output: The model's output, on the graph that starts at the earliest layer.
        predictions: The output by image: scores ``(N, K, ...)``, or detections.
        class_count: The number of classes; ``None`` where it is not known.
    """

    model: nn.Module
    inputs: ModelInputs
    main_input: Tensor
    plan: LayerPlan
    observation: Observation
    runner: Runner
    settings: PassSettings
    call_index: int
    # Filled when first needed. The tuple tells that there are no class vectors, (None,), from not yet known, None.
    _scored: ScoredTargets | None = None
    _link: class_scores.FoundLink | None = None
    _class_vectors: tuple[Tensor | None] | None = None
    _branches: CapturedBranches | None = None
    _folded_model: FoldedModel | None = None
    _attention: dict[bool, CapturedAttention] = field(default_factory=dict)
    _tail_chunk_sizes: dict[str, int] = field(default_factory=dict)
    _places: dict[str, LayerPlace] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.image_input, self.layers, calls = self.main_input.detach(), list(self.plan.layers), self.observation.calls
        self.call_counts = {name: len(of_layer) for name, of_layer in calls.items()}
        self.layer_outputs = {name: get_call(name, of_layer, self.call_index) for name, of_layer in calls.items()}
        if self.runner not in self.plan.norms:
            self.plan.norms[self.runner] = bool(find_batch_norms(self.observation.output))
        self.output: Any = predictions.to_batch(self.observation.output, len(self.main_input))
        self.predictions = predictions.get_predictions(self.output, self.model)
        by_class = self.predictions if isinstance(self.predictions, Tensor) else None
        self.class_count = self._count_classes() if by_class is None else by_class.shape[1]
        # Further passes must run in the autocast mode of this one, also if the caller has left it by then.
        self._device_type = device_type = self.predictions[0].device.type
        self._autocast = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)

    def _count_classes(self) -> int | None:
        """Return the number of classes of a detector; that of an open vocabulary shows in the output alone."""
        of_images = [detections.class_count for detections in self.predictions if isinstance(detections, Detections)]
        return of_images[0] if of_images and of_images[0] is not None else class_count.get_class_count(self.model)

    @property
    def logits(self) -> Tensor:
        """The scores of the classes, ``(N, K, ...)``.

        Raises:
            TargetError: The model returned detections.
        """
        return self.predictions if isinstance(self.predictions, Tensor) else class_scores.find_logits(self.output)

    def fits_plan(self) -> bool:
        """Return whether the layers returned what the plan of the model expects of them."""
        outputs, count = self.layer_outputs, len(self.image_input)
        return all(layer.layout.fits(outputs[layer.name].shape, count) for layer in self.plan.observed)

    def score_rows(self, wanted: Sequence[targets.Target], images: Sequence[int]) -> ScoredTargets:
        """Return the targets with their scores.

        The latest result is kept, so that several methods and layers share the gradients of the same targets.

        Args:
            wanted: One target per row.
            images: The index of each row's image.
        """
        # Targets are frozen dataclasses, so equal ones compare equal; a user's own target compares by identity.
        latest = self._scored
        if latest is None or latest.targets != list(wanted) or latest.images != list(images):
            latest = self._scored = self._score_rows(list(wanted), list(images))
        return latest

    def _score_rows(self, wanted: list[targets.Target], images: list[int]) -> ScoredTargets:
        output, outputs, indices = self.output, self.layer_outputs, images
        repeat, missing_graph = self.observation.repeat, self.observation.missing_graph
        if repeat is not None and len(set(images)) < len(images):
            # Each row gets a copy of its image's outputs, without a forward pass: one backward pass serves all.
            repeated, indices = repeat(images, [layer.name for layer in self.layers]), [*range(len(images))]
            output = predictions.to_batch(repeated.output, len(images))
            outputs = {name: get_call(name, calls, self.call_index) for name, calls in repeated.calls.items()}
        with enable_gradients():
            scores = targets.score_targets(wanted, output, indices)
        outputs = {layer.name: outputs[layer.name] for layer in self.layers}
        scored = ScoredTargets(wanted, images, scores, outputs, indices, self.plan.norms[self.runner])
        if self.layers and not scores.requires_grad and not lacks_gradients(self.model):
            find = partial(describe_missing_gradient, self.model, self.select_inputs(0))
            scored.find_reason = find if missing_graph is None else partial(str, missing_graph)
        return scored

    def find_link(self) -> class_scores.FoundLink:
        """Return how scores become probabilities.

        Without observed layers, or with an engine, this may run another forward pass, of one image.
        """
        if self._link is None:
            # An engine's output has no graph of the model's operations.
            has_graph, links = bool(self.layers) and self.runner is run_with_hooks, self.plan.facts.links
            if not isinstance(self.predictions, Tensor):
                self._link = class_scores.FoundLink("softmax")
            elif has_graph or not class_scores.is_between_zero_and_one(self.predictions):
                self._link = class_scores.infer_link(self.model, self.output, self._find_final_operation)
            else:
                if not links:
                    with follow_step("Examining the model"):
                        output = self._run_with_graph()
                        links.append(class_scores.infer_link(self.model, output, self._find_final_operation))
                self._link = links[0]
        return self._link

    def _find_final_operation(self) -> str | None:
        """Return the function that computed the scores; the first call runs the model on one image."""
        operations = self.plan.facts.final_operations

        def select(output: Any) -> Tensor:
            return class_scores.find_logits(predictions.to_batch(output, 1))

        if not operations:
            with self.restore_autocast(), follow_step("Examining the model"):
                count = class_scores.find_logits(self.output)[0].numel()
                operations.append(find_final_operation(self.model, self.select_inputs(0), select, count))
        return operations[0]

    def _run_with_graph(self) -> Any:
        """Return the output for the first image on a graph: it shows whether a softmax or a sigmoid made it."""
        with enable_gradients(), self.restore_autocast(), guard(self.model):
            image = self.main_input[:1].detach().clone().requires_grad_()
            try:
                return predictions.to_batch(run_model(self.model, self.select_inputs(0, image)), 1)
            except ForwardError:  # a part of the model runs in inference mode
                return self.output

    def classify(self) -> Classes:
        """Return the probabilities of the classes, and the top class of each image."""
        link, scores = self.find_link().link, self.predictions
        if not isinstance(scores, Tensor) or link is None:
            return Classes(None, [None] * len(scores))
        probabilities = class_scores.compute_probabilities(upcast(scores), link)
        if scores.ndim != 2:
            return Classes(probabilities, [None] * len(scores))
        # Scores, as several probabilities may be rounded to 1. An array is read several times faster than a tensor.
        by_class = upcast(class_scores.compute_class_scores(scores, link).detach()).cpu().numpy()
        tops, is_finite = by_class.argmax(1).tolist(), np.isfinite(by_class).all(1).tolist()
        return Classes(probabilities, [top if fine else None for top, fine in zip(tops, is_finite, strict=True)])

    def get_image_output(self, image: int) -> targets.ImageOutput:
        """Return the output for one image, for targets that are resolved on it."""
        return targets.ImageOutput(self.predictions[image], link=self.find_link().link)

    def find_class_vectors(self) -> Tensor | None:
        """Return the weights of the linear layer that gives the K scores, ``(K, C)``; ``None`` if there is none.

        The first call runs the model on one image.
        """
        if not isinstance(self.predictions, Tensor) or self.predictions.ndim != 2:
            return None
        if self._class_vectors is None:
            with self.restore_autocast():
                self._class_vectors = (find_class_vectors(self.model, self.select_inputs(0), self.predictions[:1]),)
        return self._class_vectors[0]

    def capture_attention(self, *, hold_inputs: bool = False) -> CapturedAttention:
        """Run the model again and return its attention; the first call for each ``hold_inputs`` runs it.

        Args:
            hold_inputs: Treat the queries, keys and values of every self-attention as constants.
        """
        if hold_inputs not in self._attention:
            with self.restore_autocast():
                self._attention[hold_inputs] = capture_attention(self.model, self.inputs, hold_inputs=hold_inputs)
        return self._attention[hold_inputs]

    def visit_attention(self, visit: Callable[[AttentionCall], None]) -> None:
        """Run the model again, without a graph, and call ``visit`` with each attention to the image; none is kept."""
        with self.restore_autocast():
            visit_attention(self.model, self.inputs, visit)

    def capture_branches(self) -> CapturedBranches:
        """Run the model again and return its attention with what follows each; the first call runs it."""
        if self._branches is None:
            with self.restore_autocast():
                self._branches = capture_branches(self.model, self.inputs)
        return self._branches

    def find_place(self, layer: Layer) -> LayerPlace:
        """Return where a layer's cells lie in the image input, without centers if its grid is stretched over the image.

        The first call for a model, a layer and an input size runs the model; each does if an image's content decides.

        Raises:
            SeveralImagesError: The content decides, and there are several images.
        """
        if layer.name not in self._places:
            place = self.plan.facts.places.get(layer)
            weights = None if place is None else place.weights
            # Weights that the centers depend on may have been trained, loaded or replaced since. Engines compare all.
            is_old = weights is not None and not (
                (self.observation.weights is not None and weights.equal_parameters_of(self.observation.weights))
                or weights.equal_those_of(list_weights(self.model, buffers=False))
            )
            if place is None or is_old:
                place = self._examine_place(layer)
            self._places[layer.name] = place if self.settings.placement == "centers" else place.stretch(layer)
        return self._places[layer.name]

    def _examine_place(self, layer: Layer) -> LayerPlace:
        with self.restore_autocast():
            place = find_place(self.model, self.inputs, layer, call_index=self.call_index)
        if not place.by_content:
            self.plan.facts.places[layer] = place
        elif self.settings.placement == "centers" and len(self.image_input) > 1 and not self._has_equal_places(layer):
            raise SeveralImagesError(
                f"where the cells of layer {layer.name!r} lie depends on each image's content; pass one at a time."
            )
        return place

    def _has_equal_places(self, layer: Layer) -> bool:
        """Return whether a layer's cells lie at the same places for all images, each of which is asked alone."""
        with self.restore_autocast():
            alone = (self.select_inputs(image) for image in range(len(self.image_input)))
            places = [find_place(self.model, inputs, layer, call_index=self.call_index) for inputs in alone]
        return {(place.centers, place.is_moved) for place in places} == {(places[0].centers, places[0].is_moved)}

    def find_blank_outputs(self) -> dict[str, Tensor]:
        """Return what the observed layers return for a blank image, an input of zeros: name to ``(1 or N, ...)``.

        Zeros are the mean color of normalized inputs; for a detector that normalizes images itself they are black. The
        answer is remembered, as it changes only with the weights. It is not if the model has other inputs beside the
        image, or hooks of the user, which may depend on anything.
        """
        blank = torch.zeros_like(self.image_input)
        if not isinstance(self.inputs, Tensor) or any(map(list_foreign_hooks, read_tree(self.model).modules)):
            return self._observe_images(blank)
        key = blank[:1].shape, blank.dtype, blank.device, self._autocast, self.call_index

        def compute() -> _BlankOutputs:
            return _BlankOutputs(key, self._observe_images(blank[:1]), WeightStates(list_weights(self.model)))

        def is_valid(outputs: _BlankOutputs) -> bool:
            return outputs.key == key and outputs.weights.equal_those_of(list_weights(self.model))

        engine = getattr(self.runner, "engine", "eager")  # what one engine computes says nothing about another
        question = "blank outputs", engine, tuple(layer.name for layer in self.plan.observed)
        # Only the latest is kept for each set of layers, as these are tensors.
        return remember_for_model(self.model, question, compute, is_valid).outputs

    def _observe_images(self, images: Tensor) -> dict[str, Tensor]:
        """Return the outputs of the observed layers for other images, without a graph."""
        names = [layer.name for layer in self.plan.observed]
        with self.restore_autocast():
            inputs = self.replace_image_input(images, range(len(images)))
            calls = self.runner(self.model, names, inputs, grad=False, entries=self.plan.entries).calls
        return {name: get_call(name, calls[name], self.call_index) for name in names}

    def fold_model(self) -> FoldedModel:
        """Return the model for many forward passes in a row; the first call builds it."""
        if self._folded_model is None:
            self._folded_model = FoldedModel(self.model, self.select_inputs(0))
        return self._folded_model

    def find_tail_chunk_size(self, layer: Layer) -> int:
        """Return how many variants of one image's activations fit into memory; the first call runs the model."""
        if layer.name not in self._tail_chunk_sizes:
            with self.restore_autocast():
                calls = trace(self.model, self.select_inputs(0))
            # The tail: the outputs from the layer's call on, and its own.
            indices = [index for index, call in enumerate(calls) if call.name == layer.name]
            largest = count_largest_output(calls[indices[self.call_index] if indices else 0 :])
            self._tail_chunk_sizes[layer.name] = compute_chunk_size(largest, self.layer_outputs[layer.name])
        return self._tail_chunk_sizes[layer.name]

    def select_inputs(self, image: int, variants: Tensor | None = None) -> ModelInputs:
        """Return the model's inputs for one image alone, or for variants ``(M, C, *size)`` of it."""
        count = 1 if variants is None else len(variants)

        def select(tensor: Tensor) -> Tensor:
            if tensor is self.main_input and variants is not None:
                return variants
            return tensor[image : image + 1].expand(count, *tensor.shape[1:])

        return map_batch(self.inputs, select)

    def replace_image_input(self, image_input: Tensor, images: Sequence[int] | None = None) -> ModelInputs:
        """Return the model's inputs with other images.

        Args:
            image_input: ``(M, C, *size)``, in the place of the image input.
            images: The image whose other inputs each of them gets; by default in order.
        """
        rest = slice(None) if images is None else list(images)
        return map_batch(self.inputs, lambda tensor: image_input if tensor is self.main_input else tensor[rest])

    def restore_autocast(self) -> AbstractContextManager[None]:
        """Return a context in the autocast mode of this forward pass, for further ones."""
        kind, (is_enabled, dtype) = self._device_type, self._autocast
        # Entering autocast costs time, so it is left out where it would change nothing.
        if (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) == self._autocast:
            return nullcontext()
        return torch.autocast(kind, dtype=dtype, enabled=is_enabled)


def run_forward_pass(
    model: nn.Module,
    inputs: ModelInputs,
    layers: Sequence[str | Layer] | None,
    settings: PassSettings = _DEFAULT_SETTINGS,
    runner: Runner = run_with_hooks,
) -> ForwardPass:
    """Choose the layers, run the model once with hooks on them, and return the outputs.

    The backward pass runs later, when gradients are first read: :meth:`ScoredTargets.compute_gradients`.

    Args:
        model: Any module; it is left unchanged.
        inputs: The model's inputs. The image input is their main tensor, see
            :func:`camtool.hooks.structures.nested_tensors.find_main_tensor`.
        layers: The layers to explain, or their names; ``None`` for the best ones; none for methods that work at the
            input. See :func:`camtool.evidence.layer_plan.get_layer_plan`.
        settings: The settings.
        runner: Registers the hooks and runs the model; by default
            :func:`camtool.hooks.observation.run_with_hooks`. An engine gives another one.
    """
    main = find_main_tensor(inputs)
    if main is None:
        raise CamtoolError("the model's inputs hold no floating-point tensor, so there is no image to explain.")
    call_index = -1 if settings.call_index is None else settings.call_index
    # Passes of its own are run by the first call for a model alone.
    plan = get_layer_plan(model, inputs, layers, call_index, settings.depths, settings.score)
    names = [layer.name for layer in plan.observed]
    observation = runner(model, names, inputs, grad=bool(names), entries=plan.entries)
    return ForwardPass(model, inputs, main, plan, observation, runner, settings, call_index)
