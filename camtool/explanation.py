"""The road from a photo to an explanation of what the model saw in it.

:func:`explain` is :class:`Explainer` for one use; both give :class:`Explanation`, or lists of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from camtool import images, maps, model_cache, overlay, structures, targets
from camtool.arguments import as_module, check_order, names_ours
from camtool.cleanup import Cleanup
from camtool.errors import CamtoolError, ImageError, MethodError, TargetError, format_count, format_percent
from camtool.evidence import Evidence, Scene
from camtool.geometry import Geometry
from camtool.guards import held, thread_left_as_found
from camtool.inputs import Inputs, Key, Kind
from camtool.layers import resolve
from camtool.lazy import cached_property
from camtool.methods import Method, MethodFunction, check_model, check_options, find
from camtool.models import Loaded, Transform, as_loaded, labels_for, layer_inside
from camtool.modules import name_of, preparation_of
from camtool.outputs import describe_choice
from camtool.pictures import Batch, Picture, Preparer, Source, batches
from camtool.trust import doubts
from camtool.views import View

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import NDArray

    from camtool.overlay import Colormap

__all__ = ["Explainer", "Explanation", "explain"]

Pictures: TypeAlias = "Source | Inputs | Mapping[str, Any] | Sequence[Source | Inputs | Mapping[str, Any]]"
Wants: TypeAlias = "targets.Want | Sequence[targets.Want | Sequence[targets.Want]] | Tensor | NDArray[np.integer[Any]]"


@dataclass(frozen=True, eq=False)
class Explanation:
    """Where a model looked, for one image, one target and one method.

    Attributes:
        raw: ``(h, w)`` float32, the method's own values, not normalised: mostly at the layer's size, at the input's for
            some methods. ``(l,)`` for a signal, ``(d, h, w)`` for a volume, ``(t, h, w)`` for a clip.
        view: What was given, as a person sees it, and how a map lies on it; see :mod:`camtool.views`.
        label: What was explained: the class' name, ``"class 281"`` where names are not known, or the target's.
        index: The class' index; ``None`` for a target that is not about a class.
        score: The target's value, a logit for a class.
        probability: The class' probability; ``None`` for a target that is not about a class.
        method: The method's name.
        layer: The layer's dotted name; several are joined by ``" + "``. Empty for methods that look at none.
        warnings: Reasons not to trust this map, in plain words; empty where there are none.
        box: ``(x0, y0, x1, y1)`` in pixels of the photo, of the detection that was explained; ``None`` where it was
            something else.
    """

    raw: NDArray[np.float32]
    view: View
    label: str
    index: int | None
    score: float
    probability: float | None
    method: str
    layer: str
    warnings: tuple[str, ...] = ()
    box: tuple[float, float, float, float] | None = None

    @property
    def photo(self) -> NDArray[np.uint8]:
        """``(H, W, 3)`` uint8, the photo that was given, upright.

        Raises:
            CamtoolError: It was a signal, a volume or a clip.
        """
        return self.view.photo

    @property
    def geometry(self) -> Geometry | None:
        """How the photo became the model's input; ``None`` for what is no photo."""
        return self.view.geometry

    @cached_property
    def heatmap(self) -> NDArray[np.float32]:
        """``(H, W)`` float32 in [0, 1], lying on the original photo; 0 where the model did not look.

        ``(L,)`` for a signal, ``(D, H, W)`` for a volume, ``(T, H, W)`` for a clip.
        """
        return self.view.heatmap(self.raw)

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Booleans of the heatmap's shape: the part of the photo that reached the model."""
        return self.view.seen

    def overlay(self, alpha: float | None = None, colormap: Colormap = "heat") -> NDArray[np.uint8]:
        """Return the photo with the heatmap over it, ``(H, W, 3)`` uint8; what the model did not see is gray.

        The box of a detection is drawn around it, with its label and score. A signal is drawn as lines in the heatmap's
        colors, a volume as a sheet of slices beside their maximum, a clip as a sheet of frames.

        Args:
            alpha: How much the colors cover where the map is hot, 0 to 1; by default as in
                :func:`camtool.overlay.blend`.
            colormap: A name or a color map of matplotlib; see :func:`camtool.overlay.palette`.
        """
        return self._drawn(self.view, self.heatmap, alpha, colormap)

    def _drawn(
        self, view: View, heatmap: NDArray[np.float32], alpha: float | None, colormap: Colormap, times: int = 1
    ) -> NDArray[np.uint8]:
        """Return the overlay on a view that is so many times as large."""
        picture = view.overlay(heatmap, alpha=alpha, colormap=colormap)
        if self.box is None:
            return picture
        x0, y0, x1, y1 = self.box
        box = overlay.at_least_a_pixel((times * x0, times * y0, times * x1, times * y1))
        return overlay.draw_boxes(picture, [box], labels=[self._caption])

    def _readable(self, alpha: float | None = None, colormap: Colormap = "heat") -> NDArray[np.uint8]:
        """Return the overlay as it is shown and saved: of a small photo an enlarged one.

        The heatmap is not kept, as that of a large photo would be in memory while the picture is encoded.
        """
        view = self.view.enlarged()
        return self._drawn(view, view.heatmap(self.raw), alpha, colormap, self.view.enlargement)

    @property
    def _caption(self) -> str:
        """The label and, where there is one, the probability."""
        return self.label if self.probability is None else f"{self.label} {self.probability:.0%}"

    def masked(self) -> NDArray[np.uint8]:
        """The photo times the heatmap, ``(H, W, 3)`` uint8: what is left is what counted."""
        return self.view.masked(self.heatmap)

    def frames(self, alpha: float | None = None, colormap: Colormap = "heat") -> NDArray[np.uint8]:
        """Every frame of a clip, or slice of a volume, with the heatmap over it: ``(T, H, W, 3)`` uint8.

        Raises:
            CamtoolError: It was no clip and no volume.
        """
        return self.view.frames(self.heatmap, alpha=alpha, colormap=colormap)

    def boxes(self, threshold: float | None = None) -> list[tuple[int, int, int, int]]:
        """Boxes ``(x0, y0, x1, y1)`` around the hot regions of a photo, the largest first.

        Args:
            threshold: From which heat on; by default where Otsu's method parts the map in two.

        Raises:
            CamtoolError: It was no photo.
        """
        return self.view.boxes(self.heatmap, threshold)

    def contours(self, threshold: float | None = None) -> list[NDArray[np.float32]]:
        """Outlines of the hot regions of a photo, each ``(K, 2)`` of x and y, the longest first.

        Args:
            threshold: As for :meth:`boxes`.

        Raises:
            CamtoolError: It was no photo.
        """
        return self.view.contours(self.heatmap, threshold)

    def save(
        self,
        path: str | PathLike[str],
        *,
        alpha: float | None = None,
        colormap: Colormap = "heat",
        enlarge: bool = True,
    ) -> Path:
        """Write the overlay, whole or not at all; the suffix decides the format (png, jpg, webp).

        Args:
            path: Where to; missing folders are made.
            alpha: As for :meth:`overlay`.
            colormap: As for :meth:`overlay`.
            enlarge: Write the overlay of a small photo, 160 pixels a side or less, several times as large, up to 320
                pixels a side: each pixel of the photo is repeated, the heat is smooth. ``False`` keeps the size.

        Raises:
            ImageError: The suffix is unknown.
        """
        return images.write(path, self._readable(alpha, colormap) if enlarge else self.overlay(alpha, colormap))

    def show(self) -> None:
        """Show the overlay, a small one enlarged: in a notebook below the cell, elsewhere in a picture viewer."""
        images.show(self._readable())

    def _repr_png_(self) -> bytes:
        return images.encode(self._readable())

    def __repr__(self) -> str:
        probability = "" if self.probability is None else f", probability {format_percent(self.probability, 1)}"
        warned = f", {format_count(len(self.warnings), 'warning')}" if self.warnings else ""
        where = f" at {self.layer}" if self.layer else ""
        return f"<Explanation of {self.label!r}{probability}: {self.method}{where}{warned}>"


