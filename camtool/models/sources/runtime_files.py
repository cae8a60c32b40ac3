"""Files of other runtimes as models: ONNX, OpenVINO and TFLite, each run by a package of its own."""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from camtool.arguments.checks import check_choice
from camtool.errors import FunctionError, ModelError
from camtool.hooks.state.guard import is_library_running
from camtool.models.function_models import FunctionModel

# Order of the axes of the images in a file.
Layout: TypeAlias = Literal["NCHW", "NHWC"]

_CHANNELS = (1, 3)
_LABEL_FILES = ("labels.txt", "labelmap.txt")

# Bytes of the class names in an archive, a million names: a small archive may unpack to more than the memory.
_MAX_LABELS_BYTES = 2**26


@dataclass(frozen=True)
class Port:
    """An input or output of a file.

    Attributes:
        name: Its name.
        shape: Its shape; ``None`` for axes of any length.
        dtype: Its type.
        layout: The order of its axes, if the file says it.
        scale: For quantized numbers the step, and the number that stands for 0; a step of 0 for other numbers.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]
    layout: str = ""
    scale: tuple[float, int] = (0.0, 0)

    def to_own(self, values: NDArray[np.float32]) -> NDArray[Any]:
        """Return numbers in the type of the port; where that is bytes, the nearest that it has."""
        step, zero = self.scale
        if not np.issubdtype(self.dtype, np.integer):
            return values.astype(self.dtype)
        limits = np.iinfo(self.dtype)
        return np.round(values / step + zero if step else values).clip(limits.min, limits.max).astype(self.dtype)

    def to_real(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the numbers that quantized ones stand for; others as they are."""
        step, zero = self.scale
        return (values.astype(np.float32) - zero) * np.float32(step) if step else values


