"""Explanations of one image by several methods, shown side by side in a notebook: ``camtool.compare``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from camtool import figures
from camtool.arguments.checks import iterate_leaves
from camtool.arguments.explain_arguments import explain_foreign_arguments
from camtool.errors import CamtoolError, ImageError, MethodError
from camtool.explaining.explainer import explain
from camtool.explaining.explanation import Explanation
from camtool.figures.explanation_figures import describe_differences, draw_without_map
from camtool.figures.paper_style import balance_columns
from camtool.rendering import image_writing
from camtool.rendering.contact_sheet import draw_captioned_images

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import NDArray
    from torch import nn

    from camtool.figures.canvas import Figure
    from camtool.methods import MethodFunction
    from camtool.models import Loaded

# Five images of 240 pixels fill the width of a screen.
_MAX_COLUMNS = 5


@dataclass(frozen=True, eq=False)
class Comparison(image_writing.Displayable):
    """Explanations of one image, shown side by side in a notebook.

    Attributes:
        explanations: One for each method; for several targets, one for each target and method.
    """

    explanations: tuple[Explanation, ...]

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.explanations)

    def __len__(self) -> int:
        return len(self.explanations)

    def __getitem__(self, number: int) -> Explanation:
        return self.explanations[number]

    def to_pixels(self) -> NDArray[np.uint8]:
        """Draw the image and the overlays, each above its method, class or layer, ``(H, W, 3)`` uint8."""
        images = [draw_without_map(self[0]), *(explanation.overlay() for explanation in self)]
        captions = ["photo", *(caption.line for caption in describe_differences(self.explanations))]
        return draw_captioned_images(images, captions, columns=balance_columns(len(images), _MAX_COLUMNS))

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the comparison to a file: an image (png, jpg, webp), or :meth:`figure` (pdf, svg).

        Raises:
            ImageError: The suffix is unknown.
            CamtoolError: matplotlib is not installed, which figures need.
        """
        if Path(path).suffix.lower() in (".pdf", ".svg"):
            return figures.save(self.figure(), path)
        return super().save(path)

    def figure(self, **options: Any) -> Figure:
        """Draw the comparison as a matplotlib figure; the options are those of :func:`camtool.figures.comparison`.

        Raises:
            CamtoolError: matplotlib is not installed.
        """
        return figures.comparison(self.explanations, **options)

    def __repr__(self) -> str:
        captions = "; ".join(caption.line for caption in describe_differences(self.explanations))
        return f"<Comparison of {len(self)} explanations of {self[0].label!r}: {captions}>"


@explain_foreign_arguments
def compare(
    model: nn.Module | Loaded,
    img: Any,
    target_class: Any = None,
    *,
    methods: Sequence[str | MethodFunction] = ("gradcam", "hirescam", "layercam", "eigencam"),
    **settings: Any,
) -> Comparison:
    """Explain one image by several methods and show the results side by side.

        camtool.compare(model, "cat.jpg", methods=["gradcam", "layercam", "scorecam"])

    Args:
        model: As for :func:`camtool.explain`; so are the others.
        img: One image.
        target_class: Target, or a list of targets.
        methods: Names in :data:`camtool.METHODS`, or functions.
        **settings: ``layer``, ``transform``, ``labels``, options of the methods.

    Raises:
        CamtoolError: An argument is invalid.
    """
    if isinstance(methods, str) or not isinstance(methods, Iterable):
        raise MethodError(f"methods={methods!r} is no list of methods; give e.g. ['gradcam', 'layercam'].")
    shown = list(iterate_leaves(explain(model, img, target_class, method=list(methods), **settings)))
    if not shown:
        raise ImageError("img holds no image; pass one.")
    if any(not np.array_equal(draw_without_map(explanation), draw_without_map(shown[0])) for explanation in shown):
        raise CamtoolError("img holds several images; pass one, or use camtool.figures.methods_grid.")
    return Comparison(tuple(shown))