@names_ours
def explain(
    model: nn.Module | Loaded,
    img: Pictures,
    target_class: Wants = None,
    *,
    method: str | MethodFunction | Sequence[str | MethodFunction] = "gradcam",
    layer: str | nn.Module | Sequence[str | nn.Module] | None = None,
    merge: str | Callable[[Tensor], Tensor] = "mean",
    transform: Transform | None = None,
    labels: Sequence[str] | None = None,
    device: torch.device | str | None = None,
    batch_size: int = 32,
    picture: Key | None = None,
    call: int | None = None,
    kind: Kind | None = None,
    **options: Any,
) -> Any:
    """Show where a model looked.

        result = camtool.explain(model, "cat.jpg", "tabby")
        result.save("where.png")

    The model is left exactly as it was found.

    Args:
        model: A module, or what :func:`camtool.load` returned. Wrappers such as ``DataParallel`` or what
            ``torch.compile`` returns are looked through, and layers go by the names of the model inside.
        img: A path, bytes, a PIL image, an array ``(H, W)`` or ``(H, W, 1|3|4)`` of uint8 or of floats in [0, 1], or a
            tensor; or a list of these. A 4-D tensor ``(N, C, H, W)``, and a floating 3-D one where no ``transform`` is
            given, is taken as already prepared and not touched. Signals, volumes and clips are tensors or arrays, one
            or a batch. Several inputs come as :class:`camtool.Inputs` or, by name, in a dictionary.
        target_class: What to explain: ``None`` for the model's own top class, an index, a name, a
            :class:`camtool.targets.Top`, another target, or a callable from one image's output to a number. For several
            images a list gives one per image; for one image a list asks for several; a list of lists does both. Of a
            segmenter a class is explained where it is seen, and ``None`` is the one that covers most; of a detector it
            is the surest detection of that class, and ``None`` is the surest of all. A single score is taken for that
            of two classes; ask for :class:`camtool.targets.Value` where it is a regression's. A model that compares
            pictures with texts, CLIP say, is asked in words: ``"a photo of a dog"``.
        method: A name in :data:`camtool.METHODS`, a function from evidence to maps, or several.
        layer: Where to look: a dotted name, a module, or several. By default the best layer is found.
        merge: How the maps of several layers become one: a name in :data:`camtool.maps.MERGES`, or a function.
        transform: From PIL image to the model's input, where ``model`` does not bring it.
        labels: The names of the classes, where ``model`` does not bring them.
        device: Where the inputs go; by default where the model is.
        batch_size: How many pictures run at once, at most; methods at the pixels run one for each class asked of it.
        picture: Of several inputs the one that is looked at, by position or by name; see :class:`camtool.Inputs`.
        call: Which call of the layer is looked at, where it runs more than once in a forward: 0 is the first, -1 the
            last. By default it is the last, or of several inputs the last that depends on the picture.
        kind: ``"picture"``, ``"signal"`` ``(N, C, L)``, ``"volume"`` ``(N, C, D, H, W)`` or ``"clip"``
            ``(N, C, T, H, W)``, where neither the model's convolutions nor the shape tells which. Frames that come
            before the channels are refused.
        **options: The method's own.

    Returns:
        An :class:`Explanation` for one image, one class and one method. Where several images, classes or methods were
        given a list, nested in that order. A 4-D tensor is several images, even if it holds one.

    Raises:
        CamtoolError: Something does not fit; the kinds are in :mod:`camtool.errors`.
    """
    explainer = Explainer(
        model,
        method,
        layer,
        merge=merge,
        transform=transform,
        labels=labels,
        device=device,
        batch_size=batch_size,
        picture=picture,
        call=call,
        kind=kind,
        **options,
    )
    return explainer(img, target_class)


