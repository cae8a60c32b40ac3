"""Downloads: exactly the image that the user named, within limits, and nothing by another way. Loopback only."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import camtool
from camtool.errors import ImageError
from camtool.inputs import downloads
from camtool.inputs.downloads import download_image
from camtool.inputs.image_files import read_image
from camtool.runs.executor import run_jobs
from camtool.runs.job_list import plan_run
from camtool.runs.result_writer import Failure, Success
from camtool.runs.save_kinds import OutputSettings
from tests.cli.test_commands import start_process

Answer = Callable[[BaseHTTPRequestHandler], None]


def encode_photo() -> bytes:
    pixels = np.random.default_rng(2).integers(0, 256, (40, 60, 3), np.uint8)
    stream = BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


PHOTO = encode_photo()


def send(content: bytes = PHOTO, kind: str = "image/png", *, length: int | None = None, status: int = 200) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Type", kind)
        if length != -1:
            request.send_header("Content-Length", str(len(content) if length is None else length))
        request.end_headers()
        request.wfile.write(content)

    return answer


def redirect(to: str, status: int = 302) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Location", to)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


class EndlessAnswer:
    """An answer without an end.

    Attributes:
        sent: Number of bytes that the client took.
        has_ended: Set when the client has gone.
    """

    def __init__(self, status: int = 200, **headers: str) -> None:
        self.status, self.headers = status, headers
        self.sent, self.has_ended = 0, threading.Event()

    def __call__(self, request: BaseHTTPRequestHandler) -> None:
        request.send_response(self.status)
        for name, value in self.headers.items():
            request.send_header(name, value)
        request.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(10_000):
                request.wfile.write(bytes(2**16))
                self.sent += 2**16
        self.has_ended.set()


class Server:
    """A web server on this machine: path → what it answers, and the paths that were asked for."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                outer.answers.get(self.path, send(b"gone", "text/plain", status=404))(self)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def serve(self, path: str, answer: Answer) -> str:
        self.answers[path] = answer
        return f"http://127.0.0.1:{self.server.server_port}{path}"

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    server = Server()
    yield server
    server.stop()


def test_an_image_is_read_from_its_url_and_nothing_else_is_asked_for(server: Server, demo) -> None:
    url = server.serve("/photo.png", send())
    np.testing.assert_array_equal(np.asarray(read_image(url)), np.asarray(Image.open(BytesIO(PHOTO))))
    assert server.asked == ["/photo.png"]
    result = camtool.explain(demo, url)
    assert result.photo.shape == (40, 60, 3)
    assert camtool.explain(demo, [url, BytesIO(PHOTO).getvalue()])[0].label == result.label
    assert server.asked == ["/photo.png"] * 3


@pytest.mark.parametrize("kind", ["application/octet-stream", "binary/octet-stream", "image/jpeg"])
def test_the_bytes_decide_the_format_and_not_the_servers_name_for_it(server: Server, kind: str) -> None:
    assert read_image(server.serve("/photo", send(kind=kind))).size == (60, 40)


def test_a_server_that_does_not_say_the_length_is_read_to_the_end(server: Server) -> None:
    assert download_image(server.serve("/photo", send(length=-1))) == PHOTO


@pytest.mark.parametrize(
    ("url", "path"),
    [("/a photo.png?x=1&y=ä#part", "/a%20photo.png?x=1&y=%C3%A4"), ("/a%20b.png", "/a%20b.png"), ("", "/")],
)
def test_characters_of_a_url_are_quoted(server: Server, url: str, path: str) -> None:
    server.serve(path, send())
    assert download_image(server.serve(path, send()).removesuffix(path) + url) == PHOTO
    assert server.asked == [path]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (send(b"<html>", "text/html"), "no image: the server sends text/html; it may be the page that shows the image"),
        (send(b"{}", "application/json"), "no image: the server sends application/json"),
        (send(b"MZ not an image"), "is no image: its content is none of PNG"),
        (send(PHOTO[:-40]), "is damaged or cut short"),
        (send(b""), "empty, 0 bytes"),
        (send(status=403), "the server answers 403"),
        (send(PHOTO, length=len(PHOTO) + 10), "the connection ended after"),
        (send(PHOTO, length=2**40), "is too large: more than 256 MiB"),
        (redirect("file:///etc/hostname"), "302"),
        (redirect("ftp://127.0.0.1/a.png"), "which is not allowed"),
        (redirect("data:image/png;base64,AAAA"), "302"),
        (redirect("/photo.png"), "302"),  # to itself, forever
    ],
)
def test_an_answer_that_is_no_image_is_an_error_with_the_url(server: Server, answer: Answer, message: str) -> None:
    url = server.serve("/photo.png", answer)
    with pytest.raises(ImageError, match=message) as error:
        read_image(url)
    assert url in str(error.value)


