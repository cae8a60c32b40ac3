"""What the server of the page is bound to and warns of, and the command that starts it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from camtool.app import server
from camtool.app.error_sentences import hide_folders_in_errors
from camtool.app.request_filter import FilterRules, RequestFilter, is_local
from camtool.app.server import AppServer, ServerSettings, describe_exposure
from camtool.app.stores import DiskSpace
from camtool.cli.app import app
from camtool.errors import CamtoolError, ImageError
from camtool.models.sources.torchvision import list_photo_models
from tests.cli.test_commands import start_process


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.0.0.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
        ("example.org", False),
        ("localhost.example.org", False),
    ],
)
def test_addresses_that_only_this_machine_reaches(host: str, expected: bool) -> None:
    assert is_local(host) is expected
    assert (describe_exposure(host, None) == "") is expected


def test_an_open_server_is_warned_of_and_a_password_is_advised() -> None:
    assert "--auth-file FILE" in describe_exposure("0.0.0.0", None)
    assert "without a password" in describe_exposure("0.0.0.0", None)
    protected = describe_exposure("0.0.0.0", ("anna", "secret"))
    assert "who knows the password" in protected
    assert "secret" not in protected


def test_errors_of_any_kind_name_files_without_their_folders() -> None:
    for error, message in (
        (ImageError("/home/anna/w.pt is no image."), "w.pt is no image."),
        (OSError("/home/anna/w.pt is busy"), "OSError: w.pt is busy."),
    ):
        with pytest.raises(CamtoolError, match=f"^{message}$"), hide_folders_in_errors("/home/anna/w.pt"):
            raise error


def test_only_models_for_one_photo_are_listed() -> None:
    names = list_photo_models()
    assert {"resnet50", "fcn_resnet50", "fasterrcnn_resnet50_fpn", "vit_b_16"} <= {*names}
    assert not {"raft_large", "r3d_18", "quantized_resnet50", "mvit_v1_b"} & {*names}
    assert len(names) == len({*names})


def test_the_page_stays_here_unless_asked() -> None:
    settings = ServerSettings()
    assert (settings.host, settings.auth) == ("127.0.0.1", None)


def test_importing_camtool_and_its_help_load_no_gradio() -> None:
    code = "import sys, camtool, camtool.cli.app, camtool.app.workbench, camtool.app.actions, camtool.app.server\n"
    code += "raise SystemExit('gradio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_gradio_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "camtool.app.page", raising=False)
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(CamtoolError, match=r"pip install 'camtool\[app\]'"), AppServer(ServerSettings(port=0)):
        pass


def test_a_folder_that_is_none_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(CamtoolError, match="does not exist; give a folder"):
        AppServer(ServerSettings(folder=tmp_path / "no"))


@pytest.mark.filterwarnings("ignore")  # Gradio warns of its own use of libraries
@pytest.mark.parametrize("has_password", [False, True])
def test_gradio_is_asked_who_calls_only_if_there_is_a_password(tmp_path: Path, has_password: bool) -> None:
    asked, scope = [], {"type": "http", "method": "GET", "query_string": b"", "headers": [(b"host", b"localhost")]}

    async def answer(scope: Any, _: Any, send: Any) -> None:
        asked.append(scope["path"].rpartition("/")[2])
        await send({"type": "http.response.start", "status": 200})

    async def receive(_: Any = None) -> Any:
        return {"type": "http.request"}

    rules = FilterRules("127.0.0.1", frozenset(), DiskSpace(tmp_path, 1), 1, has_password)
    asyncio.run(RequestFilter(answer, rules)({**scope, "path": "/gradio_api/info"}, receive, receive))
    assert asked == [*["login_check"] * has_password, "info"]


def test_a_call_is_confirmed_when_the_page_has_closed_its_former_stream(tmp_path: Path) -> None:
    """The page would wait in vain for an answer in a stream that the server had ended already."""
    order = list[str]()

    async def answer(scope: Any, _: Any, send: Any) -> None:
        is_stream = scope["method"] == "GET"
        await send({"type": "http.response.start", "status": 200})
        for body in [b'data: {"msg":"close_stream"}', b""] if is_stream else [b'{"event_id":"%032d"}' % 0]:
            await send({"type": "http.response.body", "body": body, "more_body": is_stream and bool(body)})

    async def call(filtered: RequestFilter) -> None:
        told = asyncio.Event()
        scope = {"type": "http", "headers": [(b"host", b"localhost")], "query_string": b"session_hash=a"}

        async def read_stream(message: Any) -> None:
            if b"close_stream" in message.get("body", b""):
                order.append("end")
                told.set()

        async def close_late() -> Any:
            await asyncio.sleep(0.05)
            order.append("closed")
            return {"type": "http.disconnect"}

        async def read_confirmation(message: Any) -> None:
            if message.get("body"):
                order.append("confirmed")

        async def post() -> Any:
            return {"type": "http.request", "body": b'{"session_hash": "a"}'}

        stream = {**scope, "method": "GET", "path": "/gradio_api/queue/data"}
        reading = asyncio.create_task(filtered(stream, close_late, read_stream))
        await told.wait()
        await filtered({**scope, "method": "POST", "path": "/gradio_api/queue/join"}, post, read_confirmation)
        await reading

    asyncio.run(call(RequestFilter(answer, FilterRules("127.0.0.1", frozenset(), DiskSpace(tmp_path, 1), 1, False))))
    assert order == ["end", "closed", "confirmed"]


def test_no_event_loop_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gradio")
    made, make = list[asyncio.AbstractEventLoop](), asyncio.new_event_loop

    def make_and_note() -> asyncio.AbstractEventLoop:
        made.append(make())
        return made[-1]

    monkeypatch.setattr(asyncio, "new_event_loop", make_and_note)
    with AppServer(ServerSettings(port=0)) as running:
        assert running.url
    assert made
    assert all(each.is_closed() for each in made)


# ------------------------------------------------------------------------------------------------------- command


class Recorded:
    """A server that only keeps its settings."""

    settings: list[ServerSettings] = []  # noqa: RUF012
    url = "http://127.0.0.1:7860/"

    def __init__(self, settings: ServerSettings) -> None:
        self.settings.append(settings)

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def wait(self) -> None:
        pass


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command, and return the settings of its server, and what it printed."""
    monkeypatch.setattr(server, "AppServer", Recorded)

    def run(*arguments: str) -> tuple[ServerSettings, str]:
        Recorded.settings.clear()
        result = CliRunner().invoke(app, ["app", *arguments], catch_exceptions=False)
        return Recorded.settings[0], result.output

    return run


