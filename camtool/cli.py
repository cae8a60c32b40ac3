"""The command line: arguments, messages and exit codes. It is the only room that prints.

Exit codes: 0 all fine, 1 some photos could not be explained, 2 the request cannot be served, 130 interrupted (Ctrl-C),
143 terminated (SIGTERM).
"""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict
from enum import Enum
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich import markup
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from camtool.errors import CamtoolError, ForwardError, format_count, format_percent, near
from camtool.escapes import show_hidden

if TYPE_CHECKING:
    from camtool.explanation import Explainer
    from camtool.folder import Failure, Output, Plan, Success
    from camtool.models import Loaded

__all__ = ["app", "main"]


class _RunByDefault(TyperGroup):
    """``camtool PHOTOS`` is short for ``camtool run PHOTOS``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put ``run`` in front of what names no command."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h", "--version"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunByDefault,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
_out = Console(highlight=False, emoji=False)
_err = Console(stderr=True, highlight=False, emoji=False)


class Device(str, Enum):
    """Where the model runs."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


class Format(str, Enum):
    """How pictures are written."""

    png = "png"
    jpg = "jpg"
    webp = "webp"


class Paper(str, Enum):
    """How figures are written."""

    png = "png"
    pdf = "pdf"
    svg = "svg"


class Order(str, Enum):
    """Which channels are drawn."""

    first = "first"
    strongest = "strongest"
    of_class = "class"


class Scale(str, Enum):
    """Whether what stands together is coloured each on its own scale, or on one."""

    each = "each"
    shared = "shared"


def main() -> None:
    """The installed command: runs :data:`app` and turns what camtool raises into a sentence and an exit code."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a photo's name may hold bytes that are no text
    try:
        app()
    except CamtoolError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror or error}")


def escape(text: str) -> str:
    """Return text as rich's markup that shows it as it is: names of files, labels and texts may come from anywhere."""
    return markup.escape(show_hidden(text))


def _fail(message: str) -> NoReturn:
    lines = "\n  ".join(escape(line) for line in message.split("\n"))  # a name must not begin a line of its own
    _err.print(f"[bold red]Error:[/] {lines}", soft_wrap=not _err.is_terminal)
    raise SystemExit(2)


def _version(wanted: bool) -> None:
    if wanted:
        from camtool import __version__

        _out.print(f"camtool {__version__}")
        raise typer.Exit


@app.callback()
def _camtool(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """See, and check, what an image model looked at.

    [bold]camtool PHOTOS[/] is short for [bold]camtool run PHOTOS[/]; see [bold]camtool run --help[/] for its options.
    """


# --------------------------------------------------------------------------------------------------------- run

_NAMES = "A torchvision name, timm:NAME, hf:NAME or hf:FOLDER, open_clip:NAME/TAG, or package.module:factory."
_MODEL = "Options for the model"
_MAP = "Options for the map"
_OUTPUT = "Options for the output"

Weights = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A .safetensors, .pt or .pth file. By default fetched.", rich_help_panel=_MODEL),
]


