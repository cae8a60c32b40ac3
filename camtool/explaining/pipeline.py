"""From one batch to its explanations, with fixed settings: what :class:`camtool.Explainer` does for each batch.

The path of a batch in :meth:`BatchExplainer.explain`: run one forward pass with hooks on the layers, resolve the
targets on what the model returned, let each method compute maps, and check them. ARCHITECTURE.md lists the steps of a
call with their files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from camtool import targets
from camtool.arguments.explain_arguments import to_list
from camtool.arguments.message_parts import format_count
from camtool.engines.comparison import run_by_engines
from camtool.errors import LayerError, MethodError
from camtool.evidence.evidence import Evidence, gather_evidence, gather_evidence_by_level
from camtool.evidence.forward_pass import ForwardPass, PassSettings, SeveralImagesError, run_forward_pass
from camtool.explaining.device_maps import ClassMaps, compute_class_maps
from camtool.explaining.explanation import Explanation, ExplanationList
from camtool.explaining.refining import find_regions
from camtool.explaining.types import Verify
from camtool.geometry.cell_centers import CellCenters, Placement
from camtool.hooks.observation import Runner, run_with_hooks
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.state.guard import guard, seed_generators_anew
from camtool.hooks.structures import caches
from camtool.hooks.structures.modules import find_detector_transform
from camtool.inputs.prepared_inputs import InputBatch, PreparedInput
from camtool.layers.depths import Depths
from camtool.methods import Method, merges
from camtool.methods.merges import Merge
from camtool.methods.options import encode_text_options
from camtool.models import TextEncoder, Transform, resolve_labels, resolve_phrases
from camtool.outputs.class_scores import describe_chosen_tensor
from camtool.outputs.detections import Detections
from camtool.targets.base_target import Corners
from camtool.trust.checks.check_context import CheckContext
from camtool.trust.checks.check_list import run_checks
from camtool.trust.checks.check_report import CheckReport
from camtool.trust.checks.model_checks import find_training_modules
from camtool.trust.map_warnings import find_map_warnings
from camtool.trust.sufficiency import VerifiedRegion
from camtool.warning_codes import MapWarning, to_map_warning


class Row(NamedTuple):
    """One target on one image of a batch.

    Attributes:
        image: The index of the image.
        target: The target.
        labels: The names of the classes for this image; ``None`` if they are not known.
    """

    image: int
    target: targets.Target
    labels: Sequence[str] | None


@dataclass(frozen=True)
class Prediction:
    """Score of a target on an image, as in :class:`camtool.Explanation`, but without a map.

    Attributes:
        label: The label of the class, or the description of another target.
        index: The index of the class; ``None`` for targets that are no class.
        score: The score, a logit as a rule.
        probability: The probability; ``None`` where there is none.
        box: The box ``(left, top, right, bottom)`` of a detection, in pixels of the photo; else ``None``.
        warnings: Reasons not to trust it, e.g. that the preprocessing was assumed.
    """

    label: str
    index: int | None
    score: float
    probability: float | None
    box: Corners | None
    warnings: tuple[MapWarning, ...]


@dataclass(frozen=True)
class BatchExplainer:
    """Explains batches of one model with fixed settings.

    Attributes:
        model: The module that runs.
        methods: The methods. Without any, the model is run without observing layers.
        has_many_methods: True if each result is a list with one explanation per method.
        options: Options of the methods, by name.
        layers: The names of the layers; ``None`` to find the best ones.
        merge: The name of a merge, or a function from the maps of several layers ``(L, R, *grid)`` to one.
        labels: The names of the classes; ``None`` to find them in the model.
        text: The model's text encoder, if it compares images with texts.
        placement: Placement of a layer's grid on the input.
        depths: Other layers on the way to each layer that the methods read.
        engines: The engines to try, in order, before the model as it is.
        notes: Warnings that every explanation gets.
        transforms: The transform that the user gave instead of the model's own, and that of the model, if any.
    """

    model: nn.Module
    methods: Sequence[Method] = ()
    has_many_methods: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    layers: Sequence[str] | None = None
    merge: str | Merge = "mean"
    labels: Sequence[str] | None = None
    text: TextEncoder | None = None
    placement: Placement = "centers"
    depths: Depths = 0
    engines: Sequence[str] = ()
    notes: tuple[MapWarning, ...] = ()
    transforms: tuple[Transform | None, Transform | None] = (None, None)

    @property
    def needs_layers(self) -> bool:
        """True unless all methods work at the input."""
        return not all(method.ignores_layer for method in self.methods)

    def explain_by_engines(self, batch: InputBatch, requests: Sequence[Any]) -> list[Any]:
        """Return what :meth:`explain` does, by the first engine that gives the model's own results."""
        kinds = {type(target) for request in requests for target in to_list(request)}
        question = self._describe_question(kinds, len(batch.items))
        return run_by_engines(self.engines, self.model, question, partial(self.explain, batch, requests), _flatten)

    def compute_device_maps(self, batch: InputBatch, classes: Tensor) -> ClassMaps:
        """Return the maps of one class ``(N,)`` of each image by the first method, by the first engine that works."""
        question = self._describe_question({ClassMaps}, len(classes))
        compute = partial(self.compute_device_maps_with, batch=batch, classes=classes)
        method = self.methods[0]
        return run_by_engines(self.engines, self.model, question, compute, lambda maps: maps.list_maps(method))

    def compute_device_maps_with(
        self, runner: Runner, batch: InputBatch, classes: Tensor, *, differentiable: bool = False
    ) -> ClassMaps:
        """Return the maps of one class ``(N,)`` of each image by the first method, see :func:`compute_class_maps`."""
        method = self.methods[0]
        options = method.select_options(self.options)
        forward_pass = self.run_batch(batch, runner)
        with forward_pass.observation.limit_threads():
            return compute_class_maps(forward_pass, method, options, classes, self.merge, differentiable=differentiable)

    def _describe_question(self, kinds: Collection[type], images: int) -> object:
        """Return what an engine's results depend on beside weights and pixels."""
        methods = tuple(method.name for method in self.methods)
        options = tuple((name, repr(value)) for name, value in sorted(self.options.items()))
        is_alone = images == 1  # a model may treat a single image differently
        return methods, self.merge, options, frozenset(kinds), is_alone

    def explain(self, batch: InputBatch, requests: Sequence[Any], runner: Runner = run_with_hooks) -> list[Any]:
        """Return for each image what was requested of it: an explanation, or a list over targets, methods or both.

        Args:
            batch: The batch.
            requests: The targets of each image.
            runner: Runs the model: by default as it is.
        """
        try:
            forward_pass = self.run_batch(batch, runner)
            with forward_pass.observation.limit_threads():
                rows = self.resolve_rows(requests, forward_pass, batch)
                by_method = [self._explain_rows(method, forward_pass, batch, rows) for method in self.methods]
        except SeveralImagesError:
            return self._explain_one_by_one(batch, requests, runner)
        by_row = [list(of_row) for of_row in zip(*by_method, strict=True)] if self.has_many_methods else by_method[0]
        results: list[Any] = []
        for image, request in enumerate(requests):
            of_image = [of_row for of_row, row in zip(by_row, rows, strict=True) if row.image == image]
            results.append(ExplanationList(of_image) if targets.asks_for_several(request) else of_image[0])
        return results

    def _explain_one_by_one(self, batch: InputBatch, requests: Sequence[Any], runner: Runner) -> list[Any]:
        """Do what :meth:`explain` does where a layer has rows or places that are not the same for all images.

        Raises:
            LayerError: The scores of an image depend on the others.
        """
        singles = [(batch.select(slice(i, i + 1)), requests[i : i + 1]) for i in range(len(requests))]
        scorer = replace(self, methods=())
        alone = [explanation.score for single in singles for explanation in scorer.predict(*single)]
        together = [explanation.score for explanation in scorer.predict(batch, requests)]
        if len(alone) != len(together) or not np.allclose(alone, together, rtol=1e-3, atol=1e-3 * max(map(abs, alone))):
            raise LayerError("the model joins the images of a batch: alone, they have other scores. Pass batch_size=1.")
        return [result for single in singles for result in self.explain(*single, runner)]

    def predict(self, batch: InputBatch, requests: Sequence[Any]) -> list[Prediction]:
        """Return the score of each target that is requested of each image, in order."""
        forward_pass = self.run_batch(batch)
        rows, link = self.resolve_rows(requests, forward_pass, batch), forward_pass.find_link().link
        scores = forward_pass.score_rows([row.target for row in rows], [row.image for row in rows]).scores.tolist()
        by_class = forward_pass.classify().probabilities
        probabilities = [None] * len(batch.items) if by_class is None else by_class.cpu().numpy()
        return [
            Prediction(
                target.describe(labels),
                target.get_class_index(),
                score,
                target.get_probability(targets.ScoreContext(score, probabilities[image], link)),
                target.get_box(),
                (*self.notes, *batch.items[image].notes),
            )
            for score, (image, target, labels) in zip(scores, rows, strict=True)
        ]

    def resolve_rows(self, requests: Sequence[Any], forward_pass: ForwardPass, batch: InputBatch) -> list[Row]:
        """Return the rows of all images in order; they share the forward pass."""
        texts = requests if self.text is None else targets.encode_texts(requests, self.text)
        link, find_vectors = forward_pass.find_link().link, forward_pass.find_class_vectors
        resolve = partial(targets.resolve_targets, link=link, find_class_vectors=find_vectors)
        labels = self.find_labels(forward_pass)
        by_image = zip(texts, forward_pass.predictions, labels, batch.items, strict=True)
        return [
            Row(image, target, names)
            for image, (request, output, names, item) in enumerate(by_image)
            for single in to_list(request)
            for target in resolve(single, output, names, item.view.geometry)
        ]

    def find_labels(self, forward_pass: ForwardPass) -> list[Sequence[str] | None]:
        """Return the names of the classes for each image; those of an open vocabulary are the phrases of its text."""
        detections = [prediction for prediction in forward_pass.predictions if isinstance(prediction, Detections)]
        phrases = [*filter(None, (of_image.phrases for of_image in detections))]
        if phrases:
            return [resolve_phrases(self.model, self.labels, of_image) for of_image in phrases]
        return [resolve_labels(self.model, self.labels, forward_pass.class_count)] * len(forward_pass.predictions)

    def run_batch(self, batch: InputBatch, runner: Runner = run_with_hooks) -> ForwardPass:
        """Run one forward pass with hooks on the layers, see :func:`camtool.evidence.forward_pass.run_forward_pass`.

        Raises:
            LayerError: A layer does not return one row for the only image.
            SeveralImagesError: A layer does not return one row for each of several images.
        """
        black = batch.items[0].black if batch.items else None
        settings = PassSettings(black, batch.call_index, self.placement, self.depths, batch.score)
        layers = self.layers if self.needs_layers else []
        forward_pass = run_forward_pass(self.model, batch.inputs, layers, settings, runner)
        if not forward_pass.fits_plan():
            # The user changed the model since the plan was made, so it is made anew.
            caches.forget_model(self.model)
            forward_pass = run_forward_pass(self.model, batch.inputs, layers, settings, runner)
            _check_row_counts(forward_pass.layer_outputs, len(forward_pass.image_input))
        return forward_pass

    def _explain_rows(
        self, method: Method, forward_pass: ForwardPass, batch: InputBatch, rows: Sequence[Row]
    ) -> list[Explanation]:
        """Return one explanation for each row by one method."""
        wanted, images = [row.target for row in rows], [row.image for row in rows]
        if method.ignores_layer or self.layers is not None or len(forward_pass.layers) < 2:
            evidence = gather_evidence(forward_pass, wanted, images, at_input=method.ignores_layer)
            return [*self._explain_evidence(method, evidence, batch, rows)]
        # No layer was named, so several are those of a detector's feature levels: each row has its own.
        by_row: dict[int, Explanation] = {}
        for indices, at_level in gather_evidence_by_level(forward_pass, wanted, images):
            of_level = [rows[index] for index in indices]
            explanations = self._explain_evidence(method, [at_level], batch, of_level)
            by_row.update(zip(indices, explanations, strict=True))
        return [by_row[index] for index in range(len(rows))]

    def _explain_evidence(
        self, method: Method, evidence: Sequence[Evidence], batch: InputBatch, rows: Sequence[Row]
    ) -> Iterator[Explanation]:
        """Yield one explanation for each row, from the evidence about these rows at one or more layers."""
        forward_pass = evidence[0].forward_pass
        merged, centers = self.compute_merged_maps(method, evidence)
        # Single numbers are read from here on, which arrays give several times faster than tensors.
        maps, scores = merged.float().cpu().numpy(), evidence[0].scores.tolist()
        by_class, predicted = forward_pass.classify()
        probabilities = [None] * len(batch.items) if by_class is None else by_class.cpu().numpy()
        is_resized = forward_pass.plan.is_detector and not method.ignores_layer
        detector = find_detector_transform(self.model) if is_resized else None
        layers, link = [of_layer.layer for of_layer in evidence], forward_pass.find_link().link
        for index, (raw, score, (image, target, labels)) in enumerate(zip(maps, scores, rows, strict=True)):
            item, top = batch.items[image], predicted[image]
            context = targets.ScoreContext(score, probabilities[image], link)
            yield Explanation(
                raw=raw,  # on the layer's grid; Explanation.heatmap resizes it, by Photo.to_heatmap
                view=item.view if detector is None else item.view.for_detector(detector),
                label=target.describe(labels),
                index=target.get_class_index(),
                score=score,
                probability=target.get_probability(context),
                method=method.name,
                layer=" + ".join(layers),
                warnings=(*item.notes, *self._find_warnings(method, evidence, raw, index, target, context)),
                box=target.get_box(),
                centers=centers,
                source=ExplainedRow(self, method, layers, batch, image, target),
                predicted_index=top,
                predicted_label=None if top is None else targets.get_class_label(top, labels),
                groups=target.list_groups(labels) if target.traits.is_group else (),
                **evidence[0].refined.get(index, {}),
            )

    def _find_warnings(
        self,
        method: Method,
        evidence: Sequence[Evidence],
        raw: NDArray[Any],
        row: int,
        target: targets.Target,
        context: targets.ScoreContext,
    ) -> Iterator[MapWarning]:
        """Yield the warnings of one explanation, without those about its image."""
        yield from self.notes
        if method.ignores_layer and self.layers is not None:
            text = f"Method {method.name!r} looks at no layer, so layer= makes no difference."
            yield MapWarning(text, "layer-ignored")
        output = evidence[0].forward_pass.output
        chosen_tensor = None if isinstance(output, Tensor) else describe_chosen_tensor(output)
        if chosen_tensor is not None and target.traits.reads == "scores":
            yield chosen_tensor
        # What the method tells the user.
        for note in dict.fromkeys(chain.from_iterable(of_layer.notes.get(row, []) for of_layer in evidence)):
            yield to_map_warning(note, "method-note")
        yield from find_map_warnings(evidence, raw, row, target, context)

    def compute_merged_maps(self, method: Method, evidence: Sequence[Evidence]) -> tuple[Tensor, CellCenters | None]:
        """Return the method's maps of all layers, merged, ``(R, *grid)``, and the centers of their cells."""
        options = method.select_options(self.options) if self.options else {}
        if self.text is not None:
            options = encode_text_options(options, self.text)
        device = evidence[0].scores.device.type
        # Maps are computed in their own precision. If autocast is off already, entering it would only take time.
        is_autocast = torch.is_autocast_enabled(device)
        with torch.no_grad(), torch.autocast(device, enabled=False) if is_autocast else nullcontext():
            maps, centers = [], []
            for of_layer in evidence:
                # Of Grad-CAM and other weightings this is WeightingMethod.compute_raw_maps, with the ReLU.
                raw = method.compute_raw_maps(of_layer, **options)
                _check_maps(method, of_layer, raw)
                maps.append(raw)
                # Methods may return maps on another grid than the layer's, e.g. the input's.
                at_depths = method.reads_depths
                centers.append(None if method.at_input_size else of_layer.find_centers(raw, at_depths=at_depths))
            return (maps[0], centers[0]) if len(maps) == 1 else self._merge(maps, centers, evidence)

    def _merge(
        self, maps: Sequence[Tensor], centers: Sequence[CellCenters | None], evidence: Sequence[Evidence]
    ) -> tuple[Tensor, CellCenters | None]:
        """Return the maps of several layers as one, and the centers of its cells."""
        evidence[0].refined.clear()  # that of one layer
        merged = merges.merge_maps(
            maps, self.merge, lambda: merges.compute_means([of_layer.gradients for of_layer in evidence]), centers
        )
        if merged.shape[:1] != maps[0].shape[:1] or merged.ndim != maps[0].ndim:
            raise MethodError(
                f"merge returned {tuple(merged.shape)} for maps {tuple(maps[0].shape)}; it must keep the number of "
                "maps and of their axes."
            )
        finest = merges.find_finest(maps)
        return merged, centers[finest] if merged.shape == maps[finest].shape else None


