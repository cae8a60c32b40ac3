"""Every exception that camtool raises on purpose, so that people can catch what they can mend.

::

    CamtoolError
    ├── ImageError      a picture cannot be read, or is no picture
    ├── GeometryError   a transform's crop and scale cannot be told
    ├── LayerError      no layer, or not the layer asked for, can carry a map
    ├── TargetError     what should be explained does not fit the model's output
    │   └── NothingFoundError   a detector found nothing of the kind in this image
    ├── MethodError     an unknown method or option, or one this model cannot serve
    ├── ModelError      a model, its weights or its labels cannot be had
    ├── ForwardError    the model itself fails on the inputs it is given
    └── OverlayError    pixels and a heatmap that do not fit, or cannot be drawn
        └── ColormapError   a colormap has no such name
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "CamtoolError",
    "ColormapError",
    "ForwardError",
    "GeometryError",
    "ImageError",
    "LayerError",
    "MethodError",
    "ModelError",
    "NothingFoundError",
    "OverlayError",
    "TargetError",
    "add_article",
    "format_count",
    "format_percent",
    "near",
    "refuse_url",
]


class CamtoolError(Exception):
    """The root: ``except camtool.CamtoolError`` catches all that camtool raises on purpose."""


class ImageError(CamtoolError, ValueError):
    """A picture cannot be read, or what was given is no picture."""


class GeometryError(CamtoolError, ValueError):
    """A transform is not a crop and a scale, so a map cannot be put back onto the photo."""


class LayerError(CamtoolError, ValueError):
    """No layer, or not the layer asked for, can carry a map."""


class TargetError(CamtoolError, ValueError):
    """What should be explained does not fit the model's output."""


class NothingFoundError(TargetError):
    """A detector found nothing of the kind in this image; in another it may."""


class MethodError(CamtoolError, ValueError):
    """A method or an option is unknown, or the model cannot serve the method."""


class ModelError(CamtoolError, ValueError):
    """A model, its weights or its labels cannot be had."""


class ForwardError(CamtoolError, RuntimeError):
    """The model itself fails on the inputs it is given; its own error is the ``__cause__``."""


class OverlayError(CamtoolError, ValueError):
    """What was given cannot be laid over one another or drawn."""


class ColormapError(OverlayError):
    """A colormap has no such name."""


def near(word: str, known: Iterable[str], *, most: int = 3) -> str:
    """A clause that suggests names close to ``word``: ``" Did you mean 'tabby'?"``, or nothing.

    Args:
        word: What was asked for.
        known: The names that exist.
        most: How many names to suggest at most.

    Returns:
        A sentence that starts with a space, or the empty string where nothing is near.
    """
    by_folded = {name.casefold(): name for name in known}
    folded = str(word).casefold()
    matches = get_close_matches(folded, by_folded, n=most, cutoff=0.6)
    # A part of a longer name ("tabby" in "tabby cat") is near too, though its edit distance is large.
    matches += [name for name in by_folded if len(folded) > 2 and folded in name and name not in matches]
    names = [repr(by_folded[match]) for match in matches[:most]]
    return f" Did you mean {' or '.join(names)}?" if names else ""


def refuse_url(name: str, value: object, error: type[CamtoolError]) -> None:
    """Raise an error if a path is a URL: camtool reads files, and a path would turn ``//`` into ``/``.

    Args:
        name: The argument that takes the path, for the message.
        value: What was given; anything but a string is no URL.
        error: The class of the error.
    """
    if isinstance(value, str) and re.match(r"[a-z][a-z0-9+.-]+://", value, re.IGNORECASE):
        raise error(f"{name} {value!r}: URLs are not read; download the file first and give its path.")


def format_count(number: int, thing: str) -> str:
    """Return a number and the noun that it counts: ``"1 warning"``, ``"2 classes"``, ``"1,200 entries"``.

    Args:
        number: How many there are.
        thing: The noun in the singular.
    """
    if number == 1:
        return f"1 {thing}"
    if thing.endswith("y") and thing[-2:-1] not in "aeiou":
        return f"{number:,} {thing[:-1]}ies"
    return f"{number:,} {thing}{'es' if thing.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def add_article(noun: str) -> str:
    """Return a noun, such as the name of a type, behind "a" or "an": ``"an OrderedDict"``, ``"a list"``."""
    is_spelled_out = noun[:2].isupper() or len(noun) == 1
    has_vowel_sound = noun[:1] in "AEFHILMNORSX" if is_spelled_out else noun[:1].casefold() in "aeiou"
    return f"{'an' if has_vowel_sound and noun else 'a'} {noun}"


def format_percent(probability: float, decimals: int = 0) -> str:
    """Return a probability as a percentage, ``"87%"``; one that is NaN or infinite is ``"not a number"``."""
    return f"{probability:.{decimals}%}" if math.isfinite(probability) else "not a number"
