"""Actions of the page's controls, without Gradio: from a session and a choice to the new values of the components.

An action returns a dictionary from the names of the page's components to their new values; :class:`Changed` holds other
properties than the value. Actions that take long are generators, and yield what is known so far.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np
from PIL import Image, ImageOps

from camtool import figures
from camtool.app import html_fragments
from camtool.app.drawing import DISPLAY_SIDE, Look, draw_difference, make_screen
from camtool.app.error_sentences import hide_folders_in_errors
from camtool.app.stores import DiskSpace, ImageFolder, StoredImage
from camtool.app.workbench import Compared, RankedClass, Request, Session, Workbench, check_methods
from camtool.demo.camnet import BUNDLED
from camtool.demo.scenes import draw_scene
from camtool.errors import CamtoolError, ImageError, TargetError
from camtool.explaining.explanation import Explanation
from camtool.inputs.image_files import fit_size
from camtool.rendering import image_writing
from camtool.rendering.contact_sheet import add_legend
from camtool.runs.save_kinds import write_numbers

# Seed and number of objects of the demo's scenes.
_SCENES = ((7, 2), (3, 2), (11, 4), (5, 1))

# Side of a scene in pixels. The model of the demo takes fewer, but the picture fills a screen.
_SCENE_SIDE = 640

# Kind of a model → what the user reads where an image has no map.
_HINTS = {
    "texts": "This model compares the image with texts. Write below what to look for, or several in the tab Texts.",
    "answer": "This model answers questions about the image; ask one in the tab Answer.",
    "boxes": "The model finds no object in this image.",
}

_TOY_MODEL = (
    "This model of the demo knows the shapes of its scenes only. Choose another one at the top for your own images."
)

# Longest sides of smaller pictures, in pixels.
_THUMBNAIL, _CARD_SIDE, _PAIR_SIDE = 96, 420, 560


# Most thumbnails of the folder, and the most seconds that reading them takes.
_MAX_THUMBNAILS, _THUMBNAIL_SECONDS = 24, 5.0

# Photos of the folder that are tried until one can be read.
_MAX_TRIED = 10

# Most bytes of a saved file for each pixel: a float and the mask of what the model saw.
_FILE_BYTES = 5


class Changed(dict[str, Any]):
    """Properties of a component that change, by name: ``Changed(choices=["a", "b"], value="a")``."""


# Name of a component → its new value, or :class:`Changed`.
Shown: TypeAlias = dict[str, Any]


@dataclass(frozen=True, eq=False)
class PageSettings:
    """Settings of the page besides its models.

    Attributes:
        folder: The images to choose from; None without a folder.
        disk: The space for uploads, and for files that users download.
        model_codes: Name of a model → how a script loads it. Models without an entry are loaded by their name.
    """

    folder: ImageFolder | None
    disk: DiskSpace
    model_codes: dict[str, ModelCode] = field(default_factory=dict)


class Actions:
    """Everything the user can do, for all users of a server.

    Args:
        workbench: Models, images and results.
        settings: Settings of the page besides its models.

    Attributes:
        photos: The images of the folder, by their paths in it.
    """

    def __init__(self, workbench: Workbench, settings: PageSettings) -> None:
        self.workbench, self.settings = workbench, settings
        self._lock = threading.Lock()
        self._scenes: list[StoredImage] = []
        self.photos = settings.folder.list_names() if settings.folder is not None else []
        self._thumbnail_lock, self._thumbnails = threading.Lock(), ""

    # --------------------------------------------------------------------------------------------- images and models

    def start(self) -> Shown:
        """Show the first photo of the folder, or the first scene of the demo, explained by the first model."""
        return self._show_all(self.begin())

    def begin(self) -> Session:
        """Return what a user looks at first: the first photo that can be read, or a scene, and the first model."""
        readable = filter(None, map(self._try_photo, self.photos[:_MAX_TRIED]))
        first = next(readable, None) or self._add_scene(0)
        return Session(Request(self.workbench.models.names[0], first.key))

    def _try_photo(self, name: str) -> StoredImage | None:
        """Return an image of the folder; None if it cannot be read, which whoever chooses it is told."""
        with suppress(ImageError):
            return self._read_photo(name)
        return None

    def show_thumbnails(self) -> Shown:
        """Show the first photos of the folder as small pictures to click on, or the scenes of the demo."""
        if not self.photos:
            scenes = [self._add_scene(number) for number in range(len(_SCENES))]
            crops = [(str(n), scene.name, _crop(scene.image)) for n, scene in enumerate(scenes)]
            return {"thumbnails": html_fragments.build_thumbnails(crops)}
        with self._thumbnail_lock:
            if not self._thumbnails:
                self._thumbnails = self._draw_photos()
        return {"thumbnails": self._thumbnails}

    def _draw_photos(self) -> str:
        pictures, started = [], time.monotonic()
        for number, name in enumerate(self.photos[:_MAX_THUMBNAILS]):
            if time.monotonic() - started > _THUMBNAIL_SECONDS:
                break
            with suppress(ImageError):  # whoever chooses it from the list is told
                image = self.workbench.read_pixels(self._get_folder().find(name), max_side=4 * _THUMBNAIL)
                pictures.append((str(number), name, _crop(image)))
        count = len(self.photos)
        line = f"{len(pictures)} of {count} photos; the others are in the list." if len(pictures) < count else ""
        return html_fragments.build_thumbnails(pictures, line)

    def take_upload(self, path: str | None, session: Session) -> Shown:
        """Show an image that the user gave.

        Raises:
            ImageError: It is no upload, or cannot be read.
        """
        if path is None or not self.settings.disk.has_file(path):
            raise ImageError("no image came; choose a file.")
        name = Path(path).name
        with hide_folders_in_errors(path):
            stored = self.workbench.read_image(Path(path), name, repr(name), "the image that was given to the page")
        return self._show_image(stored, session)

    def take_thumbnail(self, number: int, session: Session) -> Shown:
        """Show a photo of the folder by its number, or a scene of the demo.

        Raises:
            ImageError: There is no such photo, or it cannot be read.
        """
        if not self.photos:
            return self._show_image(self._add_scene(number), session)
        if not 0 <= number < len(self.photos):
            raise ImageError(f"photo {number} does not exist; there are {len(self.photos)}.")
        return self.take_from_folder(self.photos[number], session)

    def take_from_folder(self, name: str | None, session: Session) -> Shown:
        """Show an image of the folder.

        Raises:
            ImageError: The folder has no such image, or it cannot be read.
        """
        if not name:
            raise ImageError("no image is chosen; choose one from the list.")
        return self._show_image(self._read_photo(name), session)

    def _get_folder(self) -> ImageFolder:
        if self.settings.folder is None:
            raise ImageError("this page has no folder of images.")
        return self.settings.folder

    def _read_photo(self, name: str) -> StoredImage:
        """Read and keep an image of the folder.

        Raises:
            ImageError: The folder has no such image, or it cannot be read.
        """
        folder = self._get_folder()
        path = folder.find(name)
        with hide_folders_in_errors(str(path)):
            return self.workbench.read_image(path, name, *folder.write_code(name))

    def take_model(self, name: str, session: Session) -> Iterator[Shown]:
        """Change the model: first say that it loads, then show what it makes of the image.

        Raises:
            CamtoolError: It cannot be loaded. The page stays with the former model.
        """
        if not self.workbench.models.is_loaded(name):
            yield {"status": html_fragments.build_status(f"Loading {name} ...", is_busy=True)}
        try:
            self.workbench.models.get(name)
            request = Request(name, session.request.image)
            yield self._show_all(Session(request, session.look, shows_pair=session.shows_pair))
        except CamtoolError:
            yield {"model": session.request.model}
            raise

    # ------------------------------------------------------------------------------------------------ what is explained

    def choose_class(self, target: int | str | None, session: Session) -> Shown:
        """Explain another class, by its index, groups of classes by a text, or a text for a model of texts.

        Raises:
            CamtoolError: The model has no such class.
        """
        if target is None or target == "":
            raise TargetError("no class is chosen; choose one from the list.")
        return self._show_map(replace(session, request=replace(session.request, target=target)))

    def choose_method(self, method: str, session: Session) -> Shown:
        """Explain by another method.

        Raises:
            CamtoolError: It does not fit the model.
        """
        return self._show_map(replace(session, request=replace(session.request, method=method)))

    def choose_layer(self, position: float, session: Session) -> Shown:
        """Explain at another layer, by its position on the slider.

        Raises:
            CamtoolError: The layer carries no map by this method.
        """
        layers = self.workbench.list_layers(session.request.model, session.request.image)
        chosen = layers[min(len(layers) - 1, max(0, round(position)))]
        layer = None if chosen.is_default else chosen.name
        shown = self._show_map(replace(session, request=replace(session.request, layer=layer)))
        return {**shown, "scale": html_fragments.build_scale(chosen.describe(), is_default=chosen.is_default)}

    def choose_second(self, target: int | str | None, session: Session) -> Shown:
        """Choose the class to compare with."""
        session = replace(session, second=target)
        return {"session": session, "status": "", "pair": self._draw_pair(session)}

    def show_pair(self, session: Session) -> Shown:
        """Show two classes side by side."""
        session = replace(session, shows_pair=True)
        return {"session": session, "status": "", "pair": self._draw_pair(session)}

    def leave_pair(self, session: Session) -> Shown:
        """Stop showing two classes, so that they cost nothing."""
        return {"session": replace(session, shows_pair=False)}

    def compare(self, methods: Sequence[str], session: Session) -> Iterator[Shown]:
        """Show the methods one after the other as they are done.

        Raises:
            CamtoolError: None is chosen, or too many are.
        """
        methods = check_methods(methods)
        done: list[tuple[Compared, Any]] = []
        yield {"grid": html_fragments.build_compared(done, methods), "status": ""}
        for compared in self.workbench.compare(session.request, methods):
            request = replace(session.request, method=compared.method)
            pixels = None
            if compared.explanation is not None:
                pixels = _reduce(self.workbench.make_screen(request).draw(session.look), _CARD_SIDE)
            done.append((compared, pixels))
            yield {"grid": html_fragments.build_compared(done, methods[len(done) :])}

    # -------------------------------------------------------------------------------------------------- how it is shown

    def choose_look(self, view: str, alpha: float, colormap: str, session: Session) -> Shown:
        """Change view, opacity and colors. There is no forward pass."""
        session = replace(session, look=Look(view, float(alpha), colormap))
        picture, snippet = self._draw_picture(session), self._write_code(session)
        return {"session": session, "picture": picture, "status": "", "snippet": snippet}

    def choose_colors(self, colormap: str, session: Session) -> Shown:
        """Change the colors, and the opacity to the usual one of these colors."""
        look = Look(session.look.view, None, colormap)
        return {**self.choose_look(look.view, look.opacity, colormap, session), "alpha": look.opacity}

    def save(self, kind: str, session: Session) -> Path:
        """Write a file for the user, and return its path.

        Raises:
            CamtoolError: The library for it is not installed.
        """
        explanation = self.workbench.explain(session.request)
        name = self.workbench.get_image(session.request.image).name
        disk = self.settings.disk
        disk.make_room(explanation.heatmap.size * _FILE_BYTES + 2**20)
        folder = disk.folder / "files" / uuid4().hex
        return save_files(explanation, kind, folder, name, session.look)

    # --------------------------------------------------------------------------------------------------------- drawing

    def _add_scene(self, number: int) -> StoredImage:
        """Return a scene of the demo, drawn once, and put again into the memory of images."""
        if not 0 <= number < len(_SCENES):
            raise ImageError(f"scene {number} does not exist; there are {len(_SCENES)}.")
        with self._lock:
            while len(self._scenes) <= number:
                seed, objects = _SCENES[len(self._scenes)]
                scene = draw_scene(seed, objects=objects, size=_SCENE_SIDE)
                name = "scene with " + " and ".join(item.label for item in scene.objects)
                code = f"draw_scene({seed}, objects={objects}, size={_SCENE_SIDE}).image"
                self._scenes.append(self.workbench.add_image(Image.fromarray(scene.image), name, code))
        kept = self._scenes[number]
        return self.workbench.add_image(kept.image, kept.name, kept.code)

    def _show_image(self, stored: StoredImage, session: Session) -> Shown:
        """Show another image with the settings of the session, and the top class."""
        request = replace(session.request, image=stored.key, target=None)
        return self._show_all(replace(session, request=request, second=None))

    def _show_all(self, session: Session) -> Shown:
        """Show an image or a model that is new to the session."""
        model, image = session.request.model, session.request.image
        kind = self.workbench.find_kind(model, image)
        has_map = self.workbench.has_classes(model) and (kind != "boxes" or bool(self._rank(session)))
        named = self.workbench.list_labels(model)
        # Without names of classes, those that the model ranks highest can be chosen by their numbers.
        labels = [(label, index) for index, label in enumerate(named)] or [
            (ranked.label, ranked.index) for ranked in self._rank(session)
        ]
        choices = {"choices": labels, "allow_custom_value": True}  # a text, or groups as in "dog vs wolf"
        return {
            "model": model,
            "folder": self._find_in_folder(self.workbench.get_image(image)),
            **self._show_layers(session),
            "grid": "",
            **(self._show_map(session) if has_map else self._show_photo(session, _HINTS.get(kind, ""))),
            "class": Changed(**choices, value=self._find_first(session) if has_map else None),
            "second": Changed(**choices, value=self._find_second(session) if has_map else None),
        }

    def _find_in_folder(self, stored: StoredImage) -> str | None:
        """Return the name of an image in the list of the folder; None for one that came from elsewhere."""
        is_listed = stored.name in self.photos
        is_photo = is_listed and (stored.code, stored.note) == self._get_folder().write_code(stored.name)
        return stored.name if is_photo else None

    def _show_layers(self, session: Session) -> Shown:
        """Show the slider of the layers, at the one of the session or at the one that camtool chooses."""
        layers = self.workbench.list_layers(session.request.model, session.request.image)
        if not layers:
            return {"layer": Changed(maximum=1, value=0, interactive=False), "scale": ""}
        names = [layer.name for layer in layers]
        default = next((number for number, layer in enumerate(layers) if layer.is_default), len(layers) - 1)
        position = names.index(session.request.layer) if session.request.layer in names else default
        scale = html_fragments.build_scale(layers[position].describe(), is_default=layers[position].is_default)
        slider = Changed(maximum=max(1, len(layers) - 1), value=position, interactive=len(layers) > 1)
        return {"layer": slider, "scale": scale}

    def _show_photo(self, session: Session, hint: str) -> Shown:
        """Show the image alone, and say why there is no map yet."""
        stored = self.workbench.get_image(session.request.image)
        pixels = _reduce(np.asarray(stored.image), DISPLAY_SIDE)
        return {
            "session": session,
            "picture": html_fragments.build_photo(pixels, stored.name, stored.image.size),
            "status": "",
            "bars": html_fragments.build_hint(hint),
            "pair": "",
            "snippet": "",
        }

    def _show_map(self, session: Session) -> Shown:
        """Show the map of a request with everything that depends on it."""
        ranked, target = self._rank(session), self._find_first(session)
        session = replace(session, request=replace(session.request, target=target))
        return {
            "session": session,
            "picture": self._draw_picture(session),
            "status": "",
            "bars": html_fragments.build_bars(ranked, target) + self._build_model_hint(session),
            "class": target,
            "pair": self._draw_pair(session) if session.shows_pair else "",
            "snippet": self._write_code(session),
        }

    def _build_model_hint(self, session: Session) -> str:
        """Return what to do if the demo's model looks at something else than its scenes; else nothing."""
        is_scene = any(scene.key == session.request.image for scene in self._scenes)
        return "" if is_scene or session.request.model not in BUNDLED else html_fragments.build_hint(_TOY_MODEL)

    def _draw_picture(self, session: Session) -> str:
        explanation, milliseconds = self.workbench.explain_timed(session.request)
        screen = self.workbench.make_screen(session.request)
        return html_fragments.build_picture(screen.draw(session.look), explanation, session.look, milliseconds)

    def _draw_pair(self, session: Session) -> str:
        """Draw the two classes and their difference."""
        second = session.second if session.second is not None else self._find_second(session)
        if second is None:
            return html_fragments.build_hint("No second class is predicted here. Choose one to compare with.")
        requests = [session.request, replace(session.request, target=second)]
        screens = [self.workbench.make_screen(request) for request in requests]
        explanations = [self.workbench.explain(request) for request in requests]
        pictures = [
            (_reduce(screen.draw(session.look), _PAIR_SIDE), explanation.label, _describe(explanation))
            for screen, explanation in zip(screens, explanations, strict=True)
        ]
        line = f"orange: more heat for {explanations[0].label}; blue: more for {explanations[1].label}"
        pictures.append((_reduce(draw_difference(screens[0], screens[1]), _PAIR_SIDE), "difference", line))
        return html_fragments.build_pair(pictures)

    def _find_second(self, session: Session) -> int | None:
        """Return the highest class that is not the explained one."""
        first = self._find_first(session)
        return next((ranked.index for ranked in self._rank(session) if ranked.index != first), None)

    def _find_first(self, session: Session) -> int | str | None:
        """Return the explained class."""
        ranked = self._rank(session)
        return session.request.target if session.request.target is not None or not ranked else ranked[0].index

    def _rank(self, session: Session) -> tuple[RankedClass, ...]:
        return self.workbench.rank_classes(session.request.model, session.request.image)

    def _write_code(self, session: Session) -> str:
        request = session.request
        model = self.settings.model_codes.get(request.model, ModelCode(request.model))
        image = self.workbench.get_image(request.image)
        return build_snippet(self.workbench.explain(request), request, image, model, session.look)


