"""Options of methods: checks that raise :class:`camtool.MethodError` before anything runs, texts, and probabilities.

Methods whose papers score the probability of a class instead of its logit convert the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any, Literal, TypeAlias

from torch import Tensor

from camtool.arguments import checks
from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence
from camtool.layers.depths import Depths
from camtool.maps import upcast
from camtool.outputs.class_scores import find_logits
from camtool.targets import Similarity, Target

check_choice = partial(checks.check_choice, error=MethodError)
check_count = partial(checks.check_count, error=MethodError)
check_number = partial(checks.check_number, error=MethodError)
check_numbers = partial(checks.check_numbers, error=MethodError)


# What a method scores: the probability of the class, or the target as it is.
Scored: TypeAlias = Literal["probability", "target"]


def check_depths(depths: Depths) -> None:
    """Check that the option ``depths`` is a number of depths or the names of layers.

    Raises:
        MethodError: It is neither.
    """
    is_count = isinstance(depths, Integral) and not isinstance(depths, bool) and int(depths) > 0
    is_names = isinstance(depths, (list, tuple)) and all(isinstance(name, str) for name in depths)
    if not is_count and not is_names:
        raise MethodError(f"depths must be a whole number of 1 or more, or a list of names of layers, got {depths!r}.")


def check_no_local_targets(evidence: Evidence, change: str) -> None:
    """Check that no target is a region of the image, for methods that move, cut or resize the image.

    Args:
        evidence: The evidence with the targets.
        change: What the method does with the image; the message begins with it: ``"sess cuts the image"``.

    Raises:
        MethodError: A target is a region of the image.
    """
    for target in evidence.targets:
        if target.traits.has_place:
            raise MethodError(
                f"{change}, but target {type(target).__name__} refers to a fixed region of it; "
                "use a target without a region, or another method."
            )


# The options of methods that may be texts, for models that compare images with texts.
_TEXT_OPTIONS = ("against",)


def encode_text_options(options: Mapping[str, Any], encode: Callable[[Sequence[str]], Tensor]) -> dict[str, Any]:
    """Return the options of a method with texts replaced by their embeddings.

    Args:
        options: Name → value.
        encode: Returns the embeddings ``(T, D)`` of T texts.
    """

    def encode_text(value: Any) -> Any:
        return Similarity(encode([value])[0], value) if isinstance(value, str) else value

    encoded = dict(options)
    for name in options.keys() & {*_TEXT_OPTIONS}:
        value = options[name]
        encoded[name] = list(map(encode_text, value)) if isinstance(value, (list, tuple)) else encode_text(value)
    return encoded


def convert_to_probability(target: Target) -> Target | None:
    """Return a target that scores the probability of a target's class, or ``None`` if the target has none."""
    probability = target.to_probability()
    return None if probability is None else _UpcastTarget(probability)


def prefer_probability(target: Target) -> Target:
    """Return a target that scores the probability of a target's class, or the target itself if it has none."""
    return convert_to_probability(target) or target


@dataclass(frozen=True)
class _UpcastTarget(Target):
    """A target on the logits in float32 or wider: in half precision, probabilities that differ slightly are equal."""

    target: Target

    def __call__(self, output: Any) -> Tensor:
        return self.target(upcast(find_logits(output)))
