"""The server: what it binds to, what it serves, and what it refuses."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from camtool.app.actions import Actions, ModelCode, PageSettings
from camtool.app.error_sentences import hide_folder, hide_folders_in_errors
from camtool.app.request_filter import FilterRules, RequestFilter, is_local
from camtool.app.stores import DEMO, DiskSpace, ImageFolder, ModelStore
from camtool.app.workbench import MAX_MEMORY, Workbench
from camtool.arguments.libraries import import_library
from camtool.errors import CamtoolError, RaiseAs
from camtool.inputs.formats.reading_options import MAX_PIXELS
from camtool.models import Loaded, load
from camtool.models.sources.torchvision import list_photo_models
from camtool.rendering.design.style_sheets import LOGO, read_design

# Largest file that a user may upload, in megabytes, unless another number is given.
MAX_UPLOAD = 50

# Most megabytes of all uploads and files to download together, unless another number is given.
MAX_DISK = 1000

# Most requests that wait. Later ones are refused with a sentence, so that nobody waits for minutes.
_MAX_WAITING = 64

# Most users whose class, method and look are remembered.
_MAX_SESSIONS = 500

# Variable in which Gradio looks for the folder of uploads and of files that it gives out.
_UPLOADS = "GRADIO_TEMP_DIR"

# Variable in which the web server looks for the addresses of proxies, which say who calls.
_PROXIES = "FORWARDED_ALLOW_IPS"


@dataclass(frozen=True)
class ServerSettings:
    """Settings of the server.

    Attributes:
        folder: A folder of images to choose from; None for none.
        models: Names of models that are offered first, as for :func:`camtool.load`.
        weights: Name of a model → its file of weights.
        host: The address to bind to.
        port: The port; None for the first free one from 7860 on, 0 for any.
        names: Names by which the server is reached besides ``host``, e.g. that of a proxy.
        auth: Name and password that users must give; None for none.
        max_pixels: The most pixels of an image.
        max_upload: The largest file in megabytes.
        max_disk: The most megabytes of the files of all users together.
        max_memory: The most megabytes of memory for an image that is read, and for all images and results.
        engine: How models run, see :func:`camtool.explain`.
        device: The device of the models; None for the CPU.
    """

    folder: Path | None = None
    models: Sequence[str] = ()
    weights: Mapping[str, str] | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    names: Sequence[str] = ()
    auth: tuple[str, str] | None = None
    max_pixels: int = MAX_PIXELS
    max_upload: float = MAX_UPLOAD
    max_disk: float = MAX_DISK
    max_memory: float = MAX_MEMORY / 2**20
    engine: str = "eager"
    device: str | None = None


class AppServer:
    """A server of the page, as a context: it runs in threads of its own until the block ends.

        with AppServer(ServerSettings(models=["resnet50"])) as server:
            print(server.url)
            server.wait()

    Gradio knows one folder for uploads in a process. Two servers in one process share that of the later one.

    Args:
        settings: The settings.

    Attributes:
        folder: The temporary folder with all files that the server makes and receives; empty before it runs.
        url: The address of the page; empty before it runs.

    Raises:
        CamtoolError: Gradio is not installed, the folder is none, or the port is in use.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._folder = None if settings.folder is None else ImageFolder(settings.folder)
        self._stack = ExitStack()
        self.folder = self.url = ""

    def __enter__(self) -> AppServer:
        with ExitStack() as stack:
            self.folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="camtool-app-"))
            for name in (_UPLOADS, _PROXIES):
                stack.callback(_set_variable, name, os.environ.get(name))
            _run_in_event_loop(partial(self._start, Path(self.folder), stack))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wait(self) -> None:
        """Wait until the user stops the process.

        Raises:
            KeyboardInterrupt: The user did.
        """
        while True:
            # A wait without an end could not be interrupted on Windows.
            threading.Event().wait(3600)

    def _start(self, folder: Path, stack: ExitStack) -> None:
        disk = DiskSpace(folder / "cache", _to_bytes(self._settings.max_disk))
        _prepare_environment(disk.folder, is_behind_proxy=bool(self._settings.names))
        import_library("gradio", "the page needs Gradio", "'camtool[app]'")
        middleware = import_library("starlette.middleware", "the page needs Gradio", "'camtool[app]'")
        from camtool.app.html_fragments import read_asset
        from camtool.app.page import build_page, build_theme

        blocks: Any = build_page(Actions(self._build_workbench(), self._build_page_settings(disk)))
        stack.callback(blocks.close, verbose=False)
        blocks.queue(max_size=_MAX_WAITING, default_concurrency_limit=4, api_open=False)
        settings = self._settings
        names = frozenset(name.lower() for name in settings.names)
        rules = FilterRules(settings.host, names, disk, _to_bytes(settings.max_upload), settings.auth is not None)
        with RaiseAs(lambda error: CamtoolError(f"the page cannot be served at {settings.host}: {error}"), OSError):
            _, self.url, _ = blocks.launch(
                server_name=settings.host,
                server_port=_find_port(settings.host) if settings.port == 0 else settings.port,
                auth=settings.auth,
                auth_message="camtool",
                share=False,
                prevent_thread_lock=True,
                quiet=True,
                show_error=False,
                footer_links=[],
                max_file_size=rules.max_upload,
                app_kwargs={"middleware": [middleware.Middleware(RequestFilter, rules)]},
                state_session_capacity=_MAX_SESSIONS,
                blocked_paths=[os.fspath(self._folder.path)] if self._folder else None,
                ssr_mode=False,
                pwa=False,
                mcp_server=False,
                enable_monitoring=False,
                run_history=False,
                theme=build_theme(),
                favicon_path=LOGO,
                css=read_design("tokens.css", "parts.css") + read_asset("style.css") + read_asset("panels.css"),
                head=f"<script>{read_asset('download.js')}</script>",
            )

    def _build_page_settings(self, disk: DiskSpace) -> PageSettings:
        weights = self._settings.weights or {}
        codes = {hide_folder(name): ModelCode(hide_folder(name), hide_folder(path)) for name, path in weights.items()}
        return PageSettings(self._folder, disk, codes)

    def _build_workbench(self) -> Workbench:
        settings = self._settings
        names = {hide_folder(name): name for name in settings.models}
        if len(names) < len({*settings.models}):
            raise CamtoolError("--model: two models have the same name in different folders; rename one of them.")

        def load_model(shown: str) -> Loaded:
            name = names.get(shown, shown)
            weights = (settings.weights or {}).get(name)
            with hide_folders_in_errors(*filter(None, (weights, name.partition(":")[2], name))):
                return load(name, weights, device=settings.device)

        models = ModelStore([*names, DEMO, *list_photo_models()], load_model)
        return Workbench(
            models, max_pixels=settings.max_pixels, max_memory=_to_bytes(settings.max_memory), engine=settings.engine
        )


