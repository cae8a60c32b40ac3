"""Evidence: what one forward lets a method see, and nothing else.

A method is a function from :class:`Evidence` to raw maps. What costs something is done when it is first asked for:
a method that never reads ``gradients`` pays for no backward pass, and one that never reads ``head`` needs no such head.

Evidence comes in rows, and a row is one target on one image. Mostly that is one row an image. Where several classes are
asked of one image, its rows share the forward, the backward pass to the layer, and the passes with masks or changed
activations; only :meth:`Evidence.on_graph` runs each row by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from camtool import outputs, targets
from camtool.attended import Attended
from camtool.attention import Block, Captured, capture
from camtool.errors import CamtoolError, LayerError, MethodError
from camtool.guards import left_as_found, with_gradients
from camtool.heads import LinearHead, class_vectors, linear_head
from camtool.hooks import Observation, call, nth_call, observe, resume, trace
from camtool.layers import Layer, resolve
from camtool.lazy import cached_property
from camtool.maps import widened
from camtool.streaming import Twin, in_chunks, largest_behind, room_for
from camtool.structures import Inputs, main_tensor, map_batch
from camtool.targets import Target

__all__ = ["Evidence", "LinearHead", "Make", "Scene"]

Make = Callable[[slice], Tensor]
"""Makes some of many variants, when their turn comes: ``make(slice(32, 64))`` gives the variants 32 to 63."""


class Scene:
    """One forward of one batch, seen at one or more layers. It can be asked about any number of targets.

    Args:
        model: Any module; it is left as it was found.
        inputs: What the model is called with. Its :func:`camtool.structures.main_tensor` is the picture.
        layers: Where to look, as :func:`camtool.layers.resolve` gives them; none for methods that do not look inside.
        black: ``(C,)``, what a black pixel is in the model's input, where that is known.
        nth: Which call of a layer is looked at, where it runs more than once: 0 is the first, -1 the last. ``None`` is
            the last as well, for those who have not thought of it: they are told that there are others.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        layers: Sequence[Layer],
        *,
        black: Tensor | None = None,
        nth: int | None = None,
    ) -> None:
        self.model, self.inputs, self.layers, self.black = model, inputs, list(layers), black
        self.is_call_chosen, self.nth = nth is not None, -1 if nth is None else nth
        observed = observe(model, [layer.name for layer in layers], inputs, grad=bool(layers))
        self.observation: Observation = replace(observed, output=outputs.of_images(observed.output, _images(inputs)))
        self.answers = outputs.answers(self.observation.output, outputs.class_count(model))
        self.latest: _Question | None = None
        self._tails_at_once: dict[str, int] = {}
        self._kind = self.answers[0].device.type
        self._autocast = torch.is_autocast_enabled(self._kind), torch.get_autocast_dtype(self._kind)

    @property
    def logits(self) -> Tensor:
        """What the model returned, ``(N, K, ...)``.

        Raises:
            TargetError: It returned detections.
        """
        return self.answers if isinstance(self.answers, Tensor) else outputs.logits(self.observation.output)

    @property
    def classes(self) -> int | None:
        """How many scores of classes the model gives, ``None`` where that does not show."""
        return self.answers.shape[1] if isinstance(self.answers, Tensor) else outputs.class_count(self.model)

    @cached_property
    def link(self) -> outputs.Link | None:
        """How the scores become probabilities; ``None`` where they are an embedding's."""
        if not isinstance(self.answers, Tensor):
            return "softmax"
        needs_graph = not self.layers and outputs.could_be_probabilities(self.answers)
        return outputs.link_of(self.model, self._on_a_graph() if needs_graph else self.observation.output)

    def _on_a_graph(self) -> Any:
        """The output for the first image, on a graph from its picture."""
        with with_gradients(), self.as_called(), left_as_found(self.model):
            picture = _picture(self.inputs)[:1].detach().clone().requires_grad_()
            return outputs.of_images(call(self.model, self.inputs_of(0, picture)), 1)

    @property
    def chances(self) -> Tensor | None:
        """The probability of each class, ``(N, K, ...)`` in float32 at least; ``None`` of what has no classes so."""
        if not isinstance(self.answers, Tensor) or self.link is None:
            return None
        return outputs.probabilities(widened(self.answers), self.link)

    def evidence(
        self, wanted: Sequence[targets.Target], images: Sequence[int] | None = None, *, inside: bool = True
    ) -> list[Evidence]:
        """The evidence about some targets, at each of the layers.

        Args:
            wanted: The targets, one a row.
            images: Which image each row is about; by default one row an image, in order.
            inside: Look at the layers. Without it, and where the scene has no layers, there is one that sees none.
        """
        question = _question(self, wanted, range(len(wanted)) if images is None else images)
        looked_at: Sequence[Layer | None] = self.layers if inside and self.layers else [None]
        return [Evidence(self, question, layer) for layer in looked_at]

    def tensor(self, layer: Layer) -> Tensor:
        """What the layer returned at the call that is looked at, in its own layout, on the graph."""
        return nth_call(layer.name, self.observation.calls[layer.name], self.nth)

    def as_called(self) -> AbstractContextManager[None]:
        """The autocast mode that the forward ran in, for other forwards that are to be like it."""
        if (torch.is_autocast_enabled(self._kind), torch.get_autocast_dtype(self._kind)) == self._autocast:
            return nullcontext()
        return torch.autocast(self._kind, dtype=self._autocast[1], enabled=self._autocast[0])

    def inputs_of(self, image: int, pictures: Tensor | None = None) -> Inputs:
        """What the model is called with for one image alone; or for variants of its picture ``(M, C, *size)``."""
        main, count = main_tensor(self.inputs), 1 if pictures is None else len(pictures)

        def part(tensor: Tensor) -> Tensor:
            if tensor is main and pictures is not None:
                return pictures
            return tensor[image : image + 1].expand(count, *tensor.shape[1:])

        return map_batch(self.inputs, part)

    def tails_at_once(self, layer: Layer) -> int:
        """How many variants of one image's activations fit into memory, with all that follows the layer."""
        if layer.name not in self._tails_at_once:
            with self.as_called():
                calls = trace(self.model, self.inputs_of(0))
            self._tails_at_once[layer.name] = room_for(largest_behind(calls, layer.name, self.nth), self.tensor(layer))
        return self._tails_at_once[layer.name]

    @cached_property
    def attention(self) -> Captured:
        """Another forward, in which the model's attention is seen."""
        with self.as_called():
            return capture(self.model, self.inputs)

    @cached_property
    def held_attention(self) -> Captured:
        """The same, where the inputs of every self-attention count as constants."""
        with self.as_called():
            return capture(self.model, self.inputs, hold_inputs=True)

    @cached_property
    def class_vectors(self) -> Tensor | None:
        """The weights of the linear layer that gives the K scores, ``(K, C)``; ``None`` if there is none."""
        if not isinstance(self.answers, Tensor) or self.answers.ndim != 2:
            return None
        with self.as_called():
            return class_vectors(self.model, self.inputs_of(0), self.answers[:1])

    @cached_property
    def twin(self) -> Twin:
        """The model again, for many passes in a row."""
        return Twin(self.model, self.inputs_of(0))


