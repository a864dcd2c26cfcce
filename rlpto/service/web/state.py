"""What the web process holds while it runs: settings, the database for reading and writing, new events, limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar, cast

from fastapi import Depends, Request

from rlpto.service.settings import ServiceSettings
from rlpto.service.web.metrics import ServiceMetrics
from rlpto.service.web.middleware import RateLimits
from rlpto.store.database import Store
from rlpto.store.events import last_event

T = TypeVar("T")
LOOK_INTERVAL_S = 0.1
"""Time between two looks for new events."""


class EventNotifier:
    """Wakes streams when there are new events, so that they need not poll themselves."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._new = asyncio.Event()
        self.last = last_event(store)
        self.closing = False

    async def look(self) -> None:
        """Poll for new events until closed."""
        while not self.closing:
            last = last_event(self._store)
            if last != self.last:
                self.last = last
                self._wake()
            await asyncio.sleep(LOOK_INTERVAL_S)

    def close(self) -> None:
        """Let all streams end."""
        self.closing = True
        self._wake()

    async def wait(self, seconds: float) -> bool:
        """Wait until there may be new events; False: there were none in this time."""
        try:
            return await asyncio.wait_for(self._new.wait(), seconds)
        except TimeoutError:
            return False

    def _wake(self) -> None:
        self._new.set()
        self._new = asyncio.Event()


class DatabaseWriter:
    """One thread that writes durably: a transaction each, on disk when it is answered."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, "database-writer")
        self._store: Store | None = None

    async def __call__(self, write: Callable[[Store], T]) -> T:
        """Run `write` in a transaction; its result. Nothing is kept of one that raises."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, write)

    def close(self) -> None:
        """End the thread after what it still has to write."""
        self._thread.submit(self._close)
        self._thread.shutdown()

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _run(self, write: Callable[[Store], T]) -> T:
        self._store = self._store or Store(self._path)
        with self._store.transaction():
            return write(self._store)


@dataclass(frozen=True)
class Service:
    """Everything that routes need.

    store: for reading, by the thread of the event loop. commit: for writing. now: seconds since 1970.
    """

    settings: ServiceSettings
    store: Store
    commit: DatabaseWriter
    notifier: EventNotifier
    limits: RateLimits
    metrics: ServiceMetrics
    now: Callable[[], float] = time.time


async def service_of(request: Request) -> Service:
    """The service that answers a request."""
    return cast(Service, request.app.state.service)


TheService = Annotated[Service, Depends(service_of)]
