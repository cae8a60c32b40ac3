"""Runtimes that run graphs: ONNX Runtime and OpenVINO, each imported when it is used, and torch itself."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from camtool.engines.graph_files import get_first_line
from camtool.errors import NotCompilableError, RaiseAs

Arrays = Sequence["NDArray[Any]"]

# The time for which an idle thread of ONNX Runtime spins before it blocks. Values from 5 to 200 reduce the time of an
# image of MobileNetV2 from 7.5 to about 6 ms, on two cores. Short spinning leaves the cores to other threads.
_SPIN_MICROSECONDS = 10


class Graph(Protocol):
    """A graph that can run. Several threads may run it at once."""

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the results for the inputs, without a graph of autograd."""


class FileGraph:
    """A graph in a file.

    Args:
        session: The opened file.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the results for tensors on the CPU."""
        arrays = [tensor.detach().contiguous().numpy() for tensor in tensors]
        return [torch.from_numpy(array) for array in self._session.run(arrays)]


class TorchGraph:
    """A graph that ``torch.compile`` compiles when it first runs, and again for other numbers of images; on any device.

    Args:
        graph: A module of operations on tensors, whose weights nobody changes: they become constants.
    """

    def __init__(self, graph: nn.Module) -> None:
        self._compiled = torch.compile(graph, options={"freezing": True})

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the results for tensors on the graph's device."""
        with torch.no_grad():  # weights become constants in this mode alone
            return list(self._compiled(*(tensor.detach() for tensor in tensors)))


class Session(Protocol):
    """An opened file. Several threads may run it at once."""

    def run(self, arrays: Arrays) -> list[NDArray[Any]]:
        """Return the results for the inputs, in the order of the file."""


class _OnnxRuntime:
    """A session of ONNX Runtime on the CPU."""

    def __init__(self, path: Path, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3  # errors only
        # Most operations follow within microseconds, and to wake a blocked thread takes longer. After the run the
        # threads must not spin, because torch needs the cores to compute the map.
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(_SPIN_MICROSECONDS))
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._names = [argument.name for argument in self._session.get_inputs()]

    def run(self, arrays: Arrays) -> list[NDArray[Any]]:
        results: list[NDArray[Any]] = self._session.run(None, dict(zip(self._names, arrays, strict=True)))
        return results


class _OpenVino:
    """A compiled model of OpenVINO on the CPU, in full precision."""

    def __init__(self, path: Path, threads: int) -> None:
        import openvino

        settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        self._compiled = openvino.Core().compile_model(path, "CPU", settings)
        self._requests = threading.local()  # a request serves one thread at a time

    def run(self, arrays: Arrays) -> list[NDArray[Any]]:
        request = getattr(self._requests, "request", None)
        if request is None:
            request = self._requests.request = self._compiled.create_infer_request()
        # The inputs are read in place. The results are copied, as the request writes the next ones over them.
        results = request.infer(list(arrays), share_inputs=True, share_outputs=True)
        return [np.array(results[output]) for output in self._compiled.outputs]


# The name of an engine to the class that opens a file.
RUNTIMES: dict[str, type[Any]] = {"onnxruntime": _OnnxRuntime, "openvino": _OpenVino}


def list_missing(runtime: str) -> list[str]:
    """Return those of the packages that compile a graph for a runtime and execute it which are not installed."""
    return [package for package in (runtime, "onnx", "onnxscript", "threadpoolctl") if find_spec(package) is None]


def is_installed(runtime: str) -> bool:
    """Return True if the packages are installed that compile a graph for a runtime and execute it."""
    return not list_missing(runtime)


def open_session(runtime: str, path: Path, threads: int | None = None) -> Session:
    """Open an ONNX file.

    Args:
        runtime: The name of the runtime.
        path: The file.
        threads: The number of threads; by default as many as torch has.

    Raises:
        NotCompilableError: The runtime lacks an operator.
    """
    text = f"{runtime} cannot load the graph"
    with RaiseAs(lambda error: NotCompilableError(f"{text}: {get_first_line(error)}"), Exception):
        session: Session = RUNTIMES[runtime](path, threads or torch.get_num_threads())
    return session
