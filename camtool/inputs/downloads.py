"""Downloads: the image at a URL that the user named, and nothing else. No other code of camtool opens a connection.

Hugging Face, timm and torchvision download weights themselves, when the user names a model.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPSConnection
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit, urlunsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from camtool.errors import ImageError, RaiseAs, raise_interrupt

# Largest file that is downloaded; photos are far smaller.
MOST_BYTES = 256 * 2**20

# Seconds without an answer.
_TIMEOUT = 30.0

# Seconds for a whole exchange with all redirections: a server may send a byte of it now and then forever.
_DEADLINE = 120.0

# Addresses of a host that are tried.
_MOST_ADDRESSES = 4

_CHUNK = 2**16

_SCHEMES = ("http", "https")

# Types of content that are not images. Servers send images under many other names, so their bytes decide.
_NO_IMAGES = ("text/", "application/json", "application/xml", "application/xhtml", "video/", "audio/")


def download_image(url: str, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the file at a URL, without looking at anything else on the server.

    Redirections are followed to ``http`` and ``https`` only, and from ``https`` never to ``http``.

    Args:
        url: ``http://`` or ``https://``.
        most_bytes: The largest size.

    Raises:
        ImageError: The URL is malformed, the server cannot be reached or refuses, or what it sends is no image or too
            large.
    """
    request = Request(_quote_url(url), headers={"User-Agent": "camtool", "Accept": "image/*,*/*;q=0.1"})
    with _Deadline(_DEADLINE) as deadline:
        try:
            content = _exchange(url, request, deadline, most_bytes)
        except ImageError:
            deadline.check(url)
            raise
        # Without a length, a content that was shut down looks complete.
        deadline.check(url)
        return content


def _exchange(url: str, request: Request, deadline: _Deadline, most_bytes: int) -> bytes:
    """Send a request, and return the content of the answer.

    Raises:
        ImageError: As for :func:`download_image`.
    """
    try:
        with _build_opener(deadline).open(request, timeout=_TIMEOUT) as response:
            kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
            if kind.startswith(_NO_IMAGES):
                hint = "; it may be the page that shows the image" if kind == "text/html" else ""
                raise ImageError(f"{url} is no image: the server sends {kind}{hint}.")
            return _read_body(url, response, most_bytes)
    except HTTPError as error:
        error.close()
        raise ImageError(f"{url} cannot be downloaded: the server answers {error.code} {error.reason}.") from error
    except (OSError, HTTPException, ValueError) as error:
        raise_interrupt(error, ImageError)
        reason = error.reason if isinstance(error, URLError) else error
        raise ImageError(f"{url} cannot be downloaded: {reason}.") from error


def _quote_url(url: str) -> str:
    """Return a URL in ASCII: other characters, e.g. spaces in a name, are quoted.

    Raises:
        ImageError: There is no host, or a name and a password, which would appear in files and messages.
    """
    with RaiseAs(lambda error: ImageError(f"{url!r} is not a URL: {error}."), ValueError):
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        name = "" if host is None else host.encode("idna").decode("ascii")
    if not name or parts.scheme.lower() not in _SCHEMES:
        raise ImageError(f"{url!r} is not a URL of an image; it must begin with http:// or https:// and a host.")
    if "@" in parts.netloc:
        raise ImageError("a URL with a user name or password is not read: both would appear in results and messages.")
    name = f"[{name}]" if ":" in name else name
    where = name if port is None else f"{name}:{port}"
    path, query = (quote(part, safe="%/:=&?~#+!$,;'@()*[]") for part in (parts.path or "/", parts.query))
    return urlunsplit((parts.scheme.lower(), where, path, query, ""))


