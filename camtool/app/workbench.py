"""Models, images and results of the page, without Gradio, for any number of users at once, and what panels get."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from PIL import Image
from torch import Tensor

import camtool
from camtool.app.drawing import Look, Screen, make_screen
from camtool.app.error_sentences import to_sentence
from camtool.app.stores import ImageStore, ModelStore, ResultCache, StoredImage
from camtool.errors import CamtoolError, NothingFoundError, TargetError
from camtool.explaining.explainer import ask_model
from camtool.explaining.explanation import Explanation
from camtool.explaining.pipeline import BatchExplainer
from camtool.inputs.formats.reading_options import MAX_PIXELS
from camtool.inputs.image_files import read_image
from camtool.inputs.prepared_inputs import InputBatch
from camtool.layers.default_layer import LEVEL, NOT_DEEPEST, SHALLOW, Candidate
from camtool.methods import METHODS
from camtool.models import Loaded, resolve_labels
from camtool.models.vision_language import takes_image_and_text
from camtool.outputs.class_scores import Link, compute_class_scores
from camtool.targets import Target, Top, get_class_label

# Bytes for an image that is read, and for all images and results that are kept, unless another number is given.
MAX_MEMORY = 2_000 * 2**20

# Parts of the memory: kept images, results, pictures at the size of the screen, answers, and the image being read.
_IMAGES, _RESULTS, _SCREENS, _ANSWERS, _READING = 0.15, 0.25, 0.05, 0.05, 0.5

_MAX_RESULTS = 200

# Most methods of a comparison: more than the list has, and few enough that others do not wait for long.
_MAX_METHODS = 60

# Methods that the list begins with: the usual ones, and those that measure best.
_FIRST_METHODS = ("gradcam", "layercam", "hirescam", "rivalcam", "faithcam", "gradcam++", "eigencam", "scorecam")


@dataclass(frozen=True)
class RankedClass:
    """A class that the model ranks high for an image.

    Attributes:
        index: The class.
        label: Its name.
        probability: 0 to 1; None if the model gives none.
    """

    index: int
    label: str
    probability: float | None


@dataclass(frozen=True)
class Request:
    """Model, image, class, method and layer of a map: the key of its result.

    Attributes:
        model: A name on the list of models.
        image: The key of a stored image.
        target: A class by index, a text for models of texts, or None for the top class.
        method: The name of a method.
        layer: The name of a layer; None for the best one.
    """

    model: str
    image: str
    target: int | str | None = None
    method: str = "gradcam"
    layer: str | None = None


@dataclass(frozen=True, eq=False)
class Compared:
    """One method in a comparison.

    Attributes:
        method: Its name.
        explanation: The result; None if the method failed.
        milliseconds: Time of the explanation when it was computed.
        failure: Why there is no result, in one sentence; empty if there is one.
    """

    method: str
    explanation: Explanation | None
    milliseconds: float
    failure: str = ""


class Workbench:
    """Models, images and results of one server. Any number of threads may use it at once.

    Args:
        models: The models.
        max_pixels: The most pixels of an image that is read.
        max_memory: The most bytes of the image that is read and of all that is kept, besides the models.
        engine: How models run, see :func:`camtool.explain`.

    Attributes:
        max_answers: The part of the memory for answers, in bytes.
    """

    def __init__(
        self, models: ModelStore, *, max_pixels: int = MAX_PIXELS, max_memory: int = MAX_MEMORY, engine: str = "eager"
    ) -> None:
        self.models, self.max_pixels, self.engine = models, max_pixels, engine
        self.max_answers, self._reading_bytes = int(_ANSWERS * max_memory), int(_READING * max_memory)
        self._reading = threading.Lock()
        self._images = ImageStore(int(_IMAGES * max_memory))
        self._results: ResultCache[tuple[Explanation, float]] = ResultCache(
            _MAX_RESULTS, lambda result: count_bytes(result[0]) + result[0].photo.nbytes, int(_RESULTS * max_memory)
        )
        # A result of a model that is no longer in memory would keep it there.
        models.loaded.on_drop = lambda name: self._results.drop_where(lambda request: request.model == name)
        self._kinds: ResultCache[Kind] = ResultCache(_MAX_RESULTS)
        self._screens: ResultCache[Screen] = ResultCache(
            _MAX_RESULTS,
            lambda screen: screen.photo.nbytes + screen.heatmap.nbytes + screen.seen.nbytes,
            int(_SCREENS * max_memory),
        )
        self._rankings: ResultCache[tuple[RankedClass, ...]] = ResultCache(_MAX_RESULTS)
        self._layers: ResultCache[tuple[LayerChoice, ...]] = ResultCache(_MAX_RESULTS)

    # ------------------------------------------------------------------------------------------------------ images

    def read_image(self, path: Path, name: str, code: str, note: str = "") -> StoredImage:
        """Read and keep an image file.

        Raises:
            ImageError: It cannot be read, or has more pixels than allowed.
        """
        return self.add_image(self.read_pixels(path), name, code, note)

    def read_pixels(self, path: Path, max_side: int | None = None) -> Image.Image:
        """Read an image file, reduced to a longest side. A URL is never read.

        Raises:
            ImageError: It cannot be read, or takes more pixels or memory than allowed.
        """
        with self._reading:  # one at a time, as a large one may take half of the memory
            return read_image(path, max_side=max_side, max_pixels=self.max_pixels, max_memory=self._reading_bytes)

    def add_image(self, image: Image.Image, name: str, code: str, note: str = "") -> StoredImage:
        """Keep an image, and return it with its key."""
        return self._images.add(image if image.mode == "RGB" else image.convert("RGB"), name, code, note)

    def get_image(self, key: str) -> StoredImage:
        """Return an image by its key.

        Raises:
            ImageError: It is no longer in memory.
        """
        return self._images.get(key)

    # ------------------------------------------------------------------------------------------------- about models

    def find_kind(self, model: str, image: str) -> Kind:
        """Return what a model returns: classes, boxes, segments, or what it makes of texts. It takes one forward pass.

        Raises:
            CamtoolError: The model cannot be loaded, or does not run on the image.
        """
        loaded, stored = self.models.get(model), self.get_image(image)
        return self._kinds.get(model, lambda: find_kind(loaded, stored.image))

    def rank_classes(self, model: str, image: str, count: int = 5) -> tuple[RankedClass, ...]:
        """Return the classes that a model ranks highest for an image.

        There are none for a model without classes, and none if a detector finds nothing.

        It takes one forward pass.

        Raises:
            CamtoolError: The model cannot be loaded, or does not run on the image.
        """
        loaded, stored = self.models.get(model), self.get_image(image)
        if not self.has_classes(model):
            return ()

        def rank() -> tuple[RankedClass, ...]:
            most = len(self.list_labels(model)) or count  # the names of the classes may be unknown
            try:
                predictions = camtool.predict(loaded, stored.image, Top(min(count, most)))
            except NothingFoundError:
                return ()
            ranked: dict[int, RankedClass] = {}
            for entry in predictions:
                # Several detections may be of one class; the most confident comes first.
                if entry.index is not None:
                    ranked.setdefault(entry.index, RankedClass(entry.index, entry.label, entry.probability))
            return tuple(ranked.values())

        return self._rankings.get((model, image, count), rank)

    def list_layers(self, model: str, image: str) -> tuple[LayerChoice, ...]:
        """Return the layers of the slider, from early to deep; the one that camtool chooses is marked.

        Raises:
            CamtoolError: The model cannot be loaded, or does not run on the image.
        """
        loaded, stored = self.models.get(model), self.get_image(image)
        if takes_image_and_text(loaded.model):
            return ()
        key = model, stored.image.size
        return self._layers.get(key, lambda: choose_layers(camtool.candidate_layers(loaded, stored.image)))

    def list_labels(self, model: str) -> tuple[str, ...]:
        """Return the names of the classes, by index; none if they are unknown."""
        loaded = self.models.get(model)
        if not self.has_classes(model):
            return ()
        labels = loaded.labels if loaded.labels is not None else resolve_labels(loaded.model, None, None)
        return tuple(labels or ())

    def has_classes(self, model: str) -> bool:
        """Return False for a model that compares images with texts, or that writes answers."""
        loaded = self.models.get(model)
        return loaded.text is None and not takes_image_and_text(loaded.model)

    # ------------------------------------------------------------------------------------------------------ results

    def explain(self, request: Request) -> Explanation:
        """Return the explanation of a request, computed once.

        Raises:
            CamtoolError: The request does not fit the model.
        """
        return self.explain_timed(request)[0]

    def make_screen(self, request: Request) -> Screen:
        """Return the explanation of a request at the size of the screen.

        Raises:
            CamtoolError: The request does not fit the model.
        """
        request = self._name_class(request)
        return self._screens.get(request, lambda: make_screen(self.explain(request)))

    def compare(self, request: Request, methods: Sequence[str]) -> Iterator[Compared]:
        """Yield the result of each method, one after the other; a method that fails says why.

        Raises:
            CamtoolError: No method is given, or too many are.
        """
        for method in check_methods(methods):
            asked = replace(request, method=method)
            try:
                explanation, milliseconds = self.explain_timed(asked)
            except CamtoolError as error:
                yield Compared(method, None, 0.0, to_sentence(error))
            else:
                yield Compared(method, explanation, milliseconds)

    def explain_timed(self, request: Request) -> tuple[Explanation, float]:
        """Return the explanation of a request, and the milliseconds that it took when it was computed.

        Raises:
            CamtoolError: The request does not fit the model.
        """
        request = self._name_class(request)
        return self._results.get(request, lambda: self._compute(request))

    def _name_class(self, request: Request) -> Request:
        """Return the request with the top class named, so that it has the same key as a click on that class."""
        if request.target is not None:
            return request
        ranked = self.rank_classes(request.model, request.image)
        if not self.has_classes(request.model):
            raise TargetError("this model has no classes; write what to look for.")
        return replace(request, target=ranked[0].index) if ranked else request

    def _compute(self, request: Request) -> tuple[Explanation, float]:
        loaded, stored = self.models.get(request.model), self.get_image(request.image)
        started = time.perf_counter()
        explanation = camtool.explain(
            loaded, stored.image, request.target, method=request.method, layer=request.layer, engine=self.engine
        )
        return explanation, 1000 * (time.perf_counter() - started)


def count_bytes(explanation: Explanation) -> int:
    """Return the bytes of an explanation, without those of its photo."""
    return explanation.heatmap.nbytes + explanation.seen.nbytes + explanation.raw.nbytes


def check_methods(methods: Sequence[str]) -> tuple[str, ...]:
    """Return the methods of a comparison, each once.

    Raises:
        CamtoolError: There is none, or there are too many.
    """
    chosen = tuple(dict.fromkeys(methods))
    if not 1 <= len(chosen) <= _MAX_METHODS:
        raise CamtoolError(f"methods: {len(chosen) or 'none'} chosen; choose 1 to {_MAX_METHODS}.")
    return chosen


def list_methods() -> list[tuple[str, str]]:
    """List the methods for images as pairs of a line for the user and the name, the usual ones first."""
    names = [name for name, method in METHODS.items() if "text" not in method.needs]
    ordered = [*(name for name in _FIRST_METHODS if name in names), *(n for n in names if n not in _FIRST_METHODS)]
    return [(f"{name}: {METHODS[name].summary.rstrip('.').lower()}", name) for name in ordered]


# Most stops of the slider. With more, its handle jumps over some on a phone.
_MAX_LAYERS = 24


@dataclass(frozen=True)
class LayerChoice:
    """One stop of the slider.

    Attributes:
        name: The dotted name of the layer.
        grid: The size of its map, e.g. ``(14, 14)``.
        is_default: Whether camtool chooses it if no layer is named.
    """

    name: str
    grid: tuple[int, ...]
    is_default: bool

    def describe(self) -> str:
        """Return the name and the grid, e.g. ``"layer4, 7 x 7"``."""
        return f"{self.name}, {' x '.join(map(str, self.grid))}"


def choose_layers(candidates: Sequence[Candidate]) -> tuple[LayerChoice, ...]:
    """Return the layers that carry a map, from early to deep.

    Where there are many, one stays of each module: the last inside it. Modules are as small as the number allows.
    """
    good = [layer for layer in candidates if layer.chosen or layer.verdict in (LEVEL, NOT_DEEPEST, SHALLOW, "")]
    deepest = max((layer.name.count(".") + 1 for layer in good), default=1)
    options = [_keep_last_of_modules(good, depth) for depth in range(deepest, 0, -1)]
    kept = next((option for option in options if len(option) <= _MAX_LAYERS), options[-1] if options else [])
    return tuple(LayerChoice(option.name, tuple(option.layout.grid), option.chosen) for option in kept)


def _keep_last_of_modules(candidates: Sequence[Candidate], depth: int) -> list[Candidate]:
    """Return the last candidate in each module whose name has so many parts, and the chosen one."""
    last = {tuple(candidate.name.split(".")[:depth]): candidate for candidate in candidates}
    kept = {candidate.name for candidate in last.values()}
    return [candidate for candidate in candidates if candidate.chosen or candidate.name in kept]


# Settings of events that run a model: two at a time in all, the others wait.
COMPUTE: dict[str, Any] = {
    "concurrency_limit": 2,
    "concurrency_id": "compute",
    "show_progress": "hidden",
    "api_visibility": "private",
}


@dataclass(frozen=True)
class Session:
    """State of one user. It is small: models, images and results are in the :class:`Workbench`.

    Attributes:
        request: Model, image, class, method and layer.
        look: View, opacity and colors.
        second: The class to compare with; None for the second of the ranking.
        shows_pair: Whether the two classes are on the screen, so that they must follow every change.
    """

    request: Request
    look: Look = field(default_factory=Look)
    second: int | str | None = None
    shows_pair: bool = False


@dataclass(frozen=True, eq=False)
class PageContext:
    """Objects that a panel is built with.

    Attributes:
        workbench: Models, images and results.
        session: ``gr.State`` with the :class:`Session`. Its ``change`` event comes after every change of model, image,
            class, method, layer or look.
        picture: ``gr.HTML`` with the picture. Its ``click`` event has ``x`` and ``y``, in pixels of the original image
            (``event: gr.EventData``; ``event.x``).
        status: ``gr.HTML`` with the line below the picture; see :func:`camtool.app.html_fragments.build_status`.
        guard: Decorator of event handlers. An error reaches the user as one sentence in ``status``, and the log as a
            trace. The handler returns or yields a dictionary from components to values, and ``status`` is among the
            outputs of its event.
        tabs: ``gr.Tabs``, to open a tab: ``gr.update(selected="place")``.
    """

    workbench: Workbench
    session: Any
    picture: Any
    status: Any
    guard: Callable[[Callable[..., Any]], Callable[..., Any]]
    tabs: Any


# Kind of a model's output: scores of classes, boxes, a class for each pixel, similarity to texts, a written answer,
# or something else, e.g. an embedding.
Kind: TypeAlias = Literal["classes", "boxes", "segments", "texts", "answer", "other"]


@dataclass(frozen=True, eq=False)
class ModelOutput:
    """Output of a classifier or a segmenter for N photos.

    Attributes:
        scores: ``(N, K)`` or score planes ``(N, K, h, w)``; None if the model returns boxes.
        probabilities: The same as probabilities; None for boxes and for embeddings.
        labels: The names of the classes; None if they are unknown.
        link: The link from scores to probabilities; None for boxes and for embeddings.
    """

    scores: Tensor | None
    probabilities: Tensor | None
    labels: Sequence[str] | None
    link: Link | None = None

    def get_label(self, index: int) -> str:
        """Return the name of a class, or e.g. ``"class 7"``."""
        return get_class_label(index, self.labels)


def find_kind(loaded: Loaded, image: Image.Image) -> Kind:
    """Return what a model returns for a photo. Its name plays no role.

    Raises:
        CamtoolError: The model does not run on the photo.
    """
    if loaded.text is not None:
        return "texts"
    if takes_image_and_text(loaded.model) and callable(getattr(loaded.model, "generate", None)):
        return "answer"
    output = read_outputs(loaded, [image])
    if output.scores is None:
        return "boxes"
    if output.probabilities is None:
        return "other"
    return {2: "classes", 4: "segments"}.get(output.scores.ndim, "other")  # type: ignore[return-value]


def read_outputs(loaded: Loaded, images: Sequence[Image.Image]) -> ModelOutput:
    """Run one forward pass on photos of one size, and return what the model returned.

    Raises:
        CamtoolError: The model does not run on the photos.
    """

    def read(explainer: BatchExplainer, batch: InputBatch) -> ModelOutput:
        forward_pass = explainer.run_batch(batch)
        scores, link = forward_pass.predictions, forward_pass.find_link().link
        if not isinstance(scores, Tensor):
            return ModelOutput(None, None, loaded.labels)
        if link is None:
            return ModelOutput(scores, None, None)
        labels = resolve_labels(loaded.model, loaded.labels, scores.shape[1])
        # A single score becomes those of two classes.
        return ModelOutput(compute_class_scores(scores, link), forward_pass.classify().probabilities, labels, link)

    return ask_model(loaded, images, read)


def resolve_target(loaded: Loaded, image: Image.Image, target: Any) -> Target:
    """Return a target with everything decided that depends on the photo, e.g. which class is on top.

    Raises:
        CamtoolError: The target does not fit the model or the photo.
    """

    def resolve(explainer: BatchExplainer, batch: InputBatch) -> Target:
        return explainer.resolve_rows([target], explainer.run_batch(batch), batch)[0].target

    return ask_model(loaded, [image], resolve)


def check_point(image: Image.Image, x: float, y: float) -> None:
    """Check that a point is on a photo.

    Raises:
        TargetError: It is not.
    """
    width, height = image.size
    if not (0 <= x < width and 0 <= y < height):
        raise camtool.TargetError(
            f"the point ({x:g}, {y:g}) is outside of the photo of {width} x {height} pixels; click on the photo."
        )
