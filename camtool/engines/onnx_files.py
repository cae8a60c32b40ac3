"""Graphs as ONNX files."""

from __future__ import annotations

import io
import logging
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from camtool.errors import NotCompilableError

COMPILING = threading.RLock()
"""Held while a model is compiled: the exporter prints, and its output is hidden for the whole process."""

_LOGGERS = ("torch", "onnx_ir", "onnxscript")
"""The loggers of the exporter; the last two report each step of the optimization."""

_OPERATOR = re.compile(r"aten[.:]+(\w+)|OpOverload\(op='([\w.]+)'")


def export_graph(graph: nn.Module, examples: Sequence[Tensor], *, has_any_batch_size: bool) -> Any:
    """Return a graph as a ``torch.export.ExportedProgram``.

    Args:
        graph: Any module whose code does not depend on the values of tensors.
        examples: Its inputs.
        has_any_batch_size: Leave the length of the inputs' first axis open.

    Raises:
        NotCompilableError: Torch cannot export it.
    """
    automatic = torch.export.Dim.AUTO
    shapes = tuple({0: automatic} for _ in examples) if has_any_batch_size else None
    with torch.no_grad(), hide_output():
        try:
            return torch.export.export(graph, tuple(examples), dynamic_shapes=shapes, strict=False)
        except Exception as error:
            raise NotCompilableError(f"torch.export fails: {type(error).__name__}: {get_first_line(error)}") from error


def convert_to_onnx(program: Any, names: Sequence[str], results: Sequence[str]) -> Any:
    """Return an exported program as a ``torch.onnx.ONNXProgram``.

    Args:
        program: A ``torch.export.ExportedProgram``.
        names: The names of its inputs.
        results: The names of its outputs.

    Raises:
        NotCompilableError: ONNX lacks an operator, which the message names.
    """
    with hide_output():
        try:
            return torch.onnx.export(
                program, input_names=list(names), output_names=list(results), dynamo=True, verbose=False
            )
        except Exception as error:
            raise NotCompilableError(f"ONNX cannot express the model: {_find_reason(error)}") from error


def write_onnx(program: Any, path: Path) -> None:
    """Write an ONNX program, with its weights in a file beside it if they are too many for one file."""
    with hide_output():
        program.save(path)


def get_first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().partition("\n")[0]


def _find_reason(error: BaseException) -> str:
    """Return the operator that an error names, or its first line."""
    causes, cause = [], error.__cause__ or error
    while cause is not None:
        causes.append(str(cause))
        cause = cause.__cause__  # type: ignore[assignment]
    for text in reversed(causes):
        found = _OPERATOR.search(text)
        if found is not None:
            return f"no operator for {found[1] or found[2]}"
    return get_first_line(error)


@contextmanager
def hide_output() -> Iterator[None]:
    """Hide what the exporter prints, logs and warns of: none of it is for the user."""
    loggers = [*map(logging.getLogger, _LOGGERS)]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
