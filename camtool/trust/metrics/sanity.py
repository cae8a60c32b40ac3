"""Sanity metrics: whether a map depends on what it explains. A good value proves nothing, a bad one is a defect.

They explain again, by a function ``explain(images, rows) -> maps``. Random maps pass all tests of dependence, so read
them beside repeatability.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from camtool.arguments.checks import check_count
from camtool.errors import Forgive, MetricError, RaiseAs
from camtool.hooks.state.cleanup import Cleanup
from camtool.hooks.state.guard import restore_generators, save_generators
from camtool.trust.metrics.correlation import correlate_pearson, correlate_spearman
from camtool.trust.metrics.metric_registry import metric
from camtool.trust.metrics.scores import Explain, check_maps, explain_again


@metric("cascading-randomization", higher_is_better=False, bounds=(0, 1), paper="arXiv 1810.03292")
def compute_cascading_randomization(
    model: nn.Module,
    explain: Explain,
    images: Tensor,
    maps: Tensor,
    *,
    layers: Sequence[str] | None = None,
    groups: int | None = 8,
    seed: int = 0,
) -> Tensor:
    """Measure how much the map stays the same while the model is randomized from its output. Lower is better, 0 to 1.

    The mean over the steps of ``|ρ|``, Spearman's correlation of the map with that of the model whose last 1, 2, ...
    groups of layers have random parameters. 1 means that the map does not depend on the parameters. Chance level:
    measured, near 0: random maps pass this test.

    Source: arXiv 1810.03292, which randomizes layer by layer.

    Args:
        model: The model that ``explain`` explains. Its parameters are replaced in place, and restored even after
            Ctrl-C. No other thread may use it meanwhile.
        explain: The method. It must not keep anything that it computed from the parameters.
        images: ``(N, C, H, W)``.
        maps: The method's maps for the images, ``(N, H, W)``.
        layers: Names of modules, in the order in which they are randomized. By default all that hold parameters, the
            last registered first.
        groups: The layers are split into at most this many consecutive groups, because each step explains all images.
            None takes each layer on its own.
        seed: The seed of the random parameters.

    Raises:
        MetricError: The model has no parameters or no such layer, or an argument is not as described.
    """
    return compare_randomized(
        model, explain, images, maps, layers=layers, groups=groups, is_cumulative=True, seed=seed
    ).abs().mean(1)  # fmt: skip


@metric("independent-randomization", higher_is_better=False, bounds=(0, 1), paper="arXiv 1810.03292")
def compute_independent_randomization(
    model: nn.Module,
    explain: Explain,
    images: Tensor,
    maps: Tensor,
    *,
    layers: Sequence[str] | None = None,
    groups: int | None = 8,
    seed: int = 0,
) -> Tensor:
    """Measure how much the map stays the same while one part of the model is randomized. Lower is better, 0 to 1.

    As :func:`compute_cascading_randomization`, with random parameters in one group of layers at a time. Chance level:
    measured, near 0.

    Source: arXiv 1810.03292.
    """
    return compare_randomized(
        model, explain, images, maps, layers=layers, groups=groups, is_cumulative=False, seed=seed
    ).abs().mean(1)  # fmt: skip


def compare_randomized(
    model: nn.Module,
    explain: Explain,
    images: Tensor,
    maps: Tensor,
    *,
    layers: Sequence[str] | None = None,
    groups: int | None = None,
    is_cumulative: bool = True,
    seed: int = 0,
) -> Tensor:
    """Return Spearman's correlation of the maps with those of the randomized model, for each step: ``(N, steps)``.

    The arguments are those of :func:`compute_cascading_randomization`; with ``is_cumulative`` the groups of earlier
    steps stay random.
    """
    check_maps(maps, images)
    check_count("groups", groups, optional=True, error=MetricError)
    if isinstance(layers, str) or (layers is not None and not len(layers)):
        raise MetricError(f"layers must be a list of names of modules, got {layers!r}.")
    names = list_parameter_modules(model) if layers is None else [*layers]
    count, correlations = min(groups or len(names), len(names)), []
    for step in range(count):
        start = 0 if is_cumulative else step * len(names) // count
        with randomize_parameters(model, names[start : (step + 1) * len(names) // count], seed=seed):
            correlations.append(correlate_spearman(maps, explain_again(explain, images).to(maps)))
    return torch.stack(correlations, 1)


@metric("class-sensitivity", higher_is_better=False, bounds=(-1, 1), chance=0, paper="arXiv 2004.02866")
def compute_class_sensitivity(maps: Tensor, other_maps: Tensor) -> Tensor:
    """Correlate the map with that of another class of the same image. Lower is better, from -1 to 1.

    Pearson's correlation. 1 means that the map does not depend on the class. The chance level is 0: random maps pass
    this test. 0 if a map is constant.

    Source: arXiv 2004.02866, with the class of the lowest score as the other one. For classes that are both in the
    image, a low value is expected only if they are at different places.

    Args:
        maps: ``(N, H, W)``.
        other_maps: The method's maps for another class, ``(N, H, W)``.
    """
    _check_pair(maps, other_maps, "other_maps")
    return correlate_pearson(maps, other_maps.to(maps))


@metric("repeatability", higher_is_better=True, bounds=(0, 1))
def compute_repeatability(explain: Explain, images: Tensor, maps: Tensor) -> Tensor:
    """Measure whether the method returns the same map again. Higher is better, from 0 to 1.

    ``1 - ‖a - b‖ / (‖a‖ + ‖b‖)`` of the map and of a second one for the same image; 1 only if they are equal in each
    bit. Chance level: measured.

    Args:
        explain: The method.
        images: ``(N, C, H, W)``.
        maps: The method's maps for the images, ``(N, H, W)``.
    """
    check_maps(maps, images)
    again = explain_again(explain, images).to(maps)
    change, norms = ((tensor.flatten(1)).norm(dim=1) for tensor in (maps - again, maps))
    total = norms + again.flatten(1).norm(dim=1)
    return torch.where(change > 0, 1 - change / total, 1)


@metric("random-agreement", higher_is_better=False, bounds=(0, 1))
def compute_random_agreement(maps: Tensor, random_maps: Tensor) -> Tensor:
    """Measure how much the map is like maps that know nothing of the score. Lower is better, from 0 to 1.

    The mean of ``|r|``, Pearson's correlation with each random map. For the maps of ``randomcam``, a random weighted
    sum of the same activations, 1 means that the map shows the activations and no weights. Chance level: measured; it
    depends on how smooth the maps are.

    Args:
        maps: ``(N, H, W)``.
        random_maps: Several random maps for each image, ``(S, N, H, W)``, e.g. with different seeds.
    """
    if not isinstance(random_maps, Tensor) or random_maps.ndim != 4 or len(random_maps) == 0:
        raise MetricError("random_maps must be a tensor (S, N, H, W), several random maps for each image.")
    for draw in random_maps:
        _check_pair(maps, draw, "each of random_maps")
    return torch.stack([correlate_pearson(maps, draw.to(maps)).abs() for draw in random_maps]).mean(0)


def _check_pair(maps: Tensor, others: Tensor, name: str) -> None:
    check_maps(maps)
    check_maps(others, name=name)
    if others.shape != maps.shape:
        raise MetricError(f"{name} must have the shape of maps, {tuple(maps.shape)}; got {tuple(others.shape)}.")


def list_parameter_modules(model: nn.Module) -> list[str]:
    """Return the names of the modules that hold parameters themselves, the last registered one first.

    Modules are registered in the order in which they run in nearly all models, so the first name is the output layer.

    Raises:
        MetricError: The model has no parameter.
    """
    names = [name for name, module in model.named_modules() if any(True for _ in module.parameters(recurse=False))]
    if not names:
        raise MetricError(f"model {type(model).__name__} has no parameters that can be randomized.")
    return names[::-1]


def randomize_parameters(model: nn.Module, names: Sequence[str], *, seed: int) -> Cleanup:
    """Run the block with random parameters in some modules, and restore them afterwards, also after Ctrl-C.

    A module with a method ``reset_parameters`` gets the values with which a training would start. Otherwise, e.g. for
    position embeddings, the values of each parameter are shuffled. Buffers stay: with reset statistics of the batch
    norms the activations of deep networks would vanish, and all maps would be constant.

    The values are drawn on the CPU from the seed and the module's name alone, so they do not depend on the device or on
    ``names``. The user's tensors are not written to: their parameters point to other memory meanwhile. So no other
    thread may use the model.

    Args:
        model: Any module.
        names: Names of its modules.
        seed: The seed.

    Raises:
        MetricError: The model has no such module.
    """

    def replace(cleanup: Cleanup) -> None:
        cleanup.push(partial(restore_generators, save_generators()))
        for name in names:
            module = _get_module(model, name)
            for parameter, value in _draw_parameters(module, seed + _hash_name(name)):
                original = parameter.data
                cleanup.push(partial(setattr, parameter, "data", original))
                parameter.data = value.to(original)

    return Cleanup(replace)


def _get_module(model: nn.Module, name: str) -> nn.Module:
    text = f"layers: the model has no module {name!r}; see model.named_modules()."
    with RaiseAs(lambda _: MetricError(text), AttributeError):
        return model.get_submodule(name)


def _hash_name(name: str) -> int:
    """Return a number for a name that is the same in every process, unlike hash()."""
    return int.from_bytes(name.encode(), "big") % (2**31 - 1)


def _draw_parameters(module: nn.Module, seed: int) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Yield each of the module's own parameters with a random value, on the CPU."""
    # Not torch.manual_seed, which would seed CUDA once it is initialized.
    generator = torch.default_generator.manual_seed(seed)
    fresh = _reset_copy(module)
    for name, parameter in module.named_parameters(recurse=False):
        if fresh is not None:
            yield parameter, fresh[name]
        else:
            values = parameter.detach().cpu().flatten()
            order = torch.randperm(len(values), generator=generator, device="cpu")
            yield parameter, values[order].reshape(parameter.shape)


def _reset_copy(module: nn.Module) -> dict[str, Tensor] | None:
    """Return the parameters of a copy of a module after ``reset_parameters()``; None if that is not possible."""
    if not callable(getattr(module, "reset_parameters", None)):
        return None
    with Forgive(RuntimeError, TypeError, ValueError, AttributeError, copy.Error):
        copied: Any = copy.deepcopy(module).cpu()
        copied.reset_parameters()
        return {name: parameter.detach() for name, parameter in copied.named_parameters(recurse=False)}
    return None