@dataclass(frozen=True)
class ExplainedRow:
    """Source of an explanation, see :class:`camtool.explaining.explanation.Source`.

    Attributes:
        explainer: The explainer of the batch.
        method: The method that was used.
        layers: The names of the layers that were used; empty strings for a method at the input.
        batch: The batch.
        image: The index of the image.
        target: The target, as it was resolved.
    """

    explainer: BatchExplainer
    method: Method
    layers: Sequence[str]
    batch: InputBatch
    image: int
    target: targets.Target

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self.explainer.model

    @property
    def engines(self) -> Sequence[str]:
        """The engines that run it, in order."""
        return self.explainer.engines

    def find_regions(self, explanation: Explanation, kind: str, *arguments: Any) -> VerifiedRegion:
        """Return what :func:`camtool.explaining.refining.find_regions` does."""
        return find_regions(explanation, kind, *arguments)

    def gather_at_input(self) -> tuple[Evidence, PreparedInput]:
        """Return the evidence about the target at the input, from a new forward pass, and the prepared image."""
        alone = self._select_image()
        forward_pass = replace(self.explainer, methods=(), engines=()).run_batch(alone)
        (evidence,) = gather_evidence(forward_pass, [self.target], [0], at_input=True)
        return evidence, alone.items[0]

    def explain_best(self, count: int) -> list[Explanation]:
        """Return what explains the target and the model's highest answers, the target alone if that takes long."""
        is_quick = self.method.cost == "a pass" and not self.method.is_class_agnostic
        wanted = [self.target, *([targets.Top(count)] if is_quick else [])]
        with Cleanup(), guard(self.model):
            return list(self._prepare_explainer().explain(self._select_image(), [wanted])[0])

    def check(self, explanation: Explanation, only: Collection[str] | None = None) -> CheckReport:
        """Return the findings about the explanation, see :meth:`Explanation.check`.

        Args:
            explanation: What was made from it.
            only: The names of the checks that run; by default all.
        """
        explainer, method, alone = self.explainer, self.method, self._select_image()
        training = find_training_modules(self.model)
        single = self._prepare_explainer()
        with Cleanup(), guard(self.model):
            # Each forward pass restores the generators, so with the old states a random model would repeat its map.
            seed_generators_anew()
            forward_pass = single.run_batch(alone)
            evidence = gather_evidence(forward_pass, [self.target], [0], at_input=method.ignores_layer)
            context = CheckContext(
                raw=explanation.raw,
                item=alone.items[0],
                geometry=explanation.geometry,
                evidence=evidence,
                method=method,
                recompute=lambda others: single.compute_merged_maps(method, others)[0].float().cpu().numpy(),
                training=training,
                labels=single.find_labels(forward_pass)[0],
                transform=explainer.transforms[0],
                declared=explainer.transforms[1],
                is_layer_given=explainer.layers is not None,
            )
            at_layer = f" at {explanation.layer}" if explanation.layer else ""
            title = f"{explanation.label}, {explanation.method}{at_layer}"
            return run_checks(context, title, explanation.warnings, only)

    def _prepare_explainer(self) -> BatchExplainer:
        """Return the explainer of this row alone, by the model as it is."""
        layers = [name for name in self.layers if name] or None
        return replace(self.explainer, methods=[self.method], has_many_methods=False, layers=layers, engines=())

    def _select_image(self) -> InputBatch:
        return self.batch.select(slice(self.image, self.image + 1))


