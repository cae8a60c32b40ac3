"""The filter before Gradio: which requests reach it. It is an ASGI middleware, and refuses with one sentence.

Gradio serves much that this page does not need, fetches URLs for its callers, and answers requests that other web pages
make. The filter lets through what the page itself asks for, on the routes that it uses, with files that were uploaded.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, TypeAlias
from urllib.parse import parse_qs, unquote_plus

from camtool.app.error_sentences import to_sentence
from camtool.app.stores import DiskSpace
from camtool.errors import CamtoolError

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_API = "/gradio_api"

# Addresses that are read.
_READ = (
    *("/", "/config", "/theme.css", "/favicon.ico", "/robots.txt", "/manifest.json", "/logout"),
    *(f"{_API}/{name}" for name in ("info", "app_id", "user", "login_check", "startup-events", "theme.css")),
    *(f"{_API}/{name}" for name in ("queue/status", "upload_progress")),
)

_FILE = f"{_API}/file="

# Beginnings of addresses that are read.
_READ_BELOW = ("/assets/", "/static/", "/svelte/", f"{_API}/heartbeat/", _FILE)

_UPLOAD, _LOGIN = f"{_API}/upload", "/login"

_JOIN, _ANSWERS = f"{_API}/queue/join", f"{_API}/queue/data"

# Addresses to which the page posts JSON.
_CALLS = (_JOIN, *(f"{_API}/{name}" for name in ("cancel", "reset", "run/predict", "api/predict")))

# The name of a call in what Gradio sends.
_EVENT = re.compile(rb'"event_id": ?"([0-9a-f]{32})"')

# Address that Gradio answers for users who gave the password, and for all users if there is none.
_ASKS_GRADIO = f"{_API}/login_check"

# Addresses of Gradio's interface that need no password; Gradio asks for the last one when it starts.
#
# Those outside of the interface are the page without its contents.
_FOR_STRANGERS = (_ASKS_GRADIO, *(f"{_API}/{name}" for name in ("user", "theme.css", "startup-events")))

# Most calls of one address whose answers were not fetched yet: a quarter of the queue, so that others have a place.
#
# And the time after which a call counts as answered, e.g. of a browser that was closed before it asked for the answer.
_MAX_CALLS, _MAX_SECONDS = 16, 60.0

# Seconds that the page has to close its stream of answers when it is told of the end.
_MAX_CLOSING = 5.0

# Most bytes of a posted JSON or form. The largest are the masks of painting.
_MAX_BODY = 2**20

# Most bytes of an upload beside the file.
_FORM_BYTES = 2**16

# Most parts of an upload. The page sends one file; each part is an open file on the server.
_MAX_PARTS = 4

# Most passwords that wait to be checked for one address, so that a stranger keeps nobody else out.
_MAX_LOGINS = 3

# Most addresses whose wrong passwords are counted.
_MAX_GUESSERS = 1000

# Seconds until the answer to a wrong password. Each one in a row takes twice as long as the one before.
_FIRST_DELAY, _MAX_DELAY = 0.5, 4.0

# Headers of every answer: no other page shows this one in a frame, or learns its address.
_SAFE_HEADERS = (
    (b"content-security-policy", b"frame-ancestors 'self'"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
)

_HOST = r"(\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?)(?::[0-9]{1,5})?"
# Values of ``Host`` and ``Origin`` in lower case: without a user, spaces or a dot at the end.
_AUTHORITY, _ORIGIN = re.compile(_HOST), re.compile(f"https?://{_HOST}")

# The type of an upload as browsers write it.
_FORM = re.compile(rb"multipart/form-data; ?boundary=([\w'()+,./:=?-]{1,70})", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, eq=False)
class FilterRules:
    """Rules of the requests that the filter lets through.

    Attributes:
        host: The address that the server is bound to.
        names: More names by which the server is reached, e.g. that of a proxy.
        disk: The space for uploads. Files outside of its folder are neither taken nor given out.
        max_upload: The largest upload in bytes.
        has_password: Whether Gradio knows users; without, it need not be asked about each request.
    """

    host: str
    names: frozenset[str]
    disk: DiskSpace
    max_upload: int
    has_password: bool

    def is_served_as(self, name: str) -> bool:
        """Return True if the server goes by this name. Other names are those of pages that lead to this machine."""
        if is_local(name) or name in self.names or name == self.host.strip("[]").lower():
            return True
        if self.host.strip("[]") not in ("0.0.0.0", "::"):  # a comparison
            return False
        hostname = socket.gethostname().lower()
        return name in (hostname, f"{hostname}.local") or _parse_address(name) is not None


class _RefusedError(Exception):
    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass
class _Guesses:
    """Passwords that came from one address: how many wait, how many were wrong in a row, and who is next."""

    waiting: int = 0
    wrong: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class _Call(NamedTuple):
    """A call in the queue: the address that it came from, its session, and the time."""

    address: str
    session: str
    time: float


class RequestFilter:
    """Middleware that refuses requests of other pages, unknown routes, foreign files, and too much of anything.

    Args:
        app: The application behind it.
        rules: What it lets through.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], rules: FilterRules) -> None:
        self._app, self._rules = app, rules
        self._guesses: dict[str, _Guesses] = {}
        self._calls: dict[bytes, _Call] = {}
        # By session, while the page is told that its stream of answers ends.
        self._closed: dict[str, asyncio.Event] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the page uses no websockets
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_safely(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_SAFE_HEADERS]
            await send(message)

        try:
            await self._pass_on(scope, receive, send_safely)
        except _RefusedError as refusal:
            await _refuse(send_safely, refusal.status, str(refusal))

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"].rstrip("/") or "/", scope["method"]
        self._check_origin(scope, path)
        if "deep_link" in unquote_plus(scope["query_string"].decode("latin-1")):
            raise _RefusedError(404, "The page has no such links.")  # Gradio would load a page that somebody uploaded
        await self._check_password(scope, path)
        is_read = method in ("GET", "HEAD") and (path in _READ or path.startswith(_READ_BELOW))
        if method == "GET" and path == _ANSWERS:
            await self._give_answers(scope, receive, send)
        elif is_read:
            self._check_file(path)
            await self._app(scope, receive, send)
        elif method == "POST" and path in (_UPLOAD, _LOGIN, *_CALLS):
            await self._take_posted(path, scope, receive, send)
        else:
            raise _RefusedError(404, "The page has no such address.")

    def _check_file(self, path: str) -> None:
        """Check that an address is not that of a file outside of the page's folder.

        Raises:
            _RefusedError: It is.
        """
        if path.startswith(_FILE) and not self._rules.disk.has_file(path.removeprefix(_FILE)):
            raise _RefusedError(403, "This file is not one of the page.")

    async def _take_posted(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        if path == _UPLOAD:
            await self._upload(scope, receive, send)
        elif path == _LOGIN:
            await self._log_in(scope, await _read_body(receive), send)
        else:
            body = await _read_body(receive)
            sent = self._check_files(body)
            if path == _JOIN:
                session = str(sent.get("session_hash")) if isinstance(sent, dict) else ""
                await self._queue_call(scope, _replay(body, receive), send, session)
            else:
                await self._app(scope, _replay(body, receive), send)

    # ---------------------------------------------------------------------------------------------------- who asks

    def _check_origin(self, scope: Scope, path: str) -> None:
        """Check that a request is for this server by its name, and not made by another web page.

        Raises:
            _RefusedError: It is not.
        """
        hosts = _read_headers(scope, b"host")
        if len(hosts) != 1 or not self._rules.is_served_as(_get_name(_AUTHORITY, hosts[0])):
            raise _RefusedError(403, "The address names another host than this server; see --allow-host in its help.")
        for origin in _read_headers(scope, b"origin"):
            name = _get_name(_ORIGIN, origin)
            if not name or (origin.partition("//")[2] not in hosts and name not in self._rules.names):
                raise _RefusedError(403, "Another web page sent this request.")
        is_visit = path == "/" and scope["method"] == "GET"
        if not is_visit and not {"same-origin", "none"}.issuperset(_read_headers(scope, b"sec-fetch-site")):
            raise _RefusedError(403, "Another web page sent this request.")

    async def _check_password(self, scope: Scope, path: str) -> None:
        """Ask Gradio whether the user gave the password, as some of its routes do not.

        Raises:
            _RefusedError: There is a password, and the user did not give it.
        """
        is_for_all = not path.startswith(_API) or path in _FOR_STRANGERS
        if is_for_all or not self._rules.has_password:
            return
        statuses = []

        async def note(message: MutableMapping[str, Any]) -> None:
            statuses.append(message.get("status", 200))

        question = {"method": "GET", "path": _ASKS_GRADIO, "raw_path": _ASKS_GRADIO.encode(), "query_string": b""}
        await self._app({**scope, **question}, _replay(b"", None), note)
        if {*statuses} != {200}:
            raise _RefusedError(401, "Give the password first.")

    async def _log_in(self, scope: Scope, body: bytes, send: Send) -> None:
        """Check the passwords of an address one after the other, and answer to wrong ones later and later."""
        address = _get_network(scope)
        guesses = self._guesses.setdefault(address, _Guesses())
        if guesses.waiting >= _MAX_LOGINS:
            raise _RefusedError(429, "Too many passwords wait to be checked; try again in a minute.")

        async def delay(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                is_wrong = message["status"] >= 400
                guesses.wrong = guesses.wrong + 1 if is_wrong else 0
                if is_wrong:
                    # More powers of two than the limit needs would overflow.
                    await asyncio.sleep(min(_MAX_DELAY, _FIRST_DELAY * 2 ** min(guesses.wrong - 1, 8)))
            await send(message)

        guesses.waiting += 1
        try:
            async with guesses.lock:
                await self._app(scope, _replay(body, None), delay)
        finally:
            guesses.waiting -= 1
            idle = (name for name, guesser in self._guesses.items() if not guesser.waiting)
            if len(self._guesses) > _MAX_GUESSERS or not guesses.wrong:
                self._guesses.pop(next(idle, "") if guesses.wrong else address, None)

    # ------------------------------------------------------------------------------------------------- the queue

    async def _queue_call(self, scope: Scope, receive: Receive, send: Send, session: str) -> None:
        """Pass on a call, and count it if it is taken into the queue.

        Raises:
            _RefusedError: Too many calls of this address wait, or have answers that nobody fetched.
        """
        call = _Call(_get_network(scope), session, time.monotonic())
        self._calls = {name: other for name, other in self._calls.items() if call.time - other.time < _MAX_SECONDS}
        if sum(other.address == call.address for other in self._calls.values()) >= _MAX_CALLS:
            raise _RefusedError(429, "Too many of your requests wait; try again when the page has answered.")

        async def note(message: MutableMapping[str, Any]) -> None:
            self._calls |= dict.fromkeys(_EVENT.findall(message.get("body", b"")), call)
            if closed := self._closed.get(session):
                await closed.wait()
            await send(message)

        unnamed = str(id(call)).encode()
        self._calls[unnamed] = call  # at once, as others may come before Gradio gives it a name
        try:
            await self._app(scope, receive, note)
        finally:
            self._calls.pop(unnamed, None)

    async def _give_answers(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on the answers to the calls of a session, until the last one or until the user has gone.

        A page whose call is taken expects the answer in the stream that it has open. If Gradio had ended this stream,
        and the page did not know yet, the answer would be lost: so calls are confirmed after the page closed it.
        """
        session = parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [""])[0]
        last: list[MutableMapping[str, Any]] = []

        async def note(message: MutableMapping[str, Any]) -> None:
            content = message.get("body", b"")
            if last or b'"close_stream"' in content:
                self._closed.setdefault(session, asyncio.Event())
                last.append(message)
                return
            await send(message)
            if b'"process_completed"' in content:
                for name in _EVENT.findall(content):
                    self._calls.pop(name, None)

        try:
            try:
                await self._app(scope, receive, note)
            finally:  # Gradio drops the calls of a session whose user has gone
                self._calls = {name: call for name, call in self._calls.items() if call.session != session}
            if last:
                await _end_stream(last[0], receive, send)
        finally:
            if closed := self._closed.pop(session, None):
                closed.set()

    # ---------------------------------------------------------------------------------------------- what is posted

    def _check_files(self, body: bytes) -> Any:
        """Return what a call sent, if all files that it names are uploads. Gradio would fetch URLs.

        Raises:
            _RefusedError: One is not, or the body is no JSON.
        """
        try:
            sent = json.loads(body or b"null", parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise _RefusedError(400, "The request is no JSON.") from None
        number = sent.get("fn_index", 0) if isinstance(sent, dict) else 0
        if not isinstance(number, int) or number < 0:
            raise _RefusedError(400, "The page has no such function.")
        for path in _iterate_paths(sent):
            if not self._rules.disk.has_file(path):
                raise _RefusedError(403, "The image is not a file that was uploaded to this page; upload it first.")
        return sent

    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an upload on while it is within the limits of one file and of the disk."""
        disk, most = self._rules.disk, self._rules.max_upload + _FORM_BYTES
        announced = next((value for name, value in scope["headers"] if name.lower() == b"content-length"), b"0")
        boundary = _get_boundary(scope)
        received = parts = 0
        end, has_answered = b"", False

        async def count() -> MutableMapping[str, Any]:
            nonlocal received, parts, end
            message = await receive()
            size = len(message.get("body", b""))
            received += size
            seen = end + message.get("body", b"")
            parts += seen.count(boundary)
            end = seen[-len(boundary) + 1 :]
            if parts > _MAX_PARTS + 1:  # one more ends the form
                raise _RefusedError(413, f"The upload has more than {_MAX_PARTS} parts.")
            if received > most:
                raise _RefusedError(413, f"The file is larger than {self._rules.max_upload / 2**20:g} MB.")
            disk.take(size)
            return message

        async def answer(message: MutableMapping[str, Any]) -> None:
            nonlocal has_answered
            has_answered = True
            await send(message)

        try:
            if announced.isdigit() and int(announced) > most:
                raise _RefusedError(413, f"The file is larger than {self._rules.max_upload / 2**20:g} MB.")
            await asyncio.to_thread(disk.make_room, int(announced) if announced.isdigit() else 0)
            await self._app(scope, count, answer)
        except (CamtoolError, _RefusedError) as error:
            if not has_answered:
                status = error.status if isinstance(error, _RefusedError) else 507
                raise _RefusedError(status, to_sentence(error)) from None


def is_local(host: str) -> bool:
    """Return True if only this machine reaches a server that is bound to this address."""
    address = _parse_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address in numbers; None for a name, which can be made to lead elsewhere."""
    with suppress(ValueError):
        return ipaddress.ip_address(text)
    return None


def _get_name(pattern: re.Pattern[str], text: str) -> str:
    """Return the host in a ``Host`` or an ``Origin``, without its port; empty if it is malformed."""
    match = pattern.fullmatch(text)
    return match[1].strip("[]") if match else ""


def _read_headers(scope: Scope, name: bytes) -> list[str]:
    """Return the values of a header, in lower case."""
    return [value.decode("latin-1").lower() for key, value in scope["headers"] if key.lower() == name]


def _get_network(scope: Scope) -> str:
    """Return the address of a caller, without the port that some proxies add.

    Of IPv6 it is the network, which one caller may have as a whole, except for addresses of IPv4 that are written so.
    """
    text = str((scope.get("client") or ("",))[0])
    address = _parse_address(_get_name(_AUTHORITY, text) or text)
    if address is None:
        return text
    address = getattr(address, "ipv4_mapped", None) or address
    return str(address) if address.version == 4 else f"{int(address) >> 64:x}"


def _get_boundary(scope: Scope) -> bytes:
    """Return what stands ahead of each part of an upload.

    Raises:
        _RefusedError: It is written in another way than browsers do, so that its parts could be counted wrong.
    """
    kinds = [value for name, value in scope["headers"] if name.lower() == b"content-type"]
    match = _FORM.fullmatch(kinds[0]) if len(kinds) == 1 else None
    if match is None:
        raise _RefusedError(400, "The request is no upload.")
    return b"--" + bytes(match[1])


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not of JSON")


def _iterate_paths(sent: Any) -> Iterator[str]:
    """Yield the paths of all files in a JSON value."""
    waiting = [sent]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if isinstance(value.get("path"), str):
                yield value["path"]
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


async def _read_body(receive: Receive) -> bytes:
    """Return the body of a request.

    Raises:
        _RefusedError: It is too large, or the caller has gone.
    """
    body, has_more = b"", True
    while has_more:
        message = await receive()
        if message["type"] != "http.request":
            raise _RefusedError(400, "The request ended early.")
        body += message.get("body", b"")
        has_more = message.get("more_body", False)
        if len(body) > _MAX_BODY:
            raise _RefusedError(413, f"The request has more than {_MAX_BODY:,} bytes.")
    return body


def _replay(body: bytes, receive: Receive | None) -> Receive:
    """Return a function that gives a body which was read already, then what comes after it."""
    is_given = False

    async def replay() -> MutableMapping[str, Any]:
        nonlocal is_given
        if is_given:
            return await receive() if receive is not None else {"type": "http.disconnect"}
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _end_stream(last: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    """Send the last message of a stream, and wait until the client has closed it."""

    async def wait_until_closed() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    await send({**last, "more_body": True})
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(wait_until_closed(), _MAX_CLOSING)
    await send({"type": "http.response.body"})


async def _refuse(send: Send, status: int, sentence: str) -> None:
    """Answer with a sentence."""
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": sentence.encode()})
