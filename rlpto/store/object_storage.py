"""Copies of a job's checkpoints in object storage, such as S3, uploaded from disk while the job continues to train."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rlpto.io.files import whole_file
from rlpto.io.reading import one_line
from rlpto.store.checkpoints import KEPT_CHECKPOINTS, name_of, open_newest

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

LONGEST_WAIT_S = 60.0
"""Longest wait between two attempts to upload."""
REQUEST_S = 60.0
"""Longest wait for an answer of S3. With Arrow's default, 3 s, no upload to a slow server would ever succeed."""
CLOSING_S = 12.0
"""Longest wait of an ending job for its newest checkpoint to arrive. Controllers that answer nothing for 20 s are
killed."""


def checked_uri(uri: str) -> str:
    """Check a storage address. Raises ValueError if it has no scheme, or contains credentials."""
    parts = urlsplit(uri)
    if not parts.scheme or not (parts.netloc or parts.path.strip("/")):
        raise ValueError(f"expected an address such as s3://bucket/folder, got {uri!r}")
    if "@" in parts.netloc:
        raise ValueError("expected no credentials in the address: set them in the environment of the nodes")
    return uri


class CheckpointStorage:
    """Copies of the checkpoints in one job's folder.

    uri: address for `pyarrow.fs`: s3://bucket/folder?region=...&endpoint_override=..., gs://, file:///. say: called
    with messages, possibly from another thread; failing uploads give one message until an upload succeeds. Credentials
    come from the environment.
    """

    def __init__(self, uri: str, job: str, folder: Path, say: Callable[[str], None]) -> None:
        self._uri, self._job, self._folder, self._say = uri, job, folder, say
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._wrong = ""  # error since the last successful upload
        self._given_up = False  # True if the storage has no usable copy

    def offer(self) -> None:
        """Start to upload the newest checkpoint of the folder in the background. Call this after each new checkpoint.
        Older copies beyond `KEPT_CHECKPOINTS` are deleted."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="uploads", daemon=True)
            self._thread.start()
        self._wake.set()

    def close(self) -> None:
        """Wait until the newest checkpoint has arrived, or `CLOSING_S` have passed."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSING_S)
            if self._thread.is_alive() or self._wrong:
                self._say(f"{self._uri}: the last checkpoint has not arrived: {self._wrong or 'no answer yet'}")

    def fetch(self) -> bool:
        """Copy the newest undamaged checkpoint that was not refused into the folder. Returns whether there was one."""
        try:
            system, place = self._opened()
            for name in self._names(system, place):
                if (self._folder / name).with_suffix(".refused").exists():
                    continue
                with system.open_input_stream(f"{place}/{name}") as stream:
                    state = stream.read()
                if hashlib.sha256(state).hexdigest() != name_of(name)[1]:
                    self._say(f"{self._uri}: {name[:17]} is damaged, or was uploaded in part")
                    continue
                with whole_file(self._folder / name, "a checkpoint") as unfinished:
                    unfinished.write_bytes(state)
                self._say(f"went on from {name[:17]} in {self._uri}")
                return True
        except OSError as wrong:
            self._say(f"{self._uri}: cannot be read: {_reason(wrong)}")
        else:
            self._given_up = True
        return False

    def clear(self) -> None:
        """Remove copies of an earlier job of the same name."""
        try:
            system, place = self._opened()
            if self._names(system, place):
                system.delete_dir(place)
        except OSError as wrong:
            self._say(f"{self._uri}: cannot be emptied: {_reason(wrong)}")

    def _work(self) -> None:
        """Upload new checkpoints; after a failure, retry until it succeeds or the job ends."""
        wait = 1.0
        while True:
            self._wake.wait()
            self._wake.clear()
            try:
                self._upload()
                if self._wrong:
                    self._say(f"{self._uri}: checkpoints arrive again")
                wait, self._wrong = 1.0, ""
            except OSError as wrong:
                before, self._wrong = self._wrong, _reason(wrong)
                if not before:
                    self._say(f"{self._uri}: the newest checkpoint has not arrived: {self._wrong}; retrying")
                if not self._closing.wait(wait):
                    self._wake.set()
                wait = min(2.0 * wait, LONGEST_WAIT_S)
            if self._closing.is_set() and not self._wake.is_set():
                return

    def _upload(self) -> None:
        """Upload the newest checkpoint if the storage lacks it. Then delete old copies, and copies of later steps if
        `fetch` found none of them usable. Raises OSError."""
        system, place = self._opened()
        known = self._names(system, place)
        found = open_newest(self._folder)  # only now, because a checkpoint may be removed during a slow answer
        if found is None:
            return
        with found[1] as file:
            name = Path(found[0].path).name
            if name not in known:
                if system.type_name == "local":
                    system.create_dir(place)
                with system.open_output_stream(f"{place}/{name}") as stream:
                    stream.write(file.read())
        names = self._names(system, place)
        later = [] if self._given_up else [one for one in names if name_of(one)[0] > found[0].step]
        kept = [*later, name, *[one for one in names if name_of(one)[0] < found[0].step][: KEPT_CHECKPOINTS - 1]]
        for other in names:
            if other not in kept:
                system.delete_file(f"{place}/{other}")

    def _opened(self) -> tuple[FileSystem, str]:
        from pyarrow.fs import FileSystem  # takes a third of a second, and few jobs need it

        try:
            system, place = FileSystem.from_uri(self._uri)
        except (ValueError, NotImplementedError) as unknown:  # Arrow's errors for unknown addresses
            raise OSError(str(unknown)) from unknown
        if system.type_name == "s3":  # an address cannot specify timeouts
            rebuild, (options,) = system.__reduce__()
            times = {"request_timeout": REQUEST_S, "connect_timeout": REQUEST_S / 6}
            system = rebuild({**options, **times, "allow_delayed_open": True})  # one request for a small checkpoint
        return system, f"{place.rstrip('/')}/{self._job}"

    def _names(self, system: FileSystem, place: str) -> list[str]:
        """Names of the copies, newest first. Raises OSError."""
        from pyarrow.fs import FileSelector

        found: list[Any] = system.get_file_info(FileSelector(place, allow_not_found=True))
        return sorted((one.base_name for one in found if name_of(one.base_name)[1]), reverse=True)


def _reason(wrong: OSError) -> str:
    """One-line text of an error; for Arrow, only the part with the server's answer."""
    before, mark, after = str(wrong).partition("AWS Error ")
    return one_line(mark + after if mark else before)
