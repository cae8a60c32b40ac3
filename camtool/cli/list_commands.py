"""Commands ``camtool layers`` and ``camtool methods``: list what can be chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from camtool.cli import terminal
from camtool.cli.options import model_options
from camtool.cli.options.option_classes import takes_options
from camtool.cli.options.output_options import JsonOption
from camtool.errors import CamtoolError, ForwardError

if TYPE_CHECKING:
    from torch import nn

    from camtool.explaining.layer_table import Candidates

_MAX_LAYERS = 16
"""Number of layers listed without ``--all``: with the headings, they fit on a terminal of 24 lines."""


@takes_options
def list_layers(
    *,
    model: Annotated[str, Argument(metavar="MODEL", help=model_options.MODEL_HELP)],
    weights: Annotated[
        str | None, Option(metavar="FILE", help=model_options.WEIGHTS_HELP, show_default="random weights")
    ] = None,
    size: Annotated[str | None, Option(metavar="SIZE", show_default="what the model is made for")] = None,
    everything: Annotated[bool, Option("--all")] = False,
    printed: JsonOption,
) -> None:
    """List the layers that a map can be computed at, and mark the default one.

    Args:
        size: Size of the image to try, e.g. 224 or 224x320.
        everything: List shallow layers too.
    """
    from camtool.explaining.layer_table import format_candidates
    from camtool.models import build_untrained, find_input_size, load

    model_options.announce_user_code(model)
    asked = None if size is None else model_options.parse_image_size(size)
    # Which layers there are does not depend on the weights, so none are downloaded.
    module = load(model, weights).model if weights else build_untrained(model)
    height, width = asked or find_input_size(module)
    candidates = _find_candidates(model, module, height, width)
    first = 0 if everything else _count_shallow(candidates)
    if printed.as_json:
        names = ("name", "kind", "shape", "stride", "chosen", "verdict")
        terminal.print_json([{name: getattr(candidate, name) for name in names} for candidate in candidates[first:]])
        return
    columns = terminal.get_screen_width()
    if columns is not None:
        terminal.out.print(f"Layers of {terminal.escape(model)} for an image of {height} x {width}, shallow to deep\n")
    terminal.print_styled(format_candidates(candidates[first:], columns))
    if first:
        terminal.err.print(f"[dim]{first} shallower layers are listed with --all.[/]")


def _count_shallow(candidates: Candidates) -> int:
    """Return how many layers are left out of a short list."""
    chosen = next((index for index, candidate in enumerate(candidates) if candidate.chosen), len(candidates))
    # The deepest layers are the useful ones, but the chosen one must be among those shown.
    return max(0, min(chosen, len(candidates) - _MAX_LAYERS))


def _find_candidates(name: str, module: nn.Module, height: int, width: int) -> Candidates:
    """Return the layers that an image of this size passes.

    Raises:
        CamtoolError: The model cannot run on it.
    """
    import torch

    from camtool.explaining.layer_table import candidate_layers
    from camtool.inputs.accepted_inputs import choose_example_shape

    shape = choose_example_shape(module, height, width)
    noise = torch.rand(1, *shape, generator=torch.Generator().manual_seed(0), device="cpu")
    try:
        return candidate_layers(module, noise)
    except ForwardError as error:
        reason = str(error.__cause__).split("\n", 1)[0]
        raise CamtoolError(f"{name} cannot run on one image of {height} x {width} (--size): {reason}") from error


@takes_options
def list_methods(
    *,
    name: Annotated[str | None, Argument(metavar="[NAME]", show_default=False)] = None,
    printed: JsonOption,
) -> None:
    """List the methods by family, or describe one of them in full.

    Args:
        name: Method or wrapper to describe in full.
    """
    # Not at the top, so that the help is shown without loading torch.
    from camtool import methods
    from camtool.methods import method_tables

    if printed.as_json:
        chosen = methods.METHODS.values() if name is None else [methods.find_method(name)]
        names = ("name", "summary", "cost", "paper")
        terminal.print_json(
            [{field: getattr(method, field) for field in names} | {"needs": sorted(method.needs)} for method in chosen]
        )
        return
    width = terminal.get_screen_width()
    lines = method_tables.format_method_list(width) if name is None else method_tables.format_method(name, width)
    terminal.print_styled(lines)
