"""An ONNX file as a model with layers: its inner tensors can be read and replaced, as hooks do with those of torch.

Its operators are those of torch here, as far as they decide from which pixels a position is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from camtool.errors import Forgive
from camtool.hooks.private_torch import find_hooked_modules
from camtool.models.sources.runtime_files import FileModel, OnnxProgram, Program

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto, NodeProto, TensorProto

# Operators whose results are no layers: pooling, which only coarsens, and what only moves values.
_HIDDEN = frozenset(
    {
        *("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReduceMean", "ReduceMax", "ReduceSum"),
        *("Cast", "Constant", "Expand", "Flatten", "Identity", "Pad", "Reshape", "Slice", "Split", "Squeeze"),
        *("Transpose", "Unsqueeze", "Softmax"),
    }
)

_MATRICES = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_ACTIVATIONS = frozenset({"Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "PRelu", "Relu", "Sigmoid"})

# Parts of the graph that are kept open.
_MOST_SESSIONS = 8


class OnnxModel(FileModel):
    """An ONNX file whose inner tensors are modules, so that hooks read and replace them.

    A forward pass without hooks runs the file. With hooks, a copy of the graph returns the hooked tensors as well, and
    where a hook changes one, the rest of the graph runs again behind it.

    Args:
        path: The file.
        program: The opened file.
        **settings: Those of :class:`FileModel`.
    """

    unhookable = None

    def __init__(self, path: Path, program: Program, **settings: Any) -> None:
        import onnx

        self._graph: ModelProto = onnx.load(path)  # with weights in files beside it
        super().__init__(path, program, **settings)
        self._sessions: dict[tuple[tuple[str, ...], tuple[str, ...]], OnnxProgram] = {}
        inferred = onnx.shape_inference.infer_shapes(self._graph).graph.value_info
        self._types = {value.name: value.type.tensor_type for value in inferred}
        self._producers = {name: node for node in self._graph.graph.node for name in node.output}
        taken = frozenset({*dir(self), "weight", ""})  # a module has no child without a name
        self._tensors = {self._add_module(name, node, taken): name for name, node in self._list_layers()}

    def _read_bytes(self) -> bytes:
        """Return the bytes of the graph and of its weights."""
        serialized: bytes = self._graph.SerializeToString()
        return serialized

    def _list_layers(self) -> Iterator[tuple[str, NodeProto]]:
        """Yield the names of the tensors that may be layers, in the order of the graph, and what computes them."""
        layers = [*self._list_maps()]
        # Inside of attention (N, heads, T, C) and (N, heads, T, T) have the shape of maps.
        counts = {shape[1] for _, shape in layers if len(shape) == 3} - {0}
        for node, shape in layers:
            if len(shape) == 3 or not counts.intersection(shape[2:]):
                yield node.output[0], node

    def _list_maps(self) -> Iterator[tuple[NodeProto, list[int]]]:
        """Yield what computes maps (N, C, H, W), or tokens (N, T, C), of the image, and their shapes."""
        seen = {self.image.name}  # what depends on the image
        for node in self.cut_graph((), [self.scores.name]).graph.node:
            if node.op_type == "Shape" or not node.output or not seen.intersection(node.input):
                continue
            # Of tokens (N, T, C) only sums and norms are layers: others are queries, keys, values and projections.
            shape, is_sum = self._read_shape(node), node.op_type == "Add" and seen.issuperset(node.input)
            if len(shape) == 4 or (len(shape) == 3 and (is_sum or node.op_type == "LayerNormalization")):
                yield node, shape
            seen.update(node.output)

    def _read_shape(self, node: NodeProto) -> list[int]:
        """Return the shape of what a node computes, if that is floating and may be shown; otherwise no axes."""
        import onnx

        kind = self._types.get(node.output[0])
        if kind is None or kind.elem_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16):
            return []
        return [] if node.op_type in _HIDDEN else [axis.dim_value for axis in kind.shape.dim]

    def _add_module(self, name: str, node: NodeProto, taken: Collection[str]) -> nn.Module:
        """Add the module of a tensor, and return it. Its name is the tensor's."""
        module = self._make_module(node)
        *parents, last = [part + "_" * (part in taken) for part in name.split(".")]
        parent: nn.Module = self
        for part in parents:
            if not hasattr(parent, part):
                parent.add_module(part, nn.Module())
            parent = parent.get_submodule(part)
        while type(getattr(parent, last, nn.Module())) is not nn.Module:  # another tensor has this name already
            last += "_"
        for child, inner in getattr(parent, last, nn.Module()).named_children():  # of a tensor with a longer name
            module.add_module(child, inner)
        parent.add_module(last, module)
        return module

    def _make_module(self, node: NodeProto) -> nn.Module:
        """Return a module whose class has the name of the operator."""
        module: nn.Module = type(node.op_type, (nn.Identity,), {})()
        source = self._producers.get(node.input[0]) if node.input else None
        is_behind = node.op_type in _ACTIVATIONS and source is not None and source.op_type in _MATRICES
        if node.op_type in _MATRICES or is_behind:
            # Only what a matrix computed may be the classes' own score maps; its values are not needed to know that.
            module.weight = nn.Parameter(torch.empty(0, 0, device="cpu"), requires_grad=False)
        return module

    def forward(self, images: Tensor) -> Any:
        """Return the scores of images ``(N, C, H, W)``, without a graph.

        Raises:
            FunctionError: The file cannot run on them.
        """
        hooked = find_hooked_modules(self._tensors)
        if not hooked:
            return super().forward(images)
        fed, held = self.feed(images.detach().to("cpu", torch.float32)), dict[str, "NDArray[Any]"]()
        wanted = [self._tensors[module] for module in hooked]
        values = self._run_graph(fed, held, [*wanted, self.scores.name])
        for module, name in zip(hooked, wanted, strict=True):
            own = values[name][: len(images)] if self.fixed and not held else values[name]
            returned = module(torch.from_numpy(own).to(torch.float32, copy=True))
            replaced = returned.detach().numpy()
            if replaced.shape == own.shape and np.array_equal(replaced, own.astype(np.float32)):
                continue
            held[name] = replaced.astype(own.dtype)
            rest = wanted[wanted.index(name) + 1 :]
            values |= self._run_graph(fed, held, [*rest, self.scores.name])
        scores = torch.from_numpy(self.scores.to_real(values[self.scores.name])).clone()
        return scores if held else scores[: len(images)]

    def _run_graph(
        self, fed: Mapping[str, NDArray[Any]], held: Mapping[str, NDArray[Any]], outputs: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        """Return tensors of the graph, for its inputs and for tensors that are held at other values.

        The batch is that of the held tensors; if the file takes a fixed number of images, it runs on as many at a time.
        """
        session = self._open((*held,), tuple(dict.fromkeys(outputs)))
        given = {port.name: {**fed, **held}[port.name] for port in session.inputs}
        if held and self.image.name in given and session.metadata:
            # Of the image only the number is read, which is that of the held tensors.
            rows, image = len(next(iter(held.values()))), given[self.image.name]
            given[self.image.name] = np.zeros((rows, *image.shape[1:]), image.dtype)
        names = [port.name for port in session.outputs]
        if not self.fixed:
            return dict(zip(names, session.run(given, names), strict=True))
        count = max((len(array) for array in (held or given).values()), default=1)
        parts = [session.run(_cut(given, start, self.fixed), names) for start in range(0, count, self.fixed)]
        return {name: np.concatenate(arrays)[:count] for name, *arrays in zip(names, *parts, strict=True)}

    def draw_trunk(self, name: str, image: Tensor) -> Tensor | None:
        """Return a stand-in for a tensor on autograd's graph from an image, from which centers of cells can be read.

        It has the tensor's shape, and each position is computed from the same pixels, but its values mean nothing.

        Args:
            name: The name of the layer.
            image: ``(1, C, H, W)``, a leaf.

        Returns:
            The stand-in; ``None`` if an operator on the way is not known.
        """
        tensor = self._tensors[self.get_submodule(name)]
        values = {self.image.name: image if self.has_channels_first else image.permute(0, 2, 3, 1)}
        constants = {one.name: one for one in self._graph.graph.initializer}
        with Forgive(KeyError, RuntimeError):
            for node in self.cut_graph((), [tensor]).graph.node:
                if node.op_type == "Constant":
                    constants[node.output[0]] = node.attribute[0].t
                elif any(given in values for given in node.input):
                    values[node.output[0]] = follow(node, values, constants)
            return values.get(tensor)
        return None

    def _open(self, held: tuple[str, ...], outputs: tuple[str, ...]) -> OnnxProgram:
        """Return the part of the graph that leads from the inputs and from held tensors to some tensors."""
        key = held, outputs
        if key not in self._sessions:
            while len(self._sessions) >= _MOST_SESSIONS:
                self._sessions.pop(next(iter(self._sessions)))
            part = self.cut_graph(held, outputs)
            readers = {node.op_type for node in part.graph.node if self.image.name in node.input}
            if readers == {"Shape"}:
                part.metadata_props.add(key="reads", value="the shape of the image alone")
            self._sessions[key] = OnnxProgram(part.SerializeToString())
        return self._sessions[key]

    def _find_needed(self, held: Collection[str], outputs: Sequence[str]) -> set[str]:
        """Return the names of the tensors from which outputs are computed, and their own; behind held ones no more."""
        needed, stack = set[str](), [*outputs]
        while stack:
            name = stack.pop()
            if name not in needed:
                needed.add(name)
                stack += _list_inputs(self._producers[name]) if name in self._producers and name not in held else []
        return needed

    def cut_graph(self, held: Sequence[str], outputs: Sequence[str]) -> ModelProto:
        """Return the graph from its inputs and from held tensors, which become inputs, to other tensors."""
        import onnx

        needed = self._find_needed(held, outputs)
        whole, computed = self._graph.graph, needed - {*held}

        def declare(name: str) -> onnx.ValueInfoProto:
            declared = next((value for value in [*whole.input, *whole.output] if value.name == name), None)
            return declared or onnx.helper.make_tensor_value_info(name, self._types[name].elem_type, None)

        graph = onnx.helper.make_graph(
            [node for node in whole.node if computed.intersection(node.output)],
            "part",
            [*(value for value in whole.input if value.name in computed), *map(declare, needed.intersection(held))],
            [*map(declare, outputs)],
            [one for one in whole.initializer if one.name in computed],
        )
        graph.sparse_initializer.extend(one for one in whole.sparse_initializer if one.values.name in computed)
        versions = {"opset_imports": self._graph.opset_import, "ir_version": self._graph.ir_version}
        return onnx.helper.make_model(graph, functions=self._graph.functions, **versions)


def _cut(arrays: Mapping[str, NDArray[Any]], start: int, count: int) -> dict[str, NDArray[Any]]:
    """Return ``count`` rows of each array from ``start`` on; the last row, or the only one, is repeated."""
    return {name: array[np.arange(start, start + count).clip(max=len(array) - 1)] for name, array in arrays.items()}


def _list_inputs(node: NodeProto) -> list[str]:
    """Return the names that an operator reads, also inside of its branches and loops."""
    inner = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    inner += [graph for attribute in node.attribute for graph in attribute.graphs]
    return [*node.input, *(name for graph in inner for child in graph.node for name in _list_inputs(child))]


# --------------------------------------------------------------------------- which pixels a position is computed from

# Operators whose result is at each position computed from that position, or from all in the same way.
_KEEPING = frozenset(
    {
        *("BatchNormalization", "Cast", "Clip", "Dropout", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish"),
        *("Identity", "InstanceNormalization", "LayerNormalization", "LeakyRelu", "Log", "Neg", "PRelu", "Pow"),
        *("Reciprocal", "Relu", "Selu", "Sigmoid", "Softplus", "Sqrt", "Tanh"),
    }
)

_JOINING = frozenset({"Add", "Div", "Max", "Mean", "Min", "Mul", "Sub", "Sum"})


def follow(node: NodeProto, values: Mapping[str, Tensor], constants: Mapping[str, TensorProto]) -> Tensor:
    """Return what stands for the result of an operator.

    Args:
        node: The operator.
        values: The tensors that depend on the image, by name.
        constants: The weights and other constants, by name.

    Raises:
        KeyError: The operator is not known here.
    """
    given = [values[name] for name in node.input if name in values]
    options, x = _read_options(node), given[0]
    if node.op_type in _KEEPING:
        return x
    if node.op_type in _JOINING:
        return torch.stack([*torch.broadcast_tensors(*given)]).sum(0) if len(given) > 2 else sum(given[1:], x)
    if node.op_type == "Concat" and len(given) == len(node.input):
        return torch.cat(given, options["axis"])
    return _OF_ONE_TENSOR[node.op_type](node, x, options, constants)


def _slide(node: NodeProto, x: Tensor, options: Mapping[str, Any], constants: Mapping[str, TensorProto]) -> Tensor:
    """Return the result of a convolution or a pooling over images."""
    if options.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or x.ndim != 4:
        raise KeyError("auto_pad")
    top, left, bottom, right = options.get("pads", [0] * 4)
    stride, dilation = options.get("strides", [1, 1]), options.get("dilations", [1, 1])
    is_even = (top, left) == (bottom, right)
    padding = [top, left] if is_even else [0, 0]
    x = x if is_even else functional.pad(x, (left, right, top, bottom))
    if node.op_type == "Conv":
        # A parameter, as centers are read from its values.
        weight = nn.Parameter(_to_tensor(constants[node.input[1]]).float())
        return functional.conv2d(x, weight, None, stride, padding, dilation, options.get("group", 1))
    kernel, is_ceiled = options["kernel_shape"], bool(options.get("ceil_mode", 0))
    if node.op_type == "MaxPool":
        return functional.max_pool2d(x, kernel, stride, padding, dilation, is_ceiled)
    return functional.avg_pool2d(x, kernel, stride, padding, is_ceiled)


def _multiply(node: NodeProto, x: Tensor, options: Mapping[str, Any], constants: Mapping[str, TensorProto]) -> Tensor:
    return functional.linear(x, _to_tensor(constants[node.input[1]]).T)


def _average(node: NodeProto, x: Tensor, options: Mapping[str, Any], constants: Mapping[str, TensorProto]) -> Tensor:
    axes = options.get("axes") or (_to_tensor(constants[node.input[1]]).tolist() if len(node.input) > 1 else [2, 3])
    return x.mean(axes, keepdim=bool(options.get("keepdims", 1)))


# Operator → what it does to the tensor that depends on the image; its other inputs are constants.
_OF_ONE_TENSOR: dict[str, Callable[..., Tensor]] = {
    **dict.fromkeys(("Conv", "AveragePool", "MaxPool"), _slide),
    **dict.fromkeys(("GlobalAveragePool", "ReduceMean"), _average),
    "MatMul": _multiply,
    "Transpose": lambda _, x, options, __: x.permute(options["perm"]),
}


def _read_options(node: NodeProto) -> dict[str, Any]:
    from onnx.helper import get_attribute_value

    return {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}


def _to_tensor(constant: TensorProto) -> Tensor:
    from onnx.numpy_helper import to_array

    return torch.from_numpy(to_array(constant).copy())
