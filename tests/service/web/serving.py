"""A real web process, as `rlpto serve` starts it: a socket that outlives it, and the module as a child."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import yaml

from rlpto.service.settings import ServiceSettings

START_TIMEOUT_S = 60.0


class WebProcess:
    """A web process that can be killed and started again under the same address."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings.folder / "settings.yaml"
        self._settings.write_text(yaml.safe_dump(settings.model_dump(mode="json")), encoding="utf-8")
        self._log = settings.folder / "web.log"
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """Start it; it may not answer yet."""
        number = self._socket.fileno()
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rlpto.service.web", str(self._settings), "--fd", str(number)],
                pass_fds=[number],
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
            )
        return self.process

    def wait(self) -> None:
        """Wait until it answers."""
        until = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                with urlopen(f"{self.address}/healthz", timeout=5):
                    return
            except OSError:
                if time.monotonic() > until or self.process.poll() is not None:
                    raise AssertionError(f"the web process does not answer: {self.log()[-2000:]}") from None
                time.sleep(0.05)

    def log(self) -> str:
        """What it has printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._socket.close()


@contextmanager
def web_process(settings: ServiceSettings) -> Iterator[WebProcess]:
    """A web process that answers."""
    web = WebProcess(settings)
    try:
        web.wait()
        yield web
    finally:
        web.close()
