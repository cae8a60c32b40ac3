"""The registry of metrics, the decorator that fills it, and random maps, the control of every metric.

A metric is a function that returns one number per image, ``(N,)``. What it needs are its parameters without a default,
by the names of :class:`MetricInputs`; its options are its keyword arguments with a default. A new metric is one
decorated function::

    @metric("mine", higher_is_better=True, bounds=(0, 1), chance=0.5, score="probability", paper="arXiv 2401.00001")
    def compute_mine(score: Score, images: Tensor, maps: Tensor, *, steps: int = 10) -> Tensor:
        ...

A leaderboard is a loop over :data:`METRICS`::

    inputs = MetricInputs(images, maps, probability=..., logit=..., explain=...)
    for metric in METRICS.values():
        if not metric.list_missing(inputs):
            values, chance = metric.compute(inputs), metric.compute_chance(inputs)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from camtool.arguments.checks import check_options_of
from camtool.arguments.message_parts import suggest_names
from camtool.errors import MetricError
from camtool.maps import resize_to_grid, scale_min_max, upcast
from camtool.trust.metrics.scores import Explain, ExplainCells, Score


def draw_random_maps(images: Tensor, *, seed: int, grid: int | None = 7) -> Tensor:
    """Return a random map in [0, 1] for each image, on the images' device.

    Args:
        images: ``(N, C, H, W)``.
        seed: The seed of the maps. The maps are the same on every device.
        grid: Values are drawn on a grid of this many cells per side, and resized: 7 cells are as smooth as the maps of
            common networks. None draws each pixel on its own.

    Returns:
        ``(N, H, W)``.
    """
    size = tuple(images.shape[2:])
    cells = size if grid is None else (grid, grid)
    # Drawn on the CPU, as generators differ between devices.
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand((len(images), *cells), generator=generator, device="cpu")
    return scale_min_max(resize_to_grid(values, size)).to(upcast(images))


def rank_pixels(maps: Tensor, *, seed: int = 0) -> Tensor:
    """Return the rank of each pixel of maps ``(N, H, W)``: 0 for the hottest. Equal pixels are in random order.

    In the order of memory, the rows at the top of a constant map would come first, which is a preference for the upper
    part of the image. The random order is the same for all maps.

    Returns:
        ``(N, H * W)``.
    """
    values = maps.flatten(1)
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(values.shape[1], generator=generator, device="cpu").to(maps.device)
    order = shuffled[values[:, shuffled].argsort(stable=True, dim=1, descending=True)]
    return order.argsort(1)


# ``function(*needs, **options) -> (N,)``: one number per image.
MetricFunction: TypeAlias = Callable[..., Tensor]

# The distance between the seeds of two draws of random maps, larger than the number of calls of one metric.
_CHANCE_STEP = 10_000


@dataclass(frozen=True)
class MetricInputs:
    """Everything that metrics may ask for. What is None is not available.

    Attributes:
        images: The inputs of the model, ``(N, C, H, W)``.
        maps: The heatmaps of one method for them, ``(N, H, W)``.
        probability: The score as a probability: ``probability(images, rows)``, see :data:`~.scores.Score`.
        logit: The score as a logit.
        explain: The method itself: ``explain(images, rows)`` returns maps ``(M, H, W)``.
        explain_cells: The method on a disconnected model, see :func:`~.mosaics.compute_difull`.
        model: The model that ``explain`` explains. Its parameters are randomized in place, and restored.
        classes: The class that each image shows, ``(N,)``.
        masks: The object in each image, ``(N, H, W)``, boolean.
        boxes: For each image the boxes of its objects ``(B, 4)``: ``x0, y0, x1, y1`` in pixels, half-open.
        other_maps: The method's maps for another class of the same images, ``(N, H, W)``.
        random_maps: Maps for the same images that know nothing of the score, ``(S, N, H, W)``, e.g. of ``randomcam``.
    """

    images: Tensor
    maps: Tensor
    probability: Score | None = None
    logit: Score | None = None
    explain: Explain | None = None
    explain_cells: ExplainCells | None = None
    model: nn.Module | None = None
    classes: Tensor | None = None
    masks: Tensor | None = None
    boxes: list[Tensor] | None = None
    other_maps: Tensor | None = None
    random_maps: Tensor | None = None


@dataclass(frozen=True)
class Metric:
    """A metric with its metadata.

    Attributes:
        name: The name: ``"deletion"``.
        function: The function from inputs to one number per image.
        higher_is_better: The direction.
        bounds: The lowest and the highest possible value, for the kind of ``score``; infinite if there is no bound.
        chance: The mean value of random maps: a number, or a function of the same arguments as the metric that returns
            it per image. None if it depends on the model and the images; :meth:`compute_chance` then measures it.
        score: The kind of score that the source uses. Empty if the metric needs no score.
        paper: The source: an arXiv number or a DOI. Empty if there is none.
    """

    name: str
    function: MetricFunction
    higher_is_better: bool
    bounds: tuple[float, float]
    chance: float | MetricFunction | None = None
    score: Literal["probability", "logit", ""] = ""
    paper: str = ""

    @property
    def sign(self) -> int:
        """1 if higher is better, otherwise -1: a value times it is the higher, the better."""
        return 1 if self.higher_is_better else -1

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").split("\n", 1)[0]

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the fields of :class:`MetricInputs` that the metric needs."""
        return tuple(self.score if name == "score" else name for name in _list_required(self.function))

    @property
    def options(self) -> dict[str, Any]:
        """The names and defaults of the options."""
        parameters = inspect.signature(self.function).parameters.values()
        return {option.name: option.default for option in parameters if option.default is not option.empty}

    def check_options(self, options: Iterable[str]) -> None:
        """Raise an error unless the metric has all of some options."""
        for name in options:
            if name not in self.options:
                names = ", ".join(self.options) or "none"
                raise MetricError(
                    f"metric {self.name!r} has no option {name!r}; it has {names}.{suggest_names(name, self.options)}"
                )

    def list_missing(self, inputs: MetricInputs) -> list[str]:
        """Return the names of what the metric needs and the inputs lack."""
        return [name for name in self.needs if getattr(inputs, name) is None]

    def compute(self, inputs: MetricInputs, **options: Any) -> Tensor:
        """Return the metric's value for each image, ``(N,)``.

        Raises:
            MetricError: Something that the metric needs is missing, or an option is unknown.
        """
        return self.function(**self._select(inputs, options))

    def compute_chance(self, inputs: MetricInputs, *, seed: int = 0, draws: int = 3, **options: Any) -> Tensor:
        """Return the chance level for each image, ``(N,)``: the value that random maps have on average.

        Where it is not known beforehand it is measured: the metric is computed for random maps, in place of both
        ``maps`` and what ``explain`` returns. This costs ``draws`` times what the metric costs.

        Args:
            inputs: The inputs of the metric.
            seed: The seed of the random maps.
            draws: The number of random maps per image.
            **options: The options of the metric.
        """
        arguments = self._select(inputs, options)
        if self.chance is None:
            drawn = [_replace_maps(inputs, seed + draw * _CHANCE_STEP) for draw in range(draws)]
            return torch.stack([self.function(**self._select(trial, options)) for trial in drawn]).mean(0)
        if callable(self.chance):
            return self.chance(**arguments)
        return inputs.maps.new_full((len(inputs.maps),), self.chance)

    def _select(self, inputs: MetricInputs, options: dict[str, Any]) -> dict[str, Any]:
        missing = self.list_missing(inputs)
        if missing:
            raise MetricError(f"metric {self.name!r} needs {', '.join(missing)} in its MetricInputs.")
        self.check_options(options)
        required = zip(_list_required(self.function), self.needs, strict=True)
        return {name: getattr(inputs, source) for name, source in required} | options


