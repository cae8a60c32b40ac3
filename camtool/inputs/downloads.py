"""Downloads: the image at a URL that the user named, and nothing else. No other code of camtool opens a connection.

Hugging Face, timm and torchvision download weights themselves, when the user names a model.
"""

from __future__ import annotations

import time
from http.client import HTTPException, HTTPMessage
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

from camtool.errors import ImageError

__all__ = ["MOST_BYTES", "download_image"]

MOST_BYTES = 256 * 2**20
"""Largest file that is downloaded; photos are far smaller."""

_TIMEOUT = 30.0
"""Seconds without an answer."""

_DEADLINE = 300.0
"""Seconds for a whole download: a server may send a byte now and then forever."""

_CHUNK = 2**16

_SCHEMES = ("http", "https")

_NO_IMAGES = ("text/", "application/json", "application/xml", "application/xhtml", "video/", "audio/")
"""Types of content that are not images. Servers send images under many other names, so their bytes decide."""


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
    try:
        with _build_opener().open(request, timeout=_TIMEOUT) as response:
            _check_type(url, response.headers.get("Content-Type", "").partition(";")[0].strip().lower())
            return _read_body(url, response, most_bytes)
    except HTTPError as error:
        error.close()
        raise ImageError(f"{url} cannot be downloaded: the server answers {error.code} {error.reason}.") from error
    except URLError as error:
        raise ImageError(f"{url} cannot be downloaded: {error.reason}.") from error
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, ImageError):
            raise
        raise ImageError(f"{url} cannot be downloaded: {error or type(error).__name__}.") from error


def _quote_url(url: str) -> str:
    """Return a URL in ASCII: other characters, e.g. spaces in a name, are quoted.

    Raises:
        ImageError: There is no host, or a name and a password, which would appear in files and messages.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        name = "" if host is None else host.encode("idna").decode("ascii")
    except ValueError as error:
        raise ImageError(f"{url!r} is not a URL: {error}.") from error
    if not name or parts.scheme.lower() not in _SCHEMES:
        raise ImageError(f"{url!r} is not a URL of an image; it must begin with http:// or https:// and a host.")
    if "@" in parts.netloc:
        raise ImageError("a URL with a user name or password is not read: both would appear in results and messages.")
    name = f"[{name}]" if ":" in name else name
    where = name if port is None else f"{name}:{port}"
    path, query = (quote(part, safe="%/:=&?~#+!$,;'@()*[]") for part in (parts.path or "/", parts.query))
    return urlunsplit((parts.scheme.lower(), where, path, query, ""))


def _check_type(url: str, kind: str) -> None:
    """Check the type of content that a server names.

    Raises:
        ImageError: It is no image.
    """
    if kind.startswith(_NO_IMAGES):
        hint = "; it may be the page that shows the image" if kind == "text/html" else ""
        raise ImageError(f"{url} is no image: the server sends {kind}{hint}.")


def _read_body(url: str, response: Any, most_bytes: int) -> bytes:
    """Return the content.

    Raises:
        ImageError: It is too large, takes too long, or ends early.
    """
    size = response.headers.get("Content-Length", "")
    expected = int(size) if size.isdecimal() else None
    deadline, chunks, count = time.monotonic() + _DEADLINE, [], 0
    while (expected is None or expected <= most_bytes) and count <= most_bytes:
        chunk = response.read1(_CHUNK)
        if not chunk:
            break
        chunks.append(chunk)
        count += len(chunk)
        if time.monotonic() > deadline:
            raise ImageError(f"{url} cannot be downloaded: it took more than {_DEADLINE:.0f} seconds.")
    if max(count, expected or 0) > most_bytes:
        raise ImageError(f"{url} is too large: more than {most_bytes / 2**20:.0f} MiB. Download it yourself.")
    if expected is not None and count < expected:
        raise ImageError(f"{url} cannot be downloaded: the connection ended after {count:,} of {expected:,} bytes.")
    return b"".join(chunks)


class _Redirections(HTTPRedirectHandler):
    """Redirections to the web only; the standard library's also lead to FTP."""

    max_redirections = 5

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        scheme = urlsplit(newurl).scheme.lower()
        if scheme not in _SCHEMES or (req.type == "https" and scheme == "http"):
            fp.close()
            raise ImageError(f"{req.full_url} cannot be downloaded: it redirects to {newurl!r}, which is not allowed.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _build_opener() -> OpenerDirector:
    """Return an opener that knows the web only: the standard library's also opens files, FTP and data URLs."""
    opener = OpenerDirector()
    handlers = (ProxyHandler, HTTPHandler, HTTPSHandler, HTTPDefaultErrorHandler, HTTPErrorProcessor, _Redirections)
    for handler in handlers:
        opener.add_handler(handler())
    return opener
