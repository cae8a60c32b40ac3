"""Attacks on the page: real requests to the command as it is started in a terminal."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from PIL import Image
from torchvision.models import squeezenet1_1

from tests.cli.test_commands import start_process
from tests.helpers.photos import unseen

httpx = pytest.importorskip("httpx", reason="needs the package httpx")
pytest.importorskip("gradio", reason="needs the package gradio")

AUTH = "anna:secret"


class Caller:
    """One user of the page.

    Attributes:
        client: The client, logged in.
        events: Name of a function of the page → what its configuration says.
    """

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=url, timeout=120)
        self.session = uuid4().hex
        self.client.post("login", data={"username": "anna", "password": "secret"})
        self.events = {each["api_name"]: each for each in self.client.get("config").json()["dependencies"]}

    def join(self, name: str, values: list[Any], **options: Any) -> Any:
        """Send a call to the queue, and return the answer of the server to that."""
        number = self.events[name]["id"]
        body = {"data": values, "fn_index": number, "session_hash": self.session, **options.pop("json", {})}
        return self.client.post("gradio_api/queue/join", json=body, **options)

    def call(self, name: str, values: list[Any], **options: Any) -> str:
        """Send a call, and return all that comes back, as one text."""
        assert self.join(name, values, **options).status_code == 200
        texts = []
        with self.client.stream("GET", "gradio_api/queue/data", params={"session_hash": self.session}) as stream:
            for line in stream.iter_lines():
                texts.append(line)
                if '"process_completed"' in line:
                    break
        return "".join(texts)

    def upload(self, data: bytes, name: str) -> Any:
        return self.client.post("gradio_api/upload", files={"files": (name, data)})

    def show(self, data: bytes, name: str) -> str:
        """Upload an image, and return what the page shows."""
        return self.call("take_upload", [as_file(self.upload(data, name).json()[0]), None])


def as_file(path: str, **fields: Any) -> dict[str, Any]:
    """Return a file as Gradio writes it into its messages."""
    return {"path": path, "meta": {"_type": "gradio.FileData"}, **fields}


def encode(number: int) -> bytes:
    stream = BytesIO()
    Image.fromarray(unseen(number).image).save(stream, "png")
    return stream.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("private-folder")
    (found / "photos").mkdir()
    (found / "photos" / "mine.png").write_bytes(encode(0))
    torch.save(squeezenet1_1(num_classes=4).state_dict(), found / "weights.pt")
    return found


@contextmanager
def serve(folder: Path, *options: str) -> Iterator[str]:
    """Start the command, and yield the address of its page."""
    weights = ["--weights", folder / "weights.pt", "--weights", folder / "none.pt"]
    models = ["--model", "squeezenet1_1", "--model", "alexnet", "--model", "demo"]
    command = ["app", folder / "photos", "--port", "0", "--max-upload", "1", "--max-disk", "4", "--max-memory", "200"]
    environment = {**os.environ, "CAMTOOL_AUTH": AUTH, "COLUMNS": "400"}
    arguments = [*command, *models, *weights, *options]
    with start_process(*arguments, stderr=subprocess.DEVNULL, env=environment) as process:
        assert process.stdout
        found = re.search(r"http://\S+/", process.stdout.readline())
        assert found
        yield found[0]
        process.terminate()


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with serve(folder) as found:
        yield found


@pytest.fixture(scope="module")
def other_url(folder: Path) -> Iterator[str]:
    """A second server, behind a proxy: its disk is filled, which would keep other tests from saving."""
    with serve(folder, "--allow-host", "camtool.example") as found:
        yield found


@pytest.fixture
def callers(url: str) -> Iterator[tuple[Caller, Caller]]:
    """Two users of the page."""
    found = Caller(url), Caller(url)
    yield found
    for each in found:
        each.client.close()


@pytest.fixture
def caller(callers: tuple[Caller, Caller]) -> Caller:
    return callers[0]


@pytest.fixture(scope="module")
def website() -> Iterator[tuple[str, list[str]]]:
    """Another server of this machine, which no request may reach, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/image.png", asked
        server.shutdown()


def test_an_upload_and_the_folder_are_explained(caller: Caller) -> None:
    assert "given.png" in caller.show(encode(1), "given.png")
    assert "mine.png" in caller.call("take_from_folder", ["mine.png", None])