def _read_body(url: str, response: Any, most_bytes: int) -> bytes:
    """Return the content.

    Raises:
        ImageError: It is too large, or ends early.
    """
    size = response.headers.get("Content-Length", "")
    expected = int(size) if size.isdecimal() else None
    chunks, count = [], 0
    while (expected is None or expected <= most_bytes) and count <= most_bytes:
        chunk = response.read1(_CHUNK)
        if not chunk:
            break
        chunks.append(chunk)
        count += len(chunk)
    if max(count, expected or 0) > most_bytes:
        raise ImageError(f"{url} is too large: more than {most_bytes / 2**20:.0f} MiB. Download it yourself.")
    if expected is not None and count < expected:
        raise ImageError(f"{url} cannot be downloaded: the connection ended after {count:,} of {expected:,} bytes.")
    return b"".join(chunks)


class _Deadline:
    """Deadline of an exchange, as a context: when it has passed, the connection is shut down, wherever it is read.

    A timeout of a socket begins again with each byte, and http.client reads lines, headers and trailers in loops.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._end = seconds, time.monotonic() + seconds
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True
        self._lock, self._has_passed = threading.Lock(), False
        self._connection: socket.socket | None = None

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._shut_down(None)

    def connect(self, address: tuple[str, int], timeout: float, *_: Any) -> socket.socket:
        """Connect to a host; the connection before, which redirected here, is shut down.

        Raises:
            OSError: The host cannot be reached in time.
        """
        failure: OSError = TimeoutError("timed out")
        for *_others, endpoint in socket.getaddrinfo(*address, 0, socket.SOCK_STREAM)[:_MOST_ADDRESSES]:
            left = min(timeout, self._end - time.monotonic())
            if left <= 0:
                break
            try:
                connection = socket.create_connection((str(endpoint[0]), int(endpoint[1])), left)
            except OSError as error:
                raise_interrupt(error)
                failure = error
                continue
            connection.settimeout(timeout)
            # A second handle of the connection: TLS takes the first one over.
            self._shut_down(connection.dup())
            return connection
        raise failure

    def check(self, url: str) -> None:
        """Check that the deadline has not passed.

        Raises:
            ImageError: It has.
        """
        if self._has_passed:
            raise ImageError(f"{url} cannot be downloaded: it took more than {self._seconds:g} seconds.")

    def _expire(self) -> None:
        self._has_passed = True
        self._shut_down(None)

    def _shut_down(self, following: socket.socket | None) -> None:
        """Shut down the connection, and keep the following one, if the deadline has not passed."""
        with self._lock:
            ended, self._connection = [self._connection], following
            if self._has_passed:
                ended, self._connection = [*ended, following], None
        for connection in ended:
            if connection is not None:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()


class _Connections(HTTPHandler, HTTPSHandler):
    """Connections that end with a deadline."""

    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: Request) -> Any:
        return self.do_open(lambda host, **options: self._watch(HTTPConnection(host, **options)), req)

    def https_open(self, req: Request) -> Any:
        return self.do_open(lambda host, **options: self._watch(HTTPSConnection(host, **options)), req)

    def _watch(self, connection: HTTPConnection) -> HTTPConnection:
        connection._create_connection = self._deadline.connect  # type: ignore[attr-defined]
        return connection


class _Redirections(HTTPRedirectHandler):
    """Redirections to the web only; the standard library's also lead to FTP."""

    max_redirections = 5

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        # The standard library would read the whole content of the redirection first.
        fp.close()
        scheme = urlsplit(newurl).scheme.lower()
        if scheme not in _SCHEMES or (req.type == "https" and scheme == "http"):
            raise ImageError(f"{req.full_url} cannot be downloaded: it redirects to {newurl!r}, which is not allowed.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _build_opener(deadline: _Deadline) -> OpenerDirector:
    """Return an opener that knows the web only: the standard library's also opens files, FTP and data URLs."""
    opener = OpenerDirector()
    for handler in (ProxyHandler, HTTPDefaultErrorHandler, HTTPErrorProcessor, _Redirections):
        opener.add_handler(handler())
    opener.add_handler(_Connections(deadline))
    return opener
