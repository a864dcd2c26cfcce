"""Checks of every request before a route reads it (host, origin, size), headers of every answer, and rate limits."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlpto.service.settings import LOOPBACK, WebSettings
from rlpto.service.web.errors import API, Problem, problem_response

LARGEST_BODY_BYTES = 384 * 1024
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
COOKIE = "rlpto_session"
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::[0-9]{1,5})?")
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


WINDOW_S = 10.0
"""All changes that are allowed in this time may be made at once."""
WRONG_SIGN_INS_PER_SECOND = 0.5
"""Refused sign-ins allowed per address, per second over ten seconds; a valid token is never refused."""
SIGN_INS_PER_SECOND = 3.0
"""The same of beginnings of single sign-on: each asks the provider."""
_CLOSING = (400, 408, 413)
"""After these answers the rest of the request is not read, so the connection is closed."""


class RequestGuard:
    """ASGI middleware, which also counts every answer in the metrics of the application's service.

    Starlette's TrustedHostMiddleware is not used: it answers in plain text, and every error here is a problem in JSON.
    """

    def __init__(self, app: ASGIApp, settings: WebSettings) -> None:
        self._app = app
        self._hosts = {host.lower().strip("[]") for host in (*LOOPBACK, settings.host, *settings.hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                if status in _CLOSING:
                    headers["Connection"] = "close"
                if "cache-control" not in headers:
                    headers["Cache-Control"] = "no-store"
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        try:
            if refusal is not None:
                await problem_response(*refusal)(scope, receive, send_guarded)
            else:
                await self._app(scope, _bounded(receive), send_guarded)
        finally:
            service = getattr(scope["app"].state, "service", None)
            if service is not None:
                service.metrics.note(scope["method"], _route(scope), status, time.perf_counter() - began)

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str, str] | None:
        """Status, kind and detail of a refusal; None: the request is accepted."""
        if "transfer-encoding" in headers and "content-length" in headers:
            return 400, "bad-framing", "expected Content-Length or Transfer-Encoding, got both"
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return (
                421,
                "wrong-host",
                "this service does not answer for that host; web.hosts in its settings lists others",
            )
        if method not in SAFE_METHODS:
            origin = headers.get("origin")
            if origin is not None and origin.partition("://")[2].lower() != hosts[0].lower():
                return 403, "wrong-origin", "pages of other origins may not change anything here"
            if origin is None and headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                return 403, "wrong-origin", "pages of other origins may not change anything here"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:12]) > LARGEST_BODY_BYTES:
            return 413, "too-large", f"expected a body of at most {LARGEST_BODY_BYTES} bytes"
        return None

    def _is_ours(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        return found is not None and found["name"].lower().strip("[]") in self._hosts


def _route(scope: Scope) -> str:
    """The address that answered, with names in place of ids; none: no address did."""
    path = getattr(scope.get("route"), "path", None)
    if path is None:
        return "none"
    # A route of an included router does not know that router's prefix.
    return f"{API}{path}" if scope["path"].startswith(f"{API}/") and not path.startswith(API) else str(path)


def _bounded(receive: Receive) -> Receive:
    """The same for bodies of unknown length."""
    left = LARGEST_BODY_BYTES

    async def bounded() -> Message:
        nonlocal left
        message = await receive()
        if message["type"] == "http.request":
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"expected a body of at most {LARGEST_BODY_BYTES} bytes")
        return message

    return bounded


class RateLimits:
    """Limits per user: changes per second, and streams open at a time; and sign-ins by address."""

    def __init__(self, per_second: float, streams: int) -> None:
        self.changes = Windows(per_second * WINDOW_S, "changes")
        self.wrong_sign_ins = Windows(WRONG_SIGN_INS_PER_SECOND * WINDOW_S, "refused sign-ins")
        self.sign_ins = Windows(SIGN_INS_PER_SECOND * WINDOW_S, "sign-ins")
        self.most_streams = streams
        self._streams: Counter[str] = Counter()

    def check_stream(self, user: str) -> None:
        """Raise Problem 429 for a user who has as many streams open as allowed."""
        if self._streams[user] >= self.most_streams:
            detail = f"{user} has {self.most_streams} streams open; close one first"
            raise Problem(429, "too-many-streams", detail, {"Retry-After": "5"})

    @contextmanager
    def stream(self, user: str) -> Iterator[None]:
        """Count a stream while it is open."""
        self._streams[user] += 1
        try:
            yield
        finally:
            self._streams[user] -= 1


class Windows:
    """Counts by key in windows of ten seconds. most: allowed in a window. what: is counted, for people."""

    def __init__(self, most: float, what: str) -> None:
        self.most, self._what = most, what
        self._began = -math.inf
        self._counts: Counter[str] = Counter()

    def count(self, key: str) -> int:
        """Count one more of a key; how many that makes in this window."""
        now = time.monotonic()
        if now >= self._began + WINDOW_S:
            self._began = now
            self._counts.clear()
        self._counts[key] += 1
        return self._counts[key]

    def take(self, key: str) -> None:
        """Count one more of a key. Raises Problem 429 for more than is allowed."""
        if self.count(key) > self.most:
            raise self.refusal()

    def refusal(self) -> Problem:
        """The answer to a request that is one too many."""
        wait = max(1, math.ceil(self._began + WINDOW_S - time.monotonic()))
        detail = f"more than {self.most:g} {self._what} in {WINDOW_S:g} s; try again in {wait} s"
        return Problem(429, "too-many-requests", detail, {"Retry-After": str(wait)})
