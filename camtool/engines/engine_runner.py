"""Engines: ways to run a model and observe its layers, with one function for all of them.

A compiled model is remembered for as long as the user's model lives. It is made again when weights, the input size or
the number of threads change.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from camtool.arguments.checks import check_choice
from camtool.engines.compiled import CompiledModel
from camtool.engines.graph_files import compute_key, get_first_line, hide_output, lock_compiler, make_once
from camtool.engines.prepared import PreparedModel, copy_for_capture
from camtool.engines.program import Plan, capture_program, read_plan, write_program
from camtool.engines.runtimes import RUNTIMES, TorchGraph, is_installed, list_missing
from camtool.errors import CamtoolError, NotCompilableError, raise_interrupt
from camtool.hooks.model_passes import run_model
from camtool.hooks.observation import EntriesPerImage, Observation
from camtool.hooks.private_torch import find_hooked_modules, has_backward_hooks, has_global_hooks
from camtool.hooks.registration import list_foreign_hooks
from camtool.hooks.state.guard import guard
from camtool.hooks.state.one_thread import use_one_thread
from camtool.hooks.structures import nested_tensors
from camtool.hooks.structures.caches import remember_for_model
from camtool.hooks.structures.module_settings import ModuleSettings, describe_settings
from camtool.hooks.structures.modules import WeightStates, list_weights, read_tree
from camtool.hooks.structures.nested_tensors import ModelInputs
from camtool.methods.registry import Method
from camtool.progress import follow_step

EngineName: TypeAlias = Literal["eager", "prepared", "torch.compile", "onnxruntime", "openvino", "auto"]

ENGINES: tuple[EngineName, ...] = get_args(EngineName)

# Compiled models that are kept of each model: each size of the images has its own, with buffers and often weights.
_MOST_PLANS = 16

_LOG = logging.getLogger(__name__)


def list_engines(name: str, methods: Sequence[Method] = ()) -> list[str]:
    """Return the engines to try for a name, in order. The last resort, the model as it is, is not listed.

    Args:
        name: The name that the user gave.
        methods: The methods. No engine is tried if one of them needs more than activations and gradients.

    Raises:
        CamtoolError: The name is unknown, or the engine is not installed.
    """
    check_choice("engine", name, ENGINES)
    other = next((method.name for method in methods if not method.can_be_compiled), None)
    if name != "eager" and other is not None:
        _LOG.warning("engine %r is not used: method %r needs more than activations and gradients", name, other)
        return []
    if name == "auto":
        return [*(runtime for runtime in RUNTIMES if is_installed(runtime)), "prepared"]
    if name in RUNTIMES and not is_installed(name):
        raise CamtoolError(
            f"engine {name!r} needs {', '.join(list_missing(name))}, not installed here; run pip install "
            f"'camtool[{name}]', or use 'prepared'."
        )
    return {"eager": [], "prepared": ["prepared"]}.get(name, [name, "prepared"])


@dataclass(eq=False)
class _Compiled:
    """A compiled model, or why there is none, and what it depends on."""

    model: PreparedModel | CompiledModel | None
    reason: str
    weights: WeightStates
    settings: ModuleSettings
    agreed: set[object] = field(default_factory=set)


class EngineRunner:
    """Runs a model by an engine, in place of :func:`camtool.hooks.observation.run_with_hooks`.

    Args:
        engine: The name of the engine.

    Attributes:
        engine: The name.
    """

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self._threads = torch.get_num_threads()  # now, as it is 1 within use_one_thread
        self._used: _Compiled | None = None

    def __call__(
        self,
        model: nn.Module,
        layers: Sequence[str],
        inputs: ModelInputs,
        *,
        grad: bool = True,
        entries: Mapping[str, EntriesPerImage] | None = None,
    ) -> Observation:
        """Run the model once; the arguments and the result are those of ``run_with_hooks``.

        Raises:
            NotCompilableError: The engine cannot run this model.
        """
        compiled = self._find(model, layers, inputs, has_entries=bool(entries))
        # A method may observe other images afterwards, e.g. a blank one.
        self._used = self._used or compiled
        made = compiled.model  # read once, as another thread may give it up
        if made is None:
            raise NotCompilableError(compiled.reason)
        if isinstance(made, PreparedModel):
            observation = made.run(layers, inputs, grad=grad)
        else:
            assert isinstance(inputs, Tensor)
            observation = made.run(inputs, grad=grad)
        # Torch itself computes in other threads than these runtimes, which would wait for the cores.
        limit_threads = use_one_thread if self.engine in RUNTIMES else nullcontext
        return replace(observation, weights=compiled.weights, limit_threads=limit_threads)

    def has_agreed(self, question: object) -> bool:
        """Return True if :meth:`note_agreement` was called with this question for the model that ran last."""
        return self._used is not None and question in self._used.agreed

    def note_agreement(self, question: object) -> None:
        """Note that the results for a question equal those of the model itself."""
        if self._used is not None:
            self._used.agreed.add(question)

    def give_up(self, reason: str) -> None:
        """Never use the compiled model that ran last again."""
        if self._used is not None and self._used.model is not None:
            self._used.model, self._used.reason = None, reason
            _LOG.warning("engine %r is not used: %s", self.engine, reason)

    def _find(self, model: nn.Module, layers: Sequence[str], inputs: ModelInputs, *, has_entries: bool) -> _Compiled:
        compiled = self._remember(model, layers, inputs, None, has_entries=has_entries)
        if isinstance(compiled.model, CompiledModel) and compiled.model.image_count not in (None, len(inputs)):
            return self._remember(model, layers, inputs, len(inputs), has_entries=has_entries)
        return compiled

    def _remember(
        self, model: nn.Module, layers: Sequence[str], inputs: ModelInputs, count: int | None, *, has_entries: bool
    ) -> _Compiled:
        """Return what is compiled for any number of images, or for a given one."""
        modules, tensor = read_tree(model).modules, nested_tensors.find_main_tensor(inputs)
        hooked = find_hooked_modules(modules)
        has_hooks = has_global_hooks() or any(
            list_foreign_hooks(module) or has_backward_hooks(module) for module in hooked
        )
        kind = None if tensor is None else (tensor.dtype, tensor.device, torch.is_autocast_enabled(tensor.device.type))
        shape = nested_tensors.describe_shapes(inputs), count, kind
        process = self._threads, os.getpid()
        question = "engine", self.engine, tuple(layers), shape, process, has_hooks, has_entries

        def compile_model() -> _Compiled:
            weights, settings = WeightStates(list_weights(model)), ModuleSettings(modules)
            try:
                if has_hooks:
                    raise NotCompilableError("the model has hooks, which may change at any time")
                if has_entries:
                    raise NotCompilableError("the model runs on several rows for each image, e.g. the frames of clips")
                with lock_compiler(), follow_step(f"Compiling the model for {self.engine}"):
                    return _Compiled(self._compile(model, layers, inputs, count), "", weights, settings)
            except Exception as error:  # noqa: BLE001  if compiling fails for any reason, the model itself runs
                raise_interrupt(error)
                is_final = isinstance(error, NotCompilableError)
                reason = str(error) if is_final else f"{type(error).__name__}: {get_first_line(error)}"
                _LOG.warning("engine %r is not used: %s", self.engine, reason)
                return _Compiled(None, reason, weights, settings)

        def is_valid(compiled: _Compiled) -> bool:
            return compiled.settings.equal_those_of(modules) and compiled.weights.equal_those_of(list_weights(model))

        return remember_for_model(model, question, compile_model, is_valid, most=_MOST_PLANS)

    def _compile(
        self, model: nn.Module, layers: Sequence[str], inputs: ModelInputs, count: int | None
    ) -> PreparedModel | CompiledModel:
        if self.engine == "prepared":
            return PreparedModel(model, inputs, layers)
        if not isinstance(inputs, Tensor):
            raise NotCompilableError("the model has other inputs beside the image")
        if self.engine == "torch.compile":
            return _compile_with_torch(model, inputs, layers)
        if inputs.device.type != "cpu" or inputs.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
            raise NotCompilableError("it runs on the CPU and in float32 alone")
        settings = describe_settings(read_tree(model).modules)
        key = compute_key(model, [tuple(layers), tuple(inputs.shape[1:]), count, settings])
        folder = make_once(key, partial(_write, model, inputs, layers))
        try:
            structure = _find_structure(model, inputs, read_plan(folder))
            return CompiledModel.open(self.engine, folder, structure, self._threads)
        except Exception:
            shutil.rmtree(folder, ignore_errors=True)  # the files may be damaged; the next process makes them again
            raise


def _write(model: nn.Module, inputs: Tensor, layers: Sequence[str], folder: Path) -> None:
    write_program(capture_program(copy_for_capture(model, inputs, layers), inputs, layers), folder)


def _compile_with_torch(model: nn.Module, inputs: Tensor, layers: Sequence[str]) -> CompiledModel:
    if torch.is_autocast_enabled(inputs.device.type):
        raise NotCompilableError("torch.compile runs without autocast alone")
    program = capture_program(copy_for_capture(model, inputs, layers), inputs, layers)
    graphs = {file: TorchGraph(graph) for file, graph in program.graphs.items()}
    compiled = CompiledModel(program.plan, graphs, _find_structure(model, inputs, program.plan))
    with hide_output():
        compiled.warm_up(inputs)
    return compiled


def _find_structure(model: nn.Module, inputs: Tensor, plan: Plan) -> Any:
    """Return the output of a model with empty tensors."""
    with torch.no_grad(), guard(model):
        output = run_model(model, inputs[:1])
    if len(nested_tensors.find_tensors(output)) != plan.output_count:
        raise NotCompilableError("the model's output has another structure for other images")
    return nested_tensors.map_tensors(output, lambda tensor: tensor.new_empty(0))
