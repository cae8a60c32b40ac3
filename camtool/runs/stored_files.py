"""What a run stores as JSON, checked before it is used, as anybody may have written such a file; and the manifest.

The manifest has one JSON line for each explanation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from camtool.errors import RaiseAs
from camtool.rendering.written_files import replace_infinite

if TYPE_CHECKING:
    from camtool.explaining.explanation import Explanation
    from camtool.runs.photo_tables import TrueClass

# Nested lists and objects of JSON. Descriptions and records have about six; recursive functions allow hundreds.
_MAX_DEPTH = 32

_Built = TypeVar("_Built")


def parse_object(content: bytes, *, is_finite: bool = True) -> dict[str, Any]:
    """Return an object of JSON.

    Args:
        content: The text.
        is_finite: Refuse NaN and infinity, which JSON lacks, and numbers too large for a float.

    Raises:
        ValueError: The content is no JSON, something else than an object, or nested too deep.
    """
    with RaiseAs(lambda _: ValueError("it is nested too deep"), RecursionError):
        parsed = (_FINITE if is_finite else _ANY).decode(content.decode("utf-8", "surrogatepass"))
    if not isinstance(parsed, dict):
        raise ValueError(f"it holds a {type(parsed).__name__}, not an object")
    _check_depth(parsed, _MAX_DEPTH)
    return parsed


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _parse_float(text: str) -> float:
    number = float(text)
    return number if abs(number) < float("inf") else _refuse_number(text)


def _parse_int(text: str) -> int:
    _parse_float(text)
    return int(text)


_FINITE = json.JSONDecoder(parse_constant=_refuse_number, parse_float=_parse_float, parse_int=_parse_int)
_ANY = json.JSONDecoder()


def _check_depth(value: Any, most: int) -> None:
    if isinstance(value, (dict, list)):
        if most == 0:
            raise ValueError("it is nested too deep")
        for entry in value.values() if isinstance(value, dict) else value:
            _check_depth(entry, most - 1)


def build_checked(kind: type[_Built], values: Mapping[str, Any]) -> _Built:
    """Return an instance of a dataclass from values of JSON. Names that it does not know are left out.

    Raises:
        ValueError: A value is missing, or of another type than the field is annotated with.
    """
    checks = _get_checks(kind)  # type: ignore[arg-type]  # mypy takes a class of any type for unhashable
    checked = {name: value for name, value in values.items() if name in checks}
    for name, value in checked.items():
        if not checks[name](value):
            raise ValueError(f"its {name!r} is of type {type(value).__name__}, or holds a value of another type")
    with RaiseAs(lambda error: ValueError(str(error).partition(") ")[2] or str(error)), TypeError):
        return kind(**checked)


@cache
def _get_checks(kind: type) -> dict[str, Callable[[Any], bool]]:
    hints = get_type_hints(kind)
    return {field.name: build_check(hints[field.name]) for field in fields(kind)}


def build_check(hint: Any) -> Callable[[Any], bool]:
    """Return a function that tells if a value of JSON is of an annotated type. Whole numbers are numbers."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: True
    if origin is None:
        return _build_plain_check(hint)
    if origin is UnionType:
        checks = [build_check(argument) for argument in arguments]
        return lambda value: any(check(value) for check in checks)
    if origin is dict:
        check = build_check(arguments[1])
        return lambda value: isinstance(value, dict) and all(map(check, value.values()))
    return _build_list_check(arguments, has_length=origin is tuple and arguments[-1] is not ...)


def _build_plain_check(kind: type) -> Callable[[Any], bool]:
    if kind is bool:
        return lambda value: isinstance(value, bool)
    allowed = (int, float) if kind is float else kind
    return lambda value: isinstance(value, allowed) and not isinstance(value, bool)


def _build_list_check(arguments: tuple[Any, ...], *, has_length: bool) -> Callable[[Any], bool]:
    check = build_check(arguments[0])

    def is_list(value: Any) -> bool:
        is_as_long = isinstance(value, (list, tuple)) and (not has_length or len(value) == len(arguments))
        return is_as_long and all(map(check, value))

    return is_list


# Name of the file in the output folder with one JSON line for each explanation.
MANIFEST = "explanations.jsonl"


@dataclass(frozen=True)
class ManifestLine:
    """One line of the manifest: one photo, target and method.

    Attributes:
        image: The path of the photo.
        method: The method's name.
        layer: The layer's name.
        label: The label of the target.
        index: The class index; None for other targets.
        score: The score of the target.
        probability: The probability of the class; None if unknown.
        warnings: Reasons not to trust the map.
        box: ``(x0, y0, x1, y1)``, of the explained detection, in pixels of the photo as it was read: a large one is
            reduced, see ``photo-reduced``. None for other targets.
        files: Kind → path of the file, relative to the output folder.
        warning_codes: The codes of the warnings, in the same order.
        predicted_label: The label of the model's top class, which may differ from the explained one; None if it
            predicts no class.
        true_label: The label of the true class; None if it is not known.
        correct: True if the top class is the true one; None if one of them is not known.
        heat_in: Name of a region → share of the heat in it; None for a region that the photo has no mask of, or if
            there is no heat. None without regions.
        sufficient: Share of the model's input that alone keeps 90 % of the probability; None if this was not asked.
        sufficient_text: What was found about this part, in words; None likewise.
    """

    image: str
    method: str
    layer: str
    label: str
    index: int | None
    score: float
    probability: float | None
    warnings: tuple[str, ...]
    box: tuple[float, float, float, float] | None
    files: dict[str, str]
    warning_codes: tuple[str, ...] = ()
    predicted_label: str | None = None
    true_label: str | None = None
    correct: bool | None = None
    heat_in: dict[str, float | None] | None = None
    sufficient: float | None = None
    sufficient_text: str | None = None


def build_line(image: str, explanation: Explanation, true_class: TrueClass | None) -> ManifestLine:
    """Return the line about an explanation, without its files.

    Args:
        image: The path of the photo.
        explanation: The explanation.
        true_class: The true class of the photo; None if it is not known.
    """
    return ManifestLine(
        image=image,
        **explanation.list_facts("method", "layer", "box", "predicted_label"),
        files={},
        true_label=None if true_class is None else true_class.label,
        correct=is_correct([explanation], true_class),
        sufficient=None if explanation.region is None else explanation.region.share,
        sufficient_text=None if explanation.region is None else explanation.region.sentence,
    )


def is_correct(explanations: Sequence[Explanation], true_class: TrueClass | None) -> bool | None:
    """Return True if the top class of a photo is the true one; None if one of them is not known.

    All explanations of a photo have the same top class.
    """
    predicted = next((explanation.predicted_index for explanation in explanations), None)
    return None if predicted is None or true_class is None else predicted == true_class.index


def to_row(line: ManifestLine) -> dict[str, Any]:
    """Return a line as values of JSON. Infinity and NaN, which JSON lacks, become None."""
    row: dict[str, Any] = replace_infinite(asdict(line))
    return row


def parse_row(row: Mapping[str, Any]) -> ManifestLine:
    """Return the line of a row that :func:`to_row` made. A score that JSON lacks becomes NaN.

    Raises:
        ValueError: A field is missing, or of another type.
    """
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    if values.get("score") is None:
        values["score"] = math.nan
    return build_checked(ManifestLine, values)
