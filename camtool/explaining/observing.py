"""The forward pass that the user runs: :func:`observe` records it, and explanations of it follow without another one.

    with camtool.observe(model) as cam:
        output = model(batch)  # as in any training step: own grad mode, autocast, training mode
    results = cam.explain(target_class)

The model returns what it returns without the block, and the graph is the user's own: hooks copy the outputs of layers
and note the edge of the graph where each was made, but replace nothing. A layer's hook lives for one call of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from typing_extensions import Self

from camtool.arguments.checks import check_count
from camtool.arguments.explain_arguments import get_module, match_targets
from camtool.arguments.message_parts import add_article, format_count
from camtool.errors import CamtoolError, ImageError, LayerError, MethodError, ModelError
from camtool.evidence.layer_plan import get_layer_plan
from camtool.explaining.explainer import Explainer
from camtool.explaining.types import AnyTargets, Layers, Methods, Model, Settings
from camtool.geometry.cell_centers import Placement
from camtool.hooks.model_passes import GRADIENT_EDGES
from camtool.hooks.observation import EntriesPerImage, Observation, run_with_hooks
from camtool.hooks.private_torch import get_compiled_call, is_transforming, start_inference_mode
from camtool.hooks.registration import add_forward_hook, add_forward_pre_hook
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.state.guard import BufferSnapshot, guard, is_library_running
from camtool.hooks.structures.graph_nodes import list_nodes
from camtool.hooks.structures.modules import WeightStates, find_detector_transform, find_module, list_weights, read_tree
from camtool.hooks.structures.nested_tensors import (
    ModelInputs,
    find_main_tensor,
    find_tensors,
    map_tensors,
    replace_main_tensor,
)
from camtool.inputs.accepted_inputs import DataKind
from camtool.inputs.model_inputs import Inputs, Key
from camtool.inputs.prepared_inputs import InputBatch
from camtool.layers.depths import Depths
from camtool.methods import Method
from camtool.methods.merges import Merge
from camtool.models import Transform, to_loaded, unwrap_model
from camtool.recorder.recorder import RecorderBlock, SafeExit
from camtool.trust.checks.model_checks import find_training_modules
from camtool.warning_codes import MapWarning

# Needs of methods that a recorded pass serves.
_RECORDED_NEEDS = frozenset(
    {"activations", "gradients", "gradients of several classes", "a pooled linear head", "second derivatives"}
)

# Outputs that differ by less, relative to the largest, differ by rounding; dropout changes them by tenths.
_OUTPUT_ERROR = 1e-4

_NO_GRAPH = (
    "the forward pass recorded none: {reason}. {remedy}, use a method of activations, e.g. method='eigencam', or call "
    "camtool.explain(model, inputs), which runs the model again"
)
_START_GRAPH = "Pass start_graph=True to camtool.observe"
_REASONS = {
    "inference": _NO_GRAPH.format(
        reason="it ran in torch.inference_mode", remedy="Use torch.no_grad there and start_graph=True"
    ),
    "no_grad": _NO_GRAPH.format(reason="it ran in torch.no_grad", remedy=_START_GRAPH),
    "frozen": _NO_GRAPH.format(reason="the weights before the layer are frozen", remedy=_START_GRAPH),
}
_TRAIN_MODE = MapWarning(
    "The forward pass ran in training mode, so dropout and the statistics of the batch are part of this map; for a map "
    "of the model as it predicts, call model.eval() before the pass.",
    "train-mode",
)


def observe(
    model: Model,
    layer: Layers = None,
    *,
    depths: Depths = 0,
    keep: int | None = None,
    start_graph: bool = False,
    merge: str | Merge = "mean",
    transform: Transform | None = None,
    labels: Sequence[str] | None = None,
    image: Key | None = None,
    call_index: int | None = None,
    kind: DataKind | None = None,
    placement: Placement = "centers",
) -> ObservedPasses:
    """Record the forward passes that the user runs in a ``with`` block, for explanations without another one.

        with camtool.observe(model) as cam:
            output = model(images)
        results = cam.explain()  # the top class of each image
        loss(output).backward()

    The output, the graph and the gradients of the user are bitwise those without the block. Only calls of the model by
    the thread that entered the block are recorded, and none by camtool itself. The first call with inputs of a new
    shape takes further forward passes in evaluation mode, before it, to find the layer and its layout.

    Args:
        model: A module, or what :func:`camtool.load` returned. Call it as ever: the wrapper, if it is in one.
        layer: The layer to explain at, as for :func:`camtool.explain`. By default the best layer for the top score.
        depths: Record other layers on the way to the layer, too: the option of methods that read them. ``depths=4``
            for ``"faithcam"``.
        keep: The number of latest passes to keep, each with its graph; by default all.
        start_graph: Record a graph from the layer on where the user's pass has none, as the weights are frozen or it
            runs in ``torch.no_grad``. The output is detached, if it would have had no graph. Torch then leaves out its
            fast path of attention, so the output of a transformer may differ by rounding.
        merge: As for :func:`camtool.explain`.
        transform: As above. It says how the inputs were normalized, for pictures; nothing is transformed.
        labels: As above.
        image: As above.
        call_index: As above: which call of the layer, if it runs more than once in a forward pass.
        kind: As above.
        placement: As above.

    Raises:
        ModelError: The model is compiled, runs on several devices at once, or is a wrapper that camtool looks into.
        MethodError: The submodules of the model cannot be hooked.
        LayerError: A module given as ``layer`` is not part of the model.
        CamtoolError: Another argument does not fit.
    """
    settings: dict[str, Any] = {"merge": merge, "transform": transform, "labels": labels, "placement": placement}
    settings |= {"image": image, "call_index": call_index, "kind": kind}
    if keep is not None:
        check_count("keep", keep)
    _check_model(model)
    return ObservedPasses(_PassHooks(_Block(model, layer, depths, settings, start_graph=start_graph), keep))


class ObservedPasses:
    """The block of :func:`observe`, and the forward passes that ran in it.

    cam.explain("tabby", method="layercam")  # the latest pass
    cam[0].explain("tabby")  # the first one
    """

    def __init__(self, hooks: _PassHooks) -> None:
        self._passes = hooks.passes
        self._block = RecorderBlock(hooks.start, hooks.drop, hooks.drop)

    def explain(self, target_class: AnyTargets = None, *, method: Methods = "gradcam", **options: Any) -> list[Any]:
        """Explain the latest pass, see :meth:`ObservedPass.explain`.

        Raises:
            CamtoolError: The model has not run in the block, or an argument does not fit.
        """
        return self[-1].explain(target_class, method=method, **options)

    def __getitem__(self, index: int) -> ObservedPass:
        if not self._passes:
            raise CamtoolError(
                "the model has not run in the block of camtool.observe, in its thread; call it as model(inputs), as "
                "hooks do not see model.forward(inputs)."
            )
        return self._passes[index]

    def __iter__(self) -> Iterator[ObservedPass]:
        return iter(list(self._passes))

    def __len__(self) -> int:
        return len(self._passes)

    def __repr__(self) -> str:
        return f"<ObservedPasses: {format_count(len(self), 'forward pass')}>"

    def __enter__(self) -> Self:
        self._block.open()
        return self

    def _exit(self, *_: object) -> None:
        self._block.close()

    __exit__ = SafeExit(_exit)


class _Block:
    """The settings of a block, which its passes share."""

    def __init__(
        self, model: Model, layer: Layers, depths: Depths, settings: Mapping[str, Any], *, start_graph: bool
    ) -> None:
        self.make_explainer = partial(Explainer, model, layer=layer, **settings)
        explainer = self.make_explainer("eigencam")  # a method that all models support whose layers can be hooked
        self.module, self.depths, self.settings = explainer.batch_explainer.model, depths, settings
        self.start_graph = start_graph
        self.layers, self.preparer = explainer.batch_explainer.layers, explainer.preparer

    def prepare(self, inputs: Tensor | Inputs) -> InputBatch:
        """Return what the model was called with as a batch."""
        main = find_main_tensor(inputs if isinstance(inputs, Tensor) else [*inputs.entries.values()])
        size, index = 1 if main is None else len(main), self.settings["call_index"]
        image = None if isinstance(inputs, Tensor) else self.settings["image"]
        count, batches = self.preparer.prepare_batches(inputs, size, image=image, layers=self.layers, call_index=index)
        if count is None:
            raise ImageError("the model was called with an image without a batch axis; call it with (1, C, H, W).")
        (batch,) = batches
        return batch


class ObservedPass:
    """One forward pass of the user.

    Attributes:
        output: What the model returned.
    """

    def __init__(self, block: _Block, inputs: Tensor | Inputs, error: Exception | None = None) -> None:
        self.output: Any = None
        self._block, self._inputs, self._error = block, inputs, error
        self._calls: dict[str, list[Tensor]] = {}
        self._leaves: list[Tensor] = []
        self._has_grad_mode = torch.is_grad_enabled()
        self._reason: str | None = None
        self._training = find_training_modules(block.module)
        self._is_training = any(getattr(module, "training", False) for module in read_tree(block.module).modules)
        device = next((tensor.device.type for tensor in find_tensors(self._entries)), "cpu")
        dtype, is_autocast = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        self._restore_autocast = partial(torch.autocast, device, dtype=dtype, enabled=is_autocast)
        self._batch: InputBatch | None = None
        self._scored: Any = None
        self._weights: WeightStates | None = None

    @property
    def _entries(self) -> Any:
        return self._inputs if isinstance(self._inputs, Tensor) else self._inputs.entries

    def explain(self, target_class: AnyTargets = None, *, method: Methods = "gradcam", **options: Any) -> list[Any]:
        """Explain this forward pass; call it before ``loss.backward()`` frees the graph, and before the weights change.

        Methods of activations and gradients need no forward pass, but the first use for a model may run it to learn
        where the cells of the layer lie. Other methods, and :meth:`camtool.Explanation.check`, run the model again, in
        evaluation mode. ``.grad`` is not touched, and the graph can still be used.

        Args:
            target_class: As for :func:`camtool.explain`; for all images, or a list with one for each.
            method: As for :func:`camtool.explain`, without ``"auto"``.
            **options: Options of the method.

        Returns:
            For each image what :func:`camtool.explain` returns for it.

        Raises:
            MethodError: The method reads what was not recorded; or it runs the model again, and the weights have
                changed since, or the pass ran in training mode and evaluation mode gives another output.
            LayerError: There is no layer to explain at, or no graph leads to it.
            ForwardError: The graph is freed, or was recorded with other weights.
            CamtoolError: Another argument does not fit.
        """
        if self._error is not None:
            raise self._error.with_traceback(None)
        _check_options(method, options)
        explainer, module = self._block.make_explainer(method, **options), self._block.module
        # In training mode the flags stay, as checkpoints may run blocks of the model again in the backward pass.
        with Cleanup(), guard(module, evaluate=not self._is_training) as cleanup:
            if self._is_training:
                cleanup.push(BufferSnapshot(read_tree(module)).restore)
            for tensor in find_tensors(self.output):
                if tensor.retains_grad:
                    cleanup.push(partial(setattr, tensor, "grad", tensor.grad))
            batch = self._batch = self._batch or self._block.prepare(self._inputs)
            notes = (_TRAIN_MODE,) if self._training else ()
            with self._restore_autocast():
                self._check_methods(explainer.batch_explainer.methods, batch.inputs)
                replay = _Replay(batch.inputs, self._scored, self._calls, self._reason)
                requests = match_targets(target_class, len(batch.items))
                return replace(explainer.batch_explainer, notes=notes).explain(batch, requests, replay)

    def keep_output(self, layer: str, _: nn.Module, output: Any) -> Any:
        """Copy what a layer returned, and note where in the graph it was made. This is a hook of the layer."""
        tensor = find_main_tensor(output)
        if tensor is None or is_library_running():
            return None
        kept = _copy(tensor.dequantize() if tensor.is_quantized else tensor)
        self._calls[layer].append(kept)
        if tensor.requires_grad:
            # An operation that writes to the tensor in place moves it to a later node, but not the edge.
            GRADIENT_EDGES[kept] = get_gradient_edge(tensor)
        elif self._block.start_graph and not torch.is_inference_mode_enabled() and not tensor.is_quantized:
            torch.set_grad_enabled(True)  # until the hooks of the layers are removed
            self._leaves.append(kept.requires_grad_())
            return replace_main_tensor(output, kept.clone())
        else:
            mode = "frozen" if torch.is_grad_enabled() else "no_grad"
            self._reason = _REASONS["inference" if torch.is_inference_mode_enabled() else mode]
        return None

    def finish(self, output: Any) -> Any:
        """Keep what the model returned, and return it for the user: detached if only this library recorded a graph."""
        # The user may write to a tensor, but hardly to one in a structure, which may hold much else.
        scored = _copy(output) if isinstance(output, Tensor) else output
        if self._leaves and not (self._has_grad_mode and _reaches_other_leaves(output, self._leaves)):
            output = map_tensors(output, Tensor.detach)
        self.output, self._scored = output, scored if self._reason is None else map_tensors(scored, Tensor.detach)
        self._weights = WeightStates(list_weights(self._block.module, buffers=False))
        return output

    def record(self, layers: Sequence[str], cleanup: Cleanup) -> None:
        """Register the hooks of the layers. The cleanup removes them."""
        cleanup.push(partial(torch.set_grad_enabled, torch.is_grad_enabled()))
        for layer in layers:
            self._calls[layer] = []
            module = find_module(self._block.module, layer)
            add_forward_hook(cleanup, module, partial(self.keep_output, layer), prepend=True)

    def _check_methods(self, methods: Sequence[Method], inputs: ModelInputs) -> None:
        """Check that methods that run the model again, or read its weights, meet the model of this pass.

        Raises:
            MethodError: The weights have changed, or the model computes something else in evaluation mode.
        """
        model = self._block.module
        for method in methods:
            is_run = _runs_model(method)
            if not is_run and "a pooled linear head" not in method.needs:
                continue
            name = f"method {method.name!r} {'runs the model again' if is_run else 'reads weights of the model'}"
            if self._weights is not None and not self._weights.equal_those_of(list_weights(model, buffers=False)):
                raise MethodError(
                    f"{name}, but its weights have changed since the forward pass; explain before optimizer.step()."
                )
            may_differ = is_run and self._is_training
            if may_differ and not _are_close(run_with_hooks(model, [], inputs, grad=False).output, self._scored):
                raise MethodError(
                    f"{name}, in evaluation mode, in which it computes something else: the forward pass ran in "
                    "training mode. Call model.eval() before the pass, or use a method of gradients, e.g. 'gradcam'."
                )

    def __repr__(self) -> str:
        return f"<ObservedPass at {', '.join(self._calls) or 'no layer'}>"


class _PassHooks:
    """The hooks of a block on the model. It does not hold the block, which is freed as soon as nobody uses it."""

    def __init__(self, block: _Block, keep: int | None) -> None:
        self.passes: list[ObservedPass] = []
        self._block, self._keep = block, keep
        self._running: ObservedPass | None = None
        self._depth, self._layer_hooks = 0, Cleanup(steps=[])

    def start(self, cleanup: Cleanup) -> None:
        """Register the hooks; the cleanup removes them."""
        add_forward_pre_hook(cleanup, self._block.module, self._begin, prepend=True)
        add_forward_hook(cleanup, self._block.module, self._end, always_call=True)

    def drop(self) -> None:
        """Remove the hooks of a forward pass that has not ended."""
        self._depth, self._running = 0, None
        self._layer_hooks.close()

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_library_running() or is_transforming():  # the former e.g. to find the layers, below
            return
        self._depth += 1
        if self._depth > 1:  # the model calls itself
            return
        self._layer_hooks.__enter__()
        inputs: Tensor | Inputs = torch.empty(0)
        # An error is raised by explain(): the pass of the user must not fail for it.
        try:
            inputs = _read_inputs(module, args, kwargs)
            layers = self._find_layers(inputs)
            self._running = ObservedPass(self._block, _map_inputs(inputs, lambda tensor: _copy(tensor.detach())))
            self._running.record(layers, self._layer_hooks)
        except (CamtoolError, torch.OutOfMemoryError) as error:
            self._running = ObservedPass(self._block, inputs, error.with_traceback(None))

    def _end(self, module: nn.Module, output: Any) -> Any:
        if is_library_running() or is_transforming() or not self._depth:
            return None
        self._depth -= 1
        if self._depth:
            return None
        running = self._running
        try:
            if output is None or running is None:  # the model failed
                return None
            returned = running.finish(output)
        finally:
            self.drop()
        self.passes.append(running)
        if self._keep is not None:
            del self.passes[: -self._keep]
        return None if returned is output else returned

    def _find_layers(self, inputs: Tensor | Inputs) -> list[str]:
        """Return the names of the layers to record; the first time for a shape, this runs the model."""
        block, index = self._block, self._block.settings["call_index"]
        given: ModelInputs
        if isinstance(inputs, Inputs):
            chosen = Inputs.from_user(inputs, block.settings["image"])
            key, index = block.preparer.select_image_input(chosen, block.layers, index)
            given = {key: chosen.entries[key], **chosen.entries}
        else:
            given = inputs
        call_index = -1 if index is None else index
        plan = get_layer_plan(block.module, given, block.layers, call_index, block.depths)
        if plan.entries:
            raise LayerError(
                f"layer {next(iter(plan.entries))!r} has several rows for each image, e.g. the frames of a clip; use "
                "camtool.explain(model, inputs) for it."
            )
        return [layer.name for layer in plan.observed]


@dataclass(frozen=True, eq=False)
class _Replay:
    """Gives a recorded forward pass to those who would run the model; other inputs do run it.

    Attributes:
        inputs: The recorded inputs.
        output: What the model returned.
        calls: Layer to the tensors that it returned.
        reason: Why no graph leads to the layers; ``None`` if one does.
    """

    inputs: ModelInputs
    output: Any
    calls: Mapping[str, list[Tensor]]
    reason: str | None

    def __call__(
        self,
        model: nn.Module,
        layers: Sequence[str],
        inputs: ModelInputs,
        *,
        grad: bool = True,
        entries: Mapping[str, EntriesPerImage] = {},  # never written to
    ) -> Observation:
        """Return the recorded pass at some of its layers."""
        if inputs is not self.inputs:
            return run_with_hooks(model, layers, inputs, grad=grad, entries=entries)
        missing = [layer for layer in layers if layer not in self.calls]
        if missing:
            raise MethodError(
                f"the method reads layers that were not recorded: {', '.join(map(repr, missing))}; pass its option "
                "depths to the block, too: camtool.observe(model, depths=4) for 'faithcam'."
            )
        return Observation(self.output, {layer: self.calls[layer] for layer in layers}, missing_graph=self.reason)


def _check_model(model: Model) -> None:
    """Check that the user's calls of the model pass through its hooks.

    Raises:
        ModelError: They do not.
    """
    whole, inner = get_module(model), to_loaded(model).model
    modules = list(whole.modules())
    if any(get_compiled_call(module) or type(module).__name__ == "OptimizedModule" for module in modules):
        raise ModelError(
            "the model is compiled, and compiled code does not call hooks; pass and call the module that torch.compile "
            "got, or use camtool.explain(model, inputs), which runs it uncompiled."
        )
    if isinstance(whole, nn.DataParallel) and len(whole.device_ids) > 1:
        raise ModelError(
            "the model is in DataParallel on several devices, which runs copies of it in other threads; pass and call "
            "model.module, or use DistributedDataParallel."
        )
    if inner is not unwrap_model(whole):
        raise ModelError(
            f"the model is {add_article(type(whole).__name__)}, of which camtool explains a part that your call does "
            "not run as a whole; use camtool.explain(model, inputs)."
        )


def _check_options(method: Any, options: Mapping[str, Any]) -> None:
    for name in options:
        if name == "layer" or name in Settings.__dataclass_fields__:
            raise CamtoolError(f"{name}= must be known when the model runs; pass it to camtool.observe, or omit it.")
    if isinstance(method, str) and method == "auto":
        raise MethodError("method='auto' runs the model on many images to choose; name a method for a recorded pass.")


def _runs_model(method: Method) -> bool:
    """Return True if a method is known to run the model again: what it reads, or its wrapper, says so."""
    is_served = method.needs <= _RECORDED_NEEDS and not method.ignores_layer and not method.reads_depths
    return not is_served or (":" in method.name and method.weight_function is None)


def _read_inputs(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | Inputs:
    """Return the inputs of a call as :func:`camtool.explain` takes them."""
    first = args[0] if args else None
    if len(args) == 1 and not kwargs and isinstance(first, Tensor):
        return first
    if isinstance(first, (list, tuple)) and find_detector_transform(module) is not None:
        if len(args) + len(kwargs) > 1 or len({image.shape for image in first}) > 1:
            raise ImageError("a detector is observed without targets, on images of one size; else use camtool.explain.")
        return torch.stack(list(first))
    entries: dict[Key, Any] = dict(enumerate(args))
    entries.update(kwargs)
    return Inputs(0).replace_entries(entries)


def _map_inputs(inputs: Tensor | Inputs, change: Callable[[Tensor], Tensor]) -> Tensor | Inputs:
    """Return the inputs with each tensor changed."""
    if isinstance(inputs, Tensor):
        return change(inputs)
    return inputs.replace_entries(map_tensors(inputs.entries, change))


def _are_close(given: Any, expected: Any) -> bool:
    """Check that the main tensors of two outputs are equal up to rounding."""
    first, second = find_main_tensor(given), find_main_tensor(expected)
    if first is None or second is None or first.shape != second.shape:
        return False
    return torch.allclose(first, second.detach(), rtol=_OUTPUT_ERROR, atol=_OUTPUT_ERROR * float(first.abs().max()))


def _copy(tensor: Tensor) -> Tensor:
    """Return a copy on the graph of a tensor, which is no tensor of inference mode."""
    if torch.is_inference_mode_enabled():
        with start_inference_mode(False):
            return tensor.clone()
    with torch.enable_grad() if tensor.requires_grad else nullcontext():
        return tensor.clone()


def _reaches_other_leaves(output: Any, leaves: Sequence[Tensor]) -> bool:
    """Check that the graph of an output leads to weights or inputs of the user, beside some leaves."""
    ours = {id(leaf) for leaf in leaves}
    variables = (getattr(node, "variable", None) for node in list_nodes(output))  # of the nodes of leaves
    return any(variable is not None and id(variable) not in ours for variable in variables)
