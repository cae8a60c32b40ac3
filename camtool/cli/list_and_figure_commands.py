"""Commands ``camtool methods`` and ``layers``, ``features`` and ``kernels``: what can be chosen, what a model holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from camtool.arguments.message_parts import format_count
from camtool.cli import terminal
from camtool.cli.options import model_options, photo_options
from camtool.cli.options.dataclasses_to_typer import takes_options
from camtool.cli.options.result_options import JsonOption, Out, PrintOptions, parse_targets, split_names
from camtool.errors import CamtoolError, ForwardError
from camtool.runs.file_names import make_distinct

if TYPE_CHECKING:
    from torch import nn

    from camtool.explaining.layer_table import Candidates


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
    first = 0 if everything else candidates.count_shallow()
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
    *, name: Annotated[str | None, Argument(metavar="[NAME]", show_default=False)] = None, printed: JsonOption
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


# ---------------------------------------------------------------------------------------------------------- figures

_LAYERS_HELP = (
    "Layers: names, patterns such as 'layer*.conv1', or 'conv' for all convolutions. Repeat it, or use commas, for "
    "several."
)
LAYERS = Option("--layer", "--layers", metavar="NAME", help=_LAYERS_HELP)


@dataclass(frozen=True)
class FigureOptions:
    """Options of the figures that a command draws.

    Attributes:
        scale: Color scale: shared by all panels, or each its own.
        width: Width: 'single' or 'double' column, or a number of inches.
        format: File format of the figures.
    """

    scale: Literal["each", "shared"] = "shared"
    width: Annotated[str, Option(metavar="WIDTH")] = "double"
    out: Out = Path("figures")
    format: Literal["png", "pdf", "svg"] = "png"

    def get_style(self) -> dict[str, Any]:
        """Return the scale and the width, as functions of :mod:`camtool.figures` take them."""
        return {"scale": self.scale, "width": parse_width(self.width)}


def parse_width(text: str) -> float | str:
    """Return the inches of a number, or else the name of a width."""
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else text


@takes_options
def draw_features(
    *,
    image: Annotated[str, Argument(metavar="PHOTO")],
    loading: model_options.ModelOptions,
    naming: model_options.LabelOptions,
    preparing: model_options.PreprocessingOptions,
    layer: Annotated[list[str], LAYERS] = ["conv"],  # noqa: B006
    maps: Annotated[int, Option(metavar="N", min=1)] = 16,
    order: Literal["first", "strongest", "class"] = "first",
    target: Annotated[str | None, Option(metavar="CLASS", show_default="the most probable class")] = None,
    one_page: Annotated[bool, Option("--one-page")] = False,
    drawing: FigureOptions,
    printed: PrintOptions,
) -> None:
    """Draw the feature maps of a photo: one figure for each layer, or one for all.

    Args:
        image: A photo.
        maps: Most maps drawn of a layer.
        order: Which maps: the first, the strongest, or those that matter for the class.
        target: Class index or name.
        one_page: Draw all layers in one figure.
    """
    from camtool import figures
    from camtool.figures.saving import load_canvas

    load_canvas()  # raises if matplotlib is missing, before the model is loaded
    photo_options.check_no_model_names([image])
    loaded = loading.load(naming.labels, preparing.parse(), is_quiet=printed.hides_progress)
    names, out, suffix = split_names(layer), drawing.out, drawing.format
    style = drawing.get_style() | {"target_class": None if target is None else parse_targets([target])[0]}
    with terminal.show_activity("Drawing", is_quiet=printed.hides_progress):
        if one_page:
            figure = figures.feature_maps(loaded, image, names, maps, order, **style)
            drawn = [save_figure(figure, out, f"features.{suffix}")]
        else:
            pages = figures.feature_pages(loaded, image, names, maps, order, **style)
            drawn = [
                save_figure(figure, out, f"{number:03}-{build_file_name(name)}.{suffix}")
                for number, (name, figure) in enumerate(pages, 1)
            ]
    print_drawn(drawn, out, printed)


def save_figure(figure: Any, folder: Path, name: str) -> Path:
    """Write a figure to a file in a folder, and return its path; which must be absent, or camtool's."""
    from camtool import figures
    from camtool.rendering.written_files import replace_files

    with replace_files(folder, [name]):
        return figures.save(figure, folder / name)


def build_file_name(layer: str) -> str:
    """Return the name of a layer with an underscore for each character that some file system refuses."""
    return re.sub(r"[^\w.-]", "_", layer)


def print_drawn(files: list[Path], folder: Path, printed: PrintOptions) -> None:
    """Print how many figures were drawn, and where they are."""
    if printed.as_json:
        terminal.print_json({"files": [*map(str, files)]})
    elif not printed.quiet:
        where = f": {files[0]}" if len(files) == 1 else f" in {folder}"
        figures = format_count(len(files), "figure")
        terminal.print_line(f"[bold green]{figures} drawn[/][bold]{terminal.escape(where)}[/]")


@takes_options
def draw_kernels(
    *,
    loading: model_options.ModelOptions,
    layer: Annotated[list[str] | None, LAYERS] = None,
    filters: Annotated[int | None, Option(metavar="N", min=1, show_default="64; 16 of several input channels")] = None,
    inputs: Annotated[int, Option(metavar="N", min=1)] = 16,
    drawing: FigureOptions,
    printed: PrintOptions,
) -> None:
    """Draw the filters of a model's convolutions, by default of the first one: a figure for each layer.

    Args:
        filters: Most filters drawn.
        inputs: Most input channels drawn of a filter.
    """
    from camtool import figures
    from camtool.figures.saving import load_canvas

    load_canvas()  # raises if matplotlib is missing, before the model is loaded
    loaded = loading.load(is_quiet=printed.hides_progress)
    style, out, suffix = drawing.get_style() | {"filters": filters, "inputs": inputs}, drawing.out, drawing.format
    if layer:
        drawn, names = list[Path](), list[str]()
        for name, figure in figures.kernel_pages(loaded, split_names(layer), **style):
            names.append(build_file_name(name))
            drawn.append(save_figure(figure, out, f"kernels-{make_distinct(names)[-1]}.{suffix}"))
    else:
        drawn = [save_figure(figures.kernels(loaded, **style), out, f"kernels.{suffix}")]
    print_drawn(drawn, out, printed)