@app.command()
def run(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Photos, folders, patterns like 'a/**/*.jpg'.")],
    model: Annotated[str, typer.Option(help=_NAMES, rich_help_panel=_MODEL)] = "resnet50",
    weights: Weights = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Class names, a line each, or a JSON list.", rich_help_panel=_MODEL, exists=True, dir_okay=False
        ),
    ] = None,
    device: Annotated[Device, typer.Option(help="Where the model runs.", rich_help_panel=_MODEL)] = Device.auto,
    batch_size: Annotated[int, typer.Option(min=1, help="Photos at once.", rich_help_panel=_MODEL)] = 8,
    method: Annotated[
        list[str],
        typer.Option(help="See camtool methods. Several by commas or by repeating it.", rich_help_panel=_MAP),
    ] = ["gradcam"],  # noqa: B006
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="top1, top3, ..., a class' index or its name; for CLIP and its like a text. Repeat it for several.",
            rich_help_panel=_MAP,
        ),
    ] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(
            help="See camtool layers MODEL; by default the best. Repeat it for several.", rich_help_panel=_MAP
        ),
    ] = None,
    merge: Annotated[
        str, typer.Option(help="How the maps of several layers become one: mean, max, ...", rich_help_panel=_MAP)
    ] = "mean",
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="See camtool methods NAME, e.g. samples=50; repeat it.", rich_help_panel=_MAP
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for the results.", rich_help_panel=_OUTPUT)] = Path("out"),
    save: Annotated[
        str, typer.Option(help="Of overlay, heatmap, mask, raw: any, by commas.", rich_help_panel=_OUTPUT)
    ] = "overlay",
    format: Annotated[Format, typer.Option(help="How pictures are written.", rich_help_panel=_OUTPUT)] = Format.png,  # noqa: A002
    alpha: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="How much the colors cover; by default 0.7.", rich_help_panel=_OUTPUT),
    ] = None,
    colormap: Annotated[
        str, typer.Option(help="heat, turbo, viridis, inferno, gray, ...", rich_help_panel=_OUTPUT)
    ] = "heat",
    enlarge: Annotated[
        bool,
        typer.Option("--enlarge/--no-enlarge", help="Enlarge overlays of small photos.", rich_help_panel=_OUTPUT),
    ] = True,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Read subfolders too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say something about every photo.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Sum the run up as JSON on standard output.")] = False,
) -> None:
    """Explain photos: an overlay of each, and a line of explanations.jsonl."""
    from camtool import folder, overlay

    kinds = _checked_kinds(save, folder.KINDS)
    overlay.palette(colormap)  # an unknown name is told before anything is loaded
    _check_no_models(paths)
    planned = folder.plan(paths, recursive=recursive, out=out)
    settings = {"layer": layer, "merge": merge, "batch_size": batch_size, **_options(option)}
    explainer = _explainer(model, weights, labels, device.value, method, settings, quiet=quiet or as_json)
    output = folder.Output(out, kinds, format.value, alpha, colormap, enlarge)
    report = _Report(planned, output, quiet=quiet, verbose=verbose and not as_json, as_json=as_json)
    raise typer.Exit(report.follow(explainer, _wants(target), batch_size))


def _explainer(
    model: str,
    weights: str | None,
    labels: Path | None,
    device: str,
    methods: list[str],
    settings: dict[str, Any],
    *,
    quiet: bool,
) -> Explainer:
    from camtool import methods as known
    from camtool.explanation import Explainer
    from camtool.maps import merge_function

    asked = [name.strip() for each in methods for name in each.split(",") if name.strip()]
    if not asked:
        raise CamtoolError(f"--method names none; known are {', '.join(known.METHODS)}.")
    # An unknown name is told before anything is downloaded.
    found = [known.find(name) for name in asked]
    names = list(dict.fromkeys(method.name for method in found))
    known.check_options(found, settings.keys() - {*_SETTINGS})
    merge_function(settings["merge"])
    loaded = _loaded(model, weights, labels, device, quiet=quiet)
    return Explainer(loaded, names, **settings)


def _check_no_models(paths: list[str]) -> None:
    """Check that no path is missing because it is the name of a model."""
    from camtool import images
    from camtool.models import is_model_name

    for path in paths:
        if not Path(path).exists() and Path(path).suffix.lower() not in images.SUFFIXES and is_model_name(path):
            raise CamtoolError(f"path {path!r} is the name of a model, not a photo; give it as --model {path}.")


def _loaded(model: str, weights: str | None, labels: Path | None, device: str, *, quiet: bool = False) -> Loaded:
    from camtool.models import load

    where = _device(device)
    waiting = redirect_stderr(StringIO()) if quiet else _err.status(Text(f"Loading {show_hidden(model)} ..."))
    # Standard output is for results; torch tells of its downloads there, older ones on standard error.
    with waiting, redirect_stdout(sys.stderr):
        return load(model, weights, labels=_read_labels(labels), device=where)