@dataclass
class _Question:
    """Some targets, one a row, on what layers returned; one backward pass serves all of them, when first asked for."""

    targets: list[targets.Target]
    images: list[int]
    scores: Tensor
    seen: dict[str, Tensor]

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """For each layer how each row's score depends on what the layer returned for the row's image, ``(R, ...)``."""
        self._check_that_it_has_slopes()
        return dict(zip(self.seen, _by_row(self.scores, self.images, list(self.seen.values())), strict=True))

    def curvature(self, tensor: Tensor, along: Tensor) -> Tensor:
        """Each row's Hessian towards its image's part of a tensor, times the row's direction, ``(R, ...)``."""
        self._check_that_it_has_slopes()
        result = torch.zeros_like(along)
        turns = _turns(self.images)
        for turn in set(turns):  # rows about different images share a pass
            rows = [row for row, its in enumerate(turns) if its == turn]
            images = [self.images[row] for row in rows]
            moves = torch.zeros_like(tensor)
            moves[images] = along[rows]
            result[rows] = _bend(self.scores[rows].sum(), tensor, moves)[images]
        return result

    def _check_that_it_has_slopes(self) -> None:
        if not self.scores.requires_grad:
            raise LayerError(
                "the score does not depend on the layers "
                f"{list(self.seen)} through a gradient; choose a layer that leads to it, "
                "and a target that does not detach the output."
            )

    def of_rows(self, by_image: Tensor) -> Tensor:
        """What is known of each image, for each row."""
        return by_image if self.images == list(range(len(by_image))) else by_image[self.images]