@dataclass(frozen=True)
class VerifyingExplainer(BatchExplainer):
    """Does what its base does, and adds what the test of places finds to the warnings.

    Attributes:
        verify: Which explanations are tested.
    """

    verify: Verify = "places"
    _tested: set[object] = field(default_factory=set, init=False)

    def _explain_rows(
        self, method: Method, forward_pass: ForwardPass, batch: InputBatch, rows: Sequence[Row]
    ) -> list[Explanation]:
        explanations = super()._explain_rows(method, forward_pass, batch, rows)
        return [self._test(each) if self._is_due(each, forward_pass) else each for each in explanations]

    def _is_due(self, explanation: Explanation, forward_pass: ForwardPass) -> bool:
        question = explanation.method, explanation.layer, forward_pass.image_input.shape[1:]
        is_known = question in self._tested
        self._tested.add(question)
        names = explanation.layer.split(" + ")
        return (
            self.verify == "places"
            or not is_known
            or any(forward_pass.find_place(layer).by_content for layer in forward_pass.layers if layer.name in names)
        )

    def _test(self, explanation: Explanation) -> Explanation:
        codes = {warning.code for warning in explanation.warnings}
        report = explanation.get_source("the test of places").check(explanation, only=("place",))
        found = [finding for finding in report.findings if finding.code not in codes]
        new = [MapWarning(finding.sentence, finding.code, finding.places) for finding in found]
        return replace(explanation, warnings=(*explanation.warnings, *new))


