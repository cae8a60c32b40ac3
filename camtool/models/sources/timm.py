"""Models of timm, with the preprocessing and the class names of their configuration."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from PIL import Image
from torch import Tensor, nn

from camtool.arguments.libraries import import_library
from camtool.arguments.message_parts import suggest_names
from camtool.errors import ModelError, raise_interrupt
from camtool.geometry.transform_output import Transform
from camtool.models.loaded import Loaded
from camtool.models.sources import source
from camtool.models.sources.torchvision import build_gray, read_imagenet_labels
from camtool.models.weights import load_state, match_names, read_state


class TimmSource(source.Source):
    """Models of timm.

    Names are those of timm, with or without a tag: ``"timm:convnext_tiny"``, ``"timm:resnet50.a1_in1k"``; also
    ``"timm:hf-hub:org/name"`` and ``"timm:local-dir:FOLDER"``.
    """

    prefix = "timm"
    usage = "'timm:NAME'"

    def load(self, name: str, weights: str | PathLike[str] | None) -> Loaded:
        """Load a model with its pretrained weights, or with those of a file, whose head may have other classes.

        Raises:
            ModelError: timm is not installed, the name is unknown, or the weights cannot be read or do not fit.
        """
        model = _download(name) if weights is None else _build_from_file(name, weights)
        return Loaded(model, _build_transform(model), _read_labels(model))

    def build_untrained(self, name: str) -> nn.Module:
        """Build a model with random weights."""
        model: nn.Module = _build(name)
        return model

    def is_offline(self, name: str, weights: str | None) -> bool:
        """Return True for a model of timm's own list with the weights of a file."""
        return weights is not None and ":" not in name and "/" not in name

    def find_transform(self, model: nn.Module) -> Transform | None:
        """Return the preprocessing of the model's configuration."""
        return _build_transform(model) if _is_of_timm(model) else None

    def find_labels(self, model: nn.Module) -> Sequence[str] | None:
        """Return the class names of the model's configuration."""
        return _read_labels(model) if _is_of_timm(model) else None

    def find_input_size(self, model: Any) -> tuple[int, int] | None:
        """Return the image size of the model's configuration."""
        return source.to_height_and_width(model.pretrained_cfg["input_size"][1:]) if _is_of_timm(model) else None


def _is_of_timm(model: nn.Module) -> bool:
    """Return True if timm made the model, and its configuration with it."""
    return type(model).__module__.startswith("timm.") and bool(getattr(model, "pretrained_cfg", None))


def _build_transform(model: nn.Module) -> Transform:
    timm = _import_timm()
    transform: Transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    return transform


def build_configured_transform(settings: Mapping[str, Any], path: Path) -> Transform:
    """Return the transform that the ``pretrained_cfg`` of a file describes.

    Raises:
        ModelError: timm is not installed, or the settings are not timm's.
    """
    timm = _import_timm()
    _check_numbers(settings, path)
    with source.describe_errors(f"{path}: 'pretrained_cfg' is not timm's"):
        data = timm.data.resolve_data_config(pretrained_cfg={**settings}, use_test_size=False)
        source.check_sides(path, [side / min(1, data["crop_pct"]) for side in data["input_size"][1:]])
        transform: Transform = timm.data.create_transform(**data)
        transform(Image.new("RGB", (320, 256)))
    return build_gray(transform) if data["input_size"][0] == 1 else transform


def _check_numbers(settings: Mapping[str, Any], path: Path) -> None:
    for name, kinds in (("input_size", {int}), ("mean", {int, float}), ("std", {int, float})):
        values = settings.get(name)
        # JSON's true counts as a number in Python, and timm does not check the types.
        is_list = isinstance(values, list) and len(values) > 0 and {*map(type, values)} <= kinds
        if values is not None and not (is_list and (name != "input_size" or len(values) == 3)):
            raise ModelError(
                f"{path}: 'pretrained_cfg' is not timm's: {name} is {reprlib.repr(values)}, not a list of numbers."
            )


def _read_labels(model: Any) -> list[str] | None:
    """Return the class names, if the model's configuration shows which data set it was trained on.

    ImageNet's thousand classes have torchvision's names, so that a class has one name in all models. Those of larger
    sets have WordNet's.
    """
    # A feature extractor has no num_classes.
    config, classes = model.pretrained_cfg, getattr(model, "num_classes", None)
    if classes is None or classes != config.get("num_classes"):
        # The user replaced the head.
        return None
    names = config.get("label_names")
    if names:
        descriptions = config.get("label_descriptions")
        return [str(descriptions[name]) for name in names] if isinstance(descriptions, dict) else list(names)
    if classes == len(read_imagenet_labels()):
        return list(read_imagenet_labels())
    data = _import_timm().data
    subset = data.infer_imagenet_subset(config)
    return data.ImageNetInfo(subset).label_descriptions() if subset else None


# -------------------------------------------------------------------------------------------------------- loading


def _import_timm() -> ModuleType:
    return import_library("timm", "'timm:' models need timm", "'camtool[timm]'", ModelError)


def _build(name: str, **options: Any) -> Any:
    timm = _import_timm()
    _check_name(name)
    try:
        return timm.create_model(name, **options)
    except (ValueError, OSError) as error:  # a folder or a configuration that is not one of timm's
        raise_interrupt(error)
        raise ModelError(f"model 'timm:{name}' cannot be built: {source.get_first_line(error)}") from None


def _check_name(name: str) -> None:
    timm = _import_timm()
    base, _, tag = name.partition(".")
    if ":" in name:
        # timm has sources of its own, such as "hf-hub:org/name".
        return
    if not timm.is_model(base):
        hint = suggest_names(f"timm:{base}", [f"timm:{architecture}" for architecture in timm.list_models()])
        raise ModelError(f"model 'timm:{name}' is unknown to timm {timm.__version__}.{hint}")
    tags = [full_name.partition(".")[2] for full_name in timm.list_pretrained(f"{base}.*")]
    if tag and tag not in tags:
        available = f"timm's weights for {base} are {', '.join(tags)}" if tags else f"timm has no weights for {base}"
        raise ModelError(f"model 'timm:{name}': {available}.{suggest_names(tag, tags)}")


def _download(name: str) -> nn.Module:
    _check_name(name)
    if ":" not in name and not _import_timm().list_pretrained(f"{name.partition('.')[0]}.*"):
        raise ModelError(f"timm has no weights for {name!r}; give a file: load('timm:{name}', 'FILE').")
    with source.tell_download_errors(f"timm:{name}", f"timm:{name}"):
        return _import_timm().create_model(name, pretrained=True)  # type: ignore[no-any-return]


def _build_from_file(name: str, weights: str | PathLike[str]) -> nn.Module:
    state = read_state(weights)
    model: nn.Module = _build(name)
    state = match_names(state, weights, model.state_dict())
    classes = _count_classes(state, model)
    if classes != model.num_classes:
        model = _build(name, num_classes=classes)
    load_state(model, state, weights)
    return model


def _count_classes(state: Mapping[str, Tensor], model: Any) -> int:
    """Return the number of classes of the weights: the length of the head's weights, 0 for a model without a head."""
    heads = model.pretrained_cfg.get("classifier")
    for head in (heads,) if isinstance(heads, str) else tuple(heads or ()):
        for key in (f"{head}.weight", head):
            if key in state:
                return len(state[key])
    return 0 if heads else int(model.num_classes)