def test_no_url_and_no_file_of_others_is_read(caller: Caller, website: tuple[str, list[str]], folder: Path) -> None:
    address, asked = website
    upload = caller.upload(encode(2), "given.png").json()[0]
    for name in caller.events:
        assert caller.join(name, [as_file(address), as_file(address)]).status_code == 403, name
    mine, files = (
        str(folder / "photos" / "mine.png"),
        ["https://127.0.0.1:1/x.png", "file:///etc/passwd", "/etc/passwd"],
    )
    for path in (address, *files, mine, f"{upload}/../../../x.png", str(Path(upload).parent), ""):
        for is_stream in (True, False):
            file = as_file(path, is_stream=is_stream, url=address, orig_name="x.png")
            assert caller.join("take_upload", [file, None]).status_code == 403, path
            assert caller.join("take_upload", [None, None], json={"event_data": {"deep": [file]}}).status_code == 403
            body = {"data": [file, None], "fn_index": caller.events["choose_look"]["id"], "session_hash": "x"}
            assert caller.client.post("gradio_api/run/predict", json=body).status_code == 403
    for route in ("file=", "file/", "proxy=", "proxy/"):
        for path in (address, address.replace("/", "%2F"), "/etc/passwd", folder / "photos" / "mine.png"):
            assert caller.client.get(f"gradio_api/{route}{path}").status_code in (403, 404)
    for query in ("deep_link=x", "deep%5Flink=x"):
        assert caller.client.get(f"/?{query}").status_code == 404
    for route in ("component_server", "process_recording", "call/take_upload", "vibe-edit", "stream/x"):
        assert caller.client.post(f"gradio_api/{route}", json={"data": [as_file(address)]}).status_code == 404
    assert asked == []


def test_only_this_server_by_its_own_name_and_its_own_page_is_answered(caller: Caller, url: str) -> None:
    port = url.rstrip("/").rpartition(":")[2]
    for host in ("localhost", f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
        assert caller.client.get("config", headers={"host": host}).status_code == 200
    foreign_hosts = (f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "")
    malformed = (
        "evil@127.0.0.1",
        f"evil:x@localhost:{port}",
        "127.0.0.1 evil",
        "localhost.",
        "[::1",
        "::1",
        "localhost/x",
    )
    for host in (*foreign_hosts, *malformed):
        assert caller.client.get("/", headers={"host": host}).status_code == 403
        assert caller.join("start", [], headers={"host": host}).status_code == 403
    foreign = [{"origin": each} for each in ("http://evil.example", "null", "http://localhost:1", "http://[", "")]
    foreign += [{"origin": f"{each}127.0.0.1:{port}"} for each in ("", "x://", "http://evil@", "http:///")]
    foreign += [{"sec-fetch-site": each, "sec-fetch-mode": "cors"} for each in ("cross-site", "same-site")]
    own = {"origin": f"http://127.0.0.1:{port}", "sec-fetch-site": "same-origin"}
    for headers in foreign:
        assert caller.join("start", [], headers=headers).status_code == 403
        for path in ("login", "gradio_api/upload", "gradio_api/cancel", "gradio_api/run/predict", "gradio_api/reset"):
            assert caller.client.post(path, headers=headers).status_code == 403
        for path in ("gradio_api/queue/data?session_hash=x", "gradio_api/heartbeat/x", "config"):
            assert caller.client.get(path, headers=headers).status_code == 403
    assert caller.client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200  # a link to the page
    upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "x"}
    assert caller.client.get("gradio_api/queue/join", headers={**upgrade, **own}).status_code in (400, 403, 404)
    assert "Wrong" not in caller.call("start", [], headers=own)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /config HTTP/1.1\r\nHost: LOCALHOST\r\n", b"401"),
        (b"GET /config HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n", b"40"),
        (b"GET /config HTTP/1.1\r\n", b"40"),
        (b"GET http://evil.example/config HTTP/1.1\r\nHost: evil.example\r\n", b"40"),
        (b"GET //evil.example/config HTTP/1.1\r\nHost: localhost\r\n", b"404"),
    ],
)
def test_requests_that_no_browser_sends(url: str, request_: bytes, status: bytes) -> None:
    port = int(url.rstrip("/").rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(request_ + b"Connection: close\r\n\r\n")
        assert connection.makefile("rb").readline().split()[1].startswith(status)


def test_every_answer_keeps_other_pages_from_showing_it(caller: Caller) -> None:
    upload = caller.upload(encode(4), "x.png").json()[0]
    for path in ("", "config", "none", "theme.css", f"gradio_api/file={upload}", "gradio_api/file=/etc/passwd"):
        headers = caller.client.get(path).headers
        assert headers["x-frame-options"] == "SAMEORIGIN", path
        assert "frame-ancestors 'self'" in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "same-origin")


