"""The web process: `python -m rlpto.service.web SETTINGS [--fd NUMBER]`, as started by `rlpto serve`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
import sys
from types import FrameType

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from rlpto.io.errors import RlptoError
from rlpto.service.settings import ServiceSettings, load_service
from rlpto.service.web.app import make_app, openapi_text

KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections, because the server must not close one during a request."""
STOP_S = 5
"""Time for requests to end after SIGTERM before they are cut off."""
MOST_CONNECTIONS = 1000
"""Most open connections. A new one replaces a connection without a token, or else an idle one. If all others are
waiting for an answer, the new one is answered 503."""
MOST_UNKNOWN = 200
"""Most connections without a token per address. Not applied behind a proxy, which has one address for all."""
_BAD_INPUT = 2


class TimedProtocol(H11Protocol):
    """uvicorn's protocol with a time limit for receiving a whole request, which uvicorn (0.54) lacks. The connection is
    closed `web.request_seconds` after it was made, or after the first byte of a later request.

    If there are too many connections, ones without a token are closed first.
    """

    _timer: asyncio.TimerHandle | None = None
    _known, _active_at = False, 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit for the first request."""
        super().connection_made(transport)
        self._active_at = self.loop.time()
        self._make_room()
        self._start_timer()

    @property
    def worth(self) -> tuple[bool, bool, float]:
        """Whether a token was shown, whether a request is in progress, and when data last arrived [s]."""
        shown = self._known or (self.scope is not None and "known" in self.scope["state"])
        return shown, self.cycle is not None and not self.cycle.response_complete, self._active_at

    def _make_room(self) -> None:
        """Close the least valuable connection if there are too many, from this address or in total."""
        others = [one for one in self.connections if isinstance(one, TimedProtocol) and one is not self]
        here = [one for one in others if not one.worth[0] and (one.client or "?")[0] == (self.client or "?")[0]]
        of_proxy = self._settings.web.behind_proxy
        crowd = here if len(here) >= MOST_UNKNOWN and not of_proxy else others
        if crowd is others and len(others) < MOST_CONNECTIONS - 1:
            return
        least = min(crowd, key=lambda one: one.worth)
        if not all(least.worth[:2]):
            self.connections.discard(least)  # the transport reports it only in the next turn of the loop
            least.transport.abort()

    @property
    def _settings(self) -> ServiceSettings:
        settings: ServiceSettings = self.config.app.state.settings  # type: ignore[union-attr]
        return settings

    def handle_events(self) -> None:
        """Handle received data, and restart the time limit while a request is incomplete."""
        self._known, self._active_at = self.worth[0], self.loop.time()
        super().handle_events()
        state = self.conn.their_state
        missing = state is h11.SEND_BODY or (state is h11.IDLE and bool(self.conn.trailing_data[0]))
        if not missing:
            self._stop_timer()
        elif self._timer is None:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self._settings.web.request_seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class WebServer(uvicorn.Server):
    """Ends streams as soon as it is asked to stop; the shutdown does not wait for them."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        app = self.config.app
        if isinstance(app, FastAPI) and hasattr(app.state, "service"):
            app.state.service.notifier.close()
        super().handle_exit(sig, frame)


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="rlpto.service.web", description=__doc__)
    parser.add_argument("settings", help="settings of the service")
    parser.add_argument("--fd", type=int, help="socket that listens already; else the address of the settings")
    parser.add_argument("--openapi", action="store_true", help="print openapi.json, and serve nothing")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="web: %(message)s", stream=sys.stderr)
    try:
        settings = load_service(given.settings)
        if given.openapi:
            print(openapi_text(settings), end="")
            return
        app, web = make_app(settings), settings.web
    except RlptoError as error:
        print(f"rlpto: error: {error}", file=sys.stderr)
        sys.exit(_BAD_INPUT)
    config = uvicorn.Config(
        app,
        host=web.host,
        port=web.port,
        http=TimedProtocol,
        limit_concurrency=MOST_CONNECTIONS,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=web.behind_proxy,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        ssl_certfile=web.certificate,
        ssl_keyfile=web.key,
    )
    WebServer(config).run(None if given.fd is None else [socket.socket(fileno=given.fd)])


if __name__ == "__main__":
    main()