def _question(scene: Scene, wanted: Sequence[targets.Target], images: Sequence[int]) -> _Question:
    """A question to a scene; the same as the latest is not asked again, so methods and layers share its gradients."""
    latest = scene.latest
    if latest is None or (latest.targets, latest.images) != (list(wanted), list(images)):
        with with_gradients():
            scores = targets.score(wanted, scene.observation.output, images)
        seen = {layer.name: scene.tensor(layer) for layer in scene.layers}
        latest = scene.latest = _Question(list(wanted), list(images), scores, seen)
    return latest


def _by_row(scores: Tensor, images: Sequence[int], tensors: Sequence[Tensor]) -> list[Tensor]:
    """How each row's score depends on its own image's part of each tensor: ``(R, ...)`` each.

    Rows about different images share a backward pass, as images do not touch each other; rows about the same image are
    told apart by as many weights of the scores, and a batched pass takes them all at once.
    """
    turns = _turns(images)
    if any(turns):
        choice = torch.zeros(max(turns) + 1, len(turns)).to(scores)
        choice[turns, range(len(turns))] = 1
        return [gradient[turns, images] for gradient in _batched_gradients(scores, tensors, choice)]
    in_order = list(images) == list(range(len(tensors[0])))
    gradients = _gradients(scores, tensors, torch.ones_like(scores))
    return gradients if in_order else [gradient[images] for gradient in gradients]


def _turns(images: Sequence[int]) -> list[int]:
    """For each row how many rows before it are about the same image."""
    met: Counter[int] = Counter()
    turns = []
    for image in images:
        turns.append(met[image])
        met[image] += 1
    return turns


def _bend(score: Tensor, tensor: Tensor, along: Tensor) -> Tensor:
    """The Hessian of a score towards a tensor, times a direction of the tensor's shape."""
    (slope,) = torch.autograd.grad(score, tensor, create_graph=True, materialize_grads=True)
    if not slope.requires_grad:  # it is constant
        return torch.zeros_like(along)
    (bend,) = torch.autograd.grad(slope, tensor, grad_outputs=along, retain_graph=True, materialize_grads=True)
    return bend.detach()


def _gradients(scores: Tensor, tensors: Sequence[Tensor], weights: Tensor, *, batched: bool = False) -> list[Tensor]:
    with with_gradients():
        # Other targets may ask the same graph again, so it is kept; it goes when the scene goes.
        return list(
            torch.autograd.grad(
                scores,
                tensors,
                grad_outputs=weights,
                retain_graph=True,
                materialize_grads=True,
                is_grads_batched=batched,
            )
        )


def _batched_gradients(scores: Tensor, tensors: Sequence[Tensor], weights: Tensor) -> list[Tensor]:
    """The gradients of several weighted sums of the scores, ``weights`` ``(T, R)``: for each tensor ``(T, N, ...)``."""
    try:
        return _gradients(scores, tensors, weights, batched=True)
    except RuntimeError:  # an operation of the tail cannot be batched, so take the sums one by one
        return [torch.stack(each) for each in zip(*(_gradients(scores, tensors, row) for row in weights), strict=True)]