_SETTINGS = ("layer", "merge", "batch_size")
"""What reaches the explainer beside the methods' options, and is not one of them."""


def _options(given: list[str] | None) -> dict[str, Any]:
    """The methods' options, by name; a value that is JSON, such as 50, 0.5, true or [1, 2], is read as what it says."""
    options = {}
    for each in given or []:
        name, equals, text = each.partition("=")
        if not equals or not name.isidentifier():
            raise CamtoolError(f"--option {each!r} is not of the form NAME=VALUE, samples=50 say.")
        if name in _SETTINGS:
            raise CamtoolError(f"--option {each!r} is no option of a method; use --{name.replace('_', '-')}.")
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = text  # a word
    return options


def _device(asked: str) -> str:
    import torch

    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if asked == "auto":
        return next(name for name, there in available.items() if there)
    if not available[asked]:
        there = ", ".join(name for name in available if available[name])
        raise CamtoolError(f"--device {asked}: there is none on this machine; there is {there}.")
    return asked


def _checked_kinds(save: str, known: tuple[str, ...]) -> list[str]:
    kinds = [kind.strip() for kind in save.split(",") if kind.strip()]
    for kind in kinds:
        if kind not in known:
            raise CamtoolError(f"--save {kind!r} is unknown; known are {', '.join(known)}.{near(kind, known)}")
    return kinds


def _wants(asked: list[str] | None) -> list[Any]:
    from camtool.targets import Top

    def want(text: str) -> Any:
        top = re.fullmatch(r"top(\d+)", text)
        if top and int(top[1]) > 0:
            return Top(int(top[1]))
        return int(text) if text.isdecimal() else text

    return [want(text) for text in asked or ["top1"]]


def _read_labels(path: Path | None) -> list[str] | None:
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8-sig")
        labels = json.loads(text) if path.suffix == ".json" else text.splitlines()
    except ValueError as error:  # no UTF-8, or no JSON
        raise CamtoolError(f"--labels {path} cannot be read: {error}.") from error
    if not isinstance(labels, list):
        raise CamtoolError(f"--labels {path} holds a JSON {type(labels).__name__}; a list of names is needed.")
    return [str(label) for label in labels]


_MOST_SKIPPED = 5
"""As many are listed by name."""


class _Terminated(KeyboardInterrupt):
    """SIGTERM came: the run stops as it does at Ctrl-C."""


