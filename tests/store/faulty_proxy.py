"""A real HTTP proxy before a server of object storage: it delays uploads, or answers them with an error."""

from __future__ import annotations

import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

ERROR = """<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>{}</Code><Message>Refused, request {}</Message><AWSAccessKeyId>{}</AWSAccessKeyId></Error>"""


class FaultyProxy(ThreadingHTTPServer):
    """delay_s: before each answer to an upload. refused: methods that are answered with `code` and `reason`, or, if
    `code` is 0, not at all. refusals: so far. asked: set once an upload has come."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = port
        self.delay_s, self.refused, self.code, self.reason = 0.0, set[str](), 0, ""
        self.refusals = 0
        self.asked = Event()
        self._thread = Thread(target=self.serve_forever)
        self._thread.start()

    def fail(self, code: int, reason: str, *methods: str) -> None:
        """Refuse from now on; no methods: none any more."""
        self.code, self.reason, self.refused = code, reason, set(methods)

    def uri(self, behind: str) -> str:
        """The address of storage by way of this."""
        return behind.replace(str(self.behind), str(self.server_port))

    def stop(self) -> None:
        """End it."""
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: FaultyProxy
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        proxy = self.server
        body = self._chunks() if "Transfer-Encoding" in self.headers else self._read(self.headers["Content-Length"])
        if self.command == "PUT":
            proxy.asked.set()
            time.sleep(proxy.delay_s)
        if self.command in proxy.refused:
            proxy.refusals += 1
            if not proxy.code:
                self.close_connection = True
                return
            key = self.headers.get("Authorization", "=/").split("=")[1].split("/")[0]
            said = ERROR.format(proxy.reason, proxy.refusals, key).encode()
            self._answer(proxy.code, {"Content-Type": "application/xml", "x-amz-request-id": str(proxy.refusals)}, said)
            return
        behind = HTTPConnection("127.0.0.1", proxy.behind, timeout=60)
        headers = {key: value for key, value in self.headers.items() if key.lower() != "transfer-encoding"}
        behind.request(self.command, self.path, body, headers | {"Content-Length": str(len(body))})
        got = behind.getresponse()
        self._answer(got.status, dict(got.getheaders()), got.read(), got.getheader("Content-Length"))
        behind.close()

    def _read(self, length: str | None) -> bytes:
        return self.rfile.read(int(length or 0))

    def _chunks(self) -> bytes:
        found = b""
        while length := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(length)
            self.rfile.readline()
        self.rfile.readline()
        return found

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass_on  # noqa: N815

    def _answer(self, code: int, headers: dict[str, str], body: bytes, length: str | None = None) -> None:
        self.send_response(code)
        for name, value in headers.items():
            if name.lower() not in ("connection", "content-length", "date", "server", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *_: Any) -> None:
        """Silent."""
