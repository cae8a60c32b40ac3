"""The registry: from a name to a model, whatever its source, and from whatever was given to what can be explained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

import torch
from torch import nn

from camtool import images
from camtool.arguments import as_module
from camtool.errors import ModelError, near, refuse_url
from camtool.models.base import Loaded, TextEncoder
from camtool.models.factory import from_factory
from camtool.models.hugging_face import from_hugging_face, hugging_face_tokenizer, untrained_hugging_face
from camtool.models.open_clip_zoo import from_open_clip, open_clip_tokenizer, untrained_open_clip
from camtool.models.timm_zoo import from_timm, untrained_timm
from camtool.models.torchvision_zoo import from_torchvision, torchvision_names, untrained_torchvision
from camtool.models.towers import ImageTower, TextTower, has_two_towers, image_tower
from camtool.models.wrappers import unwrapped_model
from camtool.sealed import sealed_as

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["architecture", "as_loaded", "is_model_name", "load"]


@dataclass(frozen=True)
class _Source:
    """Where models come from.

    Attributes:
        load: From a name, and a file with weights or ``None`` for the usual ones, to the model and what belongs to it.
        build: From a name to the model with random weights.
    """

    load: Callable[[str, str | PathLike[str] | None], Loaded]
    build: Callable[[str], nn.Module]


_SOURCES = {
    "timm": _Source(from_timm, untrained_timm),
    "hf": _Source(from_hugging_face, untrained_hugging_face),
    "open_clip": _Source(from_open_clip, untrained_open_clip),
}
"""What stands before the colon in a name → where it leads. Any other colon is that of a factory."""

_FACTORY = _Source(from_factory, lambda name: from_factory(name).model)

_BUNDLED = {"demo": "camtool.demo.bundled:honest", "demo-cheat": "camtool.demo.bundled:cheat"}
"""The models that come with the package: name → factory."""


def load(
    name: str,
    weights: str | PathLike[str] | None = None,
    *,
    labels: Sequence[str] | None = None,
    device: torch.device | str | None = None,
) -> Loaded:
    """Load a model by name.

    Args:
        name: One of

            * a torchvision model: ``"resnet50"``;
            * one of timm's: ``"timm:convnext_tiny"``, or with a tag, ``"timm:resnet50.a1_in1k"``;
            * one of Hugging Face's, by its name on the hub or a folder: ``"hf:org/name"``, ``"hf:/a/folder"``;
            * one of open_clip's, with whose weights: ``"open_clip:ViT-B-32/openai"``;
            * a bundled one: ``"demo"``, ``"demo-cheat"``;
            * ``"package.module:factory"``: a function without arguments that returns a model, a pair of a model and its
              transform, or a :class:`Loaded`.
        weights: A ``.safetensors``, ``.pt`` or ``.pth`` file with the model's state. By default the usual pretrained
            weights of the name are fetched; a factory brings its own.
        labels: The names of the classes, where they are not those of the weights.
        device: Where the model goes.

    Raises:
        ModelError: The name, the file or the download cannot be had, the weights do not fit the model, or what it
            needs is not installed.
    """
    source, rest = _source(name)
    loaded = source.load(rest, weights)
    if labels is not None:
        loaded = replace(loaded, labels=list(labels))
    loaded = replace(loaded, model=_ready(loaded.model).to(device), name=name)
    if not has_two_towers(loaded.model):
        return loaded
    return replace(loaded, model=ImageTower(loaded.model), text=loaded.text or _texts(loaded.model))


def architecture(name: str) -> nn.Module:
    """A model to look at how it is built, with random weights. A bundled one and a factory's are as they come.

    Nothing is fetched, but for the configuration of a model on the hub of Hugging Face.

    Raises:
        ModelError: The name is unknown, or what it needs is not installed.
    """
    source, rest = _source(name)
    model = _ready(source.build(rest))
    for module in model.modules() if source is not _FACTORY else ():
        # A head that starts at zero, as the vision transformers' do, lets no gradient through: any numbers serve.
        if isinstance(module, nn.Linear) and not module.weight.any():
            nn.init.normal_(module.weight)
    return ImageTower(model) if has_two_towers(model) else model


def as_loaded(model: nn.Module | Loaded) -> Loaded:
    """What can be explained of a model: what is inside of wrappers, and of two towers the one for pictures.

    Args:
        model: A model, or one with what belongs to it. It is not changed, and the caller keeps it.

    Raises:
        ModelError: It is no model.
    """
    module = as_module(model)
    loaded = model if isinstance(model, Loaded) else Loaded(module)
    inner = unwrapped_model(module)
    if has_two_towers(inner):
        return replace(loaded, model=image_tower(inner), text=loaded.text or _texts(inner))
    return loaded if inner is loaded.model else replace(loaded, model=inner)


def _ready(model: nn.Module) -> nn.Module:
    """In evaluation mode; what runs in one piece may know no other, and torch.export's graphs raise at the question."""
    return model if sealed_as(model) else model.eval()


def _texts(whole: nn.Module) -> TextEncoder:
    if hasattr(whole, "get_text_features"):
        return TextTower(whole, hugging_face_tokenizer(whole, getattr(whole, "name_or_path", "")))
    return TextTower(whole, open_clip_tokenizer(whole))


def is_model_name(name: str) -> bool:
    """Return whether a name is that of a model: of torchvision or bundled, or one behind the name of its source."""
    return name.partition(":")[0] in _SOURCES or name in _BUNDLED or name in torchvision_names()


def _hint_of_file(name: str) -> str:
    """Return a hint on a file that was given as the name of a model; nothing if it does not look like one."""
    suffix = PurePath(name).suffix.lower()
    if suffix in (".safetensors", ".pt", ".pth"):
        return " It is a file of weights: give it as weights= (--weights), and name the model that they are of."
    if suffix in images.SUFFIXES or PurePath(name).name != name:
        return " It looks like a photo or a path: name the model here, and give photos as the image to explain."
    return ""


def _source(name: str) -> tuple[_Source, str]:
    """Where a name leads, and what it is called there."""
    first, colon, rest = name.partition(":")
    refuse_url("model", rest if first in _SOURCES else name, ModelError)
    if colon and first in _SOURCES:
        return _SOURCES[first], rest
    if colon or name in _BUNDLED:
        return _FACTORY, _BUNDLED.get(name, name)
    known = [*torchvision_names(), *_BUNDLED]
    if name not in known:
        hint = _hint_of_file(name) or near(name, known)
        raise ModelError(
            f"model {name!r} is unknown.{hint} Give a torchvision name such as 'resnet50', 'timm:NAME', "
            "'hf:NAME', 'demo', or your own as 'package.module:factory'."
        )
    return _Source(from_torchvision, untrained_torchvision), name
