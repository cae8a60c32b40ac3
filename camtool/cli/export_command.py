"""Command ``camtool export``: write a model with its explanation into one file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from camtool.cli import terminal
from camtool.cli.options import model_options, result_options
from camtool.cli.options.dataclasses_to_typer import takes_options
from camtool.errors import CamtoolError


@takes_options
def export_model(
    *,
    loading: model_options.ModelArgument,
    path: Annotated[Path, Argument(metavar="FILE")],
    map_: result_options.MethodOptions,
    preparing: model_options.PreprocessingOptions,
    fixed_batch: Annotated[bool, Option("--fixed-batch")] = False,
    resize: Annotated[bool, Option("--resize")] = False,
    sample: Annotated[list[Path] | None, Option(exists=True)] = None,
    runtime: Annotated[Path | None, Option(exists=True, file_okay=False)] = None,
    half: Annotated[bool, Option("--half")] = False,
    overwrite: Annotated[bool, Option("--overwrite", "--force")] = False,
    printed: result_options.PrintOptions,
) -> None:
    """Write a model with its explanation into one file, or a page, which runs without camtool and without torch.

    Args:
        path: File to write: .onnx, .xml (OpenVINO) or .pt2 (torch.export); a folder or an .html file for a page that
            explains photos in the browser, without a server.
        fixed_batch: One image at a time, not any number.
        resize: Return maps at the images' size.
        sample: Photo that a page opens with; by default a drawn scene. May be repeated.
        runtime: Folder dist of the npm package onnxruntime-web, for a page; by default npm gets it once.
        half: Store the weights of a page in half precision: half the download.
        overwrite: Overwrite the file.
    """
    from camtool.app.web_page.building import METHODS, export_page
    from camtool.engines.export import ExportWarning, check_beside, check_format, export

    is_page = path.suffix in ("", ".html")
    if is_page:
        of_files = {"--fixed-batch": fixed_batch, "--resize": resize, "--size": preparing.size}
        _refuse(of_files, "files; a page explains one photo at a time, at its own size")
    else:
        of_pages = {"--sample": sample, "--runtime": runtime, "--half": half}
        _refuse(of_pages, f"pages; give a folder or an .html file in place of {path}")
        check_format(path)
        check_beside(path)
    _check_absent(path, is_replaced=overwrite)
    preprocessing = preparing.parse()
    options = result_options.parse_method_options(map_.option, ())
    loaded = loading.load(preprocessing=preprocessing, is_quiet=printed.hides_progress)
    if is_page:
        methods = [map_.method, *(name for name in METHODS if name != map_.method)]
        with _replace_page(path) as made:
            export_page(loaded, made, methods, map_.layer, sample=sample or None, runtime=runtime, half=half, **options)
    else:
        settings: dict[str, Any] = {"size": preprocessing.size, "dynamic_batch": not fixed_batch, "resize": resize}
        with terminal.print_warnings(ExportWarning, is_quiet=printed.hides_progress):
            export(loaded, path, map_.method, map_.layer, **(settings | options))
    files = _list_written(path)
    size = sum(file.stat().st_size for file in files)
    if printed.as_json:
        terminal.print_json({"files": [*map(str, files)], "bytes": size})
    elif not printed.quiet:
        terminal.print_line(f"[bold green]Exported[/] {size / 1e6:.1f} MB to [bold]{terminal.escape(str(path))}[/]")
        terminal.out.print(_describe_use(path, is_page=is_page))


def _refuse(options: Mapping[str, Any], reason: str) -> None:
    """Check that options of another kind of result are not given."""
    for name, value in options.items():
        if value:
            raise CamtoolError(f"{name} is for {reason}.")


def _check_absent(path: Path, *, is_replaced: bool) -> None:
    if path.exists() and not is_replaced:
        raise CamtoolError(f"{path} exists; give another name, or --overwrite to replace it.")


def _list_written(path: Path) -> list[Path]:
    """Return the files of a folder, or a file and what it needs beside it."""
    from camtool.engines.export import find_beside

    if path.is_dir():
        return [*path.iterdir()]
    return [candidate for candidate in dict.fromkeys((path, find_beside(path))) if candidate.exists()]


def _describe_use(path: Path, *, is_page: bool) -> str:
    """Return what to do with the result."""
    if not is_page:
        return "Inputs: images, target_class (-1: the top class). Outputs: logits, maps."
    if path.is_dir():
        return "Put the folder on any web server; on this machine: python -m http.server."
    return "Open it by a double click."


@contextmanager
def _replace_page(path: Path) -> Iterator[Path]:
    """Yield where to write a page: beside the one that it replaces, which stays if the block raises.

    A folder is replaced only if it holds nothing but a page.
    """
    from camtool.app.web_page.building import is_page_file

    if not path.exists():
        yield path
        return
    path = path.resolve()  # a link stays a link
    others = sorted(file.name for file in path.iterdir() if not is_page_file(file.name)) if path.is_dir() else []
    if others:
        raise CamtoolError(f"{path} has other files than those of a page, e.g. {others[0]}; give another folder.")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".camtool-") as folder:
        made, old = Path(folder, f"new{path.suffix}"), Path(folder, "old")
        yield made
        path.rename(old)
        try:
            made.rename(path)
        except BaseException:
            old.rename(path)
            raise