def _crop(image: Image.Image) -> Any:
    """Return the pixels of the middle of an image as a small square."""
    return np.asarray(ImageOps.fit(image, (_THUMBNAIL, _THUMBNAIL)))


def _describe(explanation: Any) -> str:
    return "" if explanation.probability is None else f"{100 * explanation.probability:.1f}%"


def _reduce(pixels: Any, side: int) -> Any:
    """Return pixels with a longest side of at most this length."""
    image = Image.fromarray(pixels)
    return np.asarray(image.resize(fit_size(image.size, side), Image.Resampling.BILINEAR))


@dataclass(frozen=True)
class ModelCode:
    """Arguments of :func:`camtool.load` with which a script loads a model.

    Attributes:
        name: The name.
        weights: The file of weights, without the folders of an absolute path; None for the usual ones.
    """

    name: str
    weights: str | None = None

    def __str__(self) -> str:
        return repr(self.name) if self.weights is None else f"{self.name!r}, {self.weights!r}"


def build_snippet(explanation: Explanation, request: Request, image: StoredImage, model: ModelCode, look: Look) -> str:
    """Return Python code that computes an explanation again and saves its overlay.

    Args:
        explanation: The explanation.
        request: What it was asked of.
        image: The image.
        model: How its model is loaded.
        look: Opacity and color map of the overlay.
    """
    target = request.target if request.target is not None else explanation.index
    settings = [f"method={request.method!r}", *([f"layer={request.layer!r}"] if request.layer else [])]
    arguments = ", ".join(["model", "image", *([repr(target)] if target is not None else []), *settings])
    label = f"  # {_to_comment(explanation.label)}"
    opacity = "" if look.alpha is None else f", alpha={look.alpha:g}"
    lines = [
        "import camtool",
        *(["from camtool.demo.scenes import draw_scene"] if "draw_scene" in image.code else []),
        "",
        f"model = camtool.load({model})",
        f"image = {image.code}" + (f"  # {_to_comment(image.note)}" if image.note else ""),
        f"result = camtool.explain({arguments}){label}",
        f'result.save("explained.png"{opacity}, colormap={look.colormap!r})',
    ]
    return "\n".join(lines) + "\n"


