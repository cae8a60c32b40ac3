"""The user's own models, by the name of the function that makes them; and the bundled ones, which are made so too."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, ClassVar

from torch import nn

from camtool.arguments.explain_arguments import is_function
from camtool.errors import ModelError
from camtool.models.function_models import FunctionModel
from camtool.models.loaded import Loaded
from camtool.models.sources.source import Source
from camtool.models.user_code import find_user_function
from camtool.models.weights import load_state, read_state


class FactorySource(Source):
    """Models that a function returns: ``"package.module:factory"``.

    The function takes no arguments and returns a model, or a function from images to scores; a pair of that and its
    transform, or a :class:`Loaded`. A module that is not installed is searched for in the working directory.
    """

    usage = "your own as 'package.module:factory'"
    has_own_weights = True

    def load(self, name: str, weights: str | PathLike[str] | None) -> Loaded:
        """Return what the function returns, with the weights of a file if there is one.

        Raises:
            ModelError: There is no such function, it returns something else, or the weights do not fit.
        """
        with find_user_function("model", name) as factory:
            loaded = _to_loaded(factory(), name)
        if weights is not None:
            load_state(loaded.model, read_state(weights), weights)
        return loaded

    def runs_code(self, name: str) -> bool:
        """Return True: the function is the user's."""
        return True

    def build_untrained(self, name: str) -> nn.Module:
        """Return the model that the function returns, with its own weights."""
        return self.load(name, None).model


class BundledSource(FactorySource):
    """Models that camtool contains: ``"demo"``, and ``"demo-cheat"``, which looks at a logo instead of the object."""

    usage = "'demo'"

    _FACTORIES: ClassVar = {
        "demo": "camtool.demo.camnet:load_honest_model",
        "demo-cheat": "camtool.demo.camnet:load_cheating_model",
    }

    def list_names(self) -> Sequence[str]:
        """List the names of all models."""
        return [*self._FACTORIES]

    def runs_code(self, name: str) -> bool:
        """Return False: the functions are camtool's."""
        return False

    def is_offline(self, name: str, weights: str | None) -> bool:
        """Return True: camtool contains the weights."""
        return True

    def load(self, name: str, weights: str | PathLike[str] | None) -> Loaded:
        """Load a model by name."""
        return super().load(self._FACTORIES[name], weights)


def _to_loaded(made: Any, name: str) -> Loaded:
    if isinstance(made, Loaded):
        return made
    model, transform = made if isinstance(made, tuple) and len(made) == 2 and callable(made[1]) else (made, None)
    # A pair the other way round: of the two, what has weights is the model.
    is_swapped = isinstance(transform, nn.Module) and next(transform.parameters(), None) is not None
    if isinstance(model, nn.Module) or (is_function(model) and not is_swapped):
        return Loaded(model if isinstance(model, nn.Module) else FunctionModel(model), transform)
    raise ModelError(
        f"model {name!r}: the factory returned {type(made).__name__}; it must return a model, a pair "
        "(model, transform), or a camtool.Loaded(model, transform, labels). The model may be a function from images to "
        "scores."
    )
