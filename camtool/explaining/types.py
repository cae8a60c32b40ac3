"""Types of the arguments and results of :func:`camtool.explain` and :class:`camtool.Explainer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from typing_extensions import TypeVar

from camtool import targets
from camtool.engines.engine_runner import EngineName
from camtool.explaining.explanation import Explanation
from camtool.geometry.cell_centers import Placement
from camtool.inputs.accepted_inputs import DataKind
from camtool.inputs.formats.file_image import FileImage
from camtool.inputs.model_inputs import Inputs, Key
from camtool.inputs.prepared_inputs import PreparedInput
from camtool.methods import MethodFunction
from camtool.models import Loaded, Transform

Model: TypeAlias = "nn.Module | Loaded | Callable[[Tensor], Any]"
Layers: TypeAlias = "str | nn.Module | Sequence[str | nn.Module] | None"

# A single image, recognized by its type. :func:`camtool.open_image` returns a ``FileImage``, and
# :meth:`Explainer.prepare` a ``PreparedInput``.
OneImage: TypeAlias = "str | PathLike[str] | bytes | Image.Image | FileImage | PreparedInput"

# A single image or a batch. Its number of axes decides, which a type checker does not see.
Arrays: TypeAlias = "Tensor | NDArray[Any] | Inputs | Mapping[str, Any]"

Images: TypeAlias = "OneImage | Arrays | Sequence[OneImage | Arrays]"

OneTarget: TypeAlias = "int | str | targets.Target | Callable[[Any], Tensor] | None"
# One target for each image; for a single image, several targets.
Targets: TypeAlias = "Sequence[OneTarget] | Tensor | NDArray[np.integer[Any]]"

# Several targets of an image, as many as it has.
SeveralTargets: TypeAlias = "targets.Top | targets.AllDetections"

AnyTargets: TypeAlias = (
    "targets.TargetLike | Targets | Sequence[targets.TargetLike | Targets | Sequence[targets.TargetLike]]"
)

# One class for all images of a batch, or one for each; ``None`` is the top class of each.
ClassIndices: TypeAlias = "int | Tensor | Sequence[int] | None"

OneMethod: TypeAlias = "str | MethodFunction"
Methods: TypeAlias = "OneMethod | Sequence[OneMethod]"

# Which explanations get the place check: all, or the first of each input size and each content-dependent one.
Verify: TypeAlias = Literal["places", "sizes"]

if TYPE_CHECKING:

    class ExplanationOrList(Explanation, list[Explanation]):  # type: ignore[misc]
        """An :class:`Explanation`, or a list of them for a batch.

        Only type checkers and editors see this class. A tensor's type does not show whether it is one image or a batch,
        so they are offered the attributes of both; a union would make an error of each.
        """


# Result of an :class:`Explainer` for one image and one target: an explanation, or a list with one per method.
Result = TypeVar("Result", default=Explanation)


@dataclass(frozen=True)
class Settings:
    """The settings of :func:`explain` and :class:`Explainer`, which :func:`explain` documents, and their defaults."""

    merge: str | Callable[[Tensor], Tensor] = "mean"
    transform: Transform | None = None
    labels: Sequence[str] | None = None
    device: torch.device | str | None = None
    batch_size: int | None = None
    image: Key | None = None
    call_index: int | None = None
    kind: DataKind | None = None
    placement: Placement = "centers"
    engine: EngineName = "eager"
    reading: Mapping[str, Any] | None = None
    verify: Verify | None = None


class SettingKeywords(TypedDict, total=False):
    """The fields of :class:`Settings` as keyword arguments, for type checkers and editors."""

    merge: str | Callable[[Tensor], Tensor]
    transform: Transform | None
    labels: Sequence[str] | None
    device: torch.device | str | None
    batch_size: int | None
    image: Key | None
    call_index: int | None
    kind: DataKind | None
    placement: Placement
    engine: EngineName
    reading: Mapping[str, Any] | None
    verify: Verify | None


class ExplainKeywords(SettingKeywords, total=False):
    """Keyword arguments of :func:`explain`; for :class:`Explainer`, two of them are positional as well."""

    method: OneMethod
    layer: Layers