def save_picture(explanation: Explanation, path: Path, look: Look) -> None:
    """Write what the page shows, at the full size of the image; an overlay has its legend."""
    screen = make_screen(explanation, side=max(explanation.photo.shape[:2]))
    pixels = screen.draw(look)
    if look.view == "overlay":
        pixels = add_legend(pixels, look.opacity, look.colormap, has_unseen=not screen.seen.all())
    image_writing.write_image(path, pixels)


def save_figure(explanation: Explanation, path: Path, look: Look) -> None:
    """Write the image and its map side by side as a figure for a paper.

    Raises:
        CamtoolError: matplotlib is not installed.
    """
    figure = figures.comparison([explanation], alpha=look.alpha, colormap=look.colormap)
    figures.save(figure, path)


# Kind of file → its suffix and the function that writes it.
FILE_KINDS: Mapping[str, tuple[str, Callable[[Explanation, Path, Look], None]]] = {
    "picture": (".png", save_picture),
    "figure": (".pdf", save_figure),
    "numbers": (".npz", lambda explanation, path, look: write_numbers(explanation, path, heatmap=explanation.heatmap)),
}


def save_files(explanation: Explanation, kind: str, folder: Path, name: str, look: Look) -> Path:
    """Write a file of a kind into a folder, under a name made of safe letters, and return its path."""
    suffix, write = FILE_KINDS[kind]
    words = [name, explanation.label, explanation.method]
    path = folder / ("-".join(filter(None, map(_to_file_name, words))) + suffix)
    write(explanation, path, look)
    return path


def _to_file_name(text: str) -> str:
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in Path(text).stem or text)
    return "-".join(filter(None, kept.split("-")))[:40]


def _to_comment(text: str) -> str:
    """Return a text that stays in its comment: in one line, of letters that can be seen."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