# Name → metric, in the order of registration. Import :mod:`camtool.trust.metrics` to fill it.
METRICS: dict[str, Metric] = {}


def metric(
    name: str,
    *,
    higher_is_better: bool,
    bounds: tuple[float, float],
    chance: float | MetricFunction | None = None,
    score: Literal["probability", "logit", ""] = "",
    paper: str = "",
) -> Callable[[MetricFunction], MetricFunction]:
    """Register a function as a metric. The arguments are those of :class:`Metric`.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        MetricError: The name is taken, or the function needs something that :class:`MetricInputs` does not have.
    """

    def register(function: MetricFunction) -> MetricFunction:
        if name in METRICS:
            raise MetricError(f"metric {name!r} is registered already, by {METRICS[name].function.__module__}.")
        new = Metric(name, check_options_of(function, MetricError), higher_is_better, bounds, chance, score, paper)
        unknown = {*new.needs} - {field.name for field in fields(MetricInputs)}
        if unknown:
            raise MetricError(
                f"metric {name!r} needs {', '.join(sorted(map(repr, unknown)))}, which MetricInputs does not have; "
                "a parameter named score needs score='probability' or score='logit'."
            )
        METRICS[name] = new
        return new.function

    return register


def _list_required(function: MetricFunction) -> list[str]:
    """Return the names of the parameters that have no default."""
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.default is parameter.empty]


def _replace_maps(inputs: MetricInputs, seed: int) -> MetricInputs:
    """Return inputs whose maps are random, also those that ``explain`` returns, which are new in each call."""
    calls = 0

    def draw(images: Tensor, *_: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return draw_random_maps(images, seed=seed + calls)

    maps = draw_random_maps(inputs.images, seed=seed)
    return replace(inputs, maps=maps, explain=inputs.explain and draw, explain_cells=inputs.explain_cells and draw)
