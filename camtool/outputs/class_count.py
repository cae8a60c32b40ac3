"""The number of classes that a model declares."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def get_class_count(model: nn.Module) -> int | None:
    """Return the number of classes that a model declares, or ``None`` if it declares none.

    Hugging Face's models have it in their ``config``, Ultralytics' models have a list or mapping ``names``.
    """
    class_count = getattr(getattr(model, "config", None), "num_labels", None)
    names = getattr(model, "names", None)
    if isinstance(class_count, int):
        return class_count
    return len(names) if isinstance(names, (dict, list, tuple)) else None


def find_class_count(model: nn.Module, width: int | None = None) -> int | None:
    """Return the number of classes that a model or the nearest of its modules declares; ``None`` if none does.

    A wrapper of a detector declares none, but the detector inside does. Here, an attribute ``num_classes`` counts as
    well.

    Args:
        model: The model.
        width: The number of logits of a query, if the model is a detector with queries. Only a count of ``width``, or
            of one less beside "no object", is possible then. If modules at one depth declare both, neither counts.
    """
    if width is None:
        return next((count for level in _list_levels(model) for count in map(get_class_count, level) if count), None)
    for level in _list_levels(model):
        possible = {count for module in level for count in _list_counts(module, width, is_whole=module is model)}
        if possible:
            return possible.pop() if len(possible) == 1 else None
    return None


def _list_levels(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Yield the model alone, then its children, then their children, and so on."""
    level = [model]
    while level:
        yield level
        level = [child for module in level for child in module.children()]


def _list_counts(module: nn.Module, width: int, *, is_whole: bool) -> list[int]:
    """Return the numbers of classes that a module declares and that fit ``width`` logits."""
    declared = getattr(module, "num_classes", None), get_class_count(module)
    counts = [count for count in declared if isinstance(count, int) and count in (width, width - 1)]
    if not counts or is_whole:
        return counts
    # Every configuration of Hugging Face has a number of labels, also that of a backbone without a head.
    has_head = any(getattr(submodule, "out_features", None) == width for submodule in module.modules())
    return counts if has_head else []