# ----------------------------------------------------------------------------------------------------------- checks


def _check_row_counts(outputs: Mapping[str, Tensor], count: int) -> None:
    """Check that each layer returns one row for each image."""
    for name, output in outputs.items():
        if len(output) != count:
            refuse = LayerError if count == 1 else SeveralImagesError
            raise refuse(
                f"layer {name!r} returned {format_count(len(output), 'row')} in its last call for "
                f"{format_count(count, 'image')}. Pass one image at a time, or choose another layer."
            )


def _check_maps(method: Method, evidence: Evidence, raw: object) -> None:
    """Check that a method returned one map for each row, on any grid with as many axes as the input's.

    Raises:
        MethodError: It returned something else.
    """
    like = evidence.inputs[:, 0] if method.ignores_layer else evidence.activations[:, 0]
    is_maps = isinstance(raw, Tensor) and raw.ndim == like.ndim and len(raw) == len(evidence.images) and raw.numel() > 0
    if not is_maps:
        returned = tuple(raw.shape) if isinstance(raw, Tensor) else type(raw).__name__
        raise MethodError(
            f"method {method.name!r} returned {returned}; it must return maps "
            f"{(len(evidence.images), *like.shape[1:])}, or maps on another grid with as many axes."
        )


def _flatten(results: Any) -> list[Explanation]:
    """Return the explanations of nested lists."""
    return [result for part in results for result in _flatten(part)] if isinstance(results, list) else [results]
