"""Values that a shell completes after a tab: those that are known without loading a model."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import typer

from camtool.cli.options.model_options import read_labels
from camtool.errors import CamtoolError

_TARGETS = ("top1", "top3", "top5", "detections")


def complete_method(incomplete: str) -> list[str]:
    """Return the methods that a text begins; of several with commas between them it begins the last one."""
    from camtool.methods import METHODS

    before, comma, start = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in METHODS if name.startswith(start)]


def complete_target(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the targets that a text begins: forms that all models have, and the classes that the command names."""
    names = [name for name in (*_TARGETS, *_list_classes(ctx.params)) if name.startswith(incomplete)]
    return _quote(names) if os.environ.get("_CAMTOOL_COMPLETE") == "complete_bash" else names


def _quote(names: Iterable[str]) -> list[str]:
    """Return names as they are typed in bash, which inserts them as they come; other shells quote them themselves."""
    return [re.sub(r"([^\w@%+=:,./-])", r"\\\1", name) for name in names]


def _list_classes(params: dict[str, Any]) -> Sequence[str]:
    """Return the classes of ``--labels``, or those of published weights; none for other models."""
    model, labels = params.get("model") or "", params.get("labels")
    if labels is not None:
        try:
            return read_labels(labels)
        except CamtoolError:  # the command says it when it runs
            return ()
    if params.get("weights") is not None:
        return ()
    if model.startswith("demo"):
        from camtool.demo.shapes import LABELS

        return LABELS
    from camtool.models.sources.torchvision import read_published_labels

    return read_published_labels(model.removeprefix("torchvision:"))


COMPLETIONS: dict[str, Callable[..., list[str]]] = {"method": complete_method, "target": complete_target}
"""Name of an option, in any command, to the function that completes its value. Layers are known of no model."""