class Explainer:
    """:func:`explain` with its settings kept: for many images, or batch after batch of a loader.

        explainer = camtool.Explainer(model, method="layercam")
        for batch, classes in loader:
            results = explainer(batch, classes)

    Nothing stays on the model between calls. The arguments are those of :func:`explain`.

    Raises:
        MethodError: A method, an option or a merge is unknown.
        LayerError: A module given as ``layer`` is not part of the model.
        CamtoolError: ``device`` is not where the model is, or nothing is asked for.
    """

    def __init__(
        self,
        model: nn.Module | Loaded,
        method: str | MethodFunction | Sequence[str | MethodFunction] = "gradcam",
        layer: str | nn.Module | Sequence[str | nn.Module] | None = None,
        *,
        merge: str | Callable[[Tensor], Tensor] = "mean",
        transform: Transform | None = None,
        labels: Sequence[str] | None = None,
        device: torch.device | str | None = None,
        batch_size: int = 32,
        picture: Key | None = None,
        call: int | None = None,
        kind: Kind | None = None,
        **options: Any,
    ) -> None:
        loaded, whole = as_loaded(model), as_module(model)
        self._model, self._text, self._whole = loaded.model, loaded.text, whole  # one tower keeps no model alive
        _check_arguments(transform, labels, batch_size, call)
        self._labels = labels if labels is not None else loaded.labels
        if self._text is not None and self._labels is not None:
            raise TargetError("labels: this model compares pictures with texts; give these as target_class instead.")
        self._methods = [find(each) for each in _as_list(method)]
        self._several_methods = isinstance(method, (list, tuple))
        layers = [] if layer is None else [layer_inside(whole, each) for each in _as_list(layer)]
        self._layers = None if layer is None else [name_of(self._model, each) for each in layers]
        self._merge = maps.merge_function(merge)
        self._prepare = Preparer(self._model, transform or loaded.transform, device, kind=kind)
        self._picture, self._call = picture, call
        self._batch_size = batch_size
        self._options = options
        check_options(self._methods, options)
        check_model(self._methods, self._model)
        for name, asked in (("method", self._methods), ("layer", self._layers), ("batch_size", batch_size > 0)):
            if asked is not None and not asked:
                raise CamtoolError(f"{name} asks for nothing; give one or more.")

    @names_ours
    def __call__(self, img: Pictures, target_class: Wants = None) -> Any:
        """Explain; the arguments and the results are those of :func:`explain`."""
        check_order(img, target_class)
        # The first block takes over if an interrupt arrives just as one of the others ends.
        with Cleanup(), thread_left_as_found(), held(self._model):
            return self._explain_all(img, target_class)

    def _explain_all(self, img: Pictures, target_class: Wants) -> Any:
        """Explain one image, several, or several inputs."""
        if isinstance(img, (Inputs, Mapping)):
            return self._of_inputs(Inputs.of(img, self._picture), target_class)
        several = self._prepare.is_batch(img)
        sources: list[Any] = list(img) if several else [img]  # type: ignore[arg-type]
        wants = _per_image(target_class, len(sources)) if several else [_of_one_image(target_class)]
        if several and any(isinstance(source, (Inputs, Mapping)) for source in sources):
            return [self._of_one(source, want) for source, want in zip(sources, wants, strict=True)]
        if self._picture is not None:
            raise CamtoolError(f"picture={self._picture!r} chooses among several inputs, and img is one.")
        pictures = batches(self._prepare.each(img), self._batch_size)
        results = self._in_batches(map(Batch.of, pictures), wants, self._call)
        return results if several else results[0]

    def _of_inputs(self, inputs: Inputs, target_class: Wants) -> Any:
        """Explanations where the model is given more than a picture."""
        batch, several, nth = self._looked_at(inputs)
        wants = _per_image(target_class, len(batch.pictures)) if several else [_of_one_image(target_class)]
        results = self._in_batches(batch.parts(self._batch_size), wants, nth)
        return results if several else results[0]

    def _of_one(self, source: Any, want: Any) -> Any:
        """The explanation of an entry of a list, which is one image, with or without the axis of a batch."""
        if not isinstance(source, (Inputs, Mapping)):
            return self._explain_all(source, want)
        batch, _, nth = self._looked_at(Inputs.of(source, self._picture))
        if len(batch.pictures) != 1:
            raise ImageError(f"img: an entry of the list holds {len(batch.pictures)} pictures; give each its own.")
        return self._in_batches([batch], [want], nth)[0]

    def _looked_at(self, inputs: Inputs) -> tuple[Batch, bool, int | None]:
        """Several inputs with the picture first, whether it is a batch, and which call of the layers shows it."""
        at, nth = inputs.pictures[0], self._call
        if not all(method.at_input for method in self._methods):
            at, nth = self._prepare.looked_at(inputs, self._layers, nth)
        return *self._prepare.several(inputs, at), nth

    def _in_batches(self, batches: Iterable[Batch], wants: Sequence[Any], nth: int | None) -> list[Any]:
        """What was found about each picture, at the nth call of each layer."""
        remaining = iter(wants)
        results: list[Any] = []
        for batch in batches:
            asked = list(islice(remaining, len(batch.pictures)))
            results += map(self._unwrapped, self._explain(batch, asked, nth), asked)
        return results

    def _unwrapped(self, by_target: list[list[Explanation]], want: Any) -> Any:
        """One image's explanations by target and method, less the levels at which only one thing was asked for."""
        found = [by_method if self._several_methods else by_method[0] for by_method in by_target]
        return found if isinstance(want, (list, tuple, targets.Top)) else found[0]

    def _explain(self, batch: Batch, wants: Sequence[Any], nth: int | None) -> list[list[list[Explanation]]]:
        """Explanations by image, target and method, from one forward of all the pictures."""
        pictures, inputs = batch.pictures, batch.inputs
        wants = wants if self._text is None else targets.from_texts(wants, self._text)
        scene = self._scene(inputs, pictures[0].black, nth)
        labels = labels_for(self._model, self._labels, scene.classes)
        choose = partial(targets.choose, link=scene.link, class_vectors=lambda: scene.class_vectors)
        chosen = [
            [target for each in _as_list(want) for target in choose(each, answer, labels, view.geometry)]
            for want, answer, view in zip(wants, scene.answers, [picture.view for picture in pictures], strict=True)
        ]
        rows = [(image, target) for image, own in enumerate(chosen) for target in own]
        by_method = [self._answers(method, scene, rows, pictures, labels) for method in self._methods]
        by_row = iter(zip(*by_method, strict=True))
        return [[list(next(by_row)) for _ in own] for own in chosen]

    def _scene(self, inputs: structures.Inputs, black: Tensor | None, nth: int | None) -> Scene:
        """Return one forward pass, seen at the layers, which are looked for again where they return another grid."""

        def run() -> Scene:
            looks_inside = not all(method.at_input for method in self._methods)
            layers = resolve(self._model, inputs, self._layers, nth=-1 if nth is None else nth) if looks_inside else []
            return Scene(self._model, inputs, layers, black=black, nth=nth)

        scene = run()
        if all(layer.layout.fits(scene.tensor(layer).shape) for layer in scene.layers):
            return scene
        model_cache.forget(self._model)
        return run()

    def _answers(
        self,
        method: Method,
        scene: Scene,
        rows: Sequence[tuple[int, targets.Target]],
        pictures: Sequence[Picture],
        labels: Sequence[str] | None,
    ) -> list[Explanation]:
        """One explanation a row, which is a target on one of the images, by one method."""
        images, wanted = [image for image, _ in rows], [target for _, target in rows]
        unused = method.at_input and self._layers is not None
        notes = [f"Method {method.name!r} looks at no layer, so layer= makes no difference."] if unused else []
        evidence = scene.evidence(wanted, images, inside=not method.at_input)
        choice = describe_choice(scene.observation.output)
        raw = self._raw_maps(method, evidence).float().cpu()
        # What follows is asked number by number, for which arrays are the better place.
        values, scores = raw.numpy(), evidence[0].scores.tolist()
        by_class = scene.chances
        chances = [None] * len(pictures) if by_class is None else by_class.cpu().numpy()
        inside = None if method.at_input else preparation_of(self._model)

        def answer(row: int, image: int, target: targets.Target) -> Explanation:
            picture = pictures[image]
            unasked = [choice] if choice is not None and target.reads_scores() else []
            return Explanation(
                raw=values[row],
                view=picture.view if inside is None else picture.view.inside(inside),
                label=targets.name_of(target, labels),
                index=targets.class_of(target),
                score=scores[row],
                probability=targets.probability(target, scores[row], chances[image]),
                method=method.name,
                layer=" + ".join(each.layer for each in evidence),
                warnings=(
                    *picture.notes,
                    *notes,
                    *unasked,
                    *doubts(evidence, values[row], chances[image], target, row),
                ),
                box=targets.box_of(target),
            )

        return [answer(row, image, target) for row, (image, target) in enumerate(rows)]

    def _raw_maps(self, method: Method, evidence: Sequence[Evidence]) -> Tensor:
        """The method's maps of all layers, merged: ``(R, *grid)``."""
        options = {name: value for name, value in self._options.items() if name in method.options}
        with torch.no_grad(), _without_autocast(evidence[0].scores.device.type):
            found = [method(each, **options) for each in evidence]
            for each, raw in zip(evidence, found, strict=True):
                _check_maps(method, each, raw)
            merged = maps.merge(found, self._merge, partial(_mean_gradients, evidence))
        if merged.shape[:1] != found[0].shape[:1] or merged.ndim != found[0].ndim:
            raise MethodError(
                f"merge made {tuple(merged.shape)} of maps like {tuple(found[0].shape)}; it must keep them."
            )
        return merged