class Program(ABC):
    """An opened file.

    Attributes:
        inputs: The inputs.
        outputs: The outputs.
        metadata: What the file says about itself.
    """

    inputs: Sequence[Port]
    outputs: Sequence[Port]
    metadata: Mapping[str, str]

    @abstractmethod
    def run(self, arrays: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Return the outputs of some names, for the inputs by name."""


class OnnxProgram(Program):
    """A file or the bytes of a graph in ONNX Runtime, on the CPU."""

    def __init__(self, graph: str | bytes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3  # errors only
        self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self.inputs, self.outputs = (
            [Port(port.name, _read_shape(port.shape), _read_onnx_type(port.type)) for port in ports]
            for ports in (self._session.get_inputs(), self._session.get_outputs())
        )
        self.metadata = self._session.get_modelmeta().custom_metadata_map

    def run(self, arrays: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Return the outputs of some names, for the inputs by name."""
        results: list[NDArray[Any]] = self._session.run([*outputs], dict(arrays))
        return results


class OpenVinoProgram(Program):
    """A file in OpenVINO, on the CPU and in full precision."""

    def __init__(self, path: str) -> None:
        import openvino

        core = openvino.Core()
        model = core.read_model(path)
        settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
        self._compiled = core.compile_model(model, "CPU", settings)
        self.inputs, self.outputs = (
            [_read_openvino_port(port, number) for number, port in enumerate(ports)]
            for ports in (model.inputs, model.outputs)
        )
        own = ["camtool"]
        self.metadata = {"camtool": str(model.get_rt_info(own).value)} if model.has_rt_info(own) else {}
        # All calls of a compiled model share the memory of one request: another thread would get its scores.
        self._lock = threading.Lock()

    def run(self, arrays: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Return the outputs of some names, for the inputs by name."""
        port_names = [port.name for port in self.outputs]
        with self._lock:
            results = self._compiled([arrays[port.name] for port in self.inputs])
            return [np.array(results[port_names.index(name)]) for name in outputs]


class TfLiteProgram(Program):
    """A file in the interpreter of TFLite (LiteRT)."""

    def __init__(self, path: str) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self._interpreter = Interpreter(model_path=path, num_threads=torch.get_num_threads())
        self._details = self._interpreter.get_input_details(), self._interpreter.get_output_details()
        self.inputs, self.outputs = ([*map(_read_tflite_port, details)] for details in self._details)
        self.metadata = _read_packed_labels(path)
        # The sizes and the numbers of a call are in the interpreter.
        self._lock = threading.Lock()

    def run(self, arrays: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Return the outputs of some names, for the inputs by name."""
        interpreter, (inputs, results) = self._interpreter, self._details
        by_name = {detail["name"]: detail["index"] for detail in results}
        with self._lock:
            for detail in inputs:
                interpreter.resize_tensor_input(detail["index"], arrays[detail["name"]].shape)
            interpreter.allocate_tensors()
            for detail in inputs:
                interpreter.set_tensor(detail["index"], arrays[detail["name"]])
            interpreter.invoke()
            return [interpreter.get_tensor(by_name[name]) for name in outputs]


def _read_shape(shape: Sequence[Any]) -> tuple[int | None, ...]:
    return tuple(length if isinstance(length, int) and length > 0 else None for length in shape)


def _read_onnx_type(name: str) -> np.dtype[Any]:
    """Return the type of the numbers of a port; ``object`` if it is of texts, sequences or others without one."""
    inner = name.removeprefix("tensor(").removesuffix(")")
    with suppress(TypeError):
        dtype = np.dtype({"float": "float32", "double": "float64"}.get(inner, inner))
        # Another library may have taught NumPy a type, e.g. bfloat16, but not ONNX Runtime.
        return dtype if dtype.kind in "biuf" else np.dtype(object)
    return np.dtype(object)


def _read_openvino_port(port: Any, number: int) -> Port:
    from openvino import layout_helpers

    names = sorted(port.get_names())
    shape = tuple(axis.get_length() if axis.is_static else None for axis in port.get_partial_shape())
    layout = str(layout_helpers.get_layout(port)) if hasattr(port.get_node(), "set_layout") else ""
    letters = "".join(letter for letter in layout if letter.isalpha())
    return Port(names[0] if names else str(number), shape, np.dtype(port.get_element_type().to_dtype()), letters)


def _read_tflite_port(detail: Mapping[str, Any]) -> Port:
    step, zero = detail["quantization"]
    shape = _read_shape(detail.get("shape_signature", detail["shape"]).tolist())
    return Port(detail["name"], shape, np.dtype(detail["dtype"]), scale=(float(step), int(zero)))


def _read_packed_labels(path: str) -> dict[str, str]:
    """Return the labels in a file of TFLite: its metadata are files in a ZIP archive behind the model."""
    from zipfile import BadZipFile, ZipFile

    with suppress(BadZipFile), ZipFile(path) as archive:
        found = next((name for name in archive.namelist() if PurePath(name).name in _LABEL_FILES), None)
        if found is not None:
            with archive.open(found) as labels:
                content = labels.read(_MAX_LABELS_BYTES + 1)
            if len(content) > _MAX_LABELS_BYTES:
                raise ModelError(f"{path}: {found} in it has more than {_MAX_LABELS_BYTES / 2**20:g} MB; remove it.")
            return {"labels": content.decode("utf-8")}
    return {}


# ------------------------------------------------------------------------------------------------------- the model


class FileModel(FunctionModel):
    """A file of another runtime as a module without gradients.

    Args:
        path: The file.
        program: The opened file.
        layout: The order of the axes of its images, if neither the file nor its shape says it.
        output: The name of the output with the scores, if there are several.
        batch: The most images that run at once.

    Attributes:
        path: As above.
        image: The input of the images.
        has_channels_first: True if they are ``(N, C, H, W)`` there, False for ``(N, H, W, C)``.
        scores: The output with the scores.
        fixed: The number of images that the file takes, always; ``None`` for any number.

    Raises:
        ModelError: The file takes no images, or it does not say which input, layout or output it is.
    """

    unhookable: str | None = "a file of another runtime"

    def __init__(
        self, path: Path, program: Program, layout: Layout | None = None, output: str | None = None, batch: int = 32
    ) -> None:
        self.path, self.program = path, program
        self.image, self.scores = self._find_image(), self._find_scores(output)
        self.has_channels_first = self._find_layout(layout) == "NCHW"
        self.fixed = self.image.shape[0]
        height, width = self.image.shape[2:] if self.has_channels_first else self.image.shape[1:3]
        size = None if height is None or width is None else (height, width)
        std = "1 / 255" if np.issubdtype(self.image.dtype, np.integer) and not self.image.scale[0] else "1"
        gray = ', channels="gray"' if 1 in self.image.shape[1:] else ""
        self.example = f"camtool.preprocessing(size={min(size or (224,))}, mean=0, std={std}{gray})"
        super().__init__(self._run, batch=self.fixed or batch, cache=False, input_size=size)
        # The state of the module is that of the file, so that a run notices another one.
        digest = hashlib.sha256(self._read_bytes()).digest()
        self.register_buffer("digest", torch.tensor([*digest], dtype=torch.uint8, device="cpu"))

    def _read_bytes(self) -> bytes:
        """Return the bytes of the file, and of one beside it with the weights."""
        beside = self.path.with_suffix(".bin")
        return self.path.read_bytes() + (beside.read_bytes() if self.path.suffix == ".xml" and beside.exists() else b"")

    @property
    def name(self) -> str:
        """The name of the file in messages."""
        return f"the file {self.path.name}"

    def check_image(self, image: Tensor) -> None:
        """Check that an image of the user, of any shape, has the levels that the file takes.

        Raises:
            FunctionError: It has others.
        """
        port, values = self.image, image.detach().float().cpu()
        if port.scale[0] or not np.issubdtype(port.dtype, np.integer):
            return
        limits, low, high = np.iinfo(port.dtype), values.min().item(), values.max().item()
        is_unit = low >= 0 and high <= 1 and not torch.equal(values, values.round())
        if is_unit or low < limits.min - 0.5 or high > limits.max + 0.5:
            raise FunctionError(
                f"input {port.name!r} takes whole numbers from {limits.min} to {limits.max}, and values from {low:g} "
                f"to {high:g} came; let transform= return such numbers, e.g. camtool.preprocessing(size, mean=0, "
                "std=1 / 255) for bytes."
            )

    def feed(self, images: Tensor) -> dict[str, NDArray[Any]]:
        """Return the inputs of the file for images ``(N, C, H, W)``, repeated up to the number that it takes."""
        if not is_library_running():  # what methods make of an image may be between its levels, or beyond them
            self.check_image(images)
        count = max(len(images), self.fixed or 0)
        values = images.numpy() if self.has_channels_first else images.permute(0, 2, 3, 1).numpy()
        values = np.concatenate([values, np.repeat(values[-1:], count - len(values), 0)])
        fed = {self.image.name: np.ascontiguousarray(self.image.to_own(values))}
        for port in self.program.inputs:
            if port is not self.image:  # the class that an exported explanation is about: -1 for the highest
                fed[port.name] = np.full(count, -1, port.dtype)
        return fed

    def read_maps(self, images: Tensor, classes: Tensor, output: str) -> Tensor:
        """Return the maps ``(N, *grid)`` in an output of an exported file, for classes ``(N,)`` of images."""
        fed = self.feed(images.detach().float().cpu())
        fed["target_class"][: len(classes)] = classes.numpy()
        return torch.from_numpy(self.program.run(fed, [output])[0][: len(images)])

    def _run(self, images: Tensor) -> NDArray[Any]:
        (scores,) = self.program.run(self.feed(images), [self.scores.name])
        return self.scores.to_real(scores)[: len(images)]

    def _find_image(self) -> Port:
        ports = self.program.inputs
        images = [port for port in ports if len(port.shape) == 4 and port.dtype != object]
        is_export = "camtool" in self.program.metadata and {port.name for port in ports} == {"images", "target_class"}
        if len(images) != 1 or (len(ports) > 1 and not is_export):
            listed = ", ".join(f"{port.name} {_format_shape(port)}" for port in ports)
            raise ModelError(
                f"{self.path}: a file with one input of images is needed, and this one takes {listed}; write a "
                "function from images to scores that runs it, camtool.load(function)."
            )
        return images[0]

    def _find_layout(self, layout: Layout | None) -> Layout:
        if layout is not None:
            check_choice("layout", layout, ("NCHW", "NHWC"), error=ModelError)
            return layout
        if self.image.layout in ("NCHW", "NHWC"):
            return self.image.layout  # type: ignore[return-value]
        is_first, is_last = (self.image.shape[axis] in _CHANNELS for axis in (1, 3))
        if is_first == is_last:
            raise ModelError(
                f"{self.path}: input {self.image.name!r} has the shape {_format_shape(self.image)}, which does not "
                "show where its channels are; pass layout='NCHW' or layout='NHWC'."
            )
        return "NCHW" if is_first else "NHWC"

    def _find_scores(self, output: str | None) -> Port:
        by_name = {port.name: port for port in self.program.outputs}
        if output is None and "camtool" in self.program.metadata and "logits" in by_name:
            output = "logits"
        if output is None and len(by_name) == 1:
            (output,) = by_name
        if output in by_name and by_name[output].dtype != object:
            return by_name[output]
        raise ModelError(_describe_wrong_output(self.path, output, by_name))


def _describe_wrong_output(path: Path, output: str | None, by_name: Mapping[str, Port]) -> str:
    if output is None:
        reason = "has several outputs"
    else:
        reason = f"has no {'numbers in output' if output in by_name else 'output'} {output!r}"
    listed = ", ".join(f"{name!r} {_format_shape(port)}" for name, port in by_name.items())
    return f"{path} {reason}; name that of the scores with output=: {listed}."


def _format_shape(port: Port) -> str:
    if port.dtype == object:
        return "(no numbers)"
    return f"({', '.join('?' if length is None else str(length) for length in port.shape)})"
