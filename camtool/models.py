"""Models: from a name or a file to a model with its own preprocessing and its own labels.

This is the one room that knows where models come from. Weights, the transform they were trained with and the names of
their classes travel together, as torchvision publishes them: nothing of it is typed in by hand.
"""

from __future__ import annotations

import importlib
import pickle
import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.error import URLError

import torch
from torch import Tensor, nn

from camtool.errors import ModelError, TargetError, near

if TYPE_CHECKING:
    from os import PathLike

    from PIL import Image

__all__ = ["Loaded", "Transform", "architecture", "labels_for", "load", "read_state", "usual_labels", "usual_transform"]

Transform: TypeAlias = "Callable[[Image.Image], Any]"
"""From a PIL picture to the model's input, ``(C, h, w)``."""


@dataclass(frozen=True)
class Loaded:
    """A model and what belongs to it.

    Attributes:
        model: The model, in evaluation mode.
        transform: From a PIL picture to its input; ``None`` where it is not known.
        labels: The names of its classes; ``None`` where they are not known.
        name: What it was asked for by.
    """

    model: nn.Module
    transform: Transform | None = None
    labels: Sequence[str] | None = None
    name: str = ""


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
        name: A torchvision model (``"resnet50"``), a bundled one (``"demo"``, ``"demo-cheat"``), or
            ``"package.module:factory"``: a function without arguments that returns a model, a pair of a model and its
            transform, or a :class:`Loaded`.
        weights: A ``.safetensors``, ``.pt`` or ``.pth`` file with the model's state. By default torchvision's best
            weights for the name are fetched; a factory brings its own.
        labels: The names of the classes, where they are not those of the weights.
        device: Where the model goes.

    Raises:
        ModelError: The name, the file or the download cannot be had, or the weights do not fit the model.
    """
    source = _BUNDLED.get(name, name)
    loaded = _from_factory(source, weights) if ":" in source else _from_torchvision(name, weights)
    if labels is not None:
        loaded = replace(loaded, labels=list(labels))
    return replace(loaded, model=loaded.model.eval().to(device), name=name)


# -------------------------------------------------------------------------------------------------- torchvision


def architecture(name: str) -> nn.Module:
    """A model to look at how it is built; nothing is fetched. One of torchvision's has random weights.

    Raises:
        ModelError: The name is unknown.
    """
    if name in _BUNDLED or ":" in name:
        return load(name).model
    model = _built(name)
    for module in model.modules():
        # A head that starts at zero, as the vision transformers' do, lets no gradient through: any numbers serve.
        if isinstance(module, nn.Linear) and not module.weight.any():
            nn.init.normal_(module.weight)
    return model.eval()


def _checked(name: str) -> None:
    import torchvision.models as zoo

    known = [*zoo.list_models(), *_BUNDLED]
    if name not in known:
        raise ModelError(
            f"model {name!r} is unknown.{near(name, known)} Give a torchvision name such as 'resnet50', 'demo', "
            "or your own as 'package.module:factory'."
        )


def _built(name: str, **options: Any) -> nn.Module:
    import torchvision.models as zoo

    _checked(name)
    if name in ("googlenet", "inception_v3"):
        # They warn, and fill themselves slowly, unless told that weights come; and torchvision's weights, which were
        # trained elsewhere, want the input rescaled inside the model.
        options |= {"init_weights": False, "transform_input": True}
    if "weights_backbone" in signature(zoo.get_model_builder(name)).parameters:  # else it would be fetched
        options["weights_backbone"] = None
    model: nn.Module = zoo.get_model(name, weights=None, **options)
    return model


def _from_torchvision(name: str, weights: str | PathLike[str] | None) -> Loaded:
    import torchvision.models as zoo

    if weights is None:
        _checked(name)
        best = zoo.get_model_weights(name)["DEFAULT"]
        return Loaded(_download(name, best), best.transforms(), best.meta.get("categories"))
    state = {_DENSENETS_OLD_NAMES.sub(r"\1\2", key): value for key, value in read_state(weights).items()}
    options = _heads_in(name, state)
    model = _built(name, **options)
    # A file does not say how its weights were trained. The first recipe is the architecture's usual one; later ones
    # differ from it in the size of the crop by a few pixels.
    usual = next(iter(zoo.get_model_weights(name)))
    labels = usual.meta.get("categories")
    classes = _classes_in(state, model)
    if labels is not None and classes not in (None, len(labels)):  # fine-tuned on a person's own classes
        model, labels = _built(name, num_classes=classes, **options), None
    _fill(model, state, weights)
    return Loaded(model, usual.transforms(), labels)


_DENSENETS_OLD_NAMES = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.(\d)")
"""In torchvision's published files ``norm.1`` stands for what its DenseNets call ``norm1`` today."""


def _heads_in(name: str, state: Mapping[str, Tensor]) -> dict[str, bool]:
    """The options that give a model the auxiliary heads that its weights have, and no others."""
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": any(key.startswith(("aux1.", "AuxLogits.")) for key in state)}
    return {"aux_loss": True} if any(key.startswith("aux_classifier.") for key in state) else {}


