"""One image explained by several methods, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from camtool import figures, images
from camtool.arguments import names_ours
from camtool.errors import CamtoolError, ImageError
from camtool.explanation import Explanation, explain
from camtool.figures.explained import plain, what_sets_apart
from camtool.figures.paper import balanced

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from camtool.figures.canvas import Figure
    from camtool.methods import MethodFunction
    from camtool.models import Loaded

__all__ = ["Comparison", "compare"]

_SIDE, _GAP, _CAPTION, _LETTERS = 240, 10, 34, 16  # pixels: a picture's width, between pictures, below one, type
_COLUMNS = 5
_INK = (51, 51, 51)


@dataclass(frozen=True, eq=False)
class Comparison(images.Shown):
    """Explanations of one image, which a notebook shows side by side.

    Attributes:
        explanations: One a method, or, where several classes were asked for, a class and a method.
    """

    explanations: tuple[Explanation, ...]

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.explanations)

    def __len__(self) -> int:
        return len(self.explanations)

    def __getitem__(self, number: int) -> Explanation:
        return self.explanations[number]

    def picture(self) -> NDArray[np.uint8]:
        """The image and the overlays, each with what sets it apart below it, ``(H, W, 3)`` uint8."""
        pictures = [plain(self[0]), *(each.overlay() for each in self)]
        captions = ["photo", *(words.line for words in what_sets_apart(self.explanations))]
        columns = balanced(len(pictures), _COLUMNS)
        high = max(round(_SIDE * pixels.shape[0] / pixels.shape[1]) for pixels in pictures)
        across, down = _SIDE + _GAP, high + _CAPTION
        sheet = Image.new("RGB", (columns * across - _GAP, -(-len(pictures) // columns) * down), "white")
        for i, (pixels, caption) in enumerate(zip(pictures, captions, strict=True)):
            left, top = i % columns * across, i // columns * down
            tile = Image.fromarray(pixels)
            tile = tile.resize((_SIDE, max(1, round(_SIDE * tile.height / tile.width))), Image.Resampling.LANCZOS)
            sheet.paste(tile, (left, top))
            _write(sheet, (left + _SIDE / 2, top + tile.height + _CAPTION / 2), caption)
        return np.asarray(sheet)

    def figure(self, **options: Any) -> Figure:
        """The same for a paper, as a matplotlib figure; the options are those of :func:`camtool.figures.comparison`.

        Raises:
            CamtoolError: matplotlib is not installed.
        """
        return figures.comparison(self.explanations, **options)

    def __repr__(self) -> str:
        captions = "; ".join(words.line for words in what_sets_apart(self.explanations))
        return f"<Comparison of {len(self)} explanations of {self[0].label!r}: {captions}>"


@names_ours
def compare(
    model: nn.Module | Loaded,
    img: Any,
    target_class: Any = None,
    *,
    methods: Sequence[str | MethodFunction] = ("gradcam", "hirescam", "layercam", "eigencam"),
    **settings: Any,
) -> Comparison:
    """Explain one image by several methods, to be seen side by side.

        camtool.compare(model, "cat.jpg", methods=["gradcam", "layercam", "scorecam"])

    Args:
        model: As for :func:`camtool.explain`, as are all the others.
        img: One image.
        target_class: What to explain; of a list, each.
        methods: Names in :data:`camtool.METHODS`, or functions.
        **settings: ``layer``, ``transform``, ``labels``, a method's options.

    Raises:
        CamtoolError: Something does not fit.
    """
    found = list(_leaves(explain(model, img, target_class, method=list(methods), **settings)))
    if not found:
        raise ImageError("img holds no image; give one.")
    if any(not np.array_equal(plain(each), plain(found[0])) for each in found):
        raise CamtoolError("img holds several images; compare one, or see camtool.figures.methods_grid.")
    return Comparison(tuple(found))


def _leaves(nested: Any) -> Iterator[Explanation]:
    for each in nested:
        if isinstance(each, Explanation):
            yield each
        else:
            yield from _leaves(each)


def _write(sheet: Image.Image, middle: tuple[float, float], caption: str) -> None:
    """Words below a picture, cut short where there is no room for all of them."""
    font, short = ImageFont.load_default(_LETTERS), caption
    while caption and font.getlength(short) > _SIDE:
        caption = caption[:-1]
        short = f"{caption.rstrip(' ,')}…"
    ImageDraw.Draw(sheet).text(middle, short, fill=_INK, font=font, anchor="mm")
