"""The web process: `python -m rlpto.service.web SETTINGS [--fd NUMBER]`, as `rlpto serve` starts it."""

from __future__ import annotations

import argparse
import logging
import socket
import sys
from types import FrameType

import uvicorn
from fastapi import FastAPI

from rlpto.io.errors import RlptoError
from rlpto.service.settings import ServiceSettings, load_service
from rlpto.service.web.app import make_app, openapi_text

KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections, so that it is never the server that closes one under a request."""
STOP_S = 5
"""After so long requests that are still answered are cut off."""
_BAD_INPUT = 2


class Server(uvicorn.Server):
    """Ends streams as soon as it is told to stop, so that nothing waits for them."""

    def __init__(self, app: FastAPI, settings: ServiceSettings) -> None:
        web = settings.web
        super().__init__(
            uvicorn.Config(
                app,
                host=web.host,
                port=web.port,
                http="h11",
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                date_header=True,
                proxy_headers=web.behind_proxy,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=STOP_S,
                ssl_certfile=web.certificate,
                ssl_keyfile=web.key,
            )
        )
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        service = getattr(self._app.state, "service", None)
        if service is not None:
            service.notifier.close()
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
        server = Server(make_app(settings), settings)
    except RlptoError as error:
        print(f"rlpto: error: {error}", file=sys.stderr)
        sys.exit(_BAD_INPUT)
    server.run(None if given.fd is None else [socket.socket(fileno=given.fd)])


if __name__ == "__main__":
    main()
