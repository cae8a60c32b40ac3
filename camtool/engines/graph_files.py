"""Graphs as ONNX files, and the folder of compiled graphs, so that a model is compiled once and not in each process."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

import camtool
from camtool.errors import NotCompilableError, RaiseAs
from camtool.hooks.structures.nested_tensors import get_bytes

# Held while a model is compiled: the exporter prints, and its output is hidden for the whole process.
_COMPILING = threading.RLock()

# The loggers of the exporter; the last two report each step of the optimization.
_LOGGERS = ("torch", "onnx_ir", "onnxscript")

_OPERATOR = re.compile(r"aten[.:]+(\w+)|OpOverload\(op='([\w.]+)'")

# Bytes. The graphs that were not used for the longest time are deleted beyond that.
_LIMIT = 8 * 2**30

# Number of the files' format; a change of what they hold increases it.
_FORMAT = 1

_UNFINISHED = "unfinished-"

_SECONDS_TO_LOCK = 2

# Time after which an unfinished graph is that of a killed process, where locks cannot tell.
_SECONDS_TO_COMPILE = 24 * 3600


def refuse_faults(what: str, *, unless: tuple[type[Exception], ...] = ()) -> RaiseAs:
    """Return a block whose errors are raised as one for which the next engine is tried."""

    def build(error: Exception) -> NotCompilableError:
        return NotCompilableError(f"{what}: {type(error).__name__}: {get_first_line(error)}")

    return RaiseAs(build, Exception, unless=unless)


def export_graph(graph: nn.Module, examples: Sequence[Tensor], *, has_any_batch_size: bool) -> Any:
    """Return a graph as a ``torch.export.ExportedProgram``.

    Args:
        graph: Any module whose code does not depend on the values of tensors.
        examples: Its inputs.
        has_any_batch_size: Leave the length of the inputs' first axis open.

    Raises:
        NotCompilableError: Torch cannot export it.
    """
    shapes = tuple({0: torch.export.Dim.AUTO} for _ in examples) if has_any_batch_size else None
    with torch.no_grad(), hide_output(), refuse_faults("torch.export fails"):
        program = torch.export.export(graph, tuple(examples), dynamic_shapes=shapes, strict=False)
    parts = (part for part in program.graph_module.modules() if isinstance(part, fx.GraphModule))
    for node in chain.from_iterable(part.graph.nodes for part in parts):
        node.meta.pop("stack_trace", None)  # it names files of this machine
    return program


def convert_to_onnx(
    program: Any, names: Sequence[str], results: Sequence[str], axes: Sequence[Mapping[int, str]] | None = None
) -> Any:
    """Return an exported program as a ``torch.onnx.ONNXProgram``.

    Args:
        program: A ``torch.export.ExportedProgram``.
        names: The names of its inputs.
        results: The names of its outputs.
        axes: The names of open axes of each input. Torch makes some up, e.g. ``s77``, and refuses to export some graphs
            if it is given them before.

    Raises:
        NotCompilableError: ONNX lacks an operator, which the message names.
    """
    settings: dict[str, Any] = {"dynamo": True, "verbose": False, "dynamic_shapes": axes}
    text = "ONNX cannot express the model: {}"
    with hide_output(), RaiseAs(lambda error: NotCompilableError(text.format(_find_reason(error))), Exception):
        return torch.onnx.export(program, input_names=list(names), output_names=list(results), **settings)


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
        match = _OPERATOR.search(text)
        if match is not None:
            return f"no operator for {match[1] or match[2]}"
    return get_first_line(error)


@contextmanager
def lock_compiler() -> Iterator[None]:
    """Let no other thread compile meanwhile, and torch not look up which lines of code each node of a graph is from.

    That takes a fifth of an export, and none of it is used: the lines name files of this machine.
    """
    with _COMPILING, ExitStack() as undo:
        before = getattr(fx.config, "do_not_emit_stack_traces", False)  # older versions of torch lack it
        undo.callback(setattr, fx.config, "do_not_emit_stack_traces", before)
        fx.config.do_not_emit_stack_traces = True
        yield


@contextmanager
def hide_output() -> Iterator[None]:
    """Hide what the exporter prints, logs and warns of: none of it is for the user."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), ExitStack() as undo:
        warnings.simplefilter("ignore")
        for logger in map(logging.getLogger, _LOGGERS):
            undo.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        yield


