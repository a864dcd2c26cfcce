"""What every request passes before anything reads it: host, origin, size; and headers that every answer carries."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlpto.service.settings import LOOPBACK, WebSettings
from rlpto.service.web.problems import API, problem_response

LARGEST_BODY_BYTES = 64 * 1024
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


class Guard:
    """ASGI middleware. note: is told method, route, status and seconds of every answer."""

    def __init__(self, app: ASGIApp, settings: WebSettings, note: Callable[[str, str, int, float], None]) -> None:
        self._app, self._note = app, note
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
            self._note(scope["method"], _route(scope), status, time.perf_counter() - began)

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str, str] | None:
        """Status, kind and detail of why a request is not answered; None: it is."""
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
    """The same, for bodies that do not say how long they are."""
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