def _check_arguments(transform: Any, labels: Any, batch_size: Any, call: Any) -> None:
    """See that arguments are of their kind, as what they are not would be noticed late, and far from here.

    Raises:
        TargetError: ``labels`` are no names.
        CamtoolError: Another one is not what it should be.
    """
    if transform is not None and not callable(transform):
        raise CamtoolError(f"transform={transform!r} cannot be called; give what makes a tensor of a PIL image.")
    if labels is not None and (isinstance(labels, (str, Mapping)) or not hasattr(labels, "__getitem__")):
        raise TargetError(f"labels={labels!r} is no list of names; give one name for each class, in their order.")
    if not _is_whole(batch_size):
        raise CamtoolError(f"batch_size={batch_size!r} is no whole number; give how many pictures may run at once.")
    if call is not None and not _is_whole(call):
        raise CamtoolError(f"call={call!r} is no whole number; 0 is a layer's first call, -1 its last.")


def _is_whole(number: Any) -> bool:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool)


def _without_autocast(device_type: str) -> AbstractContextManager[Any]:
    """Arithmetic on maps in their own precision; where autocast is off already, entering it would only take time."""
    return torch.autocast(device_type, enabled=False) if torch.is_autocast_enabled(device_type) else nullcontext()


def _mean_gradients(evidence: Sequence[Evidence]) -> Tensor:
    """How much each layer counts for each row, ``(L, R)``: the mean of Grad-CAM's weights there."""
    return torch.stack([each.gradients.flatten(1).mean(1) for each in evidence])