def find_folder() -> Path:
    """Return the folder of compiled graphs: ``$CAMTOOL_CACHE``, else ``camtool`` in the user's cache folder."""
    given = os.environ.get("CAMTOOL_CACHE")
    if given:
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
    return Path(home) / "camtool"


def compute_key(model: nn.Module, parts: Sequence[object]) -> str:
    """Return a hash of a model's structure and weights, and of anything else that a graph depends on."""
    digest = hashlib.blake2b(digest_size=20)
    for part in (_FORMAT, camtool.__version__, torch.__version__, repr(model), *parts):
        digest.update(repr(part).encode())
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(get_bytes(tensor))
    names = {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}
    beside = {name: value for name, value in model.state_dict().items() if name not in names}
    if beside:  # weights of quantized layers
        stream = io.BytesIO()
        torch.save(beside, stream)
        digest.update(stream.getbuffer())
    return digest.hexdigest()


def make_once(key: str, make: Callable[[Path], None]) -> Path:
    """Return the folder of a compiled graph; the first call makes its files.

    Args:
        key: The graph's key.
        make: Writes the files into an empty folder.
    """
    folder = find_folder() / "engines"
    made = folder / key
    with suppress(FileNotFoundError):  # not made yet, or another process deletes it as the oldest one
        os.utime(made)
        return made
    folder.mkdir(parents=True, exist_ok=True)
    _remove_killed(folder)
    # Made elsewhere and renamed, so that no other process meets half a graph.
    with tempfile.TemporaryDirectory(dir=folder, prefix=_UNFINISHED) as unfinished, _hold(Path(unfinished)):
        (Path(unfinished) / key).mkdir()
        make(Path(unfinished) / key)
        try:
            (Path(unfinished) / key).rename(made)
        except OSError:  # another process was faster
            if not made.is_dir():
                raise
    _delete_oldest(folder.iterdir(), keep=made)
    return made


@contextmanager
def _hold(folder: Path) -> Iterator[bool]:
    """Lock a folder for the block; the system unlocks it if the process is killed. Yield False if another holds it."""
    if sys.platform == "win32":  # folders cannot be locked there
        yield time.time() - folder.stat().st_mtime > _SECONDS_TO_COMPILE
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    is_held = False
    with suppress(OSError):  # it is locked, or the file system has no locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_held = True
    try:
        yield is_held
    finally:
        os.close(descriptor)


def _remove_killed(folder: Path) -> None:
    """Remove what processes left that were killed while they compiled."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        with suppress(OSError):  # it was finished meanwhile
            # A new folder is not locked yet. A lock to look at it could keep its own process from locking it.
            if time.time() - path.stat().st_mtime > _SECONDS_TO_LOCK:
                with _hold(path) as is_held:
                    if is_held:
                        shutil.rmtree(path, ignore_errors=True)


def _delete_oldest(folders: Iterable[Path], keep: Path) -> None:
    uses = dict[Path, tuple[float, int]]()
    for path in folders:
        if path.is_dir() and not path.name.startswith(_UNFINISHED):
            with suppress(FileNotFoundError):  # another process deletes it, too
                size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
                uses[path] = path.stat().st_mtime, size
    total = sum(size for _, size in uses.values())
    uses.pop(keep, None)
    for path in sorted(uses, key=uses.__getitem__):
        if total <= _LIMIT:
            return
        shutil.rmtree(path, ignore_errors=True)
        total -= uses[path][1]
