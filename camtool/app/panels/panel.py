"""Shared by all panels: the object that a panel returns to :mod:`~camtool.app.page`, and pieces of HTML."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from camtool.app.fragments import encode_pixels
from camtool.app.workbench import PageContext, Session
from camtool.explaining.explanation import Explanation
from camtool.models import Loaded

_PHOTO_SIDE, _CARD_SIDE = 1200, 360
"""Longest sides of pictures on the page, in pixels."""

_ASSETS = Path(__file__).parent.parent / "assets"


@dataclass(frozen=True, eq=False)
class Built:
    """A panel on the page.

    Attributes:
        cleared: Component → its value after the model, the image, the class, the method or the layer has changed.
        refresh: From the session to what the panel shows of a new image at once; None if it waits for the user. It
            must be fast, one forward pass.
    """

    cleared: Mapping[Any, Any] = field(default_factory=dict)
    refresh: Callable[[Session], Mapping[Any, Any]] | None = None


def get_subject(context: PageContext, session: Session) -> tuple[Loaded, Image.Image]:
    """Return the model and the photo that a user looks at.

    Raises:
        CamtoolError: The model cannot be loaded, or the photo is no longer in memory.
    """
    request = session.request
    return context.workbench.models.get(request.model), context.workbench.get_image(request.image).image


def read_asset(name: str) -> str:
    """Return a script or another text file of the page."""
    return (_ASSETS / name).read_text(encoding="utf-8")


def draw_photo(picture: Image.Image, alt: str) -> str:
    """Return a large picture whose clicks have the coordinates of the photo.

    Args:
        picture: The picture.
        alt: What it shows, for screen readers.
    """
    width, height = picture.size
    url = encode_pixels(_reduce(picture, _PHOTO_SIDE))
    return (
        f'<div class="ct-photo"><img src="{url}" alt="{escape(alt)}" data-width="{width}" data-height="{height}" '
        'draggable="false"></div>'
    )


def draw_card(picture: Image.Image, title: str, line: str) -> str:
    """Return a small picture with a title and a line below it."""
    return (
        f'<figure class="ct-card"><img src="{encode_pixels(_reduce(picture, _CARD_SIDE), 85)}" alt="{escape(title)}">'
        f"<figcaption><b>{escape(title)}</b><span>{escape(line)}</span></figcaption></figure>"
    )


def draw_hint(text: str) -> str:
    """Return a sentence that says what the user can do here."""
    return f'<p class="ct-hint">{escape(text)}</p>'


def describe_heat(explanation: Explanation, region: Sequence[float] | NDArray[np.bool_], where: str) -> str:
    """Return one sentence on the share of the heat in a box or a mask of the photo; empty for a map without heat."""
    share = explanation.heat_in(region)
    return "" if math.isnan(share) else f"{share:.0%} of the heat of {explanation.label} is {where}."


def _reduce(picture: Image.Image, side: int) -> Any:
    """Return the pixels of a picture, reduced to a longest side of ``side``, or enlarged to about half of it."""
    longest = max(picture.size)
    if longest > side:
        reduced = picture.copy()
        reduced.thumbnail((side, side))
        return np.asarray(reduced)
    times = max(1, side // 2 // longest)
    return np.asarray(picture).repeat(times, 0).repeat(times, 1)