def test_no_more_than_the_limit_is_read(server: Server) -> None:
    answer = EndlessAnswer()
    with pytest.raises(ImageError, match="more than 1 MiB"):
        download_image(server.serve("/endless", answer), most_bytes=2**20)
    assert answer.has_ended.wait(60)
    assert answer.sent < 2**26


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n"
DRIPPED = {
    "status": (b"HTTP/1.1 2", b"0"),
    "headers": (HEAD, b"X"),
    "many headers": (HEAD, b"X: y\r\n"),
    "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": (HEAD + b"Content-Length: 5000\r\n\r\n", b"0"),
    "body of unknown length": (HEAD + b"\r\n", PHOTO[:1]),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n0\r\n"),
    "size of a chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
    "trailers": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n"),
    "redirection": (b"HTTP/1.1 302 Found\r\nLocation: /dripped\r\nX-", b"X"),
    "error": (b"HTTP/1.1 404 Gone\r\nX-", b"X"),
    "nothing": (b"", b""),
}


class Drip:
    """An answer of which a piece comes now and then, forever.

    Attributes:
        sent: Number of bytes that were sent.
        seconds: Time until the client had gone.
        is_over: Set when the client has gone; a test sets it to end the answer.
    """

    def __init__(self, start: bytes, drop: bytes) -> None:
        self.start, self.drop = start, drop
        self.sent, self.seconds, self.is_over = 0, 0.0, threading.Event()

    def __call__(self, request: BaseHTTPRequestHandler) -> None:
        started, request.close_connection = time.monotonic(), True
        with contextlib.suppress(OSError):
            request.wfile.write(self.start)
            while not self.is_over.wait(0.02):
                request.wfile.write(self.drop)
                self.sent += len(self.drop)
        self.seconds = time.monotonic() - started
        self.is_over.set()


@pytest.mark.parametrize("name", DRIPPED)
def test_one_deadline_holds_for_the_whole_exchange(server: Server, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    drip = Drip(*DRIPPED[name])
    monkeypatch.setattr(downloads, "_DEADLINE", 0.3)
    started = time.monotonic()
    with pytest.raises(ImageError, match=r"/dripped cannot be downloaded: it took more than 0\.3 seconds"):
        download_image(server.serve("/dripped", drip))
    assert time.monotonic() - started < 60
    drip.is_over.set()


def test_a_silent_server_is_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = threading.Event()
    monkeypatch.setattr(downloads, "_TIMEOUT", 0.2)
    with pytest.raises(ImageError, match="timed out"):
        download_image(server.serve("/silent", lambda _: waiting.wait(60)))
    waiting.set()


def test_a_redirection_is_not_read(server: Server) -> None:
    answer = EndlessAnswer(302, Location="/photo.png")
    server.serve("/photo.png", send())
    assert download_image(server.serve("/old", answer)) == PHOTO
    assert answer.has_ended.wait(60)
    assert answer.sent < 2**25


def test_redirections_within_the_web_are_followed(server: Server) -> None:
    server.serve("/photo.png", send())
    assert download_image(server.serve("/old", redirect("/photo.png", 301))) == PHOTO
    assert server.asked == ["/old", "/photo.png"]


def test_a_redirection_never_leads_from_https_to_http() -> None:
    from urllib.request import Request

    handler = downloads._Redirections()
    request = Request("https://x.org/a")
    with pytest.raises(ImageError, match=r"redirects to 'http://x\.org/b', which is not allowed"):
        handler.redirect_request(request, BytesIO(), 302, "", None, "http://x.org/b")
    assert handler.redirect_request(request, BytesIO(), 302, "", {}, "https://y.org/b").full_url == "https://y.org/b"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://", "is not a URL of an image"),
        ("https:///a.png", "is not a URL of an image"),
        ("http://x.org:port/a.png", "is not a URL"),
        ("http://[::1/a.png", "is not a URL"),
        ("https://me:secret@x.org/a.png", "user name or password"),
    ],
)
def test_a_malformed_url_is_an_error(url: str, message: str) -> None:
    with pytest.raises(ImageError, match=message) as error:
        download_image(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("url", ["ftp://x.org/a.png", "file:///etc/hostname", "s3://bucket/a.png", "data://a"])
def test_other_schemes_are_refused_without_a_connection(url: str) -> None:
    with pytest.raises(ImageError, match="URLs are not read"):
        read_image(url)


def test_a_server_that_is_not_there_is_an_error(server: Server) -> None:
    server.stop()
    with pytest.raises(ImageError, match=r"cannot be downloaded: .*refused"):
        download_image(f"http://127.0.0.1:{server.server.server_port}/a.png")


def test_a_url_as_a_path_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="is a URL in a Path, not a file; images may have a URL, given as a string"):
        read_image(Path("https://x.org/a.png"))