def _run_in_event_loop(act: Callable[[], None]) -> None:
    """Call a function while an event loop runs: where none does, Gradio makes one for each lock and leaves it open."""

    async def call() -> None:
        act()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with closing(asyncio.new_event_loop()) as loop:
            loop.run_until_complete(call())
    else:
        act()


def describe_exposure(host: str, auth: tuple[str, str] | None) -> str:
    """Return what it means to bind the server to this address; empty if only this machine reaches it."""
    if is_local(host):
        return ""
    who = "who knows the password" if auth else "without a password"
    return (
        f"--host {host}: everybody who reaches this machine over the network can use the page {who}, see the images of "
        "FOLDER and make this machine work. The connection is not encrypted."
        + ("" if auth else " Add --auth-file FILE to ask for a password.")
    )


def _set_variable(name: str, value: str | None) -> None:
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value


def _prepare_environment(cache: Path, *, is_behind_proxy: bool) -> None:
    """Set what Gradio reads when it is imported: no telemetry, and files only in this folder.

    Without a proxy, the web server must not take a caller's address from a header that the caller writes.
    """
    if not is_behind_proxy:
        os.environ.setdefault(_PROXIES, "")
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ[_UPLOADS] = str(cache)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


def _to_bytes(megabytes: float) -> int:
    return round(megabytes * 2**20)


def _find_port(host: str) -> int:
    """Return a free port."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
