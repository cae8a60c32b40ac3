"""Options that choose the map: method, target, layer, merge, placement, and options of the method."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from typer import Option

from camtool.errors import CamtoolError

if TYPE_CHECKING:
    from camtool.targets import AllDetections, Top


Placement: TypeAlias = Literal["centers", "stretch"]
"""Placement of a layer's grid on the model's input."""

_OPTION = Option(
    metavar="NAME=VALUE",
    help="Option of the method, e.g. samples=50; for a list: camtool methods NAME. Repeat it for several.",
)


@dataclass(frozen=True)
class MethodOptions:
    """Options that choose one method and its layer.

    Attributes:
        method: Method; for a list: camtool methods.
        layer: Layer; for a list: camtool layers MODEL.
    """

    panel: ClassVar[str] = "Map"

    method: Annotated[str, Option(metavar="NAME")] = "gradcam"
    layer: Annotated[str | None, Option(metavar="NAME", show_default="the best one")] = None
    option: Annotated[list[str] | None, _OPTION] = None


@dataclass(frozen=True)
class MapOptions:
    """Options that choose methods, targets and layers.

    Attributes:
        method: Method, see camtool methods. Repeat it, or use commas, for several.
        target: Class index, class name, top1, top3, ..., or detections[:CONFIDENCE] for all that a detector reports;
            group:dog for all dogs as one, 'dog vs wolf' to compare, within:dog for two dogs; for CLIP-like models a
            text. Repeat it for several.
        layer: Layer; for a list: camtool layers MODEL. Repeat it for several.
        merge: How to merge maps of layers: mean, max, ...
        placement: Draw each cell at the center of its receptive field, or stretch the grid.
        verify: Test where the heat lies: of all photos, or of the first of each size.
    """

    panel: ClassVar[str] = "Map"

    method: Annotated[list[str], Option(metavar="NAME")] = field(default_factory=lambda: ["gradcam"])
    target: Annotated[list[str] | None, Option(metavar="TARGET", show_default="top1")] = None
    layer: Annotated[list[str] | None, Option(metavar="NAME", show_default="the best one")] = None
    merge: Annotated[str, Option(metavar="NAME")] = "mean"
    placement: Placement = "centers"
    verify: Literal["places", "sizes"] = "sizes"
    option: Annotated[list[str] | None, _OPTION] = None


def find_methods(texts: list[str], settings: Mapping[str, Any], reserved: Collection[str]) -> list[str]:
    """Return the names of the methods, each once, and check that their options and the merge exist.

    Args:
        texts: Lists of names, separated by commas.
        settings: The settings of the explainer.
        reserved: Names of settings that are no options of a method.

    Raises:
        CamtoolError: There is no such method, option or merge.
    """
    from camtool import methods
    from camtool.methods.merges import get_merge

    names = split_names(texts)
    if not names:
        raise CamtoolError(f"--method names no method. Known methods: {', '.join(methods.METHODS)}.")
    chosen = [methods.find_method(name) for name in names]
    methods.check_options(chosen, {name: value for name, value in settings.items() if name not in reserved})
    get_merge(settings["merge"])
    return list(dict.fromkeys(method.name for method in chosen))


def parse_targets(texts: list[str] | None) -> list[Top | AllDetections | int | str]:
    """Return the target of each text: ``"top3"``, ``"detections:0.5"``, a class index, or a label.

    None gives the most probable class.

    Raises:
        CamtoolError: The confidence is not a number from 0 to 1.
    """
    from camtool.targets import AllDetections, Top

    def parse(text: str) -> Top | AllDetections | int | str:
        detections = re.fullmatch(r"detections(?::(.*))?", text)
        if detections:
            return AllDetections(None if detections[1] is None else _parse_confidence(text, detections[1]))
        top = re.fullmatch(r"top(\d+)", text)
        if top and int(top[1]) > 0:
            return Top(int(top[1]))
        return int(text) if text.isdecimal() else text

    return [parse(text) for text in texts or ["top1"]]


def _parse_confidence(text: str, number: str) -> float:
    """Return the number of ``detections:NUMBER``."""
    try:
        confidence = float(number)
    except ValueError:
        confidence = -1.0
    if not 0 <= confidence <= 1:
        raise CamtoolError(f"--target {text}: the confidence must be a number from 0 to 1, e.g. detections:0.5.")
    return confidence


def parse_method_options(texts: list[str] | None, reserved: tuple[str, ...]) -> dict[str, Any]:
    """Return the values of ``NAME=VALUE`` texts by name.

    A value that is JSON, such as 50, 0.5, true or [1, 2], is read as JSON; any other is a string.

    Args:
        texts: The texts.
        reserved: Names that have command line options of their own.

    Raises:
        CamtoolError: A text has another form, or its name is reserved.
    """
    options = {}
    for option in texts or []:
        name, equals, text = option.partition("=")
        if not equals or not name.isidentifier():
            raise CamtoolError(f"--option {option!r} is not of the form NAME=VALUE, e.g. samples=50.")
        if name in reserved:
            raise CamtoolError(f"--option {option!r} is not an option of a method; use --{name.replace('_', '-')}.")
        try:
            options[name] = json.loads(text)
        except (ValueError, RecursionError):
            options[name] = text
    return options


def split_names(texts: list[str]) -> list[str]:
    """Return the names in texts that are each a list separated by commas."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]