def test_a_run_downloads_the_urls_that_it_was_given(server: Server, demo, tmp_path: Path) -> None:
    urls = [server.serve("/album/photo.png?size=1", send()), server.serve("/album/gone.png", send(status=404))]
    plan = plan_run(urls, out=tmp_path)
    assert server.asked == []
    outcomes = list(run_jobs(camtool.Explainer(demo), plan.jobs, None, OutputSettings(tmp_path), workers=0))
    assert isinstance(outcomes[0], Success)
    assert outcomes[0].lines[0].image == urls[0]
    assert outcomes[0].lines[0].files["overlay"].startswith("photo.gradcam.")
    assert isinstance(outcomes[1], Failure)
    assert "the server answers 404" in outcomes[1].reason
    assert server.asked == ["/album/photo.png?size=1", "/album/gone.png"]


# ---------------------------------------------------------------------------------------------------- the real command


def hurried() -> camtool.Loaded:
    """A model of a process that downloads with a deadline of two seconds."""
    downloads._DEADLINE = 2.0
    return camtool.load("demo")


def run_command(folder: Path, *urls: str) -> tuple[int, str, str]:
    """Run ``camtool run`` in a process, with a deadline of two seconds; return its exit code and what it prints."""
    with start_process("run", *urls, "--model", f"{__name__}:hurried", "--quiet", cwd=folder) as process:
        try:
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    return process.returncode, out, err


def test_the_command_gives_up_answers_that_drip(server: Server, tmp_path: Path) -> None:
    drips = {name: Drip(*DRIPPED[name]) for name in ("status", "headers", "trailers", "redirection")}
    urls = [server.serve(f"/{name}", drip) for name, drip in drips.items()]
    code, out, err = run_command(tmp_path, *urls)
    reasons = [f"  {url} cannot be downloaded: it took more than 2 seconds." for url in urls]
    assert (code, out, err.splitlines()) == (1, "", ["4 photos could not be explained:", *reasons])
    for name, drip in drips.items():
        assert drip.is_over.wait(60), name
        assert 1.5 < drip.seconds < 30, name  # a machine under load is late
        assert 0 < drip.sent < 10_000, name
    assert sorted(server.asked) == sorted(f"/{name}" for name in drips)


def test_the_command_closes_a_redirection_unread(server: Server, tmp_path: Path) -> None:
    answer = EndlessAnswer(302, Location="/photo.png")
    server.serve("/photo.png", send())
    assert run_command(tmp_path, server.serve("/old", answer)) == (0, "", "")
    assert answer.has_ended.wait(60)
    assert answer.sent < 2**25  # what the two ends of the connection hold
    assert server.asked == ["/old", "/photo.png"]
    assert len([*(tmp_path / "out").glob("old.gradcam.*.png")]) == 1