def test_the_command_serves_this_machine_alone(start: Any) -> None:
    settings, printed = start()
    assert (settings.host, settings.auth, settings.port, settings.folder) == ("127.0.0.1", None, None, None)
    assert "http://127.0.0.1:7860/" in printed
    assert "Warning" not in printed


def test_options_of_the_command_reach_the_server(start: Any, tmp_path: Path) -> None:
    limits = ["--max-pixels", "1000", "--max-upload", "2.5", "--max-disk", "70", "--port", "8000"]
    models = ["--model", "resnet18", "--model", "demo", "--weights", "a.pt"]
    settings, _ = start(str(tmp_path), *models, *limits, "--auth", "anna:a:b", "--allow-host", "cam.org")
    assert settings.folder == tmp_path
    assert (settings.models, settings.weights) == (["resnet18", "demo"], {"resnet18": "a.pt"})
    assert (settings.max_pixels, settings.max_upload, settings.port) == (1000, 2.5, 8000)
    assert (settings.auth, settings.names, settings.max_disk) == (("anna", "a:b"), ["cam.org"], 70)


def test_the_password_comes_from_a_variable_or_a_file(start: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("CAMTOOL_AUTH", "anna:variable")
    (tmp_path / "auth").write_text("bob:file\n")
    assert start()[0].auth == ("anna", "variable")
    assert start("--auth-file", str(tmp_path / "auth"))[0].auth == ("bob", "file")
    with pytest.raises(CamtoolError, match=r"--auth-file .* cannot be read: it is no file"):
        start("--auth-file", str(tmp_path))


def test_a_public_address_is_warned_of(start: Any) -> None:
    _, printed = start("--host", "0.0.0.0")
    assert re.search(r"Warning: --host 0\.0\.0\.0: everybody", printed)


@pytest.mark.parametrize("arguments", [["--auth", "anna"], ["--auth", ":x"], ["--weights", "a.pt"]])
def test_wrong_options_are_refused(start: Any, arguments: list[str]) -> None:
    with pytest.raises(CamtoolError, match=r"--auth needs|--weights comes more often"):
        start(*arguments)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_ends_at_a_signal_and_leaves_no_files(tmp_path: Path, number: int, code: int) -> None:
    pytest.importorskip("gradio")
    with start_process("app", "--port", "0", env={**os.environ, "TMPDIR": str(tmp_path)}) as process:
        assert process.stdout
        assert "http://127.0.0.1:" in process.stdout.readline()
        assert [*tmp_path.glob("camtool-app-*")]
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in errors
    assert not [*tmp_path.glob("camtool-app-*")]
