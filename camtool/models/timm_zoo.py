"""timm's models: with the preparation that their configuration asks for, and the names of their classes."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.error import URLError

from torch import nn

from camtool.errors import ModelError, near
from camtool.models.base import Loaded, Transform
from camtool.models.torchvision_zoo import imagenet_labels
from camtool.models.weights import fill, read_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from torch import Tensor

__all__ = ["from_timm", "is_of_timm", "timm_labels", "timm_transform", "untrained_timm"]


def from_timm(name: str, weights: str | PathLike[str] | None = None) -> Loaded:
    """One of timm's models, with its pretrained weights, or those of a file.

    Args:
        name: As timm knows it, with a tag or without: ``"convnext_tiny"``, ``"resnet50.a1_in1k"``; also
            ``"hf-hub:org/name"`` and ``"local-dir:FOLDER"``.
        weights: A file with the state of the model; it may have a head for other classes.

    Raises:
        ModelError: timm is not installed, the name is unknown, or the weights cannot be had or do not fit.
    """
    model = _fetched(name) if weights is None else _filled(name, weights)
    return Loaded(model, timm_transform(model), timm_labels(model))


def untrained_timm(name: str) -> nn.Module:
    """One of timm's models with random weights."""
    model: nn.Module = _created(name)
    return model


def is_of_timm(model: nn.Module) -> bool:
    """Whether timm made the model, and so keeps with it how its pictures are prepared."""
    return type(model).__module__.startswith("timm.") and bool(getattr(model, "pretrained_cfg", None))


def timm_transform(model: nn.Module) -> Transform:
    """The preparation that the configuration of one of timm's models asks for."""
    timm = _timm()
    transform: Transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    return transform


def timm_labels(model: Any) -> list[str] | None:
    """The names of the classes of one of timm's models, where its configuration tells them.

    ImageNet's thousand are called what torchvision calls them, so that a class has one name whatever model is asked;
    those of its larger sets as in WordNet.
    """
    configured, classes = model.pretrained_cfg, getattr(model, "num_classes", None)  # a feature extractor has none
    if classes is None or classes != configured.get("num_classes"):  # the head is a person's own
        return None
    own = configured.get("label_names")
    if own:
        known = configured.get("label_descriptions")
        return [str(known[name]) for name in own] if isinstance(known, dict) else list(own)
    if classes == len(imagenet_labels()):
        return imagenet_labels()
    data = _timm().data
    subset = data.infer_imagenet_subset(configured)
    return data.ImageNetInfo(subset).label_descriptions() if subset else None


def _timm() -> ModuleType:
    try:
        import timm
        import timm.data
    except ModuleNotFoundError as error:
        if error.name != "timm":
            raise
        raise ModelError("models of timm need it to be installed: pip install 'camtool[timm]'.") from error
    return timm


def _created(name: str, **options: Any) -> Any:
    timm = _timm()
    _check_name(name)
    try:
        return timm.create_model(name, **options)
    except (ValueError, OSError) as error:  # a folder or a configuration that is none
        raise ModelError(f"model 'timm:{name}' cannot be built: {_first_line(error)}") from error


def _check_name(name: str) -> None:
    timm = _timm()
    base, _, tag = name.partition(".")
    if ":" in name:  # a source of timm's own
        return
    if not timm.is_model(base):
        raise ModelError(f"model 'timm:{name}' is unknown to timm {timm.__version__}.{_near(base, timm.list_models())}")
    tags = [each.partition(".")[2] for each in timm.list_pretrained(f"{base}.*")]
    if tag and tag not in tags:
        known = f"timm's weights for {base} are {', '.join(tags)}" if tags else f"timm has no weights for {base}"
        raise ModelError(f"model 'timm:{name}': {known}.{near(tag, tags)}")


def _near(name: str, known: Sequence[str]) -> str:
    return near(f"timm:{name}", [f"timm:{each}" for each in known])


def _fetched(name: str) -> nn.Module:
    _check_name(name)
    if ":" not in name and not _timm().list_pretrained(f"{name.partition('.')[0]}.*"):
        raise ModelError(f"timm has no weights for {name!r}; give a file: load('timm:{name}', 'FILE').")
    try:
        model: nn.Module = _timm().create_model(name, pretrained=True)
    except (URLError, OSError, RuntimeError, ValueError) as error:
        raise ModelError(
            f"the weights of 'timm:{name}' could not be fetched ({_first_line(error)}). Without internet, give a file "
            f"with --weights FILE (in Python: load('timm:{name}', 'FILE'))."
        ) from error
    return model


def _filled(name: str, weights: str | PathLike[str]) -> nn.Module:
    state = read_state(weights)
    model: nn.Module = _created(name)
    classes = _classes_in(state, model)
    if classes != model.num_classes:
        model = _created(name, num_classes=classes)
    fill(model, state, weights)
    return model


def _classes_in(state: Mapping[str, Tensor], model: Any) -> int:
    """How many classes the weights have: the length of the head's weights, 0 for a model without a head."""
    heads = model.pretrained_cfg.get("classifier")
    for head in (heads,) if isinstance(heads, str) else tuple(heads or ()):
        for key in (f"{head}.weight", head):
            if key in state:
                return len(state[key])
    return 0 if heads else int(model.num_classes)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).split("\n", 1)[0].rstrip(".")
