"""Commands ``camtool app`` and ``camtool mcp``: serve a page in the browser, and tools for an assistant."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Argument, Option

from camtool.arguments.libraries import import_library
from camtool.cli import exit_codes, terminal
from camtool.cli.options import model_options
from camtool.cli.options.dataclasses_to_typer import takes_options
from camtool.errors import CamtoolError, RaiseAs

_AUTH_BYTES = 4096

_WEIGHTS = Option(metavar="FILE", help="File of weights of the first --model; repeat for the second, and so on.")


@dataclass(frozen=True)
class SafetyOptions:
    """Options of who may use the page, and how much.

    Attributes:
        host: Address to listen at. 0.0.0.0 lets other machines use the page.
        allow_host: Name by which a proxy or a network reaches the page; others are refused. Repeat for several.
        auth: Name and password to ask for. Other users of this machine can read it here, but not in the variable.
        auth_file: File that holds USER:PASSWORD.
        max_pixels: Most pixels of an image.
        max_upload: Largest file that can be uploaded.
        max_disk: Most space of all users' files.
        max_memory: Most memory of images and results, besides the models.
    """

    panel: ClassVar[str] = "Safety"

    host: Annotated[str, Option(metavar="ADDRESS")] = "127.0.0.1"
    allow_host: Annotated[list[str] | None, Option(metavar="NAME")] = None
    auth: Annotated[str | None, Option(metavar="USER:PASSWORD", envvar="CAMTOOL_AUTH")] = None
    auth_file: Annotated[Path | None, Option(metavar="FILE")] = None
    max_pixels: Annotated[int, Option(metavar="N", min=1)] = 40_000_000
    max_upload: Annotated[float, Option(metavar="MB", min=0.001)] = 50
    max_disk: Annotated[float, Option(metavar="MB", min=0.001)] = 1000
    max_memory: Annotated[float, Option(metavar="MB", min=1)] = 2000


@takes_options
def serve_app(
    *,
    folder: Annotated[Path | None, Argument(metavar="FOLDER")] = None,
    model: Annotated[list[str] | None, Option(metavar="NAME")] = None,
    weights: Annotated[list[Path] | None, _WEIGHTS] = None,
    device: model_options.Device = "auto",
    engine: model_options.EngineOption = "eager",
    port: Annotated[
        int | None, Option(metavar="N", min=0, max=65535, show_default="the first free one from 7860 on")
    ] = None,
    safety: SafetyOptions,
) -> None:
    """Explain images in the browser: look, ask, compare.

    The page is served on this machine alone, works without internet, and sends nothing anywhere.

    Args:
        folder: Folder of images to choose from; it is only read.
        model: Model to offer first, besides those of torchvision. Repeat for several.
        device: Device the models run on.
        port: Port of the page.
    """
    names = model or []
    files = _match_weights(names, weights)
    with terminal.show_activity("Starting the page"):
        from camtool.app.server import AppServer, ServerSettings, describe_exposure

        settings = ServerSettings(
            folder=folder,
            models=names,
            weights={name: file for name, file in files.items() if file is not None},
            host=safety.host,
            port=port,
            names=safety.allow_host or (),
            auth=_read_auth(safety.auth, safety.auth_file),
            max_pixels=safety.max_pixels,
            max_upload=safety.max_upload,
            max_disk=safety.max_disk,
            max_memory=safety.max_memory,
            engine=engine,
            device=model_options.choose_device(device),
        )
        exposure = describe_exposure(settings.host, settings.auth)
        server = AppServer(settings)
        # Gradio and the libraries of the web server tell about each request.
        logging.getLogger("httpx").setLevel(logging.WARNING)
    if exposure:
        terminal.err.print(f"[bold yellow]Warning:[/] {terminal.escape(exposure)}", soft_wrap=True)
    with exit_codes.exit_at_stop(), server:
        terminal.print_line(f"The page is at [bold]{terminal.escape(server.url)}[/]. Stop it with Ctrl-C.")
        server.wait()


@takes_options
def serve_tools(
    *,
    folders: Annotated[list[Path], Argument(metavar="FOLDER...")],
    model: Annotated[list[str] | None, Option(metavar="NAME", show_default="demo")] = None,
    weights: Annotated[list[Path] | None, _WEIGHTS] = None,
    device: model_options.Device = "auto",
) -> None:
    """Serve tools for an assistant over standard input and output, by the Model Context Protocol.

    The tools explain photos, compare classes and methods, and audit models. They write nothing. See docs/assistants.md.

    Args:
        folders: Folders of images that may be read, and nothing else.
        model: Model to offer; no others are loaded. Repeat for several.
        device: Device the models run on.
    """
    names = model or ["demo"]
    files = _match_weights(names, weights)
    for library in ("mcp", "pydantic"):
        import_library(library, "the tools need the SDK of the protocol", "'camtool[mcp]'")
    from camtool.app.assistant.server import build_server
    from camtool.app.assistant.tools import ReadableFolders, Tools

    tools = Tools(ReadableFolders(folders), files, model_options.choose_device(device))
    server = build_server(tools)
    if sys.stdin.isatty():
        terminal.print_notice("Waiting for an assistant, which starts this command itself. Stop it with Ctrl-C.")

    def end(number: int, _: object) -> None:
        tools.discard_files()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    # The threads that wait for input and run a tool cannot be interrupted: with Python's own handler, Ctrl-C would wait
    # for them. Programs for assistants end the server by SIGTERM.
    with ExitStack() as undo:
        for number in (signal.SIGINT, signal.SIGTERM):
            undo.callback(signal.signal, number, signal.signal(number, end))
        server.run()


def _match_weights(names: Sequence[str], weights: Sequence[Path] | None) -> dict[str, str | None]:
    """Return name of a model → its file of weights, and say which of the models run code of the user's.

    Raises:
        CamtoolError: There are more files than models.
    """
    if len(weights or ()) > len(names):
        raise CamtoolError("--weights comes more often than --model; give the name of each model with its file.")
    for name in names:
        model_options.announce_user_code(name)
    return {name: None if file is None else str(file) for name, file in zip_longest(names, weights or ())}


def _read_auth(text: str | None, file: Path | None) -> tuple[str, str] | None:
    """Return the name and the password; None if there is none. A file counts more than the variable.

    Raises:
        CamtoolError: One of them is missing, or the file cannot be read.
    """
    name = "--auth"
    if file is not None:
        name = f"--auth-file {str(file)!r}"
        with RaiseAs(lambda error: CamtoolError(f"{name} cannot be read: {error}."), OSError, ValueError):
            if not file.is_file():
                raise OSError("it is no file")
            with file.open(encoding="utf-8") as stream:
                text = stream.read(_AUTH_BYTES).strip()
    if text is None:
        return None
    user, colon, password = text.partition(":")
    if not (user and colon and password) or "\n" in text:
        raise CamtoolError(f"{name} needs a name and a password, e.g. anna:secret.")
    return user, password
