# Overloads overlap on purpose: to a type checker a path is a sequence of paths. The first overload that fits counts.
# mypy: disable-error-code="overload-overlap"
"""From images to explanations: :func:`explain` for one call, :class:`Explainer` for many with the same settings.

Both return :class:`camtool.Explanation`, or lists of it. The path of a call is: prepare the input, run one forward pass
with hooks on the layers, resolve the target on what the model returned, let the method compute maps, and check them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypedDict, cast, get_args, overload

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from camtool import targets
from camtool.arguments.checks import check_choice
from camtool.arguments.explain_arguments import check_settings, match_targets
from camtool.arguments.models import check_argument_order, get_module
from camtool.arguments.other_libraries import explain_foreign_arguments
from camtool.device_overlays import DeviceMaps, compute_maps, to_class_tensor, to_device_pixels
from camtool.engines.comparison import describe_difference
from camtool.engines.observers import CompiledObserver, EngineName, list_engines
from camtool.errors import CamtoolError, MethodError, NotCompilableError, TargetError
from camtool.evidence.evidence import Evidence, gather_evidence, gather_evidence_by_level
from camtool.evidence.forward_pass import ForwardPass
from camtool.explanation import Explanation
from camtool.geometry.cell_centers import CellCenters, Placement
from camtool.hooks.observation import Observe, observe, observe_connected
from camtool.inputs.data_kinds import DataKind
from camtool.inputs.input_preparer import InputBatch, InputPreparer, PreparedInput
from camtool.inputs.model_inputs import Inputs, Key
from camtool.layers.selection import find_layers, find_level_layers
from camtool.methods import (
    Method,
    MethodFunction,
    check_model_support,
    check_options,
    find_asked_depths,
    find_method,
    merges,
)
from camtool.methods.options import encode_text_options
from camtool.models import Loaded, Transform, resolve_labels, resolve_phrases, to_loaded, unwrap_layer
from camtool.outputs.class_scores import describe_chosen_tensor
from camtool.outputs.detections import Detections
from camtool.rendering.colormaps import DEFAULT_COLORMAP
from camtool.rendering.device_overlay import blend_batch
from camtool.state.cleanup import Cleanup
from camtool.state.model_state import hold_model
from camtool.state.thread_state import preserve_thread_state
from camtool.structures import model_cache
from camtool.structures.module_names import find_detector_transform, find_module_name
from camtool.trust.map_warnings import find_map_warnings

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import NDArray
    from PIL import Image
    from typing_extensions import Unpack

    from camtool.rendering.colormaps import Colormap

__all__ = ["Explainer", "explain"]

# ------------------------------------------------------------------------------------------------------------ types

Model: TypeAlias = "nn.Module | Loaded"
Layers: TypeAlias = "str | nn.Module | Sequence[str | nn.Module] | None"

OneImage: TypeAlias = "str | PathLike[str] | bytes | Image.Image | PreparedInput"
"""A single image, recognized by its type. :meth:`Explainer.prepare` makes a ``PreparedInput``."""

Arrays: TypeAlias = "Tensor | NDArray[Any] | Inputs | Mapping[str, Any]"
"""A single image or a batch. Its number of axes decides, which a type checker does not see."""

Images: TypeAlias = "OneImage | Arrays | Sequence[OneImage | Arrays]"

OneTarget: TypeAlias = "int | str | targets.Target | Callable[[Any], Tensor] | None"
Targets: TypeAlias = "Sequence[OneTarget] | Tensor | NDArray[np.integer[Any]]"
"""One target for each image; for a single image, several targets."""

AnyTargets: TypeAlias = (
    "targets.TargetLike | Targets | Sequence[targets.TargetLike | Targets | Sequence[targets.TargetLike]]"
)

OneMethod: TypeAlias = "str | MethodFunction"

if TYPE_CHECKING:

    class ExplanationOrList(Explanation, list[Explanation]):  # type: ignore[misc]
        """An :class:`Explanation`, or a list of them for a batch.

        Only type checkers and editors see this class. A tensor's type does not show whether it is one image or a batch,
        so they are offered the attributes of both; a union would make an error of each.
        """


Result = TypeVar("Result", default=Explanation)
"""Result of an :class:`Explainer` for one image and one target: an explanation, or a list with one per method."""


class Settings(TypedDict, total=False):
    """Keyword arguments of :func:`explain` and :class:`Explainer`, which :func:`explain` documents."""

    merge: str | Callable[[Tensor], Tensor]
    transform: Transform | None
    labels: Sequence[str] | None
    device: torch.device | str | None
    batch_size: int
    image: Key | None
    call_index: int | None
    kind: DataKind | None
    placement: Placement
    engine: EngineName


class LayerSettings(Settings, total=False):
    """Keyword arguments of :func:`explain`; for :class:`Explainer`, ``layer`` is positional as well."""

    layer: Layers


# ---------------------------------------------------------------------------------------------------------- explain

# The overloads say what a call returns. Options of a method have no types, so a call with options must name its method
# and matches one of the last overloads.


@overload  # one image, one target
def explain(
    model: Model,
    img: OneImage,
    target_class: OneTarget = None,
    *,
    method: OneMethod = "gradcam",
    **settings: Unpack[LayerSettings],
) -> Explanation: ...
@overload  # a tensor or an array: one image (3-D), or a batch (4-D, even of one image), which gives a list
def explain(
    model: Model,
    img: Arrays,
    target_class: OneTarget = None,
    *,
    method: OneMethod = "gradcam",
    **settings: Unpack[LayerSettings],
) -> ExplanationOrList: ...
@overload  # several images, one target for all
def explain(
    model: Model,
    img: Sequence[OneImage | Arrays],
    target_class: OneTarget = None,
    *,
    method: OneMethod = "gradcam",
    **settings: Unpack[LayerSettings],
) -> list[Explanation]: ...
@overload  # one target for each image, or several targets for a single image
def explain(
    model: Model,
    img: Images,
    target_class: Targets,
    *,
    method: OneMethod = "gradcam",
    **settings: Unpack[LayerSettings],
) -> list[Explanation]: ...
@overload  # several targets for a single image: those that the model ranks highest
def explain(
    model: Model,
    img: OneImage,
    target_class: targets.Top,
    *,
    method: OneMethod = "gradcam",
    **settings: Unpack[LayerSettings],
) -> list[Explanation]: ...
@overload  # several targets for each image
def explain(
    model: Model,
    img: Images,
    target_class: targets.Top | Sequence[targets.Top | Targets],
    *,
    method: OneMethod = "gradcam",
    **settings: Unpack[LayerSettings],
) -> list[list[Explanation]]: ...
@overload  # one image and one target, with options of the method
def explain(
    model: Model, img: OneImage, target_class: OneTarget = None, *, method: OneMethod, **options: Any
) -> Explanation: ...
@overload  # several methods for one image and one target
def explain(
    model: Model,
    img: OneImage,
    target_class: OneTarget = None,
    *,
    method: Sequence[OneMethod],
    **options: Any,
) -> list[Explanation]: ...
@overload  # any other call with options or with several methods
def explain(
    model: Model,
    img: Images,
    target_class: AnyTargets = None,
    *,
    method: OneMethod | Sequence[OneMethod],
    **options: Any,
) -> Any: ...
@explain_foreign_arguments
def explain(model: Model, img: Images, target_class: AnyTargets = None, **options: Any) -> Any:
    """Explain a prediction: return an :class:`Explanation` for one image, a list for several images.

        result = camtool.explain(model, "cat.jpg", "tabby")
        result.save("where.png")

    A 4-D tensor is a batch and gives a list, even if it holds one image. The model's state does not change.

    Args:
        model: A module, or what :func:`camtool.load` returned. Wrappers such as ``DataParallel`` and the modules that
            ``torch.compile`` returns are unwrapped; layers have the names that they have in the model inside.
        img: A path, bytes, a PIL image, an array ``(H, W)`` or ``(H, W, 1|3|4)`` of uint8 or of floats in [0, 1], or a
            tensor; or a list of these. A 4-D tensor ``(N, C, H, W)`` is the model's input already and is not
            transformed; so is a floating 3-D one if no ``transform`` is given. Signals, volumes and clips are tensors
            or arrays, one or a batch. Several inputs come as :class:`camtool.Inputs` or, by name, in a dictionary.
        target_class: What to explain: ``None`` for the model's top class, an index, a label, a
            :class:`camtool.targets.Top`, another target, or a callable from one image's output to a number. For several
            images a list gives one target per image; for one image it gives several targets; a list of lists does both.
            For a segmenter a class is explained where the model predicts it, and ``None`` is the class with the largest
            area. For a detector a class is its most confident detection, and ``None`` the most confident of all. A
            single output is taken as the score of two classes; use :class:`camtool.targets.Value` for a regression.
            Models such as CLIP take a text: ``"a photo of a dog"``.
        method: A name in :data:`camtool.METHODS`, a function from evidence to maps, or several of these.
        layer: The layer to explain at: a dotted name, a module, or several. By default the best layer is found.
        merge: How the maps of several layers become one: a name in :data:`camtool.methods.merges.MERGES` or a function.
        transform: From PIL image to the model's input, if ``model`` does not bring it.
        labels: The names of the classes, if ``model`` does not bring them.
        device: The device of the inputs; by default the model's.
        batch_size: The largest number of images in a forward pass. Methods at the input run one for each target.
        image: The image among several inputs, by position or by name; see :class:`camtool.Inputs`.
        call_index: Which call of the layer to explain if it runs more than once in a forward pass: 0 is the first, -1
            the last. By default the last; for several inputs the last that depends on the image.
        kind: ``"image"``, ``"signal"`` ``(N, C, L)``, ``"volume"`` ``(N, C, D, H, W)`` or ``"clip"``
            ``(N, C, T, H, W)``, if neither the model's convolutions nor the shape decides. The channels must come
            before the frames.
        placement: Placement of a layer's grid on the input. By default each cell is drawn at the center of its
            receptive field: for strided convolutions with symmetric padding this is half a cell up and to the left of
            a grid that is stretched over the input. ``"stretch"`` draws as other libraries do. See
            :mod:`camtool.layers.centers`.
        engine: How the model runs. ``"eager"``: as it is. ``"prepared"``: a copy with norms folded into convolutions,
            in channels-last memory format. ``"onnxruntime"``, ``"openvino"``: compiled graphs; they take seconds to
            compile, once for each model, layer and input size. ``"auto"``: the first of these graphs that is installed.
            The first results are compared with the model's own. If they differ, or the engine cannot run the model, the
            next one is used, and a line in the log says why. See docs/engines.md.
        **options: Options of the method.

    Returns:
        An :class:`Explanation` for one image, one target and one method. Several images, targets or methods give
        lists, nested in that order.

    Raises:
        CamtoolError: An argument does not fit; :mod:`camtool.errors` lists the classes.
    """
    # The settings are among the options here, as their names and defaults are written in Explainer.
    explainer: Any = Explainer(model, **options)
    return explainer(img, target_class)


class Explainer(Generic[Result]):
    """:func:`explain` with fixed settings, for many images or for the batches of a loader.

        explainer = camtool.Explainer(model, method="layercam")
        for batch, classes in loader:
            results = explainer(batch, classes)

    The arguments are those of :func:`explain`. No hooks stay on the model between calls.

    Raises:
        MethodError: A method, an option or a merge is unknown.
        LayerError: A module given as ``layer`` is not part of the model.
        CamtoolError: ``device`` is not the model's, or a list of methods or layers is empty.
    """

    @overload
    def __init__(
        self: Explainer[Explanation],
        model: Model,
        method: OneMethod = "gradcam",
        layer: Layers = None,
        **settings: Unpack[Settings],
    ) -> None: ...
    @overload
    def __init__(
        self: Explainer[Explanation], model: Model, method: OneMethod, layer: Layers = None, **options: Any
    ) -> None: ...
    @overload
    def __init__(
        self: Explainer[list[Explanation]],
        model: Model,
        method: Sequence[OneMethod],
        layer: Layers = None,
        **options: Any,
    ) -> None: ...
    def __init__(
        self,
        model: Model,
        method: OneMethod | Sequence[OneMethod] = "gradcam",
        layer: Layers = None,
        *,
        merge: str | Callable[[Tensor], Tensor] = "mean",
        transform: Transform | None = None,
        labels: Sequence[str] | None = None,
        device: torch.device | str | None = None,
        batch_size: int = 32,
        image: Key | None = None,
        call_index: int | None = None,
        kind: DataKind | None = None,
        placement: Placement = "centers",
        engine: EngineName = "eager",
        **options: Any,
    ) -> None:
        loaded, whole = to_loaded(model), get_module(model)
        # A model of two towers is explained by its image tower, whose reference to the whole model is weak.
        self._model, self._text, self._whole = loaded.model, loaded.text, whole
        check_settings(transform, labels, batch_size, image, call_index)
        check_choice("placement", placement, get_args(Placement))
        self._labels = labels if labels is not None else loaded.labels
        if self._text is not None and self._labels is not None:
            raise TargetError("labels: this model compares images with texts; give the texts as target_class instead.")
        self._methods = [find_method(each) for each in _to_list(method)]
        self._has_many_methods = isinstance(method, (list, tuple))
        self._needs_layers = not all(method.ignores_layer for method in self._methods)
        modules = [] if layer is None else [unwrap_layer(whole, each) for each in _to_list(layer)]
        self._layers = None if layer is None else [find_module_name(self._model, each) for each in modules]
        self._merge = merges.get_merge(merge)
        self._preparer = InputPreparer(self._model, transform or loaded.transform, device, kind=kind)
        self._image, self._call_index, self._batch_size, self._options = image, call_index, batch_size, options
        self._placement = placement
        check_options(self._methods, options)
        check_model_support(self._methods, self._model)
        self._depths = find_asked_depths(self._methods, options)
        self._engines = list_engines(engine, [each.name for each in self._methods if not each.can_be_compiled])
        for name, given in (("method", self._methods), ("layer", self._layers)):
            if given is not None and not given:
                raise CamtoolError(f"{name} asks for nothing; give one or more.")

    @overload
    def __call__(self, img: OneImage, target_class: OneTarget = None) -> Result: ...
    @overload
    def __call__(self, img: Arrays, target_class: OneTarget = None) -> Any: ...
    @overload
    def __call__(self, img: Sequence[OneImage | Arrays], target_class: OneTarget = None) -> list[Result]: ...
    @overload
    def __call__(self, img: Images, target_class: Targets) -> list[Result]: ...
    @overload
    def __call__(self, img: OneImage, target_class: targets.Top) -> list[Result]: ...
    @overload
    def __call__(
        self, img: Images, target_class: targets.Top | Sequence[targets.Top | Targets]
    ) -> list[list[Result]]: ...
    @explain_foreign_arguments
    def __call__(self, img: Images, target_class: AnyTargets = None) -> Any:
        """Explain images; the arguments and the results are those of :func:`explain`."""
        check_argument_order(img, target_class)
        # The first block takes over if an interrupt arrives just as one of the others ends.
        with Cleanup(), preserve_thread_state(), hold_model(self._model):
            count, batches = self._preparer.prepare_batches(
                img,
                self._batch_size,
                image=self._image,
                layers=self._layers,
                call_index=self._call_index,
                needs_layers=self._needs_layers,
            )
            requests = match_targets(target_class, count)
            results: list[Any] = []
            for batch in batches:
                asked = requests[len(results) : len(results) + len(batch.items)]
                results += self._explain_batch(batch, asked)
            return results[0] if count is None else results

    def prepare(self, img: OneImage | Tensor | NDArray[Any]) -> PreparedInput:
        """Prepare one image for the model: read, crop, resize and normalize it. It may be given in place of the image.

        Other threads can do this while the model runs; then the transform must be one that several threads may call::

            with ThreadPoolExecutor() as pool:
                for prepared in batched(pool.map(explainer.prepare, paths), 8):
                    results = explainer(list(prepared))

        Raises:
            ImageError: The image cannot be read, or the transform made no input of it.
            GeometryError: The transform is more than a crop and a resize.
        """
        return self._preparer.prepare(img)

    def draw_overlays(
        self,
        images: Tensor,
        target_class: int | Tensor | Sequence[int] | None = None,
        *,
        alpha: float | None = None,
        colormap: Colormap = DEFAULT_COLORMAP,
    ) -> Tensor:
        """Return overlays of a prepared batch as one tensor on its device, e.g. for a training loop or a service.

        Nothing is copied to the host, and no map is checked: there are no explanations and no warnings. ``engine`` has
        no effect.

        Args:
            images: ``(N, 1 or 3, H, W)`` floating, as the model gets them.
            target_class: The class of all images, or one for each; ``None`` for the class with the highest score.
            alpha: The opacity of the colors where the heatmap is 1, from 0 to 1.
            colormap: A name or a color map of matplotlib.

        Returns:
            ``(N, 3, H, W)`` uint8. Without a transform the images are taken as values in [0, 1].

        Raises:
            MethodError: There are several methods, or the method needs more than activations and gradients.
            TargetError: There is another number of classes than of images.
            CamtoolError: The model is no classifier.
        """
        with Cleanup(), preserve_thread_state(), hold_model(self._model):
            batch = self._preparer.to_model(images)
            pixels = to_device_pixels(batch, self._preparer.transform)
            maps = self._compute_device_maps("draw_overlays", batch, target_class, differentiable=False)
            return blend_batch(pixels, maps.to_heatmaps(batch.shape[2:]), alpha=alpha, colormap=colormap)

    def compute_maps(
        self,
        images: Tensor,
        target_class: int | Tensor | Sequence[int] | None = None,
        *,
        resize: bool = False,
        differentiable: bool = False,
    ) -> Tensor:
        """Return maps of a prepared batch as one tensor on its device, e.g. for a loss that says where to look.

        Nothing is copied to the host, and no map is checked: there are no explanations and no warnings. The model runs
        in evaluation mode, and ``engine`` has no effect.

        Args:
            images: ``(N, C, *size)`` floating, as the model gets them.
            target_class: The class of all images, or one for each; ``None`` for the class with the highest score.
            resize: Return heatmaps in [0, 1] at the size of the images, with each cell where the layer looked. By
                default the method's own values at the layer's size are returned.
            differentiable: Record the graph from the model's parameters, and from the images if they require a
                gradient, to the maps. This takes the memory of training.

        Returns:
            ``(N, *grid)``, or ``(N, *size)``.

        Raises:
            MethodError: There are several methods, or the method needs more than activations and gradients.
            TargetError: There is another number of classes than of images.
            CamtoolError: The model is no classifier.
        """
        with Cleanup(), preserve_thread_state(), hold_model(self._model):
            batch = self._preparer.to_model(images)
            maps = self._compute_device_maps("compute_maps", batch, target_class, differentiable=differentiable)
            return maps.to_heatmaps(batch.shape[2:]) if resize else maps.raw

    def _compute_device_maps(
        self, caller: str, batch: Tensor, target_class: Any, *, differentiable: bool
    ) -> DeviceMaps:
        """Return the maps of a batch without explanations."""
        if len(self._methods) != 1 or not self._needs_layers:
            raise MethodError(f"{caller} takes one method that looks at a layer, e.g. 'gradcam'.")
        (method,) = self._methods
        options = {name: value for name, value in self._options.items() if name in method.options}
        classes = to_class_tensor(target_class, batch)
        run = observe_connected if differentiable else observe
        forward_pass = self._run_forward_pass(run, InputBatch([], batch, self._call_index))
        return compute_maps(forward_pass, method, options, classes, self._merge, differentiable=differentiable)

    def _explain_batch(self, batch: InputBatch, requests: Sequence[Any]) -> list[Any]:
        """Return for each image what was requested of it, by the first engine that gives the model's own results."""
        for engine in self._engines:
            observer = CompiledObserver(engine)
            try:
                results = self._explain_with(observer, batch, requests)
            except NotCompilableError as error:
                observer.give_up(str(error))
                continue
            question = self._describe_question(batch, requests)
            if observer.has_agreed(question):
                return results
            expected = self._explain_with(observe, batch, requests)
            ours, theirs = _flatten(results), _flatten(expected)
            difference = describe_difference(ours, theirs)
            if difference is not None:
                observer.give_up(difference)
            elif any(each.raw.any() for each in theirs):  # empty maps show nothing
                observer.note_agreement(question)
            return expected
        return self._explain_with(observe, batch, requests)

    def _describe_question(self, batch: InputBatch, requests: Sequence[Any]) -> object:
        """Return what an engine's results depend on beside weights and pixels."""
        methods = tuple(method.name for method in self._methods)
        kinds = {type(each) for request in requests for each in _to_list(request)}
        options = tuple((name, repr(value)) for name, value in sorted(self._options.items()))
        is_alone = len(batch.items) == 1  # a model may treat a single image differently
        return methods, self._merge, options, frozenset(kinds), is_alone

    def _explain_with(self, observe: Observe, batch: InputBatch, requests: Sequence[Any]) -> list[Any]:
        """Return for each image what was requested of it: an explanation, or a list over targets, methods or both."""
        texts = requests if self._text is None else targets.encode_texts(requests, self._text)
        forward_pass = self._run_forward_pass(observe, batch)
        labels = self._find_labels(forward_pass)
        resolve = partial(
            targets.resolve_targets, link=forward_pass.find_link(), find_class_vectors=forward_pass.find_class_vectors
        )
        by_image = [
            [target for each in _to_list(request) for target in resolve(each, output, names, item.view.geometry)]
            for request, output, names, item in zip(texts, forward_pass.predictions, labels, batch.items, strict=True)
        ]
        # A row is one target on one image; all rows share the forward pass.
        rows = [(image, target) for image, own in enumerate(by_image) for target in own]
        by_method = [self._explain_rows(method, forward_pass, rows, batch.items, labels) for method in self._methods]
        by_row: Iterator[Any] = iter(zip(*by_method, strict=True) if self._has_many_methods else by_method[0])
        results: list[Any] = []
        for request, own in zip(requests, by_image, strict=True):
            found = [next(by_row) for _ in own]
            found = [list(each) for each in found] if self._has_many_methods else found
            results.append(found if targets.asks_for_several(request) else found[0])
        return results

    def _find_labels(self, forward_pass: ForwardPass) -> list[Sequence[str] | None]:
        """Return the names of the classes for each image; those of an open vocabulary are the phrases of its text."""
        phrases = [each.phrases for each in forward_pass.predictions if isinstance(each, Detections) and each.phrases]
        if phrases:
            return [resolve_phrases(self._model, self._labels, each) for each in phrases]
        return [resolve_labels(self._model, self._labels, forward_pass.class_count)] * len(forward_pass.predictions)

    def _run_forward_pass(self, observe: Observe, batch: InputBatch) -> ForwardPass:
        """Run one forward pass with hooks on the layers."""
        black, call_index = batch.items[0].black if batch.items else None, batch.call_index
        for is_last_try in (False, True):
            layers = []
            if self._needs_layers:
                index = -1 if call_index is None else call_index
                layers = find_layers(self._model, batch.inputs, self._layers, call_index=index)
                if self._layers is None:
                    layers = find_level_layers(self._model, batch.inputs, call_index=index) or layers
            forward_pass = ForwardPass(
                self._model,
                batch.inputs,
                layers,
                black=black,
                call_index=call_index,
                placement=self._placement,
                depths=self._depths,
                observe=observe,
            )
            outputs = forward_pass.layer_outputs
            if is_last_try or all(
                layer.layout.fits(outputs[layer.name].shape) for layer in forward_pass.observed_layers
            ):
                break
            # The user changed the model since the layouts were cached, so they are read again.
            model_cache.forget_model(self._model)
        return forward_pass

    def _explain_rows(
        self,
        method: Method,
        forward_pass: ForwardPass,
        rows: Sequence[tuple[int, targets.Target]],
        items: Sequence[PreparedInput],
        labels: Sequence[Sequence[str] | None],
    ) -> list[Explanation]:
        """Return one explanation for each row, an image's index and a target, by one method."""
        wanted, images = [target for _, target in rows], [image for image, _ in rows]
        if method.ignores_layer or self._layers is not None or len(forward_pass.layers) < 2:
            evidence = gather_evidence(forward_pass, wanted, images, at_input=method.ignores_layer)
            return self._explain_evidence(method, forward_pass, evidence, rows, items, labels)
        # No layer was named, so several are those of a detector's feature levels: each row has its own.
        found: dict[int, Explanation] = {}
        for own, at_level in gather_evidence_by_level(forward_pass, wanted, images):
            of_level = [rows[row] for row in own]
            results = self._explain_evidence(method, forward_pass, [at_level], of_level, items, labels)
            found.update(zip(own, results, strict=True))
        return [found[row] for row in range(len(rows))]

    def _explain_evidence(
        self,
        method: Method,
        forward_pass: ForwardPass,
        evidence: Sequence[Evidence],
        rows: Sequence[tuple[int, targets.Target]],
        items: Sequence[PreparedInput],
        labels: Sequence[Sequence[str] | None],
    ) -> list[Explanation]:
        """Return one explanation for each row, from the evidence about these rows at one or more layers."""
        is_ignored = method.ignores_layer and self._layers is not None
        notes = [f"Method {method.name!r} looks at no layer, so layer= makes no difference."] if is_ignored else []
        choice = describe_chosen_tensor(forward_pass.output)
        # Single numbers are read from here on, which arrays give several times faster than tensors.
        merged, place = self._compute_maps(method, evidence)
        maps, scores = merged.float().cpu().numpy(), evidence[0].scores.tolist()
        by_class = forward_pass.compute_probabilities()
        probabilities = [None] * len(items) if by_class is None else by_class.cpu().numpy()
        detector = None if method.ignores_layer else find_detector_transform(self._model)
        layer = " + ".join(each.layer for each in evidence)
        explanations = []
        for row, (image, target) in enumerate(rows):
            item, probability = items[image], probabilities[image]
            context = targets.ScoreContext(scores[row], probability, forward_pass.find_link())
            choices = [choice] if choice is not None and target.reads_scores() else []
            doubts = find_map_warnings(evidence, maps[row], row, target, context)
            explanation = Explanation(
                raw=maps[row],
                view=item.view if detector is None else item.view.for_detector(detector),
                label=target.describe(labels[image]),
                index=target.get_class_index(),
                score=scores[row],
                probability=target.get_probability(context),
                method=method.name,
                layer=layer,
                warnings=(*item.notes, *notes, *choices, *_collect_notes(evidence, row), *doubts),
                box=target.get_box(),
                centers=place,
            )
            explanations.append(explanation)
        return explanations

    def _compute_maps(self, method: Method, evidence: Sequence[Evidence]) -> tuple[Tensor, CellCenters | None]:
        """Return the method's maps of all layers, merged, ``(R, *grid)``, and the centers of their cells."""
        options = {name: value for name, value in self._options.items() if name in method.options}
        if self._text is not None:
            options = encode_text_options(options, self._text)
        device = evidence[0].scores.device.type
        # Maps are computed in their own precision. If autocast is off already, entering it would only take time.
        is_autocast = torch.is_autocast_enabled(device)
        with torch.no_grad(), torch.autocast(device, enabled=False) if is_autocast else nullcontext():
            maps = [method(each, **options) for each in evidence]
            for each, raw in zip(evidence, maps, strict=True):
                _check_maps(method, each, raw)
            # Methods may return maps on another grid than the layer's, e.g. the input's.
            places = [
                None if method.at_input_size else each.find_centers(raw, at_depths=method.reads_depths)
                for each, raw in zip(evidence, maps, strict=True)
            ]
            merged = merges.merge_maps(maps, self._merge, partial(_compute_mean_gradients, evidence), places)
        if merged.shape[:1] != maps[0].shape[:1] or merged.ndim != maps[0].ndim:
            raise MethodError(
                f"merge returned {tuple(merged.shape)} for maps {tuple(maps[0].shape)}; it must keep the number of "
                "maps and of their axes."
            )
        finest = merges.find_finest(maps)
        return merged, places[finest] if merged.shape == maps[finest].shape else None


