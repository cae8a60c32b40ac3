"""The explanations of a batch of photos. If the batch fails as a whole, the photos at fault are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from camtool.arguments.checks import iterate_leaves
from camtool.errors import MethodError, NothingFoundError, TargetError
from camtool.runs.result_writer import describe_error

if TYPE_CHECKING:
    from camtool.explaining.explainer import Explainer
    from camtool.explaining.explanation import Explanation
    from camtool.inputs.prepared_inputs import PreparedInput


def explain_batch(
    explainer: Explainer[Any],
    names: Sequence[str],
    photos: Sequence[PreparedInput | str],
    target: Any,
    *,
    strict: bool = False,
) -> list[list[Explanation] | str]:
    """Return each photo's explanations, or the reason why there are none.

    Args:
        explainer: The explainer.
        names: The name of each photo in messages.
        photos: The model's input of each photo, or the reason why there is none.
        target: The target, or a list of targets, of each photo.
        strict: Raise the error of a method that can serve none of the photos.

    Raises:
        TargetError: The model has no such class.
        MethodError: The method can serve none of the photos, and ``strict`` is set.
    """
    readable = [each for each in photos if not isinstance(each, str)]
    together = _try_explaining(explainer, readable, target)
    # A batch that fails is explained photo by photo.
    each_alone = together if isinstance(together, list) else [_explain_one(explainer, one, target) for one in readable]
    refusals = [each for each in each_alone if isinstance(each, MethodError)]
    if strict and refusals and len(refusals) == len(each_alone):
        raise refusals[0]
    results = iter(each_alone)
    return [
        photo if isinstance(photo, str) else _to_result(name, next(results))
        for name, photo in zip(names, photos, strict=True)
    ]


def _explain_one(explainer: Explainer[Any], photo: PreparedInput, target: Any) -> Any:
    """Return the explanations of one photo, or why there are none."""
    found = _try_explaining(explainer, [photo], target)
    return found[0] if isinstance(found, list) else found


def _try_explaining(
    explainer: Explainer[Any], photos: Sequence[PreparedInput], target: Any
) -> list[Any] | str | MethodError:
    """Return the explanations of each photo, or why there are none; a MethodError if the method cannot serve them.

    Raises:
        TargetError: The model has no such class.
    """
    try:
        # Lists of methods and targets give nested lists, whose leaves are the explanations.
        found: list[Any] = explainer(photos, [target] * len(photos)) if photos else []
    except NothingFoundError as error:
        return str(error)
    except TargetError:
        raise
    except MethodError as error:
        return error
    except Exception as error:  # noqa: BLE001  a user's transform or model may raise anything
        return describe_error(error)
    return found


def _to_result(name: str, found: Any) -> list[Explanation] | str:
    return f"{name}: {found}" if isinstance(found, (str, MethodError)) else list(iterate_leaves(found))