def test_an_upload_has_few_parts(caller: Caller) -> None:
    files = [("files", (f"{number}.png", b"0")) for number in range(999)]
    assert caller.client.post("gradio_api/upload", files=files).status_code == 413
    assert len(caller.client.post("gradio_api/upload", files=files[:4]).json()) == 4
    body = b"--x\r\nContent-Disposition: form-data; name=a; filename=a\r\n\r\n0\r\n" * 999 + b"--x--\r\n"
    for kind in ('multipart/form-data; boundary="x"', "multipart/form-data; boundary=y; boundary=x", "text/plain"):
        headers = {"content-type": kind}
        assert caller.client.post("gradio_api/upload", content=body, headers=headers).status_code == 400
    slow = (body[start : start + 7] for start in range(0, len(body), 7))  # ends of chunks within the marks of the parts
    headers = {"content-type": "multipart/form-data; boundary=x"}
    assert caller.client.post("gradio_api/upload", content=slow, headers=headers).status_code == 413


def test_a_large_body_is_refused_before_it_is_read(caller: Caller) -> None:
    assert caller.join("choose_class", ["x" * 2_000_000, None]).status_code == 413
    assert caller.client.post("gradio_api/queue/join", content=b"[" * 100_000).status_code in (400, 413)
    for content in (
        b'{"fn_index": -1}',
        b'{"fn_index": NaN}',
        b'{"fn_index": "0"}',
        b'{"fn_index": 0, "data": [Infinity]}',
    ):
        assert caller.client.post("gradio_api/queue/join", content=content).status_code == 400
    files = [("files", (f"{number}.png", b"0" * 900_000)) for number in range(3)]
    assert caller.client.post("gradio_api/upload", files=files).status_code == 413

    def drip() -> Iterator[bytes]:
        for _ in range(40):
            yield b"0" * 100_000

    kind = {"content-type": "multipart/form-data; boundary=x"}
    assert caller.client.post("gradio_api/upload", content=drip(), headers=kind).status_code in (400, 413)


def test_a_small_file_that_takes_much_memory_is_refused_before_it_is_decoded(caller: Caller) -> None:
    stream = BytesIO()
    Image.new("RGBA", (3000, 3000)).save(stream, "webp", lossless=True)
    assert len(stream.getvalue()) < 5000
    shown = caller.show(stream.getvalue(), "small.webp")
    assert "of memory, and the limit is 105 MB" in shown
    assert "in camtool app --max-memory" in shown


def test_wrong_passwords_are_answered_later_and_later(url: str) -> None:
    def log_in(password: str) -> tuple[int, float]:
        start = time.perf_counter()
        found = httpx.post(f"{url}login", data={"username": "anna", "password": password}, timeout=120)
        return found.status_code, time.perf_counter() - start

    assert httpx.get(f"{url}config").status_code == 401
    tries = [log_in("guess") for _ in range(2)]
    assert {status for status, _ in tries} == {400}
    assert [seconds > least for (_, seconds), least in zip(tries, (0.4, 0.9), strict=True)] == [True] * 2
    with ThreadPoolExecutor(6) as pool:
        assert 429 in {status for status, _ in pool.map(log_in, ["guess"] * 6)}
    assert log_in("secret")[0] == 200


def test_nothing_but_the_empty_page_is_answered_without_the_password(url: str, caller: Caller, folder: Path) -> None:
    upload = caller.upload(encode(6), "x.png").json()[0]
    session = {"session_hash": caller.session}
    read = ("info", "app_id", "queue/status", "queue/data", "upload_progress?upload_id=x", "monitoring", "mcp/sse")
    files = (f"file={upload}", f"file={folder / 'photos' / 'mine.png'}", f"heartbeat/{caller.session}", "call/start/x")
    with httpx.Client(base_url=url) as stranger:
        for cookie in (*caller.client.cookies, None):
            for path in ("config", *(f"gradio_api/{each}" for each in (*read, *files))):
                assert stranger.get(path, params=session if path.endswith("data") else None).status_code == 401, path
                assert stranger.head(path).status_code in (401, 404, 405), path
            for path in ("queue/join", "cancel", "reset", "run/predict", "api/predict", "upload"):
                body = {"data": [], "fn_index": 0, "event_id": "x", **session}
                assert stranger.post(f"gradio_api/{path}", json=body).status_code == 401, path
            page = stranger.get("")
            assert "mine.png" not in page.text
            assert "squeezenet" not in page.text
            if cookie is not None:
                stranger.cookies.set(cookie, "forged")


