"""Files to download: the picture, a figure, the numbers, and the code that gives the same result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from camtool import figures
from camtool.app.drawing import Look, make_screen
from camtool.app.stores import StoredImage
from camtool.app.workbench import Request
from camtool.explaining.explanation import Explanation
from camtool.rendering import image_writing
from camtool.runs.save_kinds import write_numbers


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
    """Write what the page shows, at the full size of the image."""
    screen = make_screen(explanation, side=max(explanation.photo.shape[:2]))
    image_writing.write_image(path, screen.draw(look))


def save_figure(explanation: Explanation, path: Path, look: Look) -> None:
    """Write the image and its map side by side as a figure for a paper.

    Raises:
        CamtoolError: matplotlib is not installed.
    """
    figure = figures.comparison([explanation], alpha=look.alpha, colormap=look.colormap)
    figures.save(figure, path)


FILE_KINDS: Mapping[str, tuple[str, Callable[[Explanation, Path, Look], None]]] = {
    "picture": (".png", save_picture),
    "figure": (".pdf", save_figure),
    "numbers": (".npz", lambda explanation, path, look: write_numbers(explanation, path, heatmap=explanation.heatmap)),
}
"""Kind of file → its suffix and the function that writes it."""


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
