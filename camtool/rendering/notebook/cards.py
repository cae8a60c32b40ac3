"""Cards of explanations: one with the answers of the model, and several side by side.

A card is HTML with its own style and script, so that it works from a file and without a network. Where scripts do not
run it is a picture with its legend and answers; where HTML is not shown, a picture alone.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from camtool.arguments.message_parts import count_warnings, format_percent
from camtool.rendering.colormaps import DEFAULT_COLORMAP, compute_opacity, get_default_alpha, get_palette
from camtool.rendering.contact_sheet import draw_captioned_images
from camtool.rendering.overlay import UNSEEN_GRAY, blend
from camtool.rendering.pixel_checks import Heat, Pixels, is_constant_heat
from camtool.warning_codes import MapWarning

# Longer sides in pixels: of pictures, of the colors over them, of the numbers below the pointer, and of the picture
# for viewers that show no HTML.
_PICTURE_SIDE, _HEAT_SIDE, _NUMBERS_SIDE, _FALLBACK_SIDE = 480, 240, 48, 320

# Quality of JPEG and WebP. A card has at most 300 kB.
_QUALITY = 82

# Pictures side by side; the others are counted.
_MOST_PICTURES, _COLUMNS, _COLUMN_WIDTH = 24, 4, 200

_LEGEND_STOPS = 9


@dataclass(frozen=True, eq=False)
class HeatLayer:
    """Heat of one answer, to be shown over the photo.

    Attributes:
        name: The answer.
        probability: Its probability; None if it has none.
        heatmap: ``(H, W)`` in [0, 1], on the photo.
    """

    name: str
    probability: float | None
    heatmap: Heat


@dataclass(frozen=True, eq=False)
class CardContent:
    """Content of the card of an explanation.

    Attributes:
        title: The answer that is explained.
        facts: A line about it.
        overlay: ``(H, W, 3)`` uint8, the finished picture.
        photo: ``(H, W, 3)`` uint8, the picture without heat; None to show the finished one alone.
        layers: Heat over that photo: of the explained answer, then of others.
        warnings: Reasons not to trust it.
        has_unseen: Whether a part of the photo is gray, as the model did not see it.
    """

    title: str
    facts: str
    overlay: Pixels
    photo: Pixels | None
    layers: Sequence[HeatLayer]
    warnings: Sequence[MapWarning]
    has_unseen: bool


def build_card(content: CardContent) -> dict[str, str]:
    """Return what a notebook shows for an explanation: MIME type → text."""
    overlay = _reduce(content.overlay, _PICTURE_SIDE)
    html = _render(
        "explanation.html",
        content=content,
        overlay=_encode(overlay, "JPEG"),
        photo=None if content.photo is None else _encode(_reduce(content.photo, _PICTURE_SIDE), "JPEG"),
        layers=[_describe_layer(layer) for layer in content.layers],
        opacity=round(100 * get_default_alpha(DEFAULT_COLORMAP)),
        warned=count_warnings(content.warnings) if content.warnings else "",
        has_unseen=content.has_unseen,
    )
    return {"text/html": html, "image/png": _encode_fallback(_reduce(overlay, _FALLBACK_SIDE))}


def build_sheet(pictures: Sequence[Pixels], captions: Sequence[str], *, has_unseen: bool) -> dict[str, str]:
    """Return what a notebook shows for several explanations side by side: MIME type → text.

    Args:
        pictures: The overlays, ``(H, W, 3)`` uint8; at least one.
        captions: One for each.
        has_unseen: Whether a part of one of them is gray, as the model did not see it.
    """
    shown = [_reduce(picture, 2 * _COLUMN_WIDTH) for picture in pictures[:_MOST_PICTURES]]
    captions = captions[: len(shown)]
    figures = [(_encode(picture, "JPEG"), caption) for picture, caption in zip(shown, captions, strict=True)]
    html = _render("sheet.html", figures=figures, more=len(pictures) - len(shown), has_unseen=has_unseen)
    columns = min(_COLUMNS, len(shown))
    sheet = draw_captioned_images(shown, captions, columns=columns, width=_COLUMN_WIDTH)
    return {"text/html": html, "image/png": _encode_fallback(sheet)}


def _describe_layer(layer: HeatLayer) -> dict[str, Any]:
    """Return the colors of a layer, and its numbers in percent, as the script reads them."""
    heat = _reduce(layer.heatmap, _HEAT_SIDE).clip(0, 1)
    opacity = np.zeros_like(heat) if is_constant_heat(heat, None) else compute_opacity(heat, DEFAULT_COLORMAP)
    colors = get_palette(DEFAULT_COLORMAP)[np.rint(255 * heat).astype(np.uint8)]
    numbers = np.rint(100 * _reduce(layer.heatmap, _NUMBERS_SIDE).clip(0, 1)).astype(np.uint8)
    return {
        "name": layer.name,
        "probability": layer.probability,
        "percent": "" if layer.probability is None else format_percent(layer.probability, 1),
        "colors": _encode(np.dstack([colors, np.rint(255 * opacity).astype(np.uint8)]), "WEBP"),
        "numbers": _encode_base64(numbers.tobytes()),
        "width": numbers.shape[1],
    }


def _render(name: str, **values: Any) -> str:
    """Return a template with its values, and with a legend of the colors as they look on a middle gray."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    loader = PackageLoader("camtool.rendering.notebook")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # Style and script are ours, and stand in a card as they are.
    environment.globals["read"] = lambda part: Markup(loader.get_source(environment, part)[0])
    heat = np.linspace(0, 1, _LEGEND_STOPS, dtype=np.float32)[None]
    colors = blend(np.full((*heat.shape, 3), 128, np.uint8), heat)[0].tolist()
    legend = [f"rgb({red}, {green}, {blue})" for red, green, blue in colors]
    return environment.get_template(name).render(legend=legend, unseen_gray=UNSEEN_GRAY, **values)


def _reduce(pixels: Any, side: int) -> Any:
    """Return an image or a map whose longer side is at most ``side`` pixels."""
    import cv2

    scale = side / max(pixels.shape[:2])
    if scale >= 1:
        return pixels
    size = [max(1, round(scale * length)) for length in pixels.shape[1::-1]]
    return cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)


def _encode(pixels: Pixels, form: str) -> str:
    """Return a picture as a data URL."""
    stream = BytesIO()
    Image.fromarray(pixels).save(stream, form, quality=_QUALITY)
    return f"data:image/{form.lower()};base64,{_encode_base64(stream.getvalue())}"


def _encode_fallback(pixels: Pixels) -> str:
    """Return a PNG of few bytes."""
    stream = BytesIO()
    Image.fromarray(pixels).quantize(256).save(stream, "PNG", optimize=True)
    return _encode_base64(stream.getvalue())


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