@pytest.mark.skipif(sys.platform != "linux", reason="the whole network 127.0.0.0/8 is of this machine")
def test_a_flood_of_calls_leaves_the_others_their_place(url: str, caller: Caller) -> None:
    with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2"), base_url=url, timeout=120) as flooder:
        flooder.post("login", data={"username": "anna", "password": "secret"})

        def send(number: int) -> int:
            body = {"data": [], "fn_index": caller.events["start"]["id"], "session_hash": f"flood {number % 20}"}
            return int(flooder.post("gradio_api/queue/join", json=body).status_code)

        with ThreadPoolExecutor(8) as pool:
            statuses = [*pool.map(send, range(200))]
        assert (statuses.count(200), statuses.count(429)) == (16, 184)
        assert "process_completed" in caller.call("start", [])
        assert send(0) == 429  # nobody fetched the answers
        answers = flooder.get("gradio_api/queue/data", params={"session_hash": f"flood {statuses.index(200) % 20}"})
        assert "process_completed" in answers.text
        assert send(0) == 200


@pytest.mark.skipif(sys.platform != "linux", reason="the whole network 127.0.0.0/8 is of this machine")
def test_a_stranger_who_guesses_passwords_keeps_nobody_else_out(url: str) -> None:
    def guess(number: int) -> int:
        with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2"), timeout=120) as stranger:
            spoofed = {"x-forwarded-for": f"10.0.0.{number}"}
            return stranger.post(f"{url}login", data={"username": "anna", "password": "x"}, headers=spoofed).status_code

    with ThreadPoolExecutor(8) as pool:
        guesses = [pool.submit(guess, number) for number in range(8)]
        time.sleep(0.5)
        correct = {"username": "anna", "password": "secret"}
        assert httpx.post(f"{url}login", data=correct, timeout=120).status_code == 200
        assert not all(each.done() for each in guesses)
        assert {each.result() for each in guesses} == {400, 429}


def test_users_behind_a_proxy_wait_for_their_own_guesses_alone(other_url: str) -> None:
    def log_in(address: str, password: str = "guess") -> int:
        form, headers = {"username": "anna", "password": password}, {"x-forwarded-for": address}
        return httpx.post(f"{other_url}login", data=form, headers=headers, timeout=120).status_code

    assert {log_in(address) for address in ("unknown", "::1::", "[2001:db8::1]:443", "::ffff:9.9.9.9")} == {400}
    with ThreadPoolExecutor(8) as pool:
        # A proxy writes an address of IPv4 in several ways, and the port is another in each request.
        forms = ("1.2.3.4", "::ffff:1.2.3.4", "1.2.3.4:{}", "[::ffff:1.2.3.4]:{}")
        guesses = [pool.submit(log_in, forms[number % 4].format(5000 + number)) for number in range(8)]
        time.sleep(0.5)
        assert log_in("::ffff:5.6.7.8", "secret") == 200
        assert {each.result() for each in guesses} == {400, 429}


def test_a_repeated_method_is_compared_once(caller: Caller) -> None:
    caller.call("start", [])
    shown = caller.call("compare_1", [["gradcam"] * 500, None])
    assert shown.rpartition('"process_completed"')[2].count("<figure") <= 1


def test_the_same_pixels_keep_the_names_of_their_users(callers: tuple[Caller, Caller]) -> None:
    (caller, other), data = callers, encode(3)
    for user, name in ((caller, "annas-patient.png"), (other, "bobs-holiday.png")):
        assert name in user.show(data, name)
    for user, name, foreign in ((caller, "annas", "bobs"), (other, "bobs", "annas"), (caller, "annas", "bobs")):
        saved = user.call("save_2", [None])
        assert f"{name}-" in saved
        assert foreign not in saved
        assert foreign not in user.call("choose_method", ["layercam", None])


def test_no_folder_of_the_server_is_shown(caller: Caller, folder: Path) -> None:
    caller.call("take_from_folder", ["mine.png", None])
    shown = caller.call("take_model", ["squeezenet1_1", None])
    assert "weights.pt" in shown
    shown += caller.call("take_model", ["alexnet", None])
    assert "none.pt" in shown
    (folder / "photos" / "mine.png").write_bytes(b"broken")
    shown += caller.call("take_from_folder", ["mine.png", None])
    assert "mine.png" in shown
    assert str(folder) not in shown + json.dumps(caller.client.get("config").json())


def test_all_uploads_together_have_a_limit(other_url: str) -> None:
    caller = Caller(other_url)
    answers = [caller.upload(os.urandom(900_000), f"{number}.png") for number in range(6)]
    assert [each.status_code for each in answers][-2:] == [507, 507]
    assert "try again" in answers[-1].text
    assert "try again" in caller.call("save", [None]) or "MB" in caller.call("save", [None])
    caller.client.close()