def _download(name: str, weights: Any) -> nn.Module:
    import torchvision.models as zoo

    try:  # torchvision builds it: for some models it renames weights, or adds heads, as their files need it
        model: nn.Module = zoo.get_model(name, weights=weights, progress=False)
    except (URLError, OSError, RuntimeError) as error:  # the last: what came has another hash
        reason = getattr(error, "reason", error)
        raise ModelError(
            f"the weights of {name!r} could not be fetched ({reason}). Without internet, give a file with "
            f"--weights FILE (in Python: load({name!r}, 'FILE')), or use --model demo, which is bundled."
        ) from error
    return model


# --------------------------------------------------------------------------------------------------- a factory


def _from_factory(name: str, weights: str | PathLike[str] | None) -> Loaded:
    loaded = _as_loaded(_factory(name)(), name)
    if weights is not None:
        _fill(loaded.model, read_state(weights), weights)
    return loaded


def _factory(name: str) -> Callable[[], Any]:
    module_name, _, attribute = name.partition(":")
    if not module_name or module_name.startswith("."):
        raise ModelError(f"model {name!r}: give the module's full name, as in 'package.module:factory'.")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ModelError(f"model {name!r}: there is no module {error.name!r} to import.") from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ModelError(f"model {name!r}: {module_name} has no function {attribute!r}.{near(attribute, functions)}")
    return factory  # type: ignore[no-any-return]


def _as_loaded(made: Any, name: str) -> Loaded:
    if isinstance(made, Loaded):
        return made
    if isinstance(made, nn.Module):
        return Loaded(made)
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module) and callable(made[1]):
        return Loaded(made[0], made[1])
    raise ModelError(
        f"model {name!r}: the factory returned {type(made).__name__}; it must return a model, a pair "
        "(model, transform), or a camtool.Loaded(model, transform, labels)."
    )


# ------------------------------------------------------------------------------------------------------ weights


def read_state(path: str | PathLike[str]) -> dict[str, Tensor]:
    """The tensors in a ``.safetensors``, ``.pt`` or ``.pth`` file, by name; no code in the file is ever run.

    A checkpoint that keeps them under ``state_dict`` or ``model``, or under ``module.`` as ``DataParallel`` does, is
    unpacked.

    Raises:
        ModelError: There is no such file, it is damaged, it holds no tensors, or reading it would run code.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"weights {str(path)!r}: there is no such file.")
    found = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not any(isinstance(value, Tensor) for value in found.values()):
        raise ModelError(f"weights {str(path)!r} hold no tensors by name ({type(found).__name__}); save a state_dict.")
    tensors = {key: value for key, value in found.items() if isinstance(value, Tensor)}
    wrapped = all(key.startswith("module.") for key in tensors)
    return {key.removeprefix("module.") if wrapped else key: value for key, value in tensors.items()}


def _read_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise ModelError(f"weights {str(path)!r} are no whole safetensors file: {error}.") from error


# What torch's safe unpickler lets through on damaged files.
_UNPICKLER_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)


def _read_torch(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"weights {str(path)!r} are damaged, or a pickle that holds more than tensors; reading it could run any "
            "code, so it is refused. Save model.state_dict(), best as .safetensors."
        ) from error
    except _UNPICKLER_FAULTS as error:
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        raise ModelError(f"weights {str(path)!r} are damaged: {reason}") from error


def _fill(model: nn.Module, state: Mapping[str, Tensor], path: str | PathLike[str]) -> None:
    state = OrderedDict(state)
    # A file of tensors alone does not say which version of the model wrote it. Some models ask: the present one did.
    state._metadata = {"": {"version": getattr(model, "_version", None)}}  # type: ignore[attr-defined]
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:3]]
        raise ModelError(f"weights {str(path)!r} do not fit the model: {' '.join(lines)}") from error


def _classes_in(state: Mapping[str, Tensor], model: nn.Module) -> int | None:
    """How many classes the weights have: the length of what fills the model's last weight matrix."""
    matrices = [name for name, parameter in model.named_parameters() if parameter.ndim > 1]
    return len(state[matrices[-1]]) if matrices and matrices[-1] in state else None


# ------------------------------------------------------------------------- what can be told of a bare model


def usual_transform() -> Transform:
    """Torchvision's standard preparation for classifiers: resize to 256, crop the centre 224, ImageNet's statistics."""
    from torchvision.transforms._presets import ImageClassification

    preset: Transform = ImageClassification(crop_size=224)
    return preset


def labels_for(model: nn.Module, known: Sequence[str] | None, classes: int) -> Sequence[str] | None:
    """The names of a model's classes: those that are known, or else the usual ones; ``None`` where there are none.

    Raises:
        TargetError: There are more or fewer names than classes.
    """
    if known is None:
        return usual_labels(model, classes)
    if len(known) != classes:
        raise TargetError(f"labels has {len(known)} names, but the model has {classes} classes.")
    return known


def usual_labels(model: nn.Module, classes: int) -> Sequence[str] | None:
    """ImageNet's labels for a torchvision model with as many classes, ``None`` for any other."""
    if not type(model).__module__.startswith("torchvision."):
        return None
    from torchvision.models import ResNet18_Weights

    labels: Sequence[str] = ResNet18_Weights.IMAGENET1K_V1.meta["categories"]
    return labels if len(labels) == classes else None