def _check_maps(method: Method, evidence: Evidence, raw: Any) -> None:
    """See that a method returned maps: one a row, on a grid of its own choosing, with as many axes as the picture's.

    Raises:
        MethodError: It returned something else.
    """
    like = evidence.inputs[:, 0] if method.at_input else evidence.activations[:, 0]
    is_maps = isinstance(raw, Tensor) and raw.ndim == like.ndim and len(raw) == len(evidence.images) and raw.numel() > 0
    if not is_maps:
        came = tuple(raw.shape) if isinstance(raw, Tensor) else type(raw).__name__
        raise MethodError(
            f"method {method.name!r} returned {came}; it must return maps {(len(evidence.images), *like.shape[1:])}, "
            "or on another grid with as many axes."
        )


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _listed(wants: Any) -> Any:
    """Classes that came as a tensor or an array, as a loader gives them, as integers."""
    return wants.tolist() if isinstance(wants, (Tensor, np.ndarray)) else wants


def _of_one_image(wants: Any) -> Any:
    """Return what is asked of a single image.

    Raises:
        TargetError: It is an empty list.
    """
    wants = _listed(wants)
    if isinstance(wants, (list, tuple)) and not wants:
        raise TargetError("target_class is empty; give a class, or None for the model's own top class.")
    return wants


def _per_image(wants: Any, images: int) -> list[Any]:
    """Return what is asked of each of several images.

    Raises:
        TargetError: A list has another length, or an entry is an empty list.
    """
    wants = _listed(wants)
    if not isinstance(wants, (list, tuple)):
        return [wants] * images
    if len(wants) != images:
        raise TargetError(
            f"target_class has {format_count(len(wants), 'entry')} for {format_count(images, 'image')}; give one entry "
            "per image (a list of classes where an image should be asked for several), or a single one for all."
        )
    for place, want in enumerate(wants):
        if isinstance(want, (list, tuple)) and not want:
            raise TargetError(
                f"target_class: entry {place} is empty; give a class, or None for the model's own top class."
            )
    return list(wants)