@contextmanager
def _stopping_at_sigterm() -> Iterator[None]:
    """Raise :class:`_Terminated` at SIGTERM during the block, unless it is ignored; other threads cannot handle it."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:
        yield
        return

    def stop(number: int, frame: object) -> NoReturn:
        raise _Terminated

    earlier = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)


class _Report:
    """What a person is told of a run."""

    def __init__(self, planned: Plan, output: Output, *, quiet: bool, verbose: bool, as_json: bool) -> None:
        self._jobs, self._skipped, self._output = planned.jobs, planned.skipped, output
        self._quiet, self._verbose, self._as_json = quiet, verbose, as_json
        self._done: list[Success] = []
        self._failed: list[Failure] = []

    def follow(self, explainer: Explainer, wants: list[Any], batch_size: int) -> int:
        """Run, show how far it is, sum up; returns the exit code."""
        from camtool import folder, streaming

        started, stopped = time.perf_counter(), 0
        outcomes = folder.run(explainer, self._jobs, wants, self._output, batch_size=batch_size)
        try:
            with _stopping_at_sigterm(), closing(outcomes), streaming.quiet(), self._progress() as progress:
                task = progress.add_task("Explaining", total=len(self._jobs))
                for outcome in outcomes:
                    self._note(outcome)
                    progress.advance(task)
        except KeyboardInterrupt as stop:
            stopped = 143 if isinstance(stop, _Terminated) else 130
        self._sum_up(time.perf_counter() - started, interrupted=stopped > 0)
        return stopped or (1 if self._failed else 0)

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("[progress.description]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=_err,
            transient=True,
            disable=self._quiet or self._as_json or not _err.is_terminal,
        )

    def _note(self, outcome: Success | Failure) -> None:
        from camtool.folder import Success

        if not isinstance(outcome, Success):
            self._failed.append(outcome)
            return
        self._done.append(outcome)
        if self._verbose:
            for entry in outcome.entries:
                chance = "" if entry.probability is None else f" {format_percent(entry.probability, 1)}"
                line = f"{escape(entry.image)}  [bold]{escape(entry.label)}[/]{chance}  [dim]{escape(entry.method)}[/]"
                _out.print(line, soft_wrap=True)
                for warning in entry.warnings:
                    _out.print(f"  [yellow]{escape(warning)}[/]", soft_wrap=True)

    def _sum_up(self, seconds: float, *, interrupted: bool) -> None:
        if self._as_json:
            _out.print_json(json.dumps(self._summary(seconds, interrupted=interrupted)), ensure_ascii=True)
            return
        if not self._quiet:
            self._tell(seconds, interrupted=interrupted)
        if self._failed:
            _err.print(f"[bold red]{format_count(len(self._failed), 'photo')} could not be explained:[/]")
            for failure in self._failed:
                _err.print(f"  {escape(failure.reason)}", soft_wrap=True)

    def _tell(self, seconds: float, *, interrupted: bool) -> None:
        folder = self._output.folder
        if interrupted:
            _out.print(f"[yellow]Stopped[/] after {len(self._done)} of {format_count(len(self._jobs), 'photo')}.")
        if self._done:
            each = seconds / len(self._done) * 1000
            layer = self._done[0].entries[0].layer
            where = f", at layer [bold]{escape(layer)}[/]" if layer else ""
            written = sum(len(entry.files) for success in self._done for entry in success.entries)
            _out.print(
                f"[bold green]{format_count(len(self._done), 'photo')} explained[/] in {seconds:.1f} s "
                f"([bold]{each:.0f} ms[/] each){where}.",
                soft_wrap=True,
            )
            _out.print(
                f"{format_count(written, 'file')} and explanations.jsonl are in [bold]{escape(str(folder))}[/]",
                soft_wrap=True,
            )
        self._tell_warnings()
        self._tell_skipped()

    def _tell_skipped(self) -> None:
        if self._skipped:
            shown = [f"{escape(str(each.path))} ({each.reason})" for each in self._skipped[:_MOST_SKIPPED]]
            more = len(self._skipped) - len(shown)
            listed = ", ".join(shown) + (f" and {more:,} more" if more else "")
            _out.print(f"[yellow]Skipped:[/] {listed}", soft_wrap=True)

    def _tell_warnings(self) -> None:
        """Each kind of warning once: those that differ in a number alone are of one kind."""
        kinds: dict[str, list[str]] = {}
        for warning in (warning for success in self._done for entry in success.entries for warning in entry.warnings):
            kinds.setdefault(re.sub(r"\d+", "…", warning), []).append(warning)
        for kind, warnings in kinds.items():
            told = warnings[0] if len({*warnings}) == 1 else kind
            _out.print(f"[yellow]{format_count(len(warnings), 'map')}:[/] {escape(told)}", soft_wrap=True)

    def _summary(self, seconds: float, *, interrupted: bool) -> dict[str, Any]:
        return {
            "out": str(self._output.folder),
            "seconds": round(seconds, 3),
            "interrupted": interrupted,
            "explained": [asdict(entry) for success in self._done for entry in success.entries],
            "skipped": [{"path": str(each.path), "reason": each.reason} for each in self._skipped],
            "failed": [{"image": str(f.job.source), "reason": f.reason} for f in self._failed],
        }


# ------------------------------------------------------------------------------------------- methods and layers


@app.command("methods")
def list_methods(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A method or a wrapper: tell all about it.")
    ] = None,
) -> None:
    """List the methods by family, or tell all about one of them."""
    from camtool.methods import listing

    width = _screen_width()
    _print_lines(listing.list_methods(width) if name is None else listing.describe(name, width))


def _screen_width() -> int | None:
    """Return how many characters a line of the terminal holds; ``None`` where standard output is no terminal."""
    return _out.width if _out.is_terminal else None


def _print_lines(lines: Iterable[tuple[str, str]]) -> None:
    """Print lines as they are, each in its style: never wrapped, and without markup."""
    for line, style in lines:
        _out.print(line, style=style or None, markup=False, emoji=False, soft_wrap=True)


@app.command("demo")
def show_demo(
    out: Annotated[Path, typer.Option(help="The folder for the pictures.")] = Path("demo"),
    scenes: Annotated[int, typer.Option(min=1, help="How many scenes.")] = 12,
) -> None:
    """Show camtool at work, offline, on bundled scenes whose right answer is known."""
    with _err.status("Loading ..."):
        from camtool.demo.tour import tour
    with _err.status("Explaining bundled scenes ..."):
        shown = tour(out, scenes)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", style="bold cyan")
    for heading in ("points at it", "energy inside", "by chance", "ms a scene"):
        table.add_column(heading, justify="right")
    for row in shown.rows:
        table.add_row(row.method, f"{row.hits:.0%}", f"{row.energy:.0%}", f"{row.share:.0%}", f"{row.milliseconds:.0f}")
    _out.print(table)
    first, second = escape(str(shown.overview)), escape(str(shown.cheat))
    _out.print(f"\nLook at [bold]{first}[/], and at [bold]{second}[/], where a cheat is caught.", soft_wrap=True)
    _out.print("Then try your own photos: [bold]python -m camtool PHOTOS --model resnet50[/]", soft_wrap=True)


@app.command("layers")
def list_layers(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=_NAMES)],
    weights: Weights = None,
    size: Annotated[
        str | None,
        typer.Option(
            help="The picture that is tried: its side, or 224x320 say. By default what the model is made for."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Shallow layers too.")] = False,
) -> None:
    """List the layers of a model that can carry a map, and which one is looked at by default."""
    import torch

    from camtool.candidates import candidate_layers, list_candidates
    from camtool.inputs import example_shape
    from camtool.models import architecture, load, usual_size

    asked = None if size is None else _picture_size(size)
    module = load(model, weights).model if weights else architecture(model)
    height, width = asked or usual_size(module)
    shape = example_shape(module, height, width)
    noise = torch.rand(1, *shape, generator=torch.Generator().manual_seed(0))
    try:
        candidates = candidate_layers(module, noise)
    except ForwardError as error:
        reason = str(error.__cause__).split("\n", 1)[0]
        raise CamtoolError(f"{model} cannot run on one picture of {height} x {width} (--size): {reason}") from error
    at = next((place for place, each in enumerate(candidates) if each.chosen), len(candidates))
    shown = candidates if everything else candidates[max(0, min(at, len(candidates) - 16)) :]
    columns = _screen_width()
    if columns is not None:
        _out.print(f"Layers of {escape(model)} for an image of {height} x {width}, from shallow to deep\n")
    _print_lines(list_candidates(shown, columns))
    if len(shown) < len(candidates):
        _err.print(f"[dim]{len(candidates) - len(shown)} shallower ones are listed with --all.[/]")


def _picture_size(text: str) -> tuple[int, int]:
    """The height and the width in ``"224"`` or ``"224x320"``."""
    found = re.fullmatch(r"(\d+)(?: ?x ?(\d+))?", text)
    height, width = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if min(height, width) < 32:
        raise CamtoolError(f"--size {text!r} is no picture's size; give a side of 32 or more, or 224x320 say.")
    return height, width


# -------------------------------------------------------------------------------------------- features and kernels

ModelOption = Annotated[str, typer.Option(help=_NAMES)]
FolderOption = Annotated[Path, typer.Option("--out", "--output", help="The folder for the figures.")]
PaperOption = Annotated[Paper, typer.Option(help="How figures are written.")]
WidthOption = Annotated[str, typer.Option(help="Of a 'single' or a 'double' column, or inches.")]
ScaleOption = Annotated[Scale, typer.Option(help="One scale for all, or one for each.")]


@app.command("features")
def draw_features(
    image: Annotated[str, typer.Argument(metavar="IMG", help="A photo.")],
    model: ModelOption = "resnet50",
    weights: Weights = None,
    layers: Annotated[
        list[str],
        typer.Option(help="'conv' for all convolutions, names, patterns like 'layer*.conv1'; by commas or repeated."),
    ] = ["conv"],  # noqa: B006
    channels: Annotated[int, typer.Option(min=1, help="How many of each layer, at most.")] = 16,
    order: Annotated[Order, typer.Option(help="Which: the first, the strongest, or those for a class.")] = Order.first,
    target: Annotated[str | None, typer.Option(help="The class, by index or name; by default the likeliest.")] = None,
    scale: ScaleOption = Scale.shared,
    one_page: Annotated[bool, typer.Option("--one-page", help="All layers in one figure.")] = False,
    width: WidthOption = "double",
    out: FolderOption = Path("figures"),
    format: PaperOption = Paper.png,  # noqa: A002
) -> None:
    """Draw what the channels of a model's layers make of a photo: a figure a layer, or one for all."""
    from camtool import figures
    from camtool.figures.paper import canvas

    canvas()  # should matplotlib be missing, that is told before anything is loaded
    _check_no_models([image])
    loaded = _loaded(model, weights, None, "auto")
    names = _names(layers)
    want = None if target is None else _wants([target])[0]
    asked: dict[str, Any] = {"target_class": want, "scale": scale.value, "width": _width(width)}
    with _err.status("Drawing ..."):
        if one_page:
            figure = figures.feature_maps(loaded, image, names, channels, order.value, **asked)
            drawn = [figures.save(figure, out / f"features.{format.value}")]
        else:
            pages = figures.feature_pages(loaded, image, names, channels, order.value, **asked)
            drawn = [
                figures.save(figure, out / f"{number:03}-{_file_name(name)}.{format.value}")
                for number, (name, figure) in enumerate(pages, 1)
            ]
    _tell_drawn(drawn, out)