class Evidence:
    """What a method may look at: one layer's activations, and whatever else it asks for.

    A row is one target on one of the N images. Maps are in the order ``(R, C, *grid)`` whatever the layer's own layout,
    in float32 at least: half precision is widened, so that a sum over positions does not lose them.
    """

    def __init__(self, scene: Scene, question: _Question, layer: Layer | None) -> None:
        self._scene, self._question, self._seen = scene, question, layer

    # ------------------------------------------------------------------------------------------- what was seen

    @cached_property
    def activations(self) -> Tensor:
        """What the layer returned, ``(R, C, *grid)``."""
        return self._question.of_rows(self._on_grid(self._scene.tensor(self._layer).detach()))

    @cached_property
    def gradients(self) -> Tensor:
        """How each row's score depends on the activations, ``(R, C, *grid)``.

        Raises:
            LayerError: No gradient can pass from the score to the layer.
        """
        return self._on_grid(self._question.gradients[self._layer.name])

    def curvature(self, direction: Tensor) -> Tensor:
        """How the gradients change as the activations move along a direction: the Hessian of each row's score times it.

        It is zero where the tail is linear piece by piece, as that of a ReLU net is up to its logits. Tokens that stand
        before the grid's do not move.

        Args:
            direction: ``(R, C, *grid)``.

        Returns:
            ``(R, C, *grid)``.

        Raises:
            LayerError: No gradient can pass from the score to the layer.
            MethodError: Torch has no second derivative of an operation of the tail.
        """
        own, layout = self._scene.tensor(self._layer), self._layer.layout
        try:
            with with_gradients():
                still = torch.zeros_like(own[:1])
                along = layout.from_grid(direction.detach().to(own.dtype).clone(), still)
                return self._on_grid(self._question.curvature(own, along))
        except RuntimeError as error:
            raise MethodError(
                f"torch has no second derivative of what follows layer {self.layer!r} ({error}). Use method='gradcam'; "
                "or, where it is attention, work within torch.nn.attention.sdpa_kernel(SDPBackend.MATH)."
            ) from error

    @cached_property
    def attention(self) -> Attended:
        """How the model's tokens looked at each other, at all its layers of attention.

        Raises:
            MethodError: The model runs no attention that can be seen, or not all of it is over the same tokens.
        """
        return self._attended(self._scene.attention)

    @cached_property
    def held_attention(self) -> Attended:
        """The same with the inputs of every self-attention held constant: gradients pass it by the skip connection.

        Raises:
            MethodError: The model runs no attention that can be seen, or not all of it is over the same tokens.
        """
        return self._attended(self._scene.held_attention)

    def _attended(self, captured: Captured) -> Attended:
        with with_gradients():
            output = outputs.of_images(captured.output, len(self.inputs))
            scores = targets.score(self.targets, output, self.images)

        # It is told what it needs and not who asks, as each would keep the other alive.
        rescore = partial(_rescored, self._scene, self._question)
        return Attended(captured, self.inputs, scores, self.images, _by_row, rescore)

    @property
    def scores(self) -> Tensor:
        """Each row's score, ``(R,)``."""
        return self._question.scores.detach()

    @property
    def targets(self) -> list[Target]:
        """Each row's target."""
        return self._question.targets

    @property
    def images(self) -> list[int]:
        """Which image each row is about."""
        return self._question.images

    @property
    def by_image(self) -> list[list[int]]:
        """The rows that are about the same image, image by image: passes are shared among them."""
        return [[row for row, one in enumerate(self.images) if one == image] for image in dict.fromkeys(self.images)]

    @property
    def model(self) -> nn.Module:
        """The model, for what the evidence does not offer; leave it as it was."""
        return self._scene.model

    @property
    def inputs(self) -> Tensor:
        """The pictures as the model gets them, ``(N, C, *size)``."""
        return _picture(self._scene.inputs).detach()

    @property
    def logits(self) -> Tensor:
        """What the model returned, ``(N, K, ...)``.

        Raises:
            TargetError: It returned detections.
        """
        return self._scene.logits

    @property
    def link(self) -> outputs.Link | None:
        """How the model's scores become probabilities; ``None`` where they are an embedding's."""
        return self._scene.link

    @property
    def black(self) -> Tensor | None:
        """``(C,)``, what a black pixel is in the model's input; ``None`` where the preparation is not known."""
        return self._scene.black

    @property
    def black_pictures(self) -> Tensor:
        """A black picture in the place of each, ``(N, C, *size)``; zeros where the preparation is not known."""
        pictures = self.inputs
        if self.black is None:
            return torch.zeros_like(pictures)
        return self.black.to(pictures).reshape(1, -1, *[1] * (pictures.ndim - 2)).expand_as(pictures)

    @property
    def layer(self) -> str:
        """The layer's dotted name; empty for a method that looks at none."""
        return "" if self._seen is None else self._seen.name

    @property
    def gradients_used(self) -> bool:
        """Whether a method has asked for the gradients."""
        return "gradients" in self.__dict__

    @cached_property
    def silent(self) -> list[bool]:
        """For each row, whether the gradient is zero everywhere; asking counts as using the gradients."""
        quiet: list[bool] = self.gradients.flatten(1).any(1).logical_not().tolist()
        return quiet

    @property
    def times_run(self) -> int:
        """How often the layer ran in the forward; one of the times is looked at."""
        return len(self._scene.observation.calls.get(self.layer, ()))

    @property
    def is_call_chosen(self) -> bool:
        """Whether somebody said which of the layer's calls is looked at; else it is the last."""
        return self._scene.is_call_chosen

    # ------------------------------------------------------------------------------------------------ the head

    @cached_property
    def head(self) -> LinearHead:
        """The linear layer behind global average pooling.

        It is found by arithmetic, not by name: the linear layer (or 1 x 1 convolution) that, given the mean of these
        activations or of their positive part, gives exactly what the model returned.

        Raises:
            MethodError: The model has no such head behind this layer.
        """
        if self._head is None:
            raise MethodError(
                "this needs a model that ends in global average pooling and one linear layer, right behind the layer "
                f"that is looked at (from its {self.activations.shape[1]} channels to the classes); this one does not. "
                "Use method='gradcam' or 'layercam', which work on any head."
            )
        return self._head

    @property
    def shortcut(self) -> LinearHead | None:
        """The :attr:`head` where each row's score follows from its logits alone, and ``None`` elsewhere.

        Where there is one, other activations are scored by arithmetic, without the tail: see :meth:`of_logits`.
        """
        return self._head if self._logits_suffice else None

    @property
    def _logits_suffice(self) -> bool:
        """Whether the rows' scores follow from the logits alone.

        A person's own function is given one image's output as the model made it, of which the logits may be a part.
        """
        output = self._scene.observation.output
        plain = isinstance(output, Tensor) and output.ndim == 2
        return plain or not any(isinstance(targets.innermost(target), targets.Custom) for target in self.targets)

    @cached_property
    def head_weights(self) -> Tensor:
        """How each row's score depends on each pooled channel, ``(R, C)``: the class' row of the head's weights.

        Raises:
            MethodError: See :attr:`head`; or the targets need more of the model's output than its logits.
        """
        head = self.head
        if not self._logits_suffice:
            raise MethodError(
                "method 'cam' weighs channels by the logits, and target_class is a function of the model's whole "
                "output; use method='gradcam', which works on any target."
            )
        with with_gradients():
            logits = self.logits.clone().requires_grad_()
            scores = targets.score(self.targets, logits, self.images)
            (by_class,) = _by_row(scores, self.images, [logits])
        return by_class.to(head.weight) @ head.weight

    # ------------------------------------------------------------------------------------- asking the model anew

    def about(self, wanted: Sequence[Target], images: Sequence[int]) -> Evidence:
        """Other targets, one a row, on the same forward: what the same layer shows about each on its image."""
        return Evidence(self._scene, _question(self._scene, wanted, images), self._seen)

    def again(self, inputs: Tensor) -> Evidence:
        """The same targets on other pictures ``(N, C, *size)``, one for each that was given, seen at the same layer."""
        main = main_tensor(self._scene.inputs)
        changed = map_batch(self._scene.inputs, lambda tensor: inputs if tensor is main else tensor)
        with self._scene.as_called():
            layers = self._layers_at(changed, inputs)
            scene = Scene(self.model, changed, layers, black=self.black, nth=self._scene.nth)
        return scene.evidence(self.targets, self.images)[0]

    def at(self, layer: str) -> Evidence:
        """The same targets on the same pictures, seen at another layer, by another forward.

        Raises:
            LayerError: There is no layer of that name, or its output is no grid.
        """
        with self._scene.as_called():
            layers = resolve(self.model, self._scene.inputs, [layer])
            scene = Scene(self.model, self._scene.inputs, layers, black=self.black)
        return scene.evidence(self.targets, self.images)[0]

    def _layers_at(self, changed: Inputs, pictures: Tensor) -> list[Layer]:
        """The layer as it is laid out for other pictures: its grid follows their size, and nothing else."""
        if self._seen is None or pictures.shape == self.inputs.shape:
            return [] if self._seen is None else [self._seen]
        return resolve(self.model, changed, [self._seen.name], like=self._seen.layout, nth=self._scene.nth)

    def on_graph(self, pictures: Tensor) -> Tensor:
        """The rows' scores ``(R,)`` on other pictures ``(R, C, *size)``, joined to them by a graph."""
        main = main_tensor(self._scene.inputs)
        inputs = map_batch(self._scene.inputs, lambda tensor: pictures if tensor is main else tensor[self.images])
        with with_gradients(), self._scene.as_called(), left_as_found(self.model):
            return targets.score(self.targets, outputs.of_images(call(self.model, inputs), len(pictures)))

    def score(self, pictures: Tensor, row: int = 0) -> Tensor:
        """Run the model on variants ``(M, C, *size)`` of the row's picture and score its target: ``(M,)``."""
        with self._scene.as_called(), left_as_found(self.model), torch.no_grad():
            output = call(self.model, self._scene.inputs_of(self.images[row], pictures))
            output = outputs.of_images(output, len(pictures))
        return _scored(output, [self.targets[row]])[:, 0]

    def passes(
        self,
        rows: Sequence[int],
        count: int,
        make: Make,
        *,
        chunk: int | None = None,
        of: Callable[[Target], Target] | None = None,
    ) -> Tensor:
        """Score many variants of one image's picture: :meth:`score`, in chunks that fit into memory.

        They run through a twin of the model, faster and equal up to rounding: :class:`~camtool.streaming.Twin`.

        Args:
            rows: Rows that are about the same image.
            count: How many variants.
            make: Makes those of a slice, ``(m, C, *size)``.
            chunk: How many run at once; by default as many as fit.
            of: What to score in place of a row's target: its class' probability, say.

        Returns:
            The scores, ``(count, rows)``.
        """
        image, wanted = self.images[rows[0]], [self.targets[row] for row in rows]
        wanted = wanted if of is None else [of(target) for target in wanted]
        with self._scene.as_called():
            twin = self._scene.twin
            parts = in_chunks(count, twin.most_at_once if chunk is None else chunk)
            variants = map(make, parts)
            return torch.cat([_scored(self._seen_by(twin, image, each), wanted) for each in variants])

    def _seen_by(self, twin: Twin, image: int, pictures: Tensor) -> Any:
        return outputs.of_images(twin(self._scene.inputs_of(image, pictures)), len(pictures))

    def tail(self, activations: Tensor, row: int = 0) -> Tensor:
        """Score variants ``(M, C, *grid)`` of the row's activations: ``(M,)``.

        The trunk runs once on the row's image, and only what follows the layer on all variants.
        """
        return _scored(self._resumed(activations, self.images[row]), [self.targets[row]])[:, 0]

    def tails(self, rows: Sequence[int], count: int, make: Make, *, chunk: int | None = None) -> Tensor:
        """Score many variants of one image's activations: :meth:`tail`, in chunks that fit into memory.

        The arguments and the result are those of :meth:`passes`; ``make`` gives activations ``(m, C, *grid)``.
        """
        image, wanted = self.images[rows[0]], [self.targets[row] for row in rows]
        parts = in_chunks(count, self._scene.tails_at_once(self._layer) if chunk is None else chunk)
        return torch.cat([_scored(self._resumed(make(part), image), wanted) for part in parts])

    def of_logits(self, rows: Sequence[int], logits: Tensor) -> Tensor:
        """Score other logits ``(M, K)`` of the rows' image, ``(M, rows)``; only where there is a :attr:`shortcut`."""
        return _scored(logits, [self.targets[row] for row in rows])

    def _resumed(self, activations: Tensor, image: int) -> Any:
        own = self._scene.tensor(self._layer)[image : image + 1].detach()
        variants = self._layer.layout.from_grid(activations.to(own.dtype), own)
        with self._scene.as_called():
            nth = self._scene.nth % self.times_run
            output = resume(self.model, self.layer, variants, self._scene.inputs_of(image), nth=nth)
            return outputs.of_images(output, len(variants))

    # ---------------------------------------------------------------------------------------------------- its own

    @property
    def _layer(self) -> Layer:
        if self._seen is None:
            raise LayerError("this method looks at no layer, so it has no activations and no gradients there.")
        return self._seen

    @cached_property
    def _head(self) -> LinearHead | None:
        answers = self._scene.answers
        is_plain = isinstance(answers, Tensor) and answers.ndim == 2
        return linear_head(self.model, self.activations, self._question.of_rows(self.logits)) if is_plain else None

    def _on_grid(self, tensor: Tensor) -> Tensor:
        return widened(self._layer.layout.to_grid(tensor))


def _rescored(scene: Scene, question: _Question, block: Block, tokens: Tensor, rows: Sequence[int]) -> Tensor:
    """The scores ``(M, rows)`` of rows about one image if a block returned one of ``(M, ...)``; on the graph."""
    inputs = scene.inputs_of(question.images[rows[0]])
    with with_gradients(), scene.as_called():
        output = resume(scene.model, block.name, tokens, inputs, nth=block.nth, grad=True)
        output = outputs.of_images(output, len(tokens))
        return _scored(output, [question.targets[row] for row in rows])


def _picture(inputs: Inputs) -> Tensor:
    """The picture in a model's inputs, ``(N, C, *size)``."""
    tensor = main_tensor(inputs)
    if tensor is None:
        raise CamtoolError("the model is called without a floating tensor, so there is no picture to change.")
    return tensor


def _images(inputs: Inputs) -> int:
    return len(_picture(inputs))


def _scored(output: Any, wanted: Sequence[Target]) -> Tensor:
    """Each of some targets on each image of an output, ``(M, targets)``."""
    return torch.stack([target(output) for target in wanted], 1)
