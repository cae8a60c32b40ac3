"""The number of classes of a model, and the check that a class exists."""

from __future__ import annotations

from torch import nn

from camtool.arguments.messages import format_count
from camtool.errors import TargetError

__all__ = ["check_class_index", "get_class_count"]


def check_class_index(index: int, class_count: int) -> None:
    """Check that a class exists.

    Raises:
        TargetError: It does not.
    """
    if not 0 <= index < class_count:
        raise TargetError(
            f"target_class {index} does not exist: the model has {format_count(class_count, 'class')}, "
            f"0 to {class_count - 1}."
        )


def get_class_count(model: nn.Module) -> int | None:
    """Return the number of classes that a model declares, or ``None`` if it declares none.

    Hugging Face's models have it in their ``config``, Ultralytics' models have a list or mapping ``names``.
    """
    class_count = getattr(getattr(model, "config", None), "num_labels", None)
    names = getattr(model, "names", None)
    if isinstance(class_count, int):
        return class_count
    return len(names) if isinstance(names, (dict, list, tuple)) else None
