"""A function from images to scores as a model: a service, a program of another library, a file of another runtime."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from camtool.arguments.checks import check_count
from camtool.arguments.message_parts import format_count
from camtool.errors import CamtoolError, FunctionError, raise_interrupt
from camtool.hooks.structures.nested_tensors import map_tensors


class CallKeywords(TypedDict, total=False):
    """Keyword arguments of :func:`camtool.load` for the calls of a function or a file; it documents them."""

    limit: int | None
    batch: int
    cache: bool
    layout: Literal["NCHW", "NHWC"]
    output: str
    gradients: bool


class FunctionModel(nn.Module):
    """A function as a module without layers, weights and gradients, whose answers are kept.

    Args:
        function: From images ``(N, C, H, W)``, a float32 tensor on the CPU, to scores ``(N, K)``, or to what a detector
            returns, with one entry for each image; tensors, arrays or lists.
        limit: The most images that it is asked about; ``None`` for no limit.
        batch: The most images in one call.
        cache: Keep the answers, and do not ask about the same image twice.
        input_size: The size (H, W) of its images, if that is known.

    Attributes:
        asked: The number of images that the function was asked about. Those of a call that failed count.
        example: A transform for photos that may be right, as code.
    """

    lacks_gradients = True
    example = "camtool.preprocessing(size=224, mean=0, std=1)"
    unhookable: str | None = "a function"

    def __init__(
        self,
        function: Callable[[Tensor], Any],
        *,
        limit: int | None = None,
        batch: int = 32,
        cache: bool = True,
        input_size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        check_count("limit", limit, optional=True)
        check_count("batch", batch)
        self._function, self.limit, self.batch, self.cache = function, limit, batch, cache
        self.input_size, self.asked = input_size, 0
        self._answers: dict[Hashable, Any] = {}
        self.eval()

    def forward(self, images: Tensor) -> Any:
        """Return the answers for images ``(N, C, H, W)``, without a graph.

        Raises:
            FunctionError: The function fails or returns something else, or the limit is reached.
        """
        given = images.detach().to("cpu", torch.float32)
        if not self.cache:
            answers = [answer for part in given.split(self.batch) for answer in self._ask(part)]
            return map_tensors(_join(answers), lambda tensor: tensor.to(images.device))
        indices = {key: index for index, key in reversed([*enumerate(map(_hash, given))])}
        missing = [key for key in indices if key not in self._answers]
        for start in range(0, len(missing), self.batch):
            keys = missing[start : start + self.batch]
            self._answers.update(zip(keys, self._ask(given[[indices[key] for key in keys]]), strict=True))
        output = _join([self._answers[key] for key in map(_hash, given)])
        return map_tensors(output, lambda tensor: tensor.to(images.device))

    def check_image(self, image: Tensor) -> None:
        """Check that an image of the user, of any shape, has values that the function takes: it may take any."""

    def check_limit(self, count: int, batches: Iterable[Any]) -> None:
        """Check that a number of images, or those of them without a known answer, can be asked about.

        Args:
            count: The number of images.
            batches: The images; they are only made if their number alone would be too large.

        Raises:
            FunctionError: The limit does not allow it.
        """
        if self.limit is None or self.asked + count <= self.limit:
            return
        keys = {_hash(image) for batch in batches for image in batch.detach().to("cpu", torch.float32)}
        self._check_left(len(keys - self._answers.keys()))

    def _check_left(self, needed: int) -> None:
        if self.limit is not None and self.asked + needed > self.limit:
            raise FunctionError(
                f"{self.name} would be asked about {format_count(needed, 'more image')}, but limit={self.limit} leaves "
                f"{self.limit - self.asked} ({self.asked} were sent). Raise limit=, or choose fewer passes, e.g. "
                "method='rise' with samples=."
            )

    @property
    def name(self) -> str:
        """The name of the function in messages."""
        return f"the function {getattr(self._function, '__name__', type(self._function).__name__)}"

    def _ask(self, images: Tensor) -> Sequence[Any]:
        """Return the answer for each of some images, from one call of the function."""
        self._check_left(len(images))
        self.asked += len(images)
        try:
            with torch.no_grad():
                output = _to_tensors(self._function(images.clone()))
        except Exception as error:
            raise_interrupt(error, CamtoolError, torch.OutOfMemoryError)
            kept = f" {format_count(len(self._answers), 'answer')} are kept; the same call goes on from there."
            raise FunctionError(
                f"{self.name} failed on {format_count(len(images), 'image')} {tuple(images.shape[1:])}: "
                f"{type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}."
                + (" If it takes one image at a time, load it with batch=1." if len(images) > 1 else "")
                + (kept if self._answers else "")
            ) from error
        answers = _split(output, len(images))
        if answers is None:
            got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise FunctionError(
                f"{self.name} returned {got} for {format_count(len(images), 'image')}; it must return scores (N, K), "
                "a row for each image, or what a detector returns for each."
            )
        return answers


def _hash(image: Tensor) -> Hashable:
    """Return a key of the pixels of an image ``(C, H, W)``."""
    pixels = np.ascontiguousarray(image.numpy())
    return pixels.shape, blake2b(pixels.data, digest_size=16).digest()


def _to_tensors(output: Any) -> Any:
    """Return an output with its arrays, and its lists of numbers, as tensors."""
    if isinstance(output, Tensor):
        # A copy, as a function may write its next answer into the same memory.
        return output.detach().to("cpu", copy=True)
    if isinstance(output, Mapping):
        return {key: _to_tensors(value) for key, value in output.items()}
    if isinstance(output, (list, tuple)) and any(isinstance(entry, (Mapping, Tensor, np.ndarray)) for entry in output):
        entries = (_to_tensors(entry) for entry in output)
        return list(entries) if isinstance(output, list) else tuple(entries)
    if isinstance(output, np.ndarray):
        return torch.from_numpy(output.copy())
    tensor = torch.from_numpy(np.array(output))
    return tensor.float() if tensor.dtype == torch.float64 else tensor  # Python's numbers


def _split(output: Any, count: int) -> Sequence[Any] | None:
    """Return the part of each of ``count`` images of an output; ``None`` if it has no entry for each.

    Raises:
        FunctionError: A list may be a row for each image, or several outputs for all of them.
    """
    if isinstance(output, Tensor):
        rows = output[None] if count == 1 and output.ndim == 1 and len(output) != 1 else output
        return rows.split(1) if rows.ndim and len(rows) == count else None
    if isinstance(output, (list, tuple)):
        return _split_list(output, count)
    values = [_split(value, count) for value in output.values()]
    return None if None in values else [dict(zip(output, row, strict=True)) for row in zip(*values, strict=True)]


def _split_list(output: list[Any] | tuple[Any, ...], count: int) -> Sequence[Any] | None:
    """Return the part of each image of a list: its row, its dictionary, or its part of each of several outputs."""
    rows = _get_rows(output, count) if isinstance(output, list) else None
    if rows is not None:
        return rows
    if len(output) == count and all(isinstance(entry, Mapping) for entry in output):
        return [[entry] for entry in output]
    parts = [_split(entry, count) for entry in output]
    return None if None in parts else [list(of_image) for of_image in zip(*parts, strict=True)]


def _get_rows(entries: list[Any], count: int) -> list[Tensor] | None:
    """Return the entries of a list with one for each image, ``(1, ...)`` each; ``None`` if it is something else.

    Raises:
        FunctionError: They may as well be several outputs for all images.
    """
    if len(entries) != count or not all(isinstance(row, Tensor) and row.shape == entries[0].shape for row in entries):
        return None
    shape = tuple(entries[0].shape)
    if count > 1 and len(shape) > 1 and shape[0] == count:
        raise FunctionError(
            f"the function returned a list of {count} arrays {shape} for {count} images, which may be one for each "
            "image or several outputs; return an array of all images, or several outputs as a tuple."
        )
    has_batch = len(shape) in (2, 4) and shape[0] == 1
    return [entry if has_batch else entry[None] for entry in entries]


def _join(answers: Sequence[Any]) -> Any:
    """Return the answers of some images as one output: the inverse of :func:`_split`."""
    first = answers[0]
    if isinstance(first, Tensor):
        return torch.cat([*answers])
    if isinstance(first, Mapping):
        return {key: _join([answer[key] for answer in answers]) for key in first}
    if isinstance(first[0], Mapping):
        return [map_tensors(answer[0], Tensor.clone) for answer in answers]
    return [_join(of_entry) for of_entry in zip(*answers, strict=True)]
