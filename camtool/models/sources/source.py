"""The protocol of a source of models."""

from __future__ import annotations

import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from os import PathLike
from time import monotonic
from typing import Any
from urllib.error import URLError

from torch import nn

from camtool.errors import ModelError, RaiseAs, raise_interrupt
from camtool.geometry.transform_output import Transform
from camtool.models.loaded import Loaded
from camtool.models.two_towers import Tokenizer

# Largest side that a file may ask images to be resized to. Published models have less.
_MAX_SIDE = 4096

# Seconds without a byte after which a server of weights is given up.
_SILENCE = 60.0

# What a user can do whose texts cannot be encoded, as the tokenizer is missing.
PASS_TEXT = (
    "Pass camtool.Loaded(model, transform, text=...) with a function from texts to embeddings (T, D), or "
    "camtool.targets.Similarity(embedding) instead of the text."
)


class Source(ABC):
    """One family of models, such as timm's. It loads models by name, and answers questions about bare models.

    To add a family, subclass this in a file of its own, and list an instance in :data:`camtool.models.sources.SOURCES`,
    or pass it to :func:`camtool.models.register_source`. Nothing else needs to know the family.

    The ``find_...`` methods are asked about any model that a user passes. They return None for a model of another
    family, and if they do not know. They download nothing.

    Attributes:
        prefix: What stands before the colon in the names of the family: ``"timm"`` in ``"timm:resnet50"``. None if the
            names have no prefix. Those that :meth:`list_names` lists need none.
        usage: How a user writes a name of the family, for help and errors.
        has_own_weights: True if :meth:`build_untrained` returns a model with the weights it was made with.
    """

    prefix: str | None = None
    usage: str
    has_own_weights: bool = False

    @abstractmethod
    def load(self, name: str, weights: str | PathLike[str] | None) -> Loaded:
        """Load a model by name, with its transform and its labels.

        Args:
            name: The name, without the prefix.
            weights: A file with the model's weights; None for the usual pretrained ones, which are downloaded.

        Raises:
            ModelError: The name is unknown, the weights cannot be read or do not fit, or a library is missing.
        """

    @abstractmethod
    def build_untrained(self, name: str) -> nn.Module:
        """Build a model with random weights.

        Args:
            name: The name, without the prefix.

        Raises:
            ModelError: The name is unknown, or a library is missing.
        """

    def list_names(self) -> Sequence[str]:
        """List all names of a family whose names need no prefix; none for another family."""
        return ()

    def runs_code(self, name: str) -> bool:
        """Return True if loading a model by this name runs code of the user's, or code that a file may contain."""
        return False

    def is_offline(self, name: str, weights: str | None) -> bool:
        """Return True if loading a model by this name certainly opens no connection, and runs none of a user's code.

        Folders of models may name further models, which their library downloads.
        """
        return False

    def find_transform(self, model: nn.Module) -> Transform | None:
        """Return the preprocessing of a model of this family."""
        return None

    def find_labels(self, model: nn.Module) -> Sequence[str] | None:
        """Return the class names of a model of this family."""
        return None

    def find_input_size(self, model: nn.Module) -> tuple[int, int] | None:
        """Return the image size (H, W) that a model of this family is made for."""
        return None

    def find_tokenizer(self, model: nn.Module) -> Tokenizer | None:
        """Return the tokenizer of a model of this family that compares images with texts."""
        return None

    def find_processor(self, model: nn.Module) -> Any | None:
        """Return what prepares an image and a text for a model of this family that reads both."""
        return None

    def decode_phrases(self, model: nn.Module, phrases: Sequence[Sequence[int]]) -> Sequence[str] | None:
        """Return the texts of phrases, given by their tokens, that a model of this family has read in its prompt."""
        return None


def to_height_and_width(size: int | Sequence[int] | Mapping[str, int]) -> tuple[int, int]:
    """Return the height and the width in an image size as libraries write it in configurations."""
    if isinstance(size, Mapping):
        size = (size["height"], size["width"])
    height, width = size if isinstance(size, Iterable) else (size, size)
    return int(height), int(width)


def check_sides(where: object, sides: Iterable[Any]) -> None:
    """Check the size that a file asks images to be resized to; a few bytes could ask for more than the memory.

    Args:
        where: The file, for the message.
        sides: Sides in pixels; what is no number is left to the library.

    Raises:
        ModelError: A side is too large.
    """
    too_large = [side for side in sides if isinstance(side, (int, float)) and side > _MAX_SIDE]
    if too_large:
        raise ModelError(
            f"{where} asks for images of {too_large[0]:.0f} pixels a side, and at most {_MAX_SIDE} are allowed. Name "
            "the preprocessing with transform=, or give smaller images to a transform of your own."
        )


@contextmanager
def tell_download_errors(weights: str, model: str) -> Iterator[None]:
    """Raise what a library raises while it downloads weights as a ModelError that says what to do.

    Args:
        weights: The name of the weights.
        model: The name of their model, as :func:`camtool.load` takes it together with a file.
    """
    try:
        with limit_silence():
            yield
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: the downloaded file has another hash
        raise_interrupt(error)
        reason = error.reason if isinstance(error, URLError) else get_first_line(error)
        raise ModelError(
            f"the weights of {weights!r} could not be downloaded ({reason}). Without internet, give a file with "
            f"--weights FILE (in Python: load({model!r}, 'FILE')), or use --model demo, which is bundled."
        ) from None


def get_first_line(error: Exception) -> str:
    """Return the first line of an error's message, without a full stop; the name of its class if it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0].rstrip(".")


def describe_errors(problem: str, *kinds: type[Exception]) -> RaiseAs:
    """Return a block whose errors are raised as a ModelError with the problem and the first line of their message."""
    faults = kinds or (Exception,)
    return RaiseAs(lambda error: ModelError(f"{problem}: {get_first_line(error)}."), *faults, unless=(ModelError,))


@contextmanager
def limit_silence() -> Iterator[None]:
    """Let downloads of a library in the block fail when the server is silent; most libraries would wait for ever.

    It is no limit of a whole download, as weights of gigabytes take hours on some lines. A limit of the user's stays.
    """
    with ExitStack() as stack:
        if socket.getdefaulttimeout() is None:  # else the user's, or that of a model that another thread loads
            socket.setdefaulttimeout(_SILENCE)
            stack.callback(socket.setdefaulttimeout, None)
        hub = sys.modules.get("huggingface_hub")  # it has sockets of its own
        if hub is not None and hasattr(hub.get_session(), "event_hooks"):  # from version 1.0 on
            watch, hooks = _HubWatch(), hub.get_session().event_hooks
            for event, hook in (("request", watch.limit), ("response", watch.note_answer)):
                hooks.setdefault(event, []).append(hook)
                stack.callback(hooks[event].remove, hook)
        yield


class _HubWatch:
    """Give up the hub of Hugging Face if no request is answered; its library sets few limits, and tries six times."""

    def __init__(self) -> None:
        self._asked_at: float | None = None

    def limit(self, request: Any) -> None:
        """Set the limits that a request of httpx does not have.

        Raises:
            TimeoutError: Requests before it were not answered for too long.
        """
        now = monotonic()
        if self._asked_at is None:
            self._asked_at = now
        elif now - self._asked_at > _SILENCE:
            raise TimeoutError(f"{request.url.host} has sent nothing for {now - self._asked_at:.0f} seconds")
        limits = request.extensions["timeout"]
        limits.update({step: _SILENCE for step, limit in limits.items() if limit is None})

    def note_answer(self, _: Any) -> None:
        """Start anew with the next request."""
        self._asked_at = None
