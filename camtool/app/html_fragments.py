"""Pieces of HTML that the page and its panels show, and what a panel returns. Texts from outside are escaped here."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from camtool.app.drawing import VIEW_MEANINGS, Look, Pixels, list_colors
from camtool.app.workbench import Compared, PageContext, RankedClass, Session
from camtool.arguments.message_parts import count_warnings
from camtool.explaining.explanation import Explanation
from camtool.models import Loaded
from camtool.rendering import image_writing


def encode_pixels(pixels: Pixels, quality: int = 90) -> str:
    """Return pixels as a URL that holds a JPEG."""
    data = image_writing.encode_image(pixels, ".jpg", quality=quality)
    return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"


def build_picture(pixels: Pixels, explanation: Explanation, look: Look, milliseconds: float | None = None) -> str:
    """Return the main picture with the legend of its colors, its caption and its warnings."""
    height, width = explanation.photo.shape[:2]
    alt = escape(f"{explanation.label}, explained by {explanation.method}")
    grid = " x ".join(map(str, explanation.raw.shape))
    where = f"{explanation.layer}, {grid}" if explanation.layer else f"the input, {grid}"
    time = "" if milliseconds is None else f"<span>{milliseconds:.0f} ms</span>"
    return (
        f'<figure class="stage"><div class="frame tall"><img id="map" src="{encode_pixels(pixels)}" alt="{alt}" '
        f'data-width="{width}" data-height="{height}" draggable="false"></div>'
        f"{build_legend(look, has_unseen=not explanation.seen.all())}"
        f"<figcaption><strong>{escape(explanation.label)}</strong>{_format_probability(explanation.probability)}"
        f"<span>{escape(explanation.method)} at {escape(where)}</span>{time}</figcaption>"
        f"{_list_warnings(explanation)}</figure>"
    )


def _list_warnings(explanation: Explanation) -> str:
    items = [
        f'<li class="warning serious" data-code="{escape(warning.code)}">{escape(str(warning))}</li>'
        for warning in explanation.warnings
    ]
    return f'<ul class="warnings">{"".join(items)}</ul>' if items else ""


def build_legend(look: Look, *, has_unseen: bool) -> str:
    """Return what the colors of a picture mean, and its gray frame if a part of the image did not reach the model."""
    low, high = VIEW_MEANINGS[look.view]
    colors = ", ".join(f"rgb{color}" for color in list_colors(look))
    scale = f'<i class="swatch" style="background:linear-gradient(90deg, {colors})"></i>' if colors else ""
    parts = [f"<span>{low}{scale}{high}</span>"]
    if has_unseen and look.view == "overlay":
        parts.append('<span><i class="swatch unseen"></i>not seen by the model</span>')
    return f'<p class="legend">{"".join(parts)}</p>'


def build_photo(pixels: Pixels, name: str, size: tuple[int, int]) -> str:
    """Return an image without a map, of this width and height."""
    return (
        f'<figure class="stage"><div class="frame tall"><img id="map" src="{encode_pixels(pixels)}" '
        f'alt="{escape(name)}" data-width="{size[0]}" data-height="{size[1]}" draggable="false"></div>'
        f"<figcaption><strong>{escape(name)}</strong></figcaption></figure>"
    )


def build_hint(sentence: str) -> str:
    """Return a sentence that says what to do."""
    return f'<p class="hint">{escape(sentence)}</p>'


def build_bars(ranked: Sequence[RankedClass], chosen: int | str | None) -> str:
    """Return the classes that the model ranks highest as bars to click on."""
    rows = "".join(_build_bar(entry, is_chosen=entry.index == chosen) for entry in ranked)
    return f'<div class="bars" role="group" aria-label="Top predictions">{rows}</div>'


def build_scale(label: str, *, is_default: bool) -> str:
    """Return the name of the layer that the slider is at."""
    mark = '<span class="tag">chosen by camtool</span>' if is_default else ""
    return f'<p class="scale"><code>{escape(label)}</code>{mark}</p>'


def build_status(sentence: str, *, is_error: bool = False, is_busy: bool = False) -> str:
    """Return the line below the picture; empty for an empty sentence."""
    if not sentence:
        return ""
    kind = "bad" if is_error else "busy" if is_busy else "done"
    return f'<p class="status {kind}" role="{"alert" if is_error else "status"}">{escape(sentence)}</p>'


def build_pair(pictures: Sequence[tuple[Pixels, str, str]]) -> str:
    """Return pictures side by side, each with a title and a line below it."""
    cards = "".join(
        f'<figure><img src="{encode_pixels(pixels)}" alt="{escape(title)}"><figcaption><strong>{escape(title)}</strong>'
        f"<span>{escape(line)}</span></figcaption></figure>"
        for pixels, title, line in pictures
    )
    return f'<div class="pair">{cards}</div>'


def build_compared(done: Sequence[tuple[Compared, Pixels | None]], waiting: Sequence[str] = ()) -> str:
    """Return the grid of methods: a picture, the time and the warnings of each, and those still to come."""
    cards = [_build_card(compared, pixels) for compared, pixels in done]
    cards += [
        f'<figure class="waiting"><div class="blank"></div><figcaption><strong>{escape(name)}</strong></figcaption>'
        "</figure>"
        for name in waiting
    ]
    return f'<div class="grid">{"".join(cards)}</div>'


def build_thumbnails(pictures: Sequence[tuple[str, str, Pixels]], line: str = "") -> str:
    """Return small pictures to click on, each given as the value of the click, its name and its pixels.

    Args:
        pictures: The pictures.
        line: A sentence below them.
    """
    buttons = "".join(
        f'<button type="button" data-value="{escape(value)}" title="{escape(name)}" aria-label="{escape(name)}">'
        f'<img src="{encode_pixels(pixels, 80)}" alt=""></button>'
        for value, name, pixels in pictures
    )
    return f'<div class="thumbnails">{buttons}</div>' + (build_hint(line) if line else "")


def _build_bar(ranked: RankedClass, *, is_chosen: bool) -> str:
    share = 0.0 if ranked.probability is None else min(1.0, max(0.0, ranked.probability))
    return (
        f'<button type="button" class="bar" data-index="{ranked.index}" aria-pressed="{str(is_chosen).lower()}" '
        f'style="--share:{100 * share:.2f}%"><span class="label">{escape(ranked.label)}</span>'
        f"{_format_probability(ranked.probability)}</button>"
    )


def _build_card(compared: Compared, pixels: Pixels | None) -> str:
    name = escape(compared.method)
    if compared.explanation is None or pixels is None:
        return (
            f'<figure class="failed"><div class="blank"><p>{escape(compared.failure)}</p></div>'
            f"<figcaption><strong>{name}</strong><span>not possible</span></figcaption></figure>"
        )
    warnings = _list_warnings(compared.explanation)
    if warnings:
        count = count_warnings(compared.explanation.warnings)
        warnings = f"<details><summary>{count}</summary>{warnings}</details>"
    return (
        f'<figure><img src="{encode_pixels(pixels, 85)}" alt="{name}"><figcaption><strong>{name}</strong>'
        f"<span>{compared.milliseconds:.0f} ms</span></figcaption>{warnings}</figure>"
    )


def _format_probability(probability: float | None) -> str:
    return "" if probability is None else f'<span class="share">{100 * probability:.1f}%</span>'


# Longest sides of pictures on the page, in pixels.
_PHOTO_SIDE, _CARD_SIDE = 1200, 360

_ASSETS = Path(__file__).parent / "assets"


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
