"""The scheduler of the soak: the command that users start, in a process of its own that can be killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from rlpto.evaluation.runner import Cell
from rlpto.experiments.on_ray import session_folder, session_of
from rlpto.ray_cluster.scheduler.session_folder import DATABASE

CELL = Cell("equal_share", "jobs", 0)


class Scheduler:
    """`rlpto evaluate` of `config` on the cluster at `address`. folder: for its files. restarts: after kills."""

    def __init__(self, folder: Path, address: str, config: str) -> None:
        self._run = folder / "run"
        file = folder / "chaos.yaml"
        file.write_text(config)
        self._command = [
            *(sys.executable, "-m", "rlpto.cli.main", "evaluate", str(file), "--cluster", "ray", "--address", address),
            *("--run-dir", str(self._run), "--no-report", "--quiet"),
        ]
        self._log = folder / "scheduler.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.session = session_of(self._run, CELL)
        self.database = session_folder(self._run, CELL) / DATABASE
        self.restarts = 0

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        """Without a word, as a machine does that loses power."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def end(self) -> None:
        """As Ctrl-C does, which programs in the background of a shell do not hear: its controllers end too. Killed if
        that takes too long."""
        if self._process is not None and not self.ended:
            self._process.terminate()
            self.wait(60.0)
        self.kill()

    def restart(self) -> None:
        self.kill()
        self.restarts += 1
        self.start()

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None if it is still at work after so long."""
        by = time.monotonic() + seconds
        while not self.ended and time.monotonic() < by:
            time.sleep(0.5)
        return self._process.returncode if self._process is not None and self.ended else None

    def said(self) -> str:
        """The end of what it has printed."""
        return self._log.read_text(errors="replace")[-2000:]
