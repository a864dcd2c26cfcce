"""State of the running web process: settings, database for reading, grouped writes, new events, limits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends, Request

from rlpto.service.settings import ServiceSettings
from rlpto.service.web.middleware import RateLimits, ServiceMetrics
from rlpto.store.database import Store, StoreError
from rlpto.store.events import last_event

T = TypeVar("T")
LOOK_INTERVAL_S = 0.1
"""Time between two checks for new events."""
LOOK_AGAIN_S = 1.0
"""Time until the next check after a failed one."""
MOST_TOGETHER = 256
"""Most writes in a transaction, for which the scheduler has to wait."""
PAUSE_BETWEEN_COMMITS_S = 0.003
"""Pause in which the scheduler can begin a transaction of its own, and more requests accumulate."""
_LOG = logging.getLogger("rlpto.service.web")


class GroupCommit:
    """Durable writes of many requests. All writes that wait during a disk sync share the next transaction. Its thread
    is the only writer of the web process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._store: Store | None = None
        self._waiting: list[tuple[Callable[[Store], Any], asyncio.Future[Any]]] = []
        self._thread = ThreadPoolExecutor(1, "group-commit")
        self._writing: asyncio.Task[None] | None = None

    async def __call__(self, write: Callable[[Store], T]) -> T:
        """Run `write` in a transaction, possibly with others, and return its result once on disk. An exception of
        `write` is raised here, and none of its changes are kept."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((write, future))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_waiting())
        return await future

    def close(self) -> None:
        """End the thread after the current writes."""
        if self._store is not None:
            self._thread.submit(self._store.close)
        self._thread.shutdown()

    async def _write_waiting(self) -> None:
        while self._waiting:
            together, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
            writes = [write for write, _ in together]
            results = await asyncio.get_running_loop().run_in_executor(self._thread, self._results, writes)
            for (_, future), result in zip(together, results, strict=True):
                if future.done():
                    continue  # the caller has gone
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
            await asyncio.sleep(PAUSE_BETWEEN_COMMITS_S)

    def _results(self, writes: list[Callable[[Store], Any]]) -> list[Any]:
        """Results of all writes in one transaction; for a write that raises, its exception."""
        results: list[Any] = []
        try:
            self._store = self._store or Store(self._path)
            with self._store.transaction():
                for write in writes:
                    try:
                        with self._store.savepoint():
                            results.append(write(self._store))
                    except Exception as error:  # it affects one request only
                        results.append(error)
        except Exception as error:  # such as a full disk: every caller gets the error, and later ones try again
            return [error] * len(writes)
        return results


class EventNotifier:
    """Wakes streams when there are new events, which spares each of them polling."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._new = asyncio.Event()
        self.last = last_event(store)
        self.closing = False

    async def look(self) -> None:
        """Poll for new events until closed, even if the database cannot be read for a while."""
        while not self.closing:
            try:
                last = last_event(self._store)
            except StoreError as busy:
                _LOG.error("events: %s", busy)
                await asyncio.sleep(LOOK_AGAIN_S)
                continue
            if last != self.last:
                self.last = last
                self._wake()
            await asyncio.sleep(LOOK_INTERVAL_S)

    def close(self) -> None:
        """Let all streams end."""
        self.closing = True
        self._wake()

    async def wait(self, seconds: float) -> bool:
        """Wait until there may be new events. False if there were none within `seconds`."""
        try:
            return await asyncio.wait_for(self._new.wait(), seconds)
        except TimeoutError:
            return False

    def _wake(self) -> None:
        self._new.set()
        self._new = asyncio.Event()


@dataclass(frozen=True)
class Service:
    """Shared objects for routes. store: for reading, on the event loop's thread. now: returns seconds since 1970."""

    settings: ServiceSettings
    store: Store
    commit: GroupCommit
    notifier: EventNotifier
    limits: RateLimits
    metrics: ServiceMetrics
    now: Callable[[], float] = time.time


async def service_of(request: Request) -> Service:
    """The service that answers a request."""
    return cast(Service, request.app.state.service)


TheService = Annotated[Service, Depends(service_of)]
