"""The parent of a job service: creates its folder, starts its two processes, restarts them when they die, and ends them
in good order."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from rlpto.io.errors import ClusterError, ConfigError, refusals_as
from rlpto.io.files import FileLock, whole_file
from rlpto.service.settings import DATABASE, STATE_FILE, ServiceSettings
from rlpto.store.database import Store
from rlpto.store.programs import set_programs
from rlpto.store.users import add_token, add_user, get_user, user_of_token

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 30.0
"""Time before a dead process is restarted, doubled each time."""
STEADY_S = 60.0
"""A process that lived this long begins with the first back-off again."""
WEB_STOP_S, SCHEDULER_STOP_S = 10.0, 90.0
"""Time after which a process that was asked to end is killed; the scheduler lets jobs write checkpoints."""
LARGEST_LOG_BYTES = 10_000_000
FIRST_ADMIN = "admin"
TOKEN_FILE = "admin-token"
_LOOK_S = 0.2
_BAD_INPUT = 2
_PR_SET_PDEATHSIG = 1


class Child:
    """A process that is restarted whenever it ends. pass_fds: files it inherits. stop_signal: signal that asks it to
    end. hidden: environment variables that it does not inherit."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        stop_signal: signal.Signals,
        pass_fds: Sequence[int] = (),
        hidden: Collection[str] = (),
    ) -> None:
        self.name, self.log, self.restarts = name, log, 0
        self._arguments, self._stop_signal, self._fds = arguments, stop_signal, pass_fds
        self._environment = {key: value for key, value in os.environ.items() if key not in hidden}
        self._backoff, self._due, self._since = FIRST_BACKOFF_S, 0.0, 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs now."""
        return self._process is not None and self._process.poll() is None

    def look(self, now: float, say: Callable[[str], None]) -> None:
        """Start the process if it is not running and is due. now: time of a monotonic clock [s].

        Raises ClusterError if it rejects its input on the very first start.
        """
        if self.alive:
            return
        if self._process is not None:
            code, self._process = self._process.returncode, None
            if code == _BAD_INPUT and not self.restarts:
                said = _last_line(self.log.read_text(encoding="utf-8", errors="replace"))
                raise ClusterError(f"the {self.name} process has ended: {said} ({self.log})")
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            self._backoff = FIRST_BACKOFF_S if now - self._since > STEADY_S else self._backoff
            say(f"the {self.name} process has ended ({how}); starting it again in {self._backoff:g} s")
            self._due, self._backoff = now + self._backoff, min(2 * self._backoff, LONGEST_BACKOFF_S)
            self.restarts += 1
        if now >= self._due:
            self._since, self._process = now, self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        if self.log.exists() and self.log.stat().st_size > LARGEST_LOG_BYTES:
            self.log.replace(self.log.with_name(f"{self.log.name}.1"))
        with refusals_as(ConfigError, f"{self.log}: cannot write the log there"):
            log = self.log.open("ab")
        with log:
            return subprocess.Popen(
                [sys.executable, "-m", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=self._fds,
                env=self._environment,
                start_new_session=True,  # Ctrl-C on the terminal reaches the parent alone, which says how to end
                preexec_fn=_end_with_parent,
            )

    def end(self, seconds: float, now: Callable[[], bool] = lambda: False) -> None:
        """Ask the process to end, and kill it after `seconds`, or once `now` returns True."""
        if self._process is None:
            return
        self._process.send_signal(self._stop_signal)
        until = time.monotonic() + seconds
        while self.alive and time.monotonic() < until and not now():
            time.sleep(_LOOK_S / 4)
        self._process.kill()
        self._process.wait()


def serve(
    path: Path, settings: ServiceSettings, ready: Callable[[str, bool], None], say: Callable[[str], None]
) -> None:
    """Run a service until SIGINT or SIGTERM; a second signal ends it at once.

    path: settings file. ready: called once pages are served, with the address and the result of `prepare`. say: called
    with a line about each later event. Raises ConfigError for settings, an address or a folder that cannot be used,
    ClusterError if another service is at work in the folder, or a process cannot start.
    """
    _check(path)
    _make_folder(settings.folder)
    logs = settings.folder / "logs"
    with refusals_as(ConfigError, f"{logs}: cannot keep logs there", "; expected a folder"):
        logs.mkdir(exist_ok=True)
    with _alone_in(settings.folder), _listening(settings) as listening:
        stopped, is_new = _stopped(), prepare(settings)
        number, host = listening.fileno(), settings.web.host
        arguments = ["rlpto.service.web", str(path), "--fd", str(number)]
        web = Child("web", arguments, logs / "web.log", signal.SIGTERM, [number])
        secret = settings.web.oidc and settings.web.oidc.client_secret_env
        hidden = [secret] if secret else []  # jobs inherit the scheduler's environment
        arguments = ["rlpto.service.scheduler", str(path)]
        scheduler = Child("scheduler", arguments, logs / "scheduler.log", signal.SIGINT, hidden=hidden)
        scheme = "http" if settings.web.certificate is None else "https"
        shown = f"[{host}]" if ":" in host else host
        address, is_up = f"{scheme}://{shown}:{listening.getsockname()[1]}", False
        try:
            while not stopped:
                for child in (web, scheduler):
                    child.look(time.monotonic(), say)
                if not is_up and _answers(address):
                    is_up = True
                    ready(address, is_new)
                time.sleep(_LOOK_S)
        finally:
            keeps = settings.on_stop == "keep" and settings.scheduler.address is not None
            jobs = "jobs train on" if keeps else "jobs go on from their checkpoints at the next start"
            say(f"ending; {jobs} (Ctrl-C again: at once)")
            web.end(WEB_STOP_S)
            scheduler.end(SCHEDULER_STOP_S, lambda: len(stopped) > 1)
            if (note := settings.folder.absolute() / STATE_FILE).exists():  # removed when the cluster has ended
                say(
                    "the Ray cluster of the service has not ended; the next start takes it up or ends it; now: "
                    f"RLPTO_STATE={note} rlpto cluster down"
                )
            else:
                say(f"ended; {'jobs train on (on_stop: keep)' if keeps else 'nothing is left running'}")


def prepare(settings: ServiceSettings) -> bool:
    """Create missing files, and return whether a token of the first admin was made. It is in the folder's
    `admin-token`, readable only by its owner.

    Raises ConfigError for a folder or file that cannot be used, StoreError for a database that cannot be read.
    """
    _make_folder(settings.folder)
    with closing(Store(settings.database)) as store:
        for path in settings.folder.glob(f"{DATABASE}*"):
            path.chmod(0o600)
        set_programs(store, settings.program_specs)
        return _make_admin_token(store, settings.folder / TOKEN_FILE)


def _make_folder(folder: Path) -> None:
    """Create the folder of a service, or restrict an existing one, for its owner only. Raises ConfigError if
    refused."""
    with refusals_as(ConfigError, f"{folder}: cannot make a folder that only its owner can read"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)


def _make_admin_token(store: Store, path: Path) -> bool:
    """Write a new token of the first admin to a file, unless the present one is still valid, or the user is disabled or
    has another role. Returns whether it did."""
    now = time.time()
    with refusals_as(ConfigError, f"{path}: cannot read the token of the admin", "; expected a file, or none"):
        kept = path.read_text(encoding="ascii", errors="replace").strip() if path.exists() else ""
    with store.transaction():
        admin = get_user(store, FIRST_ADMIN) or add_user(store, FIRST_ADMIN, "admin", now)
        if user_of_token(store, kept, now) or admin.disabled or admin.role != "admin":
            return False
        _, secret = add_token(store, FIRST_ADMIN, "made by rlpto serve", now)
    with whole_file(path, "the token of the admin", ConfigError) as unfinished:
        unfinished.touch(0o600)
        unfinished.write_text(secret + "\n", encoding="ascii")
    return True


def _check(path: Path) -> None:
    """Let a scheduler process check the settings before anything is written. Raises ConfigError."""
    command = [sys.executable, "-m", "rlpto.service.scheduler", str(path), "--check"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise ConfigError(_last_line(found.stderr))


def _answers(address: str) -> bool:
    if address.startswith("https"):
        return True  # its certificate may be for another name; the socket listens
    try:
        # Through a proxy of the environment this machine's own address may not be reached.
        with build_opener(ProxyHandler({})).open(f"{address}/healthz", timeout=5):
            return True
    except OSError:
        return False


def _listening(settings: ServiceSettings) -> socket.socket:
    """The socket, which outlives the web process. Clients that connect during a restart only wait."""
    web = settings.web
    family = socket.AF_INET6 if ":" in web.host else socket.AF_INET
    said = f"web: cannot listen on {web.host} port {web.port}"
    with refusals_as(ConfigError, said, "; choose another by --port or web.port"):
        listening = socket.create_server((web.host, web.port), family=family, backlog=1024)
    listening.set_inheritable(True)
    return listening


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder's lock file; its cluster locks the folder itself. Raises ClusterError if another process holds
    it, ConfigError if the file cannot be used."""
    with refusals_as(ConfigError, f"{folder / 'lock'}: cannot lock the folder", "; expected a file, or none"):
        try:
            lock = FileLock(folder / "lock")
        except BlockingIOError:
            raise ClusterError(f"{folder}: another service is at work in this folder") from None
    with closing(lock):
        yield


def _stopped() -> list[int]:
    """A list to which termination signals are appended from now on."""
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: asked.append(number))
    return asked


def _last_line(text: str) -> str:
    line = next((line for line in reversed(text.split("\n")) if line.strip()), "it has printed nothing")
    return line.strip().removeprefix("error: ").removeprefix("rlpto: error: ")[:300]


def _end_with_parent() -> None:
    """Request SIGTERM when the parent dies, however it ends: runners then train on, and nothing else remains."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