@app.command("kernels")
def draw_kernels(
    model: ModelOption = "resnet50",
    weights: Weights = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(
            "--layer",
            "--layers",
            help="'conv' for all, names, patterns; by commas or repeated. By default the first convolution.",
        ),
    ] = None,
    filters: Annotated[int | None, typer.Option(min=1, help="How many, at most.")] = None,
    inputs: Annotated[int, typer.Option(min=1, help="Of how many input channels, at most.")] = 16,
    scale: ScaleOption = Scale.shared,
    width: WidthOption = "double",
    out: FolderOption = Path("figures"),
    format: PaperOption = Paper.png,  # noqa: A002
) -> None:
    """Draw the filters of a model's convolutions: a figure a layer."""
    from camtool import figures
    from camtool.figures.paper import canvas

    canvas()  # should matplotlib be missing, that is told before anything is loaded
    loaded = _loaded(model, weights, None, "auto")
    how: dict[str, Any] = {"filters": filters, "inputs": inputs, "scale": scale.value, "width": _width(width)}
    if layer:
        pages = figures.kernel_pages(loaded, _names(layer), **how)
        drawn = [figures.save(figure, out / f"kernels-{_file_name(name)}.{format.value}") for name, figure in pages]
    else:
        drawn = [figures.save(figures.kernels(loaded, **how), out / f"kernels.{format.value}")]
    _tell_drawn(drawn, out)


def _names(layers: list[str]) -> list[str]:
    return [name.strip() for each in layers for name in each.split(",") if name.strip()]


def _width(text: str) -> float | str:
    """Inches, or the name of a width."""
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else text


def _file_name(layer: str) -> str:
    return re.sub(r"[^\w.-]", "_", layer)


def _tell_drawn(files: list[Path], folder: Path) -> None:
    _out.print(
        f"[bold green]{format_count(len(files), 'figure')} drawn[/] in [bold]{escape(str(folder))}[/]", soft_wrap=True
    )
