"""A function of the user as a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from camtool.errors import CamtoolError, TargetError, raise_interrupt
from camtool.hooks.structures.nested_tensors import find_tensors
from camtool.outputs.predictions import count_images, get_image_output
from camtool.targets.base_target import Corners, ScoreContext, Target, Traits
from camtool.targets.field_checks import check_box, check_integer, check_label


@dataclass(frozen=True, eq=False)
class Custom(Target):
    """A function of the user that is called with the output for one image at a time.

    The other attributes are optional. They say what the function is about; :func:`camtool.explain` also takes the
    function alone.

        spread = Custom(lambda output: output.std(), label="spread of the logits")

    Attributes:
        function: Takes one image's part of the model's output, in the same structure and without the batch axis.
            Returns a tensor with one number, on the graph.
        label: The label of the explanation; by default the name of the function, or the label of the class.
        class_index: The class that the function is about.
        box: The box ``(x0, y0, x1, y1)`` that the function is about, in pixels of the photo.
        is_local: True if the function is about a part of the image. Methods then do not flip or crop the image. A
            function with a box is always local.
        warnings: Reasons not to trust a map of this target, one sentence or several.
    """

    function: Callable[[Any], Tensor]
    label: str | None = None
    class_index: int | None = None
    box: Corners | None = None
    is_local: bool = False
    warnings: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TargetError(f"Custom's function must be a function, got {self.function!r}.")
        check_label("Custom's label", self.label)
        check_integer("Custom's class_index", self.class_index, optional=True)
        if self.box is not None:
            check_box("Custom's box", self.box)
            object.__setattr__(self, "box", tuple(map(float, self.box)))
        warnings = (self.warnings,) if isinstance(self.warnings, str) else self.warnings
        if not isinstance(warnings, (list, tuple)) or not all(isinstance(warning, str) for warning in warnings):
            raise TargetError(f"Custom's warnings must be texts, got {warnings!r}; give a list of sentences.")
        object.__setattr__(self, "warnings", tuple(warnings))

    @property
    def traits(self) -> Traits:
        """A place if the function is about a part of the image."""
        return Traits(has_place=self.is_local or self.box is not None)

    def __call__(self, output: Any) -> Tensor:
        return torch.stack([self._score_image(get_image_output(output, i)) for i in range(count_images(output))])

    def get_class_index(self) -> int | None:
        """Return the class that the function is about, if it was given."""
        return None if self.class_index is None else int(self.class_index)

    def describe(self, labels: Sequence[str] | None) -> str:
        """Return the given label, or the class' label, or the function's name."""
        return super().describe(labels) if self.label is None else self.label

    def get_box(self) -> Corners | None:
        """Return the box that the function is about, if it was given."""
        return self.box

    def get_warnings(self, context: ScoreContext) -> Sequence[str]:
        """Return the given warnings."""
        return self.warnings

    def _score_image(self, output: Any) -> Tensor:
        """Return one image's score ``()``."""
        try:
            value = self.function(output)
        except Exception as error:
            raise_interrupt(error, CamtoolError, torch.OutOfMemoryError)
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in find_tensors(output)) or "none"
            raise TargetError(
                f"target_class: {self} failed with {type(error).__name__}: {error}. It gets the output for one image "
                f"at a time, without the batch axis; shapes of its tensors: {shapes}."
            ) from error
        if not isinstance(value, Tensor) or value.numel() != 1:
            returned = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise TargetError(f"target_class: {self} returned {returned}; it must return a tensor with one number.")
        if value.is_complex():
            raise TargetError(f"target_class: {self} returned a complex number; return a real one, e.g. its abs().")
        return value.reshape(())

    def __str__(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)