def _build_signature() -> inspect.Signature:
    """Return the signature of :func:`explain`: that of a call, with the settings of :class:`Explainer` as keywords."""
    _, model, *settings = inspect.signature(Explainer.__init__).parameters.values()
    _, *arguments = inspect.signature(Explainer.__call__).parameters.values()
    keywords = [
        each if each.kind is each.VAR_KEYWORD else each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in settings
    ]
    return inspect.Signature([model, *arguments, *keywords], return_annotation="Explanation | list[Any]")


# help() and notebooks show this signature; the settings and their defaults are written once, in Explainer.
cast("Any", explain).__signature__ = _build_signature()


# ----------------------------------------------------------------------------------------------------------- checks


def _check_maps(method: Method, evidence: Evidence, raw: object) -> None:
    """Check that a method returned one map for each row, on any grid with as many axes as the input's.

    Raises:
        MethodError: It returned something else.
    """
    like = evidence.inputs[:, 0] if method.ignores_layer else evidence.activations[:, 0]
    is_maps = isinstance(raw, Tensor) and raw.ndim == like.ndim and len(raw) == len(evidence.images) and raw.numel() > 0
    if not is_maps:
        came = tuple(raw.shape) if isinstance(raw, Tensor) else type(raw).__name__
        raise MethodError(
            f"method {method.name!r} returned {came}; it must return maps {(len(evidence.images), *like.shape[1:])}, "
            "or maps on another grid with as many axes."
        )


def _compute_mean_gradients(evidence: Sequence[Evidence]) -> Tensor:
    """Return the mean gradient of each layer for each row, ``(L, R)``, the mean of Grad-CAM's weights."""
    return torch.stack([each.gradients.flatten(1).mean(1) for each in evidence])


def _collect_notes(evidence: Sequence[Evidence], row: int) -> list[str]:
    """Return what the method tells the user about a row's map, each note once."""
    return list(dict.fromkeys(note for each in evidence for note in each.notes.get(row, [])))


def _flatten(results: Any) -> list[Explanation]:
    """Return the explanations of nested lists."""
    return [each for part in results for each in _flatten(part)] if isinstance(results, list) else [results]


def _to_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
