# Overloads overlap on purpose: to a type checker a path is a sequence of paths. The first overload that fits counts.
# mypy: disable-error-code="overload-overlap"
"""From images to explanations: :func:`explain` for one call, :class:`Explainer` for many with the same settings.

Both return :class:`camtool.Explanation`, or lists of it. This module checks and prepares what the user gave;
:mod:`camtool.explaining.pipeline` explains the batches.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, get_args, overload

import torch
from torch import Tensor

import camtool
from camtool import targets
from camtool.arguments.checks import check_choice
from camtool.arguments.explain_arguments import (
    check_argument_order,
    check_class_index,
    check_settings,
    explain_foreign_arguments,
    get_module,
    is_function,
    match_targets,
    read_by_position,
    to_list,
)
from camtool.arguments.message_parts import add_article
from camtool.engines.engine_runner import list_engines
from camtool.errors import CamtoolError, MethodError, TargetError
from camtool.explaining.device_maps import ClassMaps, read_classes, to_device_pixels
from camtool.explaining.explanation import Explanation, ExplanationList
from camtool.explaining.pipeline import BatchExplainer, Prediction, VerifyingExplainer
from camtool.explaining.types import (
    AnyTargets,
    Arrays,
    ClassIndices,
    Images,
    Layers,
    Methods,
    Model,
    OneImage,
    OneMethod,
    OneTarget,
    Result,
    Settings,
    SeveralTargets,
    Targets,
    Verify,
)
from camtool.geometry.cell_centers import Placement
from camtool.hooks.chunks import MOST_ROWS
from camtool.hooks.observation import run_with_full_graph
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.state.guard import guard
from camtool.hooks.structures.caches import remember_for_model
from camtool.hooks.structures.modules import find_module_name
from camtool.inputs.formats.file_image import FileImage
from camtool.inputs.image_files import ImageSource
from camtool.inputs.input_preparer import InputPreparer, ReadOnDemand
from camtool.inputs.prepared_inputs import InputBatch, PreparedInput
from camtool.methods import adapt_method, check_options, find_method, merges
from camtool.methods.registry import read_depths
from camtool.models import Loaded, Transform, to_loaded, unwrap_layer
from camtool.outputs.class_scores import UserScore
from camtool.progress import follow_images
from camtool.rendering.colormaps import DEFAULT_COLORMAP
from camtool.rendering.overlay import blend_batch
from camtool.warning_codes import MapWarning

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image
    from typing_extensions import Unpack

    from camtool.explaining.types import ExplainKeywords, ExplanationOrList, SettingKeywords
    from camtool.rendering.colormaps import Colormap

_LOG = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")
_IMAGES_AT_ONCE = 32
_SETTINGS = tuple(Settings.__dataclass_fields__)
_EXPLAINERS: dict[str | None, Callable[..., BatchExplainer]] = {
    None: BatchExplainer,
    **{verify: partial(VerifyingExplainer, verify=verify) for verify in get_args(Verify)},
}

# ---------------------------------------------------------------------------------------------------------- explain

# The overloads say what a call returns. Options of a method have no types, so a call with options must name its method
# and matches one of the last overloads.


@overload  # one image, one target
def explain(
    model: Model, img: OneImage, target_class: OneTarget = None, **settings: Unpack[ExplainKeywords]
) -> Explanation: ...
@overload  # a tensor or an array: one image (3-D), or a batch (4-D, even of one image), which gives a list
def explain(
    model: Model, img: Arrays, target_class: OneTarget = None, **settings: Unpack[ExplainKeywords]
) -> ExplanationOrList: ...
@overload  # several images, one target for all
def explain(
    model: Model, img: Sequence[OneImage | Arrays], target_class: OneTarget = None, **settings: Unpack[ExplainKeywords]
) -> list[Explanation]: ...
@overload  # one target for each image, or several targets for a single image
def explain(
    model: Model, img: Images, target_class: Targets, **settings: Unpack[ExplainKeywords]
) -> list[Explanation]: ...
@overload  # several targets for a single image: those that the model ranks highest
def explain(
    model: Model, img: OneImage, target_class: SeveralTargets, **settings: Unpack[ExplainKeywords]
) -> list[Explanation]: ...
@overload  # several targets for each image
def explain(
    model: Model,
    img: Images,
    target_class: SeveralTargets | Sequence[SeveralTargets | Targets],
    **settings: Unpack[ExplainKeywords],
) -> list[list[Explanation]]: ...
@overload  # one image and one target, with options of the method
def explain(
    model: Model, img: OneImage, target_class: OneTarget = None, *, method: OneMethod, **options: Any
) -> Explanation: ...
@overload  # several methods for one image and one target
def explain(
    model: Model, img: OneImage, target_class: OneTarget = None, *, method: Sequence[OneMethod], **options: Any
) -> list[Explanation]: ...
@overload  # any other call with options or with several methods
def explain(model: Model, img: Images, target_class: AnyTargets = None, *, method: Methods, **options: Any) -> Any: ...
@explain_foreign_arguments
def explain(model: Model, img: Images, target_class: AnyTargets = None, **options: Any) -> Any:
    """Explain a prediction: return an :class:`Explanation` for one image, a list for several images.

        result = camtool.explain(model, "cat.jpg", "tabby")
        result.save("where.png")

    A 4-D tensor is a batch and gives a list, even if it holds one image. The model's state does not change.

    Args:
        model: A module, what :func:`camtool.load` returned, or a function from images ``(N, C, H, W)`` to scores
            ``(N, K)``, which needs a method such as ``"occlusion"``. Wrappers such as ``DataParallel`` and the modules
            that ``torch.compile`` returns are unwrapped; layers have the names that they have in the model inside.
        img: A path, a URL of a photo, bytes, a PIL image, an array ``(H, W)`` or ``(H, W, 1|3|4)`` of uint8 or of
            floats in [0, 1], or a tensor; or a list of these. A 4-D tensor ``(N, C, H, W)`` is the model's input
            already and is not transformed; so is a floating 3-D one if no ``transform`` is given. Signals, volumes and
            clips are tensors or arrays, one or a batch. Several inputs come as :class:`camtool.Inputs` or, by name, in
            a dictionary.
        target_class: What to explain: ``None`` for the model's top class, an index, a label, a
            :class:`camtool.targets.Top`, another target, or a callable from one image's output to a number. For several
            images a list gives one target per image; for one image it gives several targets; a list of lists does both.
            For a segmenter a class is explained where the model predicts it, and ``None`` is the class with the largest
            area. For a detector a class is its most confident detection, and ``None`` the most confident of all. A
            single output is taken as the score of two classes; use :class:`camtool.targets.Value` for a regression.
            Models such as CLIP take a text: ``"a photo of a dog"``.
        method: A name in :data:`camtool.METHODS`, a function from evidence to maps, or several of these. ``"auto"``:
            what :func:`camtool.recommend` finds best on the images of the first call with ten images or more, within a
            minute; it is kept for the model. Until then ``"gradcam"``, with a warning.
        layer: The layer to explain at: a dotted name, a module, or several. By default the best layer is found.
        merge: How the maps of several layers become one: a name in :data:`camtool.methods.merges.MERGES` or a function.
        transform: From PIL image to the model's input, if ``model`` does not bring it.
        labels: The names of the classes, if ``model`` does not bring them.
        device: The device of the inputs; by default the model's.
        batch_size: The largest number of rows in a forward pass: of images, one for each target where a method starts
            at the input, and of masked images. By default 32 images, and as many masked ones as fit into memory. Only
            DeepLIFT runs an image and its reference together.
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
            in channels-last memory format. ``"torch.compile"``, ``"onnxruntime"``, ``"openvino"``: compiled graphs;
            they take seconds to compile, once for each model, layer and input size, the first one in each process.
            ``"auto"``: the first of the other two that is installed, or ``"prepared"``.
            The first results are compared with the model's own. If they differ, or the engine cannot run the model, the
            next one is used, and a line in the log says why. See docs/engines.md.
        reading: How files are read, the options of :func:`camtool.open_image`: ``{"bands": (4, 3, 2)}``. See
            docs/formats.md.
        verify: ``"places"`` tests each explanation: do the pixels on which the hottest cell depends lie where it is
            drawn? If not, there is a warning ``heat-elsewhere`` or ``no-places``. It takes a forward pass and two
            backward passes. ``"sizes"`` tests the first image of each size, and each whose content decides where cells
            lie, as runs do. By default :meth:`Explanation.check` tests it.
        **options: Options of the method.

    Returns:
        An :class:`Explanation` for one image, one target and one method. Several images, targets or methods give
        lists, nested in that order.

    Raises:
        CamtoolError: An argument does not fit; :mod:`camtool.errors` lists the classes.
    """
    # Explainer.__call__ below prepares the images; ARCHITECTURE.md lists the steps from here to the map.
    return Explainer(model, **options)(img, target_class)


@explain_foreign_arguments
def predict(
    model: Model,
    img: OneImage,
    target_class: AnyTargets = None,
    *,
    transform: Transform | None = None,
    labels: Sequence[str] | None = None,
    device: torch.device | str | None = None,
) -> list[Prediction]:
    """Return label, score and probability of targets on one image, without maps.

        camtool.predict(model, "photo.jpg", camtool.targets.Top(5))

    The arguments are those of :func:`explain`. It takes one forward pass; the first one for a model may take more, to
    read the size of its images and whether its scores are probabilities.

    Returns:
        One :class:`Prediction` for each target.

    Raises:
        CamtoolError: An argument does not fit, or the model does not run on the image.
    """
    check_argument_order(img, target_class)
    loaded, requests = to_loaded(model), match_targets(target_class, None)
    names = loaded.labels if labels is None else read_by_position(labels)
    loaded = replace(loaded, labels=names, transform=transform or loaded.transform)
    return ask_model(loaded, [img], lambda explainer, batch: explainer.predict(batch, requests), device)


def ask_model(
    loaded: Loaded,
    images: Sequence[OneImage],
    ask: Callable[[BatchExplainer, InputBatch], _Answer],
    device: torch.device | str | None = None,
) -> _Answer:
    """Return what a function finds out about images of one size, as one batch; it leaves no trace of what it runs."""
    preparer = InputPreparer(loaded.model, loaded.transform, device)
    with Cleanup(), guard(loaded.model), torch.no_grad():
        (batch,) = preparer.prepare_batches(images, len(images), needs_layers=False)[1]
        return ask(BatchExplainer(loaded.model, labels=loaded.labels, text=loaded.text), batch)


# Below this number of images a choice of the method would be hardly more than a guess, so the default is kept.
FEW_IMAGES = 10

_TOO_FEW_IMAGES = MapWarning(
    "method='auto' needs ten images or more in one call to choose a method; fewer came, so gradcam was used.",
    "few-images",
)


def _take_settings(options: dict[str, Any]) -> Settings:
    """Remove the settings from the options and return them; some are checked here, the others where they are used."""
    changed = {name: options.pop(name) for name in _SETTINGS if name in options}
    settings = Settings(**changed)
    if not changed:
        return settings
    check_settings(settings.transform, settings.labels, settings.batch_size, settings.image, settings.call_index)
    check_choice("placement", settings.placement, get_args(Placement))
    if settings.verify is not None:
        check_choice("verify", settings.verify, get_args(Verify))
    return settings


def _choose_labels(loaded: Loaded, settings: Settings) -> Sequence[str] | None:
    """Return the labels that the user gave, otherwise those of the model."""
    labels = loaded.labels if settings.labels is None else read_by_position(settings.labels)
    if labels is not None and loaded.text is not None:
        raise TargetError("labels: this model compares images with texts; give the texts as target_class instead.")
    return labels


def _check_alone(layer: Layers, options: Mapping[str, Any]) -> None:
    """Check that ``method="auto"`` comes without a layer and options."""
    if layer is not None or options:
        raise MethodError("method='auto' chooses the layer and takes no options; leave layer= and options out.")


def _check_not_empty(methods: Sequence[object], layers: Sequence[object] | None) -> None:
    if not methods or layers == []:
        raise CamtoolError(f"{'layer' if methods else 'method'} asks for nothing; give one or more.")


def _find_layer_names(layer: Layers, whole: torch.nn.Module, model: torch.nn.Module) -> list[str] | None:
    """Return the names in a model of the layers that the user gave, as they are in the whole; ``None`` for none."""
    if layer is None:
        return None
    return [find_module_name(model, unwrap_layer(whole, choice)) for choice in to_list(layer)]


class Explainer(Generic[Result]):
    """:func:`explain` with fixed settings, for many images or for the batches of a loader.

        explainer = camtool.Explainer(model, method="layercam")
        for batch, classes in loader:
            results = explainer(batch, classes)

    The arguments are those of :func:`explain`. No hooks stay on the model between calls.

    Attributes:
        preparer: Prepares the images.
        batch_explainer: Explains the prepared batches.

    Raises:
        MethodError: A method, an option or a merge is unknown.
        LayerError: A module given as ``layer`` is not part of the model.
        CamtoolError: ``device`` is not the model's, or a list of methods or layers is empty.
    """

    _recommend: Callable[[Any], tuple[str, str | None, str] | None] | None = None
    """Chooses method and layer by the first images; ``None`` once they are chosen, or if a method was named."""

    @overload
    def __init__(
        self: Explainer[Explanation],
        model: Model,
        method: OneMethod = "gradcam",
        layer: Layers = None,
        **settings: Unpack[SettingKeywords],
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
    def __init__(self, model: Model, method: Methods = "gradcam", layer: Layers = None, **options: Any) -> None:
        loaded = to_loaded(model)
        # An image tower has but a weak reference to the whole.
        whole = get_module(model) if isinstance(model, torch.nn.Module) or not is_function(model) else loaded.model
        settings = _take_settings(options)
        labels = _choose_labels(loaded, settings)
        if method == "auto":
            _check_alone(layer, options)
            self._recommend, method = partial(_recommend, model, settings), "gradcam"  # until the first images come
        methods = [find_method(choice) for choice in to_list(method)]
        layers = _find_layer_names(layer, whole, loaded.model)
        _check_not_empty(methods, layers)
        methods = [adapt_method(choice, loaded.model) for choice in methods]
        if options:
            check_options(methods, options, loaded.model)
        self._model, self._whole, self._settings = loaded.model, whole, settings
        transform, kind, reading = settings.transform or loaded.transform, settings.kind, settings.reading
        self.preparer = InputPreparer(loaded.model, transform, settings.device, kind=kind, reading=reading)
        self.batch_explainer = _EXPLAINERS[settings.verify](
            model=loaded.model,
            methods=methods,
            has_many_methods=isinstance(method, (list, tuple)),
            options=options,
            layers=layers,
            merge="mean" if settings.merge == "mean" else merges.get_merge(settings.merge),
            labels=labels,
            text=loaded.text,
            placement=settings.placement,
            depths=read_depths(methods, options),
            transforms=(settings.transform, loaded.transform),
            engines=() if settings.engine == "eager" else list_engines(settings.engine, methods),
        )

    @overload
    def __call__(self, img: OneImage, target_class: OneTarget = None) -> Result: ...
    @overload
    def __call__(self, img: Arrays, target_class: OneTarget = None) -> Any: ...
    @overload
    def __call__(self, img: Sequence[OneImage | Arrays], target_class: OneTarget = None) -> list[Result]: ...
    @overload
    def __call__(self, img: Images, target_class: Targets) -> list[Result]: ...
    @overload
    def __call__(self, img: OneImage, target_class: SeveralTargets) -> list[Result]: ...
    @overload
    def __call__(
        self, img: Images, target_class: SeveralTargets | Sequence[SeveralTargets | Targets]
    ) -> list[list[Result]]: ...
    @overload  # arguments whose types leave open which of these calls it is
    def __call__(self, img: Images, target_class: AnyTargets = None) -> Any: ...
    @explain_foreign_arguments
    def __call__(self, img: Images, target_class: AnyTargets = None) -> Any:
        """Explain images; the arguments and the results are those of :func:`explain`.

        Here the images are prepared. What runs the model and computes the maps is :meth:`BatchExplainer.explain`.
        """
        check_argument_order(img, target_class)
        if self._recommend is not None:
            self._choose_method(img, self._recommend)
        # The first block takes over if an interrupt arrives just as one of the others ends.
        key = None if isinstance(target_class, int | None) else targets.get_score_key(target_class)
        batch_explainer = self.batch_explainer
        with Cleanup() as cleanup, guard(self._model, evaluate=not batch_explainer.engines):
            cleanup.push(partial(MOST_ROWS.set, MOST_ROWS.get()))
            MOST_ROWS.set(self._settings.batch_size)
            count, batches = self.preparer.prepare_batches(
                img,
                self._settings.batch_size or _IMAGES_AT_ONCE,
                image=self._settings.image,
                layers=batch_explainer.layers,
                call_index=self._settings.call_index,
                score=UserScore(partial(targets.score_request, target_class, batch_explainer.labels), key),
                needs_layers=batch_explainer.needs_layers,
            )
            requests = match_targets(target_class, count)
            explain = batch_explainer.explain_by_engines if batch_explainer.engines else batch_explainer.explain
            results = ExplanationList()
            has_several = count is not None and count > 1
            with follow_images(len(requests)) if has_several else nullcontext() as steps:
                for batch in batches:
                    asked = requests[len(results) : len(results) + len(batch.items)]
                    results += explain(batch, asked)
                    if steps is not None:
                        steps.update(len(batch.items))
            return results[0] if count is None else results

    def _choose_method(self, img: Any, recommend: Callable[[Any], tuple[str, str | None, str] | None]) -> None:
        """Take the method and the layer that are recommended for the model, as none was named."""
        images = img if self.preparer.is_batch(img) else [img]
        if isinstance(images, (list, tuple)):
            # The recommendation knows no reading options.
            images = ReadOnDemand(images, self.preparer)
        chosen = recommend(images)
        if chosen is None:  # a later call may have enough images
            self.batch_explainer = replace(self.batch_explainer, notes=(_TOO_FEW_IMAGES,))
            return
        methods, self._recommend = [find_method(chosen[0])], None
        layers, depths = None if chosen[1] is None else [chosen[1]], read_depths(methods, {})
        notes = (MapWarning(f"method='auto' chose {chosen[2]}", "chosen-method"),)
        self.batch_explainer = replace(self.batch_explainer, methods=methods, layers=layers, depths=depths, notes=notes)

    def __repr__(self) -> str:
        names = "auto" if self._recommend else ", ".join(method.name for method in self.batch_explainer.methods)
        layers = ", ".join(self.batch_explainer.layers or ["the layer of its choice"])
        return f"<Explainer of {add_article(type(self._whole).__name__)}: {names} at {layers}>"

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
        return self.preparer.prepare(img)

    def read(self, source: ImageSource, *, max_side: int | None = None) -> Image.Image | FileImage:
        """Read an image with the ``reading`` options, before :meth:`prepare`.

        Args:
            source: The image.
            max_side: The longest side of a photo in pixels; larger photos are reduced.

        Returns:
            A photo, or the values of a file whose bands or slices the model takes all.

        Raises:
            ImageError: The image cannot be read, or the model takes no such image.
        """
        return self.preparer.read(source, max_side=max_side)

    def draw_overlays(
        self,
        images: Tensor,
        target_class: ClassIndices = None,
        *,
        alpha: float | None = None,
        colormap: Colormap = DEFAULT_COLORMAP,
    ) -> Tensor:
        """Return overlays of a prepared batch as one tensor on its device, e.g. for a training loop or a service.

        Nothing is copied to the host, and no map is checked: there are no explanations and no warnings. Only the first
        batch is compared with the model's own maps, if an engine runs.

        Args:
            images: ``(N, 1 or 3, H, W)`` floating, as the model gets them.
            target_class: The class of all images, or one for each; ``None`` or -1 for the class with the highest score.
            alpha: The opacity of the colors where the heatmap is 1, from 0 to 1.
            colormap: A name or a color map of matplotlib.

        Returns:
            ``(N, 3, H, W)`` uint8. Without a transform the images are taken as values in [0, 1].

        Raises:
            MethodError: There are several methods, or the method needs more than activations and gradients.
            TargetError: There is another number of classes than of images, or an integer is no class. In a tensor,
                which is not read, such a class gives a map of NaN, and an overlay without heat.
            CamtoolError: The model is no classifier.
        """
        with Cleanup(), guard(self._model, evaluate=not self.batch_explainer.engines):
            batch = self.preparer.to_model(images)
            pixels = to_device_pixels(batch, self.preparer.transform)
            maps = self._compute_device_maps("draw_overlays", batch, target_class, differentiable=False)
            heat = maps.to_heatmaps(batch.shape[2:]).nan_to_num(0)
            return blend_batch(pixels, heat, alpha=alpha, colormap=colormap)

    def compute_maps(
        self, images: Tensor, target_class: ClassIndices = None, *, resize: bool = False, differentiable: bool = False
    ) -> Tensor:
        """Return maps of a prepared batch as one tensor on its device, e.g. for a loss that says where to look.

        Nothing is copied to the host, and no map is checked: there are no explanations and no warnings. Only the first
        batch is compared with the model's own maps, if an engine runs. The model runs in evaluation mode.

        Args:
            images: ``(N, C, *size)`` floating, as the model gets them.
            target_class: The class of all images, or one for each; ``None`` or -1 for the class with the highest score.
            resize: Return heatmaps in [0, 1] at the size of the images, with each cell where the layer looked. By
                default the method's own values at the layer's size are returned.
            differentiable: Record the graph from the model's parameters, and from the images if they require a
                gradient, to the maps. This takes the memory of training. The model runs as it is, without an engine.

        Returns:
            ``(N, *grid)``, or ``(N, *size)``.

        Raises:
            MethodError: There are several methods, or the method needs more than activations and gradients.
            TargetError: There is another number of classes than of images, or an integer is no class. In a tensor,
                which is not read, such a class gives a map of NaN.
            CamtoolError: The model is no classifier.
        """
        with Cleanup(), guard(self._model, evaluate=not self.batch_explainer.engines):
            batch = self.preparer.to_model(images)
            maps = self._compute_device_maps("compute_maps", batch, target_class, differentiable=differentiable)
            return maps.to_heatmaps(batch.shape[2:]) if resize else maps.raw

    def _compute_device_maps(self, caller: str, batch: Tensor, target_class: Any, *, differentiable: bool) -> ClassMaps:
        """Return the maps of a batch without explanations."""
        if self._recommend is not None:
            self._choose_method(batch, self._recommend)
        explainer = self.batch_explainer
        if len(explainer.methods) != 1 or not explainer.needs_layers:
            raise MethodError(f"{caller} takes one method that looks at a layer, e.g. 'gradcam'.")
        asked = read_classes(target_class, len(batch))
        classes = asked.to(batch.device, torch.long, non_blocking=True).expand(len(batch))
        given = InputBatch([], batch, self._settings.call_index)
        if differentiable:
            with guard(self._model):
                maps = explainer.compute_device_maps_with(run_with_full_graph, given, classes, differentiable=True)
        else:
            maps = explainer.compute_device_maps(given, classes)
        if not isinstance(target_class, Tensor):
            for index in {*asked.flatten().tolist()} - {-1}:
                check_class_index(index, max(maps.logits.shape[1], 2))
        return maps


def _recommend(model: Model, settings: Settings, images: Sequence[Any] | Tensor) -> tuple[str, str | None, str] | None:
    """Return the recommended method, its layer and why, kept for the model; ``None`` if the images are few."""
    is_enough = len(images) >= FEW_IMAGES

    def compute() -> tuple[str, str | None, str] | None:
        if not is_enough:
            return None
        # Evaluation lies above this module, as it explains images to compare methods.
        given = {name: getattr(settings, name) for name in ("transform", "labels", "device")}
        choice = camtool.recommend(model, images, **given)
        _LOG.info("method='auto': %s", choice.reason)
        return choice.method, choice.layer, choice.reason

    def is_valid(choice: tuple[str, str | None, str] | None) -> bool:
        return choice is not None or not is_enough

    return remember_for_model(to_loaded(model).model, "recommendation", compute, is_valid)


def _show_signatures() -> None:
    """Write the signatures that help() and notebooks show: with the settings as keywords, also for :func:`explain`."""
    whole, model, *others, options = inspect.signature(Explainer.__init__).parameters.values()
    _, *arguments = inspect.signature(Explainer.__call__).parameters.values()
    keyword = inspect.Parameter.KEYWORD_ONLY
    settings = [
        inspect.Parameter(setting.name, keyword, default=setting.default, annotation=setting.type)
        for setting in fields(Settings)
    ]
    cast("Any", Explainer.__init__).__signature__ = inspect.Signature([whole, model, *others, *settings, options])
    named = [parameter.replace(kind=keyword) for parameter in others]
    cast("Any", explain).__signature__ = inspect.Signature(
        [model, *arguments, *named, *settings, options], return_annotation="Explanation | list[Any]"
    )


_show_signatures()
